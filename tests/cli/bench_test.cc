// bench: small runs of everything it can do.

#include <filesystem>
#include <set>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Bench : public CommandTest {
 protected:
  Result bench(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"bench",     "--path", folder(),       "--records", "3k",
                                          "--repeats", "2",      "--operations", "2k"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  bool left_files() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      if (entry.path().extension() == ".pool") return true;
    }
    return false;
  }
};

TEST_F(Bench, JsonHasFloorMachineParametersAndResults) {
  const Result result = bench({"plush", "null", "--threads", "1,2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["schema"], "perdure-bench-1");
  EXPECT_GT(json["floor_ns"], 0.0);
  EXPECT_GT(json["read_chain_ns"], 0.0);
  EXPECT_TRUE(json["machine"].contains("cpu"));
  EXPECT_TRUE(json["machine"].contains("kernel"));
  EXPECT_TRUE(json["machine"].contains("compiler"));
  EXPECT_EQ(json["parameters"]["records"], 3000);
  std::set<std::tuple<std::string, std::string, int>> seen;
  for (const nlohmann::json& row : json["results"]) {
    seen.emplace(row["structure"], row["operation"], row["threads"]);
    EXPECT_GT(row["mops_median"], 0.0);
    EXPECT_GT(row["ns_per_op_median"], 0.0);
    EXPECT_GT(row["ratio_to_floor"], 0.0);
    EXPECT_EQ(row["records"], 3000);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_TRUE(row.contains("pool_bytes"));
    EXPECT_TRUE(row.contains("dram_bytes"));
    EXPECT_EQ(row["mops"].size(), 2U);
    EXPECT_LE(row["percentiles"]["p50"], row["percentiles"]["p99.99"]);
  }
  // Two structures, two thread counts, load and lookup.
  EXPECT_EQ(seen.size(), 8U);
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, EveryOperationSucceedsOnPlush) {
  for (const char* mix : {"insert", "lookup=1", "update", "upsert", "remove", "lookup=.5,update=.5",
                          "insert=.2,lookup=.4,update=.2,remove=.2"}) {
    const Result result =
        bench({"plush", "--mix", mix, "--threads", "2", "--repeats", "1", "--json"});
    EXPECT_EQ(result.code, 0) << mix << "\n" << result.err << result.out;
  }
}

TEST_F(Bench, SeveralMixesOfOneRunAreApart) {
  const nlohmann::json json =
      bench({"plush", "--mix", "lookup", "--mix", "remove", "--json"}).json();
  EXPECT_EQ(json["results"].size(), 3U);
}

TEST_F(Bench, ByteStringsAndSequentialKeysWork) {
  const Result result = bench({"plush", "--key-kind", "bytes", "--value-kind", "bytes",
                               "--key-size", "20", "--value-size", "1K", "--keys", "sequential",
                               "--mix", "lookup=.5,upsert=.5", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.json()["parameters"]["value_bytes"], 1024);
}

TEST_F(Bench, TheTableIsAlignedAndNamesItsConditions) {
  const Result result = bench(
      {"plush", "--domain", "page", "--repeats", "1", "--records", "200", "--operations", "100"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* word : {"M ops/s", "ns/op", "x floor", "p99.99", "domain page (forced)",
                           "DRAM B/record", "open, closed"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << word << "\n" << result.out;
  }
}

TEST_F(Bench, KillRecoveryTimesTheOpeningOfWhatAKilledLoaderLeft) {
  const Result result = bench({"plush", "--operations", "0", "--kill-recovery", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json load = result.json()["results"][0];
  EXPECT_EQ(load["operation"], "load");
  EXPECT_GT(load["open_clean_ms_median"], 0.0);
  EXPECT_GT(load["open_killed_ms_median"], 0.0);
  EXPECT_GT(load["pool_bytes"], 3000 * 16);
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, UsageErrorsAreTold) {
  EXPECT_EQ(run({"bench"}).code, 2);
  EXPECT_EQ(bench({"no-such-structure"}).code, 2);
  EXPECT_EQ(bench({"plush", "--mix", "jump"}).code, 2);
  EXPECT_EQ(bench({"plush", "--mix", "lookup=0"}).code, 2);
  EXPECT_EQ(bench({"plush", "--mix", "lookup,lookup"}).code, 2);
  EXPECT_EQ(bench({"plush", "--threads", "0"}).code, 2);
  EXPECT_EQ(bench({"plush", "--records", "many"}).code, 2);
  EXPECT_EQ(bench({"plush", "--domain", "cloud"}).code, 2);
  // More removes than there are records.
  EXPECT_EQ(bench({"plush", "--mix", "remove", "--operations", "4k"}).code, 2);
  EXPECT_EQ(bench({"plush", "--path", path("missing")}).code, 4);
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, APoolThatIsTooSmallIsAnErrorAndRemoved) {
  const Result result = bench({"plush", "--records", "1M", "--capacity", "4M"});
  EXPECT_EQ(result.code, 4);
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, CtrlCPrintsWhatWasMeasuredAndRemovesThePools) {
  const Result result = shell("$PERDURE bench plush --json --path " + folder() +
                              " --records 1M --operations 2G --repeats 9 & pid=$!; "
                              "until ls " +
                              folder() +
                              "/*.pool >/dev/null 2>&1; do sleep 0.05; done; "
                              "kill -INT $pid; wait $pid");
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_EQ(result.json()["interrupted"], true);
  EXPECT_FALSE(left_files());
}

}  // namespace
}  // namespace perdure::cli_test
