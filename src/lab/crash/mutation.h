// Flush mutation: each flush and each fence of the code in turn counts for nothing; the explorer
// must notice. One that can be dropped unnoticed is wasted, or the workload does not reach what it
// guards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lab/crash/explorer.h"

namespace perdure::lab::crash {

enum class SiteKind : uint8_t { kFlush, kFence };

// A place in the source that flushes or fences; all copies that inlining made of it.
struct MutationSite {
  SiteKind kind;
  std::string place;       // "write.cc:120 append"
  uint64_t executions = 0;  // in the explored part of the run
  bool killed = false;      // the explorer noticed
  std::string how;          // what it found
  uint64_t states = 0;      // images recovered for it
  bool exhausted = true;    // a survivor for which all states were looked at
};

struct MutationResult {
  std::vector<MutationSite> sites;
  uint64_t killed = 0;
  double seconds = 0;
};

// `verdicts` are those of the exploration without mutations: images that it knows cost nothing.
MutationResult mutate(const Run& run, Subject& subject, const ExploreOptions& options,
                      Verdicts& verdicts,
                      const std::function<void(const MutationSite&, size_t done, size_t of)>& progress);

const char* to_string(SiteKind kind);

}  // namespace perdure::lab::crash
