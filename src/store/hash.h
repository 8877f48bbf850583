// The hash of keys: which partition, and where in its index.
#pragma once

#include <cstdint>
#include <string_view>

#include "pm/checksum.h"

namespace perdure::store {

// The same for all stores: what a program writes, and when, can be repeated.
inline uint64_t hash_of(std::string_view key) { return pm::checksum64(key.data(), key.size()); }

// The highest bits choose the partition, the lowest ones the place in its index.
inline uint32_t partition_of(uint64_t hash, uint32_t partitions) {
  return static_cast<uint32_t>((hash >> 32) * partitions >> 32);
}

}  // namespace perdure::store
