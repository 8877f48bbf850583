#include "index/plush/geometry.h"

#include <algorithm>

namespace perdure::index::plush {

Geometry::Geometry(const Root& root, uint32_t top_max)
    : directory_bits_(root.directory_bits),
      fanout_bits_(root.fanout_bits),
      partition_bits_(root.partition_bits),
      top_max_(top_max),
      deepest_(std::min(kLevelsMax, 1 + (kDeepestBits - root.directory_bits) / root.fanout_bits)),
      index_shifts_{},
      tops_(std::make_unique<std::atomic<uint8_t>[]>(partitions())) {
  for (uint32_t level = 1; level <= deepest_; ++level) {
    index_shifts_[level] = static_cast<uint8_t>(64 - level_bits(level));
  }
  for (uint32_t i = 0; i < partitions(); ++i) tops_[i].store(1, std::memory_order_relaxed);
}

void Geometry::set_top(uint32_t partition, uint32_t top) {
  const std::lock_guard lock(setting_top_);
  common_top_.store(0, std::memory_order_release);
  tops_[partition].store(static_cast<uint8_t>(top), std::memory_order_release);
  const auto same = [&](const std::atomic<uint8_t>& other) { return other == top; };
  if (std::all_of(tops_.get(), tops_.get() + partitions(), same))
    common_top_.store(static_cast<uint8_t>(top), std::memory_order_release);
}

}  // namespace perdure::index::plush
