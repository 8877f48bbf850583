// perdure study lsm: its figures in every output.
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class LsmStudyCommand : public CommandTest {};

TEST_F(LsmStudyCommand, HasItsFiguresInEveryOutput) {
  const Result result =
      run({"study", "lsm", "--part", "restart", "--folder", folder(), "--records", "50k",
           "--before", "1s", "--after", "2s", "--html", path("study.html"), "--json"});
  if (result.code != 0 && result.err.find("librocksdb-dev") != std::string::npos)
    GTEST_SKIP() << "this build has no RocksDB";
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json study = result.json();
  EXPECT_EQ(study["schema"], "perdure-study-lsm-2");
  const nlohmann::json& restarts = study["results"]["restart"];
  ASSERT_EQ(restarts.size(), 2U);
  for (const nlohmann::json& each : restarts) {
    EXPECT_GT(each["peak_per_s"], 0.0);
    EXPECT_GT(each["medium_read_ns"], 79'999);
    EXPECT_GT(each["after"].size(), 10U);
    EXPECT_GT(each["dram_bytes"], 0);
  }
  EXPECT_EQ(restarts[0]["pm_blocks"], 0);
  // What the cache in the pool had is there after the restart.
  EXPECT_GT(restarts[1]["pm_blocks"], 50);
  EXPECT_EQ(restarts[1]["pm_recovered"], restarts[1]["pm_blocks"]);
  EXPECT_NE(read_file("study.html").find("From a restart to the peak"), std::string::npos);
  EXPECT_NE(run({"study", "lsm", "--records", "10"}).err.find("10,000 records"), std::string::npos);
  EXPECT_NE(run({"study", "lsm", "--skew", "2"}).err.find("skew"), std::string::npos);
}

TEST_F(LsmStudyCommand, HasGroupsPlacementsAndPrices) {
  const Result result = run({"study",           "lsm",    "--part",    "groups,reads,mixes,cost",
                             "--folder",        folder(), "--disk",    folder(),
                             "--level-records", "20k",    "--seconds", "0.02s",
                             "--pm-times",      "1,5",    "--records", "20k",
                             "--before",        "1s",     "--html",    path("study.html"),
                             "--json"});
  if (result.code != 0 && result.err.find("-dev") != std::string::npos)
    GTEST_SKIP() << "this build has no LevelDB or no RocksDB";
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json study = result.json();
  const nlohmann::json& results = study["results"];
  ASSERT_EQ(results["groups"].size(), 3U * 5);     // media, groups
  ASSERT_EQ(results["reads"].size(), 2U * 2 * 8);  // latencies, uniform and skewed, steps
  ASSERT_EQ(results["mixes"].size(), 2U * 2 * 4);
  ASSERT_EQ(results["cost"].size(), 2U * 2);  // threads, caches
  for (const nlohmann::json& each : results["groups"]) {
    EXPECT_GT(each["per_s"], 0.0);
    EXPECT_GT(each["latency_us_mean"], 0.0);
  }
  for (const char* part : {"reads", "mixes"}) {
    for (const nlohmann::json& each : results[part]) EXPECT_GT(each["per_s"], 0.0) << each;
  }
  for (const nlohmann::json& each : results["reads"]) {
    const bool has_cache = each["in_dram"].get<std::string>().find('%') != std::string::npos;
    const bool has_blocks = has_cache || each["in_dram"] == "all";
    EXPECT_EQ(each["dram_bytes"] > 0, has_blocks) << each;
  }
  EXPECT_NE(read_file("study.html").find("Synced writes, in groups"), std::string::npos);
  EXPECT_NE(run({"study", "lsm", "--part", "nothing"}).err.find("no part"), std::string::npos);
}

TEST_F(LsmStudyCommand, HasATable) {
  const Result result = run({"study", "lsm", "--part", "restart", "--folder", folder(), "--records",
                             "20k", "--before", "1s", "--after", "1s", "--latency-us", "20",
                             "--self-similar", "--no-in-dram"});
  if (result.code != 0) GTEST_SKIP() << "this build has no RocksDB";
  EXPECT_NE(result.out.find("DRAM by 2Q, persistent memory"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("and so on within"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("as fast as that is"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("to 95 % of the peak"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace perdure::cli_test
