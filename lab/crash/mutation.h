// Flush mutation: each flush and each fence of the code in turn counts for nothing, in recoveries,
// too; the explorer must notice. One that can be dropped unnoticed may be wasted. More often the
// workload does not reach what it guards, or it takes more crashes in a row than were tried: a
// survivor alone is no reason to take it out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/crash/explorer.h"

namespace perdure::lab::crash {

enum class SiteKind : uint8_t { kFlush, kFence };

// A place in the source that flushes or fences; all copies that inlining made of it.
struct MutationSite {
  SiteKind kind;
  std::string place;        // "write.cc:120 append"
  uint64_t executions = 0;  // in the explored part of the run
  uint64_t recoveries = 0;  // in recoveries, and in the work after them
  bool killed = false;      // the explorer noticed
  std::string how;          // what it found
  uint64_t states = 0;      // images recovered for it
  // Of them, of power failures after a death: without what a dead process had stored and the site
  // would have made durable, and with all else.
  uint64_t held_back = 0;
  bool exhausted = true;  // a survivor for which all states were looked at
};

struct MutationResult {
  std::vector<MutationSite> sites;  // in the order of the source
  double seconds = 0;

  uint64_t killed() const;
};

// Gathers what several runs show about the sites of one program: a site is killed if any run kills
// it.
class Mutations {
 public:
  using Progress = std::function<void(const MutationSite&, size_t done, size_t of)>;

  // Of all sites, or of those whose place contains `part`.
  explicit Mutations(std::string part = {}) : part_(std::move(part)) {}

  // Drops each site of a run that no run before has killed. `whole` and `verdicts` are of the
  // exploration without mutations, which found nothing: images that it knows cost nothing.
  void add(const Run& run, Subject& subject, const ExploreOptions& options,
           const Exploration& whole, Verdicts& verdicts, const Progress& progress);
  MutationResult result() const;

 private:
  std::string part_;
  std::map<std::pair<std::string, SiteKind>, MutationSite> sites_;
  double seconds_ = 0;
};

const char* to_string(SiteKind kind);

}  // namespace perdure::lab::crash
