// What an opening reads: the index snapshot of a clean close, or else the records.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "store/layout.h"
#include "store/store_impl.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using Model = std::map<std::string, std::string>;

class StoreOpeningTest : public testing::Test {
 protected:
  static PoolOptions options() { return unsealed_store_pool(32); }
  std::string path() const { return dir_.file("pool"); }
  static StoreOptions small(uint32_t partitions = 4) {
    return {.partitions = partitions, .block_bytes = 4096};
  }
  static std::string key(int i) { return "key" + std::to_string(i); }
  static std::string value(int i) { return "<value of " + std::to_string(i) + ">"; }

  // Records in many blocks, some overwritten, removed, long, expiring, removed by a prefix.
  static void fill(Store& store, Model& model) {
    for (int i = 0; i < 2000; ++i) store.put(key(i), value(i));
    for (int i = 0; i < 700; ++i) store.put(key(i), value(i));
    for (int i = 1800; i < 1900; ++i) store.remove(key(i));
    store.put("long1", std::string(5000, 'L'));
    store.put("long1", std::string(6000, 'L'));
    store.put(std::string(3000, 'k'), std::string(50000, 'M'));
    store.put("later", "expires", std::chrono::system_clock::now() + std::chrono::hours(1));
    store.remove_prefix("key199");
    model = content(store);
  }
  Model fill_pool(uint32_t partitions = 4) const {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", small(partitions));
    Model model;
    fill(store, model);
    return model;
  }

  // Where the index snapshot of so many records is in the file.
  static size_t find_snapshot(const std::string& image, uint64_t entries) {
    for (size_t at = 0; at + 64 <= image.size(); at += 64) {
      uint64_t words[8];
      std::memcpy(words, &image[at], sizeof words);
      if (words[5] == entries && words[1] % 64 == 0 && words[1] > entries * 8 &&
          words[1] < entries * 64) {
        return at;
      }
    }
    ADD_FAILURE() << "no index snapshot";
    return 0;
  }

  TempDir dir_;
};

TEST_F(StoreOpeningTest, ReadsTheSnapshotOfACleanClose) {
  Model model = fill_pool();
  for (int session = 0; session < 10; ++session) {
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store");
    EXPECT_EQ(figure(store, "index_snapshots_read"), 4);
    EXPECT_EQ(faults(store), "");
    EXPECT_EQ(content(store), model);
    for (int i = session * 100; i < 1500; ++i) {
      store.put(key(i), model[key(i)] = value(i + session));
    }
    store.remove(key(session));
    model.erase(key(session));
  }
}

TEST_F(StoreOpeningTest, ReadsTheSnapshotOfAnOrderedIndex) {
  Model model;
  StoreOptions ordered = small(3);
  ordered.index = StoreIndex::kOrdered;
  {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", ordered);
    fill(store, model);
  }
  Random random(base_seed());
  for (int session = 0; session < 12; ++session) {
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store");
    EXPECT_EQ(figure(store, "index_snapshots_read"), 3);
    EXPECT_EQ(faults(store), "");
    auto expected = model.begin();
    store.scan("", ~uint64_t{0}, [&](std::string_view key, std::string_view value) {
      EXPECT_EQ(expected->first, key);
      EXPECT_EQ(expected->second, value);
      ++expected;
      return true;
    });
    EXPECT_EQ(expected, model.end());
    for (int i = 0; i < 600; ++i) {
      const std::string one = key(static_cast<int>(random.below(4000)));
      if (random.below(session % 3 + 2) == 0) {
        store.put(one, model[one] = value(i));
      } else {
        store.remove(one);
        model.erase(one);
      }
    }
    if (session == 8) {
      store.remove_prefix("");
      model.clear();
    }
  }
}

TEST_F(StoreOpeningTest, WithoutSnapshotsThereIsOneOnlyWhileTheStoreIsClosed) {
  const auto allocated = [](const Pool& pool) { return pool.info().allocated_bytes; };
  Pool pool = Pool::create(path(), options());
  uint64_t before = 0;
  {
    StoreOptions made = small();
    made.index_snapshot_percent = 0;
    Store store = Store::create(pool, "store", made);
    Model model;
    fill(store, model);
    before = allocated(pool);
  }
  EXPECT_GT(allocated(pool), before);
  const Store store = Store::open(pool, "store", {.index_snapshot_percent = 0});
  EXPECT_EQ(allocated(pool), before);
}

// After a crash the snapshot of an earlier close does not count for all, be it that the process
// died at once: it is what an opening begins with.
TEST_F(StoreOpeningTest, AfterACrashTheSnapshotOfTheCloseIsTheBegin) {
  Model model = fill_pool();
  Pool pool = Pool::open(path(), options());
  Store store = Store::open(pool, "store");
  const auto dies_here = [&] {
    const std::string copy = dir_.file("copy");
    write_file(copy, read_file(path()));
    Pool again = Pool::open(copy, options());
    const Store found = Store::open(again, "store");
    EXPECT_EQ(figure(found, "index_snapshots_read"), 4);
    EXPECT_LE(figure(found, "recovered_operations"), 4);
    EXPECT_EQ(content(found), model);
    EXPECT_EQ(faults(found), "");
  };
  dies_here();
  store.put(key(1), model[key(1)] = "one");
  store.remove(key(2));
  model.erase(key(2));
  dies_here();
}

// Of what an opening after a crash counts, nothing expires that only stands behind what does: or
// blocks would seem to need less than nothing once that has, and never give their garbage back.
TEST_F(StoreOpeningTest, WhatIsRemovedAfterACrashMakesRoomBesideWhatHasExpired) {
  constexpr int kRecords = 40000;
  const std::string text(100, 'v');
  const PoolOptions little = unsealed_store_pool(8);
  const auto expiry = std::chrono::system_clock::now() + std::chrono::seconds(2);
  {
    Pool pool = Pool::create(dir_.file("first"), little);
    StoreOptions ordered = small(1);
    ordered.index = StoreIndex::kOrdered;
    ordered.index_snapshot_percent = 0;
    Store store = Store::create(pool, "store", ordered);
    store.put("expires", "soon", expiry);
    for (int i = 0; i < kRecords; ++i) store.put(key(i), text);
    write_file(path(), read_file(dir_.file("first")));  // it dies here
  }
  Pool pool = Pool::open(path(), little);
  Store store = Store::open(pool, "store");
  ASSERT_EQ(figure(store, "index_snapshots_read"), 0);
  for (int i = 0; i < kRecords; i += 16) store.remove(key(i));
  std::this_thread::sleep_until(expiry + std::chrono::milliseconds(1));
  for (int i = 0; i < kRecords; ++i) {
    if (i % 4 != 0) store.remove(key(i));
  }
  for (int i = 0; i < kRecords; ++i) {
    if (i % 4 == 0) continue;
    ASSERT_NO_THROW(store.put("new" + key(i), text)) << i;
  }
  EXPECT_EQ(content(store).size(), kRecords - kRecords / 16);
  EXPECT_EQ(faults(store), "");
}

TEST_F(StoreOpeningTest, ADamagedSnapshotIsNotRead) {
  const Model model = fill_pool(1);
  const std::string sound = read_file(path());
  const size_t at = find_snapshot(sound, model.size());
  uint64_t bytes = 0;
  std::memcpy(&bytes, &sound[at + 8], sizeof bytes);
  Random random(base_seed());
  for (int i = 0; i < 100; ++i) {
    std::string image = sound;
    image[at + (i < 64 ? i : random.below(bytes))] ^= static_cast<char>(1 << random.below(8));
    write_file(path(), image);
    if (i % 10 == 0) {
      PoolOptions reading = options();
      reading.read_only = true;
      Pool pool = Pool::open(path(), reading);
      std::string found;
      Store::verify(pool, "store", [&](const std::string& sentence) { found += sentence; });
      ASSERT_NE(found.find("index snapshot"), std::string::npos) << i << ": " << found;
    }
    Pool pool = Pool::open(path(), options());
    const Store store = Store::open(pool, "store");
    ASSERT_EQ(figure(store, "index_snapshots_read"), 0) << i;
    ASSERT_EQ(content(store), model) << i;
  }
}

TEST_F(StoreOpeningTest, AnotherKindOfIndexReadsTheRecords) {
  const Model model = fill_pool();
  for (const StoreIndex index : {StoreIndex::kOrdered, StoreIndex::kHash, StoreIndex::kHash}) {
    Pool pool = Pool::open(path(), options());
    const Store store = Store::open(pool, "store", {.index = index});
    EXPECT_EQ(content(store), model);
    EXPECT_EQ(faults(store), "");
  }
}

TEST_F(StoreOpeningTest, AFullPoolClosesWithoutASnapshot) {
  PoolOptions little = options();
  little.capacity_bytes = uint64_t{4} << 20;
  Model model;
  {
    Pool pool = Pool::create(path(), little);
    Store store = Store::create(pool, "store", {.partitions = 1, .block_bytes = 4096});
    try {
      for (int i = 0;; ++i) store.put(key(i), value(i));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kPoolFull);
    }
    model = content(store);
  }
  Pool pool = Pool::open(path(), little);
  const Store store = Store::open(pool, "store");
  EXPECT_EQ(figure(store, "index_snapshots_read"), 0);
  EXPECT_EQ(content(store), model);
}

// Wherever records are damaged while the store is closed, each key has its value or is an error,
// and what is written afterwards is there after a crash.
TEST_F(StoreOpeningTest, ADamagedRecordIsAnErrorOfItsKeyAlone) {
  const Model model = fill_pool();
  std::string image = read_file(path());
  const int damaged[] = {1000, 1500, 1999 - 20};
  for (const int i : damaged) {
    const size_t at = image.rfind(value(i));
    ASSERT_NE(at, std::string::npos);
    image[at + 3] ^= 16;
  }
  // Lengths, too.
  const size_t at = image.rfind(key(1700) + "<");
  std::memset(&image[at - 12], 0xff, 4);
  write_file(path(), image);
  Pool pool = Pool::open(path(), options());
  Store store = Store::open(pool, "store");
  EXPECT_EQ(figure(store, "index_snapshots_read"), 4);
  int errors = 0;
  for (const auto& [key, value] : model) {
    try {
      ASSERT_EQ(store.get(key), value) << key;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kCorrupt);
      ++errors;
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.put(key, "new"); })) << key;
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.remove(key); })) << key;
    }
  }
  EXPECT_EQ(errors, 4);
}

// ---- damage that is met where no snapshot tells what was there

class StoreDamageTest : public StoreOpeningTest, public testing::WithParamInterface<StoreIndex> {
 protected:
  // Where blocks of records are that were closed.
  static std::vector<size_t> closed_blocks(const std::string& image) {
    std::vector<size_t> found;
    for (size_t at = 0; at + kBlockBytes <= image.size(); at += 64) {
      store::BlockHeader header;
      std::memcpy(&header, &image[at], sizeof header);
      const bool records =
          header.kind == store::BlockKind::kLog || header.kind == store::BlockKind::kMoved;
      if (records && header.bytes == kBlockBytes && header.partition < 2 &&
          header.incarnation != 0 && header.incarnation < 100'000 && header.end != 0) {
        found.push_back(at);
      }
    }
    return found;
  }

  // Each key has its value, or is an error. Returns how many have.
  static int verify(const Store& store, const Model& model, int keys) {
    int there = 0;
    for (int i = 0; i < keys; ++i) {
      try {
        const std::optional<std::string> found = store.get(key(i));
        const auto expected = model.find(key(i));
        EXPECT_EQ(found.has_value(), expected != model.end()) << key(i);
        EXPECT_EQ(found.value_or(""), expected != model.end() ? expected->second : "") << key(i);
        ++there;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      }
    }
    return there;
  }

  static constexpr int kKeys = 400;
  static constexpr uint64_t kBlockBytes = 1024;
};

TEST_P(StoreDamageTest, NothingOldComesBackForARecordThatIsLost) {
  Random random(base_seed());
  Model model;
  const auto change = [&](Store& store, int count) {
    for (; count > 0; --count) {
      const std::string name = key(static_cast<int>(random.below(kKeys)));
      const uint64_t what = random.below(100);
      try {
        if (what < 70) {
          const std::string text = value(static_cast<int>(random.below(1'000'000)));
          store.put(name, text);
          model[name] = text;
        } else if (what < 98) {
          store.remove(name);
          model.erase(name);
        } else if (what == 98) {
          const std::string text(300 + random.below(1000), 'L');
          store.put(name, text);
          model[name] = text;
        } else {
          store.remove_prefix(name);
          std::erase_if(model, [&](const auto& one) { return one.first.starts_with(name); });
        }
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      }
    }
  };
  std::string image;
  {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store",
                                {.index = GetParam(), .partitions = 2, .block_bytes = kBlockBytes});
    change(store, 6000);
    image = read_file(path());  // the process dies
  }
  const Model before = model;
  int answers = 0;
  for (int round = 0; round < 40; ++round) {
    model = before;
    std::string damaged = image;
    const std::vector<size_t> blocks = closed_blocks(image);
    ASSERT_GT(blocks.size(), 10U);
    for (uint64_t n = 1 + random.below(2); n > 0; --n) {
      const size_t in_block = 64 + random.below(kBlockBytes - 64);
      const size_t at = blocks[random.below(blocks.size())] + in_block;
      if (random.below(2) == 0) {
        damaged[at] ^= static_cast<char>(1 << random.below(8));
      } else {
        std::memset(&damaged[at], 0,
                    1 + random.below(std::min<size_t>(256, kBlockBytes - in_block)));
      }
    }
    for (int session = 0; session < 3; ++session) {
      write_file(path(), damaged);
      Pool pool = Pool::open(path(), options());
      Store store = Store::open(pool, "store", {.garbage_percent = 5});
      answers += verify(store, model, kKeys);
      change(store, 500);
      verify(store, model, kKeys);
      ASSERT_FALSE(HasFailure()) << "round " << round << ", session " << session;
      damaged = read_file(path());
    }
  }
  EXPECT_GT(answers, 1000);
}

// A key that is written anew is there again, whatever was lost before.
TEST_P(StoreDamageTest, WhatIsWrittenAfterwardsIsKnown) {
  std::string image;
  {
    Pool pool = Pool::create(path(), options());
    Store store =
        Store::create(pool, "store", {.index = GetParam(), .partitions = 1, .block_bytes = 4096});
    for (int i = 0; i < kKeys; ++i) store.put(key(i), value(i));
    image = read_file(path());
  }
  const size_t at = image.find(value(50));
  ASSERT_NE(at, std::string::npos);
  image[at] ^= 1;
  for (int session = 0; session < 3; ++session) {
    write_file(path(), image);
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store");
    EXPECT_GT(figure(store, "damaged_blocks"), 0);
    EXPECT_EQ(store.get(key(kKeys - 1)), value(kKeys - 1));
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.get("nothing")); }));
    if (session == 0) {
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.get(key(50))); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.insert(key(50), "new"); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.remove(key(50)); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { content(store); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.remove_prefix("key"); }));
      store.put(key(50), "new");
    }
    EXPECT_EQ(store.get(key(50)), "new");
    EXPECT_NE(faults(store), "");
    image = read_file(path());
  }
}

INSTANTIATE_TEST_SUITE_P(Indexes, StoreDamageTest,
                         testing::Values(StoreIndex::kHash, StoreIndex::kOrdered));

// ---- partitions serve before all are ready

class StoreEarlyTest : public StoreOpeningTest, public testing::WithParamInterface<uint32_t> {
 protected:
  static StoreOptions early() { return {.serve_early = true, .workers = GetParam()}; }
};

// Which partitions openings recover while it lives, in which order. One at a time.
class Recoveries {
 public:
  Recoveries() {
    take();
    store::StoreImpl::before_recovery = [](uint32_t number) {
      const std::lock_guard lock(mutex);
      order.push_back(number);
    };
  }
  ~Recoveries() { store::StoreImpl::before_recovery = nullptr; }
  Recoveries(const Recoveries&) = delete;
  Recoveries& operator=(const Recoveries&) = delete;

  // Those since the last call.
  static std::vector<uint32_t> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(order, {});
  }

 private:
  static inline std::mutex mutex;
  static inline std::vector<uint32_t> order;
};

// By one thread, since there are few: first those that somebody waits for.
TEST_F(StoreOpeningTest, PartitionsOfTheKeysThatAreAskedForComeFirst) {
  fill_pool(7);
  using store::StoreImpl;
  const Recoveries recoveries;
  for (int first = 0; first < 20; ++first) {
    Pool pool = Pool::open(path(), options());
    StoreOptions early;
    early.serve_early = true;
    const std::vector<std::string> asked = {key(first), key(first), key(first + 1)};
    const auto store = StoreImpl::open(pool, "store", early, asked);
    for (uint32_t i = 0; i < store->partitions(); ++i) {
      while (!store->is_ready(i)) std::this_thread::yield();  // it is not asked for
    }
    std::vector<uint32_t> expected;
    const auto expect = [&](uint32_t number) {
      if (std::ranges::find(expected, number) == expected.end()) expected.push_back(number);
    };
    for (const std::string& one : asked) expect(store->place_of(one).number);
    for (uint32_t i = 0; i < store->partitions(); ++i) expect(i);
    EXPECT_EQ(Recoveries::take(), expected);
  }
}

// Several threads, each of which has one partition before it runs: no other takes that, too.
TEST_F(StoreOpeningTest, EachPartitionIsRecoveredByOneThread) {
  fill_pool(16);
  const Recoveries recoveries;
  std::vector<uint32_t> all(16);
  std::iota(all.begin(), all.end(), 0U);
  for (int session = 0; session < 200 && !HasFailure(); ++session) {
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store", {.recovery_threads = 4, .serve_early = true});
    store.wait_until_ready();
    std::vector<uint32_t> order = Recoveries::take();
    std::ranges::sort(order);
    EXPECT_EQ(order, all) << session;
  }
}

TEST_P(StoreEarlyTest, EachCallFindsItsPartitionReady) {
  Model model = fill_pool(16);
  for (int session = 0; session < 8; ++session) {
    std::string image;
    {
      Pool pool = Pool::open(path(), options());
      Store store = Store::open(pool, "store", early());
      const auto some = [&](size_t first) {
        size_t i = 0;
        for (const auto& [key, value] : model) {
          if (i++ % 3 != first) continue;
          EXPECT_EQ(store.get(key), value);
        }
      };
      std::thread other(some, 1);
      some(0);
      other.join();
      store.put(key(session), model[key(session)] = "new");
      store.wait_until_ready();
      EXPECT_TRUE(store.is_ready());
      EXPECT_EQ(figure(store, "partitions_ready"), 16);
      EXPECT_EQ(content(store), model);
      EXPECT_EQ(faults(store), "");
      image = read_file(path());
    }
    if (session % 2 == 1) write_file(path(), image);  // the process died
  }
}

TEST_P(StoreEarlyTest, ABatchOverAllPartitionsWaitsForAll) {
  Model model = fill_pool(16);
  Pool pool = Pool::open(path(), options());
  Store store = Store::open(pool, "store", early());
  Store::Batch batch;
  for (int i = 0; i < 100; ++i) batch.put(key(i), model[key(i)] = "of the batch");
  store.apply(batch);
  EXPECT_EQ(content(store), model);
}

TEST_P(StoreEarlyTest, ClosedBeforeItIsReadyItStaysAsItWas) {
  Model model = fill_pool(16);
  for (int session = 0; session < 30; ++session) {
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store", early());
    if (session % 3 == 0) store.put(key(session), model[key(session)] = "new");
  }
  Pool pool = Pool::open(path(), options());
  const Store store = Store::open(pool, "store");
  EXPECT_EQ(content(store), model);
  EXPECT_EQ(faults(store), "");
}

TEST_P(StoreEarlyTest, APartitionThatCannotBeReadLeavesTheOthers) {
  {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", {.boundaries = {"m"}, .block_bytes = 4096});
    for (int i = 0; i < 1234; ++i) store.put("a" + key(i), value(i));
    for (int i = 0; i < 100; ++i) store.put("z" + key(i), value(i));
  }
  // What the close noted of the first partition: blocks, records, bytes.
  std::string image = read_file(path());
  int changed = 0;
  for (size_t at = 64; at + 64 <= image.size(); at += 64) {
    uint64_t words[8];
    std::memcpy(words, &image[at], sizeof words);
    if (words[3] != 1234 || words[1] == 0 || words[1] > 9) continue;
    image[at + 24] ^= 1;
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  write_file(path(), image);
  Pool pool = Pool::open(path(), options());
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { Store::open(pool, "store"); }));
  Store store = Store::open(pool, "store", early());
  EXPECT_EQ(store.get("z" + key(1)), value(1));
  store.put("z", "new");
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.get("akey1")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.put("a", "new"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.wait_until_ready(); }));
  // Who asks again and again is told that it cannot help.
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.is_ready(0)); }));
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.is_ready()); }));
  EXPECT_TRUE(store.is_ready(1));
  EXPECT_EQ(figure(store, "partitions_failed"), 1);
  EXPECT_EQ(figure(store, "partitions_ready"), 1);
}

INSTANTIATE_TEST_SUITE_P(Workers, StoreEarlyTest, testing::Values(0, 2));

}  // namespace
}  // namespace perdure::test
