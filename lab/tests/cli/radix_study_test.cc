// perdure study radix-trees: every cell measured, in each output, and how it goes on after an
// interruption.

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "lab/tests/cli/study_command.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;

class RadixStudyCommand : public StudyCommandTest {
 protected:
  RadixStudyCommand() : StudyCommandTest("radix-trees") {}
};

TEST_F(RadixStudyCommand, MeasuresEveryStructureInEveryExperiment) {
  const json report =
      study_json({"--records", "2k", "--write-latency", "0,200", "--length", "10,100"});
  EXPECT_EQ(report["schema"], "perdure-study-radix-trees-1");
  ASSERT_EQ(report["experiments"].size(), 3U * (2 + 1 + 2));
  EXPECT_EQ(report["results"].size(), 8U * report["experiments"].size());
  EXPECT_EQ(report["cells_asked"], report["results"].size());
  EXPECT_TRUE(report["failures"].empty()) << report["failures"];
  std::set<std::tuple<std::string, std::string>> cells;
  for (const json& each : report["results"]) {
    const std::string name = each["operation"];
    cells.emplace(each["structure"], name);
    EXPECT_EQ(each["failed"], 0) << each;
    EXPECT_GT(each["mops"].at(0), 0) << each;
    // Each record is durable before its insert returns.
    ASSERT_EQ(each.contains("lines_per_operation"), name.ends_with("200 ns")) << each;
    if (name.ends_with("200 ns")) {
      EXPECT_GE(each["lines_per_operation"], 1) << each;
      EXPECT_GE(each["fences_per_operation"], 1) << each;
    }
  }
  EXPECT_EQ(cells.size(), report["results"].size());
}

TEST_F(RadixStudyCommand, ShowsTablesForPeopleAndAPage) {
  const Result result =
      study({"wort", "wbtree", "--records", "2k", "--write-latency", "0,300", "--keys",
             "dense,clustered", "--threads", "1,2", "--html", path("study.html")});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_parts(result.out,
               {"Nanoseconds for each insert, clustered keys", "2 threads", "+300 ns",
                "Lines flushed, and fences, for each insert", "Nanoseconds for each search",
                "1000, dense", "for each record", "FAST 2017",
                "the difference of WORT and wB+Tree grows with the write latency"});
  EXPECT_EQ(result.out.find("sparse keys"), std::string::npos) << result.out;
  const std::string page = read_file("study.html");
  expect_parts(page, {"<section id=\"overview\">", "<section id=\"published\">",
                      "Time of an insert, dense keys, 2 threads", "<svg"});
  EXPECT_EQ(page.find("http"), std::string::npos);
}

TEST_F(RadixStudyCommand, GoesOnWhereItStoppedAndAReportReadsIt) {
  const std::vector<std::string> arguments = {
      "woart", "--records", "2k", "--keys",  "sparse",           "--write-latency",
      "100",   "--length",  "10", "--state", path("study.state")};
  EXPECT_EQ(study_json(arguments)["cells_resumed"], 0);
  std::vector<std::string> more = arguments;
  more.emplace_back("art-cow");
  const json again = study_json(more);
  EXPECT_EQ(again["cells_resumed"], 3);
  EXPECT_EQ(again["results"].size(), 6U);
  const std::string file = write_file("study.json", again.dump());
  const Result page = run({"report", file});
  EXPECT_EQ(page.code, 0) << page.err;
  expect_parts(page.out, {"range of 10, sparse keys"});
}

TEST_F(RadixStudyCommand, RefusesWhatMakesNoSense) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"no-such"}, "no-such"},
      {{"wort", "wort"}, "twice"},
      {{"--keys", "dense,dense"}, "twice"},
      {{"--keys", "even"}, "clustered"},
      {{"--records", "1"}, "at least 2 records"},
      {{"--write-latency", "1000001"}, "1,000,000 ns"},
      {{"--length", "0"}, "1 record"}};
  for (const auto& [arguments, word] : cases) {
    const Result result = study(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    expect_parts(result.err, {word});
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace perdure::cli_test
