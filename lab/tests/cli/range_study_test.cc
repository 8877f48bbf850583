// perdure study range-indexes: every cell measured, in each output, and how it goes on after an
// interruption.

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lab/tests/cli/study_command.h"
#include "perdure/catalog.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;
using RangeCell = std::tuple<std::string, std::string, unsigned>;

class RangeStudyCommand : public StudyCommandTest {
 protected:
  RangeStudyCommand() : StudyCommandTest("range-indexes") {}

  static std::map<RangeCell, json> cells(const json& report) {
    std::map<RangeCell, json> found;
    for (const char* list : {"results", "results_of_half"}) {
      for (const json& each : report[list]) {
        found[{each["structure"], each["operation"], each["threads"]}] = each;
      }
    }
    return found;
  }
};

TEST_F(RangeStudyCommand, MeasuresEveryRangeTreeInEveryExperiment) {
  const json report = study_json({"--records", "1k", "--threads", "2"});
  const std::set<std::string> experiments = {"load",
                                             "load of half",
                                             "load, long keys",
                                             "insert",
                                             "lookup",
                                             "update",
                                             "remove",
                                             "scan",
                                             "lookups/updates 90/10",
                                             "lookups/updates 50/50",
                                             "lookups/updates 10/90",
                                             "lookup, self-similar 0.2",
                                             "update, self-similar 0.2",
                                             "scan, self-similar 0.2",
                                             "lookups/updates 90/10, self-similar 0.2",
                                             "lookups/updates 50/50, self-similar 0.2",
                                             "lookups/updates 10/90, self-similar 0.2",
                                             "insert, long keys",
                                             "lookup, long keys",
                                             "update, long keys",
                                             "remove, long keys",
                                             "scan, long keys"};
  const auto found = cells(report);
  size_t trees = 0;
  size_t expected = 0;
  for (const CatalogEntry& entry : catalog()) {
    trees += entry.traits.ordered ? 1 : 0;
    const auto takes = [&](Kind kind) {
      return std::ranges::count(entry.traits.kinds, std::pair(kind, kind)) > 0;
    };
    for (const std::string& experiment : experiments) {
      const bool possible = takes(experiment.ends_with("long keys") ? Kind::kBytes : Kind::kU64);
      EXPECT_EQ(found.contains({entry.name, experiment, 2}), entry.traits.ordered && possible)
          << entry.name << " " << experiment;
      expected += entry.traits.ordered && possible ? 1 : 0;
    }
  }
  EXPECT_GE(trees, 5U);
  EXPECT_GE(found.size(), expected);
  EXPECT_EQ(report["cells_asked"], found.size());
  EXPECT_TRUE(report["failures"].empty()) << report["failures"];
  std::map<std::string, std::set<std::string>> streams;
  for (const auto& [cell, each] : found) {
    const auto& [structure, experiment, threads] = cell;
    EXPECT_EQ(each["failed"], 0) << structure << " " << experiment;
    EXPECT_GT(each["mops"].at(0), 0) << structure << " " << experiment;
    EXPECT_TRUE(each["percentiles"].is_object()) << structure << " " << experiment;
    streams[experiment].insert(each["stream_hash"]);
    if (each["kind"] == "dram" || !experiment.starts_with("load")) continue;
    EXPECT_EQ(each["open_killed_ms"].size(), 1U) << structure << " " << experiment;
    EXPECT_GT(each["pool_bytes"], each["raw_bytes"]) << structure << " " << experiment;
  }
  for (const auto& [experiment, hashes] : streams) {
    EXPECT_EQ(hashes.size(), 1U) << experiment << ": not all did the same operations";
  }
}

TEST_F(RangeStudyCommand, ShowsTablesForPeople) {
  const Result result =
      study({"fptree", "wbtree", "--records", "2k", "--threads", "1,2", "--part", "load,uniform"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_parts(result.out,
               {"Throughput in M ops/s: 8-byte keys and values, uniform, 2 threads", "50/50",
                "99th percentile of latency", "PM B/record", "open, killed", "published",
                "PVLDB 13(4), 2019", "fingerprints win point queries", "3.56 s", "x 2.01"});
  EXPECT_EQ(result.out.find("self-similar 0.2, 1 thread"), std::string::npos) << result.out;
}

TEST_F(RangeStudyCommand, ItsPageIsDrawnAndAReportReadsItsResults) {
  const std::vector<std::string> arguments = {"wbtree", "nv-tree", "--records",
                                              "1k",     "--part",  "load,self-similar"};
  std::vector<std::string> with_page = arguments;
  with_page.insert(with_page.end(), {"--html", path("study.html")});
  const json report = study_json(with_page);
  const std::string html = read_file("study.html");
  expect_parts(
      html, {"<section id=\"overview\">", "<section id=\"published\">", "<section id=\"recovery\">",
             "self-similar 0.2", "prefers-color-scheme: dark"});
  EXPECT_EQ(html.find("http"), std::string::npos);
  const std::string file = write_file("study.json", report.dump());
  const Result page = run({"report", file, file, "--compare"});
  EXPECT_EQ(page.code, 0) << page.err;
  expect_parts(page.out, {"<section id=\"comparison\">", "lookup, self-similar 0.2"});
  if (!has_browser()) GTEST_SKIP() << "chromium is not installed";
  // Of each load and experiment a plot of throughputs, and for each number of threads of latencies.
  EXPECT_GE(draw_in_browser("study.html").figures, 3 * (2 + 6));
}

TEST_F(RangeStudyCommand, GoesOnWhereItStopped) {
  const std::string state = path("study.state");
  const std::vector<std::string> arguments = {"fptree", "bztree",  "--records", "1k",
                                              "--part", "uniform", "--state",   state};
  const auto whole = cells(study_json(arguments));
  ASSERT_EQ(whole.size(), 2U * 8 * 2);
  // As an interruption leaves it: the first ten results, and a part of the next one.
  const std::string kept = read_file("study.state");
  size_t end = 0;
  for (int line = 0; line < 11; ++line) end = kept.find('\n', end) + 1;
  write_file("study.state", kept.substr(0, end + 40));
  const json again = study_json(arguments);
  EXPECT_EQ(again["cells_resumed"], 10);
  size_t same = 0;
  const auto repeated = cells(again);
  ASSERT_EQ(repeated.size(), whole.size());
  // What is measured again never takes the same time to the last digit.
  for (const auto& [cell, each] : repeated) same += each == whole.at(cell) ? 1 : 0;
  EXPECT_EQ(same, 10U);
  // Other structures and parts join in.
  const json more = study_json({"fptree", "wbtree", "--records", "1k", "--part",
                                "uniform,long-keys", "--threads", "1", "--state", state});
  EXPECT_EQ(more["cells_resumed"], 8);
  EXPECT_EQ(cells(more).size(), 2U * (8 + 5));
  const Result other = study({"fptree", "--records", "2k", "--state", state});
  EXPECT_EQ(other.code, 2);
  expect_parts(other.err, {"records 1000 (now 2000)", "--state"});
}

TEST_F(RangeStudyCommand, EndsInOrderWhenItIsInterrupted) {
  const std::string pools = path("pools");
  std::filesystem::create_directory(pools);
  const Result result = shell(
      "timeout --foreground -s INT 2 $PERDURE study range-indexes fptree --records 100M "
      "--folder " +
      pools + " --state " + path("study.state") + "; echo \"code $?\"");
  expect_parts(result.out, {"The run was interrupted", "code 124"});
  expect_parts(result.err, {"study.state"});
  EXPECT_TRUE(std::filesystem::is_empty(pools));
}

TEST_F(RangeStudyCommand, ReportsWhatFailsAndGoesOn) {
  const Result result = study({"fptree", "dram-btree", "--records", "100k", "--threads", "1",
                               "--capacity", "2M", "--part", "load", "--json"});
  EXPECT_EQ(result.code, 4) << result.err;
  const json report = result.json();
  ASSERT_EQ(report["failures"].size(), 2U) << report["failures"];  // half the records fit
  EXPECT_EQ(report["failures"][0]["structure"], "fptree");
  EXPECT_EQ(report["failures"][1]["experiment"], "load, long keys");
  EXPECT_EQ(cells(report).size() + 2, report["cells_asked"]);
}

TEST_F(RangeStudyCommand, RefusesWhatMakesNoSense) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"no-such"}, "no-such"},
      {{"fptree", "fptree"}, "twice"},
      {{"--part", "skewed"}, "self-similar"},
      {{"--records", "0"}, "at least 2 records"},
      {{"--threads", "0"}, "threads"},
      {{"fptree", "--records", "1k", "--operations", "2k"}, "removes 2,000"},
      {{"--no-such"}, "--help"}};
  for (const auto& [arguments, word] : cases) {
    const Result result = study(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    expect_parts(result.err, {word});
    EXPECT_EQ(result.out, "");
  }
  const Result page = study({"fptree", "--records", "1k", "--html", path("none/study.html")});
  EXPECT_EQ(page.code, 4);
  expect_parts(page.err, {"study.html"});
}

}  // namespace
}  // namespace perdure::cli_test
