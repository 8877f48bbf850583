// A log in a file: what is refused, what a failing file does, and that commits share its syncs.
// (Power failures and kills of it are in power_test.cc.)
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "buffer/engine.h"
#include "buffer/fixture.h"
#include "buffer/layout.h"
#include "buffer/log_shadow.h"
#include "pm/layout.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

class LogFileTest : public testing::Test {
 protected:
  std::string path() const { return folder_.file("pool"); }
  std::string log_path() const { return folder_.file("log"); }
  DatabaseOptions options() const {
    DatabaseOptions options = small_database();
    options.log_file = log_path();
    return options;
  }
  static void put(Database& database, const std::string& key, const std::string& value) {
    const Tree tree = database.tree("t");
    database.transact([&](Transaction& one) { one.put(tree, key, value); });
  }
  static std::optional<std::string> get(Database& database, const std::string& key) {
    return database.begin().get(database.tree("t"), key);
  }
  // A pool and a log as a process that was killed has left them, with commits "1" to "9" in the log
  // only.
  void make_killed() {
    std::string pool_left;
    std::string log_left;
    {
      Pool pool = Pool::create(path(), small_pool());
      Database database = Database::create(pool, "d", options());
      put(database, "x", "0");
      database.checkpoint();
      before_ = read_file(log_path());
      for (char n = '1'; n <= '9'; ++n) put(database, "x", std::string(1, n));
      pool_left = read_file(path());
      log_left = read_file(log_path());
    }
    write_file(path(), pool_left);
    write_file(log_path(), log_left);
    log_left_ = log_left;
  }
  testing::AssertionResult is_refused(ErrorCode code, const std::string& word) const {
    const std::string kept = read_file(log_path());
    Pool pool = Pool::open(path(), small_pool());
    testing::AssertionResult result =
        fails_with(code, word, [&] { Database::open(pool, "d", options()); });
    if (result && read_file(log_path()) != kept) {
      return testing::AssertionFailure() << "the file was changed";
    }
    return result;
  }
  // Where the root of the only database is in the content of a pool.
  static size_t root_at(const std::string& content, uint64_t magic) {
    for (size_t at = 0; at + sizeof(buffer::Root) <= content.size(); at += 64) {
      buffer::Root root;
      std::memcpy(&root, content.data() + at, sizeof root);
      if (root.seal.magic == magic && root.log_in_file <= 1) return at;
    }
    ADD_FAILURE() << "no database";
    return 0;
  }
  // What a salvage reads of the pool, and what it says that is lost.
  std::pair<Records, std::string> salvage(const std::vector<std::string>& log_files) const {
    PoolOptions lenient;
    lenient.read_only = true;
    lenient.lenient = true;
    Pool pool = Pool::open(path(), lenient);
    const auto engine = buffer::Engine::open_damaged(pm::impl_of(pool), "d", "", log_files);
    Records records;
    std::string lost;
    engine->salvage(
        [](std::string_view) {},
        [&](std::string_view key, std::string_view value) { records.emplace(key, value); },
        [&](buffer::Loss, const std::string& sentence) { lost += sentence + ". "; });
    return {records, lost};
  }
  void expect_all() const {
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    EXPECT_EQ(get(database, "x"), "9");
    expect_sound(database);
  }

  TempDir folder_;
  std::string before_;    // the log when the commits were not there yet
  std::string log_left_;  // and with all of them
};

TEST_F(LogFileTest, TakesNoRoomInThePool) {
  Pool pool = Pool::create(path(), small_pool());
  DatabaseOptions large = options();
  large.log_bytes = uint64_t{32} << 20;  // more than the pool's capacity
  Database database = Database::create(pool, "d", large);
  put(database, "x", "1");
  EXPECT_EQ(get(database, "x"), "1");
  EXPECT_EQ(statistic(database, "log_files"), 1);
  EXPECT_EQ(statistic(database, "log_bytes"), 32 << 20);
  struct stat status{};
  ASSERT_EQ(::stat(log_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_size, (32 << 20) + 4096);
  EXPECT_GE(status.st_blocks * 512, 32 << 20);  // it cannot run out of room
  const Pool other = Pool::anonymous(small_pool());
  EXPECT_EQ(
      statistic(Database::create(const_cast<Pool&>(other), "d", small_database()), "log_files"), 0);
}

TEST_F(LogFileTest, AFileThatIsNotItsOwnIsRefusedAndKept) {
  make_killed();
  std::filesystem::rename(log_path(), folder_.file("away"));
  {
    Pool pool = Pool::open(path(), small_pool());
    EXPECT_TRUE(fails_with(ErrorCode::kNotFound, "log file",
                           [&] { Database::open(pool, "d", options()); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "the log of 'd' is in a file",
                           [&] { Database::open(pool, "d", small_database()); }));
    DatabaseOptions small = small_database();
    small.pages_max = 64;
    Database::create(pool, "in pm", small);
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "the log of 'in pm' is in the pool",
                           [&] { Database::open(pool, "in pm", options()); }));
    EXPECT_FALSE(std::filesystem::exists(log_path()));
    DatabaseOptions other = small;
    other.log_file = folder_.file("other log");
    Database::create(pool, "other", other);
    EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { Database::create(pool, "third", other); }));
  }
  std::filesystem::copy_file(folder_.file("other log"), log_path());
  EXPECT_TRUE(is_refused(ErrorCode::kInvalidArgument, "belongs to another database"));
  for (const size_t bytes : {0, 100, 4096, 5000, 100'000}) {
    write_file(log_path(), std::string(bytes, 'z'));
    EXPECT_TRUE(is_refused(ErrorCode::kInvalidArgument, "no log file")) << bytes;
  }
  write_file(log_path(), log_left_.substr(0, log_left_.size() - 1));
  EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "cut off"));
  write_file(log_path(), log_left_.substr(0, 4096));
  EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "cut off"));
  for (const size_t at : {8, 16, 24}) {
    std::string damaged = log_left_;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(log_path(), damaged);
    EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "header is damaged")) << at;
  }
  write_file(log_path(), log_left_);
  expect_all();
}

TEST_F(LogFileTest, OneProcessHasItOpen) {
  Pool pool = Pool::create(path(), small_pool());
  const Database database = Database::create(pool, "d", options());
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { Database::open(pool, "d", options()); }));
  const std::string copy = path() + ".copy";
  write_file(copy, read_file(path()));
  Pool other = Pool::open(copy, small_pool());
  EXPECT_TRUE(
      fails_with(ErrorCode::kLocked, "log file", [&] { Database::open(other, "d", options()); }));
}

// An older copy, one of zeros, and one with a flipped bit in any entry that was acknowledged: to
// open without what they lack would lose commits, and nobody would know.
TEST_F(LogFileTest, WhatLacksAcknowledgedCommitsIsRefused) {
  make_killed();
  write_file(log_path(), before_);
  EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "older copy"));
  write_file(log_path(), log_left_.substr(0, 4096) + std::string(log_left_.size() - 4096, '\0'));
  EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "older copy"));
  Random random(base_seed());
  const auto [first, last] = [&] {
    size_t begin = 0;
    while (before_[begin] == log_left_[begin]) ++begin;
    size_t end = log_left_.size() - 1;
    while (before_[end] == log_left_[end]) --end;
    return std::pair(begin, end);
  }();
  ASSERT_LT(first, last);
  for (uint64_t i = 0; i < scaled(40); ++i) {
    std::string damaged = log_left_;
    char& byte = damaged[first + random.below(last - first)];
    byte = static_cast<char>(byte ^ 1 << random.below(8));
    write_file(log_path(), damaged);
    EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "older copy"));
  }
  write_file(log_path(), log_left_);
  expect_all();
}

// The log is judged first: an opening that refuses it leaves pages in PM, batch, table, archive and
// page store as they were, whatever else it was to do.
TEST_F(LogFileTest, ARefusedLogHasChangedNothing) {
  make_killed();
  std::string left = read_file(path());
  const size_t at = root_at(left, buffer::kRootMagicLogFile);
  buffer::Root root;
  std::memcpy(&root, left.data() + at, sizeof root);
  // A batch that a crash interrupted, whose page is another one in the page store; and a word in
  // the table that leads nowhere.
  root.batch = pm::seal_word(1, buffer::kBatchSalt);
  std::memcpy(left.data() + at, &root, sizeof root);
  const uint64_t nowhere = 0x1234'5678'9abc'def0;
  std::memcpy(left.data() + root.table, &nowhere, sizeof nowhere);
  write_file(path(), left);
  write_file(log_path(), before_);
  const std::string archive = folder_.file("archive");
  for (const bool resize : {false, true}) {
    for (const bool archived : {false, true}) {
      SCOPED_TRACE(testing::Message() << resize << archived);
      Pool pool = Pool::open(path(), small_pool());
      const std::string before = read_file(path());
      DatabaseOptions other = options();
      if (resize) other.pm_bytes = uint64_t{80} * 4096;
      if (archived) other.archive = archive;
      EXPECT_TRUE(
          fails_with(ErrorCode::kCorrupt, "older copy", [&] { Database::open(pool, "d", other); }));
      EXPECT_TRUE(read_file(path()) == before);
      EXPECT_TRUE(read_file(log_path()) == before_);
      EXPECT_FALSE(std::filesystem::exists(archive));
      // Sizes that cannot be are refused before, too.
      other.dram_bytes = 0;
      other.pm_bytes = uint64_t{8} * 4096;
      EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "a database needs",
                             [&] { Database::open(pool, "d", other); }));
      EXPECT_TRUE(read_file(path()) == before);
    }
  }
  write_file(log_path(), log_left_);
  expect_all();
}

// Of a log that was closed nothing is needed: an older copy of it has nothing that is believed.
TEST_F(LogFileTest, AnOlderCopyOfAnEmptyLogIsHarmless) {
  make_killed();
  expect_all();
  write_file(log_path(), log_left_);
  expect_all();
  {
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    put(database, "y", "1");
  }
  Pool pool = Pool::open(path(), small_pool());
  Database database = Database::open(pool, "d", options());
  EXPECT_EQ(get(database, "x"), "9");
  EXPECT_EQ(get(database, "y"), "1");
}

// A write or sync that fails ends all commits, and no process; what was acknowledged is there when
// it is opened again, and what was not is there wholly or not at all.
TEST_F(LogFileTest, AFailureEndsCommitsAndNothingElse) {
  LogShadow log(log_path());
  DatabaseOptions archived = options();
  archived.archive = folder_.file("archive");
  {
    Pool pool = Pool::create(path(), small_pool());
    Database database = Database::create(pool, "d", archived);
    put(database, "x", "0");
    put(database, "z", "0");
  }
  std::string acknowledged = "0";
  std::string tried = "0";
  for (uint64_t round = 0; round < scaled(12) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    log.begin_session();
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", archived);
    const std::optional<std::string> there = get(database, "x");
    ASSERT_TRUE(there == acknowledged || there == tried) << *there;
    acknowledged = *there;
    const Tree tree = *database.find_tree("t");
    const Snapshot snapshot = database.snapshot();
    log.fails_from = log.points() + round;
    std::string told;
    for (int i = 0; i < 100 && told.empty(); ++i) {
      tried = std::to_string(round) + "/" + std::to_string(i) + std::string(5000, 'v');
      try {
        database.transact([&](Transaction& one) { one.put(tree, "x", tried); });
        acknowledged = tried;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        told = error.what();
      }
    }
    EXPECT_NE(told.find("log file"), std::string::npos) << told;
    // For good, though the file would take it now.
    log.fails_from = ~uint64_t{0};
    const uint64_t points = log.points();
    EXPECT_TRUE(fails_with(ErrorCode::kIo, "log file", [&] { put(database, "x", "late"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kIo, "log file", [&] { database.checkpoint(); }));
    EXPECT_EQ(log.points(), points);
    EXPECT_EQ(database.begin().get(tree, "z"), "0");
    EXPECT_EQ(database.snapshot().get(tree, "x"), acknowledged);
    EXPECT_EQ(snapshot.get(tree, "z"), "0");
    expect_sound(database);
  }
}

// What a system shows of a file after it could not write it is not on the medium.
TEST_F(LogFileTest, WhatIsFoundIsWrittenAgain) {
  LogShadow log(log_path());
  Random random(base_seed());
  const std::string value(9000, 'x');  // blocks that what comes later is not in
  {
    Pool pool = Pool::create(path(), small_pool());
    Database database = Database::create(pool, "d", options());
    put(database, "x", "0");
    log.fails_from = log.points() + 1;  // the sync of the next one
    EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { put(database, "x", value); }));
  }
  log.begin_session();
  std::string left;
  std::string log_left;
  {
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    EXPECT_EQ(get(database, "x"), value);  // it happened
    put(database, "y", "1");
    left = read_file(path());
    log_left = log.make_image(random, true);
  }
  write_file(path(), left);
  log.replace(log_left);
  Pool pool = Pool::open(path(), small_pool());
  Database database = Database::open(pool, "d", options());
  EXPECT_EQ(get(database, "x"), value);
  EXPECT_EQ(get(database, "y"), "1");
}

TEST_F(LogFileTest, AnErrorOfReadingIsAnError) {
  class Unreadable final : public buffer::LogFaults {
   public:
    Unreadable() { buffer::inject_log_faults(this); }
    ~Unreadable() override { buffer::inject_log_faults(nullptr); }
    uint64_t write(uint64_t, const char*, uint64_t bytes) override { return bytes; }
    void sync() override {}
    void read(char*, uint64_t) override {
      throw Error(ErrorCode::kIo, "the log file: told to fail");
    }
  };
  make_killed();
  {
    const Unreadable fault;
    EXPECT_TRUE(is_refused(ErrorCode::kIo, "log file"));
  }
  expect_all();
}

// The system takes what it could not write for clean: a second sync that succeeds means nothing.
TEST_F(LogFileTest, ASyncThatFailsWithoutMemoryIsNotForgotten) {
  class ShortOnce final : public buffer::LogFaults {
   public:
    ShortOnce() { buffer::inject_log_faults(this); }
    ~ShortOnce() override { buffer::inject_log_faults(nullptr); }
    uint64_t write(uint64_t, const char*, uint64_t bytes) override { return bytes; }
    void sync() override {
      if (armed && !std::exchange(met, true)) throw std::bad_alloc();
    }
    bool armed = false;
    bool met = false;
  };
  ShortOnce fault;
  Pool pool = Pool::create(path(), small_pool());
  Database database = Database::create(pool, "d", options());
  const Tree tree = database.tree("t");
  const auto put = [&](const std::string& value) {
    Transaction one = database.begin();
    one.put(tree, "key", value);
    one.commit();
  };
  put("sound");
  fault.armed = true;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(fails_with(ErrorCode::kIo, "log file", [&] { put("later"); }));
  }
}

// What a full disk refuses it refuses at the creation, which leaves nothing.
TEST_F(LogFileTest, AFullDiskIsToldAtTheCreation) {
  const SmallTmpfs disk(uint64_t{1} << 20);
  if (!disk.mounted()) GTEST_SKIP() << "may not mount";
  Pool pool = Pool::create(path(), small_pool());
  DatabaseOptions options = small_database();
  options.page_file = folder_.file("pages");
  options.log_file = disk.file("log");
  EXPECT_TRUE(
      fails_with(ErrorCode::kNoSpace, "log file", [&] { Database::create(pool, "d", options); }));
  EXPECT_FALSE(std::filesystem::exists(options.log_file));
  EXPECT_FALSE(std::filesystem::exists(options.page_file));
  EXPECT_TRUE(pool.structures().empty());
  // Nor does one that fails later.
  options.log_file = log_path();
  LogShadow log(log_path());
  log.fails_from = 1;  // the header
  EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { Database::create(pool, "d", options); }));
}

// The system refuses fallocate(2) from now on, as some file systems do. The C library's emulation
// writes single bytes, which a file that was opened with O_DIRECT refuses.
void forbid_fallocate() {
  sock_filter refuse[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<uint16_t>(std::size(refuse)), refuse};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(LogFileTest, AFileSystemWithoutFallocateIsWritten) {
  const TempDir disk(TempDir::Place::kDisk);
  const std::string file = disk.file("log");
  constexpr uint64_t kBytes = uint64_t{1} << 20;
  {
    Child child([&](int) {
      forbid_fallocate();
      const buffer::LogFile made(file, 17, kBytes, buffer::LogFile::Use::kCreate);
    });
    EXPECT_EQ(child.wait(), 0);
  }
  struct stat status{};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_size, kBytes + 4096);
  EXPECT_GE(status.st_blocks * 512, static_cast<int64_t>(kBytes));
  EXPECT_EQ(buffer::LogFile::salt_of(file), 17);
}

// Those that wait while the sync fails are told, too, and none of them is done; a later opening
// shows of the group that was at it all or nothing.
TEST_F(LogFileTest, WhoWaitsForASyncThatFailsIsTold) {
  class FailsWhenAllWait final : public buffer::LogFaults {
   public:
    FailsWhenAllWait() { buffer::inject_log_faults(this); }
    ~FailsWhenAllWait() override { buffer::inject_log_faults(nullptr); }
    uint64_t write(uint64_t, const char*, uint64_t bytes) override { return bytes; }
    void sync() override {
      if (!armed.load()) return;
      syncing.store(true);
      while (!fails.load()) std::this_thread::yield();
      throw Error(ErrorCode::kIo, "the log file: told to fail");
    }
    std::atomic<bool> armed{false};
    std::atomic<bool> syncing{false};
    std::atomic<bool> fails{false};
  };
  constexpr uint64_t kThreads = 8;
  {
    FailsWhenAllWait fault;
    Pool pool = Pool::create(path(), small_pool());
    Database database = Database::create(pool, "d", options());
    for (uint64_t t = 0; t < kThreads; ++t) put(database, std::to_string(t), "sound");
    const Tree tree = database.tree("t");
    fault.armed.store(true);
    std::atomic<uint64_t> about_to_commit{0};
    std::atomic<uint64_t> told{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Transaction one = database.begin();
        one.put(tree, std::to_string(t), "later");
        one.put(tree, "more " + std::to_string(t), "later");
        ++about_to_commit;
        const testing::AssertionResult is_told =
            fails_with(ErrorCode::kIo, "log file", [&] { one.commit(); });
        EXPECT_TRUE(is_told);
        if (is_told) ++told;
      });
    }
    while (!fault.syncing.load() || about_to_commit.load() < kThreads) std::this_thread::yield();
    fault.fails.store(true);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(told.load(), kThreads);
    EXPECT_EQ(statistic(database, "commits"), kThreads + 2);  // with the format and the tree
  }
  Pool pool = Pool::open(path(), small_pool());
  Database database = Database::open(pool, "d", options());
  uint64_t done = 0;
  for (uint64_t t = 0; t < kThreads; ++t) {
    const bool is_done = get(database, std::to_string(t)) == "later";
    EXPECT_EQ(get(database, "more " + std::to_string(t)).has_value(), is_done) << t;
    if (is_done) ++done;
  }
  EXPECT_LT(done, kThreads);  // those that waited have written nothing
  expect_sound(database);
}

// The entry is durable in the file, and PM does not say so: the commit is kIo, and happened.
TEST_F(LogFileTest, TheEndThatPMRefusesIsFoundInTheFile) {
  using Image = FailingMedium::Image;
  for (const Image kind : {Image::kLeast, Image::kAll, Image::kMixed}) {
    SCOPED_TRACE(static_cast<int>(kind));
    std::filesystem::remove(path());
    std::filesystem::remove(log_path());
    std::string image;
    LogShadow log(log_path());
    {
      FailingMedium medium(path(), Domain::kLine);
      {
        Pool pool = Pool::create(path(), small_pool());
        medium.begin();
        Database database = Database::create(pool, "d", options());
        put(database, "x", "0");
        const Tree tree = *database.find_tree("t");
        const uint64_t syncs = log.syncs();
        medium.refuse_here(medium.persists(), true);
        Transaction one = database.begin();
        one.put(tree, "x", "1");
        EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { one.commit(); }));
        EXPECT_TRUE(medium.refused());
        EXPECT_GT(log.syncs(), syncs);
        const uint64_t points = log.points();
        Transaction later = database.begin();
        later.put(tree, "x", "2");
        EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { later.commit(); }));
        EXPECT_EQ(log.points(), points);
        EXPECT_EQ(database.begin().get(tree, "x"), "0");
      }
      image = medium.make_image(kind, base_seed());
    }
    std::filesystem::rename(image, path());
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    EXPECT_EQ(get(database, "x"), "1");
    expect_sound(database);
  }
}

// Each bit of the word that says where the log ends: nobody could tell an older copy of the file.
TEST_F(LogFileTest, ADamagedEndIsRefused) {
  make_killed();
  const std::string left = read_file(path());
  buffer::Root root;
  std::memcpy(&root, left.data() + root_at(left, buffer::kRootMagicLogFile), sizeof root);
  for (unsigned bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    std::string damaged = left;
    char& byte = damaged[root.log + bit / 8];
    byte = static_cast<char>(byte ^ 1 << bit % 8);
    write_file(path(), damaged);
    EXPECT_TRUE(is_refused(ErrorCode::kCorrupt, "where the log of the database ends"));
    if (bit % 16 != 0) continue;
    const auto [records, lost] = salvage({log_path()});
    EXPECT_EQ(records.at("x"), "9");
    EXPECT_NE(lost.find("nobody can say whether"), std::string::npos) << lost;
  }
  write_file(path(), left);
  expect_all();
}

// A creation that is killed at any write or sync of its log file leaves files, or a database that
// opens: the next one says what is in the way, and what to do with it.
TEST_F(LogFileTest, AKilledCreationIsInNobodysWayForLong) {
  DatabaseOptions made = options();
  made.page_file = folder_.file("pages");
  made.archive = folder_.file("archive");
  const std::vector<std::string> files = {made.page_file, made.log_file, made.archive};
  bool complete = false;
  uint64_t leftovers = 0;
  uint64_t made_at_once = 0;
  for (uint64_t last = 0; !complete && !HasFailure(); ++last) {
    SCOPED_TRACE(last);
    std::filesystem::remove(path());
    for (const std::string& file : files) std::filesystem::remove(file);
    {
      Child child([&](int) {
        LogShadow log(log_path());
        log.at_point = [&](uint64_t n) {
          if (n == last) std::_Exit(7);
        };
        Pool pool = Pool::create(path(), small_pool());
        Database::create(pool, "d", made);
      });
      const int code = child.wait();
      ASSERT_TRUE(code == 0 || code == 7) << code;
      complete = code == 0;
    }
    Pool pool = Pool::open(path(), small_pool());
    pool.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
    if (!pool.structures().empty()) {
      ++made_at_once;
      EXPECT_TRUE(fails_with(ErrorCode::kNameExists, "open it",
                             [&] { Database::create(pool, "d", made); }));
    } else {
      ++leftovers;
      // As a user would, who is told of one file at a time.
      for (const std::string& file : files) {
        if (!std::filesystem::exists(file)) continue;
        EXPECT_TRUE(
            fails_with(file == made.archive ? ErrorCode::kInvalidArgument : ErrorCode::kExists,
                       "remove it", [&] { Database::create(pool, "d", made); }));
        std::filesystem::remove(file);
      }
      EXPECT_TRUE(pool.structures().empty());
      Database::create(pool, "d", made);
    }
    Database database = Database::open(pool, "d", made);
    put(database, "x", "1");
    EXPECT_EQ(get(database, "x"), "1");
    expect_sound(database);
  }
  EXPECT_GT(leftovers, 0);
  EXPECT_GT(made_at_once, 2);
  // An archive comes after the log file.
  const std::string bare = read_file(made.archive).substr(0, 64);
  for (const std::string& file : files) std::filesystem::remove(file);
  write_file(made.archive, bare);
  Pool pool = Pool::anonymous(small_pool());
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "remove it",
                         [&] { Database::create(pool, "d", made); }));
  EXPECT_EQ(read_file(made.archive), bare);
}

// Commits that wait for one that syncs go together in the next one.
TEST_F(LogFileTest, CommitsShareASync) {
  class SlowSync final : public buffer::LogFaults {
   public:
    SlowSync() { buffer::inject_log_faults(this); }
    ~SlowSync() override { buffer::inject_log_faults(nullptr); }
    uint64_t write(uint64_t, const char*, uint64_t bytes) override { return bytes; }
    void sync() override { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
  };
  const SlowSync slow;
  Pool pool = Pool::create(path(), small_pool());
  Database database = Database::create(pool, "d", options());
  const Tree tree = database.tree("t");
  constexpr uint64_t kThreads = 16;
  constexpr uint64_t kEach = 40;
  const double before = statistic(database, "commit_groups");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        Transaction one = database.begin();
        one.put(tree, std::to_string(t), std::to_string(i));
        one.commit();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double groups = statistic(database, "commit_groups") - before;
  std::printf("%lu commits in %.0f groups\n", kThreads * kEach, groups);
  EXPECT_LT(groups, kThreads * kEach / 4);
  for (uint64_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(database.begin().get(tree, std::to_string(t)), std::to_string(kEach - 1));
  }
}

// Who only reads a damaged database needs no log file, and is told what that means.
TEST_F(LogFileTest, SalvageReadsWithItAndWithout) {
  make_killed();
  const std::string pool_kept = read_file(path());
  for (const int given : {0, 1, 2}) {  // the log, none, an older copy
    SCOPED_TRACE(given);
    write_file(log_path(), given == 2 ? before_ : log_left_);
    std::vector<std::string> files;
    if (given != 1) files.push_back(log_path());
    const auto [records, lost] = salvage(files);
    if (given == 0) {
      EXPECT_EQ(records.at("x"), "9");
      EXPECT_EQ(lost, "");
    } else {
      EXPECT_NE(lost.find("the log file does not have the last commits"), std::string::npos);
      EXPECT_NE(records.at("x"), "");
    }
  }
  EXPECT_EQ(read_file(path()), pool_kept);
}

// Pages in frames or in the page store that are newer than a torn or older log: each is what a
// commit that was acknowledged has left, and is read as it is.
TEST_F(LogFileTest, SalvageKeepsPagesThatAreNewerThanTheLog) {
  for (const bool in_file : {true, false}) {
    for (const bool in_frame : {true, false}) {
      SCOPED_TRACE(testing::Message()
                   << "log in file " << in_file << ", page in frame " << in_frame);
      std::filesystem::remove(path());
      std::filesystem::remove(log_path());
      DatabaseOptions made = in_file ? options() : small_database();
      if (in_frame) made.dram_bytes = 0;
      std::string log;
      std::string left;
      {
        Pool pool = Pool::create(path(), small_pool());
        const auto engine = buffer::Engine::create(pm::impl_of(pool), "d", made);
        const uint64_t root = engine->make_tree("t");
        engine->checkpoint();
        for (const char* value : {"value one", "value two", "value three"}) {
          if (in_file && value == std::string("value three")) log = read_file(log_path());
          const buffer::Writes writes = {{root, {{"x", value}, {"y", value}}}};
          buffer::Engine::Commit request;
          request.writes = &writes;
          engine->commit(request);
        }
        if (!in_frame) engine->buffer().clean(1024);  // the head stays
        left = read_file(path());
        if (!in_file) {
          buffer::Root words;
          std::memcpy(&words, left.data() + root_at(left, buffer::kRootMagic), sizeof words);
          const size_t at = left.find("value three", words.log);
          ASSERT_LT(at, words.log + words.log_bytes);
          left[at] = 'V';
        }
      }
      write_file(path(), left);
      if (in_file) write_file(log_path(), log);
      const auto [records, lost] = salvage({log_path()});
      EXPECT_EQ(records, (Records{{"x", "value three"}, {"y", "value three"}}));
      EXPECT_NE(lost.find("newer than what the log has"), std::string::npos) << lost;
      EXPECT_EQ(lost.find("log in the pool is damaged") != std::string::npos, !in_file) << lost;
      EXPECT_EQ(lost.find("is damaged in the page file"), std::string::npos) << lost;
    }
  }
}

// Which file it was that could not be used, and why: the user has others.
TEST_F(LogFileTest, SalvageNamesALogFileThatItCannotUse) {
  make_killed();
  for (const size_t at : {0, 8, 16, 24}) {
    SCOPED_TRACE(at);
    std::string damaged = log_left_;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(log_path(), damaged);
    const std::string lost = salvage({log_path()}).second;
    EXPECT_NE(lost.find(log_path()), std::string::npos) << lost;
    EXPECT_NE(lost.find("header is damaged; it was not used"), std::string::npos) << lost;
    EXPECT_NE(lost.find("the log file does not have the last commits"), std::string::npos);
  }
  write_file(log_path(), log_left_.substr(0, log_left_.size() - 4096));
  const std::string lost = salvage({log_path()}).second;
  EXPECT_NE(lost.find(log_path() + ": the log file: it was cut off"), std::string::npos) << lost;
}

}  // namespace
}  // namespace perdure::test
