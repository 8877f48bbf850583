// perdure study: every cell in each output, the same figures as amp, and how it goes on after an
// interruption.

#include <algorithm>
#include <filesystem>
#include <set>

#include "lab/tests/cli/study_command.h"
#include "perdure/catalog.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;
using Cell = std::pair<std::string, std::string>;

class StudyCommand : public StudyCommandTest {
 protected:
  StudyCommand() : StudyCommandTest("write-amplification") {}

#ifdef PERDURE_HAS_OBSERVED
  static constexpr bool kHasLab = true;
#else
  static constexpr bool kHasLab = false;
#endif

  void SetUp() override {
    if (!kHasLab) GTEST_SKIP() << "this build has no instruments";
  }

  static std::set<Cell> cells(const json& report) {
    std::set<Cell> found;
    for (const json& each : report["results"]) found.emplace(each["structure"], each["workload"]);
    return found;
  }
  static json result_of(const json& report, const Cell& cell) {
    for (const json& each : report["results"]) {
      if (each["structure"] == cell.first && each["workload"] == cell.second) return each;
    }
    return {};
  }
};

// Those that take words.
std::vector<std::string> studied() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) {
    const auto& kinds = entry.traits.kinds;
    if (std::ranges::find(kinds, std::pair(Kind::kU64, Kind::kU64)) != kinds.end()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

TEST_F(StudyCommand, CountsEveryStructureUnderEveryWorkload) {
  const std::string page = path("study.html");
  const json report = study_json({"--records", "1k", "--html", page, "--threads", "1,8"});
  std::set<Cell> expected;
  for (const std::string& name : studied()) {
    for (const char* workload : {"load", "a", "b", "c"}) expected.emplace(name, workload);
  }
  EXPECT_EQ(cells(report), expected);
  EXPECT_EQ(report["cells_asked"], expected.size());
  EXPECT_EQ(report["schema"], "perdure-study-write-amplification-1");
  EXPECT_EQ(report["parameters"]["records"], 1000);
  EXPECT_EQ(report["profile"]["name"], "optane-100");
  EXPECT_FALSE(report["machine"]["cpu"].get<std::string>().empty());
  EXPECT_FALSE(report["effects"].empty());
  EXPECT_TRUE(report["failures"].empty());
  for (const json& each : report["results"]) {
    const bool inserts = each["workload"] != "c";
    EXPECT_EQ(each["operation"], inserts ? "insert" : "lookup");
    const std::string per = inserts ? "_per_insert" : "_per_lookup";
    for (const char* name : {"wpq_inserts", "media_writes"}) {
      EXPECT_TRUE(each[name + per].is_number()) << each["structure"] << name;
    }
    EXPECT_EQ(each["media_writes_per_wpq_insert"].is_number(), inserts) << each["structure"];
    EXPECT_EQ(each["time"].size(), 2U);
    EXPECT_EQ(each["failed"], 0);
  }
  const std::string html = read_file("study.html");
  for (const std::string& name : studied()) {
    EXPECT_NE(html.find("<td>" + name + "</td>"), std::string::npos) << name;
    EXPECT_NE(html.find(">" + name + "</text>"), std::string::npos) << name;
  }
  expect_parts(html, {"</html>", "<svg", "optane-100", "GCC", "1,000 records", "published"});
  EXPECT_EQ(html.find("http"), std::string::npos);
}

TEST_F(StudyCommand, ShowsTablesForPeople) {
  const Result result = study(
      {"p-clht", "p-clht+fc", "--records", "2k", "--workload", "load,a,c", "--threads", "1,4"});
  ASSERT_EQ(result.code, 0) << result.err;
  expect_parts(result.out,
               {"optane-100", "modelled cache", "LOAD: 2,000 inserts", "A: 2,000 operations",
                "C: 2,000 operations", "WPQ/insert", "media/WPQ", "published", "deviation",
                "about 3.000", "2.710", "4 threads", "Effect of the optimisations", "-30.8 %"});
  EXPECT_EQ(result.err, "");
  // Other memory is not compared with what was measured on Optane.
  const Result other =
      study({"p-clht", "--records", "1k", "--workload", "load", "--profile", "cxl"});
  EXPECT_EQ(other.code, 0);
  EXPECT_EQ(other.out.find("published"), std::string::npos) << other.out;
}

TEST_F(StudyCommand, CountsWhatAmpCounts) {
  const json report = study_json({"cceh", "--records", "5k", "--workload", "load,a,b"});
  const Result amp = run(
      {"amp", "cceh", "--records", "5k", "--workload", "b,a,load", "--json", "--folder", folder()});
  ASSERT_EQ(amp.code, 0) << amp.err;
  const json counted = amp.json();
  for (const json& each : counted["results"]) {
    const json ours = result_of(report, {"cceh", each["workload"]});
    for (const char* name : {"wpq_inserts_per_insert", "media_writes_per_insert",
                             "media_writes_per_wpq_insert", "modelled_mops"}) {
      EXPECT_DOUBLE_EQ(ours[name], each[name].get<double>()) << each["workload"] << " " << name;
    }
  }
}

TEST_F(StudyCommand, GoesOnWhereItStopped) {
  const std::string state = path("study.state");
  const std::vector<std::string> arguments = {"p-clht", "cceh",    "--records",
                                              "2k",     "--state", state};
  const json whole = study_json(arguments);
  EXPECT_EQ(whole["cells_resumed"], 0);
  const std::string kept = read_file("study.state");
  // As an interruption leaves it: the first of the results, and a part of the next one.
  size_t end = kept.find('\n');
  end = kept.find('\n', end + 1);
  // A cell that was counted again would not have this.
  std::string first = kept.substr(0, end);
  const std::string seconds = "\"seconds\":";
  first.insert(first.find(seconds) + seconds.size(), "777");
  write_file("study.state", first + "\n{\"workload\":\"a\",\"str");
  const json again = study_json(arguments);
  EXPECT_EQ(again["cells_resumed"], 1);
  EXPECT_EQ(cells(again), cells(whole));
  size_t marked = 0;
  for (json each : again["results"]) {
    marked += each["seconds"].get<double>() > 777 ? 1 : 0;
    json before = result_of(whole, {each["structure"], each["workload"]});
    before.erase("seconds");
    each.erase("seconds");
    EXPECT_EQ(each, before);
  }
  EXPECT_EQ(marked, 1U);
  // More structures and other numbers of threads go with the same counts.
  const json more = study_json({"p-clht", "level", "--records", "2k", "--state", state, "--threads",
                                "4", "--workload", "load"});
  EXPECT_EQ(more["cells_resumed"], 1);
  EXPECT_EQ(cells(more), (std::set<Cell>{{"p-clht", "load"}, {"level", "load"}}));
}

TEST_F(StudyCommand, EndsInOrderWhenItIsInterrupted) {
  const std::string pools = path("pools");
  std::filesystem::create_directory(pools);
  const Result result = shell(
      "timeout --foreground -s INT 1 $PERDURE study write-amplification --records 30M --jobs 2 "
      "--folder " +
      pools + " --state " + path("study.state") + "; echo \"code $?\"");
  expect_parts(result.out, {"interrupted: 0 of", "optane-100", "code 124"});
  expect_parts(result.err, {"study.state"});
  EXPECT_TRUE(std::filesystem::is_empty(pools));
}

TEST_F(StudyCommand, RefusesForeignStates) {
  const std::string state = path("study.state");
  ASSERT_EQ(study({"cceh", "--records", "1k", "--workload", "load", "--state", state}).code, 0);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--records", "2k"}, "records 1000 (now 2000)"},
      {{"--records", "1k", "--seed", "2"}, "seed 1 (now 2)"},
      {{"--records", "1k", "--profile", "eadr"}, "profile"},
      {{"--records", "1k", "--capacity", "128M"}, "capacity"}};
  for (const auto& [options, words] : cases) {
    std::vector<std::string> arguments = {"cceh", "--workload", "load", "--state", state};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Result result = study(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    expect_parts(result.err, {words, "--state"});
    EXPECT_EQ(result.out, "");
  }
  const std::string other = write_file("notes.txt", "not a state\n");
  EXPECT_EQ(study({"cceh", "--records", "1k", "--state", other}).code, 2);
  EXPECT_EQ(read_file("notes.txt"), "not a state\n");
}

TEST_F(StudyCommand, ReportsAStructureThatFailsAndGoesOn) {
  const Result result = study(
      {"cceh", "plush", "--records", "100k", "--capacity", "2M", "--workload", "load", "--json"});
  EXPECT_EQ(result.code, 4) << result.err;
  const json report = result.json();
  ASSERT_FALSE(report["failures"].empty());
  EXPECT_EQ(report["results"].size() + report["failures"].size(), 2U);
}

TEST_F(StudyCommand, RefusesWhatMakesNoSense) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"no-such"}, "no-such"},
      {{"cceh", "cceh"}, "twice"},
      {{"--workload", "d"}, "load, a, b, c"},
      {{"--records", "0"}, "--records"},
      {{"--threads", "0"}, "threads"},
      {{"--jobs", "0"}, "--jobs"},
      {{"--no-such"}, "--help"}};
  for (const auto& [arguments, word] : cases) {
    const Result result = study(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    expect_parts(result.err, {word});
    EXPECT_EQ(result.out, "");
  }
  const Result page = study({"cceh", "--records", "1k", "--html", path("none/study.html")});
  EXPECT_EQ(page.code, 4);
  expect_parts(page.err, {"study.html"});
}

}  // namespace
}  // namespace perdure::cli_test
