// What the scenarios over the catalogue cannot reach of Sheaf.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "index/sheaf/inner.h"
#include "index/sheaf/layout.h"
#include "perdure/catalog.h"
#include "pm/emulated_media.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"
#include "support/short_memory.h"

namespace perdure::index {
namespace {

class Sheaf : public testing::Test {
 protected:
  static constexpr uint64_t kKeys = 20000;

  static double figure(const AnyIndex& index, const std::string& name) {
    for (const Statistic& one : index.statistics()) {
      if (one.name == name) return one.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }
  std::unique_ptr<AnyIndex> create(const OptionMap& options = {}) {
    return create_index(pool_, "t", "sheaf", Kind::kU64, Kind::kU64, options);
  }
  sheaf::Root& root() {
    return *pm::impl_of(pool_).at<sheaf::Root>(pm::impl_of(pool_).find("t")->root);
  }
  static uint64_t faults(const AnyIndex& index) {
    return index.check([](const std::string& text) { ADD_FAILURE() << text; });
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
};

TEST_F(Sheaf, AscendingKeysFillLeaves) {
  const auto index = create();
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
  EXPECT_GT(figure(*index, "leaf_fill"), 0.9);
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, RemovingEverythingLeavesFewLeaves) {
  for (const bool upwards : {true, false}) {
    const auto index = create_index(pool_, upwards ? "t" : "u", "sheaf", Kind::kU64, Kind::kU64,
                                    {{"leaf_bytes", "512"}, {"buffer_records", "4"}});
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
    EXPECT_GT(figure(*index, "leaves"), 500);
    for (uint64_t key = 0; key < kKeys; ++key) index->remove(upwards ? key : kKeys - 1 - key);
    EXPECT_LT(figure(*index, "leaves"), 20);
    EXPECT_EQ(figure(*index, "records"), 0);
    EXPECT_EQ(faults(*index), 0U);
  }
}

TEST_F(Sheaf, UpdatesOfFewKeysKeepOneLeafAndTheFirstChunks) {
  const auto index = create({{"chunk_bytes", "1024"}});
  for (uint64_t i = 0; i < 20 * kKeys; ++i) index->upsert(i % 40, i);
  EXPECT_EQ(figure(*index, "leaves"), 1);
  EXPECT_EQ(figure(*index, "records"), 40);
  EXPECT_EQ(figure(*index, "log_bytes"), 4 * 1024);
}

TEST_F(Sheaf, TheLogIsAPartOfTheLeaves) {
  const auto index = create({{"leaf_bytes", "1024"}, {"chunk_bytes", "1024"}});
  for (uint64_t key = 0; key < 5 * kKeys; ++key) index->insert(key * 7919 % (5 * kKeys), key);
  EXPECT_LT(figure(*index, "log_bytes"), figure(*index, "pool_bytes") / 6);
  EXPECT_GT(figure(*index, "buffered_records"), 100);
}

TEST_F(Sheaf, OpeningReplaysNoMoreThanTheLogHolds) {
  auto index = create({{"leaf_bytes", "1024"}, {"chunk_bytes", "1024"}});
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
  const double buffered = figure(*index, "buffered_records");
  index.reset();
  index = open_index(pool_, "t");
  EXPECT_EQ(figure(*index, "buffered_records"), buffered);
  EXPECT_GE(figure(*index, "recovered_operations"), buffered);
  EXPECT_LE(figure(*index, "recovered_operations"), figure(*index, "log_bytes") / 24);
  Value value;
  for (uint64_t key = 0; key < kKeys; ++key) {
    ASSERT_TRUE(index->lookup(key * 7919 % kKeys, value));
    ASSERT_EQ(value.datum().word(), key);
  }
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, TheDirectoryGrowsAndIsUsedAgain) {
  auto index = create({{"leaf_bytes", "256"}, {"buffer_records", "4"}});
  for (int round = 0; round < 3; ++round) {
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
    EXPECT_GT(figure(*index, "leaves"), 1000);
    index.reset();
    index = open_index(pool_, "t");
    EXPECT_EQ(faults(*index), 0U);
    for (uint64_t key = 0; key < kKeys; ++key) ASSERT_TRUE(index->remove(key));
  }
}

TEST_F(Sheaf, ADamagedHeaderOfALeafIsRefused) {
  auto index = create();
  for (uint64_t key = 0; key < 1000; ++key) index->insert(key, key);
  index.reset();
  auto& leaf = *pm::impl_of(pool_).at<sheaf::Leaf>(root().slot);
  for (uint64_t* word : {&leaf.merged, &leaf.low, &leaf.first}) {
    *word ^= 1;
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { open_index(pool_, "t"); }));
    *word ^= 1;
  }
  index = open_index(pool_, "t");
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, ADamagedRecordIsFoundAndNotMerged) {
  const auto index = create();
  for (uint64_t key = 0; key < 1000; ++key) index->insert(key, key);
  auto& leaf = *pm::impl_of(pool_).at<sheaf::Leaf>(root().slot);
  ASSERT_GT(leaf.count, 0U);
  leaf.records()[0].value ^= 1;
  EXPECT_GT(index->check([](const std::string&) {}), 0U);
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] {
    for (uint64_t i = 0; i < 1000; ++i) index->upsert(i, i);
  }));
}

// What the filters of the leaves say, after merges, removals, splits and an opening.
TEST_F(Sheaf, AKeyThatIsThereIsNotInsertedAgain) {
  for (const char* leaf_bytes : {"512", "8192"}) {
    SCOPED_TRACE(leaf_bytes);
    const std::string name = std::string("t") + leaf_bytes;
    auto index = create_index(pool_, name, "sheaf", Kind::kU64, Kind::kU64,
                              {{"leaf_bytes", leaf_bytes}, {"buffer_records", "8"}});
    test::Random random(7);
    std::map<uint64_t, uint64_t> model;
    const auto insert_all_again = [&] {
      for (const auto& [key, value] : model) {
        ASSERT_FALSE(index->insert(key, value + 1)) << key;
        Value found;
        ASSERT_TRUE(index->lookup(key, found));
        ASSERT_EQ(found.datum().word(), value);
      }
    };
    for (int round = 0; round < 4; ++round) {
      for (uint64_t i = 0; i < kKeys / 2; ++i) {
        const uint64_t key = random.below(kKeys) << 40;
        ASSERT_EQ(index->insert(key, i), model.emplace(key, i).second) << key;
      }
      insert_all_again();
      for (auto at = model.begin(); at != model.end();) {
        if (random.chance(50)) {
          ASSERT_TRUE(index->remove(at->first));
          at = model.erase(at);
        } else {
          ++at;
        }
      }
      insert_all_again();
      if (round % 2 == 1) {
        index.reset();
        index = open_index(pool_, name);
        insert_all_again();
      }
    }
    EXPECT_EQ(faults(*index), 0U);
  }
}

TEST(SheafFilter, HasWhatWasAddedAndLittleElse) {
  for (const bool ascending : {true, false}) {
    test::Random random(3);
    sheaf::Filter filter;
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 320; ++i) {
      keys.push_back(ascending ? i : random.next());
      filter.add(keys.back());
    }
    for (const uint64_t key : keys) EXPECT_TRUE(filter.may_have(key));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 10000; ++i) {
      wrong += filter.may_have(ascending ? 1000 + i : random.next()) ? 1U : 0U;
    }
    EXPECT_LT(wrong, 1500U);
    EXPECT_GT(wrong, 100U);
    filter.clear();
    for (const uint64_t key : keys) EXPECT_FALSE(filter.may_have(key));
  }
}

// Each has begun a chunk of the few there are, and will never go on with it.
TEST_F(Sheaf, ThreadsThatHaveGoneDoNotKeepTheLog) {
  const auto index = create({{"chunk_bytes", "1024"}});
  for (int thread = 0; thread < 20; ++thread) {
    std::thread([&] {
      for (uint64_t i = 0; i < 5; ++i) index->upsert(i, i);
    }).join();
  }
  for (uint64_t i = 0; i < 2000; ++i) index->upsert(i % 40, i);
  EXPECT_EQ(figure(*index, "records"), 40);
  EXPECT_EQ(faults(*index), 0U);
}

// Random keys fill leaves of all sizes; then whatever a removal needs must come from what it frees.
TEST_F(Sheaf, AFullPoolTakesEveryRemoval) {
  for (const uint64_t capacity : {3, 8, 24}) {
    for (const char* leaf_bytes : {"1024", "8192"}) {
      SCOPED_TRACE(std::to_string(capacity) + " MiB, leaves of " + leaf_bytes);
      Pool pool = Pool::create(dir_.file("full"), {.capacity_bytes = capacity << 20});
      auto index =
          create_index(pool, "t", "sheaf", Kind::kU64, Kind::kU64, {{"leaf_bytes", leaf_bytes}});
      test::Random random(capacity);
      std::vector<uint64_t> keys;
      for (int refused = 0; refused < 20;) {
        const uint64_t key = random.next();
        try {
          index->upsert(key, ~key);
          keys.push_back(key);
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
          ++refused;
        }
      }
      EXPECT_GT(keys.size() * 16, (capacity << 20) / 6);
      Value value;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (i == keys.size() / 2) {
          index.reset();
          index = open_index(pool, "t");
        }
        ASSERT_TRUE(index->lookup(keys[i], value)) << i;
        ASSERT_TRUE(index->remove(keys[i])) << i;
      }
      EXPECT_EQ(faults(*index), 0U);
      EXPECT_EQ(figure(*index, "records"), 0);
      index.reset();
      pool.close();
      std::remove(dir_.file("full").c_str());
    }
  }
}

// An operation that finds no memory has changed nothing, in the middle of a split as well.
TEST_F(Sheaf, MemoryThatRunsOutChangesNothing) {
  auto index = create({{"leaf_bytes", "512"}, {"buffer_records", "4"}, {"chunk_bytes", "1024"}});
  std::map<uint64_t, uint64_t> model;
  test::Random random(1);
  uint64_t refused = 0;
  for (uint64_t i = 0; i < kKeys; ++i) {
    const uint64_t key = random.below(4000);
    const bool remove = random.chance(i < kKeys / 2 ? 20 : 70);
    try {
      test::ShortMemory memory(random.below(30));
      if (remove) {
        index->remove(key);
      } else {
        index->upsert(key, i);
      }
      memory.end();
      if (remove) {
        model.erase(key);
      } else {
        model[key] = i;
      }
    } catch (const std::bad_alloc&) {
      ++refused;
    }
    if (i % 5000 == 4999) {
      index.reset();
      index = open_index(pool_, "t");
    }
    if (i % 1000 != 999) continue;
    EXPECT_EQ(faults(*index), 0U);
    std::map<uint64_t, uint64_t> found;
    index->for_each([&](Datum k, Datum v) { found[k.word()] = v.word(); });
    ASSERT_EQ(found, model) << i;
  }
  EXPECT_GT(refused, 100U);
}

TEST_F(Sheaf, SmallerOptionsThanTheTreeHasAreRefused) {
  create({{"leaf_bytes", "1024"}}).reset();
  EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument,
                               [&] { open_index(pool_, "t", {{"leaf_bytes", "2048"}}); }));
}

// Dies at a fence: what was stored stays in the caches, and what was not fenced is not durable.
class DyingProcess final : public pm::EmulatedMedia {
 public:
  DyingProcess() { pm::emulate_media(this); }
  ~DyingProcess() override { pm::emulate_media(nullptr); }
  DyingProcess(const DyingProcess&) = delete;
  DyingProcess& operator=(const DyingProcess&) = delete;

  void written_back(uintptr_t address, size_t bytes) override {
    if (dead_) return;
    for (uintptr_t line = address & ~uintptr_t{63}; line < address + bytes; line += 64) {
      std::memcpy(pending_[line].data(), reinterpret_cast<const void*>(line), 64);
    }
  }
  void fenced() override {
    const bool here =
        std::ranges::any_of(
            pending_, [&](const auto& one) { return is_place_ && is_place_(one.first - base_); }) &&
        --fences_there_ == 0;
    if (dead_ || here || --fences_left_ == 0) {
      dead_ = true;
      pending_.clear();
      throw Error(ErrorCode::kIo, "the process dies");
    }
    for (const auto& [line, bytes] : pending_) durable_[line] = bytes;
    pending_.clear();
  }
  void die_after(uint64_t fences) { fences_left_ = fences; }
  // Or when so many fences have made lines durable at offsets of the pool for which `is_place` holds.
  void die_at(const char* base, uint64_t fences, std::function<bool(uint64_t)> is_place) {
    base_ = reinterpret_cast<uintptr_t>(base);
    fences_there_ = fences;
    is_place_ = std::move(is_place);
  }
  void begin_process() {
    dead_ = false;
    is_place_ = nullptr;
    fences_left_ = ~uint64_t{0};
  }
  void forget() {
    pending_.clear();
    durable_.clear();
  }
  // Moves what became durable of the mapping at `base` into the image of the file.
  void take_durable(const char* base, uint64_t file_bytes, std::string& image) {
    image.resize(std::max<size_t>(image.size(), file_bytes));
    for (const auto& [line, bytes] : durable_) {
      const uint64_t at = line - reinterpret_cast<uintptr_t>(base);
      if (at + bytes.size() <= image.size()) std::memcpy(&image[at], bytes.data(), bytes.size());
    }
    durable_.clear();
  }

 private:
  using Line = std::array<char, 64>;
  std::map<uintptr_t, Line> pending_;
  std::map<uintptr_t, Line> durable_;
  uint64_t fences_left_ = ~uint64_t{0};
  uintptr_t base_ = 0;
  uint64_t fences_there_ = 0;
  std::function<bool(uint64_t)> is_place_;
  bool dead_ = false;
};

// A process dies at any fence; the next one reads what is in the caches, shows it, and goes on; then the
// power fails. What was shown or acknowledged is there, and nothing of earlier uses of the log comes back.
struct Deaths {
  uint64_t growth_bytes = uint64_t{8} << 20;
  OptionMap shape;
  uint64_t more_keys = 0;     // in each round
  bool at_growth = false;     // it dies when a segment or a slab is made
  uint64_t fences_max = 400;  // until the process dies
  uint64_t removals = 40;     // percent
};

void survive(const std::string& path, const Deaths& deaths) {
  const PoolOptions options{.capacity_bytes = uint64_t{8} << 20,
                            .growth_bytes = deaths.growth_bytes,
                            .force_domain = true,
                            .domain = Domain::kLine};
  DyingProcess medium;
  test::Random random(5);
  std::map<uint64_t, uint64_t> model;
  uint64_t next_value = 1;
  uint64_t keys = 300;
  const auto found_in = [](const AnyIndex& index) {
    std::map<uint64_t, uint64_t> found;
    index.for_each([&](Datum k, Datum v) { found[k.word()] = v.word(); });
    return found;
  };
  uint64_t key = 0;  // of the last operation
  const auto write = [&](AnyIndex& index) {
    key = random.below(keys);
    const uint64_t value = next_value++;
    const bool remove = random.chance(deaths.removals);
    if (remove) {
      index.remove(key);
      model.erase(key);
    } else {
      index.upsert(key, value);
      model[key] = value;
    }
  };
  {
    Pool pool = Pool::create(path, options);
    create_index(pool, "t", "sheaf", Kind::kU64, Kind::kU64, deaths.shape);
    pool.close();
  }
  std::string durable = test::read_file(path);
  for (uint64_t round = 0; round < 300; ++round) {
    keys += deaths.more_keys;
    {
      Pool pool = Pool::open(path, options);
      const char* const base = pm::impl_of(pool).base();
      auto index = open_index(pool, "t", {{"recovery_threads", "1"}});
      ASSERT_EQ(found_in(*index), model) << "after power failure " << round;
      const auto complain = [](const std::string& text) { ADD_FAILURE() << text; };
      ASSERT_EQ(index->check(complain) + pool.check(complain), 0U);
      medium.die_after(1 + random.below(deaths.fences_max));
      if (deaths.at_growth) {
        // What says how many segments there are, or what one of them is.
        const uint64_t descriptors = pm::impl_of(pool).header().descriptors_offset;
        medium.die_at(base, 1 + random.below(3), [=](uint64_t at) {
          return at == offsetof(pm::PoolHeader, segments_word) ||
                 (at >= descriptors && (at - descriptors) % sizeof(pm::SegmentDescriptor) == 0 &&
                  at < descriptors + 64 * sizeof(pm::SegmentDescriptor));
        });
      }
      try {
        for (;;) write(*index);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kIo);
      }
      index.reset();
      medium.take_durable(base, std::filesystem::file_size(path), durable);
    }
    medium.begin_process();
    Pool pool = Pool::open(path, options);
    const char* const base = pm::impl_of(pool).base();
    auto index = open_index(pool, "t", {{"recovery_threads", "1"}});
    auto found = found_in(*index);
    if (found.contains(key)) {
      model[key] = found[key];  // the operation that was interrupted has happened, or has not
    } else {
      model.erase(key);
    }
    ASSERT_EQ(found, model) << "after death " << round;
    for (uint64_t i = random.below(3) * 40; i > 0; --i) write(*index);
    medium.take_durable(base, std::filesystem::file_size(path), durable);
    index.reset();
    pool.close();
    medium.forget();  // the power had failed before
    test::write_file(path, durable);
  }
}

TEST_F(Sheaf, AProcessDiesAndThenThePowerFails) {
  survive(dir_.file("dying"), {.shape = {{"leaf_bytes", "256"},
                                         {"buffer_records", "4"},
                                         {"chunk_bytes", "512"},
                                         {"log_bytes", "4096"}}});
}

// New slabs and new segments all the time: what says that they are there must not be taken back, either.
TEST_F(Sheaf, AProcessDiesWhileThePoolGrowsAndThenThePowerFails) {
  survive(dir_.file("dying"), {.growth_bytes = uint64_t{64} << 10,
                               .shape = {{"leaf_bytes", "8192"},
                                         {"buffer_records", "4"},
                                         {"chunk_bytes", "512"},
                                         {"log_bytes", "4096"}},
                               .more_keys = 200,
                               .at_growth = true,
                               .fences_max = 4000,
                               .removals = 5});
}

}  // namespace
}  // namespace perdure::index
