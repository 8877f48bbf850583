// What the scenarios over the catalogue cannot reach of Plush.
#include "perdure/plush.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <span>
#include <string>

#include "index/plush/core.h"
#include "index/plush/kernels.h"
#include "perdure/error.h"
#include "pm/pool_impl.h"

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
    ASSERT_EQ(kernels().candidates(entry, kLines, bits), expected);
    for (const uint32_t lines : {1U, 2U, 4U}) {
      const uint32_t mask = (1U << lines * kLineBuckets) - 1;
      ASSERT_EQ(kernels().candidates(entry, lines, bits), expected & mask);
    }

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

uint64_t value_of(const std::vector<Statistic>& statistics, const std::string& name) {
  for (const Statistic& one : statistics) {
    if (one.name == name) return static_cast<uint64_t>(one.value);
  }
  ADD_FAILURE() << "no statistic " << name;
  return 0;
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
    if (one.name == "recovered_operations" || one.name == "recordslevel_0") {
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

// Each place of the payload log has had nearly all chunks that its pointers can tell apart.
TEST_F(PlushTest, PlacesOfThePayloadLogThatAreUsedUpStayEmpty) {
  using Strings = Plush<std::string, std::string>;
  constexpr uint64_t kKeys = 200;
  const auto value_of = [](uint64_t key, uint64_t round) {
    return std::to_string(key * 1000 + round) + std::string(700, 'v');
  };
  const auto expect_all = [&](const Strings& table, uint64_t round) {
    std::string value;
    for (uint64_t key = 0; key < kKeys; ++key) {
      ASSERT_TRUE(table.lookup(std::to_string(key), value)) << key;
      ASSERT_EQ(value, value_of(key, round));
    }
    EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  };
  constexpr uint64_t kRounds = 300;
  {
    auto table = Strings::create(pool_, "t", {.directory_bits = 2, .fanout = 2, .partitions = 1});
    pm::PoolImpl& pool = pm::impl_of(pool_);
    const auto* root = pool.at<Root>(pool.find("t")->root);
    table.upsert(std::to_string(0), value_of(0, 0));  // makes the first page of places
    auto& places = pool.at<PlacePage>(*pool.at<uint64_t>(root->payload_places))->words;
    for (uint64_t i = 0; i < PlacePage::kSegments; ++i) {
      if (places[i] == 0) places[i] = PayloadLog::place_word(i, PayloadLog::kEpochMax - 2);
    }
    for (uint64_t round = 0; round <= kRounds; ++round) {
      for (uint64_t key = 0; key < kKeys; ++key) {
        table.upsert(std::to_string(key), value_of(key, round));
      }
    }
    uint64_t used_up = 0;
    for (uint64_t i = 0; i < PlacePage::kSegments; ++i) {
      used_up += places[i] == PayloadLog::place_word(i, PayloadLog::kEpochMax) ? 1 : 0;
    }
    EXPECT_GT(used_up, 100U);
    expect_all(table, kRounds);
  }
  auto table = Strings::open(pool_, "t");
  expect_all(table, kRounds);
  for (uint64_t key = 0; key < kKeys; ++key) table.upsert(std::to_string(key), value_of(key, 999));
  expect_all(table, 999);
}

// A payload with a changed bit, and a pointer that leads to none: each is told, and still is after
// drains, garbage collection and another opening.
TEST_F(PlushTest, DamagedPayloadIsNeitherHandedOutNorForgotten) {
  using Strings = Plush<std::string, std::string>;
  pm::PoolImpl& pool = pm::impl_of(pool_);
  const auto words_of = [&](uint64_t begin) {
    return std::span(pool.at<uint64_t>(begin), (pool.end_offset() - begin) / 8);
  };
  const auto find_payload = [&](const std::string& text) {
    const std::string_view all(pool.at<char>(pool.header().data_offset),
                               pool.end_offset() - pool.header().data_offset);
    const size_t at = all.find(text);
    EXPECT_NE(at, std::string_view::npos);
    return pool.header().data_offset + at;
  };
  const auto expect_told = [](const Strings& table, const std::string& key) {
    std::string value;
    try {
      ADD_FAILURE() << "key " << key << (table.lookup(key, value) ? " is found" : " is absent");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
  };
  const auto write_others = [](Strings& table) {
    for (uint64_t i = 0; i < 60'000; ++i) {
      try {
        table.upsert("o" + std::to_string(i % 3000), std::to_string(i) + std::string(300, 'o'));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      }
    }
  };
  auto table = std::make_optional(
      Strings::create(pool_, "t", {.directory_bits = 2, .fanout = 2, .partitions = 1}));
  const std::string text = std::string(100, 'x') + "a payload";
  table->upsert("k", text);
  table->upsert("p", "p" + text);
  for (uint64_t i = 0; i < 100; ++i) table->upsert("o" + std::to_string(i), "others");
  table->checkpoint();

  *pool.at<char>(find_payload("k" + text) + 20) ^= 4;
  const uint64_t entry = find_payload("pp" + text) - sizeof(PayloadEntry);
  uint64_t changed = 0;
  for (uint64_t& word : words_of(pool.header().data_offset)) {
    if ((word & ((uint64_t{1} << 37) - 1)) != entry / 8 || word >> 37 != 1) continue;
    word ^= uint64_t{1} << 40;
    ++changed;
  }
  ASSERT_GE(changed, 1U);
  expect_told(*table, "k");
  expect_told(*table, "p");
  EXPECT_GE(table->check([](const std::string&) {}), 1U);
  EXPECT_THROW(table->for_each([](std::string_view, std::string_view) {}), Error);
  write_others(*table);
  expect_told(*table, "k");
  expect_told(*table, "p");
  table.reset();
  table.emplace(Strings::open(pool_, "t"));
  write_others(*table);
  expect_told(*table, "k");
  expect_told(*table, "p");
  std::string value;
  ASSERT_TRUE(table->lookup("o1", value));
  EXPECT_EQ(value.substr(value.size() - 300), std::string(300, 'o'));
}

// Overwritten again and again, a table holds a bounded number of superseded records.
TEST_F(PlushTest, SteadyOverwritesTakeBoundedSpace) {
  const uint64_t records = 60000;
  const auto bytes_after = [&](PlushOptions options) {
    Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{256} << 20});
    options.directory_bits = 6;
    options.fanout = 16;
    options.partitions = 8;
    {
      auto table = Plush<uint64_t, uint64_t>::create(pool, "t", options);
      for (uint64_t i = 0; i < records; ++i) table.upsert(i, i);
    }
    // Opened again: of the entries that are there already no copies have been made.
    auto table = Plush<uint64_t, uint64_t>::open(pool, "t", options);
    std::mt19937_64 random(3);
    for (uint64_t i = 0; i < 8 * records; ++i) table.upsert(random() % records, i);
    EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0);
    uint64_t live = 0;
    table.for_each([&](uint64_t, uint64_t) { ++live; });
    EXPECT_EQ(live, records);
    return value_of(table.statistics(), "pool_bytes");
  };
  const uint64_t raw = records * 16;
  const uint64_t by_copies = bytes_after({});
  EXPECT_LE(by_copies, raw * 5 / 2 + (uint64_t{1} << 20));
  EXPECT_GT(bytes_after({.garbage_percent = 1000}), by_copies);
  // Where there are no copies, the filters tell what is superseded.
  EXPECT_LE(bytes_after({.filter_levels = 0}), by_copies * 5 / 4);
}

// Also where a level has just begun: with these options one does at about 370,000 records.
TEST_F(PlushTest, OverwritesTakeBoundedSpaceAtAnyNumberOfRecords) {
  for (const uint64_t records : {300000, 400000, 600000}) {
    Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{256} << 20});
    std::optional table = Plush<uint64_t, uint64_t>::create(pool, "t");
    for (uint64_t i = 0; i < records; ++i) table->upsert(i, i);
    std::mt19937_64 random(3);
    for (int round = 0; round < 3; ++round) {
      for (uint64_t i = 0; i < records; ++i) table->upsert(random() % records, i);
      if (round == 0) continue;  // not steady yet: what was loaded gives way
      EXPECT_LE(pm::impl_of(pool).heap().usage().allocated_bytes, records * 16 * 5 / 2) << records;
    }
    table.reset();
    table = Plush<uint64_t, uint64_t>::open(pool, "t");
    uint64_t value = 0;
    for (uint64_t i = 0; i < records; ++i) ASSERT_TRUE(table->lookup(i, value)) << i;
    EXPECT_EQ(table->check([](const std::string& text) { ADD_FAILURE() << text; }), 0);
  }
}

TEST_F(PlushTest, OverwrittenByteStringsTakeBoundedSpace) {
  constexpr uint64_t kRecords = 60000;
  const auto key_of = [](uint64_t i) { return std::to_string(i + 1000000000000000); };
  const std::string value(100, 'v');
  Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{256} << 20});
  auto table = Plush<std::string, std::string>::create(pool, "t", {.partitions = 16});
  for (uint64_t i = 0; i < kRecords; ++i) table.upsert(key_of(i), value);
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < 4 * kRecords; ++i) table.upsert(key_of(random() % kRecords), value);
  EXPECT_LE(pm::impl_of(pool).heap().usage().allocated_bytes, kRecords * 116 * 5 / 2);
  EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0);
}

// modify() and increment() of a table without AnyIndex.
TEST_F(PlushTest, TypedTablesReadAndWriteInOneStep) {
  static_assert(perdure::Index<Plush<std::string, uint64_t>>);
  auto counts = Plush<std::string, uint64_t>::create(pool_, "t", small_);
  EXPECT_EQ(increment(counts, "word"), 1U);
  EXPECT_EQ(increment(counts, "word", 9), 10U);
  const auto halve = [](const uint64_t* before, uint64_t& after) {
    if (before == nullptr) return Change::kKeep;
    after = *before / 2;
    return after == 0 ? Change::kRemove : Change::kWrite;
  };
  EXPECT_EQ(modify(counts, "none", halve), Change::kKeep);
  for (const uint64_t left : {5, 2, 1}) {
    EXPECT_EQ(modify(counts, "word", halve), Change::kWrite);
    uint64_t value = 0;
    EXPECT_TRUE(counts.lookup("word", value));
    EXPECT_EQ(value, left);
  }
  EXPECT_EQ(modify(counts, "word", halve), Change::kRemove);
  uint64_t value = 0;
  EXPECT_FALSE(counts.lookup("word", value));
  // What was loaded without a log record is compared, too.
  counts.upsert("loaded", 7, Logging::kOff);
  EXPECT_FALSE(counts.compare_exchange("loaded", 6, 8));
  EXPECT_TRUE(counts.compare_exchange("loaded", 7, 8));
  EXPECT_TRUE(counts.compare_remove("loaded", 8));
}

TEST_F(PlushTest, TypedTablesHaveTheShortCalls) {
  auto words = Plush<std::string, std::string>::create(pool_, "words");
  auto counts = Plush<uint64_t, uint64_t>::create(pool_, "counts");
  EXPECT_EQ(words.get("a"), std::nullopt);
  EXPECT_FALSE(counts.contains(1));
  for (uint64_t i = 0; i < 1000; ++i) {
    words.upsert(std::to_string(i), "value of " + std::to_string(i));
    counts.upsert(i, i * i);
  }
  EXPECT_EQ(words.size(), 1000);
  EXPECT_EQ(counts.size(), 1000);
  EXPECT_EQ(words.get("7"), "value of 7");
  EXPECT_EQ(counts.get(7), 49);
  EXPECT_TRUE(words.contains("999"));
  EXPECT_FALSE(words.contains("1000"));
  size_t length = 0;
  EXPECT_TRUE(words.lookup("10", [&](std::string_view value) { length = value.size(); }));
  EXPECT_EQ(length, 11);
  uint64_t seen = 0;
  EXPECT_TRUE(counts.lookup(10, [&](uint64_t value) { seen = value; }));
  EXPECT_EQ(seen, 100);
  EXPECT_FALSE(counts.lookup(1000, [&](uint64_t value) { seen = value; }));
  EXPECT_EQ(seen, 100);
}

TEST_F(PlushTest, KeysOutsideOfARangeHaveNoValueToCompare) {
  PlushOptions options = small_;
  options.order = PlushOrder::kRange;
  options.key_min = 100;
  options.key_max = 199;
  auto table = Plush<uint64_t, std::string>::create(pool_, "t", options);
  table.upsert(150, "a");
  EXPECT_FALSE(table.compare_exchange(99, "a", "b"));
  EXPECT_FALSE(table.compare_remove(200, "a"));
  EXPECT_TRUE(table.compare_exchange(150, "a", ""));
  EXPECT_TRUE(table.compare_remove(150, ""));
}

TEST_F(PlushTest, RefusesOptionsThatAreFixed) {
  {
    auto table = Plush<uint64_t, uint64_t>::create(pool_, "t", small_);
  }
  EXPECT_THROW((Plush<uint64_t, uint64_t>::open(pool_, "t", {.fanout = 4})), Error);
  EXPECT_THROW((Plush<uint64_t, uint64_t>::create(pool_, "u", {.fanout = 3})), Error);
  EXPECT_THROW((Plush<uint64_t, uint64_t>::create(pool_, "u", {.directory_bits = 25})), Error);
  EXPECT_THROW((Plush<uint64_t, uint64_t>::create(pool_, "u", {.garbage_percent = 9})), Error);
  EXPECT_THROW((Plush<uint64_t, std::string>::open(pool_, "t")), Error);
}

// Chunks that hold no garbage are not moved for ever: neither where what entries are rounded up to
// looks like some, nor where entries leave the end of each chunk empty.
TEST(PlushPayload, AFullPoolIsSoonFull) {
  for (const size_t value_bytes : {size_t{8}, size_t{700} << 10}) {
    Pool pool = Pool::anonymous({.capacity_bytes = 64 << 20});
    auto index = Plush<std::string, std::string>::create(pool, "index");
    const std::string value(value_bytes, 'v');
    uint64_t records = 0;
    EXPECT_THROW(for (;; ++records) index.upsert("key" + std::to_string(100000 + records), value),
                 Error);
    EXPECT_GT(records * value_bytes, value_bytes == 8 ? 400'000U : uint64_t{30} << 20);
    // Later writes, too, soon end in one way or the other.
    for (int i = 0; i < 100; ++i) {
      try {
        index.insert("more" + std::to_string(i), value);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
      }
    }
    EXPECT_EQ(index.get("key100000"), value);
    EXPECT_TRUE(index.remove("key100000"));
  }
}

}  // namespace
}  // namespace perdure::index::plush
