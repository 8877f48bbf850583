// What the scenarios over the catalogue cannot reach of Plush.
#include "perdure/plush.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "index/plush/core.h"
#include "index/plush/kernels.h"

namespace perdure::index::plush {
namespace {

TEST(Mix, IsABijectionWithItsInverse) {
  std::mt19937_64 random(1);
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(key_of_hash(hash_of(key)), key);
  }
  for (int i = 0; i < 100000; ++i) {
    const uint64_t key = random();
    ASSERT_EQ(key_of_hash(hash_of(key)), key);
    ASSERT_EQ(hash_of(key_of_hash(key)), key);
  }
}

// What the vector code of this processor finds is what plain loops find.
TEST(Kernels, AgreeWithPlainLoops) {
  std::mt19937_64 random(2);
  Entry entry{};
  for (int round = 0; round < 2000; ++round) {
    for (DirectoryLine& line : entry.lines) {
      for (auto& filter : line.filter) {
        filter[0] = random() | random() | random();
        filter[1] = random() | random() | random();
      }
      for (uint32_t& unit : line.bucket) unit = static_cast<uint32_t>(random());
      line.state = static_cast<uint32_t>(random());
    }
    const FilterBits bits = filter_bits(random());
    uint32_t expected = 0;
    for (uint32_t i = 0; i < kEntryBuckets; ++i) {
      const auto& filter = entry.lines[i / kLineBuckets].filter[i % kLineBuckets];
      const bool hit = (filter[0] & bits.low) == bits.low && (filter[1] & bits.high) == bits.high;
      if (hit) expected |= 1U << i;
    }
    ASSERT_EQ(kernels().candidates(entry, bits), expected);

    Bucket bucket{};
    const auto small = [&] { return (random() % 2) << 63 | (random() % 2) << 32 | random() % 4; };
    for (uint64_t& tag : bucket.tags) tag = small();
    const uint64_t tag = small();
    expected = 0;
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (bucket.tags[i] >> 1 == tag >> 1) expected |= 1U << i;
    }
    ASSERT_EQ(match_tags(bucket.tags, tag), expected);

    const auto count = static_cast<uint32_t>(1 + random() % kSlots);
    FilterBits sum{0, 0};
    for (uint32_t i = 0; i < kSlots; ++i) {
      bucket.tags[i] = random();
      const FilterBits one = filter_bits(bucket.tags[i] >> 1);
      if (i < count) sum = {sum.low | one.low, sum.high | one.high};
    }
    const FilterBits filter = kernels().filter(bucket.tags, count);
    ASSERT_EQ(filter.low, sum.low);
    ASSERT_EQ(filter.high, sum.high);

    alignas(64) uint16_t words[32] = {};
    for (uint16_t& word : words) word = static_cast<uint16_t>(random() & 0x83e1);
    const auto wanted = static_cast<uint16_t>(random() & 0x8001);
    expected = 0;
    for (uint32_t i = 0; i < 32; ++i) {
      if ((words[i] & kFingerprintBits) == wanted) expected |= 1U << i;
    }
    ASSERT_EQ(match_fingerprints(words, wanted), expected);
  }
}

class PlushTest : public ::testing::Test {
 protected:
  Pool pool_ = Pool::anonymous({.capacity_bytes = uint64_t{64} << 20});
  PlushOptions small_{.directory_bits = 6, .fanout = 2, .partitions = 4};
};

TEST_F(PlushTest, CheckpointLeavesNothingToReplay) {
  {
    auto table = Plush<uint64_t, uint64_t>::create(pool_, "t", small_);
    for (uint64_t i = 0; i < 500; ++i) table.insert(i, i);
    table.checkpoint();
  }
  auto table = Plush<uint64_t, uint64_t>::open(pool_, "t");
  for (const Statistic& one : table.statistics()) {
    if (one.name == "recovered_operations" || one.name == "records_level_0") {
      EXPECT_EQ(one.value, 0) << one.name;
    }
  }
  uint64_t value = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(table.lookup(i, value));
    EXPECT_EQ(value, i);
  }
}

// Removing in place leaves no log record; an insert of a present key leaves one that is cancelled.
// Replaying the log must bring neither back.
TEST_F(PlushTest, AFailedInsertDoesNotHappenAfterALaterRemove) {
  {
    auto table = Plush<uint64_t, uint64_t>::create(pool_, "t", small_);
    for (uint64_t i = 0; i < 2000; ++i) table.upsert(i, i);
    table.checkpoint();
    for (uint64_t i = 0; i < 2000; i += 3) EXPECT_FALSE(table.insert(i, 77));
    for (uint64_t i = 0; i < 2000; i += 3) EXPECT_TRUE(table.remove(i));
    for (uint64_t i = 0; i < 2000; i += 3) EXPECT_FALSE(table.update(i, 78));
  }
  auto table = Plush<uint64_t, uint64_t>::open(pool_, "t");
  uint64_t value = 0;
  for (uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(table.lookup(i, value), i % 3 != 0) << i;
}

TEST_F(PlushTest, TombstonesVanishAndTheirBlocksComeBack) {
  auto table = Plush<uint64_t, uint64_t>::create(pool_, "t", small_);
  for (uint64_t i = 0; i < 60000; ++i) table.insert(i, i);
  const uint64_t full = pool_.info().allocated_bytes;
  for (uint64_t i = 0; i < 60000; ++i) ASSERT_TRUE(table.remove(i));
  EXPECT_LT(pool_.info().allocated_bytes, full / 2);
  uint64_t left = 0;
  table.for_each([&](uint64_t, uint64_t) { ++left; });
  EXPECT_EQ(left, 0U);
  EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

TEST_F(PlushTest, RefusesOptionsThatAreFixed) {
  {
    auto table = Plush<uint64_t, uint64_t>::create(pool_, "t", small_);
  }
  EXPECT_THROW((Plush<uint64_t, uint64_t>::open(pool_, "t", {.fanout = 4})), Error);
  EXPECT_THROW((Plush<uint64_t, uint64_t>::create(pool_, "u", {.fanout = 3})), Error);
  EXPECT_THROW((Plush<uint64_t, uint64_t>::create(pool_, "u", {.directory_bits = 25})), Error);
  EXPECT_THROW((Plush<uint64_t, std::string>::open(pool_, "t")), Error);
}

}  // namespace
}  // namespace perdure::index::plush
