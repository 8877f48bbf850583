// The calls of a store as tasks, with workers and without.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "perdure/store.h"
#include "pm/emulated_media.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

class StoreTaskTest : public testing::TestWithParam<uint32_t> {
 protected:
  Pool make_pool() const {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    return Pool::create(dir_.file("pool"), options);
  }
  static StoreOptions options() {
    return {.partitions = 8, .block_bytes = 4096, .workers = GetParam()};
  }
  TempDir dir_;
};

std::vector<std::string> some_keys() { return {"a", "n", "batch0", "batch0", "batch19"}; }

std::string values_of(const std::vector<std::optional<std::string>>& values) {
  std::string text;
  for (const auto& value : values) text += value.value_or("-") + ",";
  return text;
}

Task<std::string> use_all(Store& store) {
  std::string report;
  const auto note = [&](const char* what, bool yes) {
    report += std::string(yes ? "+" : "-") + what;
  };
  const uint64_t version = co_await store.async_put("a", "1");
  uint64_t seen = 0;
  note("get", co_await store.async_get("a", &seen) == "1" && seen == version);
  note("insert", co_await store.async_insert("a", "2"));
  note("insert", co_await store.async_insert("b", "2"));
  note("update", co_await store.async_update("c", "3"));
  note("update", co_await store.async_update("b", "3"));
  note("swap", co_await store.async_compare_and_swap("a", version + 1000, "4"));
  note("swap", co_await store.async_compare_and_swap("a", version, "4"));
  note("remove", co_await store.async_remove("c"));
  note("remove", co_await store.async_remove("b"));
  Store::Batch batch;
  for (int i = 0; i < 20; ++i) batch.put("batch" + std::to_string(i), "5");
  co_await store.async_apply(batch);
  note("batch", co_await store.async_get("batch7") == "5");
  note("absent", (co_await store.async_get("b")).has_value());
  note("contains", co_await store.async_contains("batch7"));
  note("contains", co_await store.async_contains("b"));
  note("sum", co_await store.async_increment("n", 40) == 40);
  note("sum", co_await store.async_increment("n") == 41);
  note("sum", store.increment("n") == 42);
  note("append", co_await store.async_append("text", "ab") == 2);
  note("append", co_await store.async_append("text", "c") == 3);
  note("append", store.get("text") == "abc");
  const auto twice = [](const std::string_view* value) {
    return std::optional(std::string(*value) + std::string(*value));
  };
  co_await store.async_modify("text", twice);
  note("modify", co_await store.async_get("text") == "abcabc");
  co_await store.async_modify("text", [](const std::string_view*) { return std::nullopt; });
  note("modify", store.contains("text"));
  uint64_t last = 0;
  co_await store.async_get("n", &last);
  note("remove", co_await store.async_compare_and_remove("n", last + 1000));
  note("remove", co_await store.async_compare_and_remove("n", last));
  note("several", values_of(co_await store.async_multi_get(some_keys())) == "4,-,5,5,5,");
  note("none", !(co_await store.async_multi_get(std::vector<std::string>())).empty());
  co_await store.async_put("prefix/1", "6");
  co_await store.async_put("prefix/2", "6");
  note("prefix", co_await store.async_remove_prefix("prefix/") == 2);
  note("prefix", co_await store.async_remove_prefix("prefix/") == 2);
  co_return report;
}

TEST_P(StoreTaskTest, DoesWhatTheOtherCallsDo) {
  Pool pool = make_pool();
  Store store = Store::create(pool, "store", options());
  EXPECT_EQ(
      store.run(use_all(store)),
      "+get-insert+insert-update+update-swap+swap-remove+remove+batch-absent+contains-contains"
      "+sum+sum+sum+append+append+append+modify-modify-remove+remove+several-none+prefix-prefix");
  EXPECT_EQ(store.size(), 21U);
}

// With an ordered index, cut by hash and by boundaries.
class StoreTaskScanTest : public testing::TestWithParam<std::tuple<uint32_t, bool>> {
 protected:
  static constexpr uint32_t kRecords = 3000;  // several rounds of several pieces

  StoreTaskScanTest() : pool_(Pool::create(dir_.file("pool"), {.capacity_bytes = 64 << 20})) {
    StoreOptions options{
        .index = StoreIndex::kOrdered, .block_bytes = 4096, .workers = std::get<0>(GetParam())};
    if (std::get<1>(GetParam())) {
      options.boundaries = {"a", "k1", "k25", "k3", "x"};
    } else {
      options.partitions = 4;
    }
    store_.emplace(Store::create(pool_, "store", options));
    for (uint32_t i = 0; i < kRecords; ++i) {
      store_->put("k" + std::to_string(i * 7919 % 100'000), std::string(i % 60, 'v'));
    }
  }
  // The same by a cursor.
  std::vector<Store::Record> expected(const std::string& from, uint64_t limit, bool downwards) {
    std::vector<Store::Record> records;
    Store::Cursor cursor = store_->cursor();
    downwards ? cursor.seek_down(from) : cursor.seek(from);
    for (; cursor.valid() && records.size() < limit;
         downwards ? cursor.previous() : cursor.next()) {
      records.push_back({std::string(cursor.key()), std::string(cursor.value()), cursor.version()});
    }
    return records;
  }
  std::vector<Store::Record> scanned(const std::string& from, uint64_t limit, bool downwards) {
    return store_->run(store_->async_scan(from, limit, downwards));
  }

  TempDir dir_;
  Pool pool_;
  std::optional<Store> store_;
};

TEST_P(StoreTaskScanTest, ReadsWhatACursorReads) {
  Random random(base_seed());
  for (uint32_t round = 0; round < 60; ++round) {
    const std::string from = "k" + std::to_string(random.below(100'000));
    const uint64_t limit = random.below(2) == 0 ? random.below(20) : random.below(2 * kRecords);
    const bool downwards = random.below(2) == 0;
    SCOPED_TRACE(testing::Message() << from << ", " << limit << (downwards ? " downwards" : ""));
    const auto records = scanned(from, limit, downwards);
    const auto others = expected(from, limit, downwards);
    ASSERT_EQ(records.size(), others.size());
    for (size_t i = 0; i < records.size(); ++i) {
      ASSERT_EQ(records[i].key, others[i].key) << i;
      ASSERT_EQ(records[i].value, others[i].value) << i;
      ASSERT_EQ(records[i].version, others[i].version) << i;
    }
  }
  EXPECT_EQ(scanned("", ~uint64_t{0}, false).size(), kRecords);
  EXPECT_EQ(scanned("zz", ~uint64_t{0}, true).size(), kRecords);
  EXPECT_TRUE(scanned("", 10, true).empty());
  EXPECT_TRUE(scanned("zz", 10, false).empty());
}

// While others write: what nobody writes is seen once, in order.
TEST_P(StoreTaskScanTest, GoesOnWhileOthersWrite) {
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !ended; ++i) {
      store_->put("k" + std::to_string(i % 1000) + "#", "w");
      store_->remove("k" + std::to_string((i + 500) % 1000) + "#");
    }
  });
  for (uint32_t round = 0; round < 20; ++round) {
    uint64_t seen = 0;
    std::string before;
    for (const Store::Record& record : scanned("", ~uint64_t{0}, false)) {
      EXPECT_LT(before, record.key);
      before = record.key;
      seen += record.value != "w" ? 1 : 0;
    }
    EXPECT_EQ(seen, kRecords);
  }
  ended = true;
  writer.join();
}

TEST_P(StoreTaskTest, AnIndexByHashHasNoScan) {
  Pool pool = make_pool();
  Store store = Store::create(pool, "store", options());
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { store.run(store.async_scan("", 1)); }));
}

// Calls that wait, in a task: it is no more than slow.
Task<uint64_t> make_waiting_calls(Store& store) {
  for (int i = 0; i < 100; ++i) {
    const std::string key = std::to_string(i);
    co_await store.async_put("async" + key, "1");
    store.put("a" + key, "2");
    store.remove("async" + key);
  }
  const Store::Snapshot snapshot = store.snapshot();
  const std::vector<std::string_view> keys = {"a1", "a2", "b"};
  std::vector<std::optional<std::string>> values(keys.size());
  uint64_t sum = store.multi_get(keys, values);
  store.for_each([&](std::string_view, std::string_view) { ++sum; });
  EXPECT_THROW(store.run(use_all(store)), Error);
  co_return sum;
}

TEST_P(StoreTaskTest, ATaskMayWait) {
  if (GetParam() == 0) GTEST_SKIP() << "without workers run() in a task is a call";
  Pool pool = make_pool();
  Store store = Store::create(pool, "store", options());
  EXPECT_EQ(store.run(make_waiting_calls(store)), 102U);
}

// The workers of one store know nothing of the batches of another.
Task<void> copy_all(Store& from, Store& to) {
  for (int i = 0; i < 200; ++i) {
    const std::string key = std::to_string(i);
    co_await to.async_put(key, *co_await from.async_get(key));
  }
}

TEST_P(StoreTaskTest, ATaskMayAwaitAnotherStore) {
  Pool pool = make_pool();
  Store from = Store::create(pool, "from", options());
  StoreOptions fewer = options();
  fewer.workers = GetParam() == 0 ? 0 : 1;
  Store to = Store::create(pool, "to", fewer);
  for (int i = 0; i < 200; ++i) from.put(std::to_string(i), std::to_string(i * i));
  from.run(copy_all(from, to));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(to.get(std::to_string(i)), std::to_string(i * i));
}

// Ends the process if it is still there after a minute: threads that wait for each other for ever
// cannot be ended.
class Watchdog {
 public:
  Watchdog() {
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      if (!ended_.wait_for(lock, std::chrono::minutes(1), [this] { return over_; })) std::abort();
    });
  }
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

// Calls of another store, of all the ways that make a worker wait, beside some of the task's own.
// `runs`: also such that only the other's own thread can do.
Task<void> use_both(Store& own, Store& other, int number, int count, bool runs) {
  const std::string name = std::to_string(number) + "/";
  for (int i = 0; i < count; ++i) {
    const std::string key = name + std::to_string(i);
    co_await other.async_put(key, "1");
    other.put(key, "2");
    co_await own.async_put("own" + key, "3");
    EXPECT_EQ(co_await other.async_get(key), "2");
    if (i % 8 == 0) {
      Store::Batch batch;
      for (int j = 0; j < 10; ++j) batch.put(name + "batch" + std::to_string(j), "4");
      other.apply(batch);
      EXPECT_EQ(other.snapshot().get(name + "batch9"), "4");
      if (runs) {
        EXPECT_EQ(other.run(other.async_get(key)), "2");
      }
    }
  }
}

TEST_P(StoreTaskTest, WorkersOfTwoStoresMayWaitForEachOther) {
  constexpr int kCount = 400;
  const Watchdog watchdog;
  Pool pool = make_pool();
  Store one = Store::create(pool, "one", options());
  Store two = Store::create(pool, "two", options());
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      if (i % 2 == 0) {
        one.run(use_both(one, two, i, kCount, true));
      } else {
        two.run(use_both(two, one, i, kCount, false));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int i : {1, 3, 5}) EXPECT_EQ(one.get(std::to_string(i) + "/399"), "2");
  for (const int i : {0, 2, 4}) EXPECT_EQ(two.get(std::to_string(i) + "/399"), "2");
}

Task<void> put_some(Store& store, int number) {
  for (int i = 0; i < 200; ++i) {
    co_await store.async_put(std::to_string(number) + "/" + std::to_string(i), "1");
  }
}

TEST_P(StoreTaskTest, TheStoresEndWaitsForSpawnedTasks) {
  Pool pool = make_pool();
  {
    Store store = Store::create(pool, "store", options());
    for (int i = 0; i < 8; ++i) store.spawn(put_some(store, i));
  }
  EXPECT_EQ(Store::open(pool, "store", options()).size(), 1600U);
}

Task<void> put_too_much(Store& store) {
  co_await store.async_put(std::string(Store::kKeyBytesMax + 1, 'k'), "");
}

TEST_P(StoreTaskTest, ThrowsWhatWentWrong) {
  Pool pool = make_pool();
  Store store = Store::create(pool, "store", options());
  EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] { store.run(put_too_much(store)); }));
}

Task<void> increment_a_text(Store& store) {
  co_await store.async_put("text", "no number");
  co_await store.async_increment("text");
}

TEST_P(StoreTaskTest, AnIncrementThatCannotBeChangesNothing) {
  Pool pool = make_pool();
  Store store = Store::create(pool, "store", options());
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "no 64-bit number",
                         [&] { store.run(increment_a_text(store)); }));
  EXPECT_EQ(store.get("text"), "no number");
}

Task<void> count_up(Store& store, std::string key) {
  for (int i = 0; i < 100; ++i) co_await store.async_increment(key);
}

TEST_P(StoreTaskTest, IncrementsOfManyTasksAddUp) {
  Pool pool = make_pool();
  Store store = Store::create(pool, "store", options());
  for (int i = 0; i < 10; ++i) store.spawn(count_up(store, "n"));
  for (int i = 0; i < 100; ++i) store.increment("n");
  while (store.get("n") != "1100") std::this_thread::yield();
}

Task<void> add_one(Store& store, std::string key) {
  for (;;) {
    uint64_t version = 0;
    const std::optional<std::string> value = co_await store.async_get(key, &version);
    const std::string sum = std::to_string(value ? std::stoi(*value) + 1 : 1);
    if (value ? co_await store.async_compare_and_swap(key, version, sum)
              : co_await store.async_insert(key, sum)) {
      co_return;
    }
  }
}

Task<void> batches(Store& store, int number) {
  for (int i = 0; i < 20; ++i) {
    Store::Batch batch;
    for (int k = 0; k < 8; ++k) batch.put("batch" + std::to_string(k), std::to_string(number));
    co_await store.async_apply(batch);
    co_await store.async_put("own" + std::to_string(number), "x");
  }
}

// Batches stop the workers of several partitions, from tasks that have written themselves and from
// threads.
TEST_P(StoreTaskTest, NoneIsLostAmongMany) {
  Pool pool = make_pool();
  {
    Store store = Store::create(pool, "store", options());
    for (int i = 0; i < 2000; ++i) store.spawn(add_one(store, "counter" + std::to_string(i % 4)));
    for (int i = 0; i < 10; ++i) store.spawn(batches(store, i));
    Store::Batch batch;
    for (int k = 0; k < 8; ++k) batch.put("thread" + std::to_string(k), "y");
    for (int i = 0; i < 200; ++i) store.apply(batch);
  }
  const Store store = Store::open(pool, "store");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(store.get("counter" + std::to_string(i)), "500");
  const std::optional<std::string> last = store.get("batch0");
  for (int k = 1; k < 8; ++k) EXPECT_EQ(store.get("batch" + std::to_string(k)), last);
  EXPECT_EQ(store.size(), 30U);
}

class RefusingMedium final : public pm::EmulatedMedia {
 public:
  RefusingMedium() { pm::emulate_media(this); }
  ~RefusingMedium() override { pm::emulate_media(nullptr); }
  void written_back(uintptr_t /*address*/, size_t /*bytes*/) override {}
  void fenced() override {
    if (refuses) throw Error(ErrorCode::kIo, "refused");
  }
  std::atomic<bool> refuses = false;
};

// Reads and writes that one worker took together: a write that was not made durable is told to
// nobody.
TEST(StoreWorkers, AReadSeesNothingOfAWriteThatFailed) {
  for (int round = 0; round < 40; ++round) {
    RefusingMedium medium;
    PoolOptions options;
    options.capacity_bytes = uint64_t{8} << 20;
    options.force_domain = true;
    options.domain = Domain::kLine;
    Pool pool = Pool::anonymous(options);
    Store store = Store::create(pool, "store", {.partitions = 1, .workers = 1});
    store.put("key", "0");
    std::atomic<int> seen = 0;
    std::thread reader([&] {
      try {
        for (;;) seen = std::stoi(*store.get("key"));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
      }
    });
    int acknowledged = 0;
    try {
      for (;;) {
        if (acknowledged == 50 + round) medium.refuses = true;
        store.put("key", std::to_string(acknowledged + 1));
        ++acknowledged;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    reader.join();
    EXPECT_LE(seen, acknowledged);
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, StoreTaskTest, testing::Values(0, 1, 3));
INSTANTIATE_TEST_SUITE_P(Workers, StoreTaskScanTest,
                         testing::Combine(testing::Values(0, 2), testing::Bool()));

}  // namespace
}  // namespace perdure::test
