// perdure db: what it prints and how it ends.
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class DbCommand : public CommandTest {
 protected:
  void create() {
    ASSERT_EQ(run({"db", "create", pool(), "--capacity", "32M", "--log", "1M"}).code, 0);
  }
};

TEST_F(DbCommand, WhatIsDumpedCanBeLoaded) {
  create();
  const std::string lines = "alice\t1\\t0\\n\nbob\t\\x00\\x01\n";
  EXPECT_EQ(run({"db", "load", pool()}, lines).code, 0);
  EXPECT_EQ(run({"db", "get", pool(), "alice"}).out, "1\t0\n\n");
  EXPECT_EQ(run({"db", "dump", pool()}).out, lines);
  EXPECT_EQ(
      run({"db", "load", pool(), "--tree", "other"}, "{\"key\":\"c\",\"value\":\"d\"}\n").code, 0);
  EXPECT_EQ(run({"db", "get", pool(), "--tree", "other", "c"}).out, "d\n");
  EXPECT_EQ(run({"db", "check", pool()}).code, 0);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_F(DbCommand, ALineThatIsNoRecordIsNamed) {
  create();
  const Result loaded = run({"db", "load", pool(), "--batch", "1"}, "a\t1\nb\n");
  EXPECT_EQ(loaded.code, 2);
  EXPECT_NE(loaded.err.find("line 2"), std::string::npos) << loaded.err;
  EXPECT_NE(loaded.err.find("1 record stored before it"), std::string::npos) << loaded.err;
  EXPECT_EQ(run({"db", "dump", pool()}).out, "a\t1\n");
}

TEST_F(DbCommand, RecordsComeInOrderAndGo) {
  create();
  for (const char* key : {"b", "a", "c"}) EXPECT_EQ(run({"db", "put", pool(), key, "1"}).code, 0);
  EXPECT_EQ(run({"db", "scan", pool(), "--backward", "--limit", "2"}).out, "c\t1\nb\t1\n");
  EXPECT_EQ(run({"db", "scan", pool(), "b"}).out, "b\t1\nc\t1\n");
  EXPECT_EQ(run({"db", "del", pool(), "b"}).code, 0);
  EXPECT_EQ(run({"db", "del", pool(), "b"}).code, 1);
  EXPECT_EQ(run({"db", "get", pool(), "b"}).code, 1);
  EXPECT_EQ(run({"db", "recover", pool(), "--json"}).json()["pending"], 0);
}

// As the page file, its name is given each time.
TEST_F(DbCommand, TheLogMayBeInAFile) {
  const std::vector<std::string> files = {"--pages", path("bank.pages"), "--log-file",
                                          path("bank.log")};
  const auto db = [&](std::vector<std::string> arguments, const std::string& in = {}) {
    arguments.insert(arguments.begin(), "db");
    arguments.insert(arguments.end(), files.begin(), files.end());
    return run(arguments, in);
  };
  // The log alone would not fit into the pool.
  ASSERT_EQ(db({"create", pool(), "--capacity", "16M", "--log", "32M", "--pm", "1M"}).code, 0);
  ASSERT_EQ(db({"load", pool()}, "alice\t1\nbob\t2\n").code, 0);
  EXPECT_EQ(db({"get", pool(), "bob"}).out, "2\n");
  const nlohmann::json stat = db({"stat", pool(), "--json"}).json();
  EXPECT_EQ(stat["log_files"], 1);
  EXPECT_EQ(stat["log_bytes"], 32 << 20);
  EXPECT_EQ(db({"check", pool()}).code, 0);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  const Result without = run({"db", "get", pool(), "--pages", path("bank.pages"), "bob"});
  EXPECT_EQ(without.code, 2);
  EXPECT_NE(without.err.find("the log of 'db' is in a file"), std::string::npos) << without.err;
  const Result compact = run({"pool", "compact", pool()});
  EXPECT_EQ(compact.code, 2);
  EXPECT_NE(compact.err.find("in a file of its own"), std::string::npos) << compact.err;
  // A copy of what can be read has a log file again.
  const Result saved = run({"pool", "salvage", "--json", "--pages", path("bank.pages"),
                            "--log-file", path("bank.log"), pool(), path("saved.pool")});
  EXPECT_EQ(saved.code, 0) << saved.err;
  const nlohmann::json one = saved.json()["structures"][0];
  EXPECT_EQ(one["log_file"], path("saved.pool.db.log"));
  EXPECT_EQ(run({"db", "dump", path("saved.pool"), "--pages", path("saved.pool.db.pages"),
                 "--log-file", path("saved.pool.db.log")})
                .out,
            "alice\t1\nbob\t2\n");
  const Result missing = run({"pool", "salvage", "--pages", path("bank.pages"), "--log-file",
                              path("nowhere"), pool(), path("other.pool")});
  EXPECT_EQ(missing.code, 4);
  EXPECT_NE(missing.err.find("nowhere"), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace perdure::cli_test
