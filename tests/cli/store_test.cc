// perdure store: what it prints and how it ends.
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class StoreCommand : public CommandTest {};

TEST_F(StoreCommand, CheckNamesTheDamagedRecord) {
  ASSERT_EQ(run({"load", pool(), "--capacity", "32M"}, "alice\tfirst\nbob\tsecond\n").code, 0);
  const Result sound = run({"store", "check", pool()});
  EXPECT_EQ(sound.code, 0) << sound.out;
  EXPECT_NE(sound.out.find("sound"), std::string::npos) << sound.out;
  EXPECT_EQ(run({"store", "stat", pool(), "--json"}).json()["statistics"]["records"]["value"], 2);
  std::string image = read_file("test.pool");
  const size_t at = image.find("second");
  ASSERT_NE(at, std::string::npos);
  image[at] ^= 1;
  write_file("test.pool", image);
  const Result damaged = run({"store", "check", pool(), "--json"});
  EXPECT_EQ(damaged.code, 3);
  EXPECT_EQ(damaged.json()["sound"], false);
}

TEST_F(StoreCommand, BackupsRestore) {
  ASSERT_EQ(run({"load", pool(), "--capacity", "32M"}, "alice\tfirst\nbob\tsecond\n").code, 0);
  const std::string monday = path("monday");
  const std::string tuesday = path("tuesday");
  const Result whole = run({"store", "backup", pool(), monday, "--consumer", "nightly", "--json"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.json()["entries"], 2);
  ASSERT_EQ(run({"put", pool(), "carol", "third"}).code, 0);
  ASSERT_EQ(run({"del", pool(), "alice"}).code, 0);
  const Result since = run(
      {"store", "backup", pool(), tuesday, "--since", monday, "--consumer", "nightly", "--json"});
  EXPECT_EQ(since.code, 0) << since.err;
  EXPECT_EQ(since.json()["entries"], 2);
  const std::string again = path("again.pool");
  EXPECT_EQ(run({"store", "restore", again, monday, tuesday, "--capacity", "32M"}).code, 0);
  const std::string dumped = run({"dump", again}).out;
  EXPECT_NE(dumped.find("bob\tsecond\n"), std::string::npos);
  EXPECT_NE(dumped.find("carol\tthird\n"), std::string::npos);
  EXPECT_EQ(dumped.find("alice"), std::string::npos);
  EXPECT_EQ(run({"store", "check", again}).code, 0);
  EXPECT_EQ(run({"store", "restore", again, monday}).code, 4);  // it is there
  EXPECT_EQ(run({"store", "restore", path("b.pool"), tuesday}).code, 2);
  EXPECT_EQ(run({"get", path("b.pool"), "bob"}).code, 4);
}

TEST_F(StoreCommand, ABackupDestroysNothing) {
  ASSERT_EQ(run({"load", pool(), "--capacity", "32M"}, "alice\tfirst\nbob\tsecond\n").code, 0);
  const Result self = run({"store", "backup", pool(), pool()});
  EXPECT_NE(self.code, 0);
  EXPECT_NE(self.err.find("no backup"), std::string::npos) << self.err;
  EXPECT_EQ(run({"store", "check", pool()}).code, 0);
  const std::string monday = path("monday");
  ASSERT_EQ(run({"store", "backup", pool(), monday}).code, 0);
  EXPECT_NE(run({"store", "backup", pool(), monday, "--since", monday}).code, 0);
  EXPECT_EQ(run({"store", "restore", path("again.pool"), monday}).code, 0);
}

TEST_F(StoreCommand, AnOlderFormatIsNoDamage) {
  ASSERT_EQ(run({"load", pool(), "--capacity", "32M"}, "alice\tfirst\n").code, 0);
  std::string image = read_file("test.pool");
  const size_t at = image.find("PrStore3");
  ASSERT_NE(at, std::string::npos);
  image[at + 7] = '1';
  write_file("test.pool", image);
  const Result result = run({"store", "stat", pool()});
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("earlier version"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("damaged"), std::string::npos) << result.err;
}

TEST_F(StoreCommand, OtherStructuresAreNamed) {
  ASSERT_EQ(run({"put", pool(), "--structure", "plush", "a", "1"}).code, 0);
  const Result result = run({"store", "check", pool()});
  EXPECT_EQ(result.code, 4);
  EXPECT_NE(result.err.find("plush"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace perdure::cli_test
