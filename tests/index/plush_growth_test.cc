// Tables that grow with their data: what they cost while they hold little, and what readers see.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "index/plush/core.h"
#include "perdure/plush.h"
#include "pm/pool_impl.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::index::plush {
namespace {

using test::base_seed;
using test::Random;
using test::TempDir;
using Words = Plush<uint64_t, uint64_t>;

uint64_t statistic(const std::vector<Statistic>& statistics, const std::string& name) {
  for (const Statistic& one : statistics) {
    if (one.name == name) return static_cast<uint64_t>(one.value);
  }
  ADD_FAILURE() << "no statistic " << name;
  return 0;
}

template <typename Table>
void expect_sound(const Table& table) {
  EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

// Of this process: memory that no file is behind.
uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) << 10;
  }
  return 0;
}

class PlushGrowthTest : public testing::Test {
 protected:
  // Grows from 2 rows in each partition to 64.
  static PlushOptions tiny(PlushOrder order = PlushOrder::kHash) {
    PlushOptions options{
        .directory_bits = 2, .directory_bits_max = 7, .fanout = 2, .partitions = 2};
    options.order = order;
    return options;
  }

  Pool pool_ = Pool::anonymous({.capacity_bytes = uint64_t{256} << 20});
};

void insert_one(Words& table) { table.insert(1, 2); }
void insert_one(Plush<std::string, std::string>& table) { table.insert("one", "two"); }

template <typename Table>
class PlushOfOneRecordTest : public testing::Test {};
using Tables = testing::Types<Words, Plush<std::string, std::string>>;
TYPED_TEST_SUITE(PlushOfOneRecordTest, Tables);

TYPED_TEST(PlushOfOneRecordTest, CostsLittleWhateverTheCapacity) {
  constexpr uint64_t kLittle = uint64_t{4} << 20;
  const TempDir dir;
  for (const uint64_t capacity : {uint64_t{64} << 20, uint64_t{1} << 30, uint64_t{1} << 40}) {
    const std::string path = dir.file("pool" + std::to_string(capacity));
    const uint64_t before = anonymous_bytes();
    Pool pool = Pool::create(path, {.capacity_bytes = capacity});
    struct stat empty{};
    ASSERT_EQ(::stat(path.c_str(), &empty), 0);
    auto table = TypeParam::create(pool, "t");
    insert_one(table);
    struct stat used{};
    ASSERT_EQ(::stat(path.c_str(), &used), 0);
    EXPECT_LE(statistic(table.statistics(), "pool_bytes"), kLittle) << capacity;
    EXPECT_LE(static_cast<uint64_t>(used.st_blocks - empty.st_blocks) * 512, 2 * kLittle);
    EXPECT_LE(statistic(table.statistics(), "dram_bytes"), kLittle) << capacity;
    if (test::kUnderThreadSanitizer || test::kUnderAddressSanitizer)
      continue;  // their own memory counts there
    EXPECT_LE(anonymous_bytes() - before, 2 * kLittle) << capacity;
  }
}

TEST_F(PlushGrowthTest, DirectoryBitsAloneAreFixed) {
  auto table = Words::create(pool_, "t", {.directory_bits = 2, .fanout = 2, .partitions = 2});
  for (uint64_t i = 0; i < 30000; ++i) table.insert(i, i);
  EXPECT_EQ(statistic(table.statistics(), "rows"), 4U);
}

TEST_F(PlushGrowthTest, RecordsOutliveGrowth) {
  Random random{base_seed()};
  std::map<uint64_t, uint64_t> model;
  uint64_t rows = 4;
  for (int round = 0; round < 12; ++round) {
    auto table = round == 0 ? Words::create(pool_, "t", tiny()) : Words::open(pool_, "t");
    EXPECT_GE(statistic(table.statistics(), "rows"), rows);
    for (uint64_t i = 0; i < 6000; ++i) {
      const uint64_t key = random.below(60000);
      if (random.below(5) == 0) {
        ASSERT_EQ(table.remove(key), model.erase(key) == 1);
      } else {
        table.upsert(key, i, random.below(3) == 0 ? Logging::kOff : Logging::kOn);
        model[key] = i;
      }
    }
    rows = statistic(table.statistics(), "rows");
    std::map<uint64_t, uint64_t> seen;
    table.for_each([&](uint64_t key, uint64_t value) { seen[key] = value; });
    ASSERT_EQ(seen, model);
    expect_sound(table);
  }
  EXPECT_GE(rows, 64U);
}

TEST_F(PlushGrowthTest, ReadersOfAGrowingTableFindEveryRecord) {
  for (const uint32_t filter_levels : {0U, 1U, 2U, 3U}) {
    Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{256} << 20});
    PlushOptions options = tiny();
    options.filter_levels = filter_levels;
    auto table = Words::create(pool, "t", options);
    constexpr uint64_t kRecords = 60000;
    std::atomic<uint64_t> there = 0;
    std::atomic<uint64_t> wrong = 0;
    const auto read = [&](uint64_t seed) {
      Random random{seed};
      for (uint64_t end = 0; end < kRecords;) {  // once more when all are there
        end = there.load(std::memory_order_acquire);
        if (end == 0) continue;
        const uint64_t key = random.below(end);
        uint64_t value = 0;
        if (!table.lookup(key, value) || value != key * 7) ++wrong;
        if (table.lookup(kRecords + key, value)) ++wrong;
      }
    };
    const auto iterate = [&] {
      for (uint64_t least = 0; least < kRecords;) {
        least = there.load(std::memory_order_acquire);
        uint64_t seen = 0;
        table.for_each([&](uint64_t key, uint64_t) { seen += key < least ? 1 : 0; });
        if (seen != least) ++wrong;
      }
    };
    {
      std::vector<std::jthread> threads;
      threads.emplace_back(read, 1);
      threads.emplace_back(read, 2);
      threads.emplace_back(iterate);
      for (uint64_t i = 0; i < kRecords; ++i) {
        table.upsert(i, i * 7);
        there.store(i + 1, std::memory_order_release);
      }
    }
    EXPECT_EQ(wrong.load(), 0U) << filter_levels;
    EXPECT_EQ(statistic(table.statistics(), "rows"), 128U);
    expect_sound(table);
  }
}

TEST_F(PlushGrowthTest, ScansOfAGrowingTableAreInOrderAndWhole) {
  constexpr uint64_t kRecords = 60000;
  PlushOptions options = tiny(PlushOrder::kRange);
  options.key_max = kRecords - 1;
  auto table = Words::create(pool_, "t", options);
  std::vector<std::atomic<bool>> there(kRecords);
  std::atomic<bool> done = false;
  uint64_t scans = 0;
  uint64_t wrong = 0;
  std::jthread scanner([&] {
    while (!done.load() || scans < 2) {  // at least one of the whole table
      std::vector<bool> before(kRecords);
      for (uint64_t i = 0; i < kRecords; ++i) before[i] = there[i].load();
      uint64_t next = 0;
      table.scan(0, kRecords, [&](uint64_t key, uint64_t value) {
        if (key < next || value != key + 1) ++wrong;
        for (; next < key; ++next) wrong += before[next] ? 1 : 0;
        next = key + 1;
        return true;
      });
      for (; next < kRecords; ++next) wrong += before[next] ? 1 : 0;
      // The same downwards, of what is there by now.
      for (uint64_t i = 0; i < kRecords; ++i) before[i] = there[i].load();
      table.scan_back(std::nullopt, kRecords, [&](uint64_t key, uint64_t value) {
        if (key >= next || value != key + 1) return ++wrong, false;
        for (--next; next > key; --next) wrong += before[next] ? 1 : 0;
        return true;
      });
      for (; next > 0; --next) wrong += before[next - 1] ? 1 : 0;
      ++scans;
    }
  });
  // Each key once, in an order that is spread over them.
  for (uint64_t i = 0; i < kRecords; ++i) {
    const uint64_t key = i * 7919 % kRecords;
    table.insert(key, key + 1);
    there[key].store(true);
  }
  done = true;
  scanner.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GE(statistic(table.statistics(), "rows"), 64U);
  expect_sound(table);
}

TEST_F(PlushGrowthTest, ByteStringsOutliveGrowth) {
  using Bytes = Plush<std::string, std::string>;
  const auto value_of = [](uint64_t i) { return std::string(i % 40, 'v') + std::to_string(i); };
  {
    auto table = Bytes::create(pool_, "t", tiny());
    for (uint64_t i = 0; i < 30000; ++i) table.upsert(std::to_string(i), value_of(i));
    for (uint64_t i = 0; i < 30000; i += 3) table.remove(std::to_string(i));
    EXPECT_GT(statistic(table.statistics(), "rows"), 16U);
    expect_sound(table);
  }
  auto table = Bytes::open(pool_, "t");
  for (uint64_t i = 0; i < 30000; ++i) {
    std::string value;
    ASSERT_EQ(table.lookup(std::to_string(i), value), i % 3 != 0);
    if (i % 3 != 0) {
      ASSERT_EQ(value, value_of(i));
    }
  }
}

TEST_F(PlushGrowthTest, EarlierLayoutsAreRefusedInWords) {
  {
    auto table = Words::create(pool_, "t");
  }
  auto& impl = pm::impl_of(pool_);
  for (const uint64_t magic : {kRootMagic1, kRootMagic2, kRootMagic3, kRootMagic4}) {
    impl.at<Root>(impl.find("t")->root)->magic = magic;
    try {
      Words::open(pool_, "t");
      ADD_FAILURE() << "opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kWrongType);
      EXPECT_NE(std::string(error.what()).find("earlier version"), std::string::npos);
    }
  }
}

// Where a table is opened for a few records at a time, each partition grows when it does elsewhere.
TEST_F(PlushGrowthTest, OverflowsOfEarlierSessionsCount) {
  constexpr uint64_t kSessions = 450;
  constexpr uint64_t kOfSession = 100;  // less than one entry of 32 holds
  const PlushOptions options{
      .directory_bits = 5, .directory_bits_max = 6, .fanout = 2, .partitions = 1};
  Words::create(pool_, "t", options);
  for (uint64_t i = 0; i < kSessions; ++i) {
    auto table = Words::open(pool_, "t");
    for (uint64_t key = i * kOfSession; key < (i + 1) * kOfSession; ++key) table.insert(key, key);
  }
  auto table = Words::open(pool_, "t");
  EXPECT_EQ(statistic(table.statistics(), "rows"), 64U);
  for (uint64_t key = 0; key < kSessions * kOfSession; ++key) {
    uint64_t value = 0;
    ASSERT_TRUE(table.lookup(key, value));
    ASSERT_EQ(value, key);
  }
  expect_sound(table);
}

TEST_F(PlushGrowthTest, FirstLevelsWithAHoleAreRefused) {
  {
    auto table = Words::create(pool_, "t", tiny());
    for (uint64_t i = 0; i < 30000; ++i) table.insert(i, i);
    ASSERT_EQ(statistic(table.statistics(), "first_level_least"), 5U);
  }
  auto& impl = pm::impl_of(pool_);
  const Root& root = *impl.at<Root>(impl.find("t")->root);
  const auto top = static_cast<uint32_t>(impl.at<PartitionHead>(root.heads)->grown + 1);
  uint32_t& link = impl.at<uint32_t>(root.tables[top])[3];
  const uint32_t unit = std::exchange(link, 0U);
  try {
    auto table = Words::open(pool_, "t");
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  }
  link = unit;
  auto table = Words::open(pool_, "t");
  expect_sound(table);
}

TEST_F(PlushGrowthTest, DamagedHeadsAreRefused) {
  {
    auto table = Words::create(pool_, "t");
  }
  auto& impl = pm::impl_of(pool_);
  const Root& root = *impl.at<Root>(impl.find("t")->root);
  auto& head = *impl.at<PartitionHead>(root.heads);
  for (const PartitionHead& damaged :
       {PartitionHead{.grown = 1, .log = 0}, PartitionHead{.grown = 0, .log = root.log},
        PartitionHead{.grown = 100, .log = root.log}}) {
    head = damaged;
    EXPECT_THROW(Words::open(pool_, "t"), Error);
  }
  head = {};
  EXPECT_NO_THROW(Words::open(pool_, "t"));
}

}  // namespace
}  // namespace perdure::index::plush
