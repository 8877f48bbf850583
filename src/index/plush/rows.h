// Level 0: rows of up to 16 records, in DRAM.
//
// What a crash leaves of a row is what the recovery log has of it (recovery_log.h); opening fills
// the rows from there. When a row is complete it is flushed as one bucket (migrator.h).
//
// Promises
//   - Writers hold the partition's lock. Readers hold none: they read a row's version before they
//     look, and again after. If it is odd, or another one, records may have gone from where they
//     looked, in the row or below it, and they look again.
//   - A record is complete before `count` counts it: its value before its tag, its mark before the
//     count.
//   - A row that its partition has grown beyond keeps an odd version for good, and is never used
//     again.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <optional>
#include <span>

#include "index/plush/arena.h"
#include "index/plush/geometry.h"
#include "index/plush/keys.h"
#include "index/plush/layout.h"
#include "pm/memory.h"
#include "pm/pause.h"

namespace perdure::index::plush {

// What a row's records do not say.
struct alignas(32) Row {
  uint8_t marks[kSlots];  // by slot: a byte of the key's hash
  std::atomic<uint8_t> count;
  bool known;            // `epoch` has been read from the first level
  uint16_t first_chunk;  // low bits of the log chunk that holds the oldest record
  uint32_t epoch;        // how often this row was flushed, modulo 2^18
  // A sequence lock: odd while records go away from where a lookup in the row or below it may be
  // looking.
  std::atomic<uint64_t> version;
};
static_assert(sizeof(Row) == 32);

// The read side: a row's version is still what it was. No record went away since, so what was read
// belongs together.
inline bool still(const std::atomic<uint64_t>& version, uint64_t expected) {
  pm::may_pause();
  std::atomic_thread_fence(std::memory_order_acquire);
  return version.load(std::memory_order_relaxed) == expected;
}

// The write side of the sequence locks of rows; under their partition's lock.
class SequenceWrite {
 public:
  explicit SequenceWrite(std::span<Row> rows) : rows_(rows) {
    for (Row& row : rows_) {
      const uint64_t version = row.version.load(std::memory_order_relaxed);
      assert((version & 1) == 0);  // they do not nest
      row.version.store(version + 1, std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_release);
    pm::may_pause();
  }
  explicit SequenceWrite(Row& row) : SequenceWrite(std::span(&row, 1)) {}
  ~SequenceWrite() {
    pm::may_pause();
    for (Row& row : rows_) {
      row.version.store(row.version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
  }
  SequenceWrite(const SequenceWrite&) = delete;
  SequenceWrite& operator=(const SequenceWrite&) = delete;

 private:
  std::span<Row> rows_;
};

class Rows {
 public:
  // For all rows that there may ever be; what is not used takes nothing.
  Rows(const Geometry& geometry, const Keys& keys);

  // By the numbers of geometry.h.
  Row& operator[](uint64_t row) const { return rows_[row]; }
  Bucket& records(uint64_t row) const { return records_[row]; }
  uint32_t count(uint64_t row) const { return rows_[row].count.load(std::memory_order_relaxed); }
  std::span<Row> in(RowRange range) const { return {rows_ + range.begin, rows_ + range.end}; }

  // Adds a record to a row that has room, for readers to see. `log_sequence`: of the log chunk that
  // holds the record. Under the partition's lock.
  void add(uint64_t row, Record record, uint64_t log_sequence) const {
    Row& state = rows_[row];
    const uint8_t count = state.count.load(std::memory_order_relaxed);
    if (count == 0) state.first_chunk = static_cast<uint16_t>(log_sequence);
    pm::store_relaxed(records_[row].values[count], record.value);
    pm::store_relaxed(records_[row].tags[count], record.tag);
    pm::store_relaxed(state.marks[count], keys_.mark_of(record.tag >> 1));
    pm::publish(state.count, static_cast<uint8_t>(count + 1));
  }
  // The record that completes the row, which nobody sees before it is durable: not counted yet.
  void put_last(uint64_t row, Record record) const {
    pm::store_relaxed(records_[row].tags[kRowFull], record.tag);
    pm::store_relaxed(records_[row].values[kRowFull], record.value);
  }
  // The records of these rows go nowhere any more; readers of them begin again with others, for
  // good.
  void abandon(RowRange range) const;

 private:
  const Keys& keys_;
  std::optional<Arena> arena_;
  Row* rows_ = nullptr;  // of all levels that may be the first
  Bucket* records_ = nullptr;
};

}  // namespace perdure::index::plush
