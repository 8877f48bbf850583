// Snapshots of an index in DRAM that are written while the store is open: what an opening after the
// death of the process begins with. power_test.cc has the power failures.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "store/layout.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using Model = std::map<std::string, std::string>;

class StoreRecentSnapshotTest : public testing::TestWithParam<StoreCase> {
 protected:
  static PoolOptions options() { return unsealed_store_pool(64); }
  static StoreOptions made() {
    StoreOptions made = GetParam().options;
    made.block_bytes = 4096;
    return made;
  }
  static std::string key(uint64_t i) { return "key" + std::to_string(i); }

  void write_some(Store& store, Model& model, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string one = key(random_.below(6000));
      switch (random_.below(10)) {
        case 0:
          store.remove(one);
          model.erase(one);
          break;
        case 1:
          if (random_.below(20) == 0) {
            model[one] = std::string(1000 + random_.below(20000), 'L');
            store.put(one, model[one]);
          }
          break;
        default:
          model[one] = std::string(random_.below(80), static_cast<char>('a' + i % 26));
          store.put(one, model[one]);
      }
    }
  }
  // The pool as it is if the process dies now.
  std::string as_it_is() const { return read_file(dir_.file("pool")); }

  // Opens an image, and tells how many partitions were not read wholly.
  double judge(const std::string& image, const Model& model) {
    const std::string copy = dir_.file("copy");
    write_file(copy, image);
    double read = 0;
    {
      Pool pool = Pool::open(copy, options());
      Store store = Store::open(pool, "s");
      read = figure(store, "index_snapshots_read");
      EXPECT_EQ(content(store), model);
      EXPECT_EQ(faults(store), "");
      store.put("another", "1");
    }
    // The close has noted what there is, and the opening compares.
    Pool pool = Pool::open(copy, options());
    const Store store = Store::open(pool, "s");
    EXPECT_EQ(content(store).size(), model.size() + 1);
    EXPECT_EQ(faults(store), "");
    return read;
  }

  // Where snapshots that were written meanwhile stand in an image.
  static std::vector<size_t> snapshots_in(const std::string& image) {
    std::vector<size_t> found;
    for (size_t at = 64; at + 64 <= image.size(); at += 64) {
      store::IndexSnapshot one;
      std::memcpy(&one, &image[at], sizeof one);
      uint64_t frame_bytes = 0;
      std::memcpy(&frame_bytes, &image[at - 56], sizeof frame_bytes);
      if ((one.generation >> 61) == 1 && one.bytes + 64 == frame_bytes) found.push_back(at);
    }
    return found;
  }

  TempDir dir_;
  Random random_{base_seed()};
};

TEST_P(StoreRecentSnapshotTest, AnOpeningReadsItAndWhatHasComeSince) {
  Pool pool = Pool::create(dir_.file("pool"), options());
  Store store = Store::create(pool, "s", made());
  Model model;
  write_some(store, model, 20'000);
  for (int round = 0; round < 12; ++round) {
    write_some(store, model, static_cast<int>(random_.below(3000)));
    EXPECT_EQ(judge(as_it_is(), model), store.partitions());
  }
  EXPECT_GT(figure(store, "index_snapshots"), 3 * store.partitions());
  // A removal by prefix is found only by reading all, until there is another snapshot.
  store.remove_prefix("key1");
  std::erase_if(model, [](const auto& one) { return one.first.starts_with("key1"); });
  judge(as_it_is(), model);
  write_some(store, model, 3000);
  EXPECT_EQ(judge(as_it_is(), model), store.partitions());
}

TEST_P(StoreRecentSnapshotTest, OneProcessDiesAfterTheOther) {
  const std::string path = dir_.file("pool");
  Model model;
  {
    Pool pool = Pool::create(path, options());
    Store store = Store::create(pool, "s", made());
    write_some(store, model, 12'000);
    write_file(dir_.file("next"), as_it_is());
  }
  double read = 0;
  for (int session = 0; session < 40; ++session) {
    write_file(path, read_file(dir_.file("next")));
    Pool pool = Pool::open(path, options());
    Store store = Store::open(pool, "s", made());
    read += figure(store, "index_snapshots_read");
    ASSERT_EQ(content(store), model) << session;
    ASSERT_EQ(faults(store), "") << session;
    write_some(store, model, static_cast<int>(random_.below(2000)));
    write_file(dir_.file("next"), as_it_is());
  }
  EXPECT_GT(read, 30);
}

TEST_P(StoreRecentSnapshotTest, WhereItIsDamagedTheRecordsAreRead) {
  Pool pool = Pool::create(dir_.file("pool"), options());
  Store store = Store::create(pool, "s", made());
  Model model;
  write_some(store, model, 20'000);
  const std::string image = as_it_is();
  ASSERT_EQ(judge(image, model), store.partitions());
  const std::vector<size_t> snapshots = snapshots_in(image);
  ASSERT_GE(snapshots.size(), store.partitions());
  for (int round = 0; round < 10; ++round) {
    std::string damaged = image;
    for (const size_t at : snapshots) {
      store::IndexSnapshot one;
      std::memcpy(&one, &image[at], sizeof one);
      // Somewhere in frame, header, or content.
      damaged[at - 64 + random_.below(round % 2 == 0 ? 128 : one.bytes + 64)] ^=
          static_cast<char>(1 << random_.below(8));
    }
    judge(damaged, model);
  }
  // What it says of each block and entry, all at once.
  std::string damaged = image;
  for (const size_t at : snapshots) damaged[at + 64 + random_.below(64)] ^= 4;
  EXPECT_EQ(judge(damaged, model), 0);
}

TEST_P(StoreRecentSnapshotTest, AFullStoreHasTheirRoomAndStillRemoves) {
  const auto fill = [&](uint32_t percent) {
    StoreOptions options = made();
    options.index_snapshot_percent = percent;
    const std::string path = dir_.file("full" + std::to_string(percent));
    Pool pool = Pool::create(path, unsealed_store_pool(6));
    Store store = Store::create(pool, "s", options);
    uint64_t count = 0;
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
      for (;; ++count) store.put(key(count), "a short value");
    }));
    if (percent != 0) {
      EXPECT_GT(figure(store, "index_snapshots"), 0);
    }
    for (uint64_t i = 0; i < count; i += 2) EXPECT_TRUE(store.remove(key(i)));
    for (uint64_t i = 0; i < count / 8; ++i) store.put(key(count + i), "a short value");
    EXPECT_EQ(faults(store), "");
    return count;
  };
  const uint64_t without = fill(0);
  const uint64_t with = fill(5);
  // But for room in parts that are too small for a block.
  EXPECT_GE(with, without - without / 25);
}

TEST_P(StoreRecentSnapshotTest, ThereAreNoneIfNotAskedFor) {
  Pool pool = Pool::create(dir_.file("pool"), options());
  StoreOptions none = made();
  none.index_snapshot_percent = 0;
  Store store = Store::create(pool, "s", none);
  Model model;
  write_some(store, model, 20'000);
  EXPECT_EQ(figure(store, "index_snapshots"), 0);
  EXPECT_EQ(judge(as_it_is(), model), 0);
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "index_snapshot_percent",
                         [&] { Store::create(pool, "t", {.index_snapshot_percent = 3}); }));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreRecentSnapshotTest,
                         testing::Values(StoreCase{"InLine", {.partitions = 4}},
                                         StoreCase{"Workers", {.partitions = 4, .workers = 2}},
                                         StoreCase{"One", {.partitions = 1}}),
                         name_of);

}  // namespace
}  // namespace perdure::test
