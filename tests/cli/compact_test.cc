// What `perdure pool compact` makes of files: its copy, whose it is, and what else is there.
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class CompactFiles : public CommandTest {
 protected:
  void load(int count = 100) const {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += "key" + std::to_string(i) + "\t" + std::string(200, 'v') + "\n";
    ASSERT_EQ(run({"load", "--capacity", "64M", pool(), "-"}, lines).code, 0);
  }
  // What the copy of the pool is called.
  std::string copy() const {
    return pool() + "." +
           run({"pool", "info", "--json", pool()}).json()["uuid"].get<std::string>() +
           ".compacting";
  }
  std::vector<std::string> beside() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("test.pool.")) names.push_back(name);
    }
    return names;
  }
  struct stat status() const {
    struct stat status{};
    EXPECT_EQ(::stat(pool().c_str(), &status), 0);
    return status;
  }
};

// Stopped while the copy and the file of a store are there.
TEST_F(CompactFiles, AreNobodyElsesToReadAndGoWithTheNextCallAfterAKill) {
  ASSERT_NO_FATAL_FAILURE(load(60'000));
  std::filesystem::permissions(pool(), std::filesystem::perms(0664));
  size_t caught = 0;
  for (int round = 0; round < 20 && caught == 0; ++round) {
    shell("umask 0; $PERDURE pool compact " + pool() + " & " +
          "while kill -0 $! 2> /dev/null; do for f in " + pool() +
          ".*store*; do [ -e $f ] && break 2; done; done; kill -KILL $!; wait $!; " +
          until_closed(pool()));
    for (const std::string& name : beside()) {
      if (name.find("store") != std::string::npos) ++caught;
      EXPECT_EQ(std::filesystem::status(path(name)).permissions(), std::filesystem::perms(0600))
          << name;
    }
  }
  ASSERT_GT(caught, 0U);
  EXPECT_EQ(run({"pool", "compact", pool()}).code, 0);
  EXPECT_EQ(beside(), std::vector<std::string>());
  EXPECT_EQ(run({"count", pool()}).out, "60000\n");
  EXPECT_EQ(status().st_mode & 07777, 0664U);
}

// A default ACL of the folder comes in place of the umask, and would come into force with the
// pool's mode.
TEST_F(CompactFiles, KeepTheAclOfThePoolWhateverTheFolderSays) {
  struct Entry {
    uint16_t tag, permissions;
    uint32_t id;
  };
  struct Acl {
    uint32_t version = 2;
    Entry entries[6];  // in this order: owner, a user, group, a group, mask, others
  };
  const auto acl = [](uint16_t user, uint16_t mask) {
    constexpr uint32_t kNobody = ~uint32_t{0};
    return Acl{.entries = {{0x01, 6, kNobody},
                           {0x02, user, 4711},
                           {0x04, 6, kNobody},
                           {0x08, user, 4711},
                           {0x10, mask, kNobody},
                           {0x20, 0, kNobody}}};
  };
  ASSERT_NO_FATAL_FAILURE(load(60'000));
  std::filesystem::permissions(pool(), std::filesystem::perms(0660));
  const Acl of_folder = acl(7, 7);
  if (::setxattr(folder().c_str(), "system.posix_acl_default", &of_folder, sizeof of_folder, 0) !=
      0)
    GTEST_SKIP() << "the file system of temporary files has no ACLs";
  const auto acl_of = [](const std::string& file) {
    char bytes[256];
    const ssize_t got = ::getxattr(file.c_str(), "system.posix_acl_access", bytes, sizeof bytes);
    return got < 0 ? std::string() : std::string(bytes, static_cast<size_t>(got));
  };
  // While it is made nobody but its maker may read it.
  size_t caught = 0;
  for (int round = 0; round < 20 && caught == 0; ++round) {
    shell("$PERDURE pool compact " + pool() + " & " +
          "while kill -0 $! 2> /dev/null; do for f in " + pool() +
          ".*store*; do [ -e $f ] && break 2; done; done; kill -KILL $!; wait $!; " +
          until_closed(pool()));
    for (const std::string& name : beside()) {
      ++caught;
      EXPECT_EQ(std::filesystem::status(path(name)).permissions(), std::filesystem::perms(0600))
          << name;
    }
  }
  ASSERT_GT(caught, 0U);
  ASSERT_EQ(run({"pool", "compact", pool()}).code, 0);
  EXPECT_EQ(acl_of(pool()), "");
  EXPECT_EQ(status().st_mode & 07777, 0660U);
  // And one of its own stays.
  const Acl of_pool = acl(4, 4);
  ASSERT_EQ(::setxattr(pool().c_str(), "system.posix_acl_access", &of_pool, sizeof of_pool, 0), 0);
  ASSERT_EQ(run({"pool", "compact", pool()}).code, 0);
  EXPECT_EQ(acl_of(pool()), std::string(reinterpret_cast<const char*>(&of_pool), sizeof of_pool));
  EXPECT_EQ(run({"count", pool()}).out, "60000\n");
}

TEST_F(CompactFiles, APoolStaysItsOwners) {
  const std::string without = "setpriv --bounding-set=-chown ";
  if (::geteuid() != 0 || shell(without + "true").code != 0)
    GTEST_SKIP() << "needs root, which can do without a capability";
  ASSERT_NO_FATAL_FAILURE(load());
  for (const auto& [uid, gid, what] :
       {std::tuple(1000U, 0U, "owner is 1000"), std::tuple(0U, 100U, "group is 100")}) {
    ASSERT_EQ(::chown(pool().c_str(), uid, gid), 0);
    const Result refused = shell(without + "$PERDURE pool compact " + pool());
    EXPECT_EQ(refused.code, 4);
    EXPECT_NE(refused.err.find(what), std::string::npos) << refused.err;
    EXPECT_EQ(status().st_uid, uid);
    EXPECT_EQ(status().st_gid, gid);
    EXPECT_EQ(beside(), std::vector<std::string>());
    EXPECT_EQ(run({"pool", "compact", pool()}).code, 0);
    EXPECT_EQ(status().st_uid, uid);
    EXPECT_EQ(status().st_gid, gid);
  }
  EXPECT_EQ(run({"count", pool()}).out, "100\n");
}

TEST_F(CompactFiles, APoolOfAUsersOwnBesideItStays) {
  ASSERT_NO_FATAL_FAILURE(load());
  const std::string own = pool() + ".compacting";
  ASSERT_EQ(run({"put", "--capacity", "16M", own, "precious", "1"}).code, 0);
  write_file("test.pool.compacting.store", "somebody's notes");
  EXPECT_EQ(run({"pool", "compact", pool()}).code, 0);
  EXPECT_EQ(run({"get", own, "precious"}).out, "1\n");
  EXPECT_EQ(read_file("test.pool.compacting.store"), "somebody's notes");
  EXPECT_EQ(run({"count", pool()}).out, "100\n");
}

TEST_F(CompactFiles, WhatHasTheCopysNameIsRemovedUnlessItIsInUse) {
  ASSERT_NO_FATAL_FAILURE(load());
  // Killed before it had written anything.
  std::string name = copy();
  ASSERT_EQ(shell(": > " + name).code, 0);
  EXPECT_EQ(run({"pool", "compact", pool()}).code, 0);
  EXPECT_EQ(beside(), std::vector<std::string>());
  name = copy();
  ASSERT_TRUE(std::filesystem::create_directory(name));
  const Result folder_there = run({"pool", "compact", pool()});
  EXPECT_EQ(folder_there.code, 4);
  EXPECT_NE(folder_there.err.find("no regular file"), std::string::npos) << folder_there.err;
  std::filesystem::remove(name);
  ASSERT_EQ(run({"put", "--capacity", "16M", name, "precious", "1"}).code, 0);
  const std::string fifo = path("fifo");
  // It maps the file when it has locked it; commands that look at it meanwhile might keep it from
  // that.
  const Result in_use =
      shell("mkfifo " + fifo + "; $PERDURE load --name b " + name + " - < " + fifo +
            " > /dev/null & exec 3> " + fifo + "; printf 'x\\ty\\n' >&3; n=0; until grep -q " +
            name + " /proc/$!/maps || [ $n -gt 1000 ]; do n=$((n+1)); sleep 0.01; done; " +
            "$PERDURE pool compact " + pool() + "; echo $?; exec 3>&-; wait");
  EXPECT_EQ(in_use.out, "4\n") << in_use.err;
  EXPECT_NE(in_use.err.find("open to write"), std::string::npos) << in_use.err;
  EXPECT_EQ(run({"get", name, "precious"}).out, "1\n");
}

TEST_F(CompactFiles, AFileOfTwoNamesIsRefused) {
  ASSERT_NO_FATAL_FAILURE(load());
  std::filesystem::create_hard_link(pool(), path("other.pool"));
  const Result refused = run({"pool", "compact", pool()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("hard links"), std::string::npos) << refused.err;
  EXPECT_TRUE(std::filesystem::equivalent(pool(), path("other.pool")));
  EXPECT_EQ(beside(), std::vector<std::string>());
}

// The copy is another database: its archive is not the old one's.
TEST_F(CompactFiles, ADatabaseBeginsANewArchive) {
  const auto put = [&](const char* archive, const char* key) {
    return run({"db", "put", "--archive", path(archive), pool(), key, "value"});
  };
  ASSERT_EQ(
      run({"db", "create", "--capacity", "64M", "--log", "1M", "--archive", path("old"), pool()})
          .code,
      0);
  ASSERT_EQ(put("old", "a").code, 0);
  const Result done = run({"pool", "compact", "--json", pool()});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.json()["structures"][0]["records"].get<int>(), 1);
  EXPECT_EQ(put("old", "b").code, 2);
  EXPECT_EQ(put("new", "b").code, 0);
  EXPECT_EQ(run({"db", "dump", "--archive", path("new"), pool()}).out, "a\tvalue\nb\tvalue\n");
  EXPECT_NE(run({"pool", "compact", "--help"}).out.find("--archive"), std::string::npos);
}

}  // namespace
}  // namespace perdure::cli_test
