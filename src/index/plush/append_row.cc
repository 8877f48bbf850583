// Rows into the first level.
#include "index/plush/migrator.h"

namespace perdure::index::plush {

void Migrator::flush_row(Partition& partition, uint64_t row) {
  append_row(partition, row, rows_.count(row));
}

Append Migrator::append_of_row(uint64_t row, uint32_t count) const {
  Append append;  // not zeroed
  append.level = geometry_.level_of_row(row);
  append.index = Geometry::index_of_row(row);
  append.entry = levels_.entry_at(append.level, append.index);
  append.room = kEntryRecords;
  append.tags = rows_.records(row).tags;
  append.values = rows_.records(row).values;
  append.count = count;
  append.counts_epoch = true;
  append.epoch = rows_[row].epoch;
  append.start = levels_.records_in(append.level, append.index);
  return append;
}

// The row's records are durable in level 1.
void Migrator::row_moved(Partition& partition, const Append& append) const {
  levels_.cache_append(append);
  const uint64_t number = geometry_.row_of(append.level, append.index);
  Row& row = rows_[number];
  row.epoch = (row.epoch + 1) & LineState::kEpochMask;
  row.count.store(0, std::memory_order_release);
  const uint32_t before = append.start + kSlots;
  const uint32_t after = before + append.count;
  const auto crosses = [&](uint32_t room) { return before <= room && after > room; };
  if (crosses(levels_.room_in(append.level, append.index)) || crosses(kEntryRecords)) {
    partition.full_rows.push_back(number);
  }
}

void Migrator::append_row(Partition& partition, uint64_t row, uint32_t count) {
  levels_.load_epoch(row);
  const uint32_t level = geometry_.level_of_row(row);
  const uint64_t index = Geometry::index_of_row(row);
  if (levels_.records_in(level, index) + count > kEntryRecords ||
      is_migrating(partition, level, index)) {
    migrate(partition, level, index, count);
  }
  Append append = append_of_row(row, count);
  pm::Heap::TxnIfNeeded txn;
  try {
    levels_.plan(append, txn);
  } catch (const Error& error) {
    txn.reset();
    if (!pm::is_full(error) || !compact(level, index)) throw;
    append.start = levels_.records_in(level, index);
    levels_.plan(append, txn);
  }
  if (partition.unlogged) {
    ++partition.unlogged_moves;
    payload_.settle(partitions_.number_of(partition));  // before the line that leads to it
  }
  levels_.stage_and_fence({&append, 1}, txn.get());
  {
    // The record that completes the row is seen by nobody before it is durable.
    const SequenceWrite guard(rows_[row]);
    levels_.reveal({&append, 1}, txn.get());
    row_moved(partition, append);
  }
  txn.finish();
}

bool Migrator::compact(uint32_t level, uint64_t index) const {
  Gathered live;
  gather(level, index, live);
  const uint32_t buckets_before = (live.used + kSlots - 1) / kSlots;
  const uint32_t buckets_after = (live.count + kSlots - 1) / kSlots;
  if (buckets_after >= buckets_before && live.count + kSlots > live.used) return false;
  try {
    rewrite(level, index, live);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;
  }
  return true;
}

}  // namespace perdure::index::plush
