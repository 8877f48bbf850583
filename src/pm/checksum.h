// Checksums of persistent data: xxh3.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure::pm {

uint64_t checksum64(const void* data, size_t bytes, uint64_t seed = 0);
struct Checksum128 {
  uint64_t low;
  uint64_t high;
  bool operator==(const Checksum128&) const = default;
};
// For what is taken to be the same when it has the same checksum.
Checksum128 checksum128(const void* data, size_t bytes);
inline uint32_t checksum32(const void* data, size_t bytes, uint64_t seed = 0) {
  return static_cast<uint32_t>(checksum64(data, bytes, seed));
}

}  // namespace perdure::pm
