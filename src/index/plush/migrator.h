// Records on their way down: rows into the first level, full entries into their children, and
// partitions that grow.
//
// A row that is complete goes to one bucket of its entry. An entry that has no room for another row
// waits in its partition's queue, and is migrated in steps, one with each of the operations that
// follow in the partition: its records are spread over `fanout` entries of the next level.
// migrator.cc has the steps, append_row.cc the rows, grow.cc the growth.
//
// Promises
//   - Records are durable where they go before they leave where they were. In between they are
//     there twice, and the upper ones win; migrating again is harmless. That is also what a crash
//     leaves.
//   - While an entry is being migrated nobody appends to it (who must, finishes the migration
//     first), and its children are appended to by its migration only. Nor does anyone else rewrite
//     it: whatever a migration has yet to append is found in its source. The collector takes
//     payload that no record is found to lead to for garbage; a tombstone that only the migration
//     knew would come to lead to nothing, and be the newest record of its key below.
//   - When a record of the source changes in place, the caller says so (follow_change()), and what
//     the migration has made of it changes alike, durably, before the source can be emptied.
//   - Where there is no room the source stays as it was, and whoever needs room in it tries again.
// All calls need the lock of the partition. The queues in Partition are this class's.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "index/plush/geometry.h"
#include "index/plush/levels.h"
#include "index/plush/lookup.h"
#include "index/plush/partition.h"
#include "index/plush/payload.h"
#include "index/plush/rows.h"

namespace perdure::index::plush {

// The live records of an entry, newest version of each key only.
struct Gathered {
  static constexpr uint32_t kPlaces = 2048;
  uint32_t count = 0;
  uint32_t used = 0;  // records there were
  uint32_t left = 0;  // of these, still to be looked at: the oldest
  uint32_t dropped_count = 0;
  uint64_t tags[kEntryRecords];
  uint64_t values[kEntryRecords];
  // Superseded records and vanishing tombstones, which may be what superseded others.
  Record dropped[2 * kEntryRecords];
  uint16_t places[kPlaces];  // in `tags`, from 1: a hash table by tag
  std::span<const Record> superseded() const { return {dropped, dropped_count}; }
};

// An entry that is being emptied in steps. In DRAM: after a crash it begins again.
struct Migration {
  enum class Phase : uint8_t {
    kFull,    // nothing done yet
    kGather,  // `all` is being filled
    kGroup,   // and is complete, but not grouped by child yet
    kAppend,  // what follows is filled in
  };
  enum class Why : uint8_t {
    kFull,
    kLitter,  // it has room: what is superseded in it is to go
    kGrowth,  // it is to be empty, and stay so
  };
  uint32_t level;
  uint64_t index;
  uint32_t needed;  // records that the entry must have room for
  Why why;
  Phase phase;
  uint32_t next_child;   // the children before have theirs
  uint64_t rewritten;    // the child that was rewritten last, before it is appended to
  uint32_t superseding;  // records that the children had another version of, it seems
  uint32_t begins[kFanoutMax + 1];
  Gathered all;
  uint64_t tags[kEntryRecords];  // of `all`, by child
  uint64_t values[kEntryRecords];
  uint32_t count(uint32_t child) const { return begins[child + 1] - begins[child]; }
};

class Migrator {
 public:
  Migrator(pm::PoolImpl& pool, const Root& root, Geometry& geometry, const Rows& rows,
           Levels& levels, const Lookup& lookup, const Payload& payload,
           const Partitions& partitions, uint32_t garbage_percent);

  // ---- rows (append_row.cc)
  // The row's records go to its entry; durable on return. Throws kPoolFull, kNoSpace with the row
  // as it was.
  void flush_row(Partition& partition, uint64_t row);
  // The same of the first `count` slots, of which readers may not know the last one yet.
  void append_row(Partition& partition, uint64_t row, uint32_t count);
  // For who shares fences with other appends: what append_row() plans, and what comes after it was
  // revealed, inside a SequenceWrite of the row.
  Append append_of_row(uint64_t row, uint32_t count) const;
  void row_moved(Partition& partition, const Append& append) const;

  // ---- entries
  // A step of what is to be migrated in the partition, if anything is.
  void migrate_some(Partition& partition);
  static bool is_migrating(const Partition& partition, uint32_t level, uint64_t index);
  // Rewrites an entry that is not being migrated in place without what is superseded. Returns false
  // if that gains nothing, or the pool has no room for it.
  bool compact(uint32_t level, uint64_t index) const;
  // The record found at `before` is now `tag` and `value`: so are copies that a migration made of
  // it.
  void follow_change(Partition& partition, const Key& key, const Hit& before, uint64_t tag,
                     uint64_t value) const;

  // ---- steps that share the fence of a log record
  struct SharedStep {
    Append append;
    pm::Heap::TxnIfNeeded txn;
    bool planned = false;
  };
  // Before the fence, and after it.
  void begin_shared_step(Partition& partition, SharedStep& step) const;
  void end_shared_step(Partition& partition, SharedStep& step);
  // If the next step is to append to a child, plans it; what is planned must be staged, fenced,
  // revealed and reported by child_done(). Leaves the partition as it is if it throws.
  bool plan_next_child(Partition& partition, Append& append, pm::Heap::TxnIfNeeded& txn) const;
  void child_done(Partition& partition, const Append& append) const;

 private:
  // ---- what is live in an entry
  void gather(uint32_t level, uint64_t index, Gathered& out) const;
  void begin_gather(uint32_t level, uint64_t index, Gathered& out) const;
  // `most` more records, from the newest to the oldest.
  void gather_some(uint32_t level, uint64_t index, uint32_t most, Gathered& out) const;
  void drop_tombstones(uint32_t level, uint64_t index, Gathered& out) const;
  // Where a version of a record is in what was gathered: its place from 1, or 0.
  uint32_t place_in(const Gathered& all, uint64_t tag, uint64_t value) const;
  // Replaces the entry's records by these.
  void rewrite(uint32_t level, uint64_t index, const Gathered& live) const;

  // ---- steps
  // Makes room for `needed` more records in an entry, at once.
  void migrate(Partition& partition, uint32_t level, uint64_t index, uint32_t needed);
  void step(Partition& partition, uint32_t children);
  // One step; what cannot go on is given up.
  void try_step(Partition& partition, uint32_t children);
  void push(Partition& partition, uint32_t level, uint64_t index, uint32_t needed,
            Migration::Why why) const;
  // Returns false if the entry has room again where it is.
  bool group(Partition& partition, Migration& migration);
  void group_by_child(Migration& migration) const;
  Append append_of_child(const Migration& migration, uint32_t child) const;
  // The records of the children from next_child to `end`, under one pair of fences.
  void append_children(Migration& migration, uint32_t end) const;
  void prefetch_next_child(const Migration& migration) const;
  void prefetch_count_of_child(const Migration& migration, uint32_t child) const;
  void choose_room(const Migration& migration) const;

  // ---- what is superseded
  // Begins to rewrite the entry if enough of it seems superseded.
  bool push_if_littered(Partition& partition, Migration& migration, const Append& append) const;
  // Or would be when these records are appended; once for each append.
  bool is_littered(const Migration& migration, const Append& append) const;
  void clear_litter(Partition& partition, Migration& migration) const;
  // The migration that is about to append to the entry of this one, or null.
  Migration* waiting_for(const Partition& partition, const Migration& migration) const;
  // Records that a migration has for its next child, of which `all` has no version.
  uint32_t count_new(const Migration& migration, const Gathered& all) const;
  // Rewrites that child with `all` and these, which the migration then need not append.
  void rewrite_with(Migration& migration, uint32_t level, uint64_t index, Gathered& all) const;
  // Most of what it migrates supersedes records below.
  static bool overwrites(const Migration& migration);

  // ---- growth (grow.cc)
  void note_overflow(uint32_t level, uint64_t index) const;
  void set_overflows_max(uint32_t number) const;
  void grow_if_due(Partition& partition);
  void grow(Partition& partition);
  void empty_entry(Partition& partition, uint64_t row);
  void switch_rows(Partition& partition, uint32_t top);

  pm::PoolImpl& pool_;
  const pm::Memory& memory_;
  const Root& root_;
  Geometry& geometry_;
  const Rows& rows_;
  Levels& levels_;
  const Lookup& lookup_;
  const Payload& payload_;
  const Partitions& partitions_;
  uint32_t garbage_percent_;
};

}  // namespace perdure::index::plush
