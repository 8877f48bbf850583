// bench --plugin: libraries built for PiBench beside structures.

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class BenchPlugin : public CommandTest {
 protected:
  Result bench(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"bench", "--folder",     folder(), "--records",
                                          "3k",    "--operations", "2k",     "--repeats",
                                          "1",     "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
};

const std::string kOurs = std::string(PERDURE_PIBENCH) + "/libperdure_pibench_plush.so";

TEST_F(BenchPlugin, RunsLibrariesOfBothInterfacesBesideStructures) {
  const Result result =
      bench({"plush", "--plugin", std::string(PERDURE_PIBENCH_TESTS) + "/foreign_2019.so",
             "--plugin", std::string(PERDURE_PIBENCH_TESTS) + "/foreign_bulk_load.so", "--mix",
             "insert=.2,lookup=.4,update=.2,remove=.2"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  ASSERT_EQ(json["results"].size(), 6U);
  for (const nlohmann::json& row : json["results"]) EXPECT_EQ(row["failed"], 0) << row;
  EXPECT_EQ(json["results"][2]["structure"], "foreign_2019.so");
  EXPECT_EQ(json["results"][2]["kind"], "plugin");
}

TEST_F(BenchPlugin, RunsOurOwnLibraryWithByteStringsAndThreads) {
  const Result result =
      bench({"--plugin", kOurs, "--key-kind", "bytes", "--key-size", "20", "--value-kind", "bytes",
             "--value-size", "100", "--threads", "2", "--mix", "lookup=.5,upsert=.5"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json load = result.json()["results"][0];
  EXPECT_EQ(load["operation"], "load");
  EXPECT_GT(load["pool_bytes"], 3000 * 120);
  EXPECT_EQ(load["failed"], 0);
}

TEST_F(BenchPlugin, WhatALibraryPrintsIsNotTheResult) {
  const Result result = bench({"--plugin", std::string(PERDURE_PIBENCH_TESTS) + "/counting.so",
                               "--mix", "scan", "--scan-length", "10"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("counting: made"), std::string::npos) << result.err;
  const nlohmann::json row = result.json()["results"][1];
  EXPECT_EQ(row["operation"], "scan");
  EXPECT_EQ(row["failed"], 0);
}

TEST_F(BenchPlugin, ErrorsNameTheLibrary) {
  const Result missing = bench({"--plugin", "./none.so"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("none.so: there is no such file"), std::string::npos) << missing.err;
  const Result text = bench({"--plugin", write_file("text.so", "no library")});
  EXPECT_EQ(text.code, 2);
  EXPECT_NE(text.err.find("cannot load the library"), std::string::npos) << text.err;
  EXPECT_EQ(bench({}).code, 2);
}

}  // namespace
}  // namespace perdure::cli_test
