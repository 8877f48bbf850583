// Writes without log records, and what makes them durable.
//
// An unlogged write changes its row in DRAM and nothing else, but for the payload of byte strings,
// which is written to the payload log and not yet flushed. It is durable when its row was flushed
// or its records have been copied to the log, whichever is first. Until then a crash takes the key
// back to the newest version that is durable.
//
// What must hold for that:
//   - Nothing durable leads to a payload that is not: whoever appends to the recovery log or moves
//     a row down first settles the payload that was left unflushed (flush, fence), in its order.
//   - What a crash would go back to is still there: the collector of the payload log drops the
//     older version of a key only after the unlogged newer one has been logged (log_all_rows).
//   - Epochs of rows: a row that is flushed without a record in the log uses up an epoch, and the
//     log may not keep a record until that epoch comes round again. So such moves are counted, and
//     the log is begun anew before there are too many.
#include <algorithm>
#include <thread>

#include "index/plush/core.h"
#include "pm/thread.h"

namespace perdure::index::plush {

bool Core::write_unlogged(LogKind kind, const Key& key, uint64_t value, std::string_view payload) {
  const bool conditional = kind != LogKind::kUpsert;
  lookup_.prefetch_write(key.hash, reach_of(kind));
  Partition& partition = partitions_.of(key.hash);
  const std::lock_guard lock(partition.lock);
  require_writable();
  const uint64_t row = geometry_.row_for(key.hash);
  levels_.load_epoch(row);
  Hit hit;
  bool in_row = lookup_.search_row(row, key, hit) == Found::kHit;
  if (conditional) {
    const bool present = in_row ? hit.live() : lookup_.present_below(key, kind == LogKind::kUpdate);
    if (present != (kind == LogKind::kUpdate)) return false;
  }
  log_.allow_unlogged_move(partition);
  if (payload_.is_used()) {
    value = collector_.store(partition, key, payload, PayloadLog::Flush::kLater);
    if (kind != LogKind::kInsert) collector_.note_written(partition, value);
  }
  partition.unlogged = true;
  // Not what was found above: both calls may have moved the row down.
  in_row = lookup_.search_row(row, key, hit) == Found::kHit;
  if (in_row) {
    replace_in_row(partition, hit, {key.hash << 1, value});
    migrator_.migrate_some(partition);
  } else if (rows_.count(row) >= kRowFull) {
    complete_row(partition, row, {key.hash << 1, value});
  } else {
    rows_.add(row, {key.hash << 1, value}, partition.log.sequence());
    migrator_.migrate_some(partition);
  }
  return true;
}

void Core::flush_all_rows(Partition& partition) {
  const std::lock_guard lock(partition.lock);
  require_writable();
  const RowRange range = geometry_.rows_in(partitions_.number_of(partition));
  for (uint64_t row = range.begin; row < range.end; ++row) {
    if (rows_.count(row) > 0) migrator_.flush_row(partition, row);
  }
  partition.unlogged = false;
}

void Core::checkpoint(unsigned threads) {
  for_each_partition(threads, [this](uint32_t number) { flush_all_rows(partitions_[number]); });
}

void Core::for_each_partition(unsigned threads, const std::function<void(uint32_t)>& work) const {
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  threads = std::min(threads, partitions_.count());
  std::atomic<uint32_t> next{0};
  pm::in_threads(threads, [&](uint32_t) {
    for (uint32_t i = next++; i < partitions_.count(); i = next++) work(i);
  });
}

}  // namespace perdure::index::plush
