// The hash of 8-byte keys: a bijection, so that the hash can be stored in the key's place.
#pragma once

#include <cstdint>

namespace perdure::index {

inline constexpr uint64_t kHashMultiplier = 0x9fb21c651e98df25;

// The inverse of an odd number modulo 2^64, by Newton's iteration.
constexpr uint64_t inverse(uint64_t odd) {
  uint64_t result = odd;
  for (int i = 0; i < 6; ++i) result *= 2 - odd * result;
  return result;
}

static_assert(inverse(kHashMultiplier) * kHashMultiplier == 1);

constexpr uint64_t hash_of(uint64_t key) {
  key ^= key >> 32;
  key *= kHashMultiplier;
  key ^= key >> 29;
  key *= kHashMultiplier;
  key ^= key >> 32;
  return key;
}

// The key that has this hash.
constexpr uint64_t key_of_hash(uint64_t hash) {
  constexpr uint64_t kInverse = inverse(kHashMultiplier);
  hash ^= hash >> 32;
  hash *= kInverse;
  hash ^= hash >> 29 ^ hash >> 58;
  hash *= kInverse;
  hash ^= hash >> 32;
  return hash;
}

}  // namespace perdure::index
