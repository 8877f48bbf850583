// Snapshots: one moment, whatever is done to pages meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "buffer/fixture.h"
#include "buffer/versions.h"
#include "support/data.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/scale.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

Records contents_of(const Snapshot& snapshot, const Tree& tree) {
  Records records;
  Cursor cursor = snapshot.cursor(tree);
  for (bool more = cursor.seek_first(); more; more = cursor.next()) {
    records.emplace(cursor.key(), cursor.value());
  }
  return records;
}

Records backward_contents_of(const Snapshot& snapshot, const Tree& tree) {
  Records records;
  Cursor cursor = snapshot.cursor(tree);
  for (bool more = cursor.seek_last(); more; more = cursor.previous()) {
    records.emplace(cursor.key(), cursor.value());
  }
  return records;
}

class DatabaseSnapshot : public testing::Test {
 protected:
  Pool pool_ = Pool::anonymous(small_pool());
  Random random_{base_seed()};
};

TEST_F(DatabaseSnapshot, ReadsTheMomentOfItsBeginning) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  const Snapshot empty = database.snapshot();
  database.transact([&](Transaction& one) {
    one.put(tree, "a", "1");
    one.put(tree, "b", "1");
  });
  const Snapshot first = database.snapshot();
  database.transact([&](Transaction& one) {
    one.put(tree, "a", "2");
    one.erase(tree, "b");
    one.put(tree, "c", std::string(10'000, 'c'));
  });
  Transaction open = database.begin();
  open.put(tree, "d", "not committed");
  const Snapshot second = database.snapshot();
  EXPECT_EQ(contents_of(empty, tree), Records{});
  EXPECT_EQ(contents_of(first, tree), (Records{{"a", "1"}, {"b", "1"}}));
  EXPECT_EQ(first.get(tree, "a"), "1");
  EXPECT_EQ(first.get(tree, "c"), std::nullopt);
  EXPECT_EQ(contents_of(second, tree), (Records{{"a", "2"}, {"c", std::string(10'000, 'c')}}));
  open.commit();
  EXPECT_EQ(second.get(tree, "d"), std::nullopt);
  EXPECT_EQ(database.snapshot().get(tree, "d"), "not committed");
}

TEST_F(DatabaseSnapshot, LastsAsLongAsItsCopiesAndCursors) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  const auto write = [&](const std::string& value) {
    database.transact([&](Transaction& one) { one.put(tree, "a", value); });
  };
  write("1");
  std::optional<Cursor> cursor = database.snapshot().cursor(tree);
  std::optional<Snapshot> copy;
  {
    const Snapshot snapshot = database.snapshot();
    copy = snapshot;
  }
  write("2");
  EXPECT_EQ(copy->get(tree, "a"), "1");
  copy.reset();
  ASSERT_TRUE(cursor->seek_first());
  EXPECT_EQ(cursor->value(), "1");
  EXPECT_EQ(statistic(database, "snapshots"), 1);
  EXPECT_GT(statistic(database, "snapshot_bytes"), 0);
  cursor.reset();
  EXPECT_EQ(statistic(database, "snapshots"), 0);
  EXPECT_EQ(statistic(database, "snapshot_bytes"), 0);
  write("3");
  EXPECT_EQ(statistic(database, "snapshot_bytes"), 0);
}

// Also of one whose root is a page that another tree had at the moment.
TEST_F(DatabaseSnapshot, TreesThatWereMadeLaterAreEmpty) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  Records model;
  database.transact([&](Transaction& one) {
    for (int i = 0; i < 200; ++i) {
      model["key" + std::to_string(i)] = std::string(100, 'v');
      one.put(tree, "key" + std::to_string(i), std::string(100, 'v'));
    }
  });
  const Snapshot snapshot = database.snapshot();
  database.transact([&](Transaction& one) {
    for (const auto& [key, value] : model) one.erase(tree, key);
  });
  ASSERT_GT(statistic(database, "free_pages"), 2);
  const double pages = statistic(database, "pages");
  const Tree later = database.tree("later");
  ASSERT_EQ(statistic(database, "pages"), pages);  // its root was a page of the other tree
  database.transact([&](Transaction& one) { one.put(later, "key1", "x"); });
  EXPECT_EQ(contents_of(snapshot, later), Records{});
  EXPECT_EQ(snapshot.get(later, "key1"), std::nullopt);
  EXPECT_EQ(backward_contents_of(snapshot, *database.find_tree("later")), Records{});
  EXPECT_FALSE(snapshot.find_tree("later"));
  EXPECT_EQ(snapshot.trees(), std::vector<std::string>{"t"});
  EXPECT_EQ(contents_of(snapshot, *snapshot.find_tree("t")), model);
  const Snapshot now = database.snapshot();
  EXPECT_EQ(contents_of(now, later), (Records{{"key1", "x"}}));
  EXPECT_EQ(now.trees(), (std::vector<std::string>{"later", "t"}));
  Pool pool = Pool::anonymous(small_pool());
  const Database other = Database::create(pool, "other", small_database());
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { (void)other.snapshot().get(tree, "a"); }));
}

TEST_F(DatabaseSnapshot, CommitsThatFailDoNotShow) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  const auto write = [&](const std::string& key, uint64_t bytes) {
    database.transact([&](Transaction& one) { one.put(tree, key, std::string(bytes, 'v')); });
  };
  for (int i = 0; i < 100; ++i) write(std::to_string(i), 50);
  const Snapshot snapshot = database.snapshot();
  const Records records = contents_of(snapshot, tree);
  Transaction large = database.begin();
  // Each write changes many bytes of the log: leaves are split into pages of which each is logged
  // wholly.
  const auto fill = [&] {
    for (uint64_t i = 0; i < 160; ++i) {
      large.put(tree, std::to_string(i) + std::string(500, 'k'), std::string(100, 'v'));
    }
    for (uint64_t i = 0; i < 40; ++i)
      large.put(tree, "big" + std::to_string(i), std::string(1'020, 'v'));
  };
  bool failed = false;
  try {
    fill();
    large.commit();
  } catch (const Error& error) {
    failed = true;
    EXPECT_EQ(error.code(), ErrorCode::kTooLarge) << error.what();
  }
  EXPECT_TRUE(failed);
  EXPECT_EQ(contents_of(snapshot, tree), records);
  const Snapshot after = database.snapshot();
  EXPECT_EQ(contents_of(after, tree), records);
  write("0", 51);
  EXPECT_EQ(contents_of(snapshot, tree), records);
  EXPECT_EQ(contents_of(after, tree), records);
}

TEST(Versions, KeepNothingOfAPageForWhichThereIsNoMemory) {
  bool refused = true;
  for (uint64_t allocations = 0; refused; ++allocations) {
    SCOPED_TRACE(allocations);
    const auto versions = std::make_shared<buffer::Versions>(1 << 20);
    std::atomic<uint64_t> visible{10};
    auto moment = versions->begin(visible);
    const std::function<std::string()> before = [] { return std::string(4096, 'x'); };
    const std::function<void(const buffer::Versions::Keep&)> replaced =
        [&](const buffer::Versions::Keep& keep) {
          for (uint64_t page = 0; page < 3; ++page) keep(page, 5, before);
        };
    ShortMemory memory(allocations);
    versions->publish(visible, 20, 15, replaced);
    memory.end();
    refused = memory.refused() > 0;
    EXPECT_EQ(versions->given_up(), refused ? 1U : 0U);
    EXPECT_EQ(versions->pages(), refused ? 0U : 3U);
    moment.reset();
    EXPECT_EQ(versions->pages(), 0U);
    EXPECT_EQ(versions->bytes(), 0U);
  }
}

TEST_F(DatabaseSnapshot, TheOldestIsGivenUpWhenTheBoundIsPassed) {
  DatabaseOptions options = small_database();
  options.snapshot_bytes = 100'000;
  Database database = Database::create(pool_, "d", options);
  const Tree tree = database.tree("t");
  const auto write = [&](uint64_t from, uint64_t to, char value) {
    database.transact([&](Transaction& one) {
      for (uint64_t i = from; i < to; ++i) {
        one.put(tree, std::to_string(1000 + i), std::string(300, value));
      }
    });
  };
  write(0, 200, '1');
  write(200, 400, '1');
  const Snapshot old = database.snapshot();
  Cursor cursor = old.cursor(tree);
  ASSERT_TRUE(cursor.seek_first());
  for (uint64_t i = 0; i < 100; ++i) write(0, 10, static_cast<char>('a' + i % 26));
  EXPECT_EQ(old.get(tree, "1000"), std::string(300, '1'));  // one version of each page is enough
  write(200, 400, 'b');
  EXPECT_EQ(statistic(database, "snapshots_given_up"), 0);
  const Snapshot young = database.snapshot();
  const Records records = contents_of(young, tree);
  write(0, 200, '2');  // passes it
  EXPECT_TRUE(fails_with(ErrorCode::kTooOld, [&] { (void)old.get(tree, "1000"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kTooOld, [&] { (void)old.trees(); }));
  EXPECT_TRUE(fails_with(ErrorCode::kTooOld, [&] {
    while (cursor.next()) {
    }
  }));
  EXPECT_EQ(statistic(database, "snapshots_given_up"), 1);
  EXPECT_EQ(contents_of(young, tree), records);
  write(200, 400, '2');
  EXPECT_TRUE(fails_with(ErrorCode::kTooOld, [&] { (void)young.get(tree, "1399"); }));
  EXPECT_EQ(statistic(database, "snapshots_given_up"), 2);
  EXPECT_EQ(statistic(database, "snapshot_bytes"), 0);
  EXPECT_EQ(database.snapshot().get(tree, "1399"), std::string(300, '2'));
  expect_sound(database);
}

struct SnapshotCase {
  uint32_t page_bytes;
  uint64_t dram_pages;
  uint64_t pm_pages;
  bool in_file;
};

class SnapshotModel : public testing::TestWithParam<SnapshotCase> {
 protected:
  struct Held {
    Snapshot snapshot;
    Records records[2];
  };

  void look(const Held& held) {
    const int n = static_cast<int>(random_.below(2));
    const Records& records = held.records[n];
    const Tree& tree = trees_[static_cast<size_t>(n)];
    switch (random_.below(4)) {
      case 0:
        ASSERT_EQ(difference(contents_of(held.snapshot, tree), records), "");
        break;
      case 1:
        ASSERT_EQ(difference(backward_contents_of(held.snapshot, tree), records), "");
        break;
      default:
        for (int i = 0; i < 20; ++i) look_at(held.snapshot, tree, records);
    }
  }
  void look_at(const Snapshot& snapshot, const Tree& tree, const Records& records) {
    const std::string key = writes_.key();
    const auto found = records.find(key);
    const auto expected =
        found == records.end() ? std::nullopt : std::optional<std::string>(found->second);
    ASSERT_EQ(snapshot.get(tree, key), expected) << key;
    Cursor cursor = snapshot.cursor(tree);
    auto at = records.lower_bound(key);
    bool more = cursor.seek(key);
    for (int i = 0; i < 3 && at != records.end(); ++i, ++at, more = cursor.next()) {
      ASSERT_TRUE(more);
      ASSERT_EQ(cursor.key(), at->first);
      ASSERT_EQ(cursor.value(), at->second);
    }
    ASSERT_TRUE(at != records.end() || !more);
    at = records.lower_bound(key);
    ASSERT_EQ(cursor.seek_below(key), at != records.begin());
    ASSERT_TRUE(at == records.begin() || cursor.key() == std::prev(at)->first);
  }

  Random random_{base_seed()};
  RandomWrites writes_{random_, 1200};
  std::vector<Tree> trees_;
};

// Records come and go in two trees, which grow and shrink to one page, while snapshots of all ages
// are looked at.
TEST_P(SnapshotModel, HoldsWhatTheModelHeld) {
  const SnapshotCase& sizes = GetParam();
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_bytes = sizes.page_bytes;
  options.dram_bytes = sizes.dram_pages * sizes.page_bytes;
  options.pm_bytes = sizes.pm_pages * sizes.page_bytes;
  options.pm_frames = sizes.pm_pages != 0;
  options.log_bytes = uint64_t{2} << 20;
  options.pages_max = (uint64_t{32} << 20) / sizes.page_bytes;
  options.background = sizes.in_file;
  options.snapshot_bytes = uint64_t{1} << 30;
  if (sizes.in_file) options.page_file = folder.file("pages");
  Pool pool = Pool::anonymous(small_pool(uint64_t{64} << 20));
  Database database = Database::create(pool, "d", options);
  trees_ = {database.tree("one"), database.tree("two")};
  Records model[2];
  std::list<Held> held;
  const uint64_t rounds = scaled(1500);
  for (uint64_t round = 0; round < rounds && !HasFatalFailure(); ++round) {
    const uint64_t erase_percent = round / 150 % 2 == 0 ? 10 : 90;
    Records next[2] = {model[0], model[1]};
    Transaction transaction = database.begin();
    for (uint64_t n = 1 + random_.below(12); n > 0; --n) {
      const size_t which = random_.below(2);
      writes_.write(transaction, trees_[which], next[which], erase_percent);
    }
    transaction.commit();
    for (const int n : {0, 1}) model[n] = std::move(next[n]);
    if (random_.chance(4)) held.push_back({database.snapshot(), {model[0], model[1]}});
    if (random_.chance(1))
      held.push_back({held.empty() ? database.snapshot() : held.back().snapshot,
                      {held.empty() ? model[0] : held.back().records[0],
                       held.empty() ? model[1] : held.back().records[1]}});
    if (random_.chance(3)) database.checkpoint();
    if (held.size() > 8 || (!held.empty() && random_.chance(2))) {
      // One stays for long.
      auto gone = held.begin();
      std::advance(gone, random_.below(held.size()));
      if (gone != held.begin() || random_.chance(10)) held.erase(gone);
    }
    for (const Held& one : held) {
      if (random_.chance(10)) look(one);
    }
  }
  for (const Held& one : held) {
    for (const int n : {0, 1}) {
      const Tree& tree = trees_[static_cast<size_t>(n)];
      ASSERT_EQ(difference(contents_of(one.snapshot, tree), one.records[n]), "");
      ASSERT_EQ(difference(backward_contents_of(one.snapshot, tree), one.records[n]), "");
    }
  }
  EXPECT_EQ(statistic(database, "snapshots_given_up"), 0);
  if (rounds >= 600) {
    EXPECT_GT(statistic(database, "evictions"), 0);
  }
  held.clear();
  EXPECT_EQ(statistic(database, "snapshot_bytes"), 0);
  expect_sound(database);
}

INSTANTIATE_TEST_SUITE_P(Frames, SnapshotModel,
                         testing::Values(SnapshotCase{4096, 24, 40, true},
                                         SnapshotCase{4096, 48, 0, true},
                                         SnapshotCase{4096, 0, 48, false},
                                         SnapshotCase{16384, 12, 20, false}),
                         [](const auto& info) {
                           return std::to_string(info.param.page_bytes) + "_" +
                                  std::to_string(info.param.dram_pages) + "_" +
                                  std::to_string(info.param.pm_pages);
                         });

// A crash leaves pages in PM that nobody has judged when the snapshot begins.
TEST_F(DatabaseSnapshot, OfADatabaseThatACrashHasLeft) {
  const TempDir folder;
  const std::string path = folder.file("pool");
  RandomWrites writes(random_, 800);
  Records model;
  std::string image;
  {
    Pool pool = Pool::create(path, small_pool());
    Database database = Database::create(pool, "d", small_database());
    const Tree tree = database.tree("t");
    for (int i = 0; i < 400; ++i) {
      Transaction transaction = database.begin();
      for (int n = 0; n < 4; ++n) writes.write(transaction, tree, model, 30);
      transaction.commit();
    }
    image = read_file(path);
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << image;
  Pool pool = Pool::open(path, small_pool());
  Database database = Database::open(pool, "d", small_database());
  ASSERT_GT(database.recovery().pending, 10U);
  const Snapshot snapshot = database.snapshot();
  const Records records = model;
  const Tree tree = database.tree("t");
  for (int i = 0; i < 200; ++i) {
    Transaction transaction = database.begin();
    for (int n = 0; n < 4; ++n) writes.write(transaction, tree, model, 50);
    transaction.commit();
    if (i == 100) database.checkpoint();
    if (i % 50 == 20) {
      ASSERT_EQ(difference(contents_of(snapshot, tree), records), "");
    }
  }
  EXPECT_EQ(difference(contents_of(snapshot, tree), records), "");
  EXPECT_EQ(difference(backward_contents_of(snapshot, tree), records), "");
  EXPECT_EQ(difference(test::contents_of(database, tree), model), "");
}

// Writers move money, and make and remove records beside it; each snapshot has all the money, and
// the same records however often and by whom it is read.
TEST_F(DatabaseSnapshot, ManyThreadsReadOneMomentWhileOthersWrite) {
  DatabaseOptions options = small_database();
  options.background = true;
  Database database = Database::create(pool_, "bank", options);
  const Tree accounts = database.tree("accounts");
  const Tree notes = database.tree("notes");
  constexpr uint64_t kAccounts = 300;
  constexpr uint64_t kWriters = 3;
  const auto name = [](uint64_t n) { return "account" + std::to_string(n * 7919 % 100'000); };
  database.transact([&](Transaction& one) {
    for (uint64_t i = 0; i < kAccounts; ++i) one.put(accounts, name(i), "100");
  });
  std::atomic<uint64_t> writing{kWriters};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kWriters; ++t) {
    threads.emplace_back([&, t] {
      Random random(base_seed() + t);
      for (uint64_t i = 0; i < scaled(600); ++i) {
        const uint64_t from = random.below(kAccounts);
        const uint64_t to = (from + 1 + random.below(kAccounts - 1)) % kAccounts;
        database.transact([&](Transaction& one) {
          const int64_t has = std::stoll(*one.get(accounts, name(from)));
          const int64_t other = std::stoll(*one.get(accounts, name(to)));
          one.put(accounts, name(from), std::to_string(has - 3));
          one.put(accounts, name(to), std::to_string(other + 3));
          const std::string note = std::to_string(t) + "/" + std::to_string(random.below(100));
          if (!one.erase(notes, note)) one.put(notes, note, std::string(random.below(3000), 'n'));
        });
      }
      writing.fetch_sub(1);
    });
  }
  std::atomic<uint64_t> looked{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Random random(base_seed() + 100 + static_cast<uint64_t>(t));
      do {
        const Snapshot snapshot = database.snapshot();
        const Records money = contents_of(snapshot, accounts);
        const Records texts = contents_of(snapshot, notes);
        int64_t sum = 0;
        for (const auto& [account, amount] : money) sum += std::stoll(amount);
        EXPECT_EQ(sum, static_cast<int64_t>(100 * kAccounts));
        std::thread other(
            [&] { EXPECT_EQ(difference(backward_contents_of(snapshot, accounts), money), ""); });
        for (uint64_t i = 1 + random.below(4); i > 0; --i) {
          EXPECT_EQ(difference(contents_of(snapshot, accounts), money), "");
          EXPECT_EQ(difference(backward_contents_of(snapshot, notes), texts), "");
          looked.fetch_add(1);
        }
        other.join();
      } while (writing.load() > 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(looked.load(), 0U);
  EXPECT_EQ(statistic(database, "snapshot_bytes"), 0);
  expect_sound(database);
}

}  // namespace
}  // namespace perdure::test
