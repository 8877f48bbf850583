// Every crash of programs over the multi-word compare-and-swap.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "crash/brief_exploration.h"
#include "crash/observed/mwcas_programs.h"
#include "lab/crash/explorer.h"

namespace perdure::lab::crash {
namespace {

ExploreOptions mwcas_options() {
  ExploreOptions options;
  options.limits.complete_max = 64;
  options.states_max = 6000;
  options.nested_max = 4;
  options.nested_states = 100;
  return options;
}

Exploration explore_all(Subject& subject, const ExploreOptions& with) {
  const crash::Run run = subject.record({});
  EXPECT_EQ(run.problem, "");
  Verdicts verdicts;
  Exploration result = explore(run, subject, with, verdicts);
  report_findings(run, result);
  return result;
}

TEST(MwcasCrash, TransfersAreWholeOrNotAtAll) {
  const auto subject = mwcas_transfers();
  EXPECT_GT(explore_all(*subject, mwcas_options()).states, 100U);
}

TEST(MwcasCrash, WhatTwoThreadsDidAndReadStays) {
  ExploreOptions with = mwcas_options();
  with.states_max = 1500;
  for (uint64_t schedule = 1; schedule <= 12; ++schedule) {
    SCOPED_TRACE(schedule);
    const auto subject = mwcas_map(schedule);
    EXPECT_GT(explore_all(*subject, with).states, 50U);
  }
}

// The explorer would notice: without fences a decision may come before what it decides about.
// (Fences alone would not be missed: the compare-and-swaps that follow are fences, too.)
TEST(MwcasCrash, NoticesMissingFlushes) {
  const auto subject = mwcas_transfers();
  const crash::Run run = subject->record({});
  ExploreOptions with = mwcas_options();
  with.findings_max = 1;
  with.drops = [](const TraceEvent& event) { return event.kind == EventKind::kFlush; };
  Verdicts verdicts;
  EXPECT_EQ(explore(run, *subject, with, verdicts).findings.size(), 1U);
}

// Why each of these may be missed, and stays, docs/mwcas.md says.
TEST(MwcasCrash, WhatNothingMisses) {
  const auto subject = mwcas_transfers();
  const crash::Run run = subject->record({});
  ExploreOptions options = mwcas_options();
  options.findings_max = 1;
  options.deaths_max = 12;
  const std::multiset<std::string> known = {
      "fence Mwcas::make_clean", "fence Mwcas::persist_status", "fence Mwcas::persist_words",
      "fence Mwcas::recover",    "fence Operation::describe",   "fence Operation::execute",
      "flush Mwcas::make_clean", "flush Mwcas::recover"};
  EXPECT_EQ(survivors_of(run, *subject, options, "mwcas.cc"), known);
}

}  // namespace
}  // namespace perdure::lab::crash
