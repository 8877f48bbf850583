// Writing single records: log, fence, row.
#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "index/plush/core.h"

namespace perdure::index::plush {

bool Core::miss_outside(LogKind kind, uint64_t key) const {
  if (kind == LogKind::kUpdate) return false;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: '{}' was made for keys from {} to {}; {} is outside",
                          pool_.mapping().path(), name_, keys_.min(), keys_.max(), key));
}

bool Core::write(LogKind kind, uint64_t key, uint64_t value, Logging logging) {
  if (!keys_.is_inside(key)) return miss_outside(kind, key);
  const Key hashed{keys_.hash_of_word(key), {}};
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
  if (!keys_.is_inside(key)) return miss_outside(kind, Keys::word_of(key));
  const Key hashed = key_of(key);
  return with_payload_freed(hashed, [&] {
    if (logging == Logging::kOff) return write_unlogged(kind, hashed, 0, value);
    return write_record(kind, hashed, 0, value);
  });
}

template <typename Write>
bool Core::with_payload_freed(const Key& key, Write write) {
  for (size_t times = 0;; ++times) {
    try {
      return write();
    } catch (const Error& error) {
      // Nothing was changed. Where a bucket found no room, payload garbage may have some.
      if (!pm::is_full(error) || !free_payload(key, times)) throw;
    }
  }
}

bool Core::exchange(uint64_t key, uint64_t expected, uint64_t value) {
  if (!keys_.is_inside(key)) return false;
  return exchange_record({keys_.hash_of_word(key), {}}, {.word = expected}, value, {});
}

bool Core::exchange(std::string_view key, std::string_view expected, std::string_view value) {
  require_sizes(key, value);
  if (!keys_.is_inside(key)) return false;
  const Key hashed = key_of(key);
  return with_payload_freed(hashed,
                            [&] { return exchange_record(hashed, {.bytes = expected}, 0, value); });
}

bool Core::free_payload(const Key& key, size_t times) {
  Partition& partition = partitions_.of(key.hash);
  const std::lock_guard lock(partition.lock);
  require_writable();
  return collector_.make_room(partition, times);
}

bool Core::remove(uint64_t key) {
  return keys_.is_inside(key) && remove_record({keys_.hash_of_word(key), {}});
}

bool Core::remove(std::string_view key) {
  return keys_.is_inside(key) && remove_record(key_of(key));
}

bool Core::remove_if(uint64_t key, uint64_t expected) {
  const Expected value{.word = expected};
  return keys_.is_inside(key) && remove_record({keys_.hash_of_word(key), {}}, &value);
}

bool Core::remove_if(std::string_view key, std::string_view expected) {
  const Expected value{.bytes = expected};
  return keys_.is_inside(key) && remove_record(key_of(key), &value);
}

// Under the partition's lock, without which nobody gives the key another value.
bool Core::has_value(const Hit& hit, const Expected& expected) const {
  if (!payload_.is_used()) return hit.value == expected.word;
  const pm::EpochManager::Guard guard(payload_.log().epochs());
  return payload_.view_of(hit.value).value == expected.bytes;
}

bool Core::write_record(LogKind kind, const Key& key, uint64_t value, std::string_view payload) {
  lookup_.prefetch_write(key.hash, reach_of(kind));
  Partition& partition = partitions_.of(key.hash);
  const std::lock_guard lock(partition.lock);
  require_writable();
  return write_locked(partition, kind, key, value, payload);
}

// The key is there, so what is logged is an upsert: recovery need not judge what was judged here.
bool Core::exchange_record(const Key& key, const Expected& expected, uint64_t value,
                           std::string_view payload) {
  lookup_.prefetch_write(key.hash, Reach::kBuckets);
  Partition& partition = partitions_.of(key.hash);
  const std::lock_guard lock(partition.lock);
  require_writable();
  levels_.load_epoch(geometry_.row_for(key.hash));
  Hit hit;
  if (lookup_.search(key, hit) != Found::kHit || !hit.live()) return false;
  if (!has_value(hit, expected)) return false;
  return write_locked(partition, LogKind::kUpsert, key, value, payload);
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
  const uint64_t row = geometry_.row_for(key.hash);
  levels_.load_epoch(row);
  Hit hit;
  if (lookup_.search_row(row, key, hit) == Found::kHit) {
    return overwrite_row(partition, kind, key, value, payload, hit);
  }
  const uint32_t count = rows_.count(row);
  // Where the record will go, so that nobody has to wait for these stores to become visible.
  pm::prefetch_to_change(&rows_.records(row).tags[count]);
  pm::prefetch_to_change(&rows_.records(row).values[count]);
  const bool moves_down = count >= kRowFull;
  if (moves_down) {
    const uint32_t top = geometry_.level_of_row(row);
    levels_.prefetch_end(top, Geometry::index_of_row(row));
    levels_.prefetch_copy(top, Geometry::index_of_row(row));
  }
  // Nor may recovery judge the condition of a record by what a process that died may have left in
  // the caches only, such as the tag of a removal: a power failure could bring that back, and the
  // last record, though acknowledged, would count for nothing.
  const bool check_first =
      conditional && (moves_down || payload_.is_used() || pool_.may_be_unflushed());
  if (check_first && lookup_.present_below(key, wants_present) != wants_present) return false;
  Record record{key.hash << 1, value};
  if (payload_.is_used()) {
    record.value = collector_.store(partition, key, payload, PayloadLog::Flush::kNow);
    if (kind != LogKind::kInsert) collector_.note_written(partition, record.value);
  }
  const bool log_moved_on = log_.make_room(partition, 2);  // enough for one operation
  // Not `moves_down`: making room may have moved this very row down.
  if (rows_.count(row) >= kRowFull) {
    complete_row(partition, row, record);
    return true;
  }
  Migrator::SharedStep step;
  if (!log_moved_on) migrator_.begin_shared_step(partition, step);
  const LogKind logged = check_first ? LogKind::kUpsert : kind;
  const uint64_t word = log_word(logged, rows_[row].epoch);
  partition.log.append({key.hash, record.value, word});
  // The record is on its way to PM while the filters below are read. If its condition fails, the
  // next record says so; until then recovery judges the condition itself.
  const auto holds = [&] {
    try {
      return lookup_.present_below(key, wants_present) == wants_present;
    } catch (const Error&) {  // damage: it did not happen
      partition.log.append({0, 0, log_word(LogKind::kCancel, 0)});
      throw;
    }
  };
  if (conditional && !check_first && !holds()) {
    partition.log.append({0, 0, log_word(LogKind::kCancel, 0)});
    // Before another thread of the partition goes on: recovery judges the last record only.
    memory_.fence();
    if (step.planned) migrator_.end_shared_step(partition, step);
    return false;
  }
  memory_.fence();  // the record (and payload, and the step's buckets), before anyone can see it
  rows_.add(row, record, partition.log.sequence());
  if (!log_moved_on) migrator_.end_shared_step(partition, step);
  return true;
}

void Core::complete_row(Partition& partition, uint64_t row, Record record) {
  rows_.put_last(row, record);
  migrator_.append_row(partition, row, kSlots);
}

bool Core::overwrite_row(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                         std::string_view payload, const Hit& hit) {
  if (kind == LogKind::kInsert && hit.live()) return false;
  if (kind == LogKind::kUpdate && !hit.live()) return false;
  if (payload_.is_used())
    value = collector_.store(partition, key, payload, PayloadLog::Flush::kNow);
  const bool log_moved_on = log_.make_room(partition, 2);  // enough for one operation
  Hit now;
  // Either call may have moved the row down, and this record with it.
  if (lookup_.search_row(hit.index, key, now) != Found::kHit) {
    partition.log.append({key.hash, value, log_word(LogKind::kUpsert, rows_[hit.index].epoch)});
    memory_.fence();  // the record, before anyone can see it
    rows_.add(hit.index, {key.hash << 1, value}, partition.log.sequence());
    return true;
  }
  Migrator::SharedStep step;
  if (!log_moved_on) migrator_.begin_shared_step(partition, step);
  partition.log.append({key.hash, value, log_word(LogKind::kUpsert, rows_[hit.index].epoch)});
  memory_.fence();  // the record (and the step's buckets), before anyone can see it
  replace_in_row(partition, now, {key.hash << 1, value});
  if (!log_moved_on) migrator_.end_shared_step(partition, step);
  return true;
}

void Core::replace_in_row(Partition& partition, const Hit& hit, Record record) {
  pm::store_release(*hit.value_at, record.value);
  pm::store_release(*hit.tag_at, record.tag);
  if (!payload_.is_used()) return;
  collector_.note_garbage(partition, hit.value,
                          hit.live() ? PayloadLog::Part::kAll : PayloadLog::Part::kRest);
}

bool Core::remove_record(const Key& key, const Expected* expected) {
  lookup_.prefetch_write(key.hash, Reach::kBuckets);
  Partition& partition = partitions_.of(key.hash);
  const std::lock_guard lock(partition.lock);
  require_writable();
  const uint64_t row = geometry_.row_for(key.hash);
  levels_.load_epoch(row);
  Hit hit;
  if (lookup_.search(key, hit) != Found::kHit || !hit.live()) return false;
  if (expected != nullptr && !has_value(hit, *expected)) return false;
  if (hit.level == 0) {
    log_.make_room(partition, 1);
    // Making room may have moved the row down.
    if (lookup_.search(key, hit) != Found::kHit) return false;
  }
  if (payload_.is_used()) {
    collector_.note_garbage(partition, hit.value, PayloadLog::Part::kValue);
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
    memory_.persist(hit.tag_at, sizeof(uint64_t));  // before anybody can miss it
  }
  migrator_.follow_change(partition, key, hit, hit.tag | 1, hit.value);
  if (hit.level == geometry_.top_of(partitions_.number_of(partition))) return true;
  const uint32_t removed = levels_.count_removed(hit.level, hit.index);
  const bool thin =
      removed % 8 == 0 && removed * 4 >= Levels::used(levels_.place_at(hit.level, hit.index));
  // One that is being migrated is empty soon; until then it must show what its migration still has
  // to append.
  if (thin && !Migrator::is_migrating(partition, hit.level, hit.index))
    migrator_.compact(hit.level, hit.index);
  return true;
}

}  // namespace perdure::index::plush
