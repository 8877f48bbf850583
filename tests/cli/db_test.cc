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

}  // namespace
}  // namespace perdure::cli_test
