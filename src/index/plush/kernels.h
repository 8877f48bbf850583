// The inner loops of a lookup. What every x86-64 can do is in line; filters in PM are compared with
// what the processor offers: AVX-512, AVX2 or plain C++.
//
// A concurrent writer may be changing these words. Vector loads on x86 read each aligned 8-byte
// word whole, as atomic loads do; the callers validate what they found.
#pragma once

#include <emmintrin.h>

#include <cstdint>

#include "index/plush/layout.h"
#include "index/simd.h"
#include "pm/memory.h"

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

// Bit i is set if tags[i], of kSlots, equals `tag` but for the tombstone bit. `tags` is 16-byte
// aligned.
[[gnu::always_inline]] inline uint32_t match_tags(const uint64_t* tags, uint64_t tag) {
  uint32_t mask = 0;
  if constexpr (!kVectorsAllowed) {
    for (uint32_t i = 0; i < kSlots; ++i) {
      mask |= uint32_t{((pm::load_relaxed(tags[i]) ^ tag) >> 1) == 0} << i;
    }
    return mask;
  }
  const __m128i one = _mm_set1_epi32(1);
  const __m128i low = _mm_set1_epi32(static_cast<int32_t>(tag | 1));
  const __m128i high = _mm_set1_epi32(static_cast<int32_t>(tag >> 32));
  // Loads by name: a vector pointer that a lambda captures may not alias words any more (GCC 12).
  const auto two = [&](uint32_t i) {
    return _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(tags + size_t{2} * i)));
  };
  const auto four = [&](uint32_t i) {
    // Four tags: their low halves side by side, and their high ones.
    const __m128 first = two(2 * i);
    const __m128 second = two(2 * i + 1);
    const __m128i lows = _mm_castps_si128(_mm_shuffle_ps(first, second, 0x88));
    const __m128i highs = _mm_castps_si128(_mm_shuffle_ps(first, second, 0xdd));
    return _mm_and_si128(_mm_cmpeq_epi32(_mm_or_si128(lows, one), low),
                         _mm_cmpeq_epi32(highs, high));
  };
  return static_cast<uint32_t>(_mm_movemask_epi8(
      _mm_packs_epi16(_mm_packs_epi32(four(0), four(1)), _mm_packs_epi32(four(2), four(3)))));
}

// Bit i is set if bytes[i], of kSlots, is `wanted`. `bytes` is 16-byte aligned.
inline uint32_t match_bytes(const uint8_t* bytes, uint8_t wanted) {
  uint32_t mask = 0;
  if constexpr (!kVectorsAllowed) {
    for (uint32_t i = 0; i < kSlots; ++i) {
      mask |= uint32_t{pm::load_relaxed(bytes[i]) == wanted} << i;
    }
    return mask;
  }
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m128i equal = _mm_cmpeq_epi8(all, _mm_set1_epi8(static_cast<char>(wanted)));
  return static_cast<uint32_t>(_mm_movemask_epi8(equal));
}

// The bits of a hash that make a fingerprint of it; the five in between are free.
inline constexpr uint16_t kFingerprintBits = 0xfc1f;

// Bit i is set if words[i], of 32, has the fingerprint `wanted`. `words` is a line.
inline uint32_t match_fingerprints(const uint16_t* words, uint16_t wanted) {
  uint32_t mask = 0;
  if constexpr (!kVectorsAllowed) {
    for (uint32_t i = 0; i < 32; ++i) {
      mask |= uint32_t{((pm::load_relaxed(words[i]) ^ wanted) & kFingerprintBits) == 0} << i;
    }
    return mask;
  }
  const __m128i bits = _mm_set1_epi16(static_cast<int16_t>(kFingerprintBits));
  const __m128i value = _mm_set1_epi16(static_cast<int16_t>(wanted));
  const auto eight = [&](uint32_t i) {
    const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(words + size_t{8} * i));
    return _mm_cmpeq_epi16(_mm_and_si128(all, bits), value);
  };
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(eight(0), eight(1)))) |
         static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(eight(2), eight(3)))) << 16;
}

struct Kernels {
  const char* name;
  // Bit 3 * line + bucket is set if that bucket's filter may hold the hash, of an entry with so
  // many lines. Knows nothing of counts.
  uint32_t (*candidates)(const Entry& entry, uint32_t lines, FilterBits bits);
  // The bits that `count` records set together in the filter of their bucket, by their tags.
  FilterBits (*filter)(const uint64_t* tags, uint32_t count);
  bool wide;  // AVX-512 with bytes and words, and what processors with it have besides
};

// Picked once: the best the processor has, or what PERDURE_SIMD names (scalar, avx2, avx512).
const Kernels& kernels();

}  // namespace perdure::index::plush
