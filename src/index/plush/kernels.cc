#include "index/plush/kernels.h"

#include <immintrin.h>

#include <cstdlib>
#include <string_view>

#include "pm/memory.h"

namespace perdure::index::plush {

namespace {

// A concurrent writer may be changing these words. Vector loads on x86 read each aligned 8-byte
// word whole, as the atomic loads of the scalar code do; the callers validate what they found.

uint32_t candidates_scalar(const Entry& entry, FilterBits bits) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kEntryBuckets; ++i) {
    const uint64_t(&filter)[2] = entry.lines[i / kLineBuckets].filter[i % kLineBuckets];
    const bool low = (pm::load_relaxed(filter[0]) & bits.low) == bits.low;
    const bool high = (pm::load_relaxed(filter[1]) & bits.high) == bits.high;
    mask |= uint32_t{low && high} << i;
  }
  return mask;
}

uint32_t match_scalar(const uint64_t* tags, uint64_t tag) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kSlots; ++i) {
    mask |= uint32_t{((pm::load_relaxed(tags[i]) ^ tag) >> 1) == 0} << i;
  }
  return mask;
}

uint32_t fingerprints_scalar(const uint16_t* words, uint16_t wanted) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    mask |= uint32_t{((pm::load_relaxed(words[i]) ^ wanted) & 0xfff0) == 0} << i;
  }
  return mask;
}

[[gnu::target("avx2")]] uint32_t candidates_avx2(const Entry& entry, FilterBits bits) {
  const __m256i wanted =
      _mm256_set_epi64x(static_cast<int64_t>(bits.high), static_cast<int64_t>(bits.low),
                        static_cast<int64_t>(bits.high), static_cast<int64_t>(bits.low));
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kLines; ++i) {
    const auto* line = reinterpret_cast<const __m256i*>(&entry.lines[i]);
    uint32_t hits = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const __m256i filters = _mm256_load_si256(line + half);
      const __m256i equal = _mm256_cmpeq_epi64(_mm256_and_si256(filters, wanted), wanted);
      const auto four = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
      hits |= four << (4 * half);
    }
    const uint32_t both = hits & hits >> 1;
    mask |= ((both & 1) | (both >> 1 & 2) | (both >> 2 & 4)) << (kLineBuckets * i);
  }
  return mask;
}

[[gnu::target("avx2")]] uint32_t match_avx2(const uint64_t* tags, uint64_t tag) {
  const __m256i one = _mm256_set1_epi64x(1);
  const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(tag | 1));
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kSlots / 4; ++i) {
    const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tags) + i);
    const __m256i equal = _mm256_cmpeq_epi64(_mm256_or_si256(four, one), wanted);
    mask |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal))) << (4 * i);
  }
  return mask;
}

[[gnu::target("avx2")]] uint32_t fingerprints_avx2(const uint16_t* words, uint16_t wanted) {
  const __m256i bits = _mm256_set1_epi16(static_cast<int16_t>(0xfff0));
  const __m256i value = _mm256_set1_epi16(static_cast<int16_t>(wanted));
  const auto* halves = reinterpret_cast<const __m256i*>(words);
  const __m256i low = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_load_si256(halves), bits), value);
  const __m256i high =
      _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_load_si256(halves + 1), bits), value);
  // Packing works within halves of 128 bits; the middle quarters change places.
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
  return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
}

[[gnu::target("avx512f,avx512dq")]] uint32_t candidates_avx512(const Entry& entry,
                                                               FilterBits bits) {
  const auto low = static_cast<int64_t>(bits.low);
  const auto high = static_cast<int64_t>(bits.high);
  const __m512i wanted = _mm512_set_epi64(-1, -1, high, low, high, low, high, low);
  uint32_t mask = 0;
  for (uint32_t i = 0; i < kLines; ++i) {
    const __m512i line = _mm512_load_si512(&entry.lines[i]);
    const uint32_t hits = _mm512_cmpeq_epi64_mask(_mm512_and_si512(line, wanted), wanted);
    const uint32_t both = hits & hits >> 1;
    mask |= ((both & 1) | (both >> 1 & 2) | (both >> 2 & 4)) << (kLineBuckets * i);
  }
  return mask;
}

[[gnu::target("avx512f,avx512dq")]] uint32_t match_avx512(const uint64_t* tags, uint64_t tag) {
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i wanted = _mm512_set1_epi64(static_cast<int64_t>(tag | 1));
  const __m512i low = _mm512_or_si512(_mm512_loadu_si512(tags), one);
  const __m512i high = _mm512_or_si512(_mm512_loadu_si512(tags + 8), one);
  return _mm512_cmpeq_epi64_mask(low, wanted) |
         static_cast<uint32_t>(_mm512_cmpeq_epi64_mask(high, wanted)) << 8;
}

constexpr Kernels kScalar{"scalar", candidates_scalar, match_scalar, fingerprints_scalar};
constexpr Kernels kAvx2{"avx2", candidates_avx2, match_avx2, fingerprints_avx2};
constexpr Kernels kAvx512{"avx512", candidates_avx512, match_avx512, fingerprints_avx2};

// The thread sanitizer must see the loads as the atomic ones they stand for.
#if defined(__SANITIZE_THREAD__)
constexpr bool kVectorsAllowed = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kVectorsAllowed = false;
#else
constexpr bool kVectorsAllowed = true;
#endif
#else
constexpr bool kVectorsAllowed = true;
#endif

const Kernels& pick() {
  const char* text = std::getenv("PERDURE_SIMD");
  const std::string_view wish = text != nullptr ? text : "";
  if (!kVectorsAllowed || wish == "scalar") return kScalar;
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  if (avx512 && wish != "avx2") return kAvx512;
  return avx2 ? kAvx2 : kScalar;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& picked = pick();
  return picked;
}

}  // namespace perdure::index::plush
