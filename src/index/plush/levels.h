// The levels in PM: entries, what leads to them, and the copies of their directory lines in DRAM.
//
// An entry holds up to 384 records in buckets of 16. Its lines (layout.h) say how many records
// there are, where the buckets are, and which keys they may hold. Entries of level 1 stand in one
// block; those of a deeper level in blocks of `fanout`, the children of one entry, to which a table
// of the level leads.
//
// Promises
//   - Nothing is read from an entry that its lines do not count, so a record is there from the one
//     durable store on that makes its line count it. The records of a line come before those of the
//     next: a line is durable before the next one of the same entry is written (reveal()).
//   - In the order of an entry's records, later ones are newer. Records of a level are newer than
//     those below it.
//   - A change that takes records away is made inside a SequenceWrite of the row above, after what
//     replaces them is durable.
//   - Every bucket that a line of an entry leads to is allocated, and nothing else leads to it;
//     which of the buckets are allocated is judged by these links after a crash.
//   - A copy in DRAM that is known says what its entry says. It is made under the partition's lock,
//     and changed with the entry.
// Whoever changes an entry holds its partition's lock. Lookups hold none: what they may call says
// so.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "index/plush/directory_cache.h"
#include "index/plush/geometry.h"
#include "index/plush/kernels.h"
#include "index/plush/keys.h"
#include "index/plush/layout.h"
#include "index/plush/rows.h"
#include "perdure/error.h"
#include "pm/pool_impl.h"

namespace perdure::index::plush {

// An entry, and how many of its lines there are. Null if it does not exist.
struct Place {
  Entry* entry;
  uint32_t lines;
  uint32_t records() const { return lines * kLineRecords; }  // that it has room for
  uint32_t buckets() const { return lines * kLineBuckets; }
  uint32_t bytes() const { return lines * static_cast<uint32_t>(sizeof(DirectoryLine)); }
  std::span<DirectoryLine> all() const { return {entry->lines, lines}; }
};

// Records to append to one entry.
struct Append {
  uint32_t level;
  uint64_t index;
  Entry* entry;
  uint32_t room;  // records that the entry has room for
  const uint64_t* tags;
  const uint64_t* values;
  uint32_t count;
  uint32_t start;                 // records in the entry before
  bool counts_epoch;              // first level: the append makes the row's log records void
  uint32_t epoch;                 // first level: of the row, before
  uint32_t fresh;                 // bit b: bucket b is newly allocated, and the entry has none
  uint32_t units[kEntryBuckets];  // of the buckets that the records go to
};

class Levels {
 public:
  Levels(pm::PoolImpl& pool, Root& root, const std::string& name, const Geometry& geometry,
         const Keys& keys, const Rows& rows, uint32_t filter_levels);

  // ---- places; without the partition's lock, what is found counts if the row's version says so
  bool has_entry(uint32_t level, uint64_t index) const {
    return level == 1 || block_of(level, index) != 0;
  }
  bool has_children(uint32_t level, uint64_t index) const {
    return level < geometry_.deepest() && has_entry(level + 1, index << geometry_.fanout_bits());
  }
  Place place_at(uint32_t level, uint64_t index) const {
    if (level == 1) return {level1_ + index, kLines};
    const uint32_t unit = block_of(level, index);
    if (unit == 0) return {nullptr, kLines};
    const uint64_t block = uint64_t{unit} * kUnitBytes;
    uint32_t lines = kLines;
    if (level == geometry_.top_above(level, index) + 1) {
      lines = lines_of_block(*pool_.follow<Entry>(block, block_bytes(1)));
    }
    auto* first = pool_.follow<DirectoryLine>(block, block_bytes(lines));
    return {reinterpret_cast<Entry*>(first + (index & (geometry_.fanout() - 1)) * lines), lines};
  }
  Entry* entry_at(uint32_t level, uint64_t index) const { return place_at(level, index).entry; }
  Bucket* bucket_at(uint32_t unit) const {
    return reinterpret_cast<Bucket*>(pool_.base() + uint64_t{unit} * kUnitBytes);
  }
  // A bucket of an entry, by the pointer in PM. Throws kCorrupt if that leads out of the pool.
  Bucket& bucket_of(const Entry& entry, uint32_t b) const {
    const uint32_t unit = pm::load_relaxed(entry.lines[b / kLineBuckets].bucket[b % kLineBuckets]);
    return *pool_.follow<Bucket>(uint64_t{unit} * kUnitBytes);
  }
  // Throws kCorrupt unless all buckets of the entry are allocated: before they are freed.
  void require_own_buckets(uint32_t level, uint64_t index, const Place& place) const;
  [[noreturn]] void throw_damaged(uint32_t level, uint64_t index) const;
  // Throws kPoolFull: the records would need a level below the last that there may be.
  [[noreturn]] void throw_too_deep() const;

  // ---- counts
  // kUnsound: the counts of its lines cannot be; or a writer is changing them.
  static constexpr uint32_t kUnsound = ~uint32_t{0};
  static uint32_t used(const Place& place);
  // Under the partition's lock. Throws kCorrupt.
  uint32_t used(uint32_t level, uint64_t index, const Place& place) const {
    const uint32_t count = used(place);
    if (count == kUnsound) [[unlikely]]
      throw_damaged(level, index);
    return count;
  }
  // The same under the partition's lock; of the copy, if there is one: one line instead of eight.
  uint32_t records_in(uint32_t level, uint64_t index) const;
  static uint32_t line_count(const Entry& entry, uint32_t line) {
    const LineState first{pm::load_acquire(entry.lines[0].state)};
    if (line == 0) return first.count();
    const LineState state{pm::load_acquire(entry.lines[line].state)};
    return state.generation() == first.generation() ? state.count() : 0;
  }
  // Records that an entry is migrated at.
  uint32_t room_in(uint32_t level, uint64_t index) const {
    const DirectoryCache::Copy* copy = cached_copy(level, index);
    if (copy != nullptr && copy->room != 0) return copy->room;
    return place_at(level, index).records();
  }
  // Of an entry with a copy; 0: when it is full.
  void set_room(uint32_t level, uint64_t index, uint32_t room) const {
    directory_cache_.at(level, index).room = room;
  }
  // Records of an entry that seem to have a newer version in it, or were removed in place.
  uint32_t superseded_in(uint32_t level, uint64_t index) const;
  void set_superseded(uint32_t level, uint64_t index, uint32_t count) const;
  // A record of an entry below the first level became a tombstone where it is. Returns how many
  // did.
  uint32_t count_removed(uint32_t level, uint64_t index) const;
  // Whether a level below may hold a record of this hash; by the filters.
  bool may_be_below(uint32_t level, uint64_t hash) const;
  // Reads a row's epoch from its entry, if that was not done yet.
  void load_epoch(uint64_t row) const {
    if (rows_[row].known) [[likely]]
      return;
    read_epoch(row);
  }

  // ---- appending to an entry: plan() each, then stage(), fence, reveal(), cache_append() each. The
  // caller finishes the transaction.

  // Finds the buckets for the records, and allocates those that are missing. Throws kPoolFull,
  // kNoSpace.
  void plan(Append& append, pm::Heap::TxnIfNeeded& txn) const;
  // Buckets and intents: flushed, to be fenced before reveal().
  void stage(std::span<const Append> appends, pm::Heap::Txn* txn) const;
  void stage_and_fence(std::span<const Append> appends, pm::Heap::Txn* txn) const;
  // Durable on return, with what the transaction settles.
  void reveal(std::span<const Append> appends, pm::Heap::Txn* txn) const;
  // Returns how many of the records seem to supersede others of the entry, so far as that is
  // counted.
  uint32_t cache_append(const Append& append) const;

  // ---- emptying and rewriting an entry
  // Replaces the records of an entry by these, the newest first. Durable on return. Throws
  // kPoolFull, kNoSpace with the entry as it was.
  void rewrite(uint32_t level, uint64_t index, std::span<const uint64_t> newest_tags,
               std::span<const uint64_t> newest_values) const;
  // Empties an entry whose records are all durable below.
  void release_source(uint32_t level, uint64_t index) const;
  // Empties an entry: its first line gets this state, which counts no records. Its buckets but the
  // first `keep` go back to the heap.
  void clear_entry(uint32_t level, uint64_t index, LineState state, uint32_t keep) const;

  // ---- the shape of the deeper levels
  // `lines`: of each of them, if they are to be made.
  void ensure_children(uint32_t level, uint64_t index, uint32_t lines);
  // Gives children so many lines, if they have fewer.
  void widen_children(uint32_t level, uint64_t index, uint32_t lines) const;
  void clear_block(uint64_t offset, uint64_t bytes) const;
  // Buckets of the first levels, as the table's options want them.
  void preallocate();
  // Throws kPoolFull if the pool has no room for those. `other_bytes`: what else the table begins
  // with.
  static void require_room(pm::PoolImpl& pool, const Root& root, uint64_t other_bytes);

  // ---- the copies of entries in DRAM
  // The level below the last that has copies.
  uint32_t copies_end(uint32_t top) const { return std::min(top + filter_levels_, kLevelsMax + 1); }
  bool has_copy(uint32_t level, uint64_t index) const {
    return level - geometry_.top_above(level, index) <
           filter_levels_;  // none above the first level
  }
  const DirectoryCache::Copy& copy_at(uint32_t level, uint64_t index) const {
    return directory_cache_.at(level, index);
  }
  // The copy, if it has been made.
  const DirectoryCache::Copy* cached_copy(uint32_t level, uint64_t index) const {
    if (!has_copy(level, index)) return nullptr;
    const DirectoryCache::Copy& copy = directory_cache_.at(level, index);
    return DirectoryCache::is_known(copy) ? &copy : nullptr;
  }
  bool is_path_known(uint64_t hash) const;
  void populate_path(uint64_t hash) const;
  uint64_t copies_bytes() const { return directory_cache_.bytes(); }
  uint32_t filter_levels() const { return filter_levels_; }

  // ---- prefetches
  static void prefetch_entry(const Place& place);
  // Of the levels that have no copies: from `level` down.
  void prefetch_filters(uint32_t level, uint64_t hash) const {
    for (; level <= geometry_.deepest(); ++level) {
      const Place place = place_at(level, geometry_.index_at(level, hash));
      if (place.entry == nullptr) return;
      prefetch_entry(place);
    }
  }
  // What an append to the entry will change in PM.
  void prefetch_end(uint32_t level, uint64_t index) const;
  void prefetch_copy(uint32_t level, uint64_t index) const {
    if (has_copy(level, index)) DirectoryCache::prefetch(directory_cache_.at(level, index));
  }
  // Records of an entry, side by side.
  void prefetch_records(uint32_t level, uint64_t index, uint32_t begin, uint32_t end) const;

  // ---- inspection
  // Calls `visit` for the entry and all below it, under their partition's lock.
  void visit_below(uint32_t level, uint64_t index,
                   const std::function<void(uint32_t, uint64_t, const Place&)>& visit) const;
  bool has_table(uint32_t level) const {
    return tables_[level].load(std::memory_order_acquire) != nullptr;
  }
  // Where the block of an entry begins, of a level below 1, in units; 0 if it does not exist
  // (nothing below does either).
  uint32_t block_of(uint32_t level, uint64_t index) const {
    const uint32_t* table = tables_[level].load(std::memory_order_acquire);
    return table == nullptr ? 0 : pm::load_acquire(table[index >> geometry_.fanout_bits()]);
  }
  uint64_t block_bytes(uint32_t lines) const {
    return uint64_t{geometry_.fanout()} * lines * sizeof(DirectoryLine);
  }

 private:
  // The lines of the entry that begins a block. Without the partition's lock this may be garbage,
  // but with so many lines the block is inside the pool.
  uint32_t lines_of_block(const Entry& first) const {
    const uint32_t lines = LineState{pm::load_acquire(first.lines[0].state)}.lines();
    const bool fits = pool_.leads_inside(pool_.offset_of(&first), block_bytes(lines));
    return fits ? lines : kLines >> 3;
  }
  void ensure_table(uint32_t level);
  // Too many keys for the levels there are lie close together.
  Error too_dense(uint32_t level) const;
  void allocate_buckets(std::span<Entry* const> entries) const;

  static uint32_t entry_epoch(const Entry& entry);
  void read_epoch(uint64_t row) const;
  // Of an entry without a copy: what is about to be appended, by the filters.
  void count_superseded(const Append& append) const;

  void write_buckets(const Append& append) const;
  FilterBits filter_of_tags(const uint64_t* tags, uint32_t count) const;
  void fill_line(const Append& append, uint32_t line) const;

  // The entry keeps its buckets when it is migrated.
  bool keeps_buckets(uint32_t level, uint64_t index) const {
    return level == geometry_.top_above(level, index) || level <= root_.shape.preallocated_levels;
  }
  static bool has_buckets_from(const Entry& entry, uint32_t first);
  Row& row_above(uint32_t level, uint64_t index) const {
    return rows_[geometry_.row_above(level, index)];
  }

  void populate(uint32_t level, uint64_t index) const;
  void rebuild_copy(uint32_t level, uint64_t index) const;

  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  const Kernels& kernels_;
  const std::string& name_;
  const Geometry& geometry_;
  const Keys& keys_;
  const Rows& rows_;
  uint32_t filter_levels_;
  Entry* level1_;
  std::atomic<uint32_t*> tables_[kLevelsMax + 1] = {};
  std::mutex tables_mutex_;
  mutable DirectoryCache directory_cache_;
};

}  // namespace perdure::index::plush
