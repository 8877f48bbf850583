// The streams of operations that the benchmark carries out, and the distributions they draw from.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "lab/bench/distribution.h"
#include "lab/bench/workload.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

Distribution distribution(const char* text) { return Distribution::parse(text); }

// The chi-square statistic of draws against a definition, over ranks alone while each is expected
// often enough, then over groups of them. Its mean is the number of groups minus 1.
struct ChiSquare {
  double statistic = 0;
  int degrees = -1;
  // Exceeded once in 100,000 where the definition holds (the approximation of Wilson and Hilferty).
  double limit() const {
    const double part = 2.0 / (9.0 * degrees);
    return degrees * std::pow(1 - part + 4.265 * std::sqrt(part), 3);
  }
};

ChiSquare compare(const std::vector<uint64_t>& counts, const std::vector<double>& weights) {
  double sum = 0;
  double draws = 0;
  for (const double weight : weights) sum += weight;
  for (const uint64_t count : counts) draws += static_cast<double>(count);
  ChiSquare result;
  double expected = 0;
  double seen = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    expected += draws * weights[rank] / sum;
    seen += static_cast<double>(counts[rank]);
    if (expected < 50 && rank + 1 < counts.size()) continue;
    result.statistic += (seen - expected) * (seen - expected) / expected;
    ++result.degrees;
    expected = seen = 0;
  }
  return result;
}

std::vector<uint64_t> draw_ranks(const Distribution& of, uint64_t ranks, uint64_t draws) {
  const RankSampler sampler(of, ranks);
  std::vector<uint64_t> counts(ranks);
  for (uint64_t place = 0; place < draws; ++place) {
    const uint64_t rank = sampler.draw(mix_word(place ^ 0x1234567));
    EXPECT_LT(rank, ranks);
    ++counts[rank];
  }
  return counts;
}

TEST(Distribution, ReadsNamesAndFactors) {
  EXPECT_EQ(distribution("uniform").name(), "uniform");
  EXPECT_EQ(distribution("zipfian").name(), "zipfian=0.99");
  EXPECT_EQ(distribution("zipfian=1.2").name(), "zipfian=1.2");
  EXPECT_EQ(distribution("selfsimilar").name(), "selfsimilar=0.2");
  EXPECT_EQ(distribution("latest=.5").name(), "latest=0.5");
  EXPECT_EQ(distribution("sequential").name(), "sequential");
  for (const char* text : {"", "zipf", "zipfian=", "zipfian=0", "zipfian=-1", "zipfian=x",
                           "zipfian=nan", "selfsimilar=0.6", "uniform=1", "sequential=2"}) {
    EXPECT_THROW(distribution(text), Error) << text;
  }
}

// p(r) = r^-factor / sum of all.
TEST(Distribution, ZipfianAgreesWithItsDefinition) {
  for (const double factor : {0.5, 0.99, 1.0, 1.5}) {
    constexpr uint64_t kRanks = 20'000;
    const Distribution zipfian{Distribution::Kind::kZipfian, factor};
    std::vector<double> weights;
    for (uint64_t rank = 1; rank <= kRanks; ++rank) weights.push_back(std::pow(rank, -factor));
    const ChiSquare chi = compare(draw_ranks(zipfian, kRanks, 2'000'000), weights);
    EXPECT_GT(chi.degrees, 200) << factor;
    EXPECT_LT(chi.statistic, chi.limit()) << factor << ", " << chi.degrees << " degrees";
  }
}

// The first h of all ranks get 1 - h of the draws; so do the first h of these, and so on. At the
// borders h^k of ranks that are a power of 1/h, that says everything; between them the definition
// is F(x) = x^(log(1-h) / log h).
TEST(Distribution, SelfSimilarAgreesWithItsDefinition) {
  for (const double h : {0.1, 0.2, 0.4}) {
    constexpr uint64_t kRanks = 20'000;
    const Distribution similar{Distribution::Kind::kSelfSimilar, h};
    const double exponent = std::log(1 - h) / std::log(h);
    std::vector<double> weights;
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      weights.push_back(std::pow((static_cast<double>(rank) + 1) / kRanks, exponent) -
                        std::pow(static_cast<double>(rank) / kRanks, exponent));
    }
    const std::vector<uint64_t> counts = draw_ranks(similar, kRanks, 2'000'000);
    const ChiSquare chi = compare(counts, weights);
    EXPECT_GT(chi.degrees, 200) << h;
    EXPECT_LT(chi.statistic, chi.limit()) << h << ", " << chi.degrees << " degrees";

    double first = 0;
    for (uint64_t rank = 0; rank < static_cast<uint64_t>(h * kRanks); ++rank) {
      first += static_cast<double>(counts[rank]);
    }
    EXPECT_NEAR(first / 2e6, 1 - h, 0.002) << h;
  }
}

// A test that cannot fail tests nothing: a slightly different factor is noticed.
TEST(Distribution, TheTestTellsFactorsApart) {
  constexpr uint64_t kRanks = 20'000;
  std::vector<double> weights;
  for (uint64_t rank = 1; rank <= kRanks; ++rank) weights.push_back(std::pow(rank, -0.99));
  const ChiSquare chi =
      compare(draw_ranks(distribution("zipfian=0.98"), kRanks, 2'000'000), weights);
  EXPECT_GT(chi.statistic, chi.limit());
}

TEST(Distribution, DrawsFromFewAndFromVeryManyRanks) {
  EXPECT_EQ(RankSampler(distribution("zipfian"), 1).draw(77), 0U);
  const std::vector<uint64_t> two = draw_ranks(distribution("zipfian=1"), 2, 300'000);
  EXPECT_NEAR(static_cast<double>(two[0]), 200'000, 1500);
  // More ranks than could be tabled: half the draws of a self-similar distribution are of the first
  // 2^(log h / log(1-h)) part.
  constexpr uint64_t kRanks = uint64_t{1} << 45;
  const RankSampler sampler(distribution("selfsimilar=0.3"), kRanks);
  const double median = std::pow(0.5, std::log(0.3) / std::log(0.7)) * static_cast<double>(kRanks);
  int below = 0;
  for (uint64_t place = 0; place < 100'000; ++place) {
    const uint64_t rank = sampler.draw(mix_word(place));
    ASSERT_LT(rank, kRanks);
    below += static_cast<double>(rank) < median ? 1 : 0;
  }
  EXPECT_NEAR(below, 50'000, 800);
}

Workload workload(const char* mix, const char* of = "uniform", const char* scan = "100") {
  return {.name = mix,
          .mix = Mix::parse(mix),
          .distribution = distribution(of),
          .scan_length = ScanLength::parse(scan)};
}

TEST(OperationPlan, SkewedDrawsAreOfTheSameFrequencyAsTheirRanksButScattered) {
  constexpr uint64_t kRecords = 1000;
  constexpr uint64_t kDraws = 400'000;
  const OperationPlan plan(workload("lookup", "zipfian"), kRecords, kDraws, 4,
                           KeyOrder::kSequential);
  std::map<uint64_t, uint64_t> counts;
  for (uint64_t place = 0; place < kDraws; ++place) ++counts[plan.at(place).record];
  std::vector<std::pair<uint64_t, uint64_t>> by_count;
  for (const auto& [record, count] : counts) by_count.emplace_back(count, record);
  std::sort(by_count.rbegin(), by_count.rend());
  double sum = 0;
  for (uint64_t rank = 1; rank <= kRecords; ++rank) sum += std::pow(rank, -0.99);
  EXPECT_NEAR(static_cast<double>(by_count[0].first), kDraws / sum, 0.03 * kDraws / sum);
  // The ten most frequent ones are not neighbours.
  int neighbours = 0;
  for (size_t i = 1; i < 10; ++i) {
    const auto distance = static_cast<int64_t>(by_count[i].second - by_count[i - 1].second);
    neighbours += std::abs(distance) <= 2 ? 1 : 0;
  }
  EXPECT_LE(neighbours, 1);
}

TEST(OperationPlan, SequentialGoesRound) {
  const OperationPlan plan(workload("lookup", "sequential"), 10, 25, 1, KeyOrder::kMixed);
  for (uint64_t place = 0; place < 25; ++place) EXPECT_EQ(plan.at(place).record, place % 10);
}

TEST(OperationPlan, SkewedAndSequentialStreamsNeverAddressWhatTheyRemove) {
  for (const char* of : {"zipfian", "selfsimilar", "sequential"}) {
    const OperationPlan plan(workload("lookup=.5,remove=.3,scan=.1,rmw=.1", of), 5000, 10'000, 3,
                             KeyOrder::kMixed);
    std::set<uint64_t> removed;
    std::set<uint64_t> addressed;
    for (uint64_t place = 0; place < plan.operations(); ++place) {
      const Operation operation = plan.at(place);
      auto& set = operation.type == OperationType::kRemove ? removed : addressed;
      const bool fresh = set.insert(operation.record).second;
      EXPECT_TRUE(fresh || operation.type != OperationType::kRemove);
    }
    EXPECT_EQ(removed.size(), plan.count_of(OperationType::kRemove));
    for (const uint64_t record : addressed) EXPECT_EQ(removed.count(record), 0U) << of;
  }
}

TEST(OperationPlan, LatestAddressesWhatIsThereAndMostlyWhatIsNew) {
  constexpr uint64_t kRecords = 10'000;
  const OperationPlan plan(workload("lookup=.9,insert=.1", "latest"), kRecords, 200'000, 3,
                           KeyOrder::kMixed);
  EXPECT_TRUE(plan.has_dependences());
  std::vector<uint64_t> inserted_at(kRecords, 0);
  double among_the_newest = 0;
  double lookups = 0;
  for (uint64_t place = 0; place < plan.operations(); ++place) {
    const Operation operation = plan.at(place);
    if (operation.type == OperationType::kInsert) {
      ASSERT_EQ(operation.record, inserted_at.size());
      inserted_at.push_back(place);
      continue;
    }
    ASSERT_LT(operation.record, inserted_at.size());
    if (operation.record >= kRecords) {
      ASSERT_LT(inserted_at[operation.record], plan.dependence(place));
    }
    ++lookups;
    among_the_newest += operation.record + 1000 >= inserted_at.size() ? 1 : 0;
  }
  EXPECT_GT(among_the_newest / lookups, 0.4);
  EXPECT_THROW(OperationPlan(workload("lookup,remove", "latest"), 10, 4, 1, KeyOrder::kMixed),
               Error);
}

TEST(OperationPlan, LengthsOfScansAreUniformBetweenTheirBounds) {
  constexpr uint64_t kScans = 100'000;
  const OperationPlan plan(workload("scan", "uniform", "1-100"), 1000, kScans, 1, KeyOrder::kMixed);
  std::vector<uint64_t> counts(100);
  for (uint64_t place = 0; place < kScans; ++place) {
    const uint32_t length = plan.at(place).length;
    ASSERT_TRUE(length >= 1 && length <= 100);
    ++counts[length - 1];
  }
  const ChiSquare chi = compare(counts, std::vector<double>(100, 1));
  EXPECT_EQ(chi.degrees, 99);
  EXPECT_LT(chi.statistic, chi.limit());
  const OperationPlan fixed(workload("scan", "uniform", "7"), 1000, 10, 1, KeyOrder::kMixed);
  EXPECT_EQ(fixed.at(3).length, 7U);
  for (const char* text : {"0", "", "5-3", "1-", "-5", "x"}) {
    EXPECT_THROW(ScanLength::parse(text), Error) << text;
  }
}

TEST(OperationPlan, PibenchKeysAreMultiplesOfTheGoldenRatio) {
  const OperationPlan plan(workload("lookup"), 10, 10, 1, KeyOrder::kPibench);
  EXPECT_EQ(plan.key_of(0), 11400714819323198393ULL);
  EXPECT_EQ(plan.key_of(2), 3 * 11400714819323198393ULL);
  EXPECT_EQ(parse_key_order("pibench"), KeyOrder::kPibench);
}

TEST(OperationPlan, DenseKeysAreTheFirstNumbersInAnotherOrder) {
  const OperationPlan plan(workload("lookup"), 10, 10, 1, KeyOrder::kDense);
  std::vector<uint64_t> keys;
  for (uint64_t record = 0; record < 4096; ++record) keys.push_back(plan.key_of(record));
  EXPECT_FALSE(std::is_sorted(keys.begin(), keys.end()));
  std::sort(keys.begin(), keys.end());
  for (uint64_t number = 0; number < keys.size(); ++number) ASSERT_EQ(keys[number], number);
  // Of a number of records that is no power of two, more than half of the range are there.
  for (uint64_t record = 4096; record < 5000; ++record) {
    ASSERT_TRUE(plan.key_of(record) >= 4096 && plan.key_of(record) < 8192);
  }
  EXPECT_EQ(parse_key_order("dense"), KeyOrder::kDense);
}

TEST(OperationPlan, ClusteredKeysAreRunsAtRandomPlaces) {
  const OperationPlan plan(workload("lookup"), 10, 10, 1, KeyOrder::kClustered);
  constexpr uint64_t kClusters = 64;
  std::map<uint64_t, std::set<uint64_t>> clusters;
  for (uint64_t record = 0; record < kClusters * OperationPlan::kClusterKeys; ++record) {
    const uint64_t key = plan.key_of(record);
    clusters[key / OperationPlan::kClusterKeys].insert(key);
  }
  ASSERT_EQ(clusters.size(), kClusters);
  std::vector<uint64_t> top_bits(16);
  for (const auto& [cluster, keys] : clusters) {
    EXPECT_EQ(keys.size(), OperationPlan::kClusterKeys);
    ++top_bits[*keys.begin() >> 60];
  }
  EXPECT_GT(std::count_if(top_bits.begin(), top_bits.end(), [](uint64_t n) { return n > 0; }), 12);
}

uint64_t hash_of(const OperationPlan& plan) {
  uint64_t sum = 0;
  for (uint64_t place = 0; place < plan.operations(); ++place) {
    sum += OperationPlan::fingerprint(place, plan.at(place));
  }
  return plan.stream_hash(sum);
}

TEST(OperationPlan, TheHashTellsEveryDifferenceOfStreams) {
  const auto plan = [](const char* mix, const char* of, uint64_t records, uint64_t operations,
                       uint64_t seed, KeyOrder order, const char* scan = "100") {
    return hash_of(OperationPlan(workload(mix, of, scan), records, operations, seed, order));
  };
  constexpr KeyOrder kMixed = KeyOrder::kMixed;
  const uint64_t one = plan("lookup,update,scan", "zipfian", 1000, 2000, 1, kMixed);
  EXPECT_EQ(one, plan("lookup,update,scan", "zipfian", 1000, 2000, 1, kMixed));
  const std::set<uint64_t> others = {
      one,
      plan("lookup,update,scan", "zipfian", 1000, 2000, 2, kMixed),
      plan("lookup,update,scan", "zipfian=0.9", 1000, 2000, 1, kMixed),
      plan("lookup,upsert,scan", "zipfian", 1000, 2000, 1, kMixed),
      plan("lookup,update,scan", "zipfian", 1001, 2000, 1, kMixed),
      plan("lookup,update,scan", "zipfian", 1000, 2001, 1, kMixed),
      plan("lookup,update,scan", "zipfian", 1000, 2000, 1, KeyOrder::kPibench),
      plan("lookup,update,scan", "zipfian", 1000, 2000, 1, kMixed, "99")};
  EXPECT_EQ(others.size(), 8U);
}

// The stream is part of what results can be compared by: a change of it must be meant.
TEST(OperationPlan, StreamsStayAsTheyAre) {
  const OperationPlan plan(
      workload("insert=.1,lookup=.4,update=.2,remove=.1,scan=.1,rmw=.1", "zipfian", "1-100"),
      100'000, 50'000, 1, KeyOrder::kMixed);
  EXPECT_EQ(hash_of(plan), 7705458331475315991U);
}

}  // namespace
}  // namespace perdure::lab
