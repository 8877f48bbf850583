// bench --server and study serving: small runs against our own server, and others where they are
// installed.

#include <algorithm>
#include <filesystem>
#include <set>

#include "cli/command_runner.h"
#include "lab/bench/processors.h"

namespace perdure::cli_test {
namespace {

class BenchServer : public CommandTest {
 protected:
  Result bench(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"bench", "--folder",      folder(), "--records",
                                          "2k",    "--repeats",     "1",      "--operations",
                                          "1k",    "--connections", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  bool is_installed(const std::string& program) const {
    return shell("command -v " + program + " >/dev/null").code == 0;
  }
  void expect_clean() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      EXPECT_NE(entry.path().extension(), ".pool") << entry.path();
    }
  }
};

TEST_F(BenchServer, MeasuresOursThroughBothProtocols) {
  const Result result = bench({"--server", "perdure", "--server", "perdure+memcached:hash",
                               "--workload", "a", "--mix", "lookup=.7,insert=.1,remove=.1,rmw=.1",
                               "--rate", "peak,50%,20k", "--kill-recovery", "--json"});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["schema"], "perdure-bench-2");
  EXPECT_EQ(json["parameters"]["server"]["connections"], 4);
  EXPECT_EQ(json["parameters"]["server"]["rates"],
            nlohmann::json({"peak", "50 % of the slowest peak", "20,000/s"}));
  std::set<std::string> seen;
  for (const nlohmann::json& row : json["results"]) {
    seen.insert(row["structure"].get<std::string>() + " " + row["operation"].get<std::string>());
    const nlohmann::json& served = row["served"];
    EXPECT_EQ(row["kind"], "server");
    EXPECT_EQ(row["failed"], 0) << row;
    EXPECT_TRUE(row["complete"]) << row;
    EXPECT_GT(row["mops_median"], 0);
    EXPECT_GT(row["pool_bytes"], 0);
    EXPECT_GT(row["dram_bytes"], 0);
    EXPECT_EQ(served["offered_per_s"].size(), served["loop"] == "open" ? 1U : 0U);
    if (row["phase"] != "load") continue;
    EXPECT_GE(served["first_answer_ms"].size(), 1U);
    EXPECT_LE(served["first_answer_ms"][0], row["open_killed_ms"][0]);
  }
  EXPECT_EQ(seen.size(), 2U * (1 + 2 * 3));
  expect_clean();
  const std::string file = write_file("result.json", result.out);
  const Result report = run({"report", file, "-o", path("report.html")});
  ASSERT_EQ(report.code, 0) << report.err;
  const std::string page = read_file("report.html");
  EXPECT_NE(page.find("<section id=\"rates\">"), std::string::npos);
  if (!has_browser()) return;
  EXPECT_GT(draw_in_browser("report.html").figures, 5);
}

// Reads of the latest records wait for the inserts of other threads.
TEST_F(BenchServer, SeveralClientThreadsShareTheOperations) {
  std::set<std::string> hashes;
  const lab::Processors processors = lab::allowed_processors();
  for (size_t count = 1; count <= std::min<size_t>(processors.size(), 2); ++count) {
    std::string list = std::to_string(processors[0]);
    if (count > 1) list += "," + std::to_string(processors[1]);
    const Result result =
        bench({"--server", "perdure", "--workload", "d", "--operations", "20k", "--client-cpus",
               list, "--server-cpus", std::to_string(processors[0]), "--pipeline", "3", "--json"});
    ASSERT_EQ(result.code, 0) << result.err << result.out;
    const nlohmann::json run = result.json()["results"][1];
    EXPECT_TRUE(run["complete"]);
    EXPECT_EQ(run["threads"], count);
    hashes.insert(run["stream_hash"]);
  }
  EXPECT_EQ(hashes.size(), 1U);
}

TEST_F(BenchServer, ScansASortedSet) {
  const nlohmann::json json = bench({"--server", "perdure", "--workload", "e", "--mix", "scan-back",
                                     "--scan-length", "20", "--json"})
                                  .json();
  EXPECT_EQ(json["results"].size(), 3U);
  for (const nlohmann::json& row : json["results"]) EXPECT_EQ(row["failed"], 0) << row;
  EXPECT_GT(json["results"][1]["by_operation"]["scan"]["records_per_scan"], 1.0);
}

TEST_F(BenchServer, MeasuresServersOfOthersThatAreInstalled) {
  for (const auto& [program, servers] :
       {std::pair<std::string, std::vector<std::string>>("redis-server", {"redis", "redis+aof"}),
        std::pair<std::string, std::vector<std::string>>("memcached",
                                                         {"memcached", "memcached:meta"})}) {
    if (!is_installed(program)) continue;
    for (const std::string& server : servers) {
      const Result result =
          bench({"--server", server, "--mix", "lookup=.5,update=.3,remove=.2", "--json"});
      ASSERT_EQ(result.code, 0) << server << result.err << result.out;
      EXPECT_EQ(result.json()["results"].size(), 2U);
    }
  }
}

TEST_F(BenchServer, MeasuresOneThatRuns) {
  // The shell's server dies with it.
  const Result result = shell("$PERDURE serve --create --capacity 64M --port 0 --unix " +
                              path("s") + " " + pool() + " > " + path("out") +
                              " 2>&1 & for i in $(seq 600); do grep -q '^ready' " + path("out") +
                              " && break; sleep 0.05; done; "
                              "$PERDURE bench --server unix://" +
                              path("s") +
                              " --records 1k --operations 1k --repeats 1 --mix update --json; "
                              "code=$?; kill %1; wait; exit $code");
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["results"][1]["failed"], 0);
  EXPECT_EQ(json["results"][0]["structure"], "unix://" + path("s"));
}

TEST_F(BenchServer, ShowsATable) {
  const Result result = bench({"--server", "perdure", "--rate", "peak,10k"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"servers   on processors", "offered", "lookup at 10,000/s", "p99.9", "server CPU"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

TEST_F(BenchServer, RefusesWhatMakesNoSense) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--server", "nosql"}, "there is no server \"nosql\""},
      {{"--server", "http://h"}, "no address of a server"},
      {{"--server", "perdure", "--server", "perdure"}, "named twice"},
      {{"--server", "perdure", "plush"}, "is for structures"},
      {{"--server", "perdure", "--batch", "4"}, "--batch is for structures"},
      {{"plush", "--rate", "10k"}, "--rate is for servers"},
      {{"--server", "perdure", "--rate", "fast"}, "fast"},
      {{"--server", "perdure", "--rate", "0"}, "no rate"},
      {{"--server", "perdure", "--rate", "80%"}, "come after the peak"},
      {{"--server", "perdure", "--server-cpus", "9999"}, "no processors"},
      {{"--server", "perdure", "--connections", "0"}, "0 connections"},
      {{"--server", "perdure", "--pipeline", "0"}, "0 requests"},
      {{"--server", "perdure", "--key-size", "300"}, "keys of 300"},
      {{"--server", "perdure", "--value-size", "4"}, "values of 4"},
      {{"--server", "perdure", "--mix", "scan=.5,update=.5"}, "sorted set"},
      {{"--server", "perdure+memcached", "--mix", "scan"}, "has no scans"},
      {{"--server", "redis://127.0.0.1:1"}, "cannot reach the server at redis://127.0.0.1:1"}};
  for (const auto& [arguments, said] : cases) {
    const Result result = bench(arguments);
    EXPECT_TRUE(result.code == 2 || result.code == 4) << said << result.code;
    EXPECT_NE(result.err.find(said), std::string::npos) << said << "\n" << result.err;
  }
}

TEST_F(BenchServer, TheStudyHasItsFiguresInEveryOutput) {
  const Result result = run({"study", "serving", "perdure", "perdure:hash", "--folder", folder(),
                             "--records", "1k", "--operations", "500", "--time", "1s",
                             "--connections", "4", "--html", path("study.html"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json study = result.json();
  EXPECT_EQ(study["schema"], "perdure-study-serving-1");
  EXPECT_EQ(study["costs"].size(), 4U);
  for (const nlohmann::json& cost : study["costs"]) EXPECT_GT(cost["cost"], 0.0);
  // For both sizes a load, and three mixes at three rates; of the ordered one a load and three
  // lengths of scans.
  EXPECT_EQ(study["results"].size(), 2U * 2U * (1 + 9) + 4);
  for (const nlohmann::json& row : study["results"]) EXPECT_EQ(row["failed"], 0) << row;
  const std::string page = read_file("study.html");
  for (const char* part :
       {"Memory after the load", "read-heavy", "RStore", "<section id=\"rates\">"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  const std::string file = write_file("study.json", result.out);
  EXPECT_EQ(run({"report", file, "-o", path("again.html")}).code, 0);
  const Result table = run({"study", "serving", "perdure", "--folder", folder(), "--records", "1k",
                            "--operations", "500", "--part", "scans", "--connections", "4"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("scans of 300"), std::string::npos) << table.out;
  EXPECT_NE(run({"study", "serving", "--part", "200"}).err.find("no part of the study"),
            std::string::npos);
}

}  // namespace
}  // namespace perdure::cli_test
