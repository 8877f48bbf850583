// perdure amp: the same counts in every run, the figures that are promised, programs that are not
// ours, and what is said when something is missing.

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;

class AmpCommand : public CommandTest {
 protected:
#ifdef PERDURE_HAS_OBSERVED
  static constexpr bool kHasLab = true;
#else
  static constexpr bool kHasLab = false;
#endif

  void SetUp() override {
    if (!kHasLab) GTEST_SKIP() << "this build has no instruments";
  }

  // The result of each structure and workload, without how long it took here.
  std::map<std::pair<std::string, std::string>, json> results(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "amp");
    arguments.insert(arguments.end(), {"--json", "--folder", folder()});
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    std::map<std::pair<std::string, std::string>, json> found;
    const json report = result.json();
    for (json each : report["results"]) {
      each.erase("seconds");
      found[{each["structure"], each["workload"]}] = each;
    }
    return found;
  }
};

TEST_F(AmpCommand, GivesTheSameCountsInEveryRun) {
  const std::vector<std::string> arguments = {"plush", "--workload", "load,a,b,c", "--records",
                                              "6k"};
  const auto first = results(arguments);
  ASSERT_EQ(first.size(), 4U);
  EXPECT_EQ(first, results(arguments));
  // Nor do they depend on what else is run, or on the environment.
  setenv("PERDURE_AMP_TEST", std::string(1234, 'x').c_str(), 1);
  for (const char* workload : {"load", "a", "c"}) {
    const auto alone = results({"plush", "--workload", workload, "--records", "6k"});
    EXPECT_EQ(alone.at({"plush", workload}), first.at({"plush", workload})) << workload;
  }
  unsetenv("PERDURE_AMP_TEST");
  const auto other = results({"plush", "--records", "6k", "--seed", "2"});
  EXPECT_NE(other.at({"plush", "load"}), first.at({"plush", "load"}));
}

TEST_F(AmpCommand, TellsWhatIsPromisedForEachResult) {
  const auto found = results({"plush", "--workload", "load,a,c", "--records", "6k"});
  for (const auto& [name, result] : found) {
    for (const char* field :
         {"structure", "workload", "records", "operations", "wpq_inserts_per_insert",
          "media_writes_per_insert", "media_writes_per_wpq_insert", "flushes_per_insert",
          "fences_per_insert", "modelled_mops", "bottleneck", "operation_types", "sites", "time"}) {
      EXPECT_TRUE(result.contains(field)) << name.second << " " << field;
    }
    EXPECT_EQ(result["records"], 6000);
    EXPECT_EQ(result["failed"], 0);
    EXPECT_GT(result["modelled_mops"], 0);
  }
  const json& load = found.at({"plush", "load"});
  EXPECT_EQ(load["operation_types"]["insert"]["operations"], 6000);
  EXPECT_GE(load["flushes_per_insert"], 1);
  EXPECT_LT(load["flushes_per_insert"], 5);
  EXPECT_GE(load["fences_per_insert"], 0.9);
  EXPECT_GT(load["media_writes_per_insert"], 0.25);
  const json& mixed = found.at({"plush", "a"});
  EXPECT_EQ(mixed["operation_types"]["insert"]["operations"], 3000);
  EXPECT_EQ(mixed["operation_types"]["lookup"]["operations"], 3000);
  EXPECT_EQ(mixed["flushes_per_lookup"], 0);
  const json& lookups = found.at({"plush", "c"});
  EXPECT_TRUE(lookups["flushes_per_insert"].is_null());
  EXPECT_EQ(lookups["wpq_inserts_per_lookup"], 0);
  EXPECT_GT(lookups["pm_lines_read_per_lookup"], 0);
}

// What the sites caused is what the operations caused.
TEST_F(AmpCommand, SitesAddUpToTheTotal) {
  const json result = results({"plush", "--records", "6k"}).at({"plush", "load"});
  std::map<std::string, uint64_t> sums;
  bool names_the_log = false;
  for (const json& site : result["sites"]) {
    for (const char* field : {"flushes", "wpq_flush", "wpq_eviction", "media_write_twelfths"}) {
      sums[field] += site[field].get<uint64_t>();
    }
    names_the_log =
        names_the_log || site["place"].get<std::string>().starts_with("torn_bit_log.cc:");
  }
  for (const auto& [field, sum] : sums) EXPECT_EQ(result["total"][field], sum) << field;
  EXPECT_TRUE(names_the_log);
}

TEST_F(AmpCommand, ShowsTablesForPeople) {
  const Result result = run({"amp", "plush", "--workload", "load,c", "--records", "3k", "--by-site",
                             "--threads", "1,4", "--folder", folder()});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* text :
       {"optane-100", "modelled cache", "media_unit_bytes 256", "LOAD: 3,000 inserts", "C: 3,000",
        "per insert", "per lookup", "WPQ inserts", "media writes (64 B)", "write amplification",
        "an estimate", "4 threads", "limited by", "call sites", "torn_bit_log.cc:"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text << "\n" << result.out;
  }
  EXPECT_EQ(result.err, "");
}

TEST_F(AmpCommand, LeavesNoPoolBehind) {
  const std::string pools = path("pools");
  std::filesystem::create_directory(pools);
  EXPECT_EQ(run({"amp", "plush", "--records", "1k", "--folder", pools}).code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(pools));
}

TEST_F(AmpCommand, ProfilesDecideWhatAFlushIs) {
  const auto found = results({"plush", "--records", "3k", "--profile", "eadr"});
  EXPECT_EQ(found.at({"plush", "load"})["flushes_per_insert"], 0);
  const std::string own = write_file(
      "own.json", R"({"base": "optane-100", "name": "my own", "cpu_cache_bytes": 65536})");
  const Result shown = run({"amp", "--show-profile", "--profile", own, "--json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.json()["name"], "my own");
  EXPECT_EQ(shown.json()["cpu_cache_bytes"], 65536);
}

TEST_F(AmpCommand, TakesByteStrings) {
  const auto found = results({"plush", "--records", "2k", "--key-kind", "bytes", "--value-kind",
                              "bytes", "--value-size", "100"});
  EXPECT_EQ(found.at({"plush", "load"})["total"]["payload_bytes"], 2000 * 116);
}

TEST_F(AmpCommand, RefusesWhatMakesNoSense) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"amp"}, "structure"},
      {{"amp", "no-such"}, "no-such"},
      {{"amp", "plush", "--workload", "d"}, "load, a, b, c"},
      {{"amp", "plush", "--profile", "hard disk"}, "optane-100"},
      {{"amp", "plush", "--records", "0"}, "--records"},
      {{"amp", "plush", "--option", "no_such=1", "--records", "10"}, "no_such"},
      {{"amp", "plush", "--no-such"}, "--help"}};
  for (const auto& [arguments, word] : cases) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_NE(result.err.find(word), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(run({"amp", "plush", "--records", "100k", "--capacity", "2M"}).code, 4);
}

#ifdef PERDURE_NAIVE_TABLE
TEST_F(AmpCommand, CountsProgramsThatAreNotOurs) {
  const std::string table = path("naive.table");
  const Result counted = run({"amp", "--program", PERDURE_NAIVE_TABLE, "--records", "5k", "--json",
                              "--", table, "load", "5000"});
  ASSERT_EQ(counted.code, 0) << counted.err;
  const json result = counted.json()["results"][0];
  EXPECT_EQ(result["structure"], "naive-table");
  EXPECT_EQ(result["operations"], 5000);
  // One for each field.
  EXPECT_EQ(result["flushes_per_insert"], 3);
  EXPECT_EQ(result["fences_per_insert"], 3);
  EXPECT_EQ(result["flushes_clean_per_insert"], 0);
  EXPECT_EQ(result["wpq_inserts_per_insert"], 3);
  EXPECT_EQ(result["pm_lines_written_per_insert"], 3);
  bool names_its_lines = false;
  for (const json& site : result["sites"]) {
    names_its_lines = names_its_lines || (site["function"] == "insert" && site["flushes"] == 5000);
  }
  EXPECT_TRUE(names_its_lines);
  const Result again = run({"amp", "--program", PERDURE_NAIVE_TABLE, "--records", "5k", "--json",
                            "--", table, "load", "5000"});
  EXPECT_EQ(again.json()["results"][0]["total"], result["total"]);
}

// Which says nothing when it is entered, being all inline assembly.
TEST_F(AmpCommand, AFunctionThatOnlyFlushesIsPassedOver) {
  std::ofstream(path("keep.cc")) << R"(
#include <fcntl.h>
#include <perdure/lab.h>
#include <sys/mman.h>
#include <unistd.h>
[[gnu::noinline]] void make_safe(void* at) {
  asm volatile("clflush %0; sfence" : "+m"(*static_cast<volatile char*>(at)));
}
[[gnu::noinline]] void keep(long* at) {
  *at = 1;
  make_safe(at);
}
int main(int, char** arguments) {
  const int file = open(arguments[1], O_RDWR | O_CREAT, 0600);
  if (ftruncate(file, 4096) != 0) return 1;
  auto* words = static_cast<long*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  perdure_lab_mark_region(words, 4096, arguments[1]);
  perdure_lab_begin("insert", 8);
  keep(words);
  perdure_lab_end();
}
)";
  const auto compiler =
      std::filesystem::path(PERDURE_NAIVE_TABLE).parent_path().parent_path().parent_path() /
      "perdure-c++";
  const std::string built = fmt::format("'{}' -O2 -std=c++17 '{}' -o '{}'", compiler.string(),
                                        path("keep.cc"), path("keep"));
  ASSERT_EQ(std::system(built.c_str()), 0) << built;
  const Result counted =
      run({"amp", "--program", path("keep"), "--json", "--", path("keep.words")});
  ASSERT_EQ(counted.code, 0) << counted.err;
  uint64_t flushes = 0;
  const json result = counted.json()["results"][0];
  for (const json& site : result["sites"]) {
    if (site["flushes"] == 0) continue;
    EXPECT_EQ(site["function"], "keep") << site;
    flushes += site["flushes"].get<uint64_t>();
  }
  EXPECT_EQ(flushes, 1U);
}

TEST_F(AmpCommand, PassesOnAProgramsExitCodeAndSaysWhatIsWrong) {
  EXPECT_EQ(run({"amp", "--program", PERDURE_NAIVE_TABLE}).code, 2);
  const Result foreign = run({"amp", "--program", "/bin/true"});
  EXPECT_EQ(foreign.code, 2);
  EXPECT_NE(foreign.err.find("perdure-c++"), std::string::npos) << foreign.err;
  const Result absent = run({"amp", "--program", path("no-such-program")});
  EXPECT_EQ(absent.code, 4);
  EXPECT_NE(absent.err.find("no-such-program"), std::string::npos) << absent.err;
}
#endif

TEST_F(CommandTest, WithoutInstrumentsTheCommandSaysSo) {
  const std::string alone = path("perdure");
  std::filesystem::copy_file(command_path(), alone);
  const Result result = shell(alone + " amp plush");
  EXPECT_EQ(result.code, 4);
  EXPECT_NE(result.err.find("this build has no instruments"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace perdure::cli_test
