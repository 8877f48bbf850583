// The common lookup of words, in as few instructions as it takes.
//
// A lookup waits for memory twice: for the fingerprints and for the bucket that they name. What hides
// these waits is the next lookups, which the processor begins meanwhile. It begins as many as there is
// room for the instructions that wait, so this path has few of them, no loop, and the widest vectors
// there are. It knows the common case only: no record of the row looks like the key, the copies of both
// entries are there, and in the first that has a fingerprint of the key, one matches. In all other cases
// it says kRetry, and search.cc answers.
#include <immintrin.h>

#include <bit>

#include "index/plush/core.h"

namespace perdure::index::plush {

namespace {

struct Baseline {
  static uint32_t match_line(const uint16_t* words, uint16_t wanted) {
    return match_fingerprints(words, wanted);
  }
  static uint32_t match_tags(const uint64_t* tags, uint64_t tag) {
    return plush::match_tags(tags, tag);
  }
};

struct Avx512 {
  // Arguments and results as of match_fingerprints() and match_tags().
  [[gnu::target("avx512f,avx512bw")]] static inline uint32_t match_line(const uint16_t* words,
                                                                        uint16_t wanted) {
    const __m512i all = _mm512_load_si512(words);
    const __m512i bits = _mm512_set1_epi16(static_cast<int16_t>(0xffe0));
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(all, bits),
                                   _mm512_set1_epi16(static_cast<int16_t>(wanted)));
  }
  [[gnu::target("avx512f,avx512bw")]] static inline uint32_t match_tags(const uint64_t* tags,
                                                                        uint64_t tag) {
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i wanted = _mm512_set1_epi64(static_cast<int64_t>(tag | 1));
    const __m512i low = _mm512_or_si512(_mm512_load_si512(tags), one);
    const __m512i high = _mm512_or_si512(_mm512_load_si512(tags + 8), one);
    return _mm512_kunpackb(_mm512_cmpeq_epi64_mask(high, wanted),
                           _mm512_cmpeq_epi64_mask(low, wanted));
  }
};

}  // namespace

// What the slots `hits` of a line of fingerprints lead to, of which there is at least one.
template <typename Isa>
[[gnu::always_inline]] inline Core::Found Core::quick_record(const Mirror::Copy& copy,
                                                             const Mirror::Line& line,
                                                             uint32_t hits, uint64_t hash,
                                                             uint64_t& value) const {
  const uint64_t place = Mirror::place_at(line, static_cast<uint64_t>(std::countr_zero(hits)));
  // A writer that empties the entry makes this garbage, but garbage inside the pool.
  const auto& bucket = *reinterpret_cast<const Bucket*>(
      quick_.base + uint64_t{Mirror::unit_of(copy, place)} * kUnitBytes);
  // The value's line at the same time as the tags.
  (void)pm::load_relaxed(bucket.values[0]);
  (void)pm::load_relaxed(bucket.values[kSlots / 2]);
  const uint32_t match = Isa::match_tags(bucket.tags, hash << 1);
  const auto slot = static_cast<uint64_t>(std::countr_zero(match));
  if ((hits & (hits - 1)) != 0 || match == 0 || (match & (match - 1)) != 0 ||
      slot + place * kSlots >= pm::load_acquire(copy.count) + kSlots) [[unlikely]]
    return Found::kRetry;
  const uint64_t tag = pm::load_acquire(bucket.tags[slot]);
  value = pm::load_acquire(bucket.values[slot]);
  return (tag & 1) == 0 ? Found::kHit : Found::kAbsent;
}

template <typename Isa>
[[gnu::always_inline]] inline Core::Found Core::find_quick_by(uint64_t hash,
                                                              uint64_t& value) const {
  const uint64_t row = hash >> quick_.shifts[0];
  const uint64_t far_index = hash >> quick_.shifts[1];
  const Mirror::Copy& near = quick_.copies[0][row];
  const Mirror::Copy& far = quick_.copies[1][far_index];
  const Mirror::Line& near_line = Mirror::line(near, hash);
  const Mirror::Line& far_line = Mirror::line(far, hash);
  pm::prefetch(&far_line);
  // Loads, for processors drop some prefetches from pages that they have no translation of.
  (void)pm::load_relaxed(far.count);
  (void)pm::load_relaxed(far.units[kEntryBuckets - 1]);
  const Partition& partition = quick_.partitions[hash >> 1 >> quick_.partition_shift];
  const uint64_t version = partition.version.load(std::memory_order_acquire);
  const Row& state = quick_.rows[row];
  const uint32_t count = state.count.load(std::memory_order_acquire);
  const uint32_t marked =
      match_bytes(state.marks, static_cast<uint8_t>(hash)) & ((1U << count) - 1);
  const auto checked = [&](Found found) {
    std::atomic_thread_fence(std::memory_order_acquire);
    return partition.version.load(std::memory_order_relaxed) == version ? found : Found::kRetry;
  };
  const uint16_t wanted = Mirror::fingerprint(hash);
  // A line is asked whether it is complete before it is read. Word 0 is no fingerprint.
  if (marked != 0 || (version & 1) != 0 || !Mirror::answers(near_line)) [[unlikely]]
    return Found::kRetry;
  const uint32_t near_hits = Isa::match_line(&near_line.state, wanted) >> 1;
  if (near_hits != 0) [[unlikely]]
    return checked(quick_record<Isa>(near, near_line, near_hits, hash, value));
  if (!Mirror::answers(far_line)) [[unlikely]]
    return has_children(1, row) ? Found::kRetry : checked(Found::kAbsent);
  const uint32_t far_hits = Isa::match_line(&far_line.state, wanted) >> 1;
  if (far_hits == 0) return has_children(2, far_index) ? Found::kRetry : checked(Found::kAbsent);
  return checked(quick_record<Isa>(far, far_line, far_hits, hash, value));
}

template <typename Isa>
[[gnu::always_inline]] inline bool Core::is_surely_absent_by(uint64_t hash) const {
  const uint64_t row = hash >> quick_.shifts[0];
  const uint64_t far_index = hash >> quick_.shifts[1];
  const Mirror::Line& near_line = Mirror::line(quick_.copies[0][row], hash);
  const Mirror::Line& far_line = Mirror::line(quick_.copies[1][far_index], hash);
  const uint16_t wanted = Mirror::fingerprint(hash);
  if (!Mirror::answers(near_line) || Isa::match_line(&near_line.state, wanted) >> 1 != 0)
    return false;
  if (!Mirror::answers(far_line)) return !has_children(1, row);
  return Isa::match_line(&far_line.state, wanted) >> 1 == 0 && !has_children(2, far_index);
}

[[gnu::target("avx512f,avx512bw,bmi,bmi2,lzcnt")]] bool Core::is_surely_absent_avx512(
    uint64_t hash) const {
  return is_surely_absent_by<Avx512>(hash);
}

bool Core::is_surely_absent(uint64_t hash) const {
  return quick_.wide ? is_surely_absent_avx512(hash) : is_surely_absent_by<Baseline>(hash);
}

[[gnu::target("avx512f,avx512bw,bmi,bmi2,lzcnt")]] Core::Found Core::find_quick_avx512(
    uint64_t hash, uint64_t& value) const {
  return find_quick_by<Avx512>(hash, value);
}

Core::Found Core::find_quick(uint64_t hash, uint64_t& value) const {
  return quick_.wide ? find_quick_avx512(hash, value) : find_quick_by<Baseline>(hash, value);
}

template <typename Isa>
[[gnu::always_inline]] inline bool Core::lookup_by(uint64_t key, uint64_t& value) const {
  const Found found = find_quick_by<Isa>(hash_of(key), value);
  if (found == Found::kRetry) [[unlikely]]
    return lookup_fully(key, value);
  return found == Found::kHit;
}

[[gnu::target("avx512f,avx512bw,bmi,bmi2,lzcnt")]] bool Core::lookup_avx512(uint64_t key,
                                                                            uint64_t& value) const {
  return lookup_by<Avx512>(key, value);
}

[[gnu::noinline]] bool Core::lookup_fully(uint64_t key, uint64_t& value) const {
  Hit hit;
  if (!is_inside(key) || !find({hash_of_word(key), {}}, hit)) return false;
  value = hit.value;
  return true;
}

bool Core::lookup(uint64_t key, uint64_t& value) const {
  if (quick_.wide) [[likely]]
    return lookup_avx512(key, value);
  return has_quick() ? lookup_by<Baseline>(key, value) : lookup_fully(key, value);
}

}  // namespace perdure::index::plush
