// Writing single records: log, fence, row.
#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "index/plush/core.h"

namespace perdure::index::plush {

bool Core::write(LogKind kind, uint64_t key, uint64_t value, Logging logging) {
  if (!is_inside(key)) return miss_outside(kind, key);
  const Key hashed{hash_of_word(key), {}};
  if (logging == Logging::kOff) return write_unlogged(kind, hashed, value, {});
  return write_record(kind, hashed, value, {});
}

void Core::require_sizes(std::string_view key, std::string_view value) {
  if (std::max(key.size(), value.size()) > PayloadLog::kPartBytesMax) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("a key of {} bytes with a value of {}: neither may exceed {} bytes",
                            key.size(), value.size(), PayloadLog::kPartBytesMax));
  }
}

bool Core::write(LogKind kind, std::string_view key, std::string_view value, Logging logging) {
  require_sizes(key, value);
  if (!is_inside(key)) return miss_outside(kind, word_of(key));
  const Key hashed = key_of(key);
  for (;;) {
    try {
      if (logging == Logging::kOff) return write_unlogged(kind, hashed, 0, value);
      return write_record(kind, hashed, 0, value);
    } catch (const Error& error) {
      // Nothing was changed. Where a bucket found no room, payload garbage may have some.
      if (!pm::is_full(error) || !free_payload(hashed)) throw;
    }
  }
}

bool Core::free_payload(const Key& key) {
  Partition& partition = partitions_[partition_of(key.hash)];
  const std::lock_guard lock(partition.lock);
  require_writable();
  return free_payload(partition);
}

bool Core::free_payload(Partition& partition) {
  // A chunk is worth collecting from one eighth of garbage; do not look again for less.
  if (partition.garbage_bytes < pm::kSegmentBytes / 8) return false;
  if (collect_payload(partition, true)) return true;
  partition.garbage_bytes = 0;
  return false;
}

bool Core::remove(uint64_t key) { return is_inside(key) && remove_record({hash_of_word(key), {}}); }

bool Core::remove(std::string_view key) { return is_inside(key) && remove_record(key_of(key)); }

bool Core::present_below(const Key& key, bool expected) const {
  if (has_fast_path()) {
    if (!expected && is_surely_absent(key.hash)) return false;
    uint64_t value = 0;
    if (expected && find_fast(key.hash, value) == Found::kHit) return true;
  }
  Hit hit;
  return search_levels(top_for(key.hash), key, nullptr, 0, hit) == Found::kHit && hit.live();
}

bool Core::write_record(LogKind kind, const Key& key, uint64_t value, std::string_view payload) {
  prefetch_write(key.hash, reach_of(kind));
  Partition& partition = partitions_[partition_of(key.hash)];
  const std::lock_guard lock(partition.lock);
  require_writable();
  return write_locked(partition, kind, key, value, payload);
}

bool Core::write_locked(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                        std::string_view payload) {
  try {
    return log_and_write(partition, kind, key, value, payload);
  } catch (...) {
    memory_.fence();  // its payload, if any, before another is stored behind it that is used
    throw;
  }
}

bool Core::log_and_write(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                         std::string_view payload) {
  const bool conditional = kind != LogKind::kUpsert;
  const bool wants_present = kind == LogKind::kUpdate;
  const uint64_t row = row_for(key.hash);
  rebuild_row(row);
  Hit hit;
  if (search_row(row, key, nullptr, 0, hit) == Found::kHit) {
    return overwrite_row(partition, kind, key, value, payload, hit);
  }
  const uint32_t count = rows_[row].count.load(std::memory_order_relaxed);
  // Where the record will go, so that nobody has to wait for these stores to become visible.
  pm::prefetch_to_change(&row_records_[row].tags[count]);
  pm::prefetch_to_change(&row_records_[row].values[count]);
  const bool moves_down = count >= kRowFull;
  if (moves_down) {
    const uint32_t top = level_of_row(row);
    prefetch_end(top, index_of_row(row));
    prefetch_copy(top, index_of_row(row));
  }
  const bool check_first = conditional && (moves_down || out_of_place_);
  if (check_first && present_below(key, wants_present) != wants_present) return false;
  Record record{key.hash << 1, value};
  if (out_of_place_) {
    record.value = store_payload(partition, key, payload, PayloadLog::Flush::kNow);
    if (kind != LogKind::kInsert) partition.garbage_bytes += payload_->bytes_of(record.value);
  }
  const bool log_moved_on = make_log_room(partition, 2);  // enough for one operation
  // Not `moves_down`: making room may have moved this very row down.
  if (rows_[row].count.load(std::memory_order_relaxed) >= kRowFull) {
    complete_row(partition, row, record);
    return true;
  }
  SharedStep step;
  if (!log_moved_on) begin_shared_step(partition, step);
  const LogKind logged = check_first ? LogKind::kUpsert : kind;
  const uint64_t word = log_word(logged, rows_[row].epoch);
  partition.log.append({key.hash, record.value, word});
  // The record is on its way to PM while the filters below are read. If its condition fails, the
  // next record says so; until then recovery judges the condition itself.
  const auto holds = [&] {
    try {
      return present_below(key, wants_present) == wants_present;
    } catch (const Error&) {  // damage: it did not happen
      partition.log.append({0, 0, log_word(LogKind::kCancel, 0)});
      throw;
    }
  };
  if (conditional && !check_first && !holds()) {
    partition.log.append({0, 0, log_word(LogKind::kCancel, 0)});
    memory_.fence();
    if (step.planned) end_shared_step(partition, step);
    return false;
  }
  memory_.fence();  // the record (and payload, and the step's buckets), before anyone can see it
  add_to_row(row, record, partition.log.sequence());
  if (!log_moved_on) end_shared_step(partition, step);
  return true;
}

void Core::complete_row(Partition& partition, uint64_t row, Record record) {
  pm::store_relaxed(row_records_[row].tags[kRowFull], record.tag);
  pm::store_relaxed(row_records_[row].values[kRowFull], record.value);
  append_row(partition, row, kSlots);
}

// `log_sequence`: of the chunk that holds the record.
void Core::add_to_row(uint64_t row, Record record, uint64_t log_sequence) {
  Row& state = rows_[row];
  const uint8_t count = state.count.load(std::memory_order_relaxed);
  if (count == 0) state.first_chunk = static_cast<uint16_t>(log_sequence);
  pm::store_relaxed(row_records_[row].values[count], record.value);
  pm::store_relaxed(row_records_[row].tags[count], record.tag);
  pm::store_relaxed(state.marks[count], mark_of(record.tag >> 1));
  state.count.store(static_cast<uint8_t>(count + 1), std::memory_order_release);
}

bool Core::overwrite_row(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                         std::string_view payload, const Hit& hit) {
  if (kind == LogKind::kInsert && hit.live()) return false;
  if (kind == LogKind::kUpdate && !hit.live()) return false;
  if (out_of_place_) value = store_payload(partition, key, payload, PayloadLog::Flush::kNow);
  const bool log_moved_on = make_log_room(partition, 2);  // enough for one operation
  Hit now;
  // Either call may have moved the row down, and this record with it.
  if (search_row(hit.index, key, nullptr, 0, now) != Found::kHit) {
    partition.log.append({key.hash, value, log_word(LogKind::kUpsert, rows_[hit.index].epoch)});
    memory_.fence();  // the record, before anyone can see it
    add_to_row(hit.index, {key.hash << 1, value}, partition.log.sequence());
    return true;
  }
  SharedStep step;
  if (!log_moved_on) begin_shared_step(partition, step);
  partition.log.append({key.hash, value, log_word(LogKind::kUpsert, rows_[hit.index].epoch)});
  memory_.fence();  // the record (and the step's buckets), before anyone can see it
  replace_in_row(partition, now, {key.hash << 1, value});
  if (!log_moved_on) end_shared_step(partition, step);
  return true;
}

void Core::replace_in_row(Partition& partition, const Hit& hit, Record record) {
  pm::store_release(*hit.value_at, record.value);
  pm::store_release(*hit.tag_at, record.tag);
  if (!out_of_place_) return;
  payload_->note_dead(hit.value, hit.live() ? PayloadLog::Part::kAll : PayloadLog::Part::kRest);
  partition.garbage_bytes += payload_->bytes_of(hit.value);
}

bool Core::remove_record(const Key& key) {
  prefetch_write(key.hash, Reach::kBuckets);
  Partition& partition = partitions_[partition_of(key.hash)];
  const std::lock_guard lock(partition.lock);
  require_writable();
  const uint64_t row = row_for(key.hash);
  rebuild_row(row);
  Hit hit;
  if (search(key, hit) != Found::kHit || !hit.live()) return false;
  if (hit.level == 0) {
    make_log_room(partition, 1);
    // Making room may have moved the row down.
    if (search(key, hit) != Found::kHit) return false;
  }
  if (out_of_place_) {
    payload_->note_dead(hit.value, PayloadLog::Part::kValue);
    partition.garbage_bytes += payload_->bytes_of(hit.value);
  }
  if (hit.level == 0) {
    partition.log.append({key.hash, hit.value, log_word(LogKind::kTombstone, rows_[row].epoch)});
    memory_.fence();  // the record, before anyone can see it
    pm::store_release(*hit.tag_at, hit.tag | 1);
    return true;
  }
  // One atomic store: the newest version of the key becomes its own tombstone.
  {
    const SequenceWrite guard(rows_[row]);  // nobody sees it gone before that is durable
    pm::store_release(*hit.tag_at, hit.tag | 1);
    memory_.persist(hit.tag_at, sizeof(uint64_t));
  }
  follow_change(partition, key, hit, hit.tag | 1, hit.value);
  if (hit.level == top_of(number_of(partition))) return true;
  const Place place = place_at(hit.level, hit.index);
  DirectoryLine& line = place.entry->lines[0];
  const LineState state{pm::load_relaxed(line.state)};
  const uint32_t removed = state.hint() + 1;
  // A hint, not flushed: how many records of the entry were removed in place.
  pm::store_release(line.state, state.with_hint(removed).word);
  if (removed % 8 == 0 && removed * 4 >= used(place)) {
    compact(hit.level, hit.index);
  }
  return true;
}

void Core::collect_if_grown(Partition& partition) {
  const uint32_t number = number_of(partition);
  if (payload_->chunks(number).size() <= partition.payload_chunks) return;
  collect_payload(partition, false);
  partition.payload_chunks = payload_->chunks(number).size();
}

uint64_t Core::store_payload(Partition& partition, const Key& key, std::string_view value,
                             PayloadLog::Flush flush) {
  const uint32_t number = number_of(partition);
  collect_if_grown(partition);
  for (;;) {
    try {
      return payload_->append(number, key.bytes, value, flush);
    } catch (const Error& error) {
      if (!pm::is_full(error) || !free_payload(partition)) throw;
    }
  }
}

// ---- the recovery log's chunks

bool Core::make_log_room(Partition& partition, uint64_t records) {
  if (partition.unlogged) [[unlikely]]
    settle_payload(partition);  // before the record, which may lead to it
  if (partition.log.has_room(records)) [[likely]]
    return false;
  while (!partition.log.next_is_free()) reclaim_log_chunk(partition);
  partition.log.advance();
  // At once, while the new chunk has room for whatever must be copied.
  while (!partition.log.next_is_free()) reclaim_log_chunk(partition);
  return true;
}

bool Core::copy_row_to_log(Partition& partition, uint64_t row) {
  Row& state = rows_[row];
  const uint32_t count = state.count.load(std::memory_order_relaxed);
  if (!partition.log.has_room(count + 2)) return false;
  const Bucket& bucket = row_records_[row];
  for (uint32_t i = 0; i < count; ++i) {
    const LogKind kind = (bucket.tags[i] & 1) != 0 ? LogKind::kTombstone : LogKind::kUpsert;
    partition.log.append({full_hash(bucket.tags[i], index_of_row(row), level_of_row(row)),
                          bucket.values[i], log_word(kind, state.epoch)});
  }
  state.first_chunk = static_cast<uint16_t>(partition.log.sequence());
  return true;
}

// With a full log the row moves down. If that has no room, the copies of the rows before it are durable at
// least: another thread may take their originals for superseded.
void Core::copy_or_move(Partition& partition, uint64_t row) {
  if (copy_row_to_log(partition, row)) return;
  try {
    flush_row(partition, row);
  } catch (...) {
    memory_.fence();
    throw;
  }
}

void Core::reclaim_log_chunk(Partition& partition) {
  const uint64_t oldest = partition.log.oldest();
  const RowRange range = rows_in(number_of(partition));
  for (uint64_t row = range.begin; row < range.end; ++row) {
    if (rows_[row].count.load(std::memory_order_relaxed) == 0) continue;
    if (rows_[row].first_chunk != static_cast<uint16_t>(oldest)) continue;
    copy_or_move(partition, row);
  }
  memory_.fence();  // the copies, before the chunk that held the originals is used again
  partition.log.release_before(oldest + 1);
}

void Core::compact_log(Partition& partition) {
  const RowRange range = rows_in(number_of(partition));
  uint64_t records = 0;
  for (uint64_t row = range.begin; row < range.end; ++row) {
    records += rows_[row].count.load(std::memory_order_relaxed);
  }
  // Not worth it if the log holds little else.
  if (partition.log.live_bytes() < 2 * records * pm::TornBitLog::kRecordBytes + pm::kPageBytes)
    return;
  log_all_rows(partition);
}

}  // namespace perdure::index::plush
