// How findings are counted and kept, and what a report makes of them and of there being none.
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "crash_gallery/gallery.h"
#include "lab/crash/campaign.h"
#include "lab/crash/scratch_folder.h"

namespace perdure::lab::crash {
namespace {

std::unique_ptr<Subject> faulty(const std::string& name) {
  for (const crash_gallery::Entry& entry : crash_gallery::gallery()) {
    if (entry.name == name) return entry.make(false, 1);
  }
  return nullptr;
}

Exploration explored(Subject& subject, const crash::Run& run, const ExploreOptions& options) {
  Verdicts verdicts;
  return explore(run, subject, options, verdicts);
}

TEST(Findings, ThoseOfOneKindAreCountedAndExplorationGoesOn) {
  const auto subject = faulty("change_before_undo");
  const crash::Run run = subject->record({});
  ExploreOptions options;
  options.crashes = 1;
  options.findings_max = 1;
  const Exploration first = explored(*subject, run, options);
  options.findings_max = 100;
  const Exploration all = explored(*subject, run, options);
  ASSERT_EQ(first.findings.size(), 1U);
  ASSERT_FALSE(all.findings.empty());
  EXPECT_GT(all.points, first.points);
  EXPECT_TRUE(std::ranges::any_of(all.findings, [](const Finding& f) { return f.times > 1; }));
  // No two are of the same operation and the same places.
  EXPECT_LT(all.findings.size(), 10U);
  using Kind = std::tuple<uint64_t, bool, uint64_t, std::set<uint64_t>>;
  std::set<Kind> kinds;
  const auto& events = run.trace.events;
  for (const Finding& finding : all.findings) {
    if (finding.nested || finding.lost.empty()) continue;
    uint32_t begin = finding.event;
    while (begin > 0 && events[begin - 1].kind != EventKind::kBegin) --begin;
    uint32_t stored = finding.event;
    while (stored > 0 && !is_store(events[stored - 1].kind)) --stored;
    std::set<uint64_t> places;
    for (const LostStore& lost : finding.lost) places.insert(events[lost.event].pc);
    const Kind kind(begin == 0 ? 0 : events[begin - 1].data, finding.in_flight,
                    stored == 0 ? 0 : events[stored - 1].pc, places);
    EXPECT_TRUE(kinds.insert(kind).second) << finding.what;
  }
}

// A store of which a part arrived is called torn; where all had arrived, the last ones are named.
TEST(Findings, SayWhatWasTornAndWhatWasDurable) {
  const auto torn = faulty("torn_store");
  const crash::Run run = torn->record({});
  const Exploration of_torn = explored(*torn, run, {});
  EXPECT_TRUE(std::ranges::any_of(of_torn.findings, [](const Finding& finding) {
    return std::ranges::any_of(finding.lost, [](const LostStore& lost) { return lost.torn; });
  }));
  const auto apart = faulty("two_words");
  const crash::Run other = apart->record({});
  const Exploration of_apart = explored(*apart, other, {});
  EXPECT_TRUE(std::ranges::any_of(of_apart.findings, [](const Finding& finding) {
    return !finding.nested && finding.lost.empty() && !finding.last_stores.empty();
  }));
}

TEST(Findings, AnImageOfEachIsKept) {
  const ScratchFolder folder;
  const auto subject = faulty("change_before_undo");
  const crash::Run run = subject->record({});
  ExploreOptions options;
  options.image_folder = folder.file("images");
  std::filesystem::create_directories(options.image_folder);
  const Exploration result = explored(*subject, run, options);
  ASSERT_FALSE(result.findings.empty());
  for (const Finding& finding : result.findings) {
    ASSERT_TRUE(std::filesystem::exists(finding.image)) << finding.image;
    EXPECT_EQ(std::filesystem::file_size(finding.image), run.trace.region_bytes);
    if (finding.nested) continue;
    // It shows the finding by itself.
    bool wrong = false;
    try {
      const Observation seen = subject->observe(finding.image, true);
      wrong = !seen.problem.empty() || !run.explain ||
              !run.explain(finding.event, seen.contents).empty();
    } catch (const std::exception&) {
      wrong = true;
    }
    EXPECT_TRUE(wrong) << finding.image;
  }
}

CampaignReport report_of(uint64_t states, double part, size_t findings) {
  CampaignReport report;
  report.structure = "table";
  report.runs.resize(1);
  report.runs[0].title = "run";
  report.runs[0].exploration.states = states;
  report.runs[0].exploration.part = part;
  report.runs[0].exploration.finished = part == 1;
  report.runs[0].findings.resize(findings);
  return report;
}

TEST(CrashReport, IsGoodOnlyWhereMuchWasExplored) {
  const ReportOrigin origin{.command = "perdure crash table --seed 7", .seed = 7};
  const auto page = [&](uint64_t states, double part, size_t findings) {
    return to_html({report_of(states, part, findings)}, origin);
  };
  const std::string good = page(5000, 1, 0);
  EXPECT_NE(good.find("<p class=good>"), std::string::npos);
  EXPECT_NE(good.find("5000 images"), std::string::npos);
  EXPECT_NE(good.find("perdure crash table --seed 7"), std::string::npos);
  EXPECT_NE(good.find("Seed 7"), std::string::npos);
  for (const std::string& little : {page(3, 1, 0), page(5000, 0.02, 0), to_html({}, origin)}) {
    EXPECT_EQ(little.find("class=good"), std::string::npos);
    EXPECT_EQ(little.find("class=\"n good\""), std::string::npos);
    EXPECT_NE(little.find("class=little"), std::string::npos);
  }
  EXPECT_NE(page(5000, 1, 1).find("<p class=bad>"), std::string::npos);
}

TEST(CrashReport, SaysHowFarARunCame) {
  EXPECT_NE(to_text(report_of(5000, 0.37, 0)).find("ended by a limit, at 37 %"), std::string::npos);
}

}  // namespace
}  // namespace perdure::lab::crash
