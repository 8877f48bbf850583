// Going through the keys of a database.
#include <algorithm>

#include "server/command_error.h"
#include "server/keyspace.h"
#include "store/cursor.h"
#include "store/hash_index.h"

namespace perdure::server {

namespace {

constexpr size_t kCursorsMax = 16384;
constexpr uint64_t kTags = store::HashIndex::kTags;
// Longer values are not read ahead, but when they are visited.
constexpr uint32_t kValueAheadBytes = 64 << 10;

}  // namespace

void Keyspace::scan(std::string_view from, bool downwards, uint64_t wanted, const Visit& visit,
                    bool keys_only) const {
  require_shown();
  turn_.store().require_ordered();
  turn_.require_all_ready();
  store::StoreCursor cursor(turn_.store(), std::max<uint64_t>(wanted, 1), nullptr,
                            kValueAheadBytes);
  cursor.seek({.key = from, .downwards = downwards, .keys_only = keys_only});
  const auto step = [&] { downwards ? cursor.previous() : cursor.next(); };
  std::string longer;
  const auto visit_current = [&] {
    if (cursor.has_value()) return visit(cursor.key(), cursor.value());
    // As it was read ahead: nobody else writes meanwhile, and `visit` changes what is behind it. A
    // copy, as all that is visited: `visit` may write.
    store::Partition::Found found{};
    if (!turn_.get(cursor.key(), now_ms_, found)) return true;
    longer.assign(found.value);
    return visit(cursor.key(), longer);
  };
  if (group_.empty()) {
    for (; cursor.valid(); step()) {
      if (!visit_current()) return;
    }
    return;
  }
  // Merged with what the open group has, which is newer. Copies: `visit` may write, and a group
  // that has become too large goes to the store meanwhile.
  std::vector<std::pair<std::string, Pending>> pending;
  if (downwards) {
    for (auto at = group_.upper_bound(from); at != group_.begin();) {
      --at;
      pending.emplace_back(at->first, at->second);
    }
  } else {
    for (auto at = group_.lower_bound(from); at != group_.end(); ++at) {
      pending.emplace_back(at->first, at->second);
    }
  }
  const auto comes_first = [&](std::string_view a, std::string_view b) {
    return downwards ? a > b : a < b;
  };
  size_t i = 0;
  while (i < pending.size() || cursor.valid()) {
    if (i == pending.size() || (cursor.valid() && comes_first(cursor.key(), pending[i].first))) {
      if (!visit_current()) return;
      step();
      continue;
    }
    const auto& [key, write] = pending[i++];
    if (cursor.valid() && cursor.key() == key) step();
    if (write.value && !visit(key, *write.value)) return;
  }
}

void Keyspace::visit_keys(uint32_t database, std::string_view from, uint64_t wanted,
                          const VisitKey& visit, bool with_types) const {
  require_shown();
  turn_.require_all_ready();
  if (!ordered_) {
    bool goes_on = true;
    turn_.store().for_each([&](std::string_view raw, std::string_view value) {
      const auto name = name_of(raw);
      if (goes_on && name && name->database == database) {
        goes_on = visit(raw, name->key, type_of(value));
      }
    });
    return;
  }
  // Ranges of records that are keys of the database: from the first, while they begin with the
  // second.
  std::string scratch{"\0k", 2};
  scratch += static_cast<char>(database);
  struct Range {
    std::string_view from;
    std::string_view prefix;
  };
  std::vector<Range> ranges{{scratch, scratch}};
  if (database == 0) ranges = {{"", ""}, {scratch, scratch}, {{"\1", 1}, ""}};
  bool goes_on = true;
  for (size_t i = 0; i < ranges.size() && goes_on; ++i) {
    const bool is_empty_key = database == 0 && i == 0;
    const std::string_view begin = std::max(from, ranges[i].from);
    scan(
        begin, false, is_empty_key ? 1 : wanted,
        [&](std::string_view raw, std::string_view) {
          if (is_empty_key ? !raw.empty() : !raw.starts_with(ranges[i].prefix)) return false;
          const auto name = name_of(raw);
          goes_on = !name || visit(raw, name->key, with_types ? find(raw).type : Type::kNone);
          return goes_on && !is_empty_key;
        },
        true);
  }
}

void Keyspace::visit_some_keys(uint32_t database, uint64_t random, const VisitKey& visit) const {
  turn_.require_all_ready();
  const uint64_t partitions = turn_.store().partitions();
  bool any = false;
  bool goes_on = true;
  for (uint64_t i = 0; i < partitions && !any; ++i) {
    any = turn_.for_some((random + i) % partitions, random / partitions, now_ms_,
                         [&](std::string_view raw, const store::Partition::Found& found) {
                           const auto name = name_of(raw);
                           if (!name || name->database != database) return false;
                           if (goes_on) goes_on = visit(raw, name->key, type_of(found.value));
                           return true;
                         });
  }
}

uint64_t Keyspace::scan_keys(uint32_t database, uint64_t cursor, uint64_t count,
                             const VisitKey& visit, bool with_types) {
  return ordered_ ? scan_ordered(database, cursor, count, visit, with_types)
                  : scan_tags(database, cursor, count, visit);
}

// The cursor numbers a place that is kept here.
uint64_t Keyspace::scan_ordered(uint32_t database, uint64_t cursor, uint64_t count,
                                const VisitKey& visit, bool with_types) {
  std::string from;
  if (cursor != 0) {
    const auto found = cursors_.find(cursor);
    if (found == cursors_.end() || found->second.database != database) {
      throw CommandError("ERR invalid cursor: the scan is too old, or of another server");
    }
    from = found->second.from;
  }
  uint64_t visited = 0;
  std::string next;
  bool ended = true;
  visit_keys(
      database, from, count + 1,
      [&](std::string_view raw, std::string_view key, Type type) {
        if (visited == count) {
          next = raw;
          ended = false;
          return false;
        }
        ++visited;
        return visit(raw, key, type);
      },
      with_types);
  if (ended) return 0;
  cursors_.emplace(next_cursor_, ScanPlace{next, database});
  if (cursors_.size() > kCursorsMax) cursors_.erase(cursors_.begin());
  return next_cursor_++;
}

// The cursor is a partition and a tag of its index.
uint64_t Keyspace::scan_tags(uint32_t database, uint64_t cursor, uint64_t count,
                             const VisitKey& visit) {
  require_shown();
  turn_.require_all_ready();
  uint64_t number = cursor / kTags;
  uint64_t tag = cursor % kTags;
  uint64_t visited = 0;
  while (number < turn_.store().partitions() && visited < count) {
    const uint64_t records = std::max<uint64_t>(turn_.records(number), 1);
    const uint64_t step = std::max<uint64_t>(kTags / records * std::min(count, records), 1);
    const uint64_t end = std::min(tag + step, kTags);
    turn_.for_tags(number, tag, end, now_ms_,
                   [&](std::string_view raw, const store::Partition::Found& found) {
                     const auto name = name_of(raw);
                     if (!name || name->database != database) return;
                     visit(raw, name->key, type_of(found.value));
                     ++visited;
                   });
    tag = end;
    if (tag == kTags) tag = 0, ++number;
  }
  return number == turn_.store().partitions() ? 0 : number * kTags + tag;
}

uint64_t Keyspace::count_keys(uint32_t database, uint64_t limit) const {
  require_shown();
  turn_.require_all_ready();
  store::Partition::Found found{};
  // Of a copy that is made beside what is there nobody knows how many records it has.
  const bool stages = turn_.get(local_key(kStaging), now_ms_, found);
  if (!has_collections_ && !has_databases_ && !stages) {
    if (database != 0) return 0;
    const uint64_t records = turn_.store().size();
    return records - std::min(records, own_records());
  }
  uint64_t count = 0;
  visit_keys(database, "", 1024,
             [&](std::string_view, std::string_view, Type) { return ++count < limit; });
  return count;
}

// One record in each partition's log, rather than one for each key. Without collections, whose keys
// and elements stand in several partitions, and without what the server notes for itself of leaders
// and followers.
void Keyspace::flush_all() {
  turn_.require_all_ready();
  finish_turn();
  for (const auto& [raw, watchers] : watchers_) {
    if (find(raw)) touch(raw);
  }
  // The note that there are other databases goes last, when they have.
  store::StoreImpl& store = turn_.store();
  const uint32_t last = store.place_of(note_key('d')).number;
  for (uint32_t i = 1; i <= store.partitions(); ++i) {
    store.remove_prefix("", {(last + i) % store.partitions()});
  }
  has_databases_ = databases_noted_ = false;
}

void Keyspace::flush(uint32_t database) {
  require_leader();
  const bool is_all = database == ~uint32_t{0} || (database == 0 && !has_databases_);
  if (is_all && !ordered_ && !has_collections_ && !in_group_ && own_records() == 0) {
    return flush_all();
  }
  constexpr size_t kChunk = 4096;
  for (uint32_t one = 0; one < kDatabases; ++one) {
    if (database != one && database != ~uint32_t{0}) continue;
    uint64_t cursor = 0;
    do {
      std::vector<std::string> keys;
      cursor = scan_keys(one, cursor, kChunk, [&](std::string_view raw, std::string_view, Type) {
        keys.emplace_back(raw);
        return true;
      });
      for (const std::string& raw : keys) remove(raw);
      finish_turn();  // what is removed now may be told, and the next part may be long
    } while (cursor != 0);
  }
}

}  // namespace perdure::server
