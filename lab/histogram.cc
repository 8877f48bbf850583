#include "lab/histogram.h"

#include <cmath>

namespace perdure::lab {

void Histogram::merge(const Histogram& other) {
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) counts_[bucket] += other.counts_[bucket];
  total_ += other.total_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double Histogram::middle_of(size_t bucket) {
  if (bucket < 2 * kSub) return static_cast<double>(bucket);
  const size_t shift = bucket / kSub - 1;
  const uint64_t low = (bucket - shift * kSub) << shift;
  return static_cast<double>(low) + static_cast<double>((uint64_t{1} << shift) - 1) / 2;
}

double Histogram::quantile(double share) const {
  if (total_ == 0) return 0;
  const double wanted = std::ceil(share * static_cast<double>(total_));
  const uint64_t rank = std::clamp<uint64_t>(static_cast<uint64_t>(wanted), 1, total_);
  uint64_t seen = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += counts_[bucket];
    if (seen < rank) continue;
    return std::clamp(middle_of(bucket), static_cast<double>(min_), static_cast<double>(max_));
  }
  return static_cast<double>(max_);
}

}  // namespace perdure::lab
