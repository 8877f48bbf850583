// perdure study lsm: its figures in every output.
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class LsmStudyCommand : public CommandTest {};

TEST_F(LsmStudyCommand, HasItsFiguresInEveryOutput) {
  const Result result = run({"study", "lsm", "--folder", folder(), "--records", "50k", "--before",
                             "1s", "--after", "2s", "--html", path("study.html"), "--json"});
  if (result.code != 0 && result.err.find("librocksdb-dev") != std::string::npos)
    GTEST_SKIP() << "this build has no RocksDB";
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json study = result.json();
  EXPECT_EQ(study["schema"], "perdure-study-lsm-1");
  ASSERT_EQ(study["results"].size(), 2U);
  for (const nlohmann::json& each : study["results"]) {
    EXPECT_GT(each["peak_per_s"], 0.0);
    EXPECT_GT(each["medium_read_ns"], 79'999);
    EXPECT_GT(each["after"].size(), 10U);
    EXPECT_GT(each["dram_bytes"], 0);
  }
  EXPECT_EQ(study["results"][0]["pm_blocks"], 0);
  // What the cache in the pool had is there after the restart.
  EXPECT_GT(study["results"][1]["pm_blocks"], 50);
  EXPECT_EQ(study["results"][1]["pm_recovered"], study["results"][1]["pm_blocks"]);
  EXPECT_NE(read_file("study.html").find("From a restart to the peak"), std::string::npos);
  EXPECT_NE(run({"study", "lsm", "--records", "10"}).err.find("10,000 records"), std::string::npos);
  EXPECT_NE(run({"study", "lsm", "--skew", "2"}).err.find("skew"), std::string::npos);
}

TEST_F(LsmStudyCommand, HasATable) {
  const Result result =
      run({"study", "lsm", "--folder", folder(), "--records", "20k", "--before", "1s", "--after",
           "1s", "--latency-us", "20", "--self-similar", "--no-in-dram"});
  if (result.code != 0) GTEST_SKIP() << "this build has no RocksDB";
  EXPECT_NE(result.out.find("DRAM by 2Q, persistent memory"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("and so on within"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("as fast as that is"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("to 95 % of the peak"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace perdure::cli_test
