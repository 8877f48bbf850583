// What the server counts: for INFO, memcached's stats and Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace perdure::server {

// Latencies by powers of two of nanoseconds, from 128 ns to 17 s, each cut into four.
class Histogram {
 public:
  static constexpr uint32_t kBuckets = 28 * 4;

  void add(uint64_t ns) {
    ++counts_[bucket_of(ns)];
    ++count_;
    sum_ns_ += ns;
  }
  uint64_t count() const { return count_; }
  uint64_t sum_ns() const { return sum_ns_; }
  uint64_t in_bucket(uint32_t bucket) const { return counts_[bucket]; }
  // The upper end of a bucket.
  static uint64_t end_ns(uint32_t bucket) {
    return (uint64_t{4 + bucket % 4 + 1} << (bucket / 4 + 7)) / 4;
  }
  // Below which that part (0 to 1) of all lies; 0 if there are none.
  uint64_t percentile_ns(double part) const {
    uint64_t left = static_cast<uint64_t>(part * static_cast<double>(count_));
    for (uint32_t i = 0; i < kBuckets; ++i) {
      if (counts_[i] > left) return end_ns(i);
      left -= counts_[i];
    }
    return count_ == 0 ? 0 : end_ns(kBuckets - 1);
  }

 private:
  static uint32_t bucket_of(uint64_t ns) {
    if (ns < 128) return 0;
    const auto power = static_cast<uint32_t>(std::bit_width(ns)) - 1;  // 7 and more
    const auto quarter = static_cast<uint32_t>(ns >> (power - 2) & 3);
    const uint32_t bucket = (power - 7) * 4 + quarter;
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t count_ = 0;
  uint64_t sum_ns_ = 0;
};

struct CommandMetrics {
  Histogram latency;
  uint64_t failed = 0;
  uint64_t rejected = 0;
};

// Counted under the execution lock, but for the atomic ones.
struct Metrics {
  uint64_t commands = 0;
  uint64_t memcached_commands = 0;
  uint64_t keyspace_hits = 0;
  uint64_t keyspace_misses = 0;
  uint64_t turns = 0;        // of loops, with something to execute
  uint64_t write_turns = 0;  // that ended with a fence, for all of their writes
  uint64_t fence_failures = 0;
  uint64_t messages_published = 0;
  std::atomic<uint64_t> connections{0};  // now
  std::atomic<uint64_t> connections_accepted{0};
  std::atomic<uint64_t> connections_refused{0};
  std::atomic<uint64_t> connections_timed_out{0};
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
};

}  // namespace perdure::server
