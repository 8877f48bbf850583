// Tables in the order of their keys, and levels allocated in advance.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "index/owned_blocks.h"
#include "perdure/catalog.h"
#include "perdure/plush.h"
#include "support/data.h"
#include "support/errors.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using Words = Plush<uint64_t, uint64_t>;
using Texts = Plush<uint64_t, std::string>;

uint64_t statistic(const Words& table, const std::string& name) {
  for (const Statistic& one : table.statistics()) {
    if (one.name == name) return static_cast<uint64_t>(one.value);
  }
  return 0;
}

class RangeTest : public testing::Test {
 protected:
  static constexpr uint64_t kMin = 1000;
  static constexpr uint64_t kMax = 200999;

  Pool pool_ = Pool::anonymous({.capacity_bytes = uint64_t{64} << 20});
  PlushOptions small_{.directory_bits = 3,
                      .fanout = 4,
                      .partitions = 4,
                      .order = PlushOrder::kRange,
                      .key_min = kMin,
                      .key_max = kMax};
  Random random_{base_seed()};
};

TEST_F(RangeTest, ScansAreWhatAnOrderedMapHas) {
  auto table = Words::create(pool_, "t", small_);
  std::map<uint64_t, uint64_t> model;
  for (uint64_t i = 0; i < 60000; ++i) {
    const uint64_t key = kMin + random_.below(kMax - kMin + 1);
    if (random_.below(4) == 0) {
      EXPECT_EQ(table.remove(key), model.erase(key) == 1);
    } else {
      table.upsert(key, i, i % 2 == 0 ? Logging::kOn : Logging::kOff);
      model[key] = i;
    }
  }
  ASSERT_GT(statistic(table, "records_level_3"), 0U);
  const auto compare = [&](uint64_t from, uint64_t limit) {
    auto expected = model.lower_bound(from);
    uint64_t seen = 0;
    table.scan(from, limit, [&](uint64_t key, uint64_t value) {
      const bool right =
          expected != model.end() && expected->first == key && expected->second == value;
      EXPECT_TRUE(right) << "from " << from << ": " << key;
      if (right) ++expected;
      ++seen;
      return right;
    });
    EXPECT_TRUE(seen == limit || expected == model.end()) << "from " << from << " ended early";
  };
  compare(0, ~uint64_t{0});
  compare(kMax, 10);
  compare(kMax + 1, 10);
  compare(~uint64_t{0}, 10);
  for (int i = 0; i < 300; ++i) compare(kMin + random_.below(kMax - kMin), 1 + random_.below(200));
  EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

TEST_F(RangeTest, AScanEndsWhenVisitSaysSo) {
  auto table = Words::create(pool_, "t", small_);
  for (uint64_t key = kMin; key < kMin + 5000; ++key) table.upsert(key, key);
  uint64_t calls = 0;
  table.scan(0, ~uint64_t{0}, [&](uint64_t, uint64_t) { return ++calls < 7; });
  EXPECT_EQ(calls, 7U);
  table.scan(0, 0, [&](uint64_t, uint64_t) { return ++calls, true; });
  EXPECT_EQ(calls, 7U);
}

TEST_F(RangeTest, KeysOutsideAreRefusedAndAbsent) {
  auto table = Words::create(pool_, "t", small_);
  auto texts = Texts::create(pool_, "u", small_);
  std::string text;
  for (const uint64_t key : {kMin - 1, kMax + 1, uint64_t{0}, ~uint64_t{0}}) {
    uint64_t value = 0;
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { table.upsert(key, 1); }));
    EXPECT_TRUE(
        fails_with(ErrorCode::kInvalidArgument, [&] { table.insert(key, 1, Logging::kOff); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { texts.upsert(key, "x"); }));
    EXPECT_FALSE(table.update(key, 1));
    EXPECT_FALSE(table.remove(key));
    EXPECT_FALSE(table.lookup(key, value));
    EXPECT_FALSE(texts.lookup(key, text));
  }
  for (const uint64_t key : {kMin, kMax}) {
    uint64_t value = 0;
    table.upsert(key, key);
    texts.upsert(key, "edge");
    EXPECT_TRUE(table.lookup(key, value) && value == key);
    EXPECT_TRUE(texts.lookup(key, text) && text == "edge");
  }
}

TEST_F(RangeTest, KeepsItsRangeWhenReopened) {
  {
    auto table = Words::create(pool_, "t", small_);
    table.upsert(kMin + 5, 55);
  }
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] {
    Words::open(pool_, "t", {.order = PlushOrder::kRange, .key_max = kMax + 1});
  }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "t", [&] { Words::open(pool_, "t"); }));
  auto table = Words::open(pool_, "t", {.order = PlushOrder::kRange});
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { table.upsert(kMin - 1, 1); }));
  uint64_t seen = 0;
  table.scan(0, 10, [&](uint64_t key, uint64_t value) {
    EXPECT_EQ(key, kMin + 5);
    EXPECT_EQ(value, 55U);
    return ++seen, true;
  });
  EXPECT_EQ(seen, 1U);
}

TEST_F(RangeTest, OptionsThatMakeNoSenseAreRefused) {
  PlushOptions empty = small_;
  empty.key_max = kMin;
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { Words::create(pool_, "t", empty); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] {
    Plush<std::string, uint64_t>::create(pool_, "t", {.order = PlushOrder::kRange});
  }));
  auto hashed = Words::create(pool_, "h", {.directory_bits = 3});
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType,
                         [&] { hashed.scan(0, 1, [](uint64_t, uint64_t) { return true; }); }));
}

// Ever more keys in a small part of the range: an error that says so, and nothing lost.
TEST_F(RangeTest, KeysTooCloseTogetherEndInAnError) {
  auto table = Words::create(pool_, "t", {.directory_bits = 6, .order = PlushOrder::kRange});
  std::string said;
  uint64_t stored = 0;
  try {
    for (; stored < 1000000; ++stored) table.upsert(stored, stored);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
    said = error.what();
  }
  EXPECT_NE(said.find("key_min and key_max"), std::string::npos) << said;
  uint64_t expected = 0;
  table.scan(0, ~uint64_t{0}, [&](uint64_t key, uint64_t value) {
    EXPECT_TRUE(key == expected && value == expected);
    return ++expected, true;
  });
  EXPECT_EQ(expected, stored);
  EXPECT_TRUE(table.remove(0));
}

// Records that nobody writes are met exactly once, in order, whatever moves around them.
TEST_F(RangeTest, ScansBesideWritersMissNothingThatStays) {
  auto words = Words::create(pool_, "t", small_);
  auto texts = Texts::create(pool_, "u", small_);
  constexpr uint64_t kEvery = 20;
  const auto stays = [](uint64_t key) { return key % kEvery == 0; };
  for (uint64_t key = kMin; key <= kMax; key += kEvery) {
    words.upsert(key, key);
    texts.upsert(key, std::to_string(key));
  }
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    Random random(7);
    while (!stop) {
      const uint64_t key = kMin + random.below(kMax - kMin + 1);
      if (stays(key)) continue;
      if (random.below(3) == 0) {
        words.remove(key);
        texts.remove(key);
      } else {
        words.upsert(key, key, random.below(2) == 0 ? Logging::kOn : Logging::kOff);
        texts.upsert(key, std::to_string(key));
      }
    }
  });
  const uint64_t stay = (kMax - kMin) / kEvery + 1;
  for (int round = 0; round < 20; ++round) {
    uint64_t met = 0;
    uint64_t last = 0;
    const auto take = [&](uint64_t key, bool right) {
      EXPECT_TRUE(right) << key;
      EXPECT_GT(key, last);
      last = key;
      if (stays(key)) ++met;
      return true;
    };
    words.scan(0, ~uint64_t{0},
               [&](uint64_t key, uint64_t value) { return take(key, key == value); });
    EXPECT_EQ(met, stay);
    met = last = 0;
    texts.scan(0, ~uint64_t{0}, [&](uint64_t key, std::string_view value) {
      return take(key, value == std::to_string(key));
    });
    EXPECT_EQ(met, stay);
  }
  stop = true;
}

// Of the table that the pool has, which is not open.
uint64_t buckets_in(Pool& pool) {
  uint64_t count = 0;
  index::visit_blocks_of(*open_index(pool, "t"),
                         [&](uint64_t, uint64_t bytes) { count += bytes == 256 ? 1 : 0; });
  return count;
}

class PreallocateTest : public testing::TestWithParam<uint32_t> {};

TEST_P(PreallocateTest, AllocatesLevelsAtOnceAndKeepsThem) {
  const uint32_t levels = GetParam();
  constexpr uint64_t kPerEntry = 24;
  Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{64} << 20});
  PlushOptions options{.directory_bits = 7, .fanout = 4, .partitions = 4};
  options.preallocated_levels = levels;
  const uint64_t least = kPerEntry * (levels == 0 ? 0 : levels == 1 ? 128 : 128 + 128 * 4);
  {
    Words::create(pool, "t", options);
  }
  EXPECT_EQ(buckets_in(pool), least);
  {
    auto table = Words::open(pool, "t");
    for (uint64_t key = 0; key < 200000; ++key) table.insert(key, key);
    ASSERT_GT(statistic(table, "records_level_3"), 0U);
  }
  EXPECT_GE(buckets_in(pool), least);
  auto table = Words::open(pool, "t");
  EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  uint64_t value = 0;
  for (uint64_t key = 0; key < 200000; ++key) ASSERT_TRUE(table.lookup(key, value)) << key;
}

INSTANTIATE_TEST_SUITE_P(Levels, PreallocateTest, testing::Values(0, 1, 2));

TEST(Preallocate, APoolThatIsTooSmallIsToldBeforeAnythingIsMade) {
  Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{8} << 20});
  const uint64_t before = pool.info().allocated_bytes;
  PlushOptions options{.directory_bits = 8};
  options.preallocated_levels = 2;
  std::string said;
  try {
    Words::create(pool, "t", options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
    said = error.what();
  }
  EXPECT_NE(said.find("preallocated_levels"), std::string::npos) << said;
  EXPECT_EQ(pool.info().allocated_bytes, before);
  EXPECT_TRUE(pool.structures().empty());
  options.preallocated_levels = 3;
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { Words::create(pool, "t", options); }));
  options.preallocated_levels = 1;
  {
    Words::create(pool, "t", options);
  }
  EXPECT_EQ(buckets_in(pool), 256U * 24);
}

}  // namespace
}  // namespace perdure::test
