#include "index/plush/recovery_log.h"

namespace perdure::index::plush {

void RecoveryLog::next_chunk(Partition& partition) {
  free_next_chunk(partition);
  partition.log.advance();
  // At once, while the new chunk has room for whatever must be copied.
  free_next_chunk(partition);
}

bool RecoveryLog::copy_row(Partition& partition, uint64_t row) const {
  Row& state = rows_[row];
  const uint32_t count = rows_.count(row);
  if (!partition.log.has_room(count + 2)) return false;
  const Bucket& bucket = rows_.records(row);
  const uint64_t index = Geometry::index_of_row(row);
  for (uint32_t i = 0; i < count; ++i) {
    const LogKind kind = (bucket.tags[i] & 1) != 0 ? LogKind::kTombstone : LogKind::kUpsert;
    partition.log.append({geometry_.full_hash(bucket.tags[i], index, geometry_.level_of_row(row)),
                          bucket.values[i], log_word(kind, state.epoch)});
  }
  state.first_chunk = static_cast<uint16_t>(partition.log.sequence());
  return true;
}

// With a full log the row is flushed. If that has no room, the copies of the rows before it are
// durable at least: another thread may take their originals for superseded.
void RecoveryLog::copy_or_move(Partition& partition, uint64_t row) {
  if (copy_row(partition, row)) return;
  try {
    migrator_.flush_row(partition, row);
  } catch (...) {
    memory_.fence();
    throw;
  }
}

void RecoveryLog::reclaim_chunk(Partition& partition) {
  const uint64_t oldest = partition.log.oldest();
  const RowRange range = geometry_.rows_in(partitions_.number_of(partition));
  for (uint64_t row = range.begin; row < range.end; ++row) {
    if (rows_.count(row) == 0) continue;
    if (rows_[row].first_chunk != static_cast<uint16_t>(oldest)) continue;
    copy_or_move(partition, row);
  }
  memory_.fence();  // the copies, before the chunk that held the originals is used again
  partition.log.release_before(oldest + 1);
}

uint64_t RecoveryLog::unlogged_moves_max(const Partition& partition) const {
  // A record in the ring is overwritten after this many others, and each logged move needs one.
  const uint32_t top = geometry_.top_of(partitions_.number_of(partition));
  const uint64_t ring_records = partitions_.log_bytes(top) / pm::TornBitLog::kRecordBytes;
  return ring_records + 2 < LineState::kEpochMask ? LineState::kEpochMask - ring_records - 1 : 1;
}

void RecoveryLog::log_all_rows(Partition& partition) {
  const uint32_t number = partitions_.number_of(partition);
  payload_.settle(number);
  free_next_chunk(partition);
  partition.log.advance();
  const RowRange range = geometry_.rows_in(number);
  for (uint64_t row = range.begin; row < range.end; ++row) {
    if (rows_.count(row) > 0) copy_or_move(partition, row);
  }
  memory_.fence();  // the copies, before what they replace is forgotten
  partition.log.release_before(partition.log.sequence());
  memory_.fence();  // no replay may meet the old records again: their epochs may come round
  partition.unlogged = false;
  partition.unlogged_moves = 0;
}

void RecoveryLog::compact(Partition& partition) {
  const RowRange range = geometry_.rows_in(partitions_.number_of(partition));
  uint64_t records = 0;
  for (uint64_t row = range.begin; row < range.end; ++row) records += rows_.count(row);
  // Not worth it if the log holds little else.
  if (partition.log.live_bytes() < 2 * records * pm::TornBitLog::kRecordBytes + pm::kPageBytes)
    return;
  log_all_rows(partition);
}

}  // namespace perdure::index::plush
