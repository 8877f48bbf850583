// A process dies, the next one rests on what is in the caches only, and the power fails.
#include <gtest/gtest.h>

#include <memory>

#include "crash_gallery/gallery.h"
#include "lab/crash/explorer.h"

namespace perdure::lab::crash {
namespace {

Exploration explored(bool repaired, uint64_t deaths) {
  for (const crash_gallery::Entry& entry : crash_gallery::gallery()) {
    if (entry.name != "stale_pass") continue;
    const auto subject = entry.make(repaired, 1);
    const crash::Run run = subject->record({});
    ExploreOptions options;
    options.nested_max = 0;
    options.deaths_max = deaths;
    options.nested_states = 60;
    options.findings_max = 1;
    Verdicts verdicts;
    return explore(run, *subject, options, verdicts);
  }
  return {};
}

// Its twin appends behind what it finds, which is durable after a power failure, and may not be if
// a process only died.
TEST(Deaths, FindWhatRestsOnTheCaches) {
  const Exploration without = explored(true, 0);
  EXPECT_TRUE(without.findings.empty());
  EXPECT_EQ(without.deaths, 0U);
  EXPECT_EQ(without.death_states, 0U);
  const Exploration with = explored(true, 40);
  EXPECT_GT(with.deaths, 0U);
  EXPECT_GT(with.death_states, 0U);
  EXPECT_EQ(with.nested_states, 0U);
  ASSERT_FALSE(with.findings.empty());
  const Finding& finding = with.findings.front();
  EXPECT_TRUE(finding.nested);
  EXPECT_TRUE(finding.death);
  EXPECT_NE(finding.what.find("the process died and its stores lived on in the caches"),
            std::string::npos);
  EXPECT_NE(finding.what.find("lost: the store of the process that died"), std::string::npos);
}

}  // namespace
}  // namespace perdure::lab::crash
