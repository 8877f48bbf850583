// Lookups: from the newest place a key can be in to the oldest.
//
// The row first, then the levels from the partition's first one down; the first record of the key
// is the newest, and counts. Copies of directory lines (levels.h) say which buckets may have the
// key.
//
// Promises
//   - find() takes no lock: it reads the row's version before and after, and begins again if it
//     changed (rows.h). After a bounded number of attempts it takes the partition's lock.
//   - With the partition's lock, which functions with `reader` null and those that say so need, the
//     result is exact.
//   - The fast path answers as find() would, or kRetry; it is there only for words by hash with two
//     levels of copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "index/plush/geometry.h"
#include "index/plush/kernels.h"
#include "index/plush/keys.h"
#include "index/plush/levels.h"
#include "index/plush/partition.h"
#include "index/plush/payload.h"
#include "index/plush/rows.h"

namespace perdure::index::plush {

// Records and keys that are worked on together, at most.
inline constexpr size_t kGroupRecords = 16;

// Where a record was found.
struct Hit {
  uint64_t tag = 0;
  uint64_t value = 0;
  uint32_t level = 0;
  uint64_t index = 0;  // of the entry
  uint64_t* tag_at = nullptr;
  uint64_t* value_at = nullptr;
  bool path_unknown = false;  // a copy on the way has yet to be made
  bool live() const { return (tag & 1) == 0; }
};
enum class Found : uint8_t { kAbsent, kHit, kRetry };

// Where a lookup must look in one level.
struct Probe {
  uint64_t index;                  // of the entry
  uint32_t candidates;             // bit b: bucket b may hold the key
  uint32_t count;                  // of the entry's records
  bool damaged;                    // counts or pointers cannot be; or a writer is changing them
  Bucket* buckets[kEntryBuckets];  // of the candidates
};

// What an operation will read: the row only, what shows presence in the levels too, or also what
// leads to the records there.
enum class Reach : uint8_t { kRow, kPresence, kBuckets };
inline Reach reach_of(LogKind kind) {
  if (kind == LogKind::kUpsert) return Reach::kRow;
  return kind == LogKind::kInsert ? Reach::kPresence : Reach::kBuckets;
}

class Lookup {
 public:
  Lookup(pm::PoolImpl& pool, const std::string& name, const Geometry& geometry, const Keys& keys,
         const Rows& rows, const Levels& levels, const Payload& payload,
         const Partitions& partitions);

  // ---- without a lock
  // The value of a word key.
  bool lookup(uint64_t key, uint64_t& value) const;
  // Finds a live record; falls back to the partition's lock when writers are too fast.
  bool find(const Key& key, Hit& hit) const;
  // At most kGroupRecords at once.
  void find_group(std::span<const Key> keys, std::span<Hit> hits, std::span<bool> found) const;
  // Of a lookup, and of a write.
  void prefetch_lookup(uint64_t hash) const {
    pm::prefetch(&rows_[geometry_.row_for(hash)]);
    prefetch_levels(hash, Reach::kBuckets);
  }
  void prefetch_write(uint64_t hash, Reach reach) const {
    partitions_.of(hash).prefetch();
    pm::prefetch_to_change(&rows_[geometry_.row_for(hash)]);
    if (reach != Reach::kRow) prefetch_levels(hash, reach);
  }

  // ---- under the partition's lock
  // The newest record of the key, which may be a tombstone.
  Found search(const Key& key, Hit& hit) const;
  // The same in the row alone, and in the levels from `first` down.
  Found search_row(uint64_t row, const Key& key, Hit& hit) const {
    return search_row(row, key, nullptr, 0, hit);
  }
  Found search_levels(uint32_t first, const Key& key, Hit& hit) const;
  // Whether the levels have the key. `expected`: what is asked first, being the likely answer. The
  // row does not have the key.
  bool present_below(const Key& key, bool expected) const;
  // The levels have nothing of a word: true if that takes no more than both copies. False without a
  // fast path.
  bool is_surely_absent(uint64_t hash) const;
  // A level above has a newer record, tag for tag.
  bool is_superseded(uint32_t level, uint64_t hash) const;
  // What a search of the levels from `first` on begins with: returns how many there are. `probes`
  // has room for all. And the rest of the search.
  uint32_t probe_all(uint32_t first, const Key& key, Probe* probes) const;
  Found search_probed(uint32_t first, std::span<const Probe> probes, const Key& key,
                      Hit& hit) const {
    return search_probed(first, probes, key, nullptr, 0, hit);
  }

 private:
  // Words by hash, with copies of two levels: what the common lookup begins with.
  struct FastPath {
    bool on = false;
    bool wide = false;  // with AVX-512
    const char* base = nullptr;
    const std::atomic<uint8_t>* tops = nullptr;
    const std::atomic<uint8_t>* common_top = nullptr;
    uint32_t partition_bits = 0;
    struct alignas(32) Top {  // of a partition with this first level
      const Row* rows;
      const DirectoryCache::Copy* copies[2];
      uint8_t shifts[2];
    } tops_at[kLevelsMax + 1] = {};
    const Top& top(uint64_t hash) const {
      const uint64_t common = common_top->load(std::memory_order_acquire);
      if (common != 0) [[likely]]
        return tops_at[common];
      const uint64_t partition = hash >> 1 >> (63 - partition_bits);
      return tops_at[tops[partition].load(std::memory_order_acquire)];
    }
  };

  bool has_fast_path() const { return fast_path_.on; }
  void prefetch_levels(uint64_t hash, Reach reach) const {
    const uint32_t top = geometry_.top_for(hash);
    if (has_fast_path()) {
      const auto& far = levels_.copy_at(top + 1, geometry_.index_at(top + 1, hash));
      const auto& near = levels_.copy_at(top, geometry_.index_at(top, hash));
      DirectoryCache::prefetch(far, hash);
      DirectoryCache::prefetch(near, hash);
      if (reach == Reach::kBuckets) {
        DirectoryCache::prefetch_buckets(far);
        DirectoryCache::prefetch_buckets(near);
      }
      return levels_.prefetch_filters(top + 2, hash);
    }
    for (uint32_t level = levels_.copies_end(top); level-- > top;) {
      const auto& copy = levels_.copy_at(level, geometry_.index_at(level, hash));
      DirectoryCache::prefetch(copy, keys_.spread_bits(hash));
      if (reach == Reach::kBuckets) DirectoryCache::prefetch_buckets(copy);
    }
    levels_.prefetch_filters(levels_.copies_end(top), hash);
  }

  // ---- the steps of a search. `reader`: the row whose version was `version` when it began; null under the
  // partition's lock. kRetry: it is another one.
  Found search_row(uint64_t row, const Key& key, const Row* reader, uint64_t version,
                   Hit& hit) const {
    const uint32_t count = pm::acquire(rows_[row].count);
    const uint32_t marked =
        match_bytes(rows_[row].marks, keys_.mark_of(key.hash)) & ((1U << count) - 1);
    if (marked == 0) [[likely]]
      return Found::kAbsent;
    return search_marked(row, marked, key, reader, version, hit);
  }
  // The slots of a row whose marks are the key's.
  Found search_marked(uint64_t row, uint32_t marked, const Key& key, const Row* reader,
                      uint64_t version, Hit& hit) const;
  // `valid`: the slots that count.
  Found search_bucket(Bucket& bucket, uint32_t valid, const Key& key, const Row* reader,
                      uint64_t version, Hit& hit) const;
  // The buckets of an entry that its copy names.
  Found search_copy(uint32_t level, const DirectoryCache::Copy& copy, uint32_t candidates,
                    const Key& key, const Row* reader, uint64_t version, Hit& hit) const;
  // Returns false if the level has no entry for the key; nor have those below then.
  bool probe(uint32_t level, const Key& key, Probe& out) const;
  void note_candidates(uint32_t candidates, Probe& out, const uint32_t* units) const;
  Found search_entry(uint32_t level, const Probe& probe, const Key& key, const Row* reader,
                     uint64_t version, Hit& hit) const;
  Found search_probed(uint32_t first, std::span<const Probe> probes, const Key& key,
                      const Row* reader, uint64_t version, Hit& hit) const;
  // The row, then the levels.
  Found search_all(const Key& key, const Row* reader, uint64_t version, Hit& hit) const;
  // By the copies of the first levels; on with search_filters() where there is none, and below
  // them.
  Found search_copies(uint32_t first, uint32_t top, const Key& key, const Row* reader,
                      uint64_t version, Hit& hit) const;
  Found search_filters(uint32_t first, const Key& key, const Row* reader, uint64_t version,
                       Hit& hit) const;

  // ---- the fast path (fast_path.cc)
  template <typename Isa>
  Found find_fast_by(uint64_t hash, uint64_t& value) const;
  Found find_fast_avx512(uint64_t hash, uint64_t& value) const;
  template <typename Isa>
  bool lookup_by(uint64_t key, uint64_t& value) const;
  bool lookup_avx512(uint64_t key, uint64_t& value) const;
  bool lookup_fully(uint64_t hash, uint64_t& value) const;
  // The value of a word, if it takes no more than the common case; else kRetry, and find() knows.
  Found find_fast(uint64_t hash, uint64_t& value) const;
  bool has_children_of(const FastPath::Top& top, uint32_t below, uint64_t hash) const;
  Found absent_below(const FastPath::Top& top, uint32_t below, uint64_t hash,
                     uint64_t version) const;
  template <typename Isa>
  bool is_surely_absent_by(uint64_t hash) const;
  bool is_surely_absent_avx512(uint64_t hash) const;

  FastPath fast_path_;
  pm::PoolImpl& pool_;
  const std::string& name_;
  const Kernels& kernels_;
  const Geometry& geometry_;
  const Keys& keys_;
  const Rows& rows_;
  const Levels& levels_;
  const Payload& payload_;
  const Partitions& partitions_;
};

}  // namespace perdure::index::plush
