// The inner loops of a lookup, for what the processor offers: AVX-512, AVX2 or plain C++.
#pragma once

#include <cstdint>

#include "index/plush/layout.h"

namespace perdure::index::plush {

// The bits that a hash sets in the 128-bit filter of a bucket: two in each half.
struct FilterBits {
  uint64_t low;
  uint64_t high;
};
inline FilterBits filter_bits(uint64_t hash) {
  return {uint64_t{1} << (hash & 63) | uint64_t{1} << (hash >> 6 & 63),
          uint64_t{1} << (hash >> 12 & 63) | uint64_t{1} << (hash >> 18 & 63)};
}

struct Kernels {
  const char* name;
  // Bit 3 * line + bucket is set if that bucket's filter may hold the hash. Knows nothing of counts.
  uint32_t (*candidates)(const Entry& entry, FilterBits bits);
  // Bit i is set if tags[i] equals `tag` but for the tombstone bit.
  uint32_t (*match)(const uint64_t* tags, uint64_t tag);
  // Bit i is set if words[i], of 32, equals `wanted` but for its low four bits.
  uint32_t (*fingerprints)(const uint16_t* words, uint16_t wanted);
};

// Picked once: the best the processor has, or what PERDURE_SIMD names (scalar, avx2, avx512).
const Kernels& kernels();

}  // namespace perdure::index::plush
