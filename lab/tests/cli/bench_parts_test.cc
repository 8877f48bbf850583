// The parts that the benchmark is made of: sizes as text, histogram, permutation, workload.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "common/permutation.h"
#include "common/units.h"
#include "lab/bench/bench.h"
#include "lab/bench/workload.h"
#include "lab/histogram.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

TEST(Units, SizesAreBinaryAndCountsAreDecimal) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("64K"), 65536U);
  EXPECT_EQ(parse_bytes("64k"), 65536U);
  EXPECT_EQ(parse_bytes("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5G"), uint64_t{3} << 29);
  EXPECT_EQ(parse_count("10M"), 10'000'000U);
  EXPECT_EQ(parse_count("1.5k"), 1500U);
  EXPECT_EQ(parse_count("9007199254740993"), 9007199254740993U);
}

TEST(Units, WhatIsNoSizeIsRefused) {
  for (const char* text :
       {"", "M", "12Q", "-1", "1.5", "1e3", "12 M", "64MB", "nan", "inf", "99999999T", "1MiBs"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
  EXPECT_THROW(parse_count("1MiB"), Error);
}

TEST(Units, FormatsKeepThreeDigits) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(uint64_t{64} << 20), "64.0 MiB");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(12), "12");
  EXPECT_EQ(format_nanoseconds(87.04), "87.0 ns");
  EXPECT_EQ(format_nanoseconds(1234), "1.23 us");
  EXPECT_EQ(format_nanoseconds(2.5e9), "2.50 s");
  EXPECT_EQ(format_rate(1.5e6), "1.50 M/s");
  EXPECT_EQ(format_clock(3723), "1:02:03");
}

TEST(Histogram, QuantilesAreWithinTheErrorItPromises) {
  Histogram histogram;
  std::mt19937_64 random(1);
  std::vector<uint64_t> values;
  for (int i = 0; i < 100'000; ++i) {
    values.push_back(random() >> (random() % 60));
    histogram.record(values.back());
  }
  std::sort(values.begin(), values.end());
  EXPECT_EQ(histogram.count(), values.size());
  EXPECT_EQ(histogram.min(), values.front());
  EXPECT_EQ(histogram.max(), values.back());
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999}) {
    const auto rank = static_cast<size_t>(std::ceil(share * 1e5)) - 1;
    const auto exact = static_cast<double>(values[rank]);
    EXPECT_LE(std::fabs(histogram.quantile(share) - exact), 0.016 * exact + 0.5) << share;
  }
}

TEST(Histogram, MergingIsRecordingBoth) {
  Histogram one;
  Histogram two;
  Histogram both;
  for (uint64_t value = 0; value < 1000; ++value) {
    (value % 3 == 0 ? one : two).record(value * value);
    both.record(value * value);
  }
  one.merge(two);
  EXPECT_EQ(one.count(), both.count());
  EXPECT_EQ(one.max(), both.max());
  for (const double share : {0.1, 0.5, 0.99}) EXPECT_EQ(one.quantile(share), both.quantile(share));
}

TEST(Histogram, HoldsTheWholeRangeAndNothing) {
  Histogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  EXPECT_EQ(histogram.min(), 0U);
  histogram.record(0);
  histogram.record(~uint64_t{0});
  EXPECT_EQ(histogram.quantile(0), 0);
  EXPECT_GT(histogram.quantile(1), 0x1p63);
}

TEST(Permutation, VisitsEveryNumberOnce) {
  for (const uint64_t count : {1, 2, 3, 5, 64, 1000, 65537}) {
    const Permutation permutation(count, count);
    std::vector<bool> seen(count);
    for (uint64_t place = 0; place < count; ++place) {
      const uint64_t number = permutation.at(place);
      ASSERT_LT(number, count);
      ASSERT_FALSE(seen[number]);
      seen[number] = true;
    }
  }
}

TEST(Scatter, VisitsEveryNumberOnceAndNeighboursFarApart) {
  for (const uint64_t count : {1, 2, 3, 5, 64, 1000, 65537, 6'765'000}) {
    const Scatter scatter(count, count);
    std::vector<bool> seen(count);
    uint64_t before = 0;
    for (uint64_t place = 0; place < count; ++place) {
      const uint64_t number = scatter.at(place);
      ASSERT_LT(number, count);
      ASSERT_FALSE(seen[number]) << count;
      seen[number] = true;
      if (place > 0 && count > 10) {
        ASSERT_GT(std::max(number, before) - std::min(number, before), count / 3);
      }
      before = number;
    }
  }
  // The largest count that is not left to a permutation, at its end, where errors are largest.
  constexpr uint64_t kLarge = (uint64_t{1} << 31) - 1;
  const Scatter scatter(kLarge);
  const uint64_t step = (scatter.at(1) + kLarge - scatter.at(0)) % kLarge;
  for (uint64_t place = kLarge - 1000; place < kLarge; ++place) {
    EXPECT_EQ(scatter.at(place), (scatter.at(place - 1) + step) % kLarge);
  }
}

TEST(MixWord, EveryInputBitChangesHalfOfTheOutputBits) {
  std::mt19937_64 random(2);
  for (unsigned bit = 0; bit < 64; ++bit) {
    double changed = 0;
    for (int i = 0; i < 2000; ++i) {
      const uint64_t word = random() >> (i % 50);
      changed += __builtin_popcountll(mix_word(word) ^ mix_word(word ^ (uint64_t{1} << bit)));
    }
    EXPECT_NEAR(changed / 2000, 32, 1) << bit;
  }
}

TEST(Mix, ReadsSharesAndNamesThem) {
  EXPECT_EQ(Mix::parse("insert=1").name(), "insert");
  EXPECT_EQ(Mix::parse("upsert").name(), "upsert");
  EXPECT_EQ(Mix::parse("lookup=.5,update=.5").name(), "lookup=0.5,update=0.5");
  EXPECT_EQ(Mix::parse("lookup=3,update=1").name(), "lookup=0.75,update=0.25");
  for (const char* text :
       {"", "jump", "lookup=", "lookup=-1", "lookup=x", "lookup,", "a=1,a=2", "lookup,lookup"}) {
    EXPECT_THROW(Mix::parse(text), Error) << text;
  }
}

// A model of what is there checks that every operation of the stream succeeds.
TEST(OperationPlan, EveryOperationSucceeds) {
  constexpr uint64_t kRecords = 5000;
  const Mix mix = Mix::parse("insert=.2,lookup=.3,update=.2,upsert=.1,remove=.2");
  const OperationPlan plan(mix, kRecords, 12'345, 9, KeyOrder::kMixed);
  std::set<uint64_t> present;
  for (uint64_t record = 0; record < kRecords; ++record) present.insert(record);
  std::array<uint64_t, kOperationTypes> counts{};
  for (uint64_t place = 0; place < plan.operations(); ++place) {
    const Operation operation = plan.at(place);
    ++counts[static_cast<size_t>(operation.type)];
    if (operation.type == OperationType::kInsert) {
      EXPECT_TRUE(present.insert(operation.record).second);
    } else if (operation.type == OperationType::kRemove) {
      EXPECT_EQ(present.erase(operation.record), 1U);
    } else {
      EXPECT_EQ(present.count(operation.record), 1U);
    }
  }
  for (size_t type = 0; type < kOperationTypes; ++type) {
    EXPECT_EQ(counts[type], plan.count_of(static_cast<OperationType>(type)));
  }
  EXPECT_NEAR(static_cast<double>(counts[0]), 0.2 * 12'345, 20);
  // Also in any other order: what is looked up is never removed.
  EXPECT_TRUE(plan.has_survivors());
  for (uint64_t place = 0; place < 1000; ++place) {
    EXPECT_EQ(present.count(plan.survivor(place)), 1U);
  }
}

TEST(OperationPlan, DrawsUniformly) {
  constexpr uint64_t kRecords = 64;
  constexpr uint64_t kDraws = 64'000;
  const OperationPlan plan(Mix::parse("lookup"), kRecords, kDraws, 3, KeyOrder::kMixed);
  std::array<double, kRecords> counts{};
  for (uint64_t place = 0; place < kDraws; ++place) ++counts[plan.at(place).record];
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 1000) * (count - 1000) / 1000;
  EXPECT_LT(chi_square, 120);  // 63 degrees of freedom: exceeded once in 100,000
}

TEST(OperationPlan, TheSeedDecidesOperationsAndKeys) {
  const Mix mix = Mix::parse("lookup=.5,update=.5");
  const OperationPlan one(mix, 1000, 1000, 1, KeyOrder::kMixed);
  const OperationPlan same(mix, 1000, 1000, 1, KeyOrder::kMixed);
  const OperationPlan other(mix, 1000, 1000, 2, KeyOrder::kMixed);
  uint64_t alike = 0;
  for (uint64_t place = 0; place < 1000; ++place) {
    EXPECT_EQ(one.at(place).record, same.at(place).record);
    EXPECT_EQ(one.at(place).type, same.at(place).type);
    alike += one.at(place).record == other.at(place).record ? 1 : 0;
  }
  EXPECT_LT(alike, 20U);
  EXPECT_EQ(one.key_of(7), same.key_of(7));
  EXPECT_NE(one.key_of(7), other.key_of(7));
  EXPECT_EQ(OperationPlan(mix, 10, 10, 1, KeyOrder::kSequential).key_of(7), 7U);
}

TEST(OperationPlan, RefusesMixesThatNeedMoreRecords) {
  EXPECT_THROW(OperationPlan(Mix::parse("remove"), 10, 11, 1, KeyOrder::kMixed), Error);
  EXPECT_NO_THROW(OperationPlan(Mix::parse("remove"), 10, 10, 1, KeyOrder::kMixed));
  EXPECT_THROW(OperationPlan(Mix::parse("lookup"), 0, 1, 1, KeyOrder::kMixed), Error);
  EXPECT_NO_THROW(OperationPlan(Mix::parse("insert"), 0, 10, 1, KeyOrder::kMixed));
}

TEST(BenchCapacity, IsFourAndAHalfTimesTheRawBytesAndSixtyFourMebibytesAtLeast) {
  BenchOptions options;
  options.records = 1000;
  EXPECT_EQ(default_capacity_bytes(options), uint64_t{64} << 20);
  options.records = 10'000'000;
  EXPECT_EQ(default_capacity_bytes(options), uint64_t{688} << 20);
  options.workloads = {Workload::of(Mix::parse("insert"))};
  options.operations = 10'000'000;
  EXPECT_EQ(default_capacity_bytes(options), uint64_t{1376} << 20);
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace perdure::lab
