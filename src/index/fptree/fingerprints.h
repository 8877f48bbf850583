// All fingerprints of a leaf compared at once.
#pragma once

#include <emmintrin.h>

#include <cstdint>

#include "index/fptree/layout.h"
#include "index/hash.h"
#include "index/simd.h"
#include "pm/checksum.h"
#include "pm/memory.h"

namespace perdure::index::fptree {

inline uint8_t fingerprint_of(uint64_t key) { return static_cast<uint8_t>(hash_of(key)); }
inline uint8_t fingerprint_of(const tree::Bytes::Key& key) {
  return static_cast<uint8_t>(pm::checksum64(key.bytes.data(), key.bytes.size()));
}

// The slots, by bit, whose fingerprint is the wanted one; bits of records that do not exist may be
// set. A concurrent writer may be changing fingerprints: vector loads read each byte whole, as
// atomic loads do, and the callers validate what they found.
inline uint64_t match(const Leaf& leaf, uint32_t records, uint8_t wanted) {
  const uint8_t* fingerprints = Geometry::fingerprints(leaf);
  uint64_t mask = 0;
  if constexpr (kVectorsAllowed) {
    const __m128i all = _mm_set1_epi8(static_cast<char>(wanted));
    for (uint32_t i = 0; i < records; i += 16) {
      const __m128i some = _mm_load_si128(reinterpret_cast<const __m128i*>(fingerprints + i));
      const auto equal = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(some, all)));
      mask |= uint64_t{equal} << i;
    }
  } else {
    for (uint32_t i = 0; i < records; ++i) {
      mask |= uint64_t{pm::load_relaxed(fingerprints[i]) == wanted} << i;
    }
  }
  return mask;
}

}  // namespace perdure::index::fptree
