// The explorer finds every fault of the gallery, names its place, and finds nothing in the twins.
#include "crash_gallery/gallery.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "lab/crash/explorer.h"
#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

using crash_gallery::Entry;

std::string file_of(const Entry& entry) {
  return std::filesystem::path(__FILE__).parent_path().parent_path() / "crash_gallery" / entry.file;
}

// Whether a line ends with a mark of an entry: "// lost in one, another".
bool is_marked(const std::string& line, const std::string& name) {
  for (const std::string word : {"// lost in ", "// crash in "}) {
    const size_t at = line.find(word);
    if (at == std::string::npos) continue;
    const std::string names = ", " + line.substr(at + word.size()) + ",";
    if (names.find(", " + name + ",") != std::string::npos) return true;
  }
  return false;
}

// "file.cc:12" for every line that carries a mark of the entry.
std::set<std::string> marked_places(const Entry& entry) {
  std::set<std::string> places;
  std::ifstream in(file_of(entry));
  std::string line;
  for (unsigned number = 1; std::getline(in, line); ++number) {
    if (is_marked(line, entry.name)) places.insert(entry.file + ":" + std::to_string(number));
  }
  return places;
}

ExploreOptions thorough() {
  ExploreOptions options;
  options.limits.complete_max = 4096;
  options.states_per_nested = 1;
  options.crashes = 2;
  options.nested_max = 1000;
  options.deaths_max = 0;  // which the repaired programs are not made for
  options.worker.seconds = 5;
  return options;
}

// The places that a finding names: of its lost stores, and of the crash itself.
std::string places_of(const Run& run, const SiteNames& names, const Finding& finding) {
  std::string text;
  const auto& events = run.trace.events;
  for (const LostStore& lost : finding.lost) text += names.of(events[lost.event].pc) + "\n";
  if (finding.event < events.size()) text += names.of(events[finding.event].pc) + "\n";
  return text + finding.what;
}

std::string name_of_entry(const testing::TestParamInfo<Entry>& tested) { return tested.param.name; }

class Gallery : public testing::TestWithParam<Entry> {};
class GalleryTwin : public Gallery {};  // takes longer

TEST_P(Gallery, FaultIsFoundWhereItIs) {
  const Entry& entry = GetParam();
  const auto marked = marked_places(entry);
  ASSERT_FALSE(marked.empty()) << "no line of " << entry.file << " is marked";
  std::string named;
  bool found = false;
  for (uint64_t schedule = 1; schedule <= entry.schedules && !found; ++schedule) {
    const auto subject = entry.make(false, schedule);
    const crash::Run run = subject->record({});
    const SiteNames names(run.trace);
    // The first finding is mostly of the place; what else is found takes the whole run.
    ExploreOptions options = thorough();
    const uint64_t all = options.findings_max;
    for (options.findings_max = 1; !found && options.findings_max <= all;
         options.findings_max += all - 1) {
      Verdicts verdicts;
      for (const Finding& finding : explore(run, *subject, options, verdicts).findings) {
        const std::string places = places_of(run, names, finding);
        EXPECT_FALSE(finding.what.empty());
        EXPECT_EQ(places.find("::\n"), std::string::npos)
            << "a function without its name: " << places;
        named += places + "\n---\n";
        for (const std::string& place : marked) {
          // The place is followed by the name of the function.
          found |= places.find(place + " ") != std::string::npos;
        }
      }
    }
  }
  EXPECT_TRUE(found) << "wanted " << *marked.begin() << ", named\n" << named;
}

TEST_P(GalleryTwin, PassesCompletely) {
  const Entry& entry = GetParam();
  for (uint64_t schedule = 1; schedule <= entry.schedules; ++schedule) {
    const auto subject = entry.make(true, schedule);
    const crash::Run run = subject->record({});
    Verdicts verdicts;
    const Exploration result = explore(run, *subject, thorough(), verdicts);
    const SiteNames names(run.trace);
    for (const Finding& finding : result.findings) {
      ADD_FAILURE() << finding.what << "\n" << places_of(run, names, finding);
    }
    EXPECT_TRUE(result.finished);
    EXPECT_EQ(result.points_complete, result.points);
    EXPECT_GT(result.states, 1U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Gallery, testing::ValuesIn(crash_gallery::gallery()), name_of_entry);
INSTANTIATE_TEST_SUITE_P(All, GalleryTwin, testing::ValuesIn(crash_gallery::gallery()),
                         name_of_entry);

// Faults whose loss takes two crashes in a row are not found with one.
TEST(GalleryItself, HasFaultsThatTakeTwoCrashes) {
  unsigned count = 0;
  for (const Entry& entry : crash_gallery::gallery()) {
    if (entry.crashes == 1) continue;
    SCOPED_TRACE(entry.name);
    ++count;
    const auto subject = entry.make(false, 1);
    const crash::Run run = subject->record({});
    ExploreOptions options = thorough();
    options.crashes = entry.crashes - 1;
    Verdicts verdicts;
    EXPECT_EQ(explore(run, *subject, options, verdicts).findings.size(), 0U);
  }
  EXPECT_GE(count, 1U);
}

TEST(GalleryItself, HasNoNameTwice) {
  std::set<std::string> names;
  for (const Entry& entry : crash_gallery::gallery()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
  }
  EXPECT_GE(names.size(), 16U);
}

}  // namespace
}  // namespace perdure::lab::crash
