// The ordered index by itself, against a map; cursors and scans of a store, cut by hash and by
// boundaries.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "perdure/store.h"
#include "pm/pool_impl.h"
#include "store/ordered_index.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using store::Location;
using store::OrderedIndex;

// Keys by the number of their place.
struct Keys final : store::RecordKeys {
  std::string_view key_at(Location location) const override { return texts.at(location.slot()); }
  std::string_view sound_key_at(Location location) const override { return key_at(location); }
  void prefetch_at(Location) const override {}
  std::deque<std::string> texts;
};

// Long common beginnings, keys that others begin with, zeros at the end, any bytes.
std::string key_of_shape(Random& random, uint64_t shape) {
  switch (shape) {
    case 0:
      return "customer/" + std::to_string(1000000 + random.below(3000)) + "/name";
    case 1: {
      std::string key(random.below(20), '\0');
      for (char& c : key) c = static_cast<char>(random.below(3) * 127);
      return key;
    }
    default:
      return std::string(random.below(40), 'a') + std::to_string(random.below(50));
  }
}

class OrderedIndexTest : public testing::Test {
 protected:
  bool put(const std::string& key) {
    if (index_.find(key, [&](Location at) { return keys_.key_at(at) == key; }) !=
        OrderedIndex::kNone) {
      return false;
    }
    keys_.texts.push_back(key);
    const Location location(static_cast<uint32_t>(keys_.texts.size() - 1), 64);
    index_.reserve(key, 1);
    index_.insert(key, location);
    model_[key] = location.slot();
    return true;
  }
  bool remove(const std::string& key) {
    const uint64_t entry = index_.find(key, [&](Location at) { return keys_.key_at(at) == key; });
    if (entry == OrderedIndex::kNone) return false;
    index_.erase(entry);
    model_.erase(key);
    return true;
  }
  void compare() {
    ASSERT_EQ(index_.size(), model_.size());
    Location location;
    OrderedIndex::Position up = index_.first();
    for (const auto& [key, slot] : model_) {
      ASSERT_TRUE(index_.next(up, &location));
      ASSERT_EQ(location.slot(), slot) << key;
    }
    ASSERT_FALSE(index_.next(up, &location));
    OrderedIndex::Position down = index_.last();
    for (auto i = model_.rbegin(); i != model_.rend(); ++i) {
      ASSERT_TRUE(index_.previous(down, &location));
      ASSERT_EQ(location.slot(), i->second);
    }
    ASSERT_FALSE(index_.previous(down, &location));
  }
  void compare_seek(const std::string& key, bool after) {
    const auto expected = after ? model_.upper_bound(key) : model_.lower_bound(key);
    Location location;
    OrderedIndex::Position at = index_.seek(key, after);
    const bool found = index_.next(at, &location);
    ASSERT_EQ(found, expected != model_.end()) << key;
    if (found) {
      ASSERT_EQ(location.slot(), expected->second);
    }
    at = index_.seek(key, after);
    ASSERT_EQ(index_.previous(at, &location), expected != model_.begin());
    if (expected != model_.begin()) {
      ASSERT_EQ(location.slot(), std::prev(expected)->second);
    }
  }

  Keys keys_;
  OrderedIndex index_{keys_};
  std::map<std::string, uint32_t> model_;
  Random random_{base_seed()};
};

// What prefetch() has come to is the key's entry, or is not believed, whatever was done since.
TEST_F(OrderedIndexTest, WhatWasFetchedAheadIsFoundOrLookedForAgain) {
  struct Ahead {
    std::string key;
    uint64_t way = 0;
    uint64_t changes = 0;
  };
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Ahead> all(8);
    for (Ahead& one : all) {
      one.key = key_of_shape(random_, random_.below(3));
      for (int step = 0; step < OrderedIndex::kAheadSteps; ++step) {
        one.changes = index_.changes();
        index_.prefetch(step, one.key, one.way);
      }
    }
    // Rounds in which the index grows, shrinks, and stays.
    for (uint64_t i = random_.below(3) * 4; i > 0; --i) {
      const std::string key = key_of_shape(random_, random_.below(3));
      round / 500 % 2 == 0 ? put(key) : remove(key);
    }
    for (const Ahead& one : all) {
      const auto is_it = [&](Location at) { return keys_.key_at(at) == one.key; };
      const uint64_t entry = index_.find(one.key, is_it);
      ASSERT_EQ(index_.find(one.key, one.way, one.changes, is_it), entry);
      ASSERT_EQ(entry != OrderedIndex::kNone, model_.contains(one.key));
      found += entry != OrderedIndex::kNone ? 1 : 0;
    }
  }
  EXPECT_GT(found, 100);
}

// Where several keys have a head, the first of them is no guess: the records of others are not read
// for nothing, and their damage hinders nobody.
TEST_F(OrderedIndexTest, WhatWasFetchedAheadIsNoOtherKeyOfTheSameHead) {
  for (const char* key : {"a", "same-head/1", "same-head/2", "same-head/3", "z"}) put(key);
  const std::string key = "same-head/3";
  uint64_t way = 0;
  for (int step = 0; step < OrderedIndex::kAheadSteps; ++step) index_.prefetch(step, key, way);
  std::vector<std::string_view> asked;
  const uint64_t entry = index_.find(key, way, index_.changes(), [&](Location at) {
    asked.push_back(keys_.key_at(at));
    return asked.back() == key;
  });
  EXPECT_NE(entry, OrderedIndex::kNone);
  EXPECT_EQ(asked, std::vector<std::string_view>{key});
}

TEST_F(OrderedIndexTest, DoesAsAMapDoesWhileItGrowsAndShrinks) {
  const uint64_t empty_bytes = index_.dram_bytes();
  uint64_t full_bytes = 0;
  for (uint64_t shape = 0; shape < 3; ++shape) {
    for (int step = 0; step < 9000; ++step) {
      const std::string key = key_of_shape(random_, shape);
      // Grows for two thirds, then shrinks to nearly nothing.
      const bool grows = step < 6000;
      const bool there = model_.contains(key);
      if (random_.below(10) < (grows ? 8 : 1)) {
        ASSERT_EQ(put(key), !there);
      } else {
        ASSERT_EQ(remove(key), there);
      }
      if (!grows && !model_.empty()) {
        auto victim = model_.lower_bound(key);
        if (victim == model_.end()) victim = model_.begin();
        ASSERT_TRUE(remove(std::string(victim->first)));
      }
      compare_seek(key_of_shape(random_, shape), random_.below(2) == 0);
      if (step == 6000) full_bytes = std::max(full_bytes, index_.dram_bytes());
      if (step % 500 == 0) compare();
    }
    compare();
  }
  while (!model_.empty()) ASSERT_TRUE(remove(std::string(model_.begin()->first)));
  index_.tidy();
  compare();
  EXPECT_LT(index_.dram_bytes(), empty_bytes + full_bytes / 8);
  EXPECT_TRUE(put("again"));
  compare();
}

TEST_F(OrderedIndexTest, AscendingAndDescendingKeysFillLeaves) {
  for (uint64_t i = 0; i < 20000; ++i) {
    ASSERT_TRUE(put("line" + std::to_string(100000000 + i)));
  }
  compare();
  EXPECT_LT(index_.dram_bytes(), 20000 * 24);
  for (uint64_t i = 0; i < 20000; ++i) {
    ASSERT_TRUE(put("kind" + std::to_string(200000000 - i)));
  }
  compare();
}

// As recovery builds it: of records in any order, with copies; then it is worked with as with any
// other.
TEST_F(OrderedIndexTest, FilledAtOnceIsAsIfFilledOneByOne) {
  const auto shape_of = [&](uint64_t shape) {
    if (shape < 3) return key_of_shape(random_, shape);
    // Long ones that are told apart late; and few bytes, many of them zero.
    if (shape == 3) return std::string(random_.below(300), 'x') + std::to_string(random_.below(9));
    if (shape == 5) {
      const uint64_t bytes = random_.next();
      return "any" + std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    }
    std::string key(random_.below(60), '\0');
    if (random_.below(2) == 0) key += static_cast<char>(random_.below(3));
    return key;
  };
  for (uint64_t shape = 0; shape < 6; ++shape) {
    for (const int count : {0, 1, 2, 13, 48, 49, 200, 3000, 12'000}) {
      while (!model_.empty()) ASSERT_TRUE(remove(std::string(model_.begin()->first)));
      index_.tidy();
      keys_.texts.clear();
      std::vector<Location> records;
      for (int i = 0; i < count; ++i) {
        std::string key = shape_of(shape);
        const bool is_copy = random_.below(8) == 0 && !keys_.texts.empty();
        if (is_copy) key = keys_.texts[random_.below(keys_.texts.size())];
        keys_.texts.push_back(key);
        const Location location(static_cast<uint32_t>(i), 64);
        records.push_back(location);
        model_[key] = location.slot();  // the last one counts
      }
      for (size_t i = records.size(); i > 1; --i)
        std::swap(records[i - 1], records[random_.below(i)]);
      index_.fill(records, [&](Location a, Location b) {
        EXPECT_EQ(keys_.key_at(a), keys_.key_at(b));
        return a.slot() < b.slot() ? b : a;
      });
      compare();
      for (int step = 0; step < 300; ++step) {
        compare_seek(shape_of(shape), random_.below(2) == 0);
        const std::string key = shape_of(shape);
        const bool there = model_.contains(key);
        if (random_.below(2) == 0) {
          ASSERT_EQ(put(key), !there);
        } else {
          ASSERT_EQ(remove(key), there);
        }
      }
      compare();
    }
  }
}

// Room that was promised for several keys is there for all of them, whatever is erased in between.
TEST_F(OrderedIndexTest, RoomForSeveralInserts) {
  for (uint64_t i = 0; i < 300; ++i) put("k" + std::to_string(i * 10));
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> added;
    for (uint64_t i = 0; i < 100; ++i) {
      const std::string key = "k" + std::to_string(random_.below(3000)) + "x";
      if (!model_.contains(key) && std::ranges::find(added, key) == added.end()) {
        added.push_back(key);
      }
    }
    for (const std::string& key : added) index_.reserve(key, added.size());
    for (size_t i = 0; i < added.size(); ++i) {
      keys_.texts.push_back(added[i]);
      const Location location(static_cast<uint32_t>(keys_.texts.size() - 1), 64);
      index_.insert(added[i], location);
      model_[added[i]] = location.slot();
      if (i % 2 == 0) remove(std::string(model_.begin()->first));
    }
    compare();
    while (model_.size() > 200) remove(std::string(std::next(model_.begin(), 20)->first));
  }
}

// How a store is cut into partitions, and who works on them.
struct Cut {
  std::string name;
  StoreOptions options;
};

void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }

class StoreCursorTest : public testing::TestWithParam<Cut> {
 protected:
  StoreCursorTest() : pool_(Pool::create(folder_.file("pool"), {.capacity_bytes = 64 << 20})) {
    StoreOptions options = GetParam().options;
    options.index = StoreIndex::kOrdered;
    store_.emplace(Store::create(pool_, "s", options));
  }
  void put(const std::string& key, const std::string& value) {
    store_->put(key, value);
    model_[key] = value;
  }
  void fill(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t number = random_.below(5 * count);
      put("k" + std::to_string(number), std::string(1 + number % 100, 'v') + std::to_string(i));
    }
  }

  TempDir folder_;
  Pool pool_;
  std::optional<Store> store_;
  std::map<std::string, std::string> model_;
  Random random_{base_seed()};
};

TEST_P(StoreCursorTest, GoesUpAndDown) {
  Store::Cursor cursor = store_->cursor();
  cursor.first();
  EXPECT_FALSE(cursor.valid());
  cursor.next();
  EXPECT_FALSE(cursor.valid());
  fill(3000);
  auto expected = model_.begin();
  for (cursor.first(); cursor.valid(); cursor.next(), ++expected) {
    ASSERT_NE(expected, model_.end());
    ASSERT_EQ(cursor.key(), expected->first);
    ASSERT_EQ(cursor.value(), expected->second);
  }
  EXPECT_EQ(expected, model_.end());
  auto down = model_.rbegin();
  for (cursor.last(); cursor.valid(); cursor.previous(), ++down) {
    ASSERT_EQ(cursor.key(), down->first);
  }
  EXPECT_EQ(down, model_.rend());
  // To and fro.
  for (int round = 0; round < 30; ++round) {
    const std::string from = "k" + std::to_string(random_.below(15000));
    auto place = model_.lower_bound(from);
    cursor.seek(from);
    ASSERT_EQ(cursor.valid(), place != model_.end());
    for (int step = 0; step < 100 && cursor.valid(); ++step) {
      ASSERT_EQ(cursor.key(), place->first);
      if (random_.below(3) != 0) {
        cursor.next();
        ++place;
        ASSERT_EQ(cursor.valid(), place != model_.end());
      } else {
        cursor.previous();
        ASSERT_EQ(cursor.valid(), place != model_.begin());
        if (place != model_.begin()) --place;
      }
    }
    auto below = model_.upper_bound(from);
    cursor.seek_down(from);
    ASSERT_EQ(cursor.valid(), below != model_.begin());
    if (cursor.valid()) {
      ASSERT_EQ(cursor.key(), std::prev(below)->first);
    }
  }
}

TEST_P(StoreCursorTest, GoesOnThroughChanges) {
  fill(3000);
  // Records that stay are seen once, in order, whatever happens to the others.
  std::map<std::string, std::string> staying;
  for (const auto& [key, value] : model_) {
    if (key.ends_with("7")) staying[key] = value;
  }
  Store::Cursor cursor = store_->cursor();
  auto expected = staying.begin();
  std::string before;
  for (cursor.first(); cursor.valid(); cursor.next()) {
    const std::string key(cursor.key());
    ASSERT_LT(before, key);
    before = key;
    if (expected != staying.end() && key == expected->first) {
      ASSERT_EQ(cursor.value(), expected->second);
      ++expected;
    }
    for (int i = 0; i < 4; ++i) {
      const std::string other = "k" + std::to_string(random_.below(15000));
      if (other.ends_with("7")) continue;
      random_.below(2) == 0 ? (void)store_->remove(other) : (void)store_->put(other, "changed");
    }
  }
  EXPECT_EQ(expected, staying.end());
}

TEST_P(StoreCursorTest, FindsTheSameAfterCompactionAndReopening) {
  fill(2000);
  for (int round = 0; round < 10; ++round) {
    for (const auto& [key, value] : std::map(model_)) put(key, value + "+");
  }
  EXPECT_EQ(store_->check([](const std::string& what) { ADD_FAILURE() << what; }), 0u);
  for (int opening = 0; opening < 2; ++opening) {
    auto expected = model_.begin();
    store_->scan("", ~uint64_t{0}, [&](std::string_view key, std::string_view value) {
      EXPECT_EQ(key, expected->first);
      EXPECT_EQ(value, expected->second);
      ++expected;
      return true;
    });
    EXPECT_EQ(expected, model_.end());
    uint64_t seen = 0;
    store_->scan("k5", 10, [&](std::string_view, std::string_view) { return ++seen < 7; });
    EXPECT_EQ(seen, 7u);
    store_.reset();
    StoreOptions options = GetParam().options;
    options.boundaries.clear();  // as created
    store_.emplace(Store::open(pool_, "s", options));
  }
  // For one opening, an index by hash.
  store_.reset();
  store_.emplace(Store::open(pool_, "s", {.index = StoreIndex::kHash}));
  EXPECT_EQ(store_->get(model_.begin()->first), model_.begin()->second);
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "rstore+ordered", [&] { store_->cursor(); }));
}

// A record that cannot be read is an error of the scan, again and again, and never the end of its
// partition. Where it can be read again the scan goes on with it.
TEST_P(StoreCursorTest, StandsWhereItStoodWhenReadingFails) {
  const auto key_at = [](uint64_t i) { return "k" + std::to_string(1000 + i); };
  for (uint64_t i = 0; i < 1200; ++i) put(key_at(i), i == 600 ? "to be damaged" : "v" + key_at(i));
  const auto flip = [&] {
    const pm::PoolImpl& pool = pm::impl_of(pool_);
    const std::string_view all(pool.base(), pool.end_offset());
    for (size_t at = 0; (at = all.find("to be damag", at)) != std::string_view::npos; at += 11)
      pool.base()[at + 11] ^= 1;
  };
  for (const bool down : {false, true}) {
    SCOPED_TRACE(down);
    Store::Cursor cursor = store_->cursor();
    std::map<std::string, std::string> found;
    uint64_t errors = 0;
    down ? cursor.last() : cursor.first();
    flip();
    while (cursor.valid()) {
      const std::string before(cursor.key());
      EXPECT_TRUE(found.emplace(before, cursor.value()).second) << before;
      for (int attempt = 0;; ++attempt) {
        try {
          down ? cursor.previous() : cursor.next();
          break;
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
          ASSERT_LT(attempt, 3);
          ++errors;
          ASSERT_TRUE(cursor.valid());
          EXPECT_EQ(cursor.key(), before);
          if (attempt == 2) flip();
        }
      }
    }
    EXPECT_EQ(errors, 3U);
    EXPECT_TRUE(found == model_);
  }
  flip();
  Store::Cursor cursor = store_->cursor();
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { cursor.seek(key_at(600)); }));
  EXPECT_FALSE(cursor.valid());
}

TEST_P(StoreCursorTest, BatchesAndExpiredRecords) {
  const auto past = std::chrono::system_clock::now() - std::chrono::hours(1);
  for (int round = 0; round < 40; ++round) {
    Store::Batch batch;
    for (int i = 0; i < 20; ++i) {
      const std::string key = "k" + std::to_string(random_.below(800));
      if (random_.below(4) == 0) {
        batch.remove(key);
        model_.erase(key);
      } else {
        batch.put(key, "b");
        model_[key] = "b";
      }
    }
    store_->apply(batch);
    store_->put("k" + std::to_string(round) + "gone", "x", past);
  }
  auto expected = model_.begin();
  Store::Cursor cursor = store_->cursor();
  for (cursor.first(); cursor.valid(); cursor.next(), ++expected) {
    ASSERT_EQ(cursor.key(), expected->first);
  }
  EXPECT_EQ(expected, model_.end());
}

TEST_P(StoreCursorTest, ScansWhileOthersWrite) {
  for (int i = 0; i < 500; ++i) put("fix" + std::to_string(1000 + i), "stays");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    Random random(7);
    while (!stop) {
      const std::string key = "fix" + std::to_string(1000 + random.below(500)) + "x";
      random.below(2) == 0 ? (void)store_->put(key, "comes") : (void)store_->remove(key);
    }
  });
  for (int round = 0; round < 20; ++round) {
    uint64_t fixed = 0;
    std::string before;
    store_->scan("", ~uint64_t{0}, [&](std::string_view key, std::string_view) {
      EXPECT_LT(before, key);
      before = key;
      fixed += key.ends_with("x") ? 0 : 1;
      return true;
    });
    EXPECT_EQ(fixed, 500u);
  }
  stop = true;
  writer.join();
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, StoreCursorTest,
    testing::Values(Cut{"OnePartition", {.partitions = 1}}, Cut{"ByHash", {.partitions = 7}},
                    Cut{"ByBoundaries", {.boundaries = {"fix12", "k2", "k35", "k7", "l"}}},
                    Cut{"ByBoundariesWithWorkers",
                        {.boundaries = {"fix12", "k2", "k7"}, .workers = 2}}),
    [](const testing::TestParamInfo<Cut>& cut) { return cut.param.name; });

TEST(StoreBoundariesTest, MustAscendAndStay) {
  const TempDir folder;
  Pool pool = Pool::create(folder.file("pool"), {.capacity_bytes = 16 << 20});
  const auto refused = [&](const StoreOptions& options) {
    return fails_with(ErrorCode::kInvalidArgument, "boundaries",
                      [&] { Store::create(pool, "s", options); });
  };
  EXPECT_TRUE(refused({.boundaries = {"b", "a"}}));
  EXPECT_TRUE(refused({.boundaries = {"a", "a"}}));
  EXPECT_TRUE(refused({.boundaries = {""}}));
  EXPECT_TRUE(refused({.partitions = 5, .boundaries = {"a"}}));
  EXPECT_TRUE(refused({.boundaries = {std::string(2 << 20, 'x')}}));
  {
    const Store store = Store::create(pool, "s", {.boundaries = {"a", "b"}});
  }
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "boundaries",
                         [&] { Store::open(pool, "s", {.boundaries = {"a", "c"}}); }));
  const Store store = Store::open(pool, "s", {.boundaries = {"a", "b"}});
}

// The most and the fewest of the keys that a partition has.
std::pair<uint64_t, uint64_t> most_and_fewest(const std::vector<std::string>& boundaries,
                                              const std::vector<std::string>& keys) {
  std::vector<uint64_t> counts(boundaries.size() + 1);
  for (const std::string& key : keys) {
    ++counts[static_cast<size_t>(std::ranges::upper_bound(boundaries, key) - boundaries.begin())];
  }
  return {std::ranges::max(counts), std::ranges::min(counts)};
}

TEST(StoreBoundariesTest, ASampleGivesPartitionsOfOneSize) {
  Random random(3);
  std::vector<std::string> keys;
  for (int i = 0; i < 40'000; ++i) {
    // Most of them in a corner.
    const uint64_t number = random.below(1000) * random.below(1000) * random.below(1000);
    keys.push_back("user/" + std::to_string(1'000'000'000 + number) + "/mail");
  }
  const std::vector<std::string> sample(keys.begin(), keys.begin() + 4000);
  const std::vector<std::string> boundaries = Store::boundaries_of(sample, 8);
  ASSERT_EQ(boundaries.size(), 7U);
  const auto [most, fewest] = most_and_fewest(boundaries, keys);
  EXPECT_LT(most, 5600U);
  EXPECT_GT(fewest, 4400U);
  for (const std::string& one : boundaries) EXPECT_LT(one.size(), 16U) << one;

  const TempDir folder;
  Pool pool = Pool::create(folder.file("pool"), {.capacity_bytes = 16 << 20});
  const Store store =
      Store::create(pool, "s", {.index = StoreIndex::kOrdered, .boundaries = boundaries});
  EXPECT_EQ(store.partitions(), 8U);
}

TEST(StoreBoundariesTest, ASampleOfFewDifferentKeysGivesFewerPartitions) {
  const std::vector<std::string> none;
  EXPECT_EQ(Store::boundaries_of({}, 8), none);
  EXPECT_EQ(Store::boundaries_of({"a", "b"}, 1), none);
  EXPECT_EQ(Store::boundaries_of({"a", "a", "a"}, 8), none);
  EXPECT_EQ(Store::boundaries_of({"", "", "b"}, 2), std::vector<std::string>{"b"});
  EXPECT_EQ(Store::boundaries_of({"a", "c", "a", "ab", "c", "a"}, 3),
            (std::vector<std::string>{"ab", "c"}));
  for (const uint32_t partitions : {0U, 1025U}) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "boundaries",
                           [&] { Store::boundaries_of({"a"}, partitions); }));
  }
  std::vector<std::string> many;
  for (int i = 0; i < 5000; ++i) many.push_back(std::to_string(i));
  EXPECT_EQ(Store::boundaries_of(many, 1024).size(), 1023U);
}

}  // namespace
}  // namespace perdure::test
