// Copies in DRAM of the directory entries of the first levels, so that a lookup reads one line of
// DRAM for each level instead of four of PM, and is misled far more seldom.
//
// A copy has the entry's bucket pointers and its count, and 16 lines of fingerprints. A key's
// fingerprint, with the number of its bucket, is in the line that its hash names: one line tells in
// which buckets the key may be. The 11-bit fingerprints of a full entry, 24 in a line, mislead in
// 1.2 % of the lookups; the 128-bit filter of a bucket in PM in 2.4 %, for each of 24 buckets.
//
// Nothing is copied when a table is opened: each entry is copied when it is first needed, under its
// partition's lock. A line into which too many fingerprints fall says so, and the filters in PM
// answer for it. Memory is reserved for all entries but used only by those that are there.
//
// Writers hold the partition's lock. Readers hold none; what they find is valid if the partition's
// version did not change meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <optional>

#include "index/plush/arena.h"
#include "index/plush/kernels.h"
#include "index/plush/layout.h"
#include "pm/memory.h"

namespace perdure::index::plush {

class DirectoryCache {
 public:
  static constexpr uint32_t kFilterLevelsMax = 3;  // of one partition
  static constexpr uint32_t kLines = 16;
  static constexpr uint32_t kUnknown = ~uint32_t{0};

  // Words of 16 bits: the low ones of a hash, but for five of them, which name the bucket: 1 is the
  // first. Filled from the last to the first, before that 0. The last of all is the line's state.
  struct alignas(64) Line {
    uint16_t words[32];
  };
  struct Copy {
    uint32_t count;                 // of records
    uint32_t units[kEntryBuckets];  // right behind it: unit_of()
    uint32_t was_known;             // at some time
    uint8_t filled[kLines];         // words of each line; one more if there were too many
    uint32_t superseded;            // records that seem to have a newer version in the entry
    uint32_t room;                  // of first levels: records to migrate it at; 0: when it is full
    Line lines[kLines];
  };
  static_assert(sizeof(Copy) == 1152);

  // For the first `levels` levels in PM, with `rows` entries in the first.
  DirectoryCache(uint32_t levels, uint64_t rows, uint32_t fanout);
  DirectoryCache(const DirectoryCache&) = delete;
  DirectoryCache& operator=(const DirectoryCache&) = delete;

  Copy& at(uint32_t level, uint64_t index) const { return copies_[begins_[level] + index]; }
  // DRAM that copies were made in so far.
  uint64_t bytes() const { return known_.load(std::memory_order_relaxed) * sizeof(Copy); }

  // What tells whether the key may be there; and what tells where.
  static void prefetch(const Copy& copy, uint64_t hash) { pm::prefetch(&line(copy, hash)); }
  static void prefetch_buckets(const Copy& copy) {
    pm::prefetch(&copy);
    pm::prefetch(&copy.units[kEntryBuckets - 1]);
  }
  // All of the copy, to be changed.
  static void prefetch(const Copy& copy) {
    pm::prefetch_to_change(&copy);
    pm::prefetch_to_change(&copy.units[kEntryBuckets - 1]);
    for (const Line& line : copy.lines) pm::prefetch_to_change(&line);
  }
  static bool is_known(const Copy& copy, uint64_t hash) {
    return pm::load_acquire(state_of(line(copy, hash))) != kUnknownState;
  }
  // The line of a hash; whether it can, to be asked before it is read; and the fingerprint
  // to look for in its words. The first word that has it is the newest.
  static const Line& line(const Copy& copy, uint64_t hash) { return copy.lines[line_of(hash)]; }
  static bool answers(const Line& line) { return pm::load_acquire(state_of(line)) == kKnown; }
  static uint16_t fingerprint(uint64_t hash) {
    return static_cast<uint16_t>(hash & kFingerprintBits);
  }
  // One more than the bucket that a word names; 0 if it names none (any more).
  static uint64_t place_at(const Line& line, uint64_t at) {
    return uint64_t{pm::load_relaxed(line.words[at])} >> kPlaceShift & 31;
  }
  // The unit of a place; the count of place 0, which is inside the pool as well.
  static uint32_t unit_of(const Copy& copy, uint64_t place) {
    return pm::load_acquire(*(&copy.count + place));
  }
  // Bit b: bucket b may hold the key. kUnknown: ask the entry in PM.
  static uint32_t candidates(const Copy& copy, uint64_t hash);

  // ---- under the partition's lock

  // Back to what it is at first: unknown, without records. Readers must be kept out.
  static void clear(Copy& copy);
  // A bucket of the entry, before records in it are counted.
  static void set_bucket(Copy& copy, uint32_t bucket, uint32_t unit) {
    pm::store_relaxed(copy.units[bucket], unit);
  }
  // A record of the bucket, before it is counted.
  static void add(Copy& copy, uint64_t hash, uint32_t bucket);
  // The same; and counts as superseded what has the same fingerprint.
  static void add_version(Copy& copy, uint64_t hash, uint32_t bucket) {
    if (match_fingerprints(line(copy, hash).words, fingerprint(hash)) != 0) ++copy.superseded;
    add(copy, hash, bucket);
  }
  static void set_count(Copy& copy, uint32_t count) { pm::store_release(copy.count, count); }
  // The copy is complete: from now on it answers.
  void make_known(Copy& copy);
  static bool is_known(const Copy& copy) { return state_of(copy.lines[0]) != kUnknownState; }

 private:
  // Of lines. None of them looks like a word that names a bucket.
  static constexpr uint16_t kUnknownState = 0;
  static constexpr uint16_t kKnown = 1;
  static constexpr uint16_t kOverflown = 2;  // known as well, but not to answer
  static constexpr uint8_t kLineWords = 31;
  static constexpr uint32_t kPlaceShift = 5;

  static const uint16_t& state_of(const Line& line) { return line.words[kLineWords]; }
  static uint16_t& state_of(Line& line) { return line.words[kLineWords]; }

  // Entries are told apart by the highest bits of a hash, lines and fingerprints by the lowest.
  static uint64_t line_of(uint64_t hash) { return hash >> 6 & (kLines - 1); }

  uint64_t begins_[kLevelsMax + 1] = {};
  Copy* copies_ = nullptr;
  std::optional<Arena> arena_;
  std::atomic<uint64_t> known_ = 0;
};

inline uint32_t DirectoryCache::candidates(const Copy& copy, uint64_t hash) {
  const Line& line = DirectoryCache::line(copy, hash);
  if (!answers(line)) return kUnknown;
  uint32_t mask = 0;
  for (uint32_t hits = match_fingerprints(line.words, fingerprint(hash)); hits != 0;
       hits &= hits - 1) {
    const uint64_t place = place_at(line, static_cast<uint64_t>(__builtin_ctz(hits)));
    mask |= 1U << place >> 1;
  }
  return mask;
}

inline void DirectoryCache::add(Copy& copy, uint64_t hash, uint32_t bucket) {
  Line& line = copy.lines[line_of(hash)];
  uint8_t& filled = copy.filled[line_of(hash)];
  if (filled >= kLineWords) [[unlikely]] {
    filled = kLineWords + 1;
    if (state_of(line) == kKnown) pm::store_relaxed(state_of(line), kOverflown);
    return;
  }
  ++filled;
  pm::store_relaxed(line.words[kLineWords - filled],
                    static_cast<uint16_t>(fingerprint(hash) | (bucket + 1) << kPlaceShift));
}

}  // namespace perdure::index::plush
