// Migrating full entries into the next level, in steps.
//
// An entry that has no room for another row waits in its partition's queue. The operations that
// follow in the partition each do one step of the migration in front, so that no single one pays
// for all of it: gather what is live, half of it at a time; group it by child; append to one child,
// and to the next, and so on; at last empty the source. What an append writes first, before anyone
// can see it, becomes durable with the fence of the operation's own log record.
//
// While a migration is under way nobody appends to its source (whoever must, finishes it first),
// and an entry's children are appended to by migrations of that entry only. Records are in both
// levels then, the upper ones win; that is also what a crash leaves, and migrating again is
// harmless. When a record of the source changes in place, what the migration has grouped or
// appended of it changes alike; what it has only gathered it gathers again.
#include "index/plush/migrator.h"

#include <fmt/core.h>

#include <algorithm>

namespace perdure::index::plush {

namespace {

constexpr uint32_t kStepChildren = 1;                 // that one step appends to
constexpr uint32_t kStepRecords = kEntryRecords / 2;  // that one step gathers
// With less room than this in the pool an entry is migrated when it must be, at once: a migration
// that stops half-way for want of room has put records below that are put there again the next
// time.
constexpr uint64_t kMigrateSegments = 8;
// An entry is not rewritten for fewer superseded records: half a bucket.
constexpr uint32_t kLitterMin = kSlots / 2;
// A full entry of the last level is rewritten in place if that frees one in so many of its records.
constexpr uint32_t kThinOf = 8;
bool is_thin(uint32_t live, uint32_t used) { return live * kThinOf <= used * (kThinOf - 1); }
// Where records are overwritten, the first level is migrated at one in so many of the records
// below.
constexpr uint32_t kRoomShare = 6;
constexpr uint32_t kRoomMin = 3 * kSlots;
constexpr uint32_t kOverwrittenOf = 32;
// Of the entries of a partition's second level, when they are made. One that needs more gets twice
// as many, and its siblings with it.
constexpr uint32_t kFirstLines = 2;

}  // namespace

Migrator::Migrator(pm::PoolImpl& pool, const Root& root, Geometry& geometry, const Rows& rows,
                   Levels& levels, const Lookup& lookup, const Payload& payload,
                   const Partitions& partitions, uint32_t garbage_percent)
    : pool_(pool),
      memory_(pool.memory()),
      root_(root),
      geometry_(geometry),
      rows_(rows),
      levels_(levels),
      lookup_(lookup),
      payload_(payload),
      partitions_(partitions),
      garbage_percent_(garbage_percent) {
  for (uint32_t i = 0; i < partitions.count(); ++i) set_overflows_max(i);
}

// ---- what is live

void Migrator::gather(uint32_t level, uint64_t index, Gathered& out) const {
  begin_gather(level, index, out);
  gather_some(level, index, out.left, out);
  drop_tombstones(level, index, out);
}

void Migrator::begin_gather(uint32_t level, uint64_t index, Gathered& out) const {
  std::ranges::fill(out.places, uint16_t{0});
  out.used = levels_.records_in(level, index);
  out.left = out.used;
  out.count = 0;
  out.dropped_count = 0;
}

void Migrator::gather_some(uint32_t level, uint64_t index, uint32_t most, Gathered& out) const {
  const Entry& entry = *levels_.entry_at(level, index);
  for (const uint32_t end = out.left - std::min(out.left, most); out.left > end;) {
    const uint32_t at = --out.left;
    const uint32_t b = at / kSlots;
    const Bucket& bucket = levels_.bucket_of(entry, b);
    const uint64_t tag = bucket.tags[at % kSlots];
    const uint64_t value = bucket.values[at % kSlots];
    uint64_t place = (tag >> 1) % Gathered::kPlaces;
    bool newest = true;
    while (out.places[place] != 0 && newest) {
      const uint32_t other = out.places[place] - 1U;
      newest = !payload_.is_same(tag, value, out.tags[other], out.values[other]);
      place = (place + 1) % Gathered::kPlaces;
    }
    if (!newest) {
      out.dropped[out.dropped_count++] = {tag, value};
      continue;
    }
    // Its payload has gone: a newer record is in the row or above. If there is none it is damaged,
    // and stays, so that lookups report it.
    if (payload_.is_used() && !payload_.log().alive(value) &&
        lookup_.is_superseded(level, geometry_.full_hash(tag, index, level))) {
      continue;
    }
    out.tags[out.count] = tag;
    out.values[out.count] = value;
    out.places[place] = static_cast<uint16_t>(++out.count);
  }
}

// A tombstone vanishes where nothing below could be what it hides.
void Migrator::drop_tombstones(uint32_t level, uint64_t index, Gathered& out) const {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < out.count; ++i) {
    const bool tombstone = (out.tags[i] & 1) != 0;
    if (tombstone && !levels_.may_be_below(level, geometry_.full_hash(out.tags[i], index, level))) {
      out.dropped[out.dropped_count++] = {out.tags[i], out.values[i]};
      continue;
    }
    out.tags[kept] = out.tags[i];
    out.values[kept++] = out.values[i];
  }
  out.count = kept;
}

// ---- steps

void Migrator::migrate(Partition& partition, uint32_t level, uint64_t index, uint32_t needed) {
  // What is under way first: it may be this entry, or one above or below it.
  while (!partition.migrations.empty()) try_step(partition, geometry_.fanout());
  if (levels_.records_in(level, index) + needed <= kEntryRecords) return;
  push(partition, level, index, needed, Migration::Why::kFull);
  try {
    while (!partition.migrations.empty()) step(partition, geometry_.fanout());
  } catch (...) {
    partition.migrations.clear();  // the sources are as they were
    throw;
  }
}

bool Migrator::is_migrating(const Partition& partition, uint32_t level, uint64_t index) {
  return std::ranges::any_of(partition.migrations, [&](const auto& migration) {
    return migration->level == level && migration->index == index;
  });
}

void Migrator::migrate_some(Partition& partition) {
  if (!partition.migrations.empty()) {
    try_step(partition, kStepChildren);
  } else if (partition.overflows >= partition.overflows_max) [[unlikely]] {
    grow_if_due(partition);
  } else if (!partition.full_rows.empty() && !pool_.heap().is_scarce(kMigrateSegments)) {
    const uint64_t row = partition.full_rows.front();
    partition.full_rows.pop_front();
    push(partition, geometry_.level_of_row(row), Geometry::index_of_row(row), kSlots,
         Migration::Why::kFull);
  }
}

void Migrator::try_step(Partition& partition, uint32_t children) {
  try {
    step(partition, children);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    // The sources are as they were. Whoever needs room in them tries again, and reports it if there
    // is none.
    partition.migrations.clear();
  }
}

void Migrator::push(Partition& partition, uint32_t level, uint64_t index, uint32_t needed,
                    Migration::Why why) const {
  std::unique_ptr<Migration> migration(new Migration);  // not zeroed
  migration->level = level;
  migration->index = index;
  migration->needed = needed;
  migration->why = why;
  migration->phase = Migration::Phase::kFull;
  migration->rewritten = ~uint64_t{0};
  migration->superseding = 0;
  partition.migrations.push_back(std::move(migration));
  const uint32_t used =
      levels_.records_in(level, index);  // the first step reads the newest of them
  levels_.prefetch_records(level, index, used - std::min(used, kStepRecords), used);
}

void Migrator::follow_change(Partition& partition, const Key& key, const Hit& before, uint64_t tag,
                             uint64_t value) const {
  for (const auto& one : partition.migrations) {
    Migration& migration = *one;
    if (migration.level != before.level || migration.index != before.index) continue;
    if (migration.phase != Migration::Phase::kAppend) {
      migration.phase =
          Migration::Phase::kFull;  // gathered anew: which is so rare that it need not be fast
      continue;
    }
    const auto child = static_cast<uint32_t>(geometry_.index_at(migration.level + 1, key.hash) &
                                             (geometry_.fanout() - 1));
    if (child < migration.next_child) {
      Hit copy;
      if (lookup_.search_levels(migration.level + 1, key, copy) != Found::kHit) continue;
      if (copy.value != before.value) continue;
      pm::store_release(*copy.value_at, value);
      pm::store_release(*copy.tag_at, tag);
      memory_.flush(copy.value_at, sizeof(uint64_t));
      memory_.flush(copy.tag_at, sizeof(uint64_t));
      memory_.fence();  // before the source, which is above it until then, is emptied
      continue;
    }
    for (uint32_t i = migration.begins[child]; i < migration.begins[child + 1]; ++i) {
      if (migration.tags[i] >> 1 != tag >> 1 || migration.values[i] != before.value) continue;
      migration.tags[i] = tag;
      migration.values[i] = value;
    }
  }
}

void Migrator::step(Partition& partition, uint32_t children) {
  Migration& migration = *partition.migrations.back();
  const uint32_t level = migration.level;
  const uint64_t index = migration.index;
  switch (migration.phase) {
    case Migration::Phase::kFull:
      // It may have been emptied, or have lost records, since it was found full.
      if (migration.why == Migration::Why::kFull &&
          levels_.records_in(level, index) + migration.needed <= levels_.room_in(level, index)) {
        return partition.migrations.pop_back();
      }
      begin_gather(level, index, migration.all);
      migration.phase = Migration::Phase::kGather;
      [[fallthrough]];
    case Migration::Phase::kGather:
      gather_some(level, index, kStepRecords, migration.all);
      levels_.prefetch_records(level, index,
                               migration.all.left - std::min(migration.all.left, kStepRecords),
                               migration.all.left);
      if (migration.all.left > 0) return;
      migration.phase = Migration::Phase::kGroup;
      prefetch_count_of_child(migration, 0);
      return;
    case Migration::Phase::kGroup:
      if (migration.why == Migration::Why::kLitter) {
        clear_litter(partition, migration);
        return partition.migrations.pop_back();
      }
      if (!group(partition, migration)) partition.migrations.pop_back();
      return;
    case Migration::Phase::kAppend:
      break;
  }
  if (migration.next_child == geometry_.fanout()) {
    choose_room(migration);
    levels_.release_source(level, index);
    payload_.account_garbage(migration.all.superseded());
    return partition.migrations.pop_back();
  }
  if (!levels_.has_children(level, index)) {
    const bool is_second = level == geometry_.top_above(level, index);
    return levels_.ensure_children(level, index, is_second ? kFirstLines : kLines);
  }
  uint32_t end = std::min(migration.next_child + children, geometry_.fanout());
  for (uint32_t child = migration.next_child; child < end; ++child) {
    const Append append = append_of_child(migration, child);
    if (append.count == 0) continue;
    const bool fits = append.start + append.count <= append.room;
    if (fits && !is_littered(migration, append)) continue;
    if (child > migration.next_child) {
      end = child;  // those before it first: its rewriting takes only what the next child waits for
      break;
    }
    if (push_if_littered(partition, migration, append)) return;
    return push(partition, append.level, append.index, append.count, Migration::Why::kFull);
  }
  append_children(migration, end);
}

// ---- what is superseded

bool Migrator::is_littered(const Migration& migration, const Append& append) const {
  if (append.index == migration.rewritten || append.start == 0) return false;
  const uint64_t litter = levels_.superseded_in(append.level, append.index);
  const uint64_t coming = overwrites(migration) ? append.count : 0;
  if (litter + coming < kLitterMin) return false;
  const uint64_t live = append.start - std::min<uint64_t>(append.start, litter);
  if ((litter + coming) * 100 < live * garbage_percent_) return false;
  return !levels_.has_children(append.level,
                               append.index);  // above others it is emptied before long
}

bool Migrator::push_if_littered(Partition& partition, Migration& migration,
                                const Append& append) const {
  if (!is_littered(migration, append)) [[likely]]
    return false;
  migration.rewritten = append.index;
  const uint32_t coming = overwrites(migration) ? append.count : 0;
  push(partition, append.level, append.index, coming, Migration::Why::kLitter);
  return true;
}

// Fingerprints and filters count a few records too many, so it may prove not to be worth it.
void Migrator::clear_litter(Partition& partition, Migration& migration) const {
  Gathered& all = migration.all;
  uint32_t left = all.used - all.count;
  if (uint64_t{left + migration.needed} * 200 >= uint64_t{all.count} * garbage_percent_) {
    try {
      Migration* above = waiting_for(partition, migration);
      const uint32_t room = levels_.place_at(migration.level, migration.index).records();
      if (above != nullptr && all.count + count_new(*above, all) <= room) {
        rewrite_with(*above, migration.level, migration.index, all);
      } else {
        drop_tombstones(migration.level, migration.index, all);
        rewrite(migration.level, migration.index, all);
      }
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
    }
    left = 0;  // also where the pool has no room for it: not again at once
  }
  levels_.set_superseded(migration.level, migration.index, left);
}

// ---- what a migration has for an entry that is rewritten

Migration* Migrator::waiting_for(const Partition& partition, const Migration& migration) const {
  if (partition.migrations.size() < 2) return nullptr;
  Migration& above = *partition.migrations[partition.migrations.size() - 2];
  const bool waits = above.phase == Migration::Phase::kAppend &&
                     above.level + 1 == migration.level &&
                     (above.index << geometry_.fanout_bits()) + above.next_child == migration.index;
  return waits ? &above : nullptr;
}

uint32_t Migrator::place_in(const Gathered& all, uint64_t tag, uint64_t value) const {
  uint64_t place = (tag >> 1) % Gathered::kPlaces;
  for (; all.places[place] != 0; place = (place + 1) % Gathered::kPlaces) {
    const uint32_t other = all.places[place] - 1U;
    if (payload_.is_same(tag, value, all.tags[other], all.values[other])) return other + 1;
  }
  return 0;
}

uint32_t Migrator::count_new(const Migration& migration, const Gathered& all) const {
  uint32_t count = 0;
  for (uint32_t i = migration.begins[migration.next_child];
       i < migration.begins[migration.next_child + 1]; ++i) {
    if (place_in(all, migration.tags[i], migration.values[i]) == 0) ++count;
  }
  return count;
}

void Migrator::rewrite(uint32_t level, uint64_t index, const Gathered& live) const {
  levels_.rewrite(level, index, {live.tags, live.count}, {live.values, live.count});
  payload_.account_garbage(live.superseded());
}

// The source of the migration has these records until it is emptied, so a crash before or after the
// entry was replaced leaves what one before or after an append leaves.
void Migrator::rewrite_with(Migration& migration, uint32_t level, uint64_t index,
                            Gathered& all) const {
  for (uint32_t i = migration.begins[migration.next_child];
       i < migration.begins[migration.next_child + 1]; ++i) {
    uint32_t at = place_in(all, migration.tags[i], migration.values[i]);
    if (at != 0) {
      ++migration.superseding;
      all.dropped[all.dropped_count++] = {all.tags[at - 1], all.values[at - 1]};
    } else {
      at = ++all.count;
    }
    all.tags[at - 1] = migration.tags[i];
    all.values[at - 1] = migration.values[i];
  }
  drop_tombstones(level, index, all);
  rewrite(level, index, all);
  ++migration.next_child;
  prefetch_next_child(migration);
}

// Returns false if the entry has room again where it is.
bool Migrator::group(Partition& partition, Migration& migration) {
  const uint32_t level = migration.level;
  const uint64_t index = migration.index;
  Gathered& all = migration.all;
  const bool last = !levels_.has_children(level, index);
  const Place place = levels_.place_at(level, index);
  // Enough of it was superseded, or is about to be.
  Migration* above = last ? waiting_for(partition, migration) : nullptr;
  if (above != nullptr && is_thin(all.count + count_new(*above, all), place.records())) {
    rewrite_with(*above, level, index, all);
    return false;
  }
  drop_tombstones(level, index, all);
  const bool fits = all.count + migration.needed <= place.records();
  const bool thin = fits && (all.count == 0 || (last && is_thin(all.count, all.used)));
  if (!thin && place.lines < kLines) {
    levels_.widen_children(level - 1, index >> geometry_.fanout_bits(), 2 * place.lines);
    return false;
  }
  if (migration.why != Migration::Why::kGrowth && (thin || level == geometry_.deepest())) {
    if (!fits) levels_.throw_too_deep();
    rewrite(level, index, all);
    return false;
  }
  note_overflow(level, index);
  group_by_child(migration);
  migration.next_child = 0;
  migration.phase = Migration::Phase::kAppend;
  prefetch_next_child(migration);
  return true;
}

void Migrator::group_by_child(Migration& migration) const {
  const Gathered& all = migration.all;
  const uint32_t shift = 64 - geometry_.level_bits(migration.level + 1);
  const auto child_of = [&](uint64_t tag) {
    return (tag >> 1 >> shift) & (geometry_.fanout() - 1);
  };
  uint32_t ends[kFanoutMax + 1] = {};
  for (uint32_t i = 0; i < all.count; ++i) ++ends[child_of(all.tags[i]) + 1];
  for (uint32_t child = 0; child < geometry_.fanout(); ++child) ends[child + 1] += ends[child];
  std::copy(ends, ends + geometry_.fanout() + 1, migration.begins);
  for (uint32_t i = 0; i < all.count; ++i) {
    const uint32_t at = ends[child_of(all.tags[i])]++;
    migration.tags[at] = all.tags[i];
    migration.values[at] = all.values[i];
  }
}

Append Migrator::append_of_child(const Migration& migration, uint32_t child) const {
  Append append;  // not zeroed
  append.level = migration.level + 1;
  append.index = (migration.index << geometry_.fanout_bits()) + child;
  const Place place = levels_.place_at(append.level, append.index);
  append.entry = place.entry;
  append.room = place.records();
  append.tags = migration.tags + migration.begins[child];
  append.values = migration.values + migration.begins[child];
  append.count = migration.count(child);
  append.start = levels_.records_in(append.level, append.index);
  append.counts_epoch = false;
  return append;
}

// For the next step: what an append to the child changes.
void Migrator::prefetch_next_child(const Migration& migration) const {
  if (migration.next_child == geometry_.fanout() ||
      !levels_.has_children(migration.level, migration.index))
    return;
  const uint64_t child = (migration.index << geometry_.fanout_bits()) + migration.next_child;
  levels_.prefetch_end(migration.level + 1, child);
  levels_.prefetch_copy(migration.level + 1, child);
  if (migration.next_child + 1 < geometry_.fanout())
    prefetch_count_of_child(migration, migration.next_child + 1);
}

// What levels_.prefetch_end() looks at.
void Migrator::prefetch_count_of_child(const Migration& migration, uint32_t child) const {
  if (!levels_.has_copy(migration.level + 1, migration.index << geometry_.fanout_bits())) return;
  DirectoryCache::prefetch_buckets(
      levels_.copy_at(migration.level + 1, (migration.index << geometry_.fanout_bits()) + child));
}

// The records of the children from next_child to `end`, under one pair of fences.
void Migrator::append_children(Migration& migration, uint32_t end) const {
  Append appends[kFanoutMax];
  pm::Heap::TxnIfNeeded txn;
  const auto plan_all = [&] {
    uint32_t count = 0;
    for (uint32_t child = migration.next_child; child < end; ++child) {
      if (migration.count(child) == 0) continue;
      Append& append = appends[count++];
      append = append_of_child(migration, child);
      levels_.plan(append, txn);
    }
    return std::span(appends, count);
  };
  std::span<Append> planned;
  try {
    planned = plan_all();
  } catch (const Error& error) {
    txn.reset();
    if (!pm::is_full(error)) throw;
    bool gained = false;
    for (uint32_t child = migration.next_child; child < end; ++child) {
      gained = compact(migration.level + 1, (migration.index << geometry_.fanout_bits()) + child) ||
               gained;
    }
    if (!gained) throw;
    planned = plan_all();
  }
  if (!planned.empty()) {
    levels_.stage_and_fence(planned, txn.get());
    levels_.reveal(planned, txn.get());
    for (const Append& append : planned) migration.superseding += levels_.cache_append(append);
    txn.finish();
  }
  migration.next_child = end;
  prefetch_next_child(migration);
}

// ---- appends that share the fences of others

bool Migrator::plan_next_child(Partition& partition, Append& append,
                               pm::Heap::TxnIfNeeded& txn) const {
  if (partition.migrations.empty()) return false;
  const Migration& migration = *partition.migrations.back();
  if (migration.phase != Migration::Phase::kAppend || migration.next_child == geometry_.fanout())
    return false;
  if (migration.count(migration.next_child) == 0 ||
      !levels_.has_children(migration.level, migration.index))
    return false;
  append = append_of_child(migration, migration.next_child);
  // Migrated or rewritten itself, first.
  if (append.start + append.count > append.room) return false;
  if (is_littered(migration, append)) return false;
  levels_.plan(append, txn);
  return true;
}

void Migrator::child_done(Partition& partition, const Append& append) const {
  Migration& migration = *partition.migrations.back();
  migration.superseding += levels_.cache_append(append);
  ++migration.next_child;
  prefetch_next_child(migration);
}

void Migrator::begin_shared_step(Partition& partition, SharedStep& step) const {
  if (partition.migrations.empty()) [[likely]]
    return;
  try {
    step.planned = plan_next_child(partition, step.append, step.txn);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    step.txn.reset();  // migrate_some() knows what to do
  }
  if (step.planned) levels_.stage({&step.append, 1}, step.txn.get());
}

void Migrator::end_shared_step(Partition& partition, SharedStep& step) {
  if (!step.planned) return migrate_some(partition);
  levels_.reveal({&step.append, 1}, step.txn.get());
  child_done(partition, step.append);
  step.txn.finish();
}

// So far as its children tell that have theirs. Or the entry itself: they may be new.
bool Migrator::overwrites(const Migration& migration) {
  const uint32_t moved = migration.begins[migration.next_child];
  if (moved > 0 && migration.superseding * 2 >= moved) return true;
  return migration.all.dropped_count * kOverwrittenOf >= migration.all.used;
}

// Where most records that are migrated supersede others, the first level need not hold more than a
// share of what its children hold: migrated sooner, it takes less space.
void Migrator::choose_room(const Migration& migration) const {
  if (levels_.cached_copy(migration.level, migration.index) == nullptr) return;
  if (migration.level != geometry_.top_above(migration.level, migration.index)) return;
  uint32_t live = 0;
  for (uint32_t child = 0; child < geometry_.fanout(); ++child) {
    const uint64_t index = (migration.index << geometry_.fanout_bits()) + child;
    if (levels_.cached_copy(migration.level + 1, index) == nullptr) return;
    const uint32_t records = levels_.records_in(migration.level + 1, index);
    live += records - std::min(records, levels_.superseded_in(migration.level + 1, index));
  }
  const uint32_t room = live / kRoomShare / kSlots * kSlots;
  const bool early = overwrites(migration) && room < kEntryRecords;
  levels_.set_room(migration.level, migration.index, early ? std::max(room, kRoomMin) : 0);
}

}  // namespace perdure::index::plush
