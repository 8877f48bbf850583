#include "index/tree/sort.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace perdure::index::tree {

namespace {

constexpr uint32_t kMost = 64;
constexpr uint32_t kLane = 4;

// Where each slot belongs: how many words are below its own. Returns the ranks that occur, as bits.
[[gnu::target("avx2")]] uint64_t rank(const Slot* slots, uint32_t count, uint8_t* ranks) {
  constexpr uint64_t kSign = uint64_t{1} << 63;  // so that they are in order as signed numbers
  alignas(32) std::array<int64_t, kMost> words;
  for (uint32_t i = 0; i < count; ++i) words[i] = static_cast<int64_t>(slots[i].key ^ kSign);
  for (uint32_t i = count; i % kLane != 0; ++i) words[i] = std::numeric_limits<int64_t>::max();
  uint64_t occur = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const __m256i own = _mm256_set1_epi64x(words[i]);
    __m256i below = _mm256_setzero_si256();
    for (uint32_t at = 0; at < count; at += kLane) {
      const __m256i some = _mm256_load_si256(reinterpret_cast<const __m256i*>(&words[at]));
      below = _mm256_sub_epi64(below, _mm256_cmpgt_epi64(own, some));
    }
    const __m128i half =
        _mm_add_epi64(_mm256_castsi256_si128(below), _mm256_extracti128_si256(below, 1));
    const auto sum = static_cast<uint64_t>(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
    ranks[i] = static_cast<uint8_t>(sum);
    occur |= uint64_t{1} << sum;
  }
  return occur;
}

}  // namespace

void sort_words(Slot* slots, uint32_t count) {
  static const bool has_instructions = __builtin_cpu_supports("avx2") != 0;
  std::array<uint8_t, kMost> ranks;
  if (count > 1 && has_instructions &&
      std::popcount(rank(slots, count, ranks.data())) == static_cast<int>(count)) {
    std::array<Slot, kMost> copy;
    std::copy_n(slots, count, copy.begin());
    for (uint32_t i = 0; i < count; ++i) slots[ranks[i]] = copy[i];
    return;
  }
  std::sort(slots, slots + count, [](const Slot& a, const Slot& b) { return a.key < b.key; });
}

}  // namespace perdure::index::tree
