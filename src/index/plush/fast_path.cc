// The common lookup of words, in as few instructions as it takes.
//
// A lookup waits for memory twice: for the fingerprints and for the bucket that they name. What
// hides these waits is the next lookups, which the processor begins meanwhile. It begins as many as
// there is room for the instructions that wait, so this path has few of them, no loop, and the
// widest vectors there are. It knows the common case only: no record of the row looks like the key,
// the copies of both entries are there, and in the first that has a fingerprint of the key, the
// newest record with it is the key's. In all other cases it says kRetry, and lookup.cc answers.
#include <immintrin.h>

#include <bit>

#include "index/plush/lookup.h"

namespace perdure::index::plush {

namespace {

struct Baseline {
  // Bit i: word i has the fingerprint of `hash`; by accident the line's state may look like one,
  // too.
  static uint32_t match_line(const DirectoryCache::Line& line, uint64_t hash) {
    return match_fingerprints(line.words, DirectoryCache::fingerprint(hash));
  }
  static uint32_t match_tags(const uint64_t* tags, uint64_t tag) {
    return plush::match_tags(tags, tag);
  }
};

struct Avx512 {
  // Arguments and results as above.
  [[gnu::target("avx512f,avx512bw")]] static inline uint32_t match_line(
      const DirectoryCache::Line& line, uint64_t hash) {
    const __m512i bits = _mm512_set1_epi16(static_cast<int16_t>(kFingerprintBits));
    const __m512i wanted = _mm512_and_si512(_mm512_set1_epi16(static_cast<int16_t>(hash)), bits);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512(&line), bits), wanted);
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

// Of the entry of the first level or the second.
inline bool Lookup::has_children_of(const FastPath::Top& top, uint32_t below, uint64_t hash) const {
  return levels_.has_children(static_cast<uint32_t>(&top - fast_path_.tops_at) + below,
                              hash >> top.shifts[below]);
}

// Out of line, as registers are scarce where the key is there.
[[gnu::noinline]] Found Lookup::absent_below(const FastPath::Top& top, uint32_t below,
                                             uint64_t hash, uint64_t version) const {
  if (has_children_of(top, below, hash)) return Found::kRetry;
  const Row& state = top.rows[hash >> top.shifts[0]];
  return still(state.version, version) ? Found::kAbsent : Found::kRetry;
}

template <typename Isa>
[[gnu::always_inline]] inline Found Lookup::find_fast_by(uint64_t hash, uint64_t& value) const {
  const FastPath::Top& top = fast_path_.top(hash);
  const uint64_t index = hash >> top.shifts[0];
  const DirectoryCache::Copy* copy = &top.copies[1][hash >> top.shifts[1]];
  const DirectoryCache::Line* line = &DirectoryCache::line(*copy, hash);
  pm::prefetch(line);
  // Loads, for processors drop some prefetches from pages that they have no translation of.
  (void)pm::load_relaxed(copy->count);
  (void)pm::load_relaxed(copy->units[kEntryBuckets - 1]);
  const Row& state = top.rows[index];
  const uint64_t version = pm::acquire(state.version);
  const uint32_t marked = match_bytes(state.marks, static_cast<uint8_t>(hash)) &
                          ((1U << state.count.load(std::memory_order_acquire)) - 1);
  const DirectoryCache::Copy& near = top.copies[0][index];
  const DirectoryCache::Line& near_line = DirectoryCache::line(near, hash);
  if (marked != 0 || (version & 1) != 0 || !DirectoryCache::answers(near_line)) [[unlikely]]
    return Found::kRetry;
  uint32_t matches = Isa::match_line(near_line, hash);
  if (matches != 0) [[unlikely]] {
    copy = &near;
    line = &near_line;
  } else {
    if (!DirectoryCache::answers(*line)) [[unlikely]]
      return absent_below(top, 0, hash, version);
    matches = Isa::match_line(*line, hash);
    if (matches == 0) [[unlikely]]
      return absent_below(top, 1, hash, version);
  }
  // What the first word that matches leads to: the newest record that looks like the key.
  const uint64_t place =
      DirectoryCache::place_at(*line, static_cast<uint64_t>(std::countr_zero(matches)));
  if (place == 0) [[unlikely]]  // an empty word looks like it
    return Found::kRetry;
  // A writer that empties the entry makes this garbage, but garbage inside the pool.
  const auto& bucket = *reinterpret_cast<const Bucket*>(
      fast_path_.base + uint64_t{DirectoryCache::unit_of(*copy, place)} * kUnitBytes);
  // The value's line at the same time as the tags.
  (void)pm::load_relaxed(bucket.values[0]);
  (void)pm::load_relaxed(bucket.values[kSlots / 2]);
  const uint64_t tag = hash << 1;
  const uint64_t match = Isa::match_tags(bucket.tags, tag);
  const uint64_t slot = 63 ^ static_cast<uint64_t>(std::countl_zero(match | 1));
  // No match looks like one of slot 0, which has another tag then.
  if (slot + place * kSlots - kSlots >= pm::load_acquire(copy->count) ||
      pm::load_acquire(bucket.tags[slot]) != tag) [[unlikely]]
    return Found::kRetry;
  value = pm::load_acquire(bucket.values[slot]);
  return still(state.version, version) ? Found::kHit : Found::kRetry;
}

template <typename Isa>
[[gnu::always_inline]] inline bool Lookup::is_surely_absent_by(uint64_t hash) const {
  const FastPath::Top& top = fast_path_.top(hash);
  const DirectoryCache::Line& near_line =
      DirectoryCache::line(top.copies[0][hash >> top.shifts[0]], hash);
  const DirectoryCache::Line& far_line =
      DirectoryCache::line(top.copies[1][hash >> top.shifts[1]], hash);
  if (!DirectoryCache::answers(near_line) || Isa::match_line(near_line, hash) != 0) return false;
  if (!DirectoryCache::answers(far_line)) return !has_children_of(top, 0, hash);
  return Isa::match_line(far_line, hash) == 0 && !has_children_of(top, 1, hash);
}

[[gnu::target("avx512f,avx512bw,bmi,bmi2,lzcnt")]] bool Lookup::is_surely_absent_avx512(
    uint64_t hash) const {
  return is_surely_absent_by<Avx512>(hash);
}

bool Lookup::is_surely_absent(uint64_t hash) const {
  if (!has_fast_path()) return false;
  return fast_path_.wide ? is_surely_absent_avx512(hash) : is_surely_absent_by<Baseline>(hash);
}

[[gnu::target("avx512f,avx512bw,bmi,bmi2,lzcnt")]] Found Lookup::find_fast_avx512(
    uint64_t hash, uint64_t& value) const {
  return find_fast_by<Avx512>(hash, value);
}

Found Lookup::find_fast(uint64_t hash, uint64_t& value) const {
  return fast_path_.wide ? find_fast_avx512(hash, value) : find_fast_by<Baseline>(hash, value);
}

template <typename Isa>
[[gnu::always_inline]] inline bool Lookup::lookup_by(uint64_t key, uint64_t& value) const {
  const uint64_t hash = hash_of(key);
  const Found found = find_fast_by<Isa>(hash, value);
  if (found == Found::kRetry) [[unlikely]]
    return lookup_fully(hash, value);
  return found == Found::kHit;
}

[[gnu::target("avx512f,avx512bw,bmi,bmi2,lzcnt")]] bool Lookup::lookup_avx512(
    uint64_t key, uint64_t& value) const {
  return lookup_by<Avx512>(key, value);
}

[[gnu::noinline]] bool Lookup::lookup_fully(uint64_t hash, uint64_t& value) const {
  Hit hit;
  if (!find({hash, {}}, hit)) return false;
  value = hit.value;
  return true;
}

bool Lookup::lookup(uint64_t key, uint64_t& value) const {
  if (fast_path_.wide) [[likely]]
    return lookup_avx512(key, value);
  if (has_fast_path()) return lookup_by<Baseline>(key, value);
  return keys_.is_inside(key) && lookup_fully(keys_.hash_of_word(key), value);
}

}  // namespace perdure::index::plush
