// The stream of a store's writes: all of them, in order, once, as long as they are kept.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "store/replica.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using Kind = Store::Change::Kind;
using Model = std::map<std::string, std::string>;

class StoreChangesTest : public testing::TestWithParam<StoreCase> {
 protected:
  static PoolOptions pool_options(uint64_t mebibytes = 64) { return store_pool(mebibytes); }
  static StoreOptions options(uint64_t changes_bytes, uint64_t unread_bytes = 0) {
    StoreOptions options = GetParam().options;
    options.block_bytes = 4096;
    options.garbage_percent = 10;
    options.changes_bytes = changes_bytes;
    options.unread_bytes = unread_bytes;
    return options;
  }

  // Flips a bit of the text, which is there once, in a file of which a pool may be open.
  static void damage(const std::string& path, const std::string& text) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const std::string image{std::istreambuf_iterator<char>(file), {}};
    const size_t at = image.find(text);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(image.find(text, at + 1), std::string::npos);
    file.clear();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(image[at] ^ 1));
  }

  std::string key() {
    const uint64_t number = random_.below(300);
    const char* group[] = {"user/", "user/x", "k", "long"};
    std::string key = group[random_.below(4)] + std::to_string(number);
    if (key.starts_with("long")) key.insert(4, std::string(300, 'l'));
    return key;
  }
  std::string value() {
    return std::to_string(++stamp_) +
           std::string(random_.below(20) == 0 ? 3000 : random_.below(80), 'v');
  }
  void write(Store& store) {
    const uint64_t choice = random_.below(1000);
    const std::string key = this->key();
    if (choice < 2) {
      store.remove_prefix(key.substr(0, random_.below(key.size())));
    } else if (choice < 150) {
      store.remove(key);
    } else if (choice < 200) {
      store.put(key, value(), std::chrono::system_clock::now() - std::chrono::hours(1));
    } else if (choice < 250) {
      store.put(key, value(), std::chrono::system_clock::now() + std::chrono::hours(1));
    } else if (choice < 350) {
      Store::Batch batch;
      for (uint64_t i = 1 + random_.below(6); i > 0; --i) {
        if (random_.chance(30)) {
          batch.remove(this->key());
        } else {
          batch.put(this->key(), std::to_string(++stamp_));
        }
      }
      store.apply(batch);
    } else {
      store.put(key, value());
    }
  }

  TempDir dir_;
  Random random_{base_seed()};
  uint64_t stamp_ = 0;
};

TEST_P(StoreChangesTest, TellsWhatWasWritten) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options(1 << 20));
  const auto expires = std::chrono::system_clock::time_point(std::chrono::hours(1'000'000));
  std::vector<uint64_t> from;
  for (uint32_t i = 0; i < store.partitions(); ++i) from.push_back(store.next_change(i));
  const std::string long_key(3000, 'l');
  const std::string long_value(10'000, 'v');
  store.put("k", "1");
  store.put("k", "2", expires);
  store.put(long_key, long_value);
  store.remove(long_key);
  store.remove("k");
  store.remove("nothing");
  store.put("k", "3");
  store.remove_prefix("k");
  std::vector<Store::Change> all;
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    Store::Changes changes = store.changes(i, from[i]);
    for (Store::Change change; changes.next(change);) all.push_back(change);
    EXPECT_EQ(changes.position(), store.next_change(i));
  }
  const auto of = [&](const std::string& key) {
    std::string text;
    for (const Store::Change& change : all) {
      if (change.key != key) continue;
      EXPECT_FALSE(change.goes_on);
      text += change.kind == Kind::kPut      ? "put " + change.value
              : change.kind == Kind::kRemove ? "remove"
                                             : "prefix";
      if (change.expires == expires) text += " expires";
      text += ", ";
    }
    return text;
  };
  EXPECT_EQ(of("k"), "put 1, put 2 expires, remove, put 3, prefix, ");
  EXPECT_EQ(of(long_key), "put " + long_value + ", remove, ");
  EXPECT_EQ(of("nothing"), "");
}

TEST_P(StoreChangesTest, SaysWhatIsOneBatch) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options(1 << 20));
  Store::Batch batch;
  for (int i = 0; i < 20; ++i) batch.put("k" + std::to_string(i), "1");
  store.apply(batch);
  store.put("user/1", "alone");
  std::map<uint64_t, int> parts;  // by the version that ends the batch
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    Store::Changes changes = store.changes(i, 1);
    bool in_batch = false;
    for (Store::Change change; changes.next(change);) {
      if (change.key == "user/1") {
        EXPECT_FALSE(in_batch || change.goes_on);
        EXPECT_EQ(change.batch_version, 0U);
        continue;
      }
      in_batch = change.goes_on;
      ++parts[change.batch_partition * 1'000'000 + change.batch_version];
    }
    EXPECT_FALSE(in_batch);
  }
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts.begin()->second, 20);
  EXPECT_EQ(parts.begin()->first != 0, store.partitions() > 1);
}

// A copy that follows is what the store is, at each look, over openings and compaction.
TEST_P(StoreChangesTest, ACopyThatFollowsIsTheSame) {
  Replica replica;
  {
    Pool pool = Pool::create(dir_.file("pool"), pool_options());
    Store store = Store::create(pool, "store", options(0));
    store.add_consumer("copy");
    for (int i = 0; i < 300; ++i) write(store);
    replica.begin(store);
  }
  for (int session = 0; session < 12; ++session) {
    Pool pool = Pool::open(dir_.file("pool"), pool_options());
    Store store = Store::open(pool, "store", options(session % 3 == 0 ? 1 << 16 : 0, 32 << 20));
    ASSERT_TRUE(replica.follow(store)) << session;
    ASSERT_EQ(replica.content(), content(store)) << session;
    for (uint64_t i = random_.below(4000); i > 0; --i) {
      write(store);
      if (random_.below(500) == 0) {
        ASSERT_TRUE(replica.follow(store));
        ASSERT_EQ(replica.content(), content(store));
        ASSERT_EQ(faults(store), "");
      }
      if (random_.below(1000) != 0) continue;
      for (uint32_t p = 0; p < store.partitions(); ++p)
        store.acknowledge("copy", p, replica.position(p));
    }
    ASSERT_EQ(faults(store), "");
  }
  EXPECT_GT(replica.changes(), 1000U);
}

TEST_P(StoreChangesTest, KeepsWhatWasAskedForAndNoMore) {
  constexpr uint64_t kBytes = 256 << 10;
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  {
    Store store = Store::create(pool, "store", options(kBytes));
    for (int i = 0; i < 40'000; ++i) store.put(key(), std::to_string(i));
    EXPECT_GT(figure(store, "changes_kept_bytes"), kBytes / 2);
    EXPECT_LE(figure(store, "changes_kept_bytes"), kBytes + store.partitions() * 4096.0);
    for (uint32_t i = 0; i < store.partitions(); ++i) {
      const uint64_t first = store.first_change(i);
      EXPECT_GT(first, 1U);
      EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { store.changes(i, first - 1); }));
      EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument,
                             [&] { store.changes(i, store.next_change(i) + 1); }));
      Store::Changes changes = store.changes(i, first);
      Store::Change change;
      ASSERT_TRUE(changes.next(change));
      EXPECT_EQ(change.version, first);
    }
  }
  Store store = Store::open(pool, "store", options(0));
  EXPECT_EQ(figure(store, "changes_kept_bytes"), 0);
  for (int i = 0; i < 10'000; ++i) store.put(key(), std::to_string(i));
  EXPECT_EQ(figure(store, "changes_kept_bytes"), 0);
  EXPECT_EQ(faults(store), "");
}

TEST_P(StoreChangesTest, ConsumersComeAndGo) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  {
    Store store = Store::create(pool, "store", options(0, 32 << 20));
    for (int i = 0; i < 1000; ++i) write(store);
    store.add_consumer("a");
    store.add_consumer("b");
    store.add_consumer("c");
    EXPECT_TRUE(fails_with(ErrorCode::kNameExists, [&] { store.add_consumer("a"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { store.add_consumer(""); }));
    EXPECT_TRUE(
        fails_with(ErrorCode::kInvalidArgument, [&] { store.add_consumer(std::string(48, 'x')); }));
    EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, [&] { store.acknowledge("d", 0, 1); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument,
                           [&] { store.acknowledge("a", 0, store.next_change(0) + 1); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument,
                           [&] { store.acknowledge("a", store.partitions(), 1); }));
    store.remove_consumer("b");
    for (int i = 0; i < 20'000; ++i) store.put(key(), std::to_string(i));
    EXPECT_EQ(faults(store), "");
  }
  Store store = Store::open(pool, "store", options(0, 32 << 20));
  EXPECT_EQ(store.consumers(), (std::vector<std::string>{"a", "c"}));
  const double kept = figure(store, "changes_kept_bytes");
  EXPECT_GT(kept, 500'000);
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    EXPECT_EQ(store.consumer_position("a", i), store.consumer_position("c", i));
    EXPECT_LE(store.first_change(i), store.consumer_position("a", i));
    store.acknowledge("a", i, store.next_change(i));
  }
  EXPECT_EQ(figure(store, "changes_kept_bytes"), kept);  // "c" has not read it
  store.remove_consumer("c");
  EXPECT_LT(figure(store, "changes_kept_bytes"),
            kept / 10);  // long values that the last blocks refer to
  store.remove_consumer("a");
  EXPECT_EQ(store.consumers(), std::vector<std::string>());
  EXPECT_EQ(faults(store), "");
}

// A process dies while a consumer acknowledges. The next one finds the position, and lets go of the
// log before it; then the power fails.
TEST_P(StoreChangesTest, APositionThatADeadProcessStoredStays) {
  const std::string path = dir_.file("pool");
  const auto write_some = [&](Store& store) {
    for (int i = 0; i < 4000; ++i) store.put(key(), std::to_string(i) + std::string(40, 'v'));
  };
  {
    Pool pool = Pool::create(path, pool_options());
    Store store = Store::create(pool, "store", options(0, 8 << 20));
    store.add_consumer("c");
    write_some(store);
  }
  FailingMedium medium(path, Domain::kLine);
  medium.begin();
  {
    Pool pool = Pool::open(path, pool_options());
    Store store = Store::open(pool, "store", options(0, 8 << 20));
    medium.refuse_here(medium.persists(), true);
    EXPECT_TRUE(
        fails_with(ErrorCode::kIo, [&] { store.acknowledge("c", 0, store.next_change(0)); }));
    ASSERT_TRUE(medium.refused());
  }
  medium.refuse_here(~uint64_t{0}, true);
  std::string image;
  {
    Pool pool = Pool::open(path, pool_options());
    Store store = Store::open(pool, "store", options(0, 8 << 20));
    write_some(store);
    EXPECT_LE(store.first_change(0), store.consumer_position("c", 0));
    image = medium.make_image(FailingMedium::Image::kLeast, 1);
  }
  std::filesystem::rename(image, path);
  medium.begin();
  Pool pool = Pool::open(path, pool_options());
  const Store store = Store::open(pool, "store", options(0, 8 << 20));
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    EXPECT_LE(store.first_change(i), store.consumer_position("c", i)) << i;
  }
}

// What is kept gives way to writes; a copy that has fallen behind is told.
TEST_P(StoreChangesTest, AFullStoreLetsGo) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options(2));
  Store store = Store::create(pool, "store", options(~uint64_t{0}));
  store.add_consumer("never reads");
  for (int i = 0; i < 40'000; ++i) {
    store.put("k" + std::to_string(random_.below(50)), std::string(random_.below(100), 'v'));
    if (i % 50 == 0) store.put("large", std::string(5000, 'v'));
  }
  EXPECT_GT(figure(store, "changes_given_up_blocks"), 0);
  EXPECT_EQ(faults(store), "");
  uint32_t behind = 0;
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    const uint64_t position = store.consumer_position("never reads", i);
    if (store.first_change(i) <= position) continue;
    ++behind;
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { store.changes(i, position); }));
  }
  EXPECT_GT(behind, 0U);
}

// The power fails in the middle of a batch. The opening that takes the rest of it away adds a
// consumer, and writes nothing: the versions of the batch are none that it may have told, whoever
// gives them next.
TEST_P(StoreChangesTest, NoPositionIsBeyondABatchThatWasTakenBack) {
  if (GetParam().options.partitions == 1) GTEST_SKIP() << "the batch would be one group";
  {
    Pool pool = Pool::create(dir_.file("first"), pool_options());
    Store store = Store::create(pool, "store", options(0));
    Store::Batch batch;
    for (int i = 0; i < 20; ++i)
      batch.put("k" + std::to_string(i), "torn " + std::to_string(i) + ".");
    store.apply(batch);
    std::filesystem::copy_file(dir_.file("first"), dir_.file("pool"));
  }
  damage(dir_.file("pool"), "torn 7.");
  {
    Pool pool = Pool::open(dir_.file("pool"), pool_options());
    Store store = Store::open(pool, "store", options(0));
    ASSERT_EQ(content(store), Model());
    store.add_consumer("copy");
  }
  Pool pool = Pool::open(dir_.file("pool"), pool_options());
  Store store = Store::open(pool, "store", options(0));
  Model written;
  for (int i = 0; i < 20; ++i) {
    const std::string key = "k" + std::to_string(i);
    written[key] = "again";
    store.put(key, "again");
  }
  Model told;
  for (uint32_t p = 0; p < store.partitions(); ++p) {
    Store::Changes changes = store.changes(p, store.consumer_position("copy", p));
    for (Store::Change change; changes.next(change);) told[change.key] = change.value;
  }
  EXPECT_EQ(told, written);
}

// The records of all these writes fit into the block that is open.
TEST_P(StoreChangesTest, LongValuesOfTheOpenBlockAreBounded) {
  constexpr uint64_t kUnread = 2 << 20;
  constexpr uint64_t kValue = 256 << 10;
  Pool pool = Pool::create(dir_.file("pool"), pool_options(16));
  Store store = Store::create(pool, "store", options(0, kUnread));
  store.add_consumer("copy");
  const uint32_t partition = store.partition_of("one");
  for (int i = 0; i < 200; ++i) {
    store.put("one", std::string(kValue, 'v'));
    const bool reads = i < 100;
    if (reads) store.acknowledge("copy", partition, store.next_change(partition));
    ASSERT_LE(figure(store, "changes_kept_bytes"), (reads ? 0 : kUnread) + kValue + (64 << 10))
        << i;
  }
  EXPECT_EQ(faults(store), "");
}

TEST_P(StoreChangesTest, LongValuesOfTheOpenBlockGiveWay) {
  for (const uint64_t bytes_max : {uint64_t{0}, uint64_t{8} << 20}) {
    const std::string name = "pool" + std::to_string(bytes_max);
    Pool pool = Pool::create(dir_.file(name), pool_options(16));
    StoreOptions all = options(~uint64_t{0});
    all.bytes_max = bytes_max;
    Store store = Store::create(pool, "store", all);
    for (int i = 0; i < 100; ++i) {
      Store::Batch batch;  // a batch makes room in another way
      batch.put("one", std::string(256 << 10, static_cast<char>('a' + i % 26)));
      if (i % 2 == 0) {
        store.apply(batch);
      } else {
        store.put("one", std::string(256 << 10, static_cast<char>('a' + i % 26)));
      }
    }
    EXPECT_EQ(store.get("one"), std::string(256 << 10, 'a' + 99 % 26));
    EXPECT_GT(figure(store, "changes_given_up_blocks"), 0);
    EXPECT_EQ(faults(store), "");
  }
}

TEST_P(StoreChangesTest, WhatPrecedesDamageIsToldOnce) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options(1 << 20));
  const uint32_t partition = store.partition_of("k40");
  std::vector<std::string> before;
  for (int i = 0; i < 50; ++i) {
    const std::string key = "k" + std::to_string(i);
    store.put(key, "value " + std::to_string(i) + ".");
    if (i < 40 && store.partition_of(key) == partition) before.push_back(key);
  }
  damage(dir_.file("pool"), "value 40.");
  Store::Changes changes = store.changes(partition, 1);
  std::vector<std::string> told;
  Store::Change change;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] {
      while (changes.next(change)) told.push_back(change.key);
    }));
  }
  EXPECT_EQ(told, before);
}

TEST_P(StoreChangesTest, ACopyFollowsThreadsThatWrite) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options(0, 32 << 20));
  store.add_consumer("copy");
  Replica replica;
  replica.begin(store);
  std::atomic<int> writing{3};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Random random(base_seed() + t);
      for (int i = 0; i < 3000; ++i) {
        Store::Batch batch;
        for (int j = 0; j < 3; ++j) {
          batch.put("k" + std::to_string(random.below(100)), std::to_string(i * 3 + j));
        }
        store.apply(batch);
        store.remove("k" + std::to_string(random.below(100)));
      }
      --writing;
    });
  }
  while (writing.load() > 0) {
    EXPECT_TRUE(replica.follow(store));
    for (uint32_t p = 0; p < store.partitions(); ++p)
      store.acknowledge("copy", p, replica.position(p));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(replica.follow(store));
  EXPECT_EQ(replica.content(), content(store));
  EXPECT_EQ(faults(store), "");
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreChangesTest,
    testing::Values(StoreCase{"Hash", {.partitions = 4}},
                    StoreCase{"OnePartition", {.partitions = 1}},
                    StoreCase{"Ordered", {.index = StoreIndex::kOrdered, .partitions = 3}},
                    StoreCase{"Pm", {.index = StoreIndex::kPm, .partitions = 3}},
                    StoreCase{"Workers", {.partitions = 4, .workers = 2}}),
    name_of);

}  // namespace
}  // namespace perdure::test
