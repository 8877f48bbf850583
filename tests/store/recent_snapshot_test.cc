// Snapshots of an index in DRAM that are written while the store is open: what an opening after the
// death of the process begins with. power_test.cc has the power failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/store.h"
#include "pm/emulated_media.h"
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

  // Where the links of partitions to snapshots that were written meanwhile stand in an image.
  static std::vector<size_t> links_in(const std::string& image) {
    const auto is_frame = [&](uint64_t at) {
      if (at % 64 != 0 || at > image.size() - 128) return false;
      uint64_t frame_bytes = 0;
      std::memcpy(&frame_bytes, &image[at + offsetof(store::SnapshotFrame, bytes)], 8);
      store::IndexSnapshot one;
      std::memcpy(&one, &image[at + sizeof(store::SnapshotFrame)], sizeof one);
      return (one.generation >> 61 & 1) == 1 && one.bytes + 64 == frame_bytes;
    };
    std::vector<size_t> found;
    for (size_t at = offsetof(store::PartitionRoot, snapshots) % 64; at + 32 <= image.size();
         at += 64) {
      uint64_t words[4];  // to the end of a PartitionRoot
      std::memcpy(words, &image[at], sizeof words);
      if (words[0] == 0 && words[1] == 0) continue;
      if (words[2] != 0 || words[3] != 0) continue;
      for (size_t i = 0; i < 2; ++i) {
        if (words[i] != 0 && is_frame(words[i]) && words[1 - i] % 64 == 0) {
          found.push_back(at + 8 * i);
        }
      }
    }
    return found;
  }
  // And where these stand.
  static std::vector<size_t> snapshots_in(const std::string& image) {
    std::vector<size_t> found;
    for (const size_t link : links_in(image)) {
      uint64_t frame = 0;
      std::memcpy(&frame, &image[link], sizeof frame);
      found.push_back(frame + sizeof(store::SnapshotFrame));
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
  EXPECT_GT(read, GetParam().options.index == StoreIndex::kOrdered ? 20 : 30);
}

// Few keys are written again and again, so that blocks are compacted as soon as they are full: what
// an opening finds of a key may be a copy that does not name any more what its origin superseded,
// beside the block that has both.
TEST_P(StoreRecentSnapshotTest, CopiesOfWhatSupersedesARecordOfTheSnapshot) {
  StoreOptions often = made();
  often.block_bytes = 1024;
  often.index_snapshot_percent = 5;
  often.garbage_percent = 5;
  Pool pool = Pool::create(dir_.file("pool"), options());
  Store store = Store::create(pool, "s", often);
  const uint64_t keys = 25 * store.partitions();
  Model model;
  double read = 0;
  for (int round = 0; round < 1000 && !HasFailure(); ++round) {
    const uint64_t writes = 1 + random_.below(60);
    for (uint64_t i = 0; i < writes; ++i) {
      const std::string one = key(random_.below(random_.below(4) == 0 ? keys : keys / 4));
      if (random_.below(12) == 0) {
        store.remove(one);
        model.erase(one);
      } else {
        store.put(one, model[one] = std::string(random_.below(60), 'v') + std::to_string(round));
      }
    }
    read += judge(as_it_is(), model);
  }
  EXPECT_GT(read, 100);
}

// Writes of all kinds, and deaths of the process after each other, some in the opening of the next,
// or closes. After each opening what each block has that counts must be what a walk over the
// records finds (check()): a block of which too little is said to count is freed with records in
// it.
TEST_P(StoreRecentSnapshotTest, AccountsOfBlocksHoldAfterEachOpening) {
  const std::string path = dir_.file("pool");
  const std::string next = dir_.file("next");
  const auto when = [](int hours) {
    return std::chrono::system_clock::now() + std::chrono::hours(hours);
  };
  const auto some_key = [&] {
    switch (random_.below(5)) {
      case 0:
        return "hot" + std::to_string(random_.below(5));
      case 1:
        return "long" + std::to_string(random_.below(6)) + std::string(300, 'k');  // stands outside
      default:
        return key(random_.below(40 * GetParam().options.partitions));
    }
  };
  const auto some_value = [&] {
    const bool is_long = random_.below(8) == 0;
    return std::string(is_long ? 300 + random_.below(3000) : random_.below(60), 'v') +
           std::to_string(random_.below(1000));
  };
  Model model;
  const auto write_one = [&](Store& store) {
    const std::string one = some_key();
    switch (random_.below(20)) {
      case 0:
      case 1:
      case 2:
        EXPECT_EQ(store.remove(one), model.erase(one) != 0);
        break;
      case 3:
        store.put(one, some_value(), when(-1));
        model.erase(one);
        break;
      case 4:
        store.put(one, model[one] = some_value(), when(1));
        break;
      case 5: {
        Store::Batch batch;
        for (int i = 0; i < 6; ++i) {
          const std::string of_batch = some_key();
          if (i % 3 == 0) {
            batch.remove(of_batch);
            model.erase(of_batch);
          } else {
            batch.put(of_batch, model[of_batch] = some_value());
          }
        }
        store.apply(batch);
        break;
      }
      case 6:
        if (random_.below(25) == 0) {
          const std::string prefix = one.substr(0, 4);
          store.remove_prefix(prefix);
          std::erase_if(model, [&](const auto& item) { return item.first.starts_with(prefix); });
        }
        break;
      default:
        store.put(one, model[one] = some_value());
    }
  };
  const auto options_of_session = [&] {
    StoreOptions often = made();
    often.block_bytes = 1024;
    often.index_snapshot_percent = 5 + 20 * static_cast<uint32_t>(random_.below(3));
    often.garbage_percent = 5 + static_cast<uint32_t>(random_.below(40));
    often.serve_early = random_.chance(50);
    return often;
  };
  {
    Pool pool = Pool::create(path, options());
    Store::create(pool, "s", options_of_session());
  }
  double read = 0;
  for (int session = 0; session < 400 && !HasFailure(); ++session) {
    SCOPED_TRACE(session);
    bool dies = false;
    {
      Pool pool = Pool::open(path, options());
      Store store = Store::open(pool, "s", options_of_session());
      store.wait_until_ready();
      read += figure(store, "index_snapshots_read");
      EXPECT_EQ(content(store), model);
      EXPECT_EQ(faults(store), "");
      std::optional<Store::Snapshot> snapshot;
      for (uint64_t writes = random_.below(400); writes > 0; --writes) {
        write_one(store);
        if (random_.below(60) != 0) continue;
        snapshot.reset();
        if (random_.chance(50)) snapshot.emplace(store.snapshot());
      }
      dies = random_.below(6) != 0;
      if (dies) write_file(next, as_it_is());
    }
    if (dies) std::filesystem::rename(next, path);
  }
  EXPECT_GT(read, 100 * GetParam().options.partitions);
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

// What is behind the writing and what is before it stay apart while keys come between them, go in
// whole ranges, and come back.
TEST_P(StoreRecentSnapshotTest, WholeRangesComeAndGoMeanwhile) {
  Pool pool = Pool::create(dir_.file("pool"), options());
  StoreOptions often = made();
  often.index_snapshot_percent = 5;
  Store store = Store::create(pool, "s", often);
  Model model;
  const auto at = [](uint64_t i) {
    std::string text = std::to_string(i);
    return "range" + std::string(6 - text.size(), '0') + text;
  };
  for (uint64_t i = 0; i < 20'000; i += 2) store.put(at(i), model[at(i)] = "begin");
  double written = 0;
  for (int round = 0; round < 60; ++round) {
    const uint64_t first = random_.below(20'000);
    const uint64_t last = first + random_.below(2500);
    const uint64_t kind = random_.below(3);
    for (uint64_t i = first; i < last; ++i) {
      const std::string one = at(kind == 1 ? first + last - 1 - i : i);
      if (kind == 2) {
        store.remove(one);
        model.erase(one);
      } else {
        store.put(one, model[one] = std::to_string(round));
      }
    }
    if (round % 4 == 0) judge(as_it_is(), model);
    written = figure(store, "index_snapshots");
  }
  EXPECT_GT(written, 5 * store.partitions());
  EXPECT_EQ(judge(as_it_is(), model), store.partitions());
}

// What keys begin with takes more room than there seems to be need for: then the next one has it.
TEST_P(StoreRecentSnapshotTest, KeysThatBeginWithLongTexts) {
  Pool pool = Pool::create(dir_.file("pool"), options());
  Store store = Store::create(pool, "s", made());
  Model model;
  const auto write_long = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const std::string one = std::string(220, 'p') + std::to_string(random_.below(4000));
      store.put(one, model[one] = std::to_string(i));
    }
  };
  write_long(8000);
  for (int round = 0; round < 4; ++round) {
    write_long(3000);
    EXPECT_EQ(judge(as_it_is(), model), store.partitions());
  }
  EXPECT_GT(figure(store, "index_snapshots"), 3 * store.partitions());
}

// A link that damage has made the same as the other one does not free what that leads to.
TEST_P(StoreRecentSnapshotTest, ALinkThatIsThereTwice) {
  std::string image;
  Model model;
  {
    Pool pool = Pool::create(dir_.file("pool"), options());
    Store store = Store::create(pool, "s", made());
    write_some(store, model, 20'000);
    image = as_it_is();
  }
  for (const size_t link : links_in(image)) {
    const bool is_first = link % 64 == offsetof(store::PartitionRoot, snapshots) % 64;
    std::memcpy(&image[is_first ? link + 8 : link - 8], &image[link], 8);
  }
  write_file(dir_.file("pool"), image);
  Pool pool = Pool::open(dir_.file("pool"), options());
  Store store = Store::open(pool, "s");
  EXPECT_EQ(content(store), model);
  for (int round = 0; round < 5; ++round) {
    write_some(store, model, 4000);
    ASSERT_EQ(content(store), model);
    ASSERT_EQ(faults(store), "");
    judge(read_file(dir_.file("pool")), model);
  }
}

// A partition that is not written to holds room, which whatever write of another one may have.
TEST_P(StoreRecentSnapshotTest, EveryKindOfWriteHasTheRoomOfOtherPartitions) {
  if (GetParam().options.partitions == 1) return;
  const std::vector<std::function<void(Store&, const std::string&)>> kinds = {
      [](Store& store, const std::string& key) { store.append(key, "a short value"); },
      [](Store& store, const std::string& key) {
        static_cast<void>(store.run([](Store& s, std::string k) -> Task<uint64_t> {
          co_return co_await s.async_put(k, "a short value");
        }(store, key)));
      },
      [](Store& store, const std::string& key) {
        static_cast<void>(store.run([](Store& s, std::string k) -> Task<uint64_t> {
          co_return co_await s.async_append(k, "a short value");
        }(store, key)));
      }};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    StoreOptions options = made();
    options.partitions = 0;
    options.boundaries = {"m"};
    Pool pool = Pool::create(dir_.file("room" + std::to_string(kind)), unsealed_store_pool(8));
    Store store = Store::create(pool, "s", options);
    for (uint64_t i = 0; i < 20'000; ++i) store.put(key(i), "a short value");
    ASSERT_GT(figure(store, "index_snapshot_bytes"), 0);
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
      for (uint64_t i = 0;; ++i) kinds[kind](store, "z" + std::to_string(i));
    }));
    EXPECT_EQ(figure(store, "index_snapshot_bytes"), 0) << kind;
  }
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

// A medium that counts what reaches it.
class CountingMedium final : public pm::EmulatedMedia {
 public:
  CountingMedium() { pm::emulate_media(this); }
  ~CountingMedium() override { pm::emulate_media(nullptr); }
  void written_back(uintptr_t /*address*/, size_t bytes) override { bytes_ += bytes; }
  void fenced() override {}
  uint64_t take() { return std::exchange(bytes_, 0); }

 private:
  uint64_t bytes_ = 0;
};

// Nor for the room at its end that was not needed.
TEST(StoreRecentSnapshot, NoWritePaysForMuchOfIt) {
  for (const StoreIndex index : {StoreIndex::kHash, StoreIndex::kOrdered}) {
    CountingMedium medium;
    Pool pool = Pool::anonymous(store_pool(64));
    Store store = Store::create(
        pool, "s",
        {.index = index, .partitions = 1, .block_bytes = 65536, .index_snapshot_percent = 5});
    Random random(base_seed());
    const auto put = [&](uint64_t i) { store.put("key" + std::to_string(i), "a short value"); };
    constexpr uint64_t kRecords = 60'000;
    for (uint64_t i = 0; i < kRecords; ++i) put(i);
    const double before = figure(store, "index_snapshots");
    uint64_t bytes_max = 0;
    medium.take();
    for (uint64_t i = 0; i < kRecords; ++i) {
      put(random.below(kRecords));
      bytes_max = std::max(bytes_max, medium.take());
    }
    EXPECT_GT(figure(store, "index_snapshots"), before + 1);
    EXPECT_LT(bytes_max, 24U << 10);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreRecentSnapshotTest,
    testing::Values(StoreCase{"InLine", {.partitions = 4}},
                    StoreCase{"Workers", {.partitions = 4, .workers = 2}},
                    StoreCase{"One", {.partitions = 1}},
                    StoreCase{"Ordered", {.index = StoreIndex::kOrdered, .partitions = 4}},
                    StoreCase{"OrderedOne", {.index = StoreIndex::kOrdered, .partitions = 1}}),
    name_of);

}  // namespace
}  // namespace perdure::test
