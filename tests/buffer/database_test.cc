// What a database does while nothing fails.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "buffer/btree/node.h"
#include "buffer/faulty_file.h"
#include "buffer/fixture.h"
#include "buffer/layout.h"
#include "buffer/log.h"
#include "buffer/page.h"
#include "buffer/page_store.h"
#include "buffer/page_undo.h"
#include "buffer/replay.h"
#include "perdure/catalog.h"
#include "pm/layout.h"
#include "support/at_place.h"
#include "support/data.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/scale.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

class DatabaseTest : public testing::Test {
 protected:
  Pool pool_ = Pool::anonymous(small_pool());
  Random random_{base_seed()};
};

TEST_F(DatabaseTest, KeepsWhatATransactionWrites) {
  Database database = Database::create(pool_, "bank", small_database());
  const Tree tree = database.tree("accounts");
  database.transact([&](Transaction& transaction) {
    transaction.put(tree, "alice", "10");
    transaction.put(tree, "", "nobody");
    EXPECT_EQ(transaction.get(tree, "alice"), "10");
  });
  Transaction transaction = database.begin();
  EXPECT_EQ(transaction.get(tree, "alice"), "10");
  EXPECT_EQ(transaction.get(tree, ""), "nobody");
  EXPECT_EQ(transaction.get(tree, "bob"), std::nullopt);
  EXPECT_FALSE(transaction.insert(tree, "alice", "0"));
  EXPECT_TRUE(transaction.insert(tree, "bob", "0"));
  EXPECT_TRUE(transaction.erase(tree, "alice"));
  EXPECT_FALSE(transaction.erase(tree, "alice"));
  transaction.abort();
  EXPECT_THROW(transaction.get(tree, "bob"), Error);
  EXPECT_EQ(contents_of(database, tree), (Records{{"", "nobody"}, {"alice", "10"}}));
}

// Its pages are one block, and none is as large as half of a pool whose capacity was raised.
TEST(RaisedPool, HasRoomForADatabase) {
  const TempDir dir;
  PoolOptions options = small_pool(Pool::kMinCapacityBytes);
  Pool::create(dir.file("pool"), options).close();
  for (const uint64_t mebibytes : {9, 32}) {
    options.capacity_at_least_bytes = mebibytes << 20;
    Pool pool = Pool::open(dir.file("pool"), options);
    const std::string name = "of " + std::to_string(mebibytes);
    DatabaseOptions sizes = small_database();
    sizes.pages_max = 0;
    const Database database = Database::create(pool, name, sizes);
    EXPECT_GT(pool.info().allocated_bytes, mebibytes << 18) << mebibytes;
  }
}

TEST_F(DatabaseTest, SavepointsUndoWhatCameAfter) {
  Database database = Database::create(pool_, "bank", small_database());
  const Tree tree = database.tree("t");
  Transaction transaction = database.begin();
  transaction.put(tree, "a", "1");
  const auto first = transaction.savepoint();
  transaction.put(tree, "a", "2");
  transaction.put(tree, "b", "2");
  transaction.erase(tree, "a");
  transaction.rollback_to(first);
  EXPECT_EQ(transaction.get(tree, "a"), "1");
  EXPECT_EQ(transaction.get(tree, "b"), std::nullopt);
  transaction.put(tree, "c", "3");
  transaction.commit();
  EXPECT_EQ(contents_of(database, tree), (Records{{"a", "1"}, {"c", "3"}}));
}

// Nothing is kept of writes before the first savepoint: to go back there is refused, not forgotten.
TEST_F(DatabaseTest, AnUnknownSavepointIsRefused) {
  Database database = Database::create(pool_, "bank", small_database());
  const Tree tree = database.tree("t");
  Transaction transaction = database.begin();
  transaction.put(tree, "a", "1");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { transaction.rollback_to(0); }));
  const auto first = transaction.savepoint();
  transaction.put(tree, "a", "2");
  const auto second = transaction.savepoint();
  transaction.put(tree, "a", "3");
  transaction.rollback_to(second);
  EXPECT_EQ(transaction.get(tree, "a"), "2");
  transaction.rollback_to(first);
  EXPECT_EQ(transaction.get(tree, "a"), "1");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { transaction.rollback_to(second); }));
  transaction.commit();
  EXPECT_EQ(contents_of(database, tree), (Records{{"a", "1"}}));
}

// The same, for pages of all sizes, these and the log in the pool and in files, and opened again in
// between.
class DatabaseModel : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, bool, bool>> {};

TEST_P(DatabaseModel, HoldsWhatTheModelHolds) {
  const auto [page_bytes, checksums, in_file, log_in_file] = GetParam();
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_bytes = page_bytes;
  options.checksums = checksums;
  options.dram_bytes = uint64_t{64} * page_bytes;
  options.pm_bytes = uint64_t{64} * page_bytes;
  options.log_bytes = uint64_t{2} << 20;
  options.pages_max = (uint64_t{32} << 20) / page_bytes;
  options.background = in_file;
  if (in_file) options.page_file = folder.file("pages");
  if (log_in_file) options.log_file = folder.file("log");
  Pool pool = Pool::anonymous(small_pool(uint64_t{64} << 20));
  Random random(base_seed());
  RandomWrites writes(random, 3000);
  Records model;
  const uint64_t rounds = scaled(6);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    Database database = Database::open_or_create(pool, "model", options);
    const Tree tree = database.tree("t");
    ASSERT_EQ(difference(contents_of(database, tree), model), "");
    for (uint64_t i = 0; i < 400; ++i) {
      Records next = model;
      Transaction transaction = database.begin();
      const uint64_t count = 1 + random.below(8);
      for (uint64_t n = 0; n < count; ++n) {
        writes.write(transaction, tree, next, round + 1 == rounds ? 90 : 30);
      }
      if (random.chance(10)) continue;  // aborted
      transaction.commit();
      model = std::move(next);
    }
    ASSERT_EQ(difference(contents_of(database, tree), model), "");
    expect_sound(database);
  }
  // All of it goes, and so do the pages.
  Database database = Database::open(pool, "model", options);
  const Tree tree = database.tree("t");
  while (!model.empty()) {
    Transaction transaction = database.begin();
    for (int n = 0; n < 20 && !model.empty(); ++n) {
      const auto one = std::next(model.begin(), static_cast<ptrdiff_t>(random.below(model.size())));
      ASSERT_TRUE(transaction.erase(tree, one->first));
      model.erase(one);
    }
    transaction.commit();
  }
  expect_sound(database);
  EXPECT_EQ(contents_of(database, tree), Records{});
  EXPECT_LE(statistic(database, "pages") - statistic(database, "free_pages"), 12);
}

INSTANTIATE_TEST_SUITE_P(Sizes, DatabaseModel,
                         testing::Values(std::tuple{4096U, 8U, false, false},
                                         std::tuple{4096U, 32U, true, false},
                                         std::tuple{4096U, 8U, false, true},
                                         std::tuple{8192U, 1U, true, true},
                                         std::tuple{65536U, 8U, false, false}));

TEST_F(DatabaseTest, CursorsGoBothWaysThroughOwnWrites) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  Records model;
  RandomWrites writes(random_, 2000, 0);
  for (int i = 0; i < 300; ++i) {
    Transaction transaction = database.begin();
    for (int n = 0; n < 5; ++n) writes.write(transaction, tree, model, 10);
    transaction.commit();
  }
  Transaction transaction = database.begin();
  for (int n = 0; n < 100; ++n) writes.write(transaction, tree, model, 30);
  Cursor cursor = transaction.cursor(tree);
  Records forward;
  for (bool more = cursor.seek_first(); more; more = cursor.next()) {
    forward.emplace(cursor.key(), cursor.value());
  }
  EXPECT_EQ(difference(forward, model), "");
  Records backward;
  for (bool more = cursor.seek_last(); more; more = cursor.previous()) {
    backward.emplace(cursor.key(), cursor.value());
  }
  EXPECT_EQ(difference(backward, model), "");
  for (int i = 0; i < 200; ++i) {
    const std::string key = writes.key();
    const auto at = model.lower_bound(key);
    ASSERT_EQ(cursor.seek(key), at != model.end());
    if (at == model.end()) continue;
    ASSERT_EQ(cursor.key(), at->first);
    ASSERT_EQ(cursor.previous(), at != model.begin());
    if (at == model.begin()) continue;
    ASSERT_EQ(cursor.key(), std::prev(at)->first);
    ASSERT_TRUE(cursor.next());
    ASSERT_EQ(cursor.key(), at->first);
    ASSERT_EQ(cursor.seek_below(key), true);
    ASSERT_EQ(cursor.key(), std::prev(at)->first);
  }
}

// A cursor that has found nothing is nowhere: it does not go on from there.
TEST_F(DatabaseTest, ACursorThatIsNowhereDoesNotMove) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  Transaction transaction = database.begin();
  for (const bool wrote : {false, true}) {
    if (wrote) transaction.put(tree, "b", "1");
    Cursor cursor = transaction.cursor(tree);
    for (const bool up : {true, false}) {
      ASSERT_FALSE(up ? cursor.seek("c") : cursor.seek_below("b"));
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "seek first", [&] { cursor.next(); }));
        EXPECT_TRUE(
            fails_with(ErrorCode::kInvalidArgument, "seek first", [&] { cursor.previous(); }));
        EXPECT_FALSE(cursor.valid());
      }
    }
  }
}

TEST_F(DatabaseTest, ReadsOfAnotherMomentAreAConflict) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  const auto put = [&](const char* key, const char* value) {
    database.transact([&](Transaction& one) { one.put(tree, key, value); });
  };
  put("a", "1");
  put("c", "1");
  // Two that read what the other one writes.
  Transaction first = database.begin();
  Transaction second = database.begin();
  first.get(tree, "a");
  first.put(tree, "c", "2");
  second.get(tree, "c");
  second.put(tree, "a", "2");
  first.commit();
  EXPECT_TRUE(fails_with(ErrorCode::kConflict, [&] { second.commit(); }));
  // A key that appears in a range that was read.
  Transaction scanner = database.begin();
  Cursor cursor = scanner.cursor(tree);
  uint64_t count = 0;
  for (bool more = cursor.seek_first(); more; more = cursor.next()) ++count;
  EXPECT_EQ(count, 2U);
  scanner.put(tree, "count", "2");
  put("b", "1");
  EXPECT_TRUE(fails_with(ErrorCode::kConflict, [&] { scanner.commit(); }));
  // One that has read nothing yet that changed sees the newest; one that has, sees no second
  // moment.
  Transaction reader = database.begin();
  put("a", "3");
  EXPECT_EQ(reader.get(tree, "a"), "3");
  put("a", "4");
  put("c", "4");
  EXPECT_TRUE(fails_with(ErrorCode::kConflict, [&] { reader.get(tree, "c"); }));
}

// The first commit after opening, and after one that has failed, is a conflict as any other one.
TEST_F(DatabaseTest, NoUpdateIsLostAfterOpeningOrAFailure) {
  DatabaseOptions options = small_database();
  options.pages_max = 24;
  {
    Database database = Database::create(pool_, "d", options);
    database.transact([&](Transaction& one) { one.put(database.tree("t"), "x", "1"); });
  }
  Database database = Database::open(pool_, "d", options);
  const Tree tree = database.tree("t");
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    Transaction first = database.begin();
    Transaction second = database.begin();
    const std::string value = *first.get(tree, "x");
    EXPECT_EQ(second.get(tree, "x"), value);
    first.put(tree, "x", value + "a");
    second.put(tree, "x", value + "b");
    first.commit();
    EXPECT_TRUE(fails_with(ErrorCode::kConflict, [&] { second.commit(); }));
    EXPECT_EQ(database.begin().get(tree, "x"), value + "a");
    Transaction large = database.begin();
    for (const char* key : {"a", "b", "c", "y"}) {
      large.put(tree, key, std::string(30'000, 'v'));
    }
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { large.commit(); }));
  }
}

// Each key comes behind those that were scanned, some into a leaf of their own.
TEST_F(DatabaseTest, AScanSeesWhatIsAppended) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  const Tree other = database.tree("other");
  for (int i = 1000; i < 1400; ++i) {
    Transaction scanner = database.begin();
    Cursor cursor = scanner.cursor(tree);
    for (bool more = cursor.seek_last(); more; more = cursor.next()) {
    }
    scanner.put(other, "sum", "1");
    database.transact(
        [&](Transaction& one) { one.put(tree, std::to_string(i), std::string(100, 'v')); });
    ASSERT_TRUE(fails_with(ErrorCode::kConflict, [&] { scanner.commit(); })) << i;
  }
  EXPECT_GT(statistic(database, "pages"), 10);
}

TEST_F(DatabaseTest, ACommitOfNothingHoldsNobodyUp) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  Transaction transaction = database.begin();
  transaction.put(tree, "x", "1");
  transaction.erase(tree, "x");
  transaction.commit();
  EXPECT_EQ(database.begin().get(tree, "x"), std::nullopt);
}

TEST_F(DatabaseTest, ManyThreadsMoveMoneyAndSeeIt) {
  DatabaseOptions options = small_database();
  options.background = true;
  Database database = Database::create(pool_, "bank", options);
  const Tree tree = database.tree("accounts");
  constexpr uint64_t kAccounts = 600;
  const auto name = [](uint64_t n) { return "account" + std::to_string(n * 7919 % 100'000); };
  for (uint64_t n = 0; n < kAccounts; n += 20) {
    database.transact([&](Transaction& one) {
      for (uint64_t i = n; i < n + 20; ++i) one.put(tree, name(i), "100");
    });
  }
  std::atomic<uint64_t> moved{0};
  std::atomic<uint64_t> looked{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(base_seed() + t);
      for (uint64_t i = 0; i < scaled(500); ++i) {
        const std::string from = name(random.below(kAccounts));
        const std::string to = name(random.below(kAccounts));
        const int64_t amount = static_cast<int64_t>(random.below(10));
        database.transact([&](Transaction& one) {
          const int64_t has = std::stoll(*one.get(tree, from));
          if (from == to || has < amount) return one.abort();
          const int64_t other = std::stoll(*one.get(tree, to));
          one.put(tree, from, std::to_string(has - amount));
          one.put(tree, to, std::to_string(other + amount));
        });
        moved.fetch_add(1);
      }
    });
  }
  threads.emplace_back([&] {
    do {
      database.transact([&](Transaction& one) {
        Cursor cursor = one.cursor(tree);
        int64_t sum = 0;
        for (bool more = cursor.seek_first(); more; more = cursor.next()) {
          sum += std::stoll(std::string(cursor.value()));
        }
        EXPECT_EQ(sum, static_cast<int64_t>(100 * kAccounts));
      });
      looked.fetch_add(1);
      std::this_thread::yield();
    } while (moved.load() < 4 * scaled(500));
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(looked.load(), 0U);
  expect_sound(database);
}

// Every second key is always there, with a value that repeats it, while those around it come and
// go, nodes split and join, pages leave and come back: in DRAM alone, where keys are read without
// latches, and beside PM.
TEST_F(DatabaseTest, KeysAreFoundWhateverHappensAroundThem) {
  constexpr uint64_t kKeys = 2000;
  for (const uint64_t dram_pages : {40, 400, 24}) {
    SCOPED_TRACE(dram_pages);
    Pool pool = Pool::anonymous(small_pool(uint64_t{16} << 20));
    DatabaseOptions options = small_database();
    options.dram_bytes = dram_pages * 4096;
    options.pm_frames = dram_pages == 24;
    options.background = true;
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    const auto name = [](uint64_t n) { return std::to_string(n * 7919 % 100'003) + "/key"; };
    const auto value_of = [](const std::string& key, uint64_t times) {
      std::string value;
      for (uint64_t i = 0; i < times; ++i) value += key;
      return value;
    };
    for (uint64_t n = 0; n < kKeys; n += 50) {
      database.transact([&](Transaction& one) {
        for (uint64_t i = n; i < n + 50; i += 2) one.put(tree, name(i), value_of(name(i), 3));
      });
    }
    std::atomic<uint64_t> writing{2};
    std::atomic<uint64_t> wrong{0};
    std::atomic<uint64_t> read{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        Random random(base_seed() + t);
        for (uint64_t i = 0; i < scaled(600); ++i) {
          // Now most are made, now most are removed.
          const bool grows = i / 100 % 2 == 0;
          database.transact([&](Transaction& one) {
            for (int n = 0; n < 10; ++n) {
              const uint64_t at = random.below(kKeys);
              const std::string key = name(at);
              if (at % 2 == 0) {
                one.put(tree, key, value_of(key, 1 + random.below(12)));
              } else if (random.chance(grows ? 90 : 10)) {
                one.put(tree, key, value_of(key, 1 + random.below(40)));
              } else {
                one.erase(tree, key);
              }
            }
          });
        }
        writing.fetch_sub(1);
      });
    }
    for (uint64_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        Random random(base_seed() + 10 + t);
        do {
          const uint64_t at = random.below(kKeys);
          const std::string key = name(at);
          Transaction one = database.begin();
          const std::optional<std::string> value = one.get(tree, key);
          if (!value && at % 2 == 0) wrong.fetch_add(1);
          if (value && *value != value_of(key, value->size() / key.size())) wrong.fetch_add(1);
          read.fetch_add(1);
        } while (writing.load() > 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0U) << "of " << read.load();
    expect_sound(database);
  }
}

TEST_F(DatabaseTest, TransactSucceedsWhateverTheContention) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  database.transact([&](Transaction& one) { one.put(tree, "x", "0"); });
  constexpr uint64_t kThreads = 16;
  const uint64_t rounds = scaled(50);
  std::atomic<uint64_t> failed{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < rounds; ++i) {
        try {
          database.transact([&](Transaction& one) {
            const uint64_t value = std::stoull(*one.get(tree, "x"));
            std::this_thread::yield();
            one.put(tree, "x", std::to_string(value + 1));
          });
        } catch (const Error&) {
          failed.fetch_add(1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0U);
  EXPECT_EQ(database.begin().get(tree, "x"), std::to_string(kThreads * rounds));
}

// One that has all others wait may commit another one in between.
TEST_F(DatabaseTest, WhoHoldsCommitsBackMayCommit) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      while (!stop) {
        database.transact([&](Transaction& one) { one.put(tree, std::to_string(t), "x"); });
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    int attempts = 0;
    database.transact([&](Transaction& outer) {
      outer.get(tree, "k");
      const bool in_the_way = ++attempts <= 8;
      database.transact([&](Transaction& inner) {
        inner.put(tree, in_the_way ? "k" : "other", std::to_string(attempts));
      });
      if (!in_the_way) database.tree("of round " + std::to_string(round));
      outer.put(tree, "mine", std::to_string(round));
    });
    EXPECT_EQ(attempts, 9);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(database.begin().get(tree, "mine"), "19");
}

TEST_F(DatabaseTest, TooMuchIsRefusedAndChangesNothing) {
  DatabaseOptions options = small_database();
  options.pages_max = 64;
  Database database = Database::create(pool_, "d", options);
  const Tree tree = database.tree("t");
  Transaction transaction = database.begin();
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { transaction.put(tree, std::string(513, 'k'), ""); }));
  EXPECT_TRUE(fails_with(ErrorCode::kTooLarge,
                         [&] { transaction.put(tree, "k", std::string(200'000, 'v')); }));
  transaction.abort();
  // Until the pages are used up: each commit that fails has done nothing.
  Records model;
  uint64_t refused = 0;
  for (int i = 0; i < 100; ++i) {
    Records next = model;
    Transaction one = database.begin();
    for (int n = 0; n < 4; ++n) {
      const std::string key = "key" + std::to_string(i * 10 + n);
      const std::string value(n == 2 ? 5000 : 700, 'v');
      one.put(tree, key, value);
      next[key] = value;
    }
    try {
      one.commit();
      model = std::move(next);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(difference(contents_of(database, tree), model), "");
  expect_sound(database);
}

// A commit empties leaves whose keys share a long beginning, and then runs out of pages.
TEST_F(DatabaseTest, WhatFailsLeavesPagesInTheirLayout) {
  DatabaseOptions options = small_database();
  options.pages_max = 24;
  options.log_bytes = uint64_t{4} << 20;
  for (const uint64_t count : {uint64_t{7}, uint64_t{234}}) {
    SCOPED_TRACE(count);
    Pool pool = Pool::anonymous(small_pool());
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    const Tree other = database.tree("other");  // comes behind it
    const auto key = [](uint64_t n) { return std::string(400, 'p') + std::to_string(1000 + n); };
    Records model;
    for (uint64_t n = 0; n < (count < 10 ? count : 500); n += 50) {
      database.transact([&](Transaction& one) {
        for (uint64_t i = n; i < n + 50 && i < (count < 10 ? count : 500); ++i) {
          one.put(tree, key(i), "v");
          model[key(i)] = "v";
        }
      });
    }
    Transaction transaction = database.begin();
    for (uint64_t n = 0; n < count; ++n) transaction.erase(tree, key(n));
    for (int n = 0; n < 5; ++n) {
      transaction.put(other, std::to_string(n), std::string(24'000, 'v'));
    }
    ASSERT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { transaction.commit(); }));
    ASSERT_EQ(difference(contents_of(database, tree), model), "");
    database.transact([&](Transaction& one) { one.put(tree, "Q", "q"); });
    model["Q"] = "q";
    EXPECT_EQ(difference(contents_of(database, tree), model), "");
    expect_sound(database);
  }
}

TEST_F(DatabaseTest, TreesOfAnotherDatabaseAreRefused) {
  Database database = Database::create(pool_, "d", small_database());
  database.tree("t");
  Pool pool = Pool::anonymous(small_pool());
  Database other = Database::create(pool, "d", small_database());
  const Tree tree = other.tree("t");
  Transaction one = database.begin();
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { one.put(tree, "x", "1"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { one.get(tree, "x"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { one.cursor(tree); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { one.insert(tree, "x", "1"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { one.erase(tree, "x"); }));
}

TEST_F(DatabaseTest, WritingAKeyAgainTakesNoRoom) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  Transaction one = database.begin();
  const auto begin = one.savepoint();
  for (int round = 0; round < 2; ++round) {
    const std::string value(50'000, static_cast<char>('a' + round));
    for (int n = 0; n < 10; ++n) one.put(tree, "x", value);
    one.put(tree, "y", value);
    EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] { one.put(tree, "z", value); }));
    if (round == 0) one.rollback_to(begin);
  }
  one.commit();
  EXPECT_EQ(contents_of(database, tree),
            (Records{{"x", std::string(50'000, 'b')}, {"y", std::string(50'000, 'b')}}));
}

TEST_F(DatabaseTest, PagesMoveBetweenDramAndPm) {
  DatabaseOptions options = small_database();
  Database database = Database::create(pool_, "d", options);
  const Tree tree = database.tree("t");
  Records model;
  for (int i = 0; i < 200; ++i) {
    database.transact([&](Transaction& one) {
      for (int n = 0; n < 5; ++n) {
        const std::string key = "key" + std::to_string((i * 5 + n) * 7919 % 100'003);
        one.put(tree, key, std::string(100, 'v'));
        model[key] = std::string(100, 'v');
      }
    });
  }
  // Some are asked for again and again.
  for (int i = 0; i < 3000; ++i) {
    Transaction one = database.begin();
    EXPECT_TRUE(one.get(tree, "key" + std::to_string(i % 8 * 7919 % 100'003)));
  }
  EXPECT_GT(statistic(database, "promotions"), 0);
  EXPECT_GT(statistic(database, "pm_pages"), 0);
  EXPECT_EQ(difference(contents_of(database, tree), model), "");
}

TEST_F(DatabaseTest, FramesAreOtherOnesAtEachOpening) {
  Records model;
  DatabaseOptions options = small_database();
  RandomWrites writes(random_, 2000, 1);
  for (const uint64_t pm_frames : {40, 0, 80, 20, 200}) {
    options.pm_frames = pm_frames != 0;
    options.pm_bytes = pm_frames * 4096;
    Database database = Database::open_or_create(pool_, "d", options);
    const Tree tree = database.tree("t");
    EXPECT_EQ(statistic(database, "pm_frames"), static_cast<double>(pm_frames));
    EXPECT_EQ(difference(contents_of(database, tree), model), "");
    for (int i = 0; i < 100; ++i) {
      Transaction transaction = database.begin();
      for (int n = 0; n < 5; ++n) writes.write(transaction, tree, model, 20);
      transaction.commit();
    }
  }
}

TEST_F(DatabaseTest, WrongOptionsAndFilesAreRefused) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_bytes = 5000;
  EXPECT_THROW(Database::create(pool_, "d", options), Error);
  options = small_database();
  options.page_file = folder.file("a");
  {
    Database::create(pool_, "a", options);
  }
  options.page_file = folder.file("b");
  {
    Database::create(pool_, "b", options);
  }
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { Database::open(pool_, "a", options); }));
  options.page_file = folder.file("c");
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, [&] { Database::open(pool_, "a", options); }));
  options.page_file = "";
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { Database::open(pool_, "a", options); }));
}

// What is in the file stays in it.
TEST_F(DatabaseTest, AFileThatIsNoArchiveIsRefusedAndKept) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.archive = folder.file("precious");
  const std::string content(10'000, 'z');
  std::ofstream(options.archive) << content;
  const auto is_kept = [&] {
    std::ifstream file(options.archive, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {}) == content;
  };
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { Database::create(pool_, "d", options); }));
  EXPECT_TRUE(is_kept());
  options.archive = folder.file("archive");
  {
    Database::create(pool_, "d", options);
  }
  options.archive = folder.file("precious");
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { Database::open(pool_, "d", options); }));
  EXPECT_TRUE(is_kept());
  options.archive = folder.file("archive");
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { Database::create(pool_, "other", options); }));
  Database::open(pool_, "d", options);
}

// Pages made from an archive that lacks entries would be old ones.
TEST_F(DatabaseTest, AnArchiveWithAGapIsRefused) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.archive = folder.file("archive");
  const auto put = [&](Database& database, const char* value) {
    database.transact([&](Transaction& one) { one.put(database.tree("t"), "x", value); });
  };
  {
    Database database = Database::create(pool_, "d", options);
    put(database, "1");
  }
  {
    Database database = Database::open(pool_, "d", options);
    put(database, "2");
  }
  // Torn at its end, where the log has let go of all: damage.
  const auto bytes = std::filesystem::file_size(options.archive);
  const std::string copy = folder.file("copy");
  std::filesystem::copy_file(options.archive, copy);
  std::filesystem::resize_file(options.archive, bytes - 64);
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { Database::open(pool_, "d", options); }));
  EXPECT_EQ(std::filesystem::file_size(options.archive), bytes - 64);
  std::filesystem::rename(copy, options.archive);
  // More than all: a torn entry, which is cut off.
  std::filesystem::resize_file(options.archive, bytes + 64);
  {
    Database database = Database::open(pool_, "d", options);
  }
  options.archive = "";
  {
    Database database = Database::open(pool_, "d", options);
    put(database, "3");
  }
  options.archive = folder.file("archive");
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { Database::open(pool_, "d", options); }));
}

// A quarter of a longer one is more than an entry's length can say.
TEST_F(DatabaseTest, ALogThatTheFormatCannotHoldIsRefused) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.log_file = folder.file("log");
  for (const uint64_t bytes : {(uint64_t{16} << 30) + 4096, uint64_t{1} << 40}) {
    options.log_bytes = bytes;
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "log_bytes",
                           [&] { Database::create(pool_, "d", options); }));
    EXPECT_FALSE(std::filesystem::exists(options.log_file));
  }
}

// So many that their bytes are none, in 64 bits.
TEST_F(DatabaseTest, PagesThatNoPoolCanHoldAreRefused) {
  DatabaseOptions options = small_database();
  for (const uint64_t pages : {uint64_t{1} << 52, (uint64_t{1} << 52) + 100, ~uint64_t{0}}) {
    options.pages_max = pages;
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "pages_max",
                           [&] { Database::create(pool_, "d", options); }));
    EXPECT_TRUE(pool_.structures().empty());
  }
}

// Whatever its files are locked for.
TEST_F(DatabaseTest, WhatIsOpenIsInUse) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  options.log_file = folder.file("log");
  const Database open = Database::create(pool_, "d", options);
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { Database::open(pool_, "d", options); }));
}

// Of LSNs there are 2^54: where they end, commits are refused while openings still have some.
TEST_F(DatabaseTest, LsnsThatAreUsedUpAreSaid) {
  const TempDir folder;
  const std::string path = folder.file("pool");
  const auto begin_at = [&](uint64_t lsn) {
    std::string content = read_file(path);
    for (size_t at = 0; at + sizeof(buffer::Root) <= content.size(); at += 64) {
      buffer::Root root;
      std::memcpy(&root, content.data() + at, sizeof root);
      if (root.seal.magic != buffer::kRootMagic || root.page_bytes != 4096) continue;
      root.head = pm::seal_word(lsn / buffer::Log::kAlign, buffer::kHeadSalt);
      std::memcpy(content.data() + at, &root, sizeof root);
      write_file(path, content);
      return;
    }
    FAIL() << "no database";
  };
  const auto put = [](Database& database, const char* value) {
    database.transact([&](Transaction& one) { one.put(*database.find_tree("t"), "x", value); });
  };
  {
    Pool pool = Pool::create(path, small_pool());
    Database database = Database::create(pool, "d", small_database());
    database.tree("t");
    put(database, "1");
  }
  const uint64_t last = buffer::Log::kLsnMax - buffer::Log::kLsnsForOpenings;
  begin_at(last - (uint64_t{4} << 20));
  {
    Pool pool = Pool::open(path, small_pool());
    Database database = Database::open(pool, "d", small_database());
    put(database, "2");
  }
  begin_at(last);
  {
    Pool pool = Pool::open(path, small_pool());
    Database database = Database::open(pool, "d", small_database());
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          fails_with(ErrorCode::kNoSpace, "used up its numbers", [&] { put(database, "3"); }));
    }
    EXPECT_EQ(database.begin().get(*database.find_tree("t"), "x"), "2");
    expect_sound(database);
  }
  begin_at(buffer::Log::kLsnMax - 64);
  Pool pool = Pool::open(path, small_pool());
  EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, "used up its numbers",
                         [&] { Database::open(pool, "d", small_database()); }));
}

TEST_F(DatabaseTest, ACreationThatFailsLeavesNothing) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  options.archive = folder.file("archive");
  DatabaseOptions wrong = options;
  wrong.dram_bytes = 0;
  wrong.pm_frames = false;
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { Database::create(pool_, "d", wrong); }));
  wrong = options;
  wrong.pm_bytes = uint64_t{7} << 20;  // with the log more than the pool
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { Database::create(pool_, "d", wrong); }));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  Database::create(pool_, "d", options);
}

// The page file refuses what it is told to do, from the nth time on.
TEST_F(DatabaseTest, ACreationThatFailsWhileItFormatsLeavesNothing) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  options.log_file = folder.file("log");
  options.archive = folder.file("archive");
  bool refused = true;
  uint64_t times = 0;
  for (; refused; ++times) {
    SCOPED_TRACE(times);
    FaultyFile full;
    full.full = true;
    full.last = times;
    try {
      Database::create(pool_, "d", options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
    }
    refused = full.faults > 0;
    ASSERT_EQ(pool_.structures().empty(), refused);
    EXPECT_TRUE(!refused || std::filesystem::is_empty(folder.path()));
  }
  EXPECT_GT(times, 2U);
  Database again = Database::open(pool_, "d", options);
  again.tree("t");
  expect_sound(again);
}

// Nobody opens it before its creator has it, nor before it is whole, or taken back.
TEST_F(DatabaseTest, NobodyOpensWhatIsBeingCreated) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  for (const bool fails : {true, false}) {
    SCOPED_TRACE(fails);
    FaultyFile full;
    full.full = true;
    if (fails) full.last = 0;
    int refused = 0;
    const AtPlace here("buffer: to be staged", [&] {
      if (pool_.structures().empty()) return;
      EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { Database::open(pool_, "d", options); }));
      ++refused;
    });
    try {
      Database::create(pool_, "d", options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
    }
    EXPECT_GT(refused, 0);
    EXPECT_EQ(pool_.structures().empty(), fails);
    EXPECT_EQ(std::filesystem::is_empty(folder.path()), fails);
  }
}

TEST_F(DatabaseTest, WhoFindsItsNameFirstDoesNotFailACreation) {
  std::optional<Database> opened;
  bool looks = true;
  const AtPlace here("pool: takes a name", [&] {
    if (std::exchange(looks, false)) opened = Database::open(pool_, "d", small_database());
  });
  Database made = Database::create(pool_, "d", small_database());
  EXPECT_FALSE(opened);
  looks = false;
  made.tree("t");
  expect_sound(made);
}

// An archive is as it was when a creation or an opening has failed, and can be given again.
TEST_F(DatabaseTest, WhatFailsLeavesAnArchiveAsItWas) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  options.archive = folder.file("archive");
  for (const bool is_there : {false, true}) {
    SCOPED_TRACE(is_there);
    if (is_there) write_file(options.archive, "");
    const auto expect_as_it_was = [&] {
      EXPECT_EQ(std::filesystem::exists(options.archive), is_there);
      EXPECT_FALSE(is_there && std::filesystem::file_size(options.archive) != 0);
    };
    {
      FaultyFile full;
      full.full = true;
      full.last = 0;
      EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, [&] { Database::create(pool_, "d", options); }));
    }
    expect_as_it_was();
    DatabaseOptions wrong = options;
    wrong.page_file = options.archive;  // a name used twice
    EXPECT_TRUE(fails_with(is_there ? ErrorCode::kExists : ErrorCode::kLocked,
                           [&] { Database::create(pool_, "d", wrong); }));
    expect_as_it_was();
    wrong = options;
    wrong.archive.clear();
    Database::create(pool_, "d", wrong);
    for (uint64_t allocations = 0;; ++allocations) {
      SCOPED_TRACE(allocations);
      ShortMemory memory(allocations);
      try {
        Database::open(pool_, "d", options);
        break;
      } catch (const std::bad_alloc&) {
      } catch (const Error&) {
      }
      memory.end();
      expect_as_it_was();
      if (HasFailure()) return;
    }
    drop_structure(pool_, "d");
    std::filesystem::remove(options.page_file);
    std::filesystem::remove(options.archive);
  }
}

// With so little memory that not even that can be taken back, a database is there, and opens.
TEST_F(DatabaseTest, ACreationThatFindsNoMemoryIsInNobodysWay) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  bool made = false;
  for (uint64_t allocations = 0; !made; ++allocations) {
    SCOPED_TRACE(allocations);
    ShortMemory memory(allocations);
    try {
      const Database one = Database::create(pool_, "d", options);
      made = true;
    } catch (const std::bad_alloc&) {
    } catch (const Error&) {
    }
    memory.end();
    if (!pool_.structures().empty()) {
      Database left = Database::open(pool_, "d", options);
      left.tree("t");
      expect_sound(left);
    } else {
      ASSERT_TRUE(std::filesystem::is_empty(folder.path()));
      continue;
    }
    drop_structure(pool_, "d");
    std::filesystem::remove(options.page_file);
  }
}

// The page's log records are kept, as it may be restored; who commits is told why the log is full.
TEST_F(DatabaseTest, ADamagedPageThatFillsTheLogIsNamed) {
  const TempDir folder;
  const std::string path = folder.file("pool");
  DatabaseOptions options = small_database();
  options.pm_frames = false;
  options.page_file = folder.file("pages");
  std::string left;
  {
    Pool pool = Pool::create(path, small_pool());
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    const Tree other = database.tree("other");
    database.transact([&](Transaction& one) { one.put(tree, "x", "1"); });
    database.transact([&](Transaction& one) { one.put(other, "y", "1"); });
    database.checkpoint();
    database.transact([&](Transaction& one) { one.put(tree, "x", "2"); });
    std::ifstream file(path, std::ios::binary);
    left.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << left;  // as if it had been killed
  std::fstream pages(options.page_file, std::ios::binary | std::ios::in | std::ios::out);
  pages.seekp(2 * 4096 + 2000);
  pages << "damage";
  pages.close();
  Pool pool = Pool::open(path, small_pool());
  Database database = Database::open(pool, "d", options);
  const Tree other = *database.find_tree("other");
  std::string told;
  for (int i = 0; i < 5000 && told.empty(); ++i) {
    try {
      database.transact([&](Transaction& one) { one.put(other, "y", std::string(500, 'y')); });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
      told = error.what();
    }
  }
  EXPECT_NE(told.find("page 2, which is damaged"), std::string::npos) << told;
}

TEST(PageChecksums, PortableAndInstructionAgree) {
  EXPECT_EQ(buffer::crc32c(0, "123456789", 9), 0xe3069283U);
  EXPECT_EQ(buffer::crc32c_portable(0, "123456789", 9), 0xe3069283U);
}

TEST(PageChecksums, FindEveryFlippedByteOfAnyPart) {
  for (const uint32_t parts : {1U, 8U, 32U}) {
    const buffer::PageFormat format(4096, parts);
    std::vector<char> page(4096);
    for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<char>(i * 31);
    buffer::header_of(page.data()) = {7, 99, buffer::PageType::kNode, static_cast<uint16_t>(parts),
                                      0, 0};
    format.seal(page.data(), format.all_parts());
    ASSERT_TRUE(format.is_sound(page.data(), 7));
    EXPECT_FALSE(format.is_sound(page.data(), 8));
    for (size_t i = 0; i < page.size(); ++i) {
      page[i] = static_cast<char>(page[i] ^ 4);
      EXPECT_FALSE(format.is_sound(page.data(), 7)) << i;
      page[i] = static_cast<char>(page[i] ^ 4);
    }
    // A change computes what it touched, and no more.
    page[2000] = 'x';
    format.seal(page.data(), format.parts_of(2000, 1));
    EXPECT_TRUE(format.is_sound(page.data(), 7));
  }
}

std::vector<char> node_page(const buffer::PageFormat& format, const std::string& prefix,
                            uint64_t records) {
  std::vector<char> page(format.page_bytes());
  std::vector<buffer::NodeContent::Record> content;
  for (uint64_t i = 0; i < records; ++i) {
    content.push_back({prefix + std::to_string(1000 + i), std::string(10 + i % 30, 'v'), 0});
  }
  buffer::Node(format, page.data()).build(0, 0, content, 0, content.size());
  buffer::header_of(page.data()) = {
      7, 99, buffer::PageType::kNode, static_cast<uint16_t>(format.parts()), 0, 0};
  format.seal(page.data(), format.all_parts());
  return page;
}

// Some change that fits the node; what it needs is kept in `texts`.
buffer::LogRecord some_change(const buffer::PageFormat& format, std::vector<char>& page,
                              Random& random, std::array<std::string, 2>& texts) {
  buffer::Node node(format, page.data());
  buffer::LogRecord record{};
  record.header.page = 7;
  const auto set = [&](buffer::Op op, uint32_t slot) {
    record.header.op = static_cast<uint16_t>(op);
    record.header.slot = static_cast<uint16_t>(slot);
    record.key = texts[0];
    record.value = texts[1];
  };
  texts = {"", std::string(random.below(40), static_cast<char>('a' + random.below(26)))};
  const auto slot = static_cast<uint32_t>(random.below(node.count() + 1U));
  const uint64_t kind = random.below(8);
  if (kind < 3 && slot < node.count()) {
    texts[1].resize(node.value(slot).size(), 'x');
    set(buffer::Op::kReplace, slot);
  } else if (kind == 3 && slot < node.count() && node.free_bytes() > 40) {
    set(buffer::Op::kReplace, slot);
  } else if (kind == 4 && slot < node.count()) {
    texts[1].clear();
    set(buffer::Op::kErase, slot);
  } else if (kind == 5) {
    // The link to the first child: nothing that the others need.
    texts[1].resize(8, 'p');
    set(buffer::Op::kPatch, offsetof(buffer::NodeHeader, first));
  } else {
    bool found = true;
    while (found) {
      texts[0] = "key" + std::to_string(random.below(1'000'000));
      set(buffer::Op::kInsert, node.lower_bound(texts[0], found));
    }
    if (!node.has_room(texts[0], texts[1].size())) return some_change(format, page, random, texts);
  }
  return record;
}

TEST(PageChecksums, ADifferenceIsShiftedAlikeByAllWays) {
  Random random{base_seed()};
  for (uint32_t bytes = 0; bytes <= buffer::kPageBytesMax; bytes += bytes < 1100 ? 1 : 997) {
    std::vector<char> a(8 + bytes);
    std::vector<char> b(8 + bytes);
    for (size_t i = 0; i < 8; ++i) {
      a[i] = static_cast<char>(random.below(256));
      b[i] = static_cast<char>(random.below(256));
    }
    const uint32_t before = buffer::crc32c(5, a.data(), 8) ^ buffer::crc32c(5, b.data(), 8);
    const uint32_t after =
        buffer::crc32c(5, a.data(), a.size()) ^ buffer::crc32c(5, b.data(), b.size());
    ASSERT_EQ(buffer::crc32c_shift(before, bytes), after) << bytes;
    ASSERT_EQ(buffer::crc32c_shift_portable(before, bytes), after) << bytes;
  }
}

// Changes of all kinds, with checksums that are kept and with those that are computed of the parts:
// the same pages.
TEST(PageChecksums, KeptAreThoseThatAreComputed) {
  Random random{base_seed()};
  for (const uint32_t page_bytes : {4096U, 8192U, 16384U, 65536U}) {
    for (uint32_t parts = 1; parts <= buffer::kPartsMax; parts *= 2) {
      SCOPED_TRACE(fmt::format("{} bytes, {} parts", page_bytes, parts));
      const buffer::PageFormat format(page_bytes, parts);
      std::vector<char> kept = node_page(format, "key", page_bytes / 128);
      std::vector<char> computed = kept;
      uint64_t kept_all = 0;
      const auto change_both = [&](const buffer::LogRecord& record) {
        const uint64_t lsn = 100 + random.below(uint64_t{1} << 40);
        const buffer::PartMask open =
            buffer::apply_record(format, kept.data(), lsn, record, buffer::Checksums::kNow);
        if (open == 0) ++kept_all;
        format.seal(kept.data(), open);
        format.seal(computed.data(), buffer::apply_record(format, computed.data(), lsn, record,
                                                          buffer::Checksums::kLater));
        return format.is_sound(kept.data(), 7) && kept == computed;
      };
      for (uint64_t i = 0; i < 400; ++i) {
        std::array<std::string, 2> texts;
        ASSERT_TRUE(change_both(some_change(format, kept, random, texts))) << i;
      }
      EXPECT_GT(kept_all, 20U);
      // Empty, a node loses its prefix with the next record.
      buffer::LogRecord record{};
      record.header.page = 7;
      record.header.op = static_cast<uint16_t>(buffer::Op::kErase);
      const buffer::Node node(format, kept.data());
      while (node.count() > 0) ASSERT_TRUE(change_both(record)) << node.count();
      record.header.op = static_cast<uint16_t>(buffer::Op::kInsert);
      for (const char* key : {"other", "a", ""}) {
        record.key = key;
        record.value = key;
        ASSERT_TRUE(change_both(record)) << key;
      }
    }
  }
}

// However often the same bytes are changed, and whether few of them are or more than half of the
// page: what was there is there again, in no more memory than there was at the begin.
TEST(PageUndo, PutsBackWhatChangesHaveMade) {
  Random random{base_seed()};
  for (const uint32_t page_bytes : {4096U, 16384U}) {
    const buffer::PageFormat format(page_bytes, 8);
    std::string memory;
    uint64_t wholes = 0;
    constexpr uint64_t kRounds = 200;
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<char> page = node_page(format, "key", page_bytes / 128);
      format.seal(page.data(), format.all_parts());
      const std::vector<char> before = page;
      memory.clear();
      memory.reserve(buffer::PageUndo::memory_bytes(format));
      const char* const place = memory.data();
      buffer::PageUndo undo(format, std::move(memory), page.data());
      const auto checksums = round % 2 == 0 ? buffer::Checksums::kNow : buffer::Checksums::kLater;
      for (uint64_t i = random.below(20) + 1; i > 0; --i) {
        std::array<std::string, 2> texts;
        const buffer::LogRecord record = some_change(format, page, random, texts);
        format.seal(page.data(),
                    buffer::apply_record(format, page.data(), 100 + i, record, checksums, &undo));
      }
      ASSERT_NE(page, before);
      ASSERT_EQ(undo.header().lsn, buffer::header_of(before.data()).lsn);
      ASSERT_EQ(undo.before(page.data()), std::string(before.data(), before.size()));
      undo.restore(page.data());
      ASSERT_EQ(page, before);
      memory = undo.take_memory();
      ASSERT_EQ(memory.data(), place);
      if (memory.size() >= page_bytes) ++wholes;
    }
    EXPECT_TRUE(wholes > 0 && wholes < kRounds) << wholes;
  }
}

// A part that is damaged stays so when something else in it changes.
TEST(PageChecksums, KeptOnesStillTellOfDamage) {
  for (const uint32_t parts : {1U, 8U, 32U}) {
    const buffer::PageFormat format(4096, parts);
    const std::vector<char> before = node_page(format, "key", 40);
    buffer::LogRecord record{};
    record.header.page = 7;
    record.header.op = static_cast<uint16_t>(buffer::Op::kPatch);
    record.header.slot = 3500;
    record.value = "changed";
    const uint32_t at = format.body() + 3500;
    for (const uint32_t damaged : {8U, 17U, at - 1, at, at + 7, 4095U}) {
      std::vector<char> page = before;
      page[damaged] = static_cast<char>(page[damaged] ^ 4);
      ASSERT_EQ(buffer::apply_record(format, page.data(), 200, record, buffer::Checksums::kNow),
                0U);
      EXPECT_FALSE(format.is_sound(page.data(), 7)) << damaged;
    }
  }
}

// Of the lines that a change touches, any may be lost: the page is sound before it and after it,
// and else never.
TEST(PageChecksums, FindEachLostLineOfAChange) {
  constexpr size_t kLine = 64;
  constexpr std::array kParts = {1U, 2U, 8U, 16U, 32U};
  for (size_t i = 0; i < 2 * kParts.size(); ++i) {
    const uint32_t parts = kParts[i / 2];
    const auto checksums = i % 2 == 0 ? buffer::Checksums::kLater : buffer::Checksums::kNow;
    SCOPED_TRACE(fmt::format("{} parts, {}", parts, i % 2 == 0 ? "computed" : "kept"));
    const buffer::PageFormat format(4096, parts);
    std::vector<char> before(4096);
    buffer::header_of(before.data()) = {
        7, 99, buffer::PageType::kOverflow, static_cast<uint16_t>(parts), 0, 0};
    format.seal(before.data(), format.all_parts());
    std::vector<char> after = before;
    buffer::LogRecord record{};
    record.header.page = 7;
    record.header.op = static_cast<uint16_t>(buffer::Op::kPatch);
    record.header.slot = 3500;
    record.value = "changed";
    format.seal(after.data(), buffer::apply_record(format, after.data(), 200, record, checksums));
    std::vector<size_t> changed;
    for (size_t at = 0; at < after.size(); at += kLine) {
      if (std::memcmp(&before[at], &after[at], kLine) != 0) changed.push_back(at);
    }
    ASSERT_GE(changed.size(), 2U);
    for (uint64_t kept = 0; kept < uint64_t{1} << changed.size(); ++kept) {
      std::vector<char> page = before;
      for (size_t i = 0; i < changed.size(); ++i) {
        if ((kept >> i & 1) != 0) std::memcpy(&page[changed[i]], &after[changed[i]], kLine);
      }
      EXPECT_EQ(format.is_sound(page.data(), 7), page == before || page == after) << kept;
    }
  }
}

}  // namespace
}  // namespace perdure::test
