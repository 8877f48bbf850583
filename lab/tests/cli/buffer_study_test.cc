// perdure study buffer-pool: its figures in every output, and what it proves.
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class BufferStudyCommand : public CommandTest {
 protected:
  Result study(std::vector<std::string> more) {
    std::vector<std::string> words = {"study", "buffer-pool", "--folder", folder()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
};

TEST_F(BufferStudyCommand, UpdatesKeepPagesSound) {
  const Result result =
      study({"--part", "updates", "--pages", "1M", "--updates", "1000", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["schema"], "perdure-study-buffer-pool-1");
  ASSERT_EQ(json["results"]["updates"].size(), 96U);
  for (const nlohmann::json& each : json["results"]["updates"]) {
    EXPECT_GT(each["ns"], 0.0);
    EXPECT_EQ(each["unsound_pages"], 0);
  }
}

TEST_F(BufferStudyCommand, ComesBackFromACrashInThreeWays) {
  const Result result = study({"--part", "restart,dram", "--records", "20k", "--before", "1s",
                               "--after", "2s", "--seconds", "200ms", "--dram-shares", "0,50,100",
                               "--html", path("study.html"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  const nlohmann::json& restarts = json["results"]["restart"];
  ASSERT_EQ(restarts.size(), 3U);
  for (const nlohmann::json& each : restarts) {
    EXPECT_GT(each["peak_per_s"], 0.0);
    EXPECT_GT(each["first_transaction_s"], 0.0);
    EXPECT_GT(each["after"].size(), 4U);  // of 40, if the machine has nothing else to do
  }
  // With all pages in DRAM none is found; with PM most are.
  EXPECT_EQ(restarts[0]["mended"]["right"], 0);
  EXPECT_GT(restarts[0]["mended"]["fetched"], 0);
  EXPECT_GT(restarts[2]["mended"]["right"], 10);
  const nlohmann::json& shares = json["results"]["dram"];
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_EQ(shares[0]["dram_bytes"], 0);
  EXPECT_EQ(shares[2]["pm_bytes"], 0);
  EXPECT_GT(shares[1]["per_s"]["a"], 0.0);
  EXPECT_LT(shares[0]["cost"], shares[2]["cost"]);
  EXPECT_NE(read_file("study.html").find("From a crash to the peak"), std::string::npos);
}

TEST_F(BufferStudyCommand, MeasuresTheRestartsThatAreWanted) {
  const Result result = study({"--part", "restart", "--restarts", "ours", "--records", "10k",
                               "--before", "1s", "--after", "1s", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  ASSERT_EQ(json["results"]["restart"].size(), 1U);
  EXPECT_EQ(json["results"]["restart"][0]["restart"], "persistent buffer pool");
  const Result wrong = study({"--part", "restart", "--restarts", "none"});
  EXPECT_NE(wrong.code, 0);
  EXPECT_NE(wrong.err.find("aries, instant, ours"), std::string::npos) << wrong.err;
}

// Money is conserved, each acknowledged commit is there; and pages were corrupted, and repaired.
TEST_F(BufferStudyCommand, KillsOfTpccLoseNothing) {
  const Result result = study({"--part", "kills", "--kills", "4", "--json"});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const nlohmann::json json = result.json();
  const nlohmann::json& kills = json["results"]["kills"];
  EXPECT_EQ(kills["kills"], 4);
  EXPECT_EQ(kills["problems"].size(), 0U) << kills["problems"];
  EXPECT_GT(kills["acknowledged"], 4);
  EXPECT_GT(kills["corrupted"], 0);
}

TEST_F(BufferStudyCommand, StandsBesideOtherStores) {
  const Result result = study({"--part", "peers", "--seconds", "100ms", "--peer-records", "1k",
                               "--items", "200", "--warehouses", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("point reads"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("database, 20% DRAM"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("does not hold"), std::string::npos) << result.out;
}

TEST_F(BufferStudyCommand, RefusesWhatMakesNoSense) {
  EXPECT_NE(study({"--part", "nothing"}).err.find("no part"), std::string::npos);
  EXPECT_NE(study({"--mix", "x"}).err.find("the mix is"), std::string::npos);
  EXPECT_NE(study({"--records", "10"}).err.find("10,000 records"), std::string::npos);
  EXPECT_NE(study({"--dram", "101"}).err.find("shares of DRAM"), std::string::npos);
}

}  // namespace
}  // namespace perdure::cli_test
