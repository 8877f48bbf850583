// A latency histogram of fixed size and bounded error, after the idea of HdrHistogram.
//
// Values below 128 have a bucket each. Above, every power of two is cut into 64 equal buckets, so a
// value is known to within 1/64 (1.6 %) of itself, and reported as the middle of its bucket, which
// halves that. Recording costs a shift, an add and an increment; nothing is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace perdure::lab {

class Histogram {
 public:
  void record(uint64_t value) {
    ++counts_[bucket_of(value)];
    ++total_;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }

  void merge(const Histogram& other);

  uint64_t count() const { return total_; }
  // The smallest and largest value recorded, exactly. 0 when there are none.
  uint64_t min() const { return total_ == 0 ? 0 : min_; }
  uint64_t max() const { return max_; }

  // The smallest value that at least this share (0..1) of the values do not exceed, to within half
  // a bucket. 0 when there are none.
  double quantile(double share) const;

 private:
  static constexpr unsigned kBits = 6;
  static constexpr uint64_t kSub = uint64_t{1} << kBits;
  static constexpr size_t kBuckets = (64 - kBits + 1) * kSub;

  static size_t bucket_of(uint64_t value) {
    if (value < 2 * kSub) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kBits - 1;
    return shift * kSub + (value >> shift);
  }
  static double middle_of(size_t bucket);

  std::array<uint64_t, kBuckets> counts_{};
  uint64_t total_ = 0;
  uint64_t min_ = ~uint64_t{0};
  uint64_t max_ = 0;
};

}  // namespace perdure::lab
