// Opening: the rows of level 0 from the recovery log, all partitions in parallel.
#include <fmt/core.h>

#include <optional>

#include "index/plush/core.h"

namespace perdure::index::plush {

void Core::recover(uint32_t threads) {
  for_each_partition(threads, [this](uint32_t number) { recover_partition(number); });
  recovered_ = true;
}

void Core::recover_partition(uint32_t number) {
  Partition& partition = partitions_[number];
  // Level 1 was made whole; one that a partition grew to is reached by pointers, each to `fanout`
  // entries.
  const RowRange rows = geometry_.rows_in(number);
  for (uint64_t row = rows.begin; row < rows.end && geometry_.top_of(number) > 1;
       row += geometry_.fanout()) {
    const uint32_t top = geometry_.level_of_row(row);
    if (levels_.entry_at(top, Geometry::index_of_row(row)) == nullptr)
      levels_.throw_damaged(top, Geometry::index_of_row(row));
  }
  if (payload_.is_used()) {
    payload_.log().recover(number);
    partition.payload_chunks = payload_.log().chunks(number).size();
  }
  // A record waits for the next one: a cancellation may follow.
  std::optional<pm::RedoRecord> waiting;
  uint64_t waiting_sequence = 0;
  const bool sound = partition.log.replay([&](const pm::RedoRecord& record, uint64_t sequence) {
    const bool cancels = static_cast<LogKind>(record.c & 7) == LogKind::kCancel;
    if (waiting && !cancels) replay_record(partition, *waiting, waiting_sequence, false);
    waiting.reset();
    if (!cancels) waiting = record;
    waiting_sequence = sequence;
  });
  if (!sound) {
    throw pool_.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the recovery log of '{}' is damaged in partition {}; restore the "
                          "file from a backup",
                          pool_.mapping().path(), name_, number)));
  }
  if (waiting && replay_record(partition, *waiting, waiting_sequence, true)) {
    // Before another record says that this one's payload is whole.
    if (payload_.is_used()) {
      payload_.log().write_back(waiting->b);
      memory_.fence();
    }
  } else if (waiting) {
    // What was decided about the interrupted operation must hold for the next recovery, too, which
    // may not find its record last. Whoever wrote it left room for this.
    partition.log.append({0, 0, log_word(LogKind::kCancel, 0)});
    memory_.fence();
  }
  // What this thread has flushed of rows, before another one frees a chunk of the log.
  if (pool_.may_be_unflushed()) memory_.fence();
  try {
    // As every writer leaves it: one chunk free, so that operations that need no space find room.
    log_.free_next_chunk(partition);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  }
}

// Returns false if the record is the last one and its operation did not happen.
bool Core::replay_record(Partition& partition, const pm::RedoRecord& record, uint64_t sequence,
                         bool last) {
  const auto kind = static_cast<LogKind>(record.c & 7);
  if (geometry_.partition_of(record.a) != partitions_.number_of(partition) ||
      kind > LogKind::kTombstone) {
    throw pool_.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the recovery log of '{}' holds a record of another partition; "
                          "restore the file from a backup",
                          pool_.mapping().path(), name_)));
  }
  const uint64_t row = geometry_.row_for(record.a);
  levels_.load_epoch(row);
  // Another epoch: the row was flushed since, and this record with it.
  if ((record.c >> 3 & LineState::kEpochMask) != rows_[row].epoch) return true;
  const Key key{record.a, {}};  // what needs its bytes is below, for words
  // Only the newest payload can be incomplete. Only superseded records can dangle, whose successors
  // follow; one that has none is damaged, and stays so that lookups tell.
  if (payload_.is_used() && last && !payload_.log().verify(record.b) &&
      payload_.log().may_be_torn(partitions_.number_of(partition), record.b)) {
    return false;
  }
  const uint64_t tag = record.a << 1 | (kind == LogKind::kTombstone ? 1 : 0);
  Bucket& bucket = rows_.records(row);
  const uint32_t count = rows_.count(row);
  uint32_t slot = 0;
  while (slot < count && !payload_.is_same(tag, record.b, bucket.tags[slot], bucket.values[slot]))
    ++slot;
  const bool in_row = slot < count;
  if (!payload_.is_used() && last && (kind == LogKind::kInsert || kind == LogKind::kUpdate)) {
    // The operation did not return, and did not judge its condition.
    const bool present = in_row ? (bucket.tags[slot] & 1) == 0
                                : lookup_.present_below(key, kind == LogKind::kUpdate);
    if (present != (kind == LogKind::kUpdate)) return false;
  }
  std::atomic_ref(recovered_operations_).fetch_add(1, std::memory_order_relaxed);
  if (in_row) {
    bucket.values[slot] = record.b;
    bucket.tags[slot] = tag;
    return true;
  }
  if (count >= kSlots) {
    throw pool_.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the recovery log of '{}' holds more than a row can; restore the "
                          "file from a backup",
                          pool_.mapping().path(), name_)));
  }
  rows_.add(row, {tag, record.b}, sequence);
  return true;
}

}  // namespace perdure::index::plush
