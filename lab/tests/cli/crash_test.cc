// perdure crash, as a user runs it. What the explorer finds is tested in lab/tests/crash.

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

#ifdef PERDURE_HAS_OBSERVED

class Crash : public CommandTest {
 protected:
  Result mutate(const std::string& mutants) const {
    return run({"crash",        "plush",
                "--operations", "30",
                "--prepared",   "0",
                "--keys",       "20",
                "--capacity",   "4M",
                "--kinds",      "u64/u64",
                "--threads",    "1",
                "--crashes",    "1",
                "--budget",     "60s",
                "--mutate",     "--mutants",
                mutants,        "--mutant-seconds",
                "20",           "--json"});
  }
};

TEST_F(Crash, NoticesThatAWriteIsNotFlushedOrFenced) {
  for (const char* function : {"TornBitLog::append", "Core::log_and_write"}) {
    const Result result = mutate(function);
    ASSERT_EQ(result.code, 0) << result.err;
    const nlohmann::json json = result.json();
    EXPECT_TRUE(json["findings"].empty());
    const nlohmann::json& sites = json["mutation"]["list"];
    EXPECT_GT(sites.size(), 0U);
    bool killed = false;
    for (const nlohmann::json& site : sites) {
      EXPECT_NE(site["place"].get<std::string>().find(function), std::string::npos) << site;
      killed = killed || site["killed"] == true;
    }
    EXPECT_TRUE(killed) << sites;
  }
}

TEST_F(Crash, MutatesNothingWhereNothingIsNamed) {
  const Result result = mutate("no such place");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(result.json()["mutation"]["list"].empty());
}

TEST_F(Crash, AllLeavesOutWhatDoesNotSupportTheKinds) {
  const Result result = run({"crash", "all", "--kinds", "bytes/bytes", "--operations", "5",
                             "--prepared", "0", "--threads", "1", "--budget", "2s", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("plush+range is left out"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("\"cceh\""), std::string::npos);
  EXPECT_EQ(result.out.find("\"plush+range\""), std::string::npos);
}

TEST_F(Crash, MutantsNeedMutation) {
  EXPECT_EQ(run({"crash", "plush", "--mutants", "migrator.cc"}).code, 2);
}

#endif

}  // namespace
}  // namespace perdure::cli_test
