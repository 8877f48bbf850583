// What only the store has: versions, expiry, batches, numbers.
#include "perdure/store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/fixture.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

using std::chrono::hours;
using std::chrono::system_clock;

class StoreTest : public testing::Test {
 protected:
  PoolOptions options() const { return store_pool(64); }
  std::string path() const { return dir_.file("pool"); }
  static StoreOptions small() { return {.partitions = 4, .block_bytes = 4096}; }

  TempDir dir_;
  Random random_{base_seed()};
};

TEST_F(StoreTest, ReturnsWhatWasPutAfterReopening) {
  Pool pool = Pool::create(path(), options());
  {
    Store store = Store::create(pool, "store");
    EXPECT_EQ(store.get("a"), std::nullopt);
    store.put("a", "1");
    EXPECT_TRUE(store.insert("b", "2"));
    EXPECT_FALSE(store.insert("b", "3"));
    EXPECT_FALSE(store.update("c", "3"));
    EXPECT_TRUE(store.update("a", "4"));
    EXPECT_TRUE(store.remove("b"));
    EXPECT_FALSE(store.remove("b"));
    EXPECT_EQ(store.size(), 1U);
  }
  const Store store = Store::open(pool, "store");
  EXPECT_EQ(store.get("a"), "4");
  EXPECT_FALSE(store.contains("b"));
  EXPECT_EQ(faults(store), "");
}

TEST_F(StoreTest, SwapsOnlyWhatHasTheVersion) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", small());
  const uint64_t first = store.put("k", "1");
  EXPECT_FALSE(store.compare_and_swap("k", first + 1, "2"));
  EXPECT_TRUE(store.compare_and_swap("k", first, "2"));
  EXPECT_FALSE(store.compare_and_swap("k", first, "3"));
  EXPECT_FALSE(store.compare_and_swap("absent", 1, "3"));
  EXPECT_FALSE(store.compare_and_remove("k", first));
  EXPECT_FALSE(store.compare_and_remove("absent", 1));
  std::string value;
  uint64_t version = 0;
  ASSERT_TRUE(store.get("k", value, &version));
  EXPECT_EQ(value, "2");
  EXPECT_GT(version, first);
  EXPECT_TRUE(store.compare_and_remove("k", version));
  EXPECT_FALSE(store.contains("k"));
}

// A version is never given twice, whatever compaction has made unused: else a swap could hit
// another record of the key than the one that was read.
TEST_F(StoreTest, VersionsGrowOverRemovalCompactionAndReopening) {
  uint64_t highest = 0;
  Pool pool = Pool::create(path(), options());
  {
    Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 1024});
  }
  for (int round = 0; round < 5; ++round) {
    Store store = Store::open(pool, "store");
    for (int i = 0; i < 500; ++i) {
      const std::string key = std::to_string(random_.below(20));
      const uint64_t version = store.put(key, std::string(random_.below(60), 'v'));
      ASSERT_GT(version, highest);
      highest = version;
      if (random_.chance(50)) store.remove(key);
    }
  }
}

TEST_F(StoreTest, RecordsEndToBeThere) {
  const auto past = system_clock::now() - hours(1);
  const auto future = system_clock::now() + hours(1);
  Pool pool = Pool::create(path(), options());
  {
    Store store = Store::create(pool, "store", small());
    store.put("old", "1", past);
    store.put("new", "2", future);
    EXPECT_FALSE(store.contains("old"));
    EXPECT_EQ(store.get("new"), "2");
    EXPECT_FALSE(store.update("old", "3"));
    EXPECT_FALSE(store.remove("old"));
    EXPECT_TRUE(store.insert("old", "4", past));
    EXPECT_TRUE(store.insert("old", "5"));
    EXPECT_EQ(store.get("old"), "5");
    store.put("gone", "6", past);
  }
  const Store store = Store::open(pool, "store");
  EXPECT_EQ(store.get("old"), "5");
  EXPECT_EQ(store.get("new"), "2");
  EXPECT_FALSE(store.contains("gone"));
}

TEST_F(StoreTest, CompactionTakesExpiredRecordsAway) {
  const auto past = system_clock::now() - hours(1);
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 4096});
  for (int i = 0; i < 2000; ++i) store.put(std::to_string(i), std::string(100, 'x'), past);
  for (int i = 0; i < 20'000; ++i) store.put("k" + std::to_string(i % 100), std::string(100, 'y'));
  EXPECT_LT(store.size(), 1000U);
  EXPECT_EQ(faults(store), "");
}

TEST_F(StoreTest, CountsExactlyWithManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 2000;
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", small());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) store.increment("counter");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.get("counter"), std::to_string(kThreads * kTimes));
  EXPECT_EQ(store.increment("counter", -kThreads * kTimes), 0);
  store.put("text", "12x");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { store.increment("text"); }));
  store.put("most", "9223372036854775807");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { store.increment("most"); }));
  EXPECT_EQ(store.get("most"), "9223372036854775807");
}

TEST_F(StoreTest, AppendsAndModifies) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", small());
  EXPECT_EQ(store.append("k", "ab"), 2U);
  EXPECT_EQ(store.append("k", "cd"), 4U);
  EXPECT_EQ(store.get("k"), "abcd");
  store.modify("k", [](const std::string_view* value) -> std::optional<std::string> {
    EXPECT_EQ(*value, "abcd");
    return std::nullopt;
  });
  EXPECT_FALSE(store.contains("k"));
  store.modify("k", [](const std::string_view* value) -> std::optional<std::string> {
    EXPECT_EQ(value, nullptr);
    return std::nullopt;
  });
  EXPECT_EQ(store.size(), 0U);
}

TEST_F(StoreTest, GetsAndAppliesSeveral) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", small());
  store.put("c", "0");
  Store::Batch batch;
  batch.put("a", "1");
  batch.put("b", "2");
  batch.put("a", "3");
  batch.remove("c");
  batch.remove("d");
  batch.put("long", std::string(100'000, 'l'));
  batch.put("e", "4");
  batch.remove("e");
  store.apply(batch);
  const std::vector<std::string_view> keys = {"a", "b", "c", "long", "e"};
  std::vector<std::optional<std::string>> values(5);
  EXPECT_EQ(store.multi_get(keys, values), 3U);
  EXPECT_EQ(values[0], "3");
  EXPECT_EQ(values[1], "2");
  EXPECT_EQ(values[2], std::nullopt);
  EXPECT_EQ(values[3], std::string(100'000, 'l'));
  EXPECT_EQ(values[4], std::nullopt);
  EXPECT_EQ(faults(store), "");
  Store::Batch large;
  for (int i = 0; i < 500; ++i) large.put(std::to_string(i), std::string(100, 'x'));
  EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] { store.apply(large); }));
  EXPECT_EQ(store.size(), 3U);
}

// A session may end while a block is half compacted: its records have copies then. A removed key
// must not come back from a copy, however often that happens.
TEST_F(StoreTest, NothingComesBackAfterManySessions) {
  Random random(7);
  std::map<std::string, std::string> model;
  {
    Pool pool = Pool::create(path(), options());
    const Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 4096});
  }
  PoolOptions unsealed = options();
  unsealed.seal_on_close = false;
  for (int session = 0; session < 300; ++session) {
    Pool pool = Pool::open(path(), unsealed);
    Store store = Store::open(pool, "store");
    ASSERT_EQ(faults(store), "") << session;
    ASSERT_EQ(store.size(), model.size()) << session;
    for (const auto& [key, value] : model) ASSERT_EQ(store.get(key), value) << session;
    for (uint64_t i = 100 + random.below(800); i > 0; --i) {
      const bool cold = random.below(40) == 0;
      const std::string key = (cold ? "c" : "h") + std::to_string(random.below(cold ? 30 : 8));
      if (random.chance(33)) {
        EXPECT_EQ(store.remove(key), model.erase(key) == 1);
        continue;
      }
      std::string value(5 + random.below(45), static_cast<char>('a' + i % 26));
      store.put(key, value);
      model[key] = std::move(value);
    }
  }
}

// What a clean close has noted counts until the store is opened again, and no longer.
TEST_F(StoreTest, ACloseBeforeOtherWritesIsForgotten) {
  Pool pool = Pool::create(path(), options());
  {
    Store::create(pool, "store", small()).put("a", "1");
  }
  Store store = Store::open(pool, "store");
  store.put("b", "2");
  const std::string image = read_file(path());  // the process dies
  const std::string copy = dir_.file("copy");
  write_file(copy, image);
  Pool again = Pool::open(copy, options());
  const Store found = Store::open(again, "store");
  EXPECT_EQ(found.get("a"), "1");
  EXPECT_EQ(found.get("b"), "2");
}

TEST_F(StoreTest, DamageOfTheLastRecordShowsAfterACleanClose) {
  {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", small());
    store.put("other", "value");
    store.put("key", "value-one");
    store.put("key", "value-two");
  }
  std::string image = read_file(path());
  const size_t at = image.find("value-two");
  ASSERT_NE(at, std::string::npos);
  image[at] ^= 1;
  write_file(path(), image);
  Pool pool = Pool::open(path(), options());
  const Store store = Store::open(pool, "store");
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.get("key")); }));
  EXPECT_EQ(store.get("other"), "value");
}

TEST_F(StoreTest, ExpiredRecordsOfFewBytesGoToo) {
  const auto past = system_clock::now() - hours(1);
  PoolOptions little = options();
  little.capacity_bytes = uint64_t{4} << 20;
  Pool pool = Pool::create(path(), little);
  Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 4096});
  for (int i = 0; i < 200'000; ++i) store.put(std::to_string(i), "x", past);
  EXPECT_LT(store.size(), 100'000U);
}

TEST_F(StoreTest, EveryRecordOfAFullStoreCanBeRemoved) {
  for (const size_t value_bytes : {0, 20, 200}) {
    std::filesystem::remove(path());
    PoolOptions little = options();
    little.capacity_bytes = uint64_t{4} << 20;
    Pool pool = Pool::create(path(), little);
    Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 1024});
    int count = 0;
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
      for (;; ++count) store.put(std::to_string(count), std::string(value_bytes, 'v'));
    }));
    for (int i = 0; i < count; ++i) ASSERT_TRUE(store.remove(std::to_string(i))) << i;
    EXPECT_EQ(store.size(), 0U);
    EXPECT_EQ(faults(store), "");
    store.put("again", "there is room");
  }
}

TEST_F(StoreTest, ABatchThatFailsChangesNothing) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", small());
  Store::Batch batch;
  for (int i = 0; i < 20; ++i) batch.put(std::to_string(i), "value");
  batch.put("long", std::string(100'000, 'l'));
  batch.put(std::string(Store::kKeyBytesMax + 1, 'k'), "");
  EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] { store.apply(batch); }));
  EXPECT_EQ(store.size(), 0U);
  EXPECT_EQ(faults(store), "");
}

// With workers every call goes by message, and means the same.
TEST_F(StoreTest, WorkersDoWhatCallersWould) {
  constexpr uint64_t kThreads = 6;
  Pool pool = Pool::create(path(), options());
  std::vector<std::map<std::string, std::string>> models(kThreads);
  {
    StoreOptions with_workers = small();
    with_workers.workers = 2;
    Store store = Store::create(pool, "store", with_workers);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Random random(base_seed() + t);
        for (int i = 0; i < 1500; ++i) {
          const std::string key = std::to_string(t) + "/" + std::to_string(random.below(100));
          if (random.chance(70)) {
            std::string value(random.below(300), static_cast<char>('a' + i % 26));
            store.put(key, value);
            models[t][key] = std::move(value);
          } else if (random.chance(50)) {
            EXPECT_EQ(store.remove(key), models[t].erase(key) == 1);
          } else {
            const auto found = models[t].find(key);
            EXPECT_EQ(store.get(key),
                      found == models[t].end() ? std::nullopt : std::optional(found->second));
          }
          store.increment("counter");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(store.get("counter"), std::to_string(kThreads * 1500));
    EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] { store.put(std::string(70'000, 'k'), ""); }));
    const std::vector<std::string_view> keys = {"counter", "absent"};
    std::vector<std::optional<std::string>> values(2);
    EXPECT_EQ(store.multi_get(keys, values), 1U);
    uint64_t count = 0;
    store.for_each([&](std::string_view, std::string_view) { ++count; });
    EXPECT_EQ(count, store.size());
    EXPECT_EQ(faults(store), "");
  }
  const Store store = Store::open(pool, "store");
  for (const auto& model : models) {
    for (const auto& [key, value] : model) EXPECT_EQ(store.get(key), value) << key;
  }
}

// Steady overwriting takes no more than the option allows.
TEST_F(StoreTest, OverwritingIsBoundedInSpace) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", {.partitions = 4, .block_bytes = 4096});
  std::map<std::string, std::string> model;
  uint64_t raw = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::string key = "key" + std::to_string(random_.below(10'000));
    std::string value(random_.below(200), static_cast<char>('a' + i % 26));
    store.put(key, value);
    model[key] = std::move(value);
  }
  for (const auto& [key, value] : model) {
    EXPECT_EQ(store.get(key), value);
    raw += key.size() + value.size();
  }
  EXPECT_EQ(faults(store), "");
  EXPECT_LT(pool.info().allocated_bytes, raw * 2);
}

TEST_F(StoreTest, ASnapshotThatEndsWhileMemoryIsShortDoesNoHarm) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", {.partitions = 1});
  const auto write_all = [&](const std::string& value) {
    for (int i = 0; i < 2000; ++i) store.put("key" + std::to_string(i), value);
  };
  write_all("before");
  {
    std::optional<Store::Snapshot> snapshot(store.snapshot());
    write_all("then");
    const ShortMemory memory(0);
    snapshot.reset();
  }
  write_all("after");
  EXPECT_EQ(store.get("key7"), "after");
  EXPECT_EQ(faults(store), "");
}

// Where nearly all keys are in one of many ranges, there may lie as much as in a single partition.
TEST_F(StoreTest, EmptyPartitionsNeedNoRoomForGarbage) {
  const auto moved_bytes = [&](std::vector<std::string> boundaries) {
    Pool pool = Pool::anonymous(store_pool(16));
    Store store = Store::create(pool, "store",
                                {.index = StoreIndex::kOrdered,
                                 .boundaries = std::move(boundaries),
                                 .block_bytes = 4096,
                                 .index_snapshot_percent = 0});
    Random random(base_seed());
    const std::string value(60, 'v');
    constexpr uint64_t kRecords = 70'000;  // half of the pool
    for (uint64_t i = 0; i < kRecords; ++i) store.put("key" + std::to_string(i), value);
    for (uint64_t i = 0; i < 3 * kRecords; ++i) {
      store.put("key" + std::to_string(random.below(kRecords)), value);
    }
    return figure(store, "moved_bytes");
  };
  std::vector<std::string> many;
  for (int i = 10; i < 74; ++i) many.push_back("z" + std::to_string(i));
  EXPECT_LT(moved_bytes(many), 1.3 * moved_bytes({"z"}));
}

// What fails for want of memory is tried again: no long value stays behind, and what a write that
// fails was to do is not done.
TEST_F(StoreTest, ShortMemoryLeavesNoLongValueBehind) {
  {
    Pool pool = Pool::create(path(), options());
    const Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 1024});
  }
  std::map<std::string, std::string> model;
  uint64_t refused = 0;
  for (int session = 0; session < 60; ++session) {
    // Segments that were not looked into since the opening take memory.
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store", {.index_snapshot_percent = 5});
    for (int i = 0; i < 300; ++i) {
      const std::string key = "key" + std::to_string(random_.below(200));
      std::string value(random_.below(4) == 0 ? random_.below(1500) : 20, 'v');
      try {
        std::optional<ShortMemory> memory;
        if (random_.chance(40)) memory.emplace(random_.below(8));
        store.put(key, value);
        memory.reset();
        model[key] = std::move(value);
      } catch (const std::bad_alloc&) {
        ++refused;
      }
    }
    ASSERT_EQ(faults(store), "") << session;
    ASSERT_EQ(content(store), model) << session;
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace perdure::test
