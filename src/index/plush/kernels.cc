#include "index/plush/kernels.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "pm/memory.h"

namespace perdure::index::plush {

namespace {

uint32_t candidates_scalar(const Entry& entry, uint32_t lines, FilterBits bits) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < lines * kLineBuckets; ++i) {
    const uint64_t(&filter)[2] = entry.lines[i / kLineBuckets].filter[i % kLineBuckets];
    const bool low = (pm::load_relaxed(filter[0]) & bits.low) == bits.low;
    const bool high = (pm::load_relaxed(filter[1]) & bits.high) == bits.high;
    mask |= uint32_t{low && high} << i;
  }
  return mask;
}

[[gnu::target("avx2")]] uint32_t candidates_avx2(const Entry& entry, uint32_t lines,
                                                 FilterBits bits) {
  const __m256i wanted =
      _mm256_set_epi64x(static_cast<int64_t>(bits.high), static_cast<int64_t>(bits.low),
                        static_cast<int64_t>(bits.high), static_cast<int64_t>(bits.low));
  uint32_t mask = 0;
  for (uint32_t i = 0; i < lines; ++i) {
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

[[gnu::target("avx512f,avx512dq")]] uint32_t candidates_avx512(const Entry& entry, uint32_t lines,
                                                               FilterBits bits) {
  const auto low = static_cast<int64_t>(bits.low);
  const auto high = static_cast<int64_t>(bits.high);
  const __m512i wanted = _mm512_set_epi64(-1, -1, high, low, high, low, high, low);
  uint32_t mask = 0;
  for (uint32_t i = 0; i < lines; ++i) {
    const __m512i line = _mm512_load_si512(&entry.lines[i]);
    const uint32_t hits = _mm512_cmpeq_epi64_mask(_mm512_and_si512(line, wanted), wanted);
    const uint32_t both = hits & hits >> 1;
    mask |= ((both & 1) | (both >> 1 & 2) | (both >> 2 & 4)) << (kLineBuckets * i);
  }
  return mask;
}

FilterBits filter_scalar(const uint64_t* tags, uint32_t count) {
  FilterBits sum{0, 0};
  for (uint32_t i = 0; i < count; ++i) {
    const FilterBits bits = filter_bits(tags[i] >> 1);
    sum.low |= bits.low;
    sum.high |= bits.high;
  }
  return sum;
}

[[gnu::target("avx512f,avx512dq")]] FilterBits filter_avx512(const uint64_t* tags, uint32_t count) {
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i six = _mm512_set1_epi64(63);
  __m512i low = _mm512_setzero_si512();
  __m512i high = _mm512_setzero_si512();
  for (uint32_t at = 0; at < count; at += 8) {
    const auto valid = static_cast<__mmask8>((1U << std::min(count - at, 8U)) - 1);
    // Six bits of the hash after the other name a bit each; a tag is the hash moved up by one.
    __m512i rest = _mm512_maskz_srli_epi64(valid, _mm512_maskz_loadu_epi64(valid, tags + at), 1);
    for (__m512i* half : {&low, &high}) {
      for (int bit = 0; bit < 2; ++bit) {
        const __m512i number = _mm512_and_si512(rest, six);
        *half = _mm512_or_si512(*half, _mm512_maskz_sllv_epi64(valid, one, number));
        rest = _mm512_maskz_srli_epi64(valid, rest, 6);
      }
    }
  }
  alignas(64) uint64_t words[2][8];
  _mm512_store_si512(words[0], low);
  _mm512_store_si512(words[1], high);
  FilterBits sum{0, 0};
  for (int i = 0; i < 8; ++i) sum = {sum.low | words[0][i], sum.high | words[1][i]};
  return sum;
}

constexpr Kernels kScalar{"scalar", candidates_scalar, filter_scalar, false};
constexpr Kernels kAvx2{"avx2", candidates_avx2, filter_scalar, false};
constexpr Kernels kAvx512{"avx512", candidates_avx512, filter_avx512, true};

const Kernels& pick() {
  const char* text = std::getenv("PERDURE_SIMD");
  const std::string_view wish = text != nullptr ? text : "";
  if (!kVectorsAllowed || wish == "scalar") return kScalar;
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("bmi2");
  if (avx512 && wish != "avx2") return kAvx512;
  return avx2 ? kAvx2 : kScalar;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& picked = pick();
  return picked;
}

}  // namespace perdure::index::plush
