// Phases of a benchmark on an ordered index in DRAM: what they carry out, count and time.

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <string_view>

#include "lab/bench/phase.h"
#include "lab/bench/record_bytes.h"
#include "lab/bench/ycsb.h"
#include "perdure/error.h"
#include "support/ordered_map_index.h"

namespace perdure::lab {
namespace {

using test_support::OrderedMapIndex;

constexpr uint64_t kRecords = 5000;
const std::atomic<bool> kNeverStop{false};

void load(AnyIndex& index, uint64_t seed = 1) {
  const OperationPlan plan(Mix::parse("insert"), 0, kRecords, seed, KeyOrder::kMixed);
  EXPECT_EQ(run_phase(index, plan, {}, {}, kNeverStop).failed, 0U);
}

Workload workload_of(const char* mix, const char* distribution = "uniform") {
  return {.name = mix, .mix = Mix::parse(mix), .distribution = Distribution::parse(distribution)};
}

PhaseResult run(const Workload& of, uint64_t operations, const PhaseOptions& options) {
  OrderedMapIndex index;
  load(index);
  const OperationPlan plan(of, kRecords, operations, 1, KeyOrder::kMixed);
  return run_phase(index, plan, options, {}, kNeverStop);
}

const TypeResult& of_type(const PhaseResult& result, OperationType type) {
  return result.by_type[static_cast<size_t>(type)];
}

TEST(BenchPhase, UrlKeysDifferAndHaveAllLengthsAndManyHosts) {
  RecordBytes records({.value_bytes = 8, .url_keys = true});
  RecordBytes again({.value_bytes = 8, .url_keys = true});
  std::set<std::string> keys;
  std::set<std::string> hosts;
  std::set<size_t> lengths;
  for (uint64_t word = 0; word < 20'000; ++word) {
    const std::string key(records.key(word));
    EXPECT_EQ(again.key(word), key);
    const size_t begin = std::string_view("https://").size();
    const size_t end = key.find('/', begin);
    ASSERT_NE(end, std::string::npos);
    keys.insert(key);
    hosts.insert(key.substr(begin, end - begin));
    lengths.insert(key.size());
  }
  EXPECT_EQ(keys.size(), 20'000U);
  EXPECT_EQ(lengths.size(), kUrlBytesMax - kUrlBytesMin + 1);
  EXPECT_EQ(*lengths.begin(), kUrlBytesMin);
  EXPECT_GT(hosts.size(), kUrlHosts / 2);
  EXPECT_LE(hosts.size(), kUrlHosts);
}

TEST(BenchPhase, EveryOperationSucceedsWithAnyNumberOfThreads) {
  for (const char* distribution : {"uniform", "zipfian", "selfsimilar", "sequential", "latest"}) {
    const char* mix = std::string_view(distribution) == "latest"
                          ? "insert=.2,lookup=.4,update=.1,scan=.1,scan-back=.1,rmw=.1"
                          : "insert=.2,lookup=.2,update=.1,remove=.2,scan=.1,scan-back=.1,rmw=.1";
    std::set<uint64_t> hashes;
    for (const unsigned threads : {1, 2, 3, 7}) {
      for (const uint64_t warmup : {0, 1234}) {
        const PhaseResult result =
            run(workload_of(mix, distribution), 12'345, {.threads = threads, .warmup = warmup});
        EXPECT_EQ(result.failed, 0U) << distribution << " x" << threads;
        EXPECT_EQ(result.operations, 12'345 - warmup);
        EXPECT_TRUE(result.complete);
        hashes.insert(result.stream_hash);
      }
    }
    // The same operations each time, which the plan also says.
    const OperationPlan plan(workload_of(mix, distribution), kRecords, 12'345, 1, KeyOrder::kMixed);
    uint64_t sum = 0;
    for (uint64_t place = 0; place < plan.operations(); ++place) {
      sum += OperationPlan::fingerprint(place, plan.at(place));
    }
    EXPECT_EQ(hashes, std::set<uint64_t>{plan.stream_hash(sum)}) << distribution;
  }
}

TEST(BenchPhase, CountsAndTimesEachTypeApart) {
  const PhaseResult result = run(workload_of("lookup=.7,scan=.2,update=.1"), 10'000,
                                 {.threads = 2, .latency_sampling = 1});
  EXPECT_EQ(of_type(result, OperationType::kLookup).operations, 7000U);
  EXPECT_EQ(of_type(result, OperationType::kScan).operations, 2000U);
  EXPECT_EQ(of_type(result, OperationType::kUpdate).operations, 1000U);
  EXPECT_EQ(of_type(result, OperationType::kLookup).latency_ticks.count(), 7000U);
  EXPECT_EQ(of_type(result, OperationType::kInsert).latency_ticks.count(), 0U);
  EXPECT_EQ(result.latency_ticks().count(), 10'000U);
  EXPECT_GT(result.scanned, 2000U * 90);
  EXPECT_LE(result.scanned, 2000U * 100);
}

TEST(BenchPhase, SamplesTheShareItIsAskedFor) {
  const auto samples = [](double share) {
    return run(workload_of("lookup"), 100'000, {.latency_sampling = share}).latency_ticks().count();
  };
  EXPECT_NEAR(static_cast<double>(samples(0.1)), 10'000, 600);
  EXPECT_EQ(samples(0), 0U);
}

TEST(BenchPhase, BatchesDoTheSameInFewerCalls) {
  for (const char* distribution : {"uniform", "latest"}) {
    const Workload mixed = workload_of("lookup=.6,insert=.2,upsert=.1,update=.1", distribution);
    const PhaseResult singly = run(mixed, 10'000, {.latency_sampling = 1});
    for (const unsigned threads : {1, 3}) {
      const PhaseResult result =
          run(mixed, 10'000, {.threads = threads, .latency_sampling = 1, .batch = 16});
      EXPECT_EQ(result.failed, 0U);
      EXPECT_EQ(result.operations, 10'000U);
      EXPECT_EQ(result.stream_hash, singly.stream_hash);
      EXPECT_EQ(of_type(result, OperationType::kLookup).operations, 6000U);
      const uint64_t calls = of_type(result, OperationType::kLookup).latency_ticks.count();
      EXPECT_GE(calls, 6000U / 16);
      EXPECT_LE(calls, 6000U / 4);
      EXPECT_EQ(of_type(result, OperationType::kUpdate).latency_ticks.count(), 1000U);
    }
  }
}

TEST(BenchPhase, WarmUpIsCarriedOutButNotCounted) {
  OrderedMapIndex index;
  load(index);
  const OperationPlan plan(Mix::parse("insert"), kRecords, 3000, 1, KeyOrder::kMixed);
  const PhaseResult result =
      run_phase(index, plan, {.latency_sampling = 1, .warmup = 1000}, {}, kNeverStop);
  EXPECT_EQ(result.operations, 2000U);
  EXPECT_EQ(result.latency_ticks().count(), 2000U);
  uint64_t there = 0;
  index.for_each([&](Datum, Datum) { ++there; });
  EXPECT_EQ(there, kRecords + 3000);
}

TEST(BenchPhase, TheTimeLimitEndsItAndWindowsCoverIt) {
  const PhaseResult result = run(workload_of("lookup", "zipfian"), uint64_t{1} << 40,
                                 {.threads = 2, .time_limit_s = 0.2, .window_s = 0.02});
  EXPECT_FALSE(result.complete);
  EXPECT_GT(result.operations, 0U);
  EXPECT_GE(result.seconds, 0.2);
  EXPECT_GE(result.window_mops.size(), 2U);
  EXPECT_LE(static_cast<double>(result.window_mops.size()), result.seconds / 0.02 + 1);
  EXPECT_EQ(result.failed, 0U);
}

TEST(BenchPhase, StopEndsItAlsoWhereThreadsWaitForEachOther) {
  OrderedMapIndex index;
  load(index);
  std::atomic<bool> stop{false};
  const OperationPlan plan(workload_of("lookup=.5,insert=.5", "latest"), kRecords, 1'000'000'000, 1,
                           KeyOrder::kMixed);
  const auto stop_soon = [&](const Progress& progress) {
    if (progress.items > 10'000) stop = true;
  };
  const PhaseResult result = run_phase(index, plan, {.threads = 3}, stop_soon, stop);
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.failed, 0U);
}

// An index that throws in the middle of a phase whose threads depend on each other.
class FullIndex final : public AnyIndex {
 public:
  Kind key_kind() const override { return Kind::kU64; }
  Kind value_kind() const override { return Kind::kU64; }
  bool insert(Datum, Datum) override {
    if (++inserts_ > 20'000) throw Error(ErrorCode::kPoolFull, "full");
    return true;
  }
  bool update(Datum, Datum) override { return true; }
  void upsert(Datum, Datum) override {}
  bool remove(Datum) override { return true; }
  bool lookup(Datum, Value&) const override { return true; }
  void for_each(const std::function<void(Datum, Datum)>&) const override {}
  uint64_t check(const std::function<void(const std::string&)>&) const override { return 0; }
  std::vector<Statistic> statistics() const override { return {}; }

 private:
  std::atomic<int> inserts_{0};
};

TEST(BenchPhase, AnErrorOfOneThreadEndsAll) {
  FullIndex index;
  for (const uint64_t warmup : {0, 50'000}) {
    const OperationPlan plan(workload_of("lookup=.5,insert=.5", "latest"), kRecords, 1'000'000, 1,
                             KeyOrder::kMixed);
    EXPECT_THROW(run_phase(index, plan, {.threads = 3, .warmup = warmup}, {}, kNeverStop), Error);
  }
}

TEST(BenchPhase, WrongAnswersAreCounted) {
  OrderedMapIndex empty;
  const OperationPlan plan(workload_of("lookup=.5,scan=.5"), kRecords, 1000, 1, KeyOrder::kMixed);
  EXPECT_EQ(run_phase(empty, plan, {}, {}, kNeverStop).failed, 1000U);
}

// An index that says yes to each update, and keeps the value that there was.
class ForgetfulIndex final : public OrderedMapIndex {
 public:
  bool update(Datum key, Datum) override {
    Value ignored;
    return lookup(key, ignored);
  }
};

TEST(BenchPhase, UpdatesThatAreDroppedAreCounted) {
  ForgetfulIndex index;
  load(index);
  const OperationPlan plan(workload_of("lookup=.5,update=.5"), kRecords, 1000, 1, KeyOrder::kMixed);
  EXPECT_EQ(run_phase(index, plan, {}, {}, kNeverStop).failed, 500U);
  EXPECT_EQ(run_phase(index, plan, {.compare = false}, {}, kNeverStop).failed, 0U);
}

// An index that has every key, and gives the value of another.
class MistakenIndex final : public OrderedMapIndex {
 public:
  bool lookup(Datum key, Value& out) const override {
    if (!OrderedMapIndex::lookup(key, out)) return false;
    if (mistaken) out.set(out.word() + 2);
    return true;
  }
  bool mistaken = false;
};

TEST(BenchPhase, ValuesOfOthersAreCounted) {
  for (const uint64_t batch : {1, 16}) {
    MistakenIndex index;
    load(index);
    index.mistaken = true;
    const OperationPlan plan(workload_of("lookup"), kRecords, 1000, 1, KeyOrder::kMixed);
    EXPECT_EQ(run_phase(index, plan, {.batch = batch}, {}, kNeverStop).failed, 1000U);
  }
}

TEST(Ycsb, LettersAreTheCoreWorkloads) {
  EXPECT_EQ(ycsb_workload("a")->mix.name(), "lookup=0.5,update=0.5");
  EXPECT_EQ(ycsb_workload("YCSB-B")->mix.name(), "lookup=0.95,update=0.05");
  EXPECT_EQ(ycsb_workload("C")->mix.name(), "lookup");
  EXPECT_EQ(ycsb_workload("d")->distribution.name(), "latest=0.99");
  EXPECT_EQ(ycsb_workload("e")->mix.name(), "scan=0.95,insert=0.05");
  EXPECT_EQ(ycsb_workload("e")->scan_length.most, 100U);
  EXPECT_EQ(ycsb_workload("f")->mix.name(), "lookup=0.5,rmw=0.5");
  EXPECT_EQ(ycsb_workload("f")->distribution.name(), "zipfian=0.99");
  EXPECT_FALSE(ycsb_workload("g"));
  for (const char* letter : {"a", "b", "c", "d", "e", "f"}) {
    const PhaseResult result = run(*ycsb_workload(letter), 5000, {.threads = 2});
    EXPECT_EQ(result.failed, 0U) << letter;
  }
}

TEST(Ycsb, FilesOfPropertiesAreRead) {
  const YcsbFile file = parse_ycsb(
      "# a comment\n"
      "recordcount = 2000\n"
      "operationcount:3000\n"
      "workload=site.ycsb.workloads.CoreWorkload\n"
      "readallfields=true\n"
      "readproportion=0.5\nupdateproportion=0\nscanproportion=0.3\ninsertproportion=0\n"
      "readmodifywriteproportion=0.2\n"
      "requestdistribution=zipfian\nmaxscanlength=50\nscanlengthdistribution=uniform\n"
      "fieldcount=4\nfieldlength=25\nthreadcount=3\ninsertorder=ordered\nmaxexecutiontime=9\n",
      "some/workloadx");
  EXPECT_EQ(file.workload.name, "workloadx");
  EXPECT_EQ(file.workload.mix.name(), "lookup=0.5,scan=0.3,rmw=0.2");
  EXPECT_EQ(file.workload.distribution.name(), "zipfian=0.99");
  EXPECT_EQ(file.workload.scan_length.least, 1U);
  EXPECT_EQ(file.workload.scan_length.most, 50U);
  EXPECT_EQ(file.records, 2000U);
  EXPECT_EQ(file.operations, 3000U);
  EXPECT_EQ(file.value_bytes, 100U);
  EXPECT_EQ(file.threads, 3U);
  EXPECT_EQ(file.time_limit_s, 9.0);
  EXPECT_TRUE(file.sequential_keys);
  ASSERT_EQ(file.unknown.size(), 1U);
  EXPECT_NE(file.unknown[0].find("some/workloadx:5: the property readallfields=true"),
            std::string::npos);
}

TEST(Ycsb, WhatMakesNoSenseIsRefusedByName) {
  for (const char* text :
       {"readproportion=lots", "readproportion=-1", "requestdistribution=hotspot", "recordcount=x",
        "no property", "readproportion=0\nupdateproportion=0", "insertorder=random",
        "scanlengthdistribution=zipfian"}) {
    EXPECT_THROW(parse_ycsb(text, "file"), Error) << text;
  }
  EXPECT_THROW(read_ycsb_file("/nonexistent/workload"), Error);
}

}  // namespace
}  // namespace perdure::lab
