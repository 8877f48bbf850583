// The next crash: a recovery, and work after it, recorded in a process of its own and explored
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lab/crash/explorer.h"
#include "lab/crash/image_file.h"

namespace perdure::lab::crash {

struct NestedResult {
  bool offered = false;  // the subject records recoveries
  uint64_t states = 0;
  uint64_t death_states = 0;          // images of power failures after a death
  PersistSites sites;                 // reached by recovery and work
  std::vector<std::string> findings;  // in words
};

// The process that left the image died, and its stores are in the caches.
struct Death {
  std::vector<Word> durable;  // what the words of the image that are pending hold in memory
  Inherited inherited;        // of the crashed run: events are those of its trace
  const Trace* trace;         // of it
  Unsettled unsettled;
  std::vector<uint64_t> digests;  // what recovery may see
  // What is wrong with contents that recovery sees, in words, where this decides; may be empty.
  std::function<std::string(const std::string& contents)> explain;
};

// Explores the recovery of the image as it is, and work on it, with one crash more than `options`
// say there were. `digest` is what its recovery gives.
NestedResult explore_nested(Subject& subject, const ImageFile& image, uint64_t digest,
                            const ExploreOptions& options, const Death* death = nullptr);

}  // namespace perdure::lab::crash
