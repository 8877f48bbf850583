// Writes without log records, and what makes them durable.
//
// An unlogged write changes its row in DRAM and nothing else, but for the payload of byte strings,
// which is written to the payload log and not yet flushed. It is durable when its row has moved down
// or its records have been copied to the log, whichever is first. Until then a crash takes the key
// back to the newest version that is durable.
//
// What must hold for that:
//   - Nothing durable leads to a payload that is not: whoever appends to the recovery log or moves a
//     row down first settles the payload that was left unflushed (flush, fence), in its order.
//   - What a crash would go back to is still there: the collector of the payload log drops the older
//     version of a key only after the unlogged newer one has been logged (log_all_rows).
//   - Epochs of rows: a row that moves down without a record in the log uses up an epoch, and the log
//     may not keep a record until that epoch comes round again. So such moves are counted, and the
//     log is begun anew before there are too many.
#include <algorithm>
#include <exception>
#include <thread>

#include "index/plush/core.h"

namespace perdure::index::plush {

bool Core::write_unlogged(LogKind kind, const Key& key, uint64_t value, std::string_view payload) {
  const bool conditional = kind != LogKind::kUpsert;
  prefetch_write(key.hash, reach_of(kind));
  Partition& partition = partitions_[partition_of(key.hash)];
  const std::lock_guard lock(partition.lock);
  require_writable();
  const uint64_t row = row_for(key.hash);
  rebuild_row(row);
  Hit hit;
  bool in_row = search_row(row, key, nullptr, 0, hit) == Found::kHit;
  if (conditional) {
    const bool present = in_row ? hit.live() : present_below(key, kind == LogKind::kUpdate);
    if (present != (kind == LogKind::kUpdate)) return false;
  }
  if (partition.unlogged_moves >= unlogged_moves_max(partition)) log_all_rows(partition);
  if (out_of_place_) {
    value = store_payload(partition, key, payload, PayloadLog::Flush::kLater);
    if (kind != LogKind::kInsert) partition.garbage_bytes += payload_->bytes_of(value);
  }
  partition.unlogged = true;
  // Not what was found above: both calls may have moved the row down.
  in_row = search_row(row, key, nullptr, 0, hit) == Found::kHit;
  if (in_row) {
    replace_in_row(partition, hit, {key.hash << 1, value});
    drain_some(partition);
  } else if (rows_[row].count.load(std::memory_order_relaxed) >= kRowFull) {
    complete_row(partition, row, {key.hash << 1, value});
  } else {
    add_to_row(row, {key.hash << 1, value}, partition.log.sequence());
    drain_some(partition);
  }
  return true;
}

uint64_t Core::unlogged_moves_max(const Partition& partition) const {
  // A record in the ring is overwritten after this many others, and each logged move needs one.
  const uint64_t ring_records =
      log_bytes(top_of(number_of(partition))) / pm::TornBitLog::kRecordBytes;
  return ring_records + 2 < LineState::kEpochMask ? LineState::kEpochMask - ring_records - 1 : 1;
}

void Core::settle_payload(Partition& partition) const {
  if (payload_) payload_->settle(number_of(partition));
}

void Core::log_all_rows(Partition& partition) {
  settle_payload(partition);
  while (!partition.log.next_is_free()) reclaim_log_chunk(partition);
  partition.log.advance();
  const RowRange range = rows_in(number_of(partition));
  for (uint64_t row = range.begin; row < range.end; ++row) {
    if (rows_[row].count.load(std::memory_order_relaxed) == 0) continue;
    copy_or_move(partition, row);
  }
  memory_.fence();  // the copies, before what they replace is forgotten
  partition.log.release_before(partition.log.sequence());
  memory_.fence();  // no replay may meet the old records again: their epochs may come round
  partition.unlogged = false;
  partition.unlogged_moves = 0;
}

void Core::move_all_down(Partition& partition) {
  const std::lock_guard lock(partition.lock);
  require_writable();
  const RowRange range = rows_in(number_of(partition));
  for (uint64_t row = range.begin; row < range.end; ++row) {
    if (rows_[row].count.load(std::memory_order_relaxed) > 0) flush_row(partition, row);
  }
  partition.unlogged = false;
}

void Core::checkpoint(unsigned threads) {
  for_each_partition(threads, [this](uint32_t number) { move_all_down(partitions_[number]); });
}

void Core::for_each_partition(unsigned threads, const std::function<void(uint32_t)>& work) const {
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  threads = std::min(threads, partition_count_);
  std::atomic<uint32_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (uint32_t i = next++; i < partition_count_; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(run);
  run();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace perdure::index::plush
