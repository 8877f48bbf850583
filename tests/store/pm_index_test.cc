// A store whose index is in PM: what an opening reads, and what of the index no workload reaches.
#include "store/pm_index.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/store.h"
#include "pm/pool_impl.h"
#include "store/fixture.h"
#include "store/layout.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using store::Location;
using Model = std::map<std::string, std::string>;

// Keys are numbers; many have one hash. A record's key is what its place says.
TEST(PmPartitionIndexTest, KeysOfOneHashFollowOneAnother) {
  Pool pool = Pool::anonymous(store_pool(8));
  Store::create(pool, "store", {.index = StoreIndex::kPm, .partitions = 1});
  // Its index without the store.
  const uint64_t at = pm::impl_of(pool).find("store")->root;
  const auto& root = *pm::impl_of(pool).at<store::Root>(at);
  const store::PmIndex structure(pool, root.pm_index, root.salt, at, store::PmIndex::Structure(""));
  // Of the last partition, whose hashes wrap around.
  std::optional<store::PmPartitionIndex> index(std::in_place, structure, 1023);
  Random random(base_seed());
  std::map<uint64_t, Location> model;
  uint32_t stamp = 0;
  const auto hash_of = [](uint64_t key) { return ~uint64_t{0} - key % 3; };
  const auto location_of = [&](uint64_t key) { return Location(++stamp, 64 + key * 8); };
  const auto find = [&](uint64_t key) {
    return index->find(hash_of(key),
                       [&](Location location) { return location.offset() == 64 + key * 8; });
  };
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t key = random.below(20);
    const uint64_t entry = find(key);
    const auto known = model.find(key);
    ASSERT_EQ(entry != store::PmPartitionIndex::kNone, known != model.end()) << i;
    if (known != model.end()) {
      ASSERT_EQ(index->at(entry), known->second) << i;
    }
    if (known == model.end()) {
      index->reserve(1);
      index->insert(hash_of(key), model[key] = location_of(key));
    } else if (random.chance(50)) {
      index->move(entry, known->second = location_of(key));
    } else {
      index->erase(entry);
      model.erase(known);
    }
    ASSERT_EQ(index->size(), model.size());
    switch (random.below(40)) {
      case 0:
        index->gather();
        index->cover();
        break;
      case 1: {  // a crash: what was told, and all that is to be told
        index->gather();
        store::PlaceTable changes = index->gathered();
        index.emplace(structure, 1023);
        index->load(model.size(), std::move(changes));
        break;
      }
      case 2:
        ASSERT_TRUE(index->tell_all());
        break;
      default:
        if (random.chance(30)) index->tell_some();
    }
  }
}

// A process dies while it takes an entry out of the structure. The next one, which does not find it
// any more, takes it out again; then the power fails.
class RemovalFromPmIndex : public testing::TestWithParam<const char*> {
 protected:
  using Work = std::function<void(const store::PmIndex& structure, store::PmPartitionIndex& index)>;

  // The index of partition 1 of a store, without the store. `changes`: what a checkpoint holds.
  void with_index(store::PlaceTable changes, const Work& work) const {
    Pool pool = Pool::open(path(), unsealed_store_pool(8));
    const uint64_t at = pm::impl_of(pool).find("store")->root;
    const auto& root = *pm::impl_of(pool).at<store::Root>(at);
    const store::PmIndex structure(pool, root.pm_index, root.salt, at,
                                   store::PmIndex::Structure(GetParam()));
    store::PmPartitionIndex index(structure, kPartition);
    index.load(1, std::move(changes));
    work(structure, index);
  }
  std::string path() const { return folder_.file("pool"); }
  static uint64_t find(const store::PmPartitionIndex& index) {
    return index.find(kHash, [](Location) { return true; });
  }

  static constexpr uint32_t kPartition = 1;
  static constexpr uint64_t kHash = 12345;
  TempDir folder_;
};

TEST_P(RemovalFromPmIndex, ThatAProcessDiedInIsNotUndoneByAPowerFailure) {
  {
    Pool pool = Pool::create(path(), unsealed_store_pool(8));
    Store::create(pool, "store",
                  {.index = StoreIndex::kPm, .index_structure = GetParam(), .partitions = 2});
  }
  with_index({}, [](const auto&, store::PmPartitionIndex& index) {
    index.reserve(1);
    index.insert(kHash, Location(3, 64));
    index.gather();
    index.cover();
    ASSERT_TRUE(index.tell_all());
  });
  const std::string before = folder_.file("before");
  std::filesystem::copy_file(path(), before);
  bool died = true;
  for (uint64_t persist = 0; died; ++persist) {
    ASSERT_LT(persist, 100U);
    for (const bool makes_anew : {false, true}) {
      SCOPED_TRACE(fmt::format("persist {}, index anew: {}", persist, makes_anew));
      std::filesystem::copy_file(before, path(), std::filesystem::copy_options::overwrite_existing);
      FailingMedium medium(path(), Domain::kLine);
      medium.begin();
      store::PlaceTable changes;
      with_index({}, [&](const auto&, store::PmPartitionIndex& index) {
        const uint64_t entry = find(index);
        ASSERT_NE(entry, store::PmPartitionIndex::kNone);
        index.reserve(1);
        index.erase(entry);
        index.gather();
        changes = index.gathered();
        index.cover();
        medium.refuse_here(medium.persists() + persist, true);
        died = fails_with(ErrorCode::kIo, [&] { index.tell_all(); });
      });
      medium.refuse_here(~uint64_t{0}, true);
      std::string image;
      with_index(std::move(changes), [&](const auto& structure, store::PmPartitionIndex& index) {
        if (makes_anew) {
          structure.will_forget(kPartition);
          index.begin_anew();
          index.clear_structure();
        } else {
          ASSERT_TRUE(index.tell_all());
        }
        image = medium.make_image(FailingMedium::Image::kLeast, 1);
      });
      std::filesystem::rename(image, path());
      with_index({}, [](const auto&, const store::PmPartitionIndex& index) {
        EXPECT_EQ(find(index), store::PmPartitionIndex::kNone);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Structures, RemovalFromPmIndex,
                         testing::Values("cceh", "p-clht+fc", "level+rb", "sheaf", "fast-fair"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '-' || c == '+'; }, '_');
                           return name;
                         });

TEST(PmIndexTest, NamesAStructureFromWordsToWords) {
  EXPECT_EQ(store::PmIndex::Structure("").entry->name, "cceh");
  const store::PmIndex::Structure level("level+rb:a=1,b=2");
  EXPECT_EQ(level.entry->name, "level+rb");
  EXPECT_EQ(level.options, (OptionMap{{"a", "1"}, {"b", "2"}}));
  for (const char* text : {"rstore", "nothing", "cceh:segment_buckets"}) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "index", [&] {
      const store::PmIndex::Structure none(text);
    })) << text;
  }
}

class StorePmIndexTest : public testing::Test {
 protected:
  static PoolOptions options() { return unsealed_store_pool(32); }
  std::string path() const { return dir_.file("pool"); }
  static StoreOptions made() {
    return {.index = StoreIndex::kPm,
            .index_structure = "cceh:segment_buckets=64,initial_depth=1",
            .partitions = kPartitions,
            .block_bytes = 4096};
  }
  void write_some(Store& store, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string key = "key" + std::to_string(random_.below(4000));
      if (random_.below(5) == 0) {
        store.remove(key);
        model_.erase(key);
      } else {
        const std::string value(random_.below(random_.below(50) == 0 ? 5000 : 60), 'v');
        store.put(key, value);
        model_[key] = value;
      }
    }
  }
  // Offsets of checkpoints.
  static std::vector<uint64_t> checkpoints(const Pool& pool) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<store::Root>(impl.find("store")->root);
    const auto* partitions = impl.at<store::PartitionRoot>(root.partition_roots);
    std::vector<uint64_t> offsets;
    for (uint32_t i = 0; i < root.partitions; ++i) offsets.push_back(partitions[i].checkpoint);
    return offsets;
  }

  static constexpr uint32_t kPartitions = 4;
  TempDir dir_;
  Random random_{base_seed()};
  Model model_;
};

TEST_F(StorePmIndexTest, AnOpeningAfterACrashReadsTheEndOfTheLogOnly) {
  std::string file = path();
  {
    Pool pool = Pool::create(file, options());
    Store store = Store::create(pool, "store", made());
    write_some(store, 6000);
  }
  for (int crash = 0; crash < 6; ++crash) {
    Pool pool = Pool::open(file, options());
    Store store = Store::open(pool, "store");
    EXPECT_EQ(figure(store, "checkpoints_read"), kPartitions);
    EXPECT_LT(figure(store, "recovered_operations"), 1000);
    EXPECT_EQ(faults(store), "");
    EXPECT_EQ(content(store), model_);
    write_some(store, 700 * crash);
    EXPECT_EQ(faults(store), "");
    EXPECT_LT(figure(store, "dram_bytes"), 1'000'000);
    // What a process leaves that dies here.
    file = dir_.file("crash" + std::to_string(crash));
    write_file(file, read_file(pool.info().path));
    store.put("not", "there after the crash");
  }
}

TEST_F(StorePmIndexTest, WithoutASoundCheckpointAnOpeningReadsTheRecords) {
  std::string image;
  std::vector<uint64_t> offsets;
  {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", made());
    write_some(store, 6000);
    offsets = checkpoints(pool);
    image = read_file(path());
  }
  for (const bool closed : {false, true}) {
    if (closed) {
      const Pool pool = Pool::open(path(), options());
      offsets = checkpoints(pool);
    }
    if (closed) image = read_file(path());
    for (int i = 0; i < 20; ++i) {
      std::string damaged = image;
      damaged[offsets[i % kPartitions] + random_.below(i < 10 ? 64 : 500)] ^=
          static_cast<char>(1 << random_.below(8));
      write_file(path(), damaged);
      Pool pool = Pool::open(path(), options());
      Store store = Store::open(pool, "store");
      ASSERT_EQ(figure(store, "checkpoints_read"), kPartitions - 1) << i;
      ASSERT_EQ(faults(store), "");
      ASSERT_EQ(content(store), model_);
    }
    write_file(path(), image);
  }
}

TEST_F(StorePmIndexTest, WhereTheIndexIsDoesNotChange) {
  Pool pool = Pool::create(path(), options());
  Store::create(pool, "store", made()).put("a", "b");
  Store::create(pool, "other", {.index = StoreIndex::kHash});
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "in PM",
                         [&] { Store::open(pool, "store", {.index = StoreIndex::kHash}); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "in DRAM",
                         [&] { Store::open(pool, "other", {.index = StoreIndex::kPm}); }));
  pool.rename("store", "renamed");
  EXPECT_EQ(Store::open(pool, "renamed").get("a"), "b");
}

// The index has a name of its own, which nothing lists. Who guesses it opens what its store has
// open already.
TEST_F(StorePmIndexTest, TheIndexIsOpenedOnce) {
  Pool pool = Pool::create(path(), options());
  Store store = Store::create(pool, "store", made());
  write_some(store, 100);
  const auto& root = *pm::impl_of(pool).at<store::Root>(pm::impl_of(pool).find("store")->root);
  const std::string name = fmt::format("store-index-{:016x}", root.salt);
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, name, [&] { open_index(pool, name); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, name, [&] { drop_structure(pool, name); }));
  EXPECT_EQ(content(store), model_);
}

TEST_F(StorePmIndexTest, APoolThatIsOpenToReadHasAllOfIt) {
  {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", made());
    write_some(store, 3000);
    write_file(dir_.file("copy"), read_file(path()));
  }
  PoolOptions reading = options();
  reading.read_only = true;
  for (const std::string& file : {dir_.file("copy"), path()}) {
    Pool pool = Pool::open(file, reading);
    const Store store = Store::open(pool, "store");
    EXPECT_EQ(content(store), model_);
    EXPECT_EQ(faults(store), "");
  }
}

}  // namespace
}  // namespace perdure::test
