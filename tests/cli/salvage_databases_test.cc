// Which page file is whose when `perdure pool salvage` saves databases, and what it makes.
#include <fmt/core.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class SalvageDatabases : public CommandTest {
 protected:
  static constexpr int kRecords = 2000;

  static std::string lines_of(const std::string& name) {
    std::string lines;
    for (int i = 0; i < kRecords; ++i)
      lines += name + std::to_string(10'000 + i) + "\tof " + name + "\n";
    return lines;
  }
  void make(const std::string& name, const std::string& page_bytes = "4096") const {
    ASSERT_EQ(run({"db", "create", "--capacity", "64M", "--name", name, "--pages", pages(name),
                   "--page-bytes", page_bytes, "--log", "1M", pool()})
                  .code,
              0);
    ASSERT_EQ(
        run({"db", "load", "--name", name, "--pages", pages(name), pool()}, lines_of(name)).code,
        0);
  }
  std::string pages(const std::string& name) const { return path(name + ".pages"); }
  void damage_page_0(const std::string& name) const {
    std::string content = read_file(name + ".pages");
    for (size_t at = 0; at < 256; ++at) content[at] = static_cast<char>(content[at] ^ 0x5a);
    write_file(name + ".pages", content);
  }
  // Of the files of these databases.
  nlohmann::json salvage(const std::vector<std::string>& names, int code) const {
    shell("rm -f " + path("saved.pool*"));
    std::vector<std::string> arguments = {"pool", "salvage", "--json"};
    for (const std::string& name : names) {
      arguments.emplace_back("--pages");
      arguments.push_back(pages(name));
    }
    arguments.push_back(pool());
    arguments.push_back(path("saved.pool"));
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code) << result.err << result.out;
    return result.out.empty() ? nlohmann::json() : result.json();
  }
  static nlohmann::json of(const nlohmann::json& report, const std::string& name) {
    for (const nlohmann::json& one : report["structures"]) {
      if (one["name"] == name) return one;
    }
    return {};
  }
  std::string dump(const nlohmann::json& one) const {
    return run({"db", "dump", "--name", one["name"].get<std::string>(), "--pages",
                one["pages"].get<std::string>(), path("saved.pool")})
        .out;
  }
};

TEST_F(SalvageDatabases, NoneGetsTheRecordsOfAnother) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  ASSERT_NO_FATAL_FAILURE(make("b"));
  for (const std::vector<std::string>& order :
       std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "a"}}) {
    const nlohmann::json report = salvage(order, 0);
    for (const char* name : {"a", "b"}) EXPECT_EQ(dump(of(report, name)), lines_of(name));
  }
  damage_page_0("a");
  for (const std::vector<std::string>& order :
       std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "a"}}) {
    const nlohmann::json report = salvage(order, 3);
    EXPECT_EQ(dump(of(report, "b")), lines_of("b"));
    EXPECT_TRUE(of(report, "b")["complete"].get<bool>());
    // By exclusion, and it says so.
    EXPECT_EQ(dump(of(report, "a")), lines_of("a"));
    EXPECT_FALSE(of(report, "a")["complete"].get<bool>());
    EXPECT_NE(of(report, "a").dump().find("page 0 is damaged"), std::string::npos)
        << report.dump(2);
  }
  // Whose it is cannot be told.
  nlohmann::json report = salvage({"a"}, 3);
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(of(report, name)["records"].get<int>(), 0) << name;
    EXPECT_FALSE(of(report, name)["complete"].get<bool>()) << name;
    EXPECT_FALSE(of(report, name).contains("pages")) << name;
  }
  // The other one's own, alone.
  report = salvage({"b"}, 3);
  EXPECT_EQ(of(report, "a")["records"].get<int>(), 0);
  EXPECT_EQ(dump(of(report, "b")), lines_of("b"));
  damage_page_0("b");
  report = salvage({"a", "b"}, 3);
  for (const char* name : {"a", "b"}) EXPECT_EQ(of(report, name)["records"].get<int>(), 0) << name;
}

TEST_F(SalvageDatabases, AFileOfOtherPagesIsNobodys) {
  ASSERT_NO_FATAL_FAILURE(make("a", "4096"));
  ASSERT_NO_FATAL_FAILURE(make("b", "16384"));
  for (const std::vector<std::string>& order :
       std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "a"}}) {
    const nlohmann::json report = salvage(order, 0);
    for (const char* name : {"a", "b"}) EXPECT_EQ(dump(of(report, name)), lines_of(name));
  }
  damage_page_0("a");
  std::filesystem::remove(pages("b"));
  std::filesystem::copy(pages("a"), path("c.pages"));
  ASSERT_EQ(run({"drop", pool(), "a"}).code, 0);
  const nlohmann::json report = salvage({"c"}, 3);
  EXPECT_EQ(of(report, "b")["records"].get<int>(), 0);
  EXPECT_FALSE(of(report, "b").contains("pages")) << report.dump(2);
}

TEST_F(SalvageDatabases, AFileThatIsMissingIsSaidAtOnce) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  salvage({"none"}, 4);
  EXPECT_FALSE(std::filesystem::exists(path("saved.pool")));
}

TEST_F(SalvageDatabases, NamesThatComeToTheSameHaveFilesOfTheirOwn) {
  ASSERT_NO_FATAL_FAILURE(make("x y"));
  ASSERT_NO_FATAL_FAILURE(make("x_y"));
  const nlohmann::json report = salvage({"x y", "x_y"}, 0);
  EXPECT_NE(of(report, "x y")["pages"], of(report, "x_y")["pages"]);
  for (const char* name : {"x y", "x_y"}) EXPECT_EQ(dump(of(report, name)), lines_of(name));
}

TEST_F(SalvageDatabases, AFileThatIsThereIsInTheWay) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  write_file("saved.pool.a.pages", "what a killed salvage left");
  const Result result = run({"pool", "salvage", "--pages", pages("a"), pool(), path("saved.pool")});
  EXPECT_EQ(result.code, 4) << result.out;
  EXPECT_NE(result.err.find("saved.pool.a.pages is there already"), std::string::npos)
      << result.err;
  EXPECT_EQ(read_file("saved.pool.a.pages"), "what a killed salvage left");
  EXPECT_FALSE(std::filesystem::exists(path("saved.pool")));
}

TEST_F(SalvageDatabases, ALostRangeMayBeAnyNumberOfRecords) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  std::string content = read_file("a.pages");
  const size_t at = content.find("of a", content.size() / 2);
  ASSERT_NE(at, std::string::npos);
  content[at] = static_cast<char>(content[at] ^ 1);
  write_file("a.pages", content);
  const nlohmann::json report = salvage({"a"}, 3);
  EXPECT_FALSE(of(report, "a")["complete"].get<bool>()) << report.dump(2);
  EXPECT_GT(of(report, "a")["records"].get<int>(), kRecords / 2);
}

// Leaves below an inner page that is lost say nothing of their tree, and are found all the same.
class SalvageBelowALostPage : public SalvageDatabases {
 protected:
  static std::string numbers(int from, int to, const std::string& value) {
    std::string lines;
    for (int i = from; i < to; ++i) lines += std::to_string(100'000 + i) + "\t" + value + "\n";
    return lines;
  }
  void load(const std::string& tree, const std::string& lines) const {
    ASSERT_EQ(
        run({"db", "load", "--name", "a", "--tree", tree, "--pages", pages("a"), pool()}, lines)
            .code,
        0);
  }
  static constexpr size_t kPageBytes = 4096;
  // Whether the page at this place of the file is a node of the level.
  static bool is_node(const std::string& content, size_t page, unsigned level) {
    constexpr unsigned kNode = 2;
    return word16(content, page + 16) == kNode && word16(content, body_of(content, page)) == level;
  }
  static unsigned word16(const std::string& content, size_t at) {
    return static_cast<unsigned char>(content[at]) +
           256U * static_cast<unsigned char>(content[at + 1]);
  }
  static size_t body_of(const std::string& content, size_t page) {
    return page + (32 + 4 * word16(content, page + 18) + 7) / 8 * 8;
  }
  // Damages every `step`th node of the level, as far as there are some. Returns how many.
  int damage_nodes(unsigned level, int first, int step) const {
    std::string content = read_file("a.pages");
    int seen = 0;
    int damaged = 0;
    for (size_t page = 2 * kPageBytes; page < content.size(); page += kPageBytes) {
      if (!is_node(content, page, level)) continue;
      if (seen++ < first || (seen - 1 - first) % step != 0) continue;
      char& byte = content[body_of(content, page) + 40];
      byte = static_cast<char>(byte ^ 1);
      ++damaged;
    }
    write_file("a.pages", content);
    return damaged;
  }
  std::string dump_tree(const nlohmann::json& report, const std::string& tree) const {
    return run({"db", "dump", "--name", "a", "--tree", tree, "--pages",
                of(report, "a")["pages"].get<std::string>(), path("saved.pool")})
        .out;
  }
};

TEST_F(SalvageBelowALostPage, AllLeavesOfALostRootAreFound) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  ASSERT_EQ(damage_nodes(1, 0, 1), 1);
  const nlohmann::json report = salvage({"a"}, 3);
  EXPECT_EQ(of(report, "a")["records"], kRecords) << report.dump(2);
  EXPECT_FALSE(of(report, "a")["complete"].get<bool>());
  EXPECT_NE(report.dump().find("2000 of them were found"), std::string::npos) << report.dump(2);
  EXPECT_EQ(dump(of(report, "a")), lines_of("a"));
}

TEST_F(SalvageBelowALostPage, OfAllInnerPagesOfALevelAndOfALeaf) {
  constexpr int kMany = 40'000;
  ASSERT_NO_FATAL_FAILURE(make("a"));
  ASSERT_NO_FATAL_FAILURE(load("many", numbers(0, kMany, "of many")));
  ASSERT_GT(damage_nodes(1, 1, 1), 1);  // but for the root of the other tree
  ASSERT_EQ(dump_tree(salvage({"a"}, 3), "many"), numbers(0, kMany, "of many"));
  ASSERT_EQ(damage_nodes(0, 30, 1'000'000), 1);
  const nlohmann::json report = salvage({"a"}, 3);
  EXPECT_GT(of(report, "a")["records"], kRecords + kMany - 300) << report.dump(2);
  EXPECT_LT(of(report, "a")["records"], kRecords + kMany);
}

TEST_F(SalvageBelowALostPage, NoTreeGetsTheRecordsOfAnother) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  ASSERT_NO_FATAL_FAILURE(load("other", numbers(0, 3000, "of other")));
  ASSERT_NO_FATAL_FAILURE(load("third", numbers(0, 3000, "of third")));
  ASSERT_EQ(damage_nodes(1, 1, 1'000'000), 1);  // the root of one of them
  const nlohmann::json one = salvage({"a"}, 3);
  EXPECT_EQ(dump_tree(one, "main"), lines_of("a"));
  EXPECT_EQ(dump_tree(one, "other"), numbers(0, 3000, "of other"));
  EXPECT_EQ(dump_tree(one, "third"), numbers(0, 3000, "of third"));
  ASSERT_EQ(damage_nodes(1, 2, 1'000'000),
            1);  // and of another: whose the leaves are nobody can say
  const nlohmann::json two = salvage({"a"}, 3);
  EXPECT_EQ(of(two, "a")["records"], kRecords) << two.dump(2);
  EXPECT_NE(two.dump().find("nobody can say which"), std::string::npos) << two.dump(2);
  EXPECT_EQ(dump_tree(two, "main"), lines_of("a"));
}

// The device has lost what was written to a leaf since it was split: what has been removed from its
// right half since then stays so.
TEST_F(SalvageBelowALostPage, WhatALeafHadBeforeItWasSplitDoesNotComeBack) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  const std::string old = read_file("a.pages");
  std::string more;
  for (int i = 10'500; i < 10'600; ++i) more += fmt::format("a{}x\t{:100}\n", i, "v");
  ASSERT_NO_FATAL_FAILURE(load("main", more));
  for (int i = 10'580; i < 10'590; ++i) {
    const Result result =
        run({"db", "del", "--name", "a", "--pages", pages("a"), pool(), fmt::format("a{}", i)});
    ASSERT_EQ(result.code, 0) << result.err;
  }
  std::string content = read_file("a.pages");
  size_t page = 2 * kPageBytes;
  while (!is_node(old, page, 0) || content.compare(page, kPageBytes, old, page, kPageBytes) == 0) {
    page += kPageBytes;
    ASSERT_LT(page, old.size());
  }
  content.replace(page, kPageBytes, old, page, kPageBytes);
  write_file("a.pages", content);
  const nlohmann::json report = salvage({"a"}, 3);
  EXPECT_NE(report.dump().find("belong elsewhere"), std::string::npos) << report.dump(2);
  EXPECT_LT(of(report, "a")["records"], kRecords + 100 - 10);
  const std::string saved = dump(of(report, "a"));
  EXPECT_NE(saved.find("a10579\t"), std::string::npos);
  EXPECT_EQ(saved.find("a10580\t"), std::string::npos);
}

#ifdef PERDURE_FAILING_READS
// All is saved, and then the name of the new pool is taken.
TEST_F(SalvageDatabases, AFailedRunLeavesNoPages) {
  ASSERT_NO_FATAL_FAILURE(make("a"));
  const Result result =
      shell("LD_PRELOAD=" PERDURE_FAILING_READS " PERDURE_READS_HANG=" + path("hangs") +
            " $PERDURE pool salvage --pages " + pages("a") + " " + pool() + " " +
            path("saved.pool") + " & salvage=$!; until [ -e " + path("hangs") +
            " ]; do sleep 0.01; done; echo mine > " + path("saved.pool") +
            "; kill -KILL $(cat /proc/$salvage/task/$salvage/children); wait $salvage");
  EXPECT_EQ(result.code, 4) << result.out << result.err;
  EXPECT_EQ(read_file("saved.pool"), "mine\n");
  EXPECT_FALSE(std::filesystem::exists(path("saved.pool.a.pages")));
}
#endif

}  // namespace
}  // namespace perdure::cli_test
