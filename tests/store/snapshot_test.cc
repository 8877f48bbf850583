// Removal by prefix and snapshots, against a model, with compaction under way; batches and
// snapshots beside threads that write, in-line and with workers.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "store/latch.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using Model = std::map<std::string, std::string>;

class StoreSnapshotTest : public testing::TestWithParam<StoreCase> {
 protected:
  static PoolOptions pool_options() { return store_pool(64); }
  static StoreOptions options() {
    StoreOptions options = GetParam().options;
    options.block_bytes = 4096;
    options.garbage_percent = 10;
    return options;
  }
  bool ordered() const { return GetParam().options.index == StoreIndex::kOrdered; }

  std::string key() {
    const uint64_t number = random_.below(400);
    const char* group[] = {"user/", "user/x", "k", "long"};
    std::string key = group[random_.below(4)] + std::to_string(number);
    if (key.starts_with("long")) key.insert(4, std::string(300, 'l'));
    return key;
  }
  void write(Store& store, Model& model) {
    const std::string key = this->key();
    const uint64_t choice = random_.below(1000);
    if (choice < 3) {
      const std::string prefix = key.substr(0, choice == 0 ? random_.below(5) : key.size() - 1);
      EXPECT_EQ(store.remove_prefix(prefix), std::erase_if(model, [&](const auto& one) {
                  return one.first.starts_with(prefix);
                }));
    } else if (choice < 200) {
      EXPECT_EQ(store.remove(key), model.erase(key) == 1);
    } else {
      const uint64_t bytes = random_.below(20) == 0 ? 3000 : random_.below(80);
      std::string value = std::to_string(++stamp_) + std::string(bytes, 'v');
      store.put(key, value);
      model[key] = std::move(value);
    }
  }

  TempDir dir_;
  Random random_{base_seed()};
  uint64_t stamp_ = 0;
};

TEST_P(StoreSnapshotTest, RemovesWhatBeginsWithThePrefixAndNothingElse) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  {
    Store store = Store::create(pool, "store", options());
    for (const char* key : {"", "a", "ab", "abc", "b", "a\xff", "a\xff\xff", "\xff\xff"}) {
      store.put(key, key);
    }
    EXPECT_EQ(store.remove_prefix("a\xff"), 2U);
    EXPECT_EQ(store.remove_prefix("nothing"), 0U);
    EXPECT_EQ(store.remove_prefix("ab"), 2U);
    store.put("abc", "again");
    EXPECT_EQ(store.remove_prefix("\xff"), 1U);
    EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] {
      store.put(std::string(2000, 'p'), "");
      store.remove_prefix(std::string(2000, 'p'));
    }));
    store.remove(std::string(2000, 'p'));
  }
  Store store = Store::open(pool, "store");
  EXPECT_EQ(content(store), (Model{{"", ""}, {"a", "a"}, {"abc", "again"}, {"b", "b"}}));
  EXPECT_EQ(store.remove_prefix(""), 4U);
  EXPECT_EQ(store.size(), 0U);
  EXPECT_EQ(faults(store), "");
}

// The record of a removal outlives the blocks with what it removed, over sessions and compaction.
TEST_P(StoreSnapshotTest, WhatAPrefixRemovedStaysAway) {
  PoolOptions unsealed = pool_options();
  unsealed.seal_on_close = false;
  const std::string path = dir_.file("pool");
  {
    Pool pool = Pool::create(path, unsealed);
    Store::create(pool, "store", options());
  }
  Model model;
  for (int session = 0; session < 40; ++session) {
    Pool pool = Pool::open(path, unsealed);
    Store store = Store::open(pool, "store", {.garbage_percent = 10});
    ASSERT_EQ(faults(store), "");
    ASSERT_EQ(content(store), model) << session;
    for (uint64_t i = random_.below(3000); i > 0; --i) write(store, model);
  }
}

TEST_P(StoreSnapshotTest, SnapshotsStayAsTheyWere) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  struct Taken {
    Store::Snapshot snapshot;
    Model model;
  };
  std::vector<Taken> taken;
  Model model;
  for (int i = 0; i < 25'000; ++i) {
    write(store, model);
    if (i % 500 != 0) continue;
    taken.push_back({store.snapshot(), model});
    if (taken.size() > 4) taken.erase(taken.begin() + static_cast<ptrdiff_t>(random_.below(4)));
    const Taken& one = taken[random_.below(taken.size())];
    ASSERT_EQ(content(one.snapshot), one.model);
    for (int j = 0; j < 20; ++j) {
      const std::string key = this->key();
      const auto found = one.model.find(key);
      ASSERT_EQ(one.snapshot.get(key),
                found == one.model.end() ? std::nullopt : std::optional(found->second));
    }
    ASSERT_EQ(faults(store), "");
    if (!ordered()) continue;
    Store::Cursor cursor = one.snapshot.cursor();
    const std::string from = key();
    cursor.seek_down(from);
    for (auto at = one.model.upper_bound(from); at != one.model.begin(); cursor.previous()) {
      --at;
      ASSERT_TRUE(cursor.valid());
      ASSERT_EQ(cursor.key(), at->first);
      ASSERT_EQ(cursor.value(), at->second);
    }
    ASSERT_FALSE(cursor.valid());
    uint64_t count = 0;
    auto at = one.model.lower_bound(from);
    one.snapshot.scan(from, 10, [&](std::string_view key, std::string_view) {
      EXPECT_EQ(key, (at++)->first);
      return ++count < 10;
    });
  }
  ASSERT_EQ(content(store), model);
  taken.clear();
  EXPECT_EQ(faults(store), "");
  for (int i = 0; i < 10'000; ++i) write(store, model);
  EXPECT_EQ(content(store), model);
  EXPECT_EQ(faults(store), "");
}

// A batch moves an amount between two accounts of different partitions: the sum is the same at
// every moment that a snapshot sees, and at every crash.
TEST_P(StoreSnapshotTest, SnapshotsSeeBatchesWholly) {
  constexpr int kAccounts = 40;
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  const auto account = [](uint64_t number) { return "user/" + std::to_string(number); };
  for (int i = 0; i < kAccounts; ++i) store.put(account(static_cast<uint64_t>(i)), "1000");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      // Each has accounts of its own, so that none overwrites what another has read.
      Random random(base_seed() + t);
      while (!stop.load()) {
        const uint64_t from = random.below(13) * 3 + t;
        const uint64_t to = random.below(13) * 3 + t;
        if (from == to) continue;
        Store::Batch batch;
        batch.put(account(from), std::to_string(std::stoll(*store.get(account(from))) - 1));
        batch.put(account(to), std::to_string(std::stoll(*store.get(account(to))) + 1));
        store.apply(batch);
        store.increment("k/" + std::to_string(t));
      }
    });
  }
  for (int i = 0; i < 60; ++i) {
    const Store::Snapshot snapshot = store.snapshot();
    for (int again = 0; again < 2; ++again) {
      int64_t sum = 0;
      for (const auto& [key, value] : content(snapshot)) {
        if (key.starts_with("user/")) sum += std::stoll(value);
      }
      EXPECT_EQ(sum, kAccounts * 1000);
    }
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(faults(store), "");
}

// All latches are another thread's by bias. A snapshot takes them from it by one barrier.
TEST(StoreSnapshotBarrierTest, IsOneForAllPartitions) {
  if (!store::has_barrier()) GTEST_SKIP() << "no barriers on this system";
  const TempDir dir;
  Pool pool = Pool::create(dir.file("pool"), store_pool(64));
  Store store = Store::create(pool, "store", {.partitions = 32});
  std::thread([&] {
    for (int i = 0; i < 32 * 200; ++i) store.put(std::to_string(i), "value");
    std::thread([&] {
      const uint64_t before = store::next_barrier();
      const Store::Snapshot snapshot = store.snapshot();
      EXPECT_EQ(store::next_barrier() - before, 1U);
    }).join();
  }).join();
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreSnapshotTest,
    testing::Values(StoreCase{"Hash", {.partitions = 4}},
                    StoreCase{"OnePartition", {.partitions = 1}},
                    StoreCase{"Ordered", {.index = StoreIndex::kOrdered, .partitions = 3}},
                    StoreCase{
                        "Boundaries",
                        {.index = StoreIndex::kOrdered, .boundaries = {"long", "user/3", "v"}}},
                    StoreCase{"Pm", {.index = StoreIndex::kPm, .partitions = 3}},
                    StoreCase{"Workers", {.partitions = 4, .workers = 2}}),
    name_of);

}  // namespace
}  // namespace perdure::test
