// A database under power failures, one after the other, a medium that refuses a persist, SIGKILL,
// and faults of its page file.
//
// PERDURE_POWER_SESSIONS: how many power failures, 250 without. PERDURE_KILL_ROUNDS: how many
// kills.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "buffer/faulty_file.h"
#include "buffer/fixture.h"
#include "buffer/layout.h"
#include "buffer/log_shadow.h"
#include "buffer/page_store.h"
#include "buffer/ring.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

uint64_t count_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

// Where the log is.
enum class LogPlace : uint8_t { kPm, kFile };
std::string name_of(LogPlace place) { return place == LogPlace::kPm ? "LogInPm" : "LogInFile"; }

class DatabasePower : public testing::Test {
 protected:
  std::string path() const { return folder_.file("pool"); }
  std::string log_path() const { return folder_.file("log"); }
  // From now on the log is in a file.
  void put_log_in_file() { log_.emplace(log_path()); }
  DatabaseOptions options_here() const {
    DatabaseOptions options = small_database();
    if (log_) options.log_file = log_path();
    return options;
  }

  // What was under way happened wholly or not at all.
  void judge(Database& database, const Tree& tree) {
    const Records there = contents_of(database, tree);
    const std::string wrong = difference(there, model_);
    if (!wrong.empty()) {
      ASSERT_TRUE(next_) << wrong;
      ASSERT_EQ(difference(there, *next_), "") << "nor, without the last commit: " << wrong;
      model_ = *next_;
    }
    next_.reset();
    expect_sound(database);
  }

  void step(Database& database, const Tree& tree) {
    if (random_.chance(1)) return database.checkpoint();
    Records next = model_;
    Transaction transaction = database.begin();
    const uint64_t count = 1 + random_.below(6);
    for (uint64_t n = 0; n < count; ++n) writes_.write(transaction, tree, next, 45);
    next_ = std::move(next);
    try {
      transaction.commit();
      model_ = *next_;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPoolFull) throw;
    }
    next_.reset();
  }

  // Any subset of the lines that were not flushed is lost: of frames, table, log, staging area, and
  // page store.
  void session() {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    if (!caches_.empty()) std::filesystem::rename(std::exchange(caches_, ""), path());
    const bool closes = random_.below(10) == 0;
    constexpr uint64_t kSoon[] = {10, 100, 1000};
    using Image = FailingMedium::Image;
    constexpr Image kImages[] = {Image::kMixed, Image::kMixed, Image::kLeast, Image::kAll};
    const Image kind = kImages[random_.below(4)];
    const uint64_t last = random_.below(kSoon[random_.below(3)]);
    std::string image;
    std::string log_image;
    const bool at_once = random_.chance(50);
    const bool at_log = log_ && random_.chance(50);  // at a write or sync of the log file
    const bool dies = !log_ && random_.chance(40);
    if (log_) log_->begin_session();
    if (!closes && at_once) {
      // The power fails before this persist: what a commit has changed by then may be in PM.
      const auto fail = [&](uint64_t n) {
        if (n != last) return false;
        if (dies) {
          // It may have died between any two stores.
          caches_ = path() + ".caches";
          const Image stored = kind == Image::kLeast ? Image::kMixed : Image::kAll;
          std::filesystem::rename(medium.make_image(stored, random_.next()), caches_);
        }
        image = medium.make_image(kind, random_.next());
        if (random_.chance(30)) image = make_image_of_frames(medium);
        if (log_) log_image = log_->make_image(random_);
        at_failure_.emplace(model_, next_);
        return false;
      };
      if (at_log) {
        log_->at_point = fail;
      } else {
        medium.refuse(fail, [](uint64_t) { return false; });
      }
    } else if (!closes && at_log) {
      log_->fails_from = last;
    } else if (!closes) {
      medium.refuse_here(last, true);  // and the commit is undone
    }
    try {
      const Pool pool = Pool::open(path(), small_pool());
      run(pool, closes);
    } catch (const Error& error) {
      ASSERT_TRUE(medium.refused() || (log_ && log_->failed())) << error.what();
      ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    // What a failed log file leaves is found by the next opening, before or after a power failure.
    const bool falls = medium.refused() || (log_ && log_->failed() && random_.chance(50));
    if (falls) image = medium.make_image(kind, random_.next());
    if (falls && log_) log_image = log_->make_image(random_);
    if (image.empty()) return;
    std::filesystem::rename(image, path());
    if (log_) log_->replace(log_image);
    if (at_failure_) std::tie(model_, next_) = *at_failure_;
    at_failure_.reset();
  }

  // What is sure to be there, and all stores to frames in PM: what was under way has changed pages,
  // and nothing else.
  std::string make_image_of_frames(FailingMedium& medium) const {
    const std::string path = medium.make_image(FailingMedium::Image::kLeast, 0);
    std::string content = read_file(path);
    const uint64_t bytes = small_database().pm_bytes;
    content.replace(frames_, bytes, read_file(this->path()), frames_, bytes);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return path;
  }

  // In the pool's file, where it never moves.
  static const buffer::Root& root_of(Pool& pool) {
    pm::PoolImpl& impl = pm::impl_of(pool);
    return *impl.at<buffer::Root>(index::find_structure(
        impl, "d", Database::kTypeName, Kind::kBytes, Kind::kBytes, sizeof(buffer::Root)));
  }
  void find_frames(Pool& pool) { frames_ = root_of(pool).frames; }

  void run(const Pool& pool, bool closes) {
    DatabaseOptions options = options_here();
    options.checksum_every = random_.chance(30) ? 3 : 1;
    if (random_.chance(50)) options.dram_bytes = 0;  // all pages in PM
    Database database = Database::open(const_cast<Pool&>(pool), "d", options);
    const Tree tree = database.tree("t");
    // Now and then all is looked at, else only what the work comes to: the next crash finds the
    // rest unjudged.
    if (next_ || random_.chance(50)) judge(database, tree);
    const uint64_t steps = closes ? random_.below(50) : 100'000;
    try {
      for (uint64_t i = 0; i < steps && !at_failure_ && !HasFatalFailure(); ++i)
        step(database, tree);
    } catch (const Error&) {
      count(database);
      throw;
    }
    count(database);
  }

  void count(const Database& database) {
    const RecoveryProgress mended = database.recovery();
    sum_.right += mended.right;
    sum_.older += mended.older;
    sum_.newer += mended.newer;
    sum_.corrupted += mended.corrupted;
    sum_.fetched += mended.fetched;
  }

  TempDir folder_;
  std::optional<LogShadow> log_;  // of one in a file
  Random random_{base_seed()};
  RandomWrites writes_{random_, 1500, 4};
  Records model_;
  std::optional<Records> next_;  // with the commit that was under way
  std::optional<std::pair<Records, std::optional<Records>>> at_failure_;  // model_ and next_
  RecoveryProgress sum_{};
  uint64_t frames_ = 0;
  // What a process that died has left, most of it in the caches; the pool's file has what is
  // durable of that.
  std::string caches_;
};

class DatabaseFailures : public DatabasePower, public testing::WithParamInterface<LogPlace> {
 protected:
  DatabaseFailures() {
    if (GetParam() == LogPlace::kFile) put_log_in_file();
  }
};
INSTANTIATE_TEST_SUITE_P(Places, DatabaseFailures, testing::Values(LogPlace::kPm, LogPlace::kFile),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(DatabaseFailures, NoSequenceOfThemGivesAWrongAnswer) {
  {
    Pool pool = Pool::create(path(), small_pool());
    Database::create(pool, "d", options_here());
    find_frames(pool);
  }
  const uint64_t sessions = count_from("PERDURE_POWER_SESSIONS", scaled(250));
  for (uint64_t i = 0; i < sessions && !HasFailure(); ++i) {
    SCOPED_TRACE("session " + std::to_string(i));
    session();
  }
  RecordProperty("right", std::to_string(sum_.right));
  std::printf("pages found right %lu, older %lu, newer %lu, corrupted %lu; fetched %lu\n",
              sum_.right, sum_.older, sum_.newer, sum_.corrupted, sum_.fetched);
  if (scaled(250) < 250)
    return;  // few sessions may miss one; newer ones are rare: TwoCrashes has one
  EXPECT_GT(sum_.right, 0U);
  EXPECT_GT(sum_.older, 0U);
  EXPECT_GT(sum_.corrupted, 0U);
}

// A commit that a first crash ends, with all that it has changed in PM frames, but not its log
// entry. The second session lets go of the log, and a second crash loses what was not flushed. The
// third one must not see the commit.
class TwoCrashes : public DatabaseFailures {
 protected:
  DatabaseOptions options() const {
    DatabaseOptions options = options_here();
    options.dram_bytes = 0;
    return options;
  }
  // What a crash leaves.
  struct Left {
    std::string pool;
    std::string log;  // where it is in a file
  };
  void replace(const std::string& content) const { write_file(path(), content); }
  void replace(const Left& left) {
    replace(left.pool);
    if (log_) log_->replace(left.log);
  }
  std::string log_at_least() { return log_ ? log_->make_image(random_, true) : ""; }

  // What the first crash leaves.
  Left first_session() {
    Left left;
    {
      Pool pool = Pool::create(path(), small_pool());
      Database database = Database::create(pool, "d", options());
      const Tree tree = database.tree("t");
      const Tree other = database.tree("other");
      database.transact([&](Transaction& one) { one.put(tree, "x", "1"); });
      database.transact([&](Transaction& one) { one.put(other, "y", "1"); });
    }
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    bool armed = false;  // closing persists, too
    const auto crash = [&](uint64_t) {
      if (!armed) return false;
      armed = false;
      left = {read_file(make_image_of_frames(medium)), log_at_least()};
      return false;
    };
    if (log_) log_->at_point = crash;
    Pool pool = Pool::open(path(), small_pool());
    find_frames(pool);
    Database database = Database::open(pool, "d", options());
    const Tree tree = database.tree("t");
    EXPECT_EQ(database.begin().get(tree, "x"), "1");
    armed = true;
    medium.refuse(crash, [](uint64_t) { return false; });
    database.transact([&](Transaction& one) { one.put(tree, "x", "2"); });
    EXPECT_FALSE(armed);
    if (log_) log_->at_point = nullptr;
    return left;
  }

  // What the second one leaves.
  Left second_session(bool judges) {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    if (judges) {
      EXPECT_EQ(database.begin().get(*database.find_tree("t"), "x"), "1");
      EXPECT_EQ(database.recovery().newer, 1U);
    }
    const Tree other = *database.find_tree("other");
    for (int i = 0; i < 1500; ++i) {
      database.transact([&](Transaction& one) { one.put(other, "y", std::string(500, 'y')); });
    }
    return {read_file(medium.make_image(FailingMedium::Image::kLeast, 0)), log_at_least()};
  }
};
INSTANTIATE_TEST_SUITE_P(Places, TwoCrashes, testing::Values(LogPlace::kPm, LogPlace::kFile),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(TwoCrashes, AnUnfinishedCommitNeverComesBack) {
  const Left first = first_session();
  for (const bool judges : {false, true}) {
    SCOPED_TRACE(judges);
    replace(first);
    const Left second = second_session(judges);
    replace(second);
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    EXPECT_EQ(database.begin().get(*database.find_tree("t"), "x"), "1");
    expect_sound(database);
  }
}

// A process that dies leaves in the caches what it has stored and not flushed; opening rests on it,
// so it is not lost to a power failure later.
TEST_P(TwoCrashes, OpeningMakesDurableWhatItFinds) {
  {
    Pool pool = Pool::create(path(), small_pool());
    Database::create(pool, "d", options()).tree("t");
  }
  const std::string durable = read_file(path());
  {
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options());
    const Tree tree = database.tree("t");
    database.transact([&](Transaction& one) { one.put(tree, "x", std::string(20'000, 'x')); });
  }  // a checkpoint
  const std::string found = read_file(path());
  ASSERT_NE(found, durable);
  FailingMedium medium(path(), Domain::kLine);
  replace(durable);
  medium.begin();
  replace(found);
  Pool pool = Pool::open(path(), small_pool());
  const buffer::Root& root = root_of(pool);
  const Database database = Database::open(pool, "d", options());
  const std::string kept = read_file(medium.make_image(FailingMedium::Image::kLeast, 0));
  const pm::PoolImpl& impl = pm::impl_of(pool);
  const uint64_t head = impl.offset_of(&root.head);
  EXPECT_EQ(kept.compare(head, 64, found, head, 64), 0);
  const uint64_t table_bytes = small_database().pm_bytes / 4096 * sizeof(uint64_t);
  EXPECT_EQ(kept.compare(root.table, table_bytes, found, root.table, table_bytes), 0);
}

// The log is let go of step by step while most of the pages that it names wait to be mended, so
// that commits go on; and at no step does a second crash lose anything.
TEST_F(DatabasePower, CommitsGoOnWhileMostPagesAreNotMended) {
  constexpr uint64_t kKeys = 2600;
  DatabaseOptions options = small_database();
  options.pages_max = 2048;
  options.dram_bytes = uint64_t{100} * 4096;
  options.pm_bytes = uint64_t{700} * 4096;
  const auto key = [](uint64_t n) { return std::to_string(10'000 + n); };
  {
    Pool pool = Pool::create(path(), small_pool(uint64_t{32} << 20));
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    database.tree("other");
    for (uint64_t n = 0; n < kKeys; ++n) {
      database.transact([&](Transaction& one) {
        one.put(tree, key(n), std::string(128, 'a'));
        one.put(tree, key(n) + "/much", std::string(800, 'a'));
      });
    }
  }
  {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    std::string image;
    {
      Pool pool = Pool::open(path(), small_pool());
      Database database = Database::open(pool, "d", options);
      const Tree tree = *database.find_tree("t");
      for (uint64_t n = 0; n < kKeys; n += 20) {
        Transaction some = database.begin();
        for (uint64_t i = n; i < n + 20; ++i) some.put(tree, key(i), std::string(128, 'b'));
        some.commit();
      }
      image = medium.make_image(FailingMedium::Image::kMixed, random_.next());
    }
    std::filesystem::rename(image, path());
  }
  for (uint64_t n = 0; n < kKeys; ++n) {
    model_[key(n)] = std::string(128, 'b');
    model_[key(n) + "/much"] = std::string(800, 'a');
  }
  std::vector<std::pair<std::string, std::string>> crashes;  // images, and the value then
  {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options);
    const double log = statistic(database, "log_bytes");
    const double used = statistic(database, "log_used_bytes");
    const double pending = statistic(database, "recovery_pending");
    ASSERT_GT(pending, 500);
    ASSERT_LT(used, log / 2);
    const Tree other = *database.find_tree("other");
    const auto commit = [&](uint64_t i) {
      const std::string value = std::string(200, 'y') + std::to_string(10'000 + i);
      database.transact([&](Transaction& one) { one.put(other, "y", value); });
      return value;
    };
    commit(0);
    const double entry = statistic(database, "log_used_bytes") - used;
    // More than there was room for, by as much as a small part of the pages keeps.
    const auto commits = static_cast<uint64_t>((log * 13 / 16 - used) / entry);
    for (uint64_t i = 1; i < commits; ++i) {
      const std::string value = commit(i);
      if (i % 250 != 249 && i + 1 != commits) continue;
      const std::string image = medium.make_image(FailingMedium::Image::kMixed, random_.next());
      crashes.emplace_back(path() + std::to_string(i), value);
      std::filesystem::rename(image, crashes.back().first);
    }
    EXPECT_LT(statistic(database, "log_used_bytes"), log * 25 / 32);
    EXPECT_GT(statistic(database, "recovery_pending"), pending / 2);
  }
  for (const auto& [image, value] : crashes) {
    SCOPED_TRACE(image);
    std::filesystem::rename(image, path());
    Pool pool = Pool::open(path(), small_pool());
    Database database = Database::open(pool, "d", options);
    EXPECT_EQ(database.begin().get(*database.find_tree("other"), "y"), value);
    judge(database, *database.find_tree("t"));
  }
}

// Batches of pages go to the page file through io_uring, where the system has it, and by pwrite.
class DatabasePageFile : public DatabasePower,
                         public testing::WithParamInterface<std::tuple<bool, LogPlace>> {
 protected:
  DatabasePageFile() { ::setenv("PERDURE_IO_URING", has_ring() ? "1" : "0", 1); }
  ~DatabasePageFile() override { ::unsetenv("PERDURE_IO_URING"); }
  static bool has_ring() { return std::get<0>(GetParam()); }
  // With files in this folder.
  static DatabaseOptions options_in(const TempDir& folder) {
    DatabaseOptions options = small_database();
    options.page_file = folder.file("pages");
    if (std::get<1>(GetParam()) == LogPlace::kFile) options.log_file = folder.file("log");
    return options;
  }

  static void expect_way(const Database& database) {
    const bool expected = has_ring() && buffer::Ring::make(buffer::kStagedMax) != nullptr;
    EXPECT_EQ(statistic(database, "page_file_io_uring"), expected ? 1 : 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, DatabasePageFile,
                         testing::Combine(testing::Bool(),
                                          testing::Values(LogPlace::kPm, LogPlace::kFile)),
                         [](const auto& info) {
                           return (std::get<0>(info.param) ? "IoUring" : "Pwrite") +
                                  name_of(std::get<1>(info.param));
                         });

TEST(Ring, TransfersABatchAndTellsWhatItCouldNot) {
  constexpr uint32_t kCount = 32;
  const std::unique_ptr<buffer::Ring> ring = buffer::Ring::make(kCount);
  if (!ring) GTEST_SKIP() << "no io_uring here";
  const TempDir folder;
  const std::string path = folder.file("pages");
  Random random(base_seed());
  std::string model(kCount * 4096, '\0');
  std::ofstream(path, std::ios::binary) << model;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int to_read = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_GE(to_read, 0);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> pages;
    std::vector<buffer::Ring::Transfer> writes;
    for (uint32_t i = 0; i < kCount; ++i) {
      pages.emplace_back(4096, static_cast<char>(random.next()));
      if (i > 0 && random.chance(50)) pages.pop_back();
    }
    for (uint32_t i = 0; i < pages.size(); ++i) {
      // From the last place on, so that none is where the one before it is.
      const uint64_t at = (kCount - 1 - i) * uint64_t{4096};
      const auto bytes = static_cast<uint32_t>(1 + random.below(4096));
      writes.push_back({pages[i].data(), at, bytes, 0});
      if (round % 3 != 2) model.replace(at, bytes, pages[i], 0, bytes);
    }
    ring->transfer(round % 3 == 2 ? to_read : file, buffer::Ring::Kind::kWrite, writes);
    for (const auto& one : writes) ASSERT_EQ(one.done, round % 3 == 2 ? 0 : one.bytes);
    ASSERT_EQ(read_file(path), model);
    // The last one is beyond the end.
    std::string back(model.size() + 4096, '\0');
    std::vector<buffer::Ring::Transfer> reads;
    for (uint64_t at = 4096; at < back.size(); at += 4096) {
      reads.push_back({&back[at], at, 4096, 0});
    }
    ring->transfer(to_read, buffer::Ring::Kind::kRead, reads);
    for (const auto& one : reads) ASSERT_EQ(one.done, one.offset < model.size() ? 4096U : 0U);
    ASSERT_EQ(back.substr(4096, model.size() - 4096), model.substr(4096));
  }
  ring->transfer(file, buffer::Ring::Kind::kWrite, {});
  ::close(file);
  ::close(to_read);
}

// Money moves between accounts in two trees until the process is killed. None is lost, and each
// transfer that was acknowledged has happened.
TEST_P(DatabasePageFile, AKilledBankKeepsItsMoney) {
  constexpr uint64_t kAccounts = 500;
  DatabaseOptions options = options_in(folder_);
  options.background = true;
  const auto name = [](uint64_t n) { return std::to_string(n * 7919 % 100'003); };
  {
    Pool pool = Pool::create(path(), small_pool());
    Database bank = Database::create(pool, "bank", options);
    const Tree accounts = bank.tree("accounts");
    bank.transact([&](Transaction& one) {
      for (uint64_t n = 0; n < kAccounts; ++n) one.put(accounts, name(n), "1000");
    });
  }
  uint64_t mended = 0;
  const uint64_t rounds = count_from("PERDURE_KILL_ROUNDS", scaled(8));
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const uint64_t seed = random_.next();
    Child child([&](int out) {
      auto* pool = new Pool(Pool::open(path(), small_pool()));  // never closed
      auto* bank = new Database(Database::open(*pool, "bank", options));
      const Tree accounts = bank->tree("accounts");
      const Tree log = bank->tree("transfers");
      Random random(seed);
      for (uint64_t i = 0;; ++i) {
        const std::string from = name(random.below(kAccounts));
        const std::string to = name(random.below(kAccounts));
        if (from == to) continue;
        bank->transact([&](Transaction& one) {
          const int64_t has = std::stoll(*one.get(accounts, from));
          const int64_t other = std::stoll(*one.get(accounts, to));
          one.put(accounts, from, std::to_string(has - 7));
          one.put(accounts, to, std::to_string(other + 7));
          one.put(log, std::to_string(seed) + "/" + std::to_string(i), from + " to " + to);
        });
        send(out, &i, sizeof i);
      }
    });
    std::vector<uint64_t> acknowledged;
    const uint64_t enough = 1 + random_.below(3000);
    uint64_t told = 0;
    while (acknowledged.size() < enough && child.receive(&told, sizeof told)) {
      acknowledged.push_back(told);
    }
    child.kill();
    while (child.receive(&told, sizeof told)) acknowledged.push_back(told);
    child.wait();
    Pool pool = Pool::open(path(), small_pool());
    Database bank = Database::open(pool, "bank", options);
    int64_t sum = 0;
    for (const auto& [account, money] : contents_of(bank, bank.tree("accounts"))) {
      sum += std::stoll(money);
    }
    EXPECT_EQ(sum, static_cast<int64_t>(1000 * kAccounts));
    const Records transfers = contents_of(bank, bank.tree("transfers"));
    for (const uint64_t i : acknowledged) {
      ASSERT_TRUE(transfers.contains(std::to_string(seed) + "/" + std::to_string(i))) << i;
    }
    expect_sound(bank);
    const RecoveryProgress progress = bank.recovery();
    mended += progress.older + progress.newer + progress.corrupted + progress.fetched;
  }
  EXPECT_GT(mended, 0U);
}

// Commits that return are there; those that do not have changed nothing; and when the fault has
// gone, all goes on.
TEST_P(DatabasePageFile, AFailingPageFileLosesNothing) {
  FaultyFile file(base_seed());
  const DatabaseOptions options = options_in(folder_);
  Pool pool = Pool::create(path(), small_pool());
  {
    Database::create(pool, "d", options).tree("t");
  }
  uint64_t failed = 0;
  for (uint64_t round = 0; round < scaled(8) && !HasFailure(); ++round) {
    file.mend();
    Database database = Database::open(pool, "d", options);
    const Tree tree = database.tree("t");
    judge(database, tree);
    expect_way(database);
    file.full = round % 2 == 1;
    file.percent = 20;
    for (int i = 0; i < 400; ++i) {
      Records next = model_;
      try {
        Transaction transaction = database.begin();
        for (int n = 0; n < 4; ++n) writes_.write(transaction, tree, next, 40);
        transaction.commit();
        model_ = std::move(next);
      } catch (const Error& error) {
        ++failed;
        ASSERT_TRUE(error.code() == ErrorCode::kIo || error.code() == ErrorCode::kNoSpace)
            << error.what();
      }
    }
    file.mend();
    judge(database, tree);
    if (round % 3 == 2) file.percent = 100;  // not even closing it works
  }
  EXPECT_GT(file.faults, 0U);
  EXPECT_GT(failed, 0U);
}

// A damaged page is found: mended from the archive, or an error; never a wrong answer.
TEST_P(DatabasePageFile, ADamagedPageFileIsMendedFromTheArchiveOrReported) {
  for (const bool archived : {true, false}) {
    SCOPED_TRACE(archived);
    const TempDir folder;
    FaultyFile file(base_seed() + 1);
    DatabaseOptions options = options_in(folder);
    options.pm_frames = false;
    if (archived) options.archive = folder.file("archive");
    Pool pool = Pool::anonymous(small_pool());
    Records model;
    {
      Database database = Database::create(pool, "d", options);
      const Tree tree = database.tree("t");
      for (int i = 0; i < 600; ++i) {
        Transaction transaction = database.begin();
        for (int n = 0; n < 4; ++n) writes_.write(transaction, tree, model, 30);
        transaction.commit();
      }
    }
    uint64_t errors = 0;
    uint64_t mended = 0;
    for (int round = 0; round < 20; ++round) {
      file.flips = round % 2 == 0;
      file.is_short = !file.flips;
      file.percent = 3;
      try {
        Database database = Database::open(pool, "d", options);
        const std::optional<Tree> tree = database.find_tree("t");
        ASSERT_TRUE(tree);
        for (const auto& [key, value] : model) {
          Transaction one = database.begin();
          ASSERT_EQ(one.get(*tree, key), value);
        }
        mended += database.recovery().archived;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
        ++errors;
      }
      file.percent = 0;
    }
    EXPECT_GT(file.faults, 0U);
    if (archived) {
      EXPECT_EQ(errors, 0U);
      EXPECT_GT(mended, 0U);
    } else {
      EXPECT_GT(errors, 0U);
    }
  }
}

}  // namespace
}  // namespace perdure::test
