// What flush mutation says of a site, and what a campaign says of places that it never reached.
#include "lab/crash/mutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "crash_gallery/gallery.h"
#include "lab/crash/campaign.h"
#include "lab/crash/coverage.h"
#include "lab/crash/index_subject.h"
#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

std::unique_ptr<Subject> from_gallery(const std::string& name, bool repaired) {
  for (const crash_gallery::Entry& entry : crash_gallery::gallery()) {
    if (entry.name == name) return entry.make(repaired, 1);
  }
  return nullptr;
}

CampaignReport mutated(std::unique_ptr<Subject> subject, const ExploreOptions& explore = {}) {
  std::vector<CampaignRun> runs(1);
  runs[0].title = "run";
  runs[0].subject = std::move(subject);
  CampaignOptions options;
  options.explore = explore;
  options.mutate = true;
  options.shrink_seconds = 0;
  return run_campaign(std::move(runs), options);
}

TEST(Mutation, KillsTheFlushesAndFencesOfASoundProgram) {
  const CampaignReport report = mutated(from_gallery("change_before_undo", true));
  EXPECT_EQ(report.findings(), 0U);
  EXPECT_TRUE(report.unmutated.empty());
  EXPECT_GT(report.mutation.sites.size(), 2U);
  EXPECT_GT(report.mutation.killed(), 1U);
}

TEST(Mutation, NeedsAnExplorationWithoutFindings) {
  const CampaignReport report = mutated(from_gallery("change_before_undo", false));
  EXPECT_GT(report.findings(), 0U);
  EXPECT_TRUE(report.mutation.sites.empty());
  ASSERT_EQ(report.unmutated.size(), 1U);
  EXPECT_NE(report.unmutated[0].find("has findings"), std::string::npos);
}

TEST(Mutation, NeedsAnExplorationThatCameToItsEnd) {
  ExploreOptions options;
  options.states_max = 1;
  const CampaignReport report = mutated(from_gallery("change_before_undo", true), options);
  EXPECT_TRUE(report.mutation.sites.empty());
  ASSERT_EQ(report.unmutated.size(), 1U);
  EXPECT_NE(report.unmutated[0].find("limit"), std::string::npos);
}

// A subject that fails with and without mutations.
class Broken : public Subject {
 public:
  explicit Broken(std::unique_ptr<Subject> sound) : sound_(std::move(sound)) {}
  std::string name() const override { return "broken"; }
  Run record(const std::vector<uint32_t>& only) override { return sound_->record(only); }
  uint32_t operation_count() const override { return sound_->operation_count(); }
  Observation observe(const std::string&, bool) override { return {.problem = "broken"}; }

 private:
  std::unique_ptr<Subject> sound_;
};

TEST(Mutation, KillsNothingWhereTheUnmutatedImageFails) {
  Broken subject(from_gallery("change_before_undo", true));
  const crash::Run run = subject.record({});
  Verdicts verdicts;
  Mutations mutations;
  mutations.add(run, subject, {}, {}, verdicts, {});
  EXPECT_GT(mutations.result().sites.size(), 2U);
  EXPECT_EQ(mutations.result().killed(), 0U);
}

// The loss of the fence in the twin takes two crashes to show.
TEST(Mutation, KillsByRepeatedCrashes) {
  for (const uint32_t crashes : {1U, 2U}) {
    ExploreOptions options;
    options.crashes = crashes;
    const CampaignReport report = mutated(from_gallery("stale_pass", true), options);
    ASSERT_EQ(report.findings(), 0U);
    const auto& sites = report.mutation.sites;
    const auto fence = std::ranges::find_if(sites, [](const MutationSite& site) {
      return site.place.find("order_filler") != std::string::npos;
    });
    ASSERT_NE(fence, sites.end());
    EXPECT_EQ(fence->killed, crashes == 2);
  }
}

IndexWorkload few_inserts() {
  IndexWorkload workload;
  workload.structure = "plush";
  workload.keys = 20;
  workload.prepared = 10;
  workload.operations = 10;
  return workload;
}

TEST(Mutation, TakesWhatOnlyRecoveriesReach) {
  IndexWorkload workload = few_inserts();
  workload.operations = 4;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  ExploreOptions options;
  options.nested_max = 3;
  options.nested_states = 10;
  Verdicts verdicts;
  const Exploration whole = explore(run, subject, options, verdicts);
  ASSERT_TRUE(whole.findings.empty());
  // One of them is enough: each is explored anew.
  const SiteNames names(run.trace);
  std::set<std::string> places;
  for (const auto& [site, count] : whole.nested_sites) places.insert(names.of(site.pc));
  for (const auto& [site, count] : persist_sites(run)) places.erase(names.of(site.pc));
  ASSERT_FALSE(places.empty());
  Mutations mutations(*places.begin());
  mutations.add(run, subject, options, whole, verdicts, {});
  const auto sites = mutations.result().sites;
  EXPECT_TRUE(std::ranges::any_of(sites, [](const MutationSite& site) {
    return site.executions == 0 && site.recoveries > 0 && site.states > 0;
  }));
}

// The flush by which CCEH makes a removal durable that a dead process left in the caches only: of
// no use without a death in just such a removal.
TEST(Mutation, AimsDeathsAtWhatSurvives) {
  IndexWorkload workload;
  workload.structure = "cceh";
  workload.keys = 300;
  workload.prepared = 900;
  workload.operations = 300;
  workload.seed = 2;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  const SiteNames names(run.trace);
  ExploreOptions options;
  options.begin = static_cast<uint32_t>(run.trace.events.size() / 4 * 3);
  options.nested_only = true;
  options.nested_max = 0;
  options.deaths_max = 2;
  options.work = 30;
  options.crashes_again_at = [&](const TraceEvent& event) {
    return names.of(event.pc).find("Core::remove") != std::string::npos;
  };
  Verdicts verdicts;
  const Exploration whole = explore(run, subject, options, verdicts);
  ASSERT_TRUE(whole.findings.empty());
  options.points_max = 10;
  for (const uint64_t deaths : {0U, 10U}) {
    options.deaths_max = deaths;
    Mutations mutations("Core::settle");
    mutations.add(run, subject, options, whole, verdicts, {});
    const auto sites = mutations.result().sites;
    const auto flush = std::ranges::find(sites, SiteKind::kFlush, &MutationSite::kind);
    ASSERT_NE(flush, sites.end());
    EXPECT_EQ(flush->killed, deaths != 0);
    EXPECT_EQ(flush->held_back > 0, deaths != 0);
    EXPECT_EQ(flush->how.find("a key is there twice") != std::string::npos, deaths != 0);
  }
}

TEST(CoverageOfSites, NamesThoseThatNoRunReached) {
  IndexSubject subject(few_inserts());
  const crash::Run run = subject.record({});
  Coverage coverage;
  coverage.add(run, {});
  EXPECT_GT(coverage.reached(), 2U);
  const auto unreached = coverage.unreached();
  const auto names = [&](const std::string& function) {
    return std::ranges::any_of(unreached, [&](const std::string& place) {
      return place.find(function) != std::string::npos;
    });
  };
  EXPECT_TRUE(names("Levels::release_source"));  // migrations come with many records
  EXPECT_FALSE(names("TornBitLog::append"));     // of another folder, and reached
}

TEST(CoverageOfSites, CountsThoseOfTheStore) {
  IndexWorkload workload = few_inserts();
  workload.structure = "rstore";
  workload.key_kind = workload.value_kind = Kind::kBytes;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  Coverage coverage;
  coverage.add(run, {});
  EXPECT_GT(coverage.reached(), 0U);
}

// A place that writes past the caches, or flushes where that is not sooner.
TEST(CoverageOfSites, CountsAStreamAsReached) {
  IndexWorkload workload = few_inserts();
  workload.structure = "p-clht";
  workload.life_cycle = true;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  EXPECT_FALSE(stream_sites(run).empty());
  // What only follows the death of a process is reached, too.
  ExploreOptions options;
  options.points_max = 20;
  options.nested_max = 0;
  options.deaths_max = 4;
  options.nested_states = 20;
  Verdicts verdicts;
  Coverage coverage;
  coverage.add(run, explore(run, subject, options, verdicts));
  for (const std::string& place : coverage.unreached()) {
    EXPECT_EQ(place.find("flush table.h"), std::string::npos) << place;  // made with the table
  }
}

}  // namespace
}  // namespace perdure::lab::crash
