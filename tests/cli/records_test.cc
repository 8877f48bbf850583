// put, get and del: one record at a time.

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Records : public CommandTest {};

TEST_F(Records, PutMakesThePoolAndGetFindsTheValue) {
  EXPECT_EQ(run({"put", pool(), "perdure", "to last"}).code, 0);
  const Result found = run({"get", pool(), "perdure"});
  EXPECT_EQ(found.code, 0);
  EXPECT_EQ(found.out, "to last\n");
  EXPECT_EQ(run({"get", "--raw", pool(), "perdure"}).out, "to last");
}

TEST_F(Records, PutReplacesTheValue) {
  run({"put", pool(), "key", "first"});
  EXPECT_EQ(run({"put", pool(), "key", "second"}).code, 0);
  EXPECT_EQ(run({"get", pool(), "key"}).out, "second\n");
}

TEST_F(Records, EmptyKeyAndValueAreARecord) {
  EXPECT_EQ(run({"put", pool(), "", ""}).code, 0);
  const Result found = run({"get", pool(), ""});
  EXPECT_EQ(found.code, 0);
  EXPECT_EQ(found.out, "\n");
}

TEST_F(Records, KeysThatBeginWithADashGoBehindTwo) {
  EXPECT_EQ(run({"put", pool(), "--", "-key", "-value"}).code, 0);
  EXPECT_EQ(run({"get", pool(), "--", "-key"}).out, "-value\n");
}

TEST_F(Records, GetOfAnAbsentKeyExitsWithOneAndPrintsNothing) {
  run({"put", pool(), "a", "1"});
  const Result absent = run({"get", pool(), "b"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_EQ(absent.out, "");
}

TEST_F(Records, InsertRefusesAPresentKey) {
  EXPECT_EQ(run({"put", "--insert", pool(), "a", "1"}).code, 0);
  EXPECT_EQ(run({"put", "--insert", pool(), "a", "2"}).code, 1);
  EXPECT_EQ(run({"get", pool(), "a"}).out, "1\n");
}

TEST_F(Records, UpdateRefusesAnAbsentKeyAndMakesNoPool) {
  EXPECT_EQ(run({"put", "--update", pool(), "a", "1"}).code, 4);
  EXPECT_EQ(run({"pool", "info", pool()}).code, 4);
  run({"put", pool(), "a", "1"});
  EXPECT_EQ(run({"put", "--update", pool(), "b", "2"}).code, 1);
  EXPECT_EQ(run({"put", "--update", pool(), "a", "3"}).code, 0);
  EXPECT_EQ(run({"get", pool(), "a"}).out, "3\n");
}

TEST_F(Records, DelRemovesAndTellsWhatWasAbsent) {
  run({"put", pool(), "a", "1"});
  run({"put", pool(), "b", "2"});
  EXPECT_EQ(run({"del", pool(), "a", "b"}).code, 0);
  EXPECT_EQ(run({"get", pool(), "a"}).code, 1);
  const Result again = run({"del", pool(), "a"});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("absent"), std::string::npos) << again.err;
}

TEST_F(Records, WordKindsHoldTheirWholeRange) {
  const std::string most = "18446744073709551615";
  EXPECT_EQ(run({"put", "--key-kind", "u64", "--value-kind", "u64", pool(), "0", most}).code, 0);
  EXPECT_EQ(run({"put", pool(), most, "0x10"}).code, 0);
  EXPECT_EQ(run({"get", pool(), "0"}).out, most + "\n");
  EXPECT_EQ(run({"get", pool(), most}).out, "16\n");
}

TEST_F(Records, AKeyThatIsNoNumberIsAUsageErrorAndMakesNoPool) {
  const Result refused = run({"put", "--key-kind", "u64", pool(), "seven", "x"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("seven"), std::string::npos) << refused.err;
  EXPECT_EQ(run({"pool", "info", pool()}).code, 4);
}

TEST_F(Records, StructuresOfOnePoolAreApart) {
  run({"put", "--name", "cities", pool(), "Oslo", "Norway"});
  run({"put", pool(), "Oslo", "a word"});
  EXPECT_EQ(run({"get", "--name", "cities", pool(), "Oslo"}).out, "Norway\n");
  EXPECT_EQ(run({"get", pool(), "Oslo"}).out, "a word\n");
  EXPECT_EQ(run({"get", "--name", "none", pool(), "Oslo"}).code, 4);
}

TEST_F(Records, OtherKindsThanTheStructureHasAreRefused) {
  run({"put", pool(), "a", "1"});
  EXPECT_EQ(run({"put", "--key-kind", "u64", pool(), "1", "1"}).code, 4);
}

TEST_F(Records, UnknownOptionsOfAStructureLeaveNoPoolBehind) {
  EXPECT_EQ(run({"put", "--option", "no_such=1", pool(), "a", "1"}).code, 2);
  EXPECT_EQ(run({"put", "--option", "nothing", pool(), "a", "1"}).code, 2);
  EXPECT_EQ(run({"put", "--structure", "none", pool(), "a", "1"}).code, 2);
  EXPECT_EQ(run({"pool", "info", pool()}).code, 4);
}

TEST_F(Records, WhatIsForNewPoolsAndStructuresIsNotIgnoredSilently) {
  ASSERT_EQ(run({"put", "--capacity", "64M", pool(), "a", "1"}).err, "");
  const Result later = run({"put", "--capacity", "1G", pool(), "a", "2"});
  EXPECT_EQ(later.code, 0);
  EXPECT_NE(later.err.find("with a capacity of 64.0 MiB; --capacity 1G is for new pools"),
            std::string::npos)
      << later.err;
  EXPECT_EQ(run({"put", "--capacity", "64M", pool(), "a", "3"}).err, "");
  EXPECT_NE(run({"put", "--option", "partitions=4", pool(), "a", "4"}).err.find("--option is for"),
            std::string::npos);
}

TEST_F(Records, OptionsOfAStructureMayBeRepeated) {
  EXPECT_EQ(run({"put", "--structure", "plush", "--option", "fanout=4", "--option",
                 "directory_bits=8", pool(), "a", "1"})
                .code,
            0);
  EXPECT_EQ(run({"get", pool(), "a"}).out, "1\n");
}

TEST_F(Records, JsonTellsWhatHappened) {
  const nlohmann::json put = run({"put", "--json", pool(), "a", "1"}).json();
  EXPECT_EQ(put["stored"], true);
  const nlohmann::json got = run({"get", "--json", pool(), "a"}).json();
  EXPECT_EQ(got["found"], true);
  EXPECT_EQ(got["value"], "1");
  const Result absent = run({"get", "--json", pool(), "b"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_EQ(absent.json()["found"], false);
  const Result del = run({"del", "--json", pool(), "a", "b"});
  EXPECT_EQ(del.code, 1);
  EXPECT_EQ(del.json()["removed"], 1);
  EXPECT_EQ(del.json()["absent"][0]["key"], "b");
}

TEST_F(Records, ValuesThatAreNotUtf8AreBase64InJson) {
  run({"put", pool(), "bytes", "\xff\xfe"});
  EXPECT_EQ(run({"get", pool(), "bytes"}).out, "\xff\xfe\n");
  EXPECT_EQ(run({"get", "--json", pool(), "bytes"}).json()["value_base64"], "//4=");
}

TEST_F(Records, FilesThatAreNoPoolAreErrorsAndNoDamage) {
  EXPECT_EQ(run({"get", write_file("foreign", std::string(1 << 20, 'x')), "a"}).code, 4);
  EXPECT_EQ(run({"get", write_file("empty", ""), "a"}).code, 4);
  EXPECT_EQ(run({"get", path("missing"), "a"}).code, 4);
  EXPECT_EQ(run({"get", folder(), "a"}).code, 4);
}

TEST_F(Records, ErrorsNameTheProgramAndTheFile) {
  const Result missing = run({"get", path("missing"), "a"});
  EXPECT_EQ(missing.err.rfind("perdure: ", 0), 0U) << missing.err;
  EXPECT_NE(missing.err.find(path("missing")), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace perdure::cli_test
