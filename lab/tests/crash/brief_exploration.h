// How far tests explore one recorded run: a second of it in `make test`, four times as far in `make
// test-more` (PERDURE_CRASHES=all), for as long as one likes in `make crash-campaign`.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "lab/crash/explorer.h"
#include "lab/crash/mutation.h"
#include "lab/crash/sites.h"
#include "support/scale.h"

namespace perdure::lab::crash {

// Fails for each finding, with the places of the lost stores.
inline void report_findings(const Run& run, const Exploration& result) {
  if (result.findings.empty()) return;
  const SiteNames names(run.trace);
  for (const Finding& finding : result.findings) {
    std::string places;
    for (const LostStore& lost : finding.lost) {
      places += names.of(run.trace.events[lost.event].pc) + "\n";
    }
    ADD_FAILURE() << finding.what << "\n" << places;
  }
}

inline bool explores_all() {
  const char* crashes = std::getenv("PERDURE_CRASHES");
  return crashes != nullptr && std::string(crashes) == "all";
}

// What part of the states this run of the tests explores.
inline uint64_t part_of(uint64_t states) { return explores_all() ? states : states / 4; }

// Explores crashes before the events from `begin` to `end` of a run, in at most part_of(most)
// states, tells of each finding, and expects more than part_of(least) states. After so many of the
// crashes the process has died, and the power fails later: sixteen times as many in `make
// test-more`.
template <typename Subject>
void explore_briefly(const Run& run, Subject& subject, uint64_t least, uint32_t begin = 0,
                     uint32_t end = ~uint32_t{0}, uint64_t most = 1000, uint64_t deaths = 1) {
  ExploreOptions options;
  options.begin = begin;
  options.end = end;
  options.points_max = test::rounds(part_of(std::min<uint64_t>(most, 150)));
  options.states_max = test::rounds(part_of(most));
  options.nested_max = 2;
  options.deaths_max = test::rounds(explores_all() ? 16 * deaths : deaths);
  options.states_max += options.deaths_max;  // one state each
  options.nested_states = 40;
  options.crashes = 2;
  options.work = 100;
  options.limits.complete_max = 16;
  options.limits.lines_alone_max = 4;
  options.limits.pairs_max = 4;
  options.limits.random = 4;
  Verdicts verdicts;
  const Exploration result = explore(run, subject, options, verdicts);
  report_findings(run, result);
  EXPECT_GT(result.states, part_of(least));
}

// The flushes and fences at places that contain `part` which can be dropped without a finding:
// "fence TornBitLog::replay". Deaths are aimed at what survives the rest.
inline std::multiset<std::string> survivors_of(const Run& run, Subject& subject,
                                               const ExploreOptions& options,
                                               const std::string& part) {
  Verdicts verdicts;
  const Exploration whole = explore(run, subject, options, verdicts);
  report_findings(run, whole);
  Mutations mutations(part);
  mutations.add(run, subject, options, whole, verdicts, {});
  std::multiset<std::string> survivors;
  for (const MutationSite& site : mutations.result().sites) {
    if (site.killed) continue;
    const std::string function = site.place.substr(site.place.find(' ') + 1);
    survivors.insert(std::string(to_string(site.kind)) + " " + function);
  }
  return survivors;
}

}  // namespace perdure::lab::crash
