// Crashes in a row of a program over the torn-bit log, whose ring is so small that each crash meets
// what the ones before left.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "crash/brief_exploration.h"
#include "crash/observed/log_program.h"
#include "lab/crash/explorer.h"
#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

ExploreOptions log_options() {
  ExploreOptions options;
  options.limits.complete_max = 256;
  options.nested_max = 120;
  options.nested_states = 150;
  options.work = 20;
  options.states_per_nested = 1;
  options.findings_max = 1;
  return options;
}

TEST(TornBitLogCrash, NoCrashOfSeveralBringsBackWhatIsOld) {
  const auto subject = log_of_batches();
  const crash::Run run = subject->record({});
  ASSERT_EQ(run.problem, "");
  Verdicts verdicts;
  const Exploration result = explore(run, *subject, log_options(), verdicts);
  EXPECT_GT(result.nested_states, 2000U);
  report_findings(run, result);
}

// Each fence of the log itself is needed, though it may take two crashes to show.
TEST(TornBitLogCrash, EachFenceOfTheLogIsMissed) {
  const auto subject = log_of_batches();
  const crash::Run run = subject->record({});
  const SiteNames names(run.trace);
  std::set<uint64_t> fences;
  for (const auto& [site, count] : persist_sites(run)) {
    if (site.fence && names.of(site.pc).find("torn_bit_log.cc") != std::string::npos) {
      fences.insert(site.pc);
    }
  }
  EXPECT_EQ(fences.size(), 2U);  // of advance()
  for (const uint64_t pc : fences) {
    SCOPED_TRACE(names.of(pc));
    ExploreOptions without = log_options();
    without.drops = [pc](const TraceEvent& event) {
      return event.kind == EventKind::kFence && event.pc == pc;
    };
    Verdicts verdicts;
    EXPECT_EQ(explore(run, *subject, without, verdicts).findings.size(), 1U);
  }
}

// One flush: what it notes the next header says again, before a chunk is used again; and who
// replays too much comes to the same end, unless it must not meet old records again (Plush's, after
// writes that were not logged).
TEST(TornBitLogCrash, WhatNothingMisses) {
  const auto subject = log_of_batches();
  const crash::Run run = subject->record({});
  ExploreOptions options = log_options();
  options.nested_max = 30;
  options.deaths_max = 12;
  const std::multiset<std::string> known = {"flush TornBitLog::release_before"};
  EXPECT_EQ(survivors_of(run, *subject, options, "torn_bit_log.cc"), known);
}

}  // namespace
}  // namespace perdure::lab::crash
