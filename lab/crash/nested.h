// The next crash: a recovery, and work after it, recorded in a process of its own and explored
// there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/crash/explorer.h"
#include "lab/crash/image_file.h"

namespace perdure::lab::crash {

struct NestedResult {
  bool offered = false;  // the subject records recoveries
  uint64_t states = 0;
  PersistSites sites;                 // reached by recovery and work
  std::vector<std::string> findings;  // in words
};

// Explores the recovery of the image as it is, and work on it, with one crash more than `options`
// say there were. `digest` is what its recovery gives.
NestedResult explore_nested(Subject& subject, const ImageFile& image, uint64_t digest,
                            const ExploreOptions& options);

}  // namespace perdure::lab::crash
