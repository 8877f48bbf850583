#include "pm/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace perdure::pm {

uint64_t checksum64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

Checksum128 checksum128(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

}  // namespace perdure::pm
