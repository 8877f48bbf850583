// A partition grows: its second level becomes its first.
//
// The rows of a partition, and its first level, are as many as suit the records that it has. When
// an eighth of the entries of the second level have been full once, so that they have children of
// their own, the partition grows at the end of an operation, under its lock:
//
//   1. all its rows are flushed;
//   2. each entry of the first level is migrated into its children, of which all that were missing
//      are made, and gives its buckets back. Children with few lines get all;
//   3. the epochs of the rows to be, which are in the entries of the second level, are flushed;
//   4. an empty log is made that suits the new rows; fence; and a redo record replaces the
//      partition's head: one more growth, and the new log. The old log goes back to the heap with
//      that.
//
// No record of the second level moves. What a crash leaves: before step 4 is certain, a partition
// that has not grown, whose rows were flushed early and some of whose entries were migrated early,
// as a checkpoint and migrations leave it, any number of times. After it, one that has grown, whose
// log is empty, with all that the old log held in levels that were fenced before: step 1 and 2
// fence what they move, and the old log counts until then. The old log's records are not met again:
// the head leads to the new log, and with it to the new rows, by one redo record. An epoch may
// begin anywhere, for it is only compared with those of log records made later; what counts is that
// it cannot change any more: before, the word that it is in held a hint that was stored without
// being flushed, so step 3 flushes it before step 4.
//
// If there is no room, the partition stays as it is, with deeper levels, and tries again later.
//
// Readers hold no lock. One that began before finds the version of its old row odd, for good, and
// begins again with the new row. The old rows are never used again, and their memory stays.
#include <algorithm>

#include "index/plush/migrator.h"

namespace perdure::index::plush {

namespace {

// One in so many entries of the second level.
constexpr uint64_t kOverflowShare = 8;
// With less room in the pool than this and twice the log, a partition does not grow.
constexpr uint64_t kGrowSegments = 16;

}  // namespace

void Migrator::set_overflows_max(uint32_t number) const {
  Partition& partition = partitions_[number];
  const uint32_t top = geometry_.top_of(number);
  partition.overflows = 0;
  partition.overflows_max =
      top < geometry_.top_max()
          ? 1 + std::max(uint64_t{1}, geometry_.rows_below(top + 1) / kOverflowShare)
          : ~uint64_t{0};
}

// An entry is full. If it has no children yet they are about to be made.
void Migrator::note_overflow(uint32_t level, uint64_t index) const {
  const uint32_t number = geometry_.partition_above(level, index);
  const uint32_t top = geometry_.top_of(number);
  if (level != top + 1 || top == geometry_.top_max()) return;
  uint64_t& overflows = partitions_[number].overflows;
  if (overflows == 0) {  // those of earlier sessions, and of when this was the third level
    overflows = 1;
    const uint64_t begin = number * geometry_.rows_below(level);
    for (uint64_t i = begin; i < begin + geometry_.rows_below(level); ++i) {
      if (levels_.has_children(level, i)) ++overflows;
    }
  }
  if (!levels_.has_children(level, index)) ++overflows;
}

void Migrator::grow_if_due(Partition& partition) {
  const uint32_t number = partitions_.number_of(partition);
  const uint32_t top = geometry_.top_of(number);
  const uint64_t log = partitions_.log_bytes(top + 1);
  try {
    if (!pool_.heap().is_scarce(kGrowSegments + 2 * log / pm::kSegmentBytes)) grow(partition);
  } catch (const Error& error) {
    partition.migrations.clear();  // the sources are as they were
    partition.overflows = 1;
    if (!pm::is_full(error)) throw;
  }
  // Again when as many more have overflowed.
  if (geometry_.top_of(number) == top) partition.overflows = 1;
}

void Migrator::grow(Partition& partition) {
  const uint32_t number = partitions_.number_of(partition);
  const uint32_t top = geometry_.top_of(number) + 1;  // that it will have
  const RowRange old = geometry_.rows_in(number);
  payload_.settle(number);
  for (uint64_t row = old.begin; row < old.end; ++row) {
    if (rows_.count(row) > 0) flush_row(partition, row);
  }
  for (uint64_t row = old.begin; row < old.end; ++row) empty_entry(partition, row);

  for (uint64_t row = old.begin; row < old.end; ++row)
    levels_.widen_children(top - 1, Geometry::index_of_row(row), kLines);

  const uint64_t begin = number * geometry_.rows_below(top);
  const uint64_t end = begin + geometry_.rows_below(top);
  for (uint64_t index = begin; index < end; ++index) {
    memory_.flush(&levels_.entry_at(top, index)->lines[0].state, sizeof(uint32_t));
  }
  PartitionHead& head = partitions_.head_of(number);
  pm::Heap::Txn txn(pool_.heap());
  PartitionHead image{.grown = top - 1, .log = txn.allocate(partitions_.log_bytes(top))};
  levels_.clear_block(image.log, partitions_.log_bytes(top));
  pm::TornBitLog log(memory_, pool_.at<char>(image.log), partitions_.log_chunk_bytes(top),
                     root_.log_chunks);
  log.format();
  txn.will_link(image.log, &head.log, pm::Link::kOffset);
  if (head.log != 0) txn.will_unlink(head.log, &head.log, pm::Link::kOffset);
  txn.redo(&head, &image, sizeof image);
  pm::before_change("plush: partition grown");
  // The empty log, the epochs and the intents, before the change is made certain.
  txn.commit([&] {
    txn.apply();
    switch_rows(partition, top);
    partition.log = log;
    pm::come_to_place("plush: partition grown");
  });

  for (uint64_t index = begin; index < end; ++index) {
    levels_.load_epoch(geometry_.row_of(top, index));
    if (levels_.records_in(top, index) + kSlots <= kEntryRecords) continue;
    partition.full_rows.push_back(geometry_.row_of(top, index));
  }
}

// In DRAM. The rows that there were are empty.
void Migrator::switch_rows(Partition& partition, uint32_t top) {
  const uint32_t number = partitions_.number_of(partition);
  const RowRange old = geometry_.rows_in(number);
  rows_.abandon(old);
  geometry_.set_top(number, top);
  partition.full_rows.clear();
  partition.unlogged = false;
  partition.unlogged_moves = 0;
  set_overflows_max(number);
}

// Of the first level: all its records move to its children, and its buckets back to the heap.
void Migrator::empty_entry(Partition& partition, uint64_t row) {
  const uint32_t level = geometry_.level_of_row(row);
  const uint64_t index = Geometry::index_of_row(row);
  levels_.load_epoch(row);
  levels_.ensure_children(level, index, kLines);
  push(partition, level, index, 0, Migration::Why::kGrowth);
  while (!partition.migrations.empty()) step(partition, geometry_.fanout());
  // It is empty: its first line stays as it is, with the epoch of the row.
  const LineState state{pm::load_relaxed(levels_.entry_at(level, index)->lines[0].state)};
  levels_.clear_entry(level, index, state, 0);
}

}  // namespace perdure::index::plush
