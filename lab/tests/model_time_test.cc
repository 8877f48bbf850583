#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/model/time.h"

namespace perdure::lab {
namespace {

constexpr uint64_t kOperations = 1000;

Profile profile() { return builtin_profile("optane-100"); }

// Lookups that miss once each.
Counters reads() {
  Counters counters;
  counters.operations = kOperations;
  counters.loads = 10 * kOperations;
  counters.pm_read_misses = kOperations;
  counters.media_read_units = counters.media_read_random_units = 4 * kOperations;
  return counters;
}

// Inserts that write one unit, in part, each.
Counters writes() {
  Counters counters;
  counters.operations = kOperations;
  counters.stores = 10 * kOperations;
  counters.flushes = counters.fences = counters.fences_waiting = kOperations;
  counters.media_write_twelfths = counters.media_write_random_twelfths = 48 * kOperations;
  return counters;
}

TEST(ModelTime, OneThreadTakesTheSumOfItsLatencies) {
  const TimeEstimate read = estimate_time(reads(), profile(), {.cpu_ns = 50}, 1);
  EXPECT_EQ(read.cpu_ns, 50);
  EXPECT_EQ(read.read_ns, 300);
  EXPECT_EQ(read.fence_ns, 0);
  EXPECT_EQ(read.bottleneck, "read latency");
  EXPECT_NEAR(read.operation_ns, 350 + read.waiting_ns, 1e-6);
  EXPECT_NEAR(read.operations_per_s, 1e9 / read.operation_ns, 1);

  const TimeEstimate write = estimate_time(writes(), profile(), {.cpu_ns = 50}, 1);
  EXPECT_EQ(write.fence_ns, 90) << "a fence and a flushed line";
  EXPECT_EQ(write.bottleneck, "fence latency");
  EXPECT_EQ(estimate_time(writes(), profile(), {.cpu_ns = 5000}, 1).bottleneck, "cpu");
}

TEST(ModelTime, WithoutAMeasuredCpuTimeTheAccessesCount) {
  EXPECT_NEAR(estimate_time(reads(), profile(), {}, 1).cpu_ns, 10 * profile().access_ns, 1e-9);
}

TEST(ModelTime, ThroughputGrowsWithThreadsUpToTheMediasBandwidth) {
  const double limit = 5.3 / 256 * 1e9;  // units of 256 bytes a second
  double before = 0;
  for (uint64_t threads = 1; threads <= 28; ++threads) {
    const TimeEstimate at = estimate_time(writes(), profile(), {.cpu_ns = 50}, threads);
    EXPECT_GT(at.operations_per_s, before);
    EXPECT_LT(at.operations_per_s, limit);
    before = at.operations_per_s;
  }
  const TimeEstimate at = estimate_time(writes(), profile(), {.cpu_ns = 50}, 28);
  EXPECT_GT(at.operations_per_s, 0.9 * limit);
  EXPECT_EQ(at.bottleneck, "write bandwidth");
  EXPECT_GT(at.write_utilisation, 0.9);
}

TEST(ModelTime, ReadsHaveTheirOwnLimit) {
  Counters counters = reads();
  counters.media_read_units *= 10;
  counters.media_read_random_units *= 10;
  EXPECT_EQ(estimate_time(counters, profile(), {}, 28).bottleneck, "read bandwidth");
}

TEST(ModelTime, ThreadsBeyondTheCoresAddNothing) {
  const double all = estimate_time(reads(), profile(), {}, 28).operations_per_s;
  EXPECT_EQ(estimate_time(reads(), profile(), {}, 56).operations_per_s, all);
}

TEST(ModelTime, SequentialWritesAreFasterThanRandomOnes) {
  Counters sequential = writes();
  sequential.media_write_random_twelfths = 0;
  EXPECT_GT(estimate_time(sequential, profile(), {}, 28).operations_per_s,
            1.5 * estimate_time(writes(), profile(), {}, 28).operations_per_s);
}

TEST(ModelTime, MissesThatADimmsBufferServesAreShorter) {
  Counters counters = reads();
  counters.pm_misses_buffered = counters.pm_read_misses;
  EXPECT_EQ(estimate_time(counters, profile(), {}, 1).read_ns, 133);
}

TEST(ModelTime, NothingDoneTakesNoTime) {
  const TimeEstimate at = estimate_time(Counters{}, profile(), {}, 4);
  EXPECT_EQ(at.operations_per_s, 0);
  EXPECT_EQ(at.bottleneck, "");
  EXPECT_EQ(to_json(at)["threads"], 4);
}

}  // namespace
}  // namespace perdure::lab
