// bench: small runs of everything it can do.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Bench : public CommandTest {
 protected:
  Result bench(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "bench", "--folder", folder(), "--records", "3k", "--repeats", "2", "--operations", "2k"};
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

// What a killed benchmark left, but not what a living one works on.
TEST_F(Bench, RemovesThePoolsOfDeadBenchmarks) {
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  int status = 0;
  ASSERT_EQ(waitpid(dead, &status, 0), dead);
  const std::string prefix = "perdure-bench-";
  const std::string of_dead = write_file(prefix + std::to_string(dead) + "-1.pool", "left");
  const std::string locked = write_file(prefix + std::to_string(dead) + "-2.pool", "in use");
  const std::string of_living = write_file(prefix + std::to_string(getpid()) + "-1.pool", "mine");
  const std::string foreign = write_file("perdure-bench-notes.txt", "no pool");
  const int holder = open(locked.c_str(), O_RDONLY);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  EXPECT_EQ(bench({"plush"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(of_dead));
  for (const std::string& path : {locked, of_living, foreign}) {
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
    std::filesystem::remove(path);
  }
  close(holder);
}

TEST_F(Bench, JsonHasFloorMachineParametersAndResults) {
  const Result result = bench({"plush", "null", "--threads", "1,2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["schema"], "perdure-bench-2");
  EXPECT_GT(json["floor_ns"], 0.0);
  EXPECT_GT(json["read_chain_ns"], 0.0);
  const nlohmann::json& pauses = json["pauses"];
  EXPECT_LT(pauses["share"], 1.0);
  if (pauses["per_s"] > 0.0) {
    EXPECT_GE(pauses["longest_ns"], pauses["shortest_ns"]);
    EXPECT_GT(pauses["share"], 0.0);
  }
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

TEST_F(Bench, AStructureOfByteStringsAloneGetsThemUnlessTold) {
  const Result result = bench({"store", "plush", "--json"});  // another name of rstore
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["results"][0]["structure"], "rstore");
  EXPECT_EQ(json["parameters"]["key_kind"], "bytes");
  EXPECT_EQ(json["parameters"]["value_kind"], "bytes");
  EXPECT_EQ(bench({"plush", "--json"}).json()["parameters"]["key_kind"], "u64");
  EXPECT_EQ(bench({"store", "--key-kind", "u64"}).code, 2);
}

TEST_F(Bench, SeveralMixesOfOneRunAreApart) {
  const nlohmann::json json =
      bench({"plush", "--mix", "lookup", "--mix", "remove", "--json"}).json();
  EXPECT_EQ(json["results"].size(), 3U);
}

TEST_F(Bench, EveryStructureAndThreadCountGetsTheSameOperations) {
  const nlohmann::json json =
      bench({"plush", "cceh", "null", "--threads", "1,2", "--mix", "lookup=.5,update=.5",
             "--distribution", "zipfian", "--warmup", "500", "--json"})
          .json();
  std::map<std::string, std::set<std::string>> hashes;
  for (const nlohmann::json& row : json["results"]) {
    EXPECT_TRUE(row["complete"]);
    hashes[row["operation"]].insert(row["stream_hash"]);
  }
  EXPECT_EQ(hashes.size(), 2U);
  for (const auto& [operation, different] : hashes) EXPECT_EQ(different.size(), 1U) << operation;
  EXPECT_EQ(json["parameters"]["warmup_operations"], 500);
}

TEST_F(Bench, LatenciesAreToldByTypeOfOperation) {
  const nlohmann::json json =
      bench({"plush", "--mix", "lookup=.5,rmw=.5", "--latency-sampling", "1", "--json"}).json();
  const nlohmann::json types = json["results"][1]["by_operation"];
  EXPECT_EQ(types.size(), 2U);
  for (const char* type : {"lookup", "rmw"}) {
    EXPECT_EQ(types[type]["operations"], 1000);
    EXPECT_EQ(types[type]["samples"], 2000);  // of two repeats
    EXPECT_GT(types[type]["percentiles"]["p99.999"], 0.0);
  }
}

TEST_F(Bench, YcsbWorkloadsRunByLetterAndFromFiles) {
  const std::string file = write_file("mine",
                                      "recordcount=1500\noperationcount=700\n"
                                      "fieldcount=2\nfieldlength=10\nsurprise=1\n");
  const Result result = run({"bench", "plush", "--folder", folder(), "--workload", "d",
                             "--workload", file, "--repeats", "1", "--json"});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["parameters"]["records"], 1500);
  EXPECT_EQ(json["parameters"]["operations"], 700);
  EXPECT_EQ(json["parameters"]["value_bytes"], 20);
  EXPECT_EQ(json["parameters"]["workloads"][0]["name"], "ycsb-d");
  EXPECT_EQ(json["parameters"]["workloads"][1]["name"], "mine");
  ASSERT_EQ(json["notes"].size(), 1U);
  EXPECT_NE(json["notes"][0].get<std::string>().find("surprise"), std::string::npos);
}

TEST_F(Bench, ScansNeedOrder) {
  const Result alone = bench({"plush", "--workload", "e"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("plush keeps no order"), std::string::npos) << alone.err;
  const Result beside = bench({"plush", "null", "--workload", "e", "--json"});
  ASSERT_EQ(beside.code, 0) << beside.err;
  const nlohmann::json report = beside.json();
  for (const nlohmann::json& row : report["results"]) EXPECT_EQ(row["structure"], "null");
  EXPECT_NE(report["notes"][0].get<std::string>().find("skipped: plush"), std::string::npos);
}

TEST_F(Bench, TheTimeLimitEndsPhases) {
  const Result result =
      run({"bench", "null", "--folder", folder(), "--records", "1k", "--operations", "1G", "--time",
           "150ms", "--window", "10ms", "--repeats", "1", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json row = result.json()["results"][1];
  EXPECT_EQ(row["complete"], false);
  EXPECT_GE(row["windows"]["series"][0].size(), 2U);
  EXPECT_GT(row["windows"]["mean_mops"], 0.0);
}

TEST_F(Bench, AnEmulatedMediumIsStatedWithWhatItAdds) {
  const Result result = bench({"plush", "null", "--emulate", "optane", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json emulation = result.json()["emulation"];
  EXPECT_EQ(emulation["medium"], "optane-100");
  EXPECT_EQ(emulation["unit_bytes"], 256);
  EXPECT_GE(emulation["added_fence_ns"], 0.0);
  EXPECT_EQ(result.json()["domain"], "line");
  EXPECT_NE(result.json()["notes"][0].get<std::string>().find("null"), std::string::npos);
  EXPECT_NE(bench({"plush", "--emulate", "optane"}).out.find("emulated"), std::string::npos);
  EXPECT_TRUE(bench({"plush", "--json"}).json()["emulation"].is_null());
  EXPECT_EQ(bench({"plush", "--emulate", "eadr"}).code, 2);
  EXPECT_EQ(bench({"plush", "--emulate", "optane", "--domain", "byte"}).code, 2);
}

TEST_F(Bench, AStallForEachLineIsAddedAndLinesAreCounted) {
  const Result result = bench({"fptree", "null", "--emulate", "250ns", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json report = result.json();
  EXPECT_EQ(report["emulation"]["added_flush_ns"], 250.0);
  EXPECT_EQ(report["emulation"]["added_fence_ns"], 0.0);
  for (const nlohmann::json& row : report["results"]) {
    ASSERT_EQ(row.contains("lines_per_operation"), row["structure"] == "fptree") << row;
    if (row["structure"] != "fptree") continue;
    const double lines = row["lines_per_operation"];
    const double fences = row["fences_per_operation"];
    if (row["phase"] != "load") {
      EXPECT_EQ(lines, 0);  // lookups
      continue;
    }
    EXPECT_GT(lines, 1);
    EXPECT_GT(fences, 1);
    EXPECT_GT(row["ns_per_op_median"], 250 * lines);
  }
  EXPECT_EQ(bench({"fptree", "--emulate", "2000001ns"}).code, 2);
  EXPECT_FALSE(bench({"fptree", "--json"}).json()["results"][0].contains("lines_per_operation"));
}

TEST_F(Bench, CsvHasALineForEachResult) {
  const Result result = bench({"plush", "null", "--csv"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 5);
  EXPECT_EQ(result.out.rfind("structure,kind,operation,threads,", 0), 0U);
  EXPECT_NE(result.out.find("\nplush,structure,load,1,3000,3000,0,"), std::string::npos);
}

// Each where it was built; else the command must say what is missing.
TEST_F(Bench, PeersAnswerRightOrAreSkippedWithAWord) {
  const std::vector<std::string> peers = {"database",    "rocksdb",        "rocksdb-nosync",
                                          "leveldb",     "leveldb-nosync", "lmdb",
                                          "lmdb-nosync", "dram-btree",     "dram-hash"};
  for (const char* kind : {"u64", "bytes"}) {
    std::vector<std::string> arguments = {"null", "--records", "300", "--operations", "300"};
    arguments.insert(arguments.end(), peers.begin(), peers.end());
    for (const char* more :
         {"--threads", "2", "--key-kind", kind, "--value-kind", kind, "--repeats", "1", "--json",
          "--mix", "insert=.2,lookup=.4,update=.2,remove=.1,upsert=.1", "--mix",
          "insert=.2,lookup=.3,update=.1,remove=.1,scan=.1,scan-back=.1,rmw=.1"}) {
      arguments.emplace_back(more);
    }
    const Result result = bench(arguments);
    ASSERT_EQ(result.code, 0) << result.err << result.out;
    const nlohmann::json json = result.json();
    std::map<std::string, int> measured;
    for (const nlohmann::json& row : json["results"]) {
      ++measured[row["structure"]];
      EXPECT_EQ(row["failed"], 0) << row["structure"];
      EXPECT_FALSE(row["durability"].get<std::string>().empty());
    }
    const std::string notes = json["notes"].dump();
    for (const std::string& peer : peers) {
      // A load and two mixes, but for scans of what has no order.
      const int rows = peer == "dram-hash" ? 2 : 3;
      EXPECT_TRUE(measured[peer] == rows ||
                  (measured[peer] == 0 && notes.find(peer + " cannot be") != std::string::npos))
          << peer << notes;
    }
  }
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, KeysLikeUrlsAreWrittenReadAndScanned) {
  const Result result =
      bench({"p-art+vl", "p-masstree+vl", "fast-fair", "--records", "2k", "--operations", "1k",
             "--repeats", "1", "--json", "--key-kind", "url", "--mix",
             "insert=.2,lookup=.3,update=.2,remove=.1,scan=.1,scan-back=.1"});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["results"].size(), 6U);  // a load and a mix of each
  for (const nlohmann::json& row : json["results"]) {
    EXPECT_EQ(row["failed"], 0) << row["structure"];
  }
  EXPECT_EQ(json["parameters"]["url_keys"], true);
  EXPECT_EQ(json["parameters"]["key_kind"], "bytes");
  EXPECT_FALSE(left_files());
  EXPECT_EQ(bench({"fast-fair", "--key-kind", "url", "--key-prefix", "x"}).code, 2);
  EXPECT_EQ(bench({"fast-fair", "--key-kind", "url", "--server", "perdure"}).code, 2);
}

TEST_F(Bench, APeerThatIsNotThereIsNamedInEveryFormat) {
  const std::string without = "PERDURE_PEERS=" + folder() + " $PERDURE bench --folder " + folder() +
                              " --records 100 --operations 100 --repeats 1 ";
  const Result table = shell(without + "null lmdb");
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("skipped: lmdb cannot be measured"), std::string::npos) << table.out;
  for (const std::string format : {"--json", "--csv"}) {
    const Result result = shell(without + "null lmdb " + format);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.err.find("skipped: lmdb cannot be measured"), std::string::npos) << result.err;
  }
  const Result none = shell(without + "rocksdb lmdb");
  EXPECT_EQ(none.code, 4);
  EXPECT_NE(none.err.find("rocksdb cannot"), std::string::npos) << none.err;
  EXPECT_NE(none.err.find("lmdb cannot"), std::string::npos) << none.err;
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
  EXPECT_EQ(bench({"plush", "--folder", path("missing")}).code, 4);
  EXPECT_EQ(bench({"plush", "--distribution", "zipf"}).code, 2);
  EXPECT_EQ(bench({"plush", "--scan-length", "0"}).code, 2);
  EXPECT_EQ(bench({"plush", "--key-prefix", "x"}).code, 2);  // of words
  EXPECT_EQ(bench({"plush", "--workload", path("missing")}).code, 4);
  EXPECT_EQ(bench({"plush", "--csv", "--json"}).code, 2);
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, APoolThatIsTooSmallIsAnErrorAndRemoved) {
  const Result result = bench({"plush", "--records", "1M", "--capacity", "4M"});
  EXPECT_EQ(result.code, 4);
  EXPECT_FALSE(left_files());
}

TEST_F(Bench, CtrlCPrintsWhatWasMeasuredAndRemovesThePools) {
  const Result result = shell("$PERDURE bench plush --json --folder " + folder() +
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
