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

}  // namespace perdure::index::plush
