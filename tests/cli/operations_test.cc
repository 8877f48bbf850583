// What people who keep pools do with them: drop, rename, back up, restore.
#include <filesystem>
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Operations : public CommandTest {
 protected:
  // Structure `name` with `count` records.
  void load(const std::string& name, int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += "key" + std::to_string(i) + "\t" + name + "\n";
    ASSERT_EQ(run({"load", "--capacity", "64M", "--name", name, pool(), "-"}, lines).code, 0);
  }
  uint64_t allocated() const {
    return run({"pool", "info", "--json", pool()}).json()["allocated_bytes"].get<uint64_t>();
  }
  std::string count_of(const std::string& pool_file, const std::string& name) const {
    return run({"count", "--name", name, pool_file}).out;
  }
};

TEST_F(Operations, DropRemovesAStructureAndWhatItsLoadNoted) {
  load("a", 5000);
  const uint64_t before = allocated();
  load("b", 5000);
  const Result dropped = run({"drop", "--json", pool(), "b"});
  EXPECT_EQ(dropped.code, 0) << dropped.err;
  EXPECT_EQ(dropped.json()["dropped"][0]["structure"], "b");
  EXPECT_GT(dropped.json()["dropped"][0]["freed_bytes"].get<uint64_t>(), 10'000U);
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(count_of(pool(), "a"), "5000\n");
  EXPECT_EQ(run({"count", "--name", "b", pool()}).code, 4);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_F(Operations, DropOfANameThatIsNotThereDropsNothing) {
  load("a", 10);
  const Result dropped = run({"drop", pool(), "a", "nothing"});
  EXPECT_EQ(dropped.code, 4);
  EXPECT_NE(dropped.err.find("'nothing'"), std::string::npos) << dropped.err;
  EXPECT_EQ(count_of(pool(), "a"), "10\n");
}

TEST_F(Operations, RenameKeepsRecordsAndResumes) {
  load("a", 100);
  load("taken", 1);
  EXPECT_EQ(run({"rename", pool(), "a", "taken"}).code, 4);
  EXPECT_EQ(run({"rename", pool(), "a", "b"}).code, 0);
  EXPECT_EQ(count_of(pool(), "b"), "100\n");
  EXPECT_EQ(run({"count", "--name", "a", pool()}).code, 4);
  EXPECT_EQ(count_of(pool(), "b.progress").empty(), false);
}

TEST_F(Operations, ABackupBringsThePoolBack) {
  load("a", 3000);
  const std::string full = path("full.backup");
  const Result backup = run({"pool", "backup", "--json", pool(), full});
  ASSERT_EQ(backup.code, 0) << backup.err;
  load("b", 50);
  const std::string next = path("next.backup");
  const Result second = run({"pool", "backup", "--json", "--base", full, pool(), next});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_LT(second.json()["written_bytes"].get<uint64_t>(),
            second.json()["copied_bytes"].get<uint64_t>());
  std::filesystem::remove(pool());

  const Result restored = run({"pool", "restore", next, pool()});
  ASSERT_EQ(restored.code, 0) << restored.err;
  EXPECT_EQ(count_of(pool(), "a"), "3000\n");
  EXPECT_EQ(count_of(pool(), "b"), "50\n");
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"pool", "restore", next, pool()}).code, 4);  // is there already

  // Elsewhere, with what it rests on under another name.
  std::filesystem::rename(full, path("moved.backup"));
  const std::string other = path("other.pool");
  EXPECT_EQ(run({"pool", "restore", next, other}).code, 4);
  EXPECT_EQ(run({"pool", "restore", "--base", path("moved.backup"), next, other}).code, 0);
  EXPECT_EQ(count_of(other, "b"), "50\n");
}

TEST_F(Operations, ADamagedBackupIsRefused) {
  load("a", 3000);
  const std::string file = path("pool.backup");
  ASSERT_EQ(run({"pool", "backup", pool(), file}).code, 0);
  const std::string sound = read_file("pool.backup");
  std::string damaged = sound;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
  write_file("pool.backup", damaged);
  const Result changed = run({"pool", "restore", file, path("copy.pool")});
  EXPECT_EQ(changed.code, 3) << changed.out;
  EXPECT_NE(changed.err.find("pool.backup"), std::string::npos) << changed.err;
  EXPECT_FALSE(std::filesystem::exists(path("copy.pool")));
  write_file("pool.backup", sound.substr(0, sound.size() - 1));
  EXPECT_EQ(run({"pool", "restore", file, path("copy.pool")}).code, 3);
  EXPECT_EQ(run({"pool", "restore", pool(), path("copy.pool")}).code, 4);  // no backup at all
}

}  // namespace
}  // namespace perdure::cli_test
