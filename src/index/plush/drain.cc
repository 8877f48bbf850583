// Draining full entries into the next level, in steps.
//
// An entry that has no room for another row waits in its partition's queue. The operations that
// follow in the partition each do one step of the drain in front, so that no single one pays for all
// of it: gather what is live, half of it at a time; group it by child; append to one child, and to the
// next, and so on; at last empty the source. What an append writes first, before anyone can see it,
// becomes durable with the fence of the operation's own log record.
//
// While a drain is under way nobody appends to its source (whoever must, finishes it first), and an
// entry's children are appended to by drains of that entry only. Records are in both levels then, the
// upper ones win; that is also what a crash leaves, and draining again is harmless. When a record of the
// source changes in place, what the drain has grouped or appended of it changes alike; what it has only
// gathered it gathers again.
#include <fmt/core.h>

#include <algorithm>

#include "index/plush/core.h"

namespace perdure::index::plush {

namespace {

constexpr uint32_t kStepChildren = 1;                 // that one step appends to
constexpr uint32_t kStepRecords = kEntryRecords / 2;  // that one step gathers
// With less room than this in the pool an entry is drained when it must be, at once: a drain that
// stops half-way for want of room has put records below that are put there again the next time.
constexpr uint64_t kDrainSegments = 8;
// An entry is not rewritten for fewer superseded records: half a bucket.
constexpr uint32_t kLitterMin = kSlots / 2;
// A full entry of the last level is rewritten in place if that frees one in so many of its records.
constexpr uint32_t kThinOf = 8;
bool is_thin(uint32_t live, uint32_t used) { return live * kThinOf <= used * (kThinOf - 1); }
// Where records are overwritten, the first level is drained at one in so many of the records below.
constexpr uint32_t kRoomShare = 6;
constexpr uint32_t kRoomMin = 3 * kSlots;
constexpr uint32_t kOverwrittenOf = 32;
// Of the entries of a partition's second level, when they are made. One that needs more gets twice as
// many, and its siblings with it.
constexpr uint32_t kFirstLines = 2;

}  // namespace

// ---- what is live

bool Core::is_same(uint64_t tag, uint64_t value, uint64_t other_tag, uint64_t other_value) const {
  if ((tag ^ other_tag) >> 1 != 0) return false;
  if (!out_of_place_) return true;
  PayloadLog::View one;
  PayloadLog::View other;
  // Damaged payload tells of no key: with all 63 bits equal it is taken to be the same. So the newer record
  // hides the older one, which would else seem to be the newest whole one.
  if (!payload_->read(value, one) || !payload_->read(other_value, other)) return true;
  return one.key == other.key || hash_in(one) != hash_in(other);
}

void Core::gather(uint32_t level, uint64_t index, Gathered& out) const {
  begin_gather(level, index, out);
  gather_some(level, index, out.left, out);
  drop_tombstones(level, index, out);
}

void Core::begin_gather(uint32_t level, uint64_t index, Gathered& out) const {
  std::ranges::fill(out.places, uint16_t{0});
  out.used = records_in(level, index);
  out.left = out.used;
  out.count = 0;
  out.dropped_count = 0;
}

void Core::gather_some(uint32_t level, uint64_t index, uint32_t most, Gathered& out) const {
  const Entry& entry = *entry_at(level, index);
  for (const uint32_t end = out.left - std::min(out.left, most); out.left > end;) {
    const uint32_t at = --out.left;
    const uint32_t b = at / kSlots;
    const Bucket& bucket = bucket_of(entry, b);
    const uint64_t tag = bucket.tags[at % kSlots];
    const uint64_t value = bucket.values[at % kSlots];
    uint64_t place = (tag >> 1) % Gathered::kPlaces;
    bool newest = true;
    while (out.places[place] != 0 && newest) {
      const uint32_t other = out.places[place] - 1U;
      newest = !is_same(tag, value, out.tags[other], out.values[other]);
      place = (place + 1) % Gathered::kPlaces;
    }
    if (!newest) {
      out.dropped[out.dropped_count++] = {tag, value};
      continue;
    }
    // Its payload has gone: a newer record is in the row or above. If there is none it is damaged, and
    // stays, so that lookups tell.
    if (out_of_place_ && !payload_->alive(value) &&
        is_superseded(level, full_hash(tag, index, level))) {
      continue;
    }
    out.tags[out.count] = tag;
    out.values[out.count] = value;
    out.places[place] = static_cast<uint16_t>(++out.count);
  }
}

// A tombstone vanishes where nothing below could be what it hides.
void Core::drop_tombstones(uint32_t level, uint64_t index, Gathered& out) const {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < out.count; ++i) {
    const bool tombstone = (out.tags[i] & 1) != 0;
    if (tombstone && !may_be_below(level, full_hash(out.tags[i], index, level))) {
      out.dropped[out.dropped_count++] = {out.tags[i], out.values[i]};
      continue;
    }
    out.tags[kept] = out.tags[i];
    out.values[kept++] = out.values[i];
  }
  out.count = kept;
}

bool Core::may_be_below(uint32_t level, uint64_t hash) const {
  while (level++ < deepest_) {
    const uint64_t index = index_at(level, hash);
    const Place place = place_at(level, index);
    if (place.entry == nullptr) return false;
    if (used(place) > 0 && kernels_.candidates(*place.entry, place.lines, filter_of(hash)) != 0)
      return true;
  }
  return false;
}

void Core::account_garbage(const Gathered& all) const {
  if (!out_of_place_) return;
  for (uint32_t i = 0; i < all.dropped_count; ++i) {
    const Record& one = all.dropped[i];
    payload_->note_dead(one.value,
                        (one.tag & 1) != 0 ? PayloadLog::Part::kRest : PayloadLog::Part::kAll);
  }
}

// Of an entry, what a step reads that gathers these: side by side.
void Core::prefetch_records(uint32_t level, uint64_t index, uint32_t begin, uint32_t end) const {
  const Entry& source = *entry_at(level, index);
  for (uint32_t b = begin / kSlots; b < (end + kSlots - 1) / kSlots; ++b) {
    const uint32_t unit = source.lines[b / kLineBuckets].bucket[b % kLineBuckets];
    const auto* bytes = reinterpret_cast<const char*>(bucket_at(unit));
    for (size_t at = 0; at < sizeof(Bucket); at += pm::kLineBytes) pm::prefetch(bytes + at);
  }
}

// ---- steps

void Core::drain(Partition& partition, uint32_t level, uint64_t index, uint32_t needed) {
  // What is under way first: it may be this entry, or one above or below it.
  while (!partition.drains.empty()) try_step(partition, fanout());
  if (records_in(level, index) + needed <= kEntryRecords) return;
  push_drain(partition, level, index, needed, Drain::Why::kFull);
  try {
    while (!partition.drains.empty()) drain_step(partition, fanout());
  } catch (...) {
    partition.drains.clear();  // the sources are as they were
    throw;
  }
}

bool Core::is_draining(const Partition& partition, uint32_t level, uint64_t index) {
  return std::ranges::any_of(partition.drains, [&](const auto& drain) {
    return drain->level == level && drain->index == index;
  });
}

void Core::drain_some(Partition& partition) {
  if (!partition.drains.empty()) {
    try_step(partition, kStepChildren);
  } else if (partition.overflows >= partition.overflows_max) [[unlikely]] {
    grow_if_due(partition);
  } else if (!partition.full_rows.empty() && !pool_.heap().is_scarce(kDrainSegments)) {
    const uint64_t row = partition.full_rows.front();
    partition.full_rows.pop_front();
    push_drain(partition, level_of_row(row), index_of_row(row), kSlots, Drain::Why::kFull);
  }
}

void Core::try_step(Partition& partition, uint32_t children) {
  try {
    drain_step(partition, children);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    // The sources are as they were. Whoever needs room in them tries again, and tells if there is none.
    partition.drains.clear();
  }
}

void Core::push_drain(Partition& partition, uint32_t level, uint64_t index, uint32_t needed,
                      Drain::Why why) {
  std::unique_ptr<Drain> drain(new Drain);  // not zeroed
  drain->level = level;
  drain->index = index;
  drain->needed = needed;
  drain->why = why;
  drain->phase = Drain::Phase::kFull;
  drain->rewritten = ~uint64_t{0};
  drain->superseding = 0;
  partition.drains.push_back(std::move(drain));
  const uint32_t used = records_in(level, index);  // the first step reads the newest of them
  prefetch_records(level, index, used - std::min(used, kStepRecords), used);
}

void Core::follow_change(Partition& partition, const Key& key, const Hit& before, uint64_t tag,
                         uint64_t value) const {
  for (const auto& one : partition.drains) {
    Drain& drain = *one;
    if (drain.level != before.level || drain.index != before.index) continue;
    if (drain.phase != Drain::Phase::kAppend) {
      drain.phase = Drain::Phase::kFull;  // gathered anew: so seldom that it need not be quick
      continue;
    }
    const auto child = static_cast<uint32_t>(index_at(drain.level + 1, key.hash) & (fanout() - 1));
    if (child < drain.next_child) {
      Hit copy;
      if (search_levels(drain.level + 1, key, nullptr, 0, copy) != Found::kHit) continue;
      if (copy.value != before.value) continue;
      pm::store_release(*copy.value_at, value);
      pm::store_release(*copy.tag_at, tag);
      memory_.flush(copy.value_at, sizeof(uint64_t));
      memory_.flush(copy.tag_at, sizeof(uint64_t));
      memory_.fence();  // before the source, which is above it until then, is emptied
      continue;
    }
    for (uint32_t i = drain.begins[child]; i < drain.begins[child + 1]; ++i) {
      if (drain.tags[i] >> 1 != tag >> 1 || drain.values[i] != before.value) continue;
      drain.tags[i] = tag;
      drain.values[i] = value;
    }
  }
}

void Core::drain_step(Partition& partition, uint32_t children) {
  Drain& drain = *partition.drains.back();
  const uint32_t level = drain.level;
  const uint64_t index = drain.index;
  switch (drain.phase) {
    case Drain::Phase::kFull:
      // It may have been emptied, or have lost records, since it was found full.
      if (drain.why == Drain::Why::kFull &&
          records_in(level, index) + drain.needed <= room_in(level, index)) {
        return partition.drains.pop_back();
      }
      begin_gather(level, index, drain.all);
      drain.phase = Drain::Phase::kGather;
      [[fallthrough]];
    case Drain::Phase::kGather:
      gather_some(level, index, kStepRecords, drain.all);
      prefetch_records(level, index, drain.all.left - std::min(drain.all.left, kStepRecords),
                       drain.all.left);
      if (drain.all.left > 0) return;
      drain.phase = Drain::Phase::kGroup;
      prefetch_count_of_child(drain, 0);
      return;
    case Drain::Phase::kGroup:
      if (drain.why == Drain::Why::kLitter) {
        clear_litter(partition, drain);
        return partition.drains.pop_back();
      }
      if (!group(partition, drain)) partition.drains.pop_back();
      return;
    case Drain::Phase::kAppend:
      break;
  }
  if (drain.next_child == fanout()) {
    choose_room(drain);
    release_source(level, index);
    account_garbage(drain.all);
    return partition.drains.pop_back();
  }
  if (!has_children(level, index)) {
    const bool is_second = level == top_above(level, index);
    return ensure_children(level, index, is_second ? kFirstLines : kLines);
  }
  uint32_t end = std::min(drain.next_child + children, fanout());
  for (uint32_t child = drain.next_child; child < end; ++child) {
    const Append append = append_of_child(drain, child);
    if (append.count == 0) continue;
    const bool fits = append.start + append.count <= append.room;
    if (fits && !is_littered(drain, append)) continue;
    if (child > drain.next_child) {
      end = child;  // those before it first: its rewriting takes only what the next child waits for
      break;
    }
    if (push_if_littered(partition, drain, append)) return;
    return push_drain(partition, append.level, append.index, append.count, Drain::Why::kFull);
  }
  append_children(drain, end);
}

// ---- what is superseded

bool Core::is_littered(const Drain& drain, const Append& append) const {
  if (append.index == drain.rewritten || append.start == 0) return false;
  const uint64_t litter = superseded_in(append.level, append.index);
  const uint64_t coming = overwrites(drain) ? append.count : 0;
  if (litter + coming < kLitterMin) return false;
  const uint64_t live = append.start - std::min<uint64_t>(append.start, litter);
  if ((litter + coming) * 100 < live * garbage_percent_) return false;
  return !has_children(append.level, append.index);  // above others it is emptied before long
}

bool Core::push_if_littered(Partition& partition, Drain& drain, const Append& append) {
  if (!is_littered(drain, append)) [[likely]]
    return false;
  drain.rewritten = append.index;
  const uint32_t coming = overwrites(drain) ? append.count : 0;
  push_drain(partition, append.level, append.index, coming, Drain::Why::kLitter);
  return true;
}

// Fingerprints and filters count a few records too many, so it may prove not to be worth it.
void Core::clear_litter(Partition& partition, Drain& drain) {
  Gathered& all = drain.all;
  uint32_t left = all.used - all.count;
  if (uint64_t{left + drain.needed} * 200 >= uint64_t{all.count} * garbage_percent_) {
    try {
      Drain* above = waiting_for(partition, drain);
      const uint32_t room = place_at(drain.level, drain.index).records();
      if (above != nullptr && all.count + count_new(*above, all) <= room) {
        rewrite_with(*above, drain.level, drain.index, all);
      } else {
        drop_tombstones(drain.level, drain.index, all);
        rewrite(drain.level, drain.index, all);
      }
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
    }
    left = 0;  // also where the pool has no room for it: not again at once
  }
  set_superseded(drain.level, drain.index, left);
}

// ---- what a drain has for an entry that is rewritten

Core::Drain* Core::waiting_for(const Partition& partition, const Drain& drain) const {
  if (partition.drains.size() < 2) return nullptr;
  Drain& above = *partition.drains[partition.drains.size() - 2];
  const bool waits = above.phase == Drain::Phase::kAppend && above.level + 1 == drain.level &&
                     (above.index << root_.fanout_bits) + above.next_child == drain.index;
  return waits ? &above : nullptr;
}

uint32_t Core::place_in(const Gathered& all, uint64_t tag, uint64_t value) const {
  uint64_t place = (tag >> 1) % Gathered::kPlaces;
  for (; all.places[place] != 0; place = (place + 1) % Gathered::kPlaces) {
    const uint32_t other = all.places[place] - 1U;
    if (is_same(tag, value, all.tags[other], all.values[other])) return other + 1;
  }
  return 0;
}

uint32_t Core::count_new(const Drain& drain, const Gathered& all) const {
  uint32_t count = 0;
  for (uint32_t i = drain.begins[drain.next_child]; i < drain.begins[drain.next_child + 1]; ++i) {
    if (place_in(all, drain.tags[i], drain.values[i]) == 0) ++count;
  }
  return count;
}

// The source of the drain has these records until it is emptied, so a crash before or after the entry was
// replaced leaves what one before or after an append leaves.
void Core::rewrite_with(Drain& drain, uint32_t level, uint64_t index, Gathered& all) {
  for (uint32_t i = drain.begins[drain.next_child]; i < drain.begins[drain.next_child + 1]; ++i) {
    uint32_t at = place_in(all, drain.tags[i], drain.values[i]);
    if (at != 0) {
      ++drain.superseding;
      all.dropped[all.dropped_count++] = {all.tags[at - 1], all.values[at - 1]};
    } else {
      at = ++all.count;
    }
    all.tags[at - 1] = drain.tags[i];
    all.values[at - 1] = drain.values[i];
  }
  drop_tombstones(level, index, all);
  rewrite(level, index, all);
  ++drain.next_child;
  prefetch_next_child(drain);
}

// Returns false if the entry has room again where it is.
bool Core::group(Partition& partition, Drain& drain) {
  const uint32_t level = drain.level;
  const uint64_t index = drain.index;
  Gathered& all = drain.all;
  const bool last = !has_children(level, index);
  const Place place = place_at(level, index);
  // Enough of it was superseded, or is about to be.
  Drain* above = last ? waiting_for(partition, drain) : nullptr;
  if (above != nullptr && is_thin(all.count + count_new(*above, all), place.records())) {
    rewrite_with(*above, level, index, all);
    return false;
  }
  drop_tombstones(level, index, all);
  const bool fits = all.count + drain.needed <= place.records();
  const bool thin = fits && (all.count == 0 || (last && is_thin(all.count, all.used)));
  if (!thin && place.lines < kLines) {
    widen_children(level - 1, index >> root_.fanout_bits, 2 * place.lines);
    return false;
  }
  if (drain.why != Drain::Why::kGrowth && (thin || level == deepest_)) {
    if (!fits) {
      if (ordered_) throw too_dense(level);
      throw Error(
          ErrorCode::kPoolFull,
          fmt::format("{}: '{}' has used up its {} levels; load it into a pool with a larger "
                      "capacity",
                      pool_.mapping().path(), name_, deepest_));
    }
    rewrite(level, index, all);
    return false;
  }
  note_overflow(level, index);
  group_by_child(drain);
  drain.next_child = 0;
  drain.phase = Drain::Phase::kAppend;
  prefetch_next_child(drain);
  return true;
}

void Core::group_by_child(Drain& drain) const {
  const Gathered& all = drain.all;
  const uint32_t shift = 64 - level_bits(drain.level + 1);
  const auto child_of = [&](uint64_t tag) { return (tag >> 1 >> shift) & (fanout() - 1); };
  uint32_t ends[kFanoutMax + 1] = {};
  for (uint32_t i = 0; i < all.count; ++i) ++ends[child_of(all.tags[i]) + 1];
  for (uint32_t child = 0; child < fanout(); ++child) ends[child + 1] += ends[child];
  std::copy(ends, ends + fanout() + 1, drain.begins);
  for (uint32_t i = 0; i < all.count; ++i) {
    const uint32_t at = ends[child_of(all.tags[i])]++;
    drain.tags[at] = all.tags[i];
    drain.values[at] = all.values[i];
  }
}

Core::Append Core::append_of_child(const Drain& drain, uint32_t child) const {
  Append append;  // not zeroed
  append.level = drain.level + 1;
  append.index = (drain.index << root_.fanout_bits) + child;
  const Place place = place_at(append.level, append.index);
  append.entry = place.entry;
  append.room = place.records();
  append.tags = drain.tags + drain.begins[child];
  append.values = drain.values + drain.begins[child];
  append.count = drain.count(child);
  append.start = records_in(append.level, append.index);
  append.counts_epoch = false;
  return append;
}

// For the next step: what an append to the child changes.
void Core::prefetch_next_child(const Drain& drain) const {
  if (drain.next_child == fanout() || !has_children(drain.level, drain.index)) return;
  const uint64_t child = (drain.index << root_.fanout_bits) + drain.next_child;
  prefetch_end(drain.level + 1, child);
  prefetch_copy(drain.level + 1, child);
  if (drain.next_child + 1 < fanout()) prefetch_count_of_child(drain, drain.next_child + 1);
}

// What prefetch_end() looks at.
void Core::prefetch_count_of_child(const Drain& drain, uint32_t child) const {
  if (!has_copy(drain.level + 1, drain.index << root_.fanout_bits)) return;
  DirectoryCache::prefetch_buckets(
      directory_cache_->at(drain.level + 1, (drain.index << root_.fanout_bits) + child));
}

// The records of the children from next_child to `end`, under one pair of fences.
void Core::append_children(Drain& drain, uint32_t end) {
  Append appends[kFanoutMax];
  pm::Heap::TxnIfNeeded txn;
  const auto plan_all = [&] {
    uint32_t count = 0;
    for (uint32_t child = drain.next_child; child < end; ++child) {
      if (drain.count(child) == 0) continue;
      Append& append = appends[count++];
      append = append_of_child(drain, child);
      plan(append, txn);
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
    for (uint32_t child = drain.next_child; child < end; ++child) {
      gained = compact(drain.level + 1, (drain.index << root_.fanout_bits) + child) || gained;
    }
    if (!gained) throw;
    planned = plan_all();
  }
  if (!planned.empty()) {
    write_all(planned, txn.get());
    reveal_all(planned, txn.get());
    for (const Append& append : planned) drain.superseding += cache_append(append);
    txn.finish();
  }
  drain.next_child = end;
  prefetch_next_child(drain);
}

// ---- appends that share the fences of others

bool Core::plan_next_child(Partition& partition, Append& append, pm::Heap::TxnIfNeeded& txn) const {
  if (partition.drains.empty()) return false;
  const Drain& drain = *partition.drains.back();
  if (drain.phase != Drain::Phase::kAppend || drain.next_child == fanout()) return false;
  if (drain.count(drain.next_child) == 0 || !has_children(drain.level, drain.index)) return false;
  append = append_of_child(drain, drain.next_child);
  // Drained or rewritten itself, first.
  if (append.start + append.count > append.room) return false;
  if (is_littered(drain, append)) return false;
  plan(append, txn);
  return true;
}

void Core::child_done(Partition& partition, const Append& append) const {
  Drain& drain = *partition.drains.back();
  drain.superseding += cache_append(append);
  ++drain.next_child;
  prefetch_next_child(drain);
}

void Core::begin_shared_step(Partition& partition, SharedStep& step) const {
  if (partition.drains.empty()) [[likely]]
    return;
  try {
    step.planned = plan_next_child(partition, step.append, step.txn);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    step.txn.reset();  // drain_some() knows what to do
  }
  if (step.planned) stage_all({&step.append, 1}, step.txn.get());
}

void Core::end_shared_step(Partition& partition, SharedStep& step) {
  if (!step.planned) return drain_some(partition);
  reveal_all({&step.append, 1}, step.txn.get());
  child_done(partition, step.append);
  step.txn.finish();
}

// So far as its children tell that have theirs. Or the entry itself: they may be new.
bool Core::overwrites(const Drain& drain) {
  const uint32_t moved = drain.begins[drain.next_child];
  if (moved > 0 && drain.superseding * 2 >= moved) return true;
  return drain.all.dropped_count * kOverwrittenOf >= drain.all.used;
}

// Where most records that are drained supersede others, the first level need not hold more than a share of
// what its children hold: drained sooner, it takes less space.
void Core::choose_room(const Drain& drain) const {
  if (cached_copy(drain.level, drain.index) == nullptr) return;
  if (drain.level != top_above(drain.level, drain.index)) return;
  uint32_t live = 0;
  for (uint32_t child = 0; child < fanout(); ++child) {
    const uint64_t index = (drain.index << root_.fanout_bits) + child;
    if (cached_copy(drain.level + 1, index) == nullptr) return;
    const uint32_t records = records_in(drain.level + 1, index);
    live += records - std::min(records, superseded_in(drain.level + 1, index));
  }
  const uint32_t room = live / kRoomShare / kSlots * kSlots;
  directory_cache_->at(drain.level, drain.index).room =
      overwrites(drain) && room < kEntryRecords ? std::max(room, kRoomMin) : 0;
}

// Empties an entry whose records are all durable below.
void Core::release_source(uint32_t level, uint64_t index) {
  Entry& entry = *entry_at(level, index);
  LineState state = LineState{entry.lines[0].state}.emptied();
  if (level != top_above(level, index)) {
    return clear_entry(level, index, state, keeps_buckets(level, index) ? kEntryBuckets : 0);
  }
  state = LineState::make(0, state.generation(), rows_[row_of(level, index)].epoch);
  // The first level keeps its buckets, so far as they fill again soon.
  const bool all = level <= root_.shape.preallocated_levels;
  const uint32_t keep = all ? kEntryBuckets : room_in(level, index) / kSlots;
  if (has_buckets_from(entry, keep)) return clear_entry(level, index, state, keep);
  const SequenceWrite guard(row_above(level, index));
  pm::store_release(entry.lines[0].state, state.word);
  memory_.persist(&entry.lines[0].state, sizeof(uint32_t));
  rebuild_entry(level, index);
}

bool Core::has_buckets_from(const Entry& entry, uint32_t first) {
  for (uint32_t b = first; b < kEntryBuckets; ++b) {
    if (pm::load_relaxed(entry.lines[b / kLineBuckets].bucket[b % kLineBuckets]) != 0) return true;
  }
  return false;
}

// Empties an entry: its first line gets this state, which counts no records. Its buckets but the first
// `keep` go back to the heap.
void Core::clear_entry(uint32_t level, uint64_t index, LineState state, uint32_t keep) {
  const Place place = place_at(level, index);
  Entry& entry = *place.entry;
  require_own_buckets(level, index, place);
  pm::Heap::Txn txn(pool_.heap(), true);
  for (uint32_t b = keep; b < place.buckets(); ++b) {
    const uint32_t& unit = entry.lines[b / kLineBuckets].bucket[b % kLineBuckets];
    if (unit != 0) txn.will_unlink(uint64_t{unit} * kUnitBytes, &unit, pm::Link::kUnit);
  }
  // The intents, before what they judge by.
  txn.commit([&] {
    const SequenceWrite guard(row_above(level, index));
    pm::store_release(entry.lines[0].state, state.word);
    memory_.flush(&entry.lines[0].state, sizeof(uint32_t));
    memory_.fence();  // the entry is empty before its blocks go
    for (uint32_t b = keep; b < place.buckets(); ++b) {
      pm::store_relaxed(entry.lines[b / kLineBuckets].bucket[b % kLineBuckets], 0U);
    }
    for (DirectoryLine& line : place.all()) {
      // Lines that this generation did not reach must not bear a number that comes round again.
      if (&line == entry.lines) continue;
      pm::store_release(line.state, LineState::make(0, state.generation(), 0).word);
    }
    memory_.flush(&entry, place.bytes());
    rebuild_entry(level, index);
  });
}

}  // namespace perdure::index::plush
