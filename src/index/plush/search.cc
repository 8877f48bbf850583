// Lookups: from the newest place a key can be in to the oldest.
#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "index/plush/core.h"

namespace perdure::index::plush {

namespace {

constexpr int kOptimisticAttempts = 64;

// `version` is still what it was: nothing disappeared since, so what was read belongs together.
bool still(const std::atomic<uint64_t>& version, uint64_t expected) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return version.load(std::memory_order_relaxed) == expected;
}

// Bit i is set if an entry of `count` records has one in slot i of this bucket.
uint32_t valid_slots(uint32_t count, uint32_t bucket) {
  const uint32_t rest = count - bucket * kSlots;
  return rest >= kSlots ? 0xffff : (1U << rest) - 1;
}

}  // namespace

Core::Match Core::compare_key(uint64_t value, const Key& key) const {
  if (!out_of_place_) return Match::kSame;
  PayloadLog::View view;
  if (!payload_->read(value, view)) return Match::kUnknown;
  if (view.key == key.bytes) [[likely]]
    return Match::kSame;
  return hash_in(view) == key.hash ? Match::kOther : Match::kUnknown;
}

uint64_t Core::hash_in(const PayloadLog::View& payload) const {
  if (key_kind_ == Kind::kU64 && payload.key.size() != sizeof(uint64_t)) return ~uint64_t{0};
  return key_of(payload.key).hash;
}

PayloadLog::View Core::payload_of(uint64_t value) const {
  const PayloadLog::View view = payload_->read_pinned(value);
  const auto fits = [](Kind kind, std::string_view part) {
    return kind != Kind::kU64 || part.size() == sizeof(uint64_t);
  };
  if (!fits(key_kind_, view.key) || !fits(value_kind_, view.value)) [[unlikely]]
    pool_.throw_corrupt(fmt::format("a payload of '{}' is damaged: it is no word", name_));
  return view;
}

void Core::throw_damaged(uint32_t level, uint64_t index) const {
  pool_.throw_corrupt(fmt::format("'{}' is damaged at level {}, entry {}", name_, level, index));
}

void Core::require_own_buckets(uint32_t level, uint64_t index, const Place& place) const {
  for (const DirectoryLine& line : place.all()) {
    for (const uint32_t unit : line.bucket) {
      if (unit != 0 && !pool_.heap().is_allocated(uint64_t{unit} * kUnitBytes, sizeof(Bucket))) {
        throw_damaged(level, index);
      }
    }
  }
}

[[gnu::always_inline]] inline Core::Found Core::search_bucket(Bucket& bucket, uint32_t valid,
                                                              const Key& key, const Row* reader,
                                                              uint64_t version, Hit& hit) const {
  uint32_t mask = match_tags(bucket.tags, key.hash << 1) & valid;
  while (mask != 0) {
    const auto slot = static_cast<uint32_t>(std::bit_width(mask)) - 1;
    mask &= ~(1U << slot);
    hit.tag = pm::load_acquire(bucket.tags[slot]);
    hit.value = pm::load_acquire(bucket.values[slot]);
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    // A tombstone that comes alive again gets its value first: a tag from before does not go with it.
    if (reader != nullptr && pm::load_relaxed(bucket.tags[slot]) != hit.tag) return Found::kRetry;
    const Match match = compare_key(hit.value, key);
    if (match == Match::kOther) continue;
    if (match == Match::kUnknown) [[unlikely]] {
      // Its chunk may have gone meanwhile; if it is damaged, find() sees that under the lock.
      if (reader != nullptr) return Found::kRetry;
      pool_.throw_corrupt(fmt::format("the payload of a record of '{}' is damaged", name_));
    }
    hit.tag_at = &bucket.tags[slot];
    hit.value_at = &bucket.values[slot];
    return Found::kHit;
  }
  return Found::kAbsent;
}

Core::Found Core::search_marked(uint64_t row, uint32_t marked, const Key& key, const Row* reader,
                                uint64_t version, Hit& hit) const {
  hit.level = 0;
  hit.index = row;
  return search_bucket(row_records_[row], marked, key, reader, version, hit);
}

bool Core::probe(uint32_t level, const Key& key, Probe& out) const {
  out.index = index_at(level, key.hash);
  out.candidates = 0;
  out.damaged = false;
  if (has_copy(level, out.index)) {
    const DirectoryCache::Copy& copy = directory_cache_->at(level, out.index);
    const uint32_t candidates = DirectoryCache::candidates(copy, spread_bits(key.hash));
    if (candidates == 0) return true;
    if (candidates != DirectoryCache::kUnknown) {
      out.count = pm::load_acquire(copy.count);
      note_candidates(candidates, out, copy.units);
      return true;
    }
  }
  const Place place = place_at(level, out.index);
  const Entry* entry = place.entry;
  if (entry == nullptr) return false;
  out.count = used(place);
  out.damaged = out.count == kUnsound;
  if (out.count == 0 || out.damaged) return true;
  const uint32_t candidates = kernels_.candidates(*entry, place.lines, filter_of(key.hash));
  if (candidates == 0) return true;
  uint32_t units[kEntryBuckets];
  for (uint32_t b = 0; b < place.buckets(); ++b) {
    units[b] = pm::load_relaxed(entry->lines[b / kLineBuckets].bucket[b % kLineBuckets]);
  }
  note_candidates(candidates, out, units);
  return true;
}

void Core::note_candidates(uint32_t candidates, Probe& out, const uint32_t* units) const {
  out.candidates = candidates & ((1U << (out.count + kSlots - 1) / kSlots) - 1);
  for (uint32_t rest = out.candidates; rest != 0; rest &= rest - 1) {
    const auto b = static_cast<uint32_t>(std::countr_zero(rest));
    // A writer that empties the entry makes this garbage, but garbage inside the pool.
    const uint32_t unit = pm::load_relaxed(units[b]);
    if (!pool_.leads_inside(uint64_t{unit} * kUnitBytes, sizeof(Bucket))) [[unlikely]] {
      out.damaged = true;
      return;
    }
    Bucket* bucket = bucket_at(unit);
    out.buckets[b] = bucket;
    pm::prefetch(&bucket->tags[0]);
    pm::prefetch(&bucket->tags[8]);
    pm::prefetch(&bucket->values[0]);
    pm::prefetch(&bucket->values[8]);
  }
}

Core::Found Core::search_entry(uint32_t level, const Probe& probe, const Key& key,
                               const Row* reader, uint64_t version, Hit& hit) const {
  if (probe.damaged) [[unlikely]] {
    if (reader != nullptr) return Found::kRetry;
    throw_damaged(level, probe.index);
  }
  uint32_t candidates = probe.candidates;
  while (candidates != 0) {
    const auto at = static_cast<uint32_t>(std::bit_width(candidates)) - 1;
    candidates &= ~(1U << at);
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    const Found found =
        search_bucket(*probe.buckets[at], valid_slots(probe.count, at), key, reader, version, hit);
    if (found == Found::kAbsent) continue;
    hit.level = level;
    hit.index = probe.index;
    return found;
  }
  return Found::kAbsent;
}

[[gnu::always_inline]] inline Core::Found Core::search_copy(uint32_t level,
                                                            const DirectoryCache::Copy& copy,
                                                            uint32_t candidates, const Key& key,
                                                            const Row* reader, uint64_t version,
                                                            Hit& hit) const {
  const uint32_t count = pm::load_acquire(copy.count);
  candidates &= (1U << (count + kSlots - 1) / kSlots) - 1;
  while (candidates != 0) {
    const auto at = static_cast<uint32_t>(std::bit_width(candidates)) - 1;
    candidates &= ~(1U << at);
    // A writer that empties the entry makes this garbage, but garbage inside the pool.
    Bucket& bucket = *bucket_at(pm::load_relaxed(copy.units[at]));
    // The value's line at the same time as the tags. Loads, for processors drop some prefetches from
    // pages that they have no translation of.
    (void)pm::load_relaxed(bucket.values[0]);
    (void)pm::load_relaxed(bucket.values[kSlots / 2]);
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    const Found found = search_bucket(bucket, valid_slots(count, at), key, reader, version, hit);
    if (found == Found::kAbsent) continue;
    hit.level = level;
    hit.index = index_at(level, key.hash);
    return found;
  }
  return Found::kAbsent;
}

[[gnu::always_inline]] inline Core::Found Core::search_copies(uint32_t first, uint32_t top,
                                                              const Key& key, const Row* reader,
                                                              uint64_t version, Hit& hit) const {
  const uint64_t spread = spread_bits(key.hash);
  const DirectoryCache& cache = *directory_cache_;
  // Where there are copies, they nearly always name no bucket or the right one.
  const uint32_t end = copies_end(top);
  for (uint32_t level = first; level < end; ++level) {
    const DirectoryCache::Copy& copy = cache.at(level, index_at(level, key.hash));
    const uint32_t candidates = DirectoryCache::candidates(copy, spread);
    if (candidates == DirectoryCache::kUnknown) [[unlikely]]
      return search_filters(level, key, reader, version, hit);
    if (candidates == 0) continue;
    const Found found = search_copy(level, copy, candidates, key, reader, version, hit);
    if (found != Found::kAbsent) return found;
  }
  const uint32_t next = std::max(first, end);
  if (next <= deepest_ && has_entry(next, index_at(next, key.hash))) [[unlikely]]
    return search_filters(next, key, reader, version, hit);
  return reader != nullptr && !still(reader->version, version) ? Found::kRetry : Found::kAbsent;
}

Core::Found Core::search_levels(uint32_t first, const Key& key, const Row* reader, uint64_t version,
                                Hit& hit) const {
  return search_copies(first, top_for(key.hash), key, reader, version, hit);
}

[[gnu::always_inline]] inline Core::Found Core::search_all(const Key& key, const Row* reader,
                                                           uint64_t version, Hit& hit) const {
  const uint32_t top = top_for(key.hash);
  const Found found = search_row(row_of(top, index_at(top, key.hash)), key, reader, version, hit);
  if (found != Found::kAbsent) [[unlikely]]
    return found;
  return search_copies(top, top, key, reader, version, hit);
}

bool Core::is_superseded(uint32_t level, uint64_t hash) const {
  const uint64_t row = row_for(hash);
  const uint32_t count = rows_[row].count.load(std::memory_order_relaxed);
  if ((match_tags(row_records_[row].tags, hash << 1) & ((1U << count) - 1)) != 0) return true;
  for (uint32_t above = level_of_row(row); above < level; ++above) {
    Probe probed;
    if (!probe(above, {hash, {}}, probed)) return false;
    if (probed.damaged) continue;
    for (uint32_t rest = probed.candidates; rest != 0; rest &= rest - 1) {
      const auto b = static_cast<uint32_t>(std::countr_zero(rest));
      const uint32_t found = match_tags(probed.buckets[b]->tags, hash << 1);
      if ((found & valid_slots(probed.count, b)) != 0) return true;
    }
  }
  return false;
}

Core::Found Core::search(const Key& key, Hit& hit) const {
  return search_all(key, nullptr, 0, hit);
}

// Filters of all levels first: the buckets that they point to are then fetched side by side.
Core::Found Core::search_filters(uint32_t first, const Key& key, const Row* reader,
                                 uint64_t version, Hit& hit) const {
  if (reader == nullptr) {
    populate_path(key.hash);
  } else {
    hit.path_unknown = !is_path_known(key.hash);
  }
  Probe probes[kLevelsMax];
  const uint32_t levels = probe_all(first, key, probes);
  return search_probed(first, {probes, levels}, key, reader, version, hit);
}

uint32_t Core::probe_all(uint32_t first, const Key& key, Probe* probes) const {
  uint32_t end = first;
  while (end <= deepest_ && probe(end, key, probes[end - first])) ++end;
  return end - first;
}

Core::Found Core::search_probed(uint32_t first, std::span<const Probe> probes, const Key& key,
                                const Row* reader, uint64_t version, Hit& hit) const {
  for (uint32_t i = 0; i < probes.size(); ++i) {
    const Found found = search_entry(first + i, probes[i], key, reader, version, hit);
    if (found != Found::kAbsent) return found;
  }
  if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
  return Found::kAbsent;
}

bool Core::find(const Key& key, Hit& hit) const {
  prefetch_lookup(key.hash);
  Partition& partition = partitions_[partition_of(key.hash)];
  for (int attempt = 0; attempt < kOptimisticAttempts; ++attempt) {
    const Row& row = rows_[row_for(key.hash)];  // another one if the partition has grown
    const uint64_t version = row.version.load(std::memory_order_acquire);
    if ((version & 1) != 0) {
      _mm_pause();
      continue;
    }
    const Found found = search_all(key, &row, version, hit);
    if (found == Found::kRetry) continue;
    if (hit.path_unknown && partition.lock.try_lock()) [[unlikely]] {
      const std::lock_guard lock(partition.lock, std::adopt_lock);
      populate_path(key.hash);  // for the next lookup
    }
    return found == Found::kHit && hit.live();
  }
  const std::lock_guard lock(partition.lock);
  return search(key, hit) == Found::kHit && hit.live();
}

void Core::prefetch_entry(const Place& place) {
  for (const DirectoryLine& line : place.all()) pm::prefetch(&line);
}

// ---- copies of directory entries

bool Core::is_path_known(uint64_t hash) const {
  const uint32_t top = top_for(hash);
  for (uint32_t level = top; level < copies_end(top); ++level) {
    const uint64_t index = index_at(level, hash);
    if (DirectoryCache::is_known(directory_cache_->at(level, index), spread_bits(hash))) continue;
    return !has_entry(level, index);
  }
  return true;
}

void Core::populate_path(uint64_t hash) const {
  const uint32_t top = top_for(hash);
  for (uint32_t level = top; level < copies_end(top); ++level) {
    const uint64_t index = index_at(level, hash);
    if (DirectoryCache::is_known(directory_cache_->at(level, index), spread_bits(hash))) continue;
    if (!has_entry(level, index)) return;
    populate(level, index);
  }
}

void Core::populate(uint32_t level, uint64_t index) const {
  DirectoryCache::Copy& copy = directory_cache_->at(level, index);
  const Place place = place_at(level, index);
  const Entry& entry = *place.entry;
  const uint32_t count = used(level, index, place);
  // All are judged before the first is copied: what the copy says is followed as it is.
  for (uint32_t b = 0; b * kSlots < count; ++b) bucket_of(entry, b);
  for (uint32_t at = 0; at < count; ++at) {
    const uint32_t b = at / kSlots;
    const Bucket& bucket = bucket_of(entry, b);
    if (at % kSlots == 0) {
      DirectoryCache::set_bucket(copy, b,
                                 static_cast<uint32_t>(pool_.offset_of(&bucket) / kUnitBytes));
    }
    DirectoryCache::add_version(copy, spread_bits(bucket.tags[at % kSlots] >> 1), b);
  }
  DirectoryCache::set_count(copy, count);
  directory_cache_->make_known(copy);
}

uint32_t Core::cache_append(const Append& append) const {
  if (!has_copy(append.level, append.index)) return 0;
  DirectoryCache::Copy& copy = directory_cache_->at(append.level, append.index);
  if (!DirectoryCache::is_known(copy)) {
    if (append.start == 0) populate(append.level, append.index);
    return 0;
  }
  const uint32_t superseded = copy.superseded;
  for (uint32_t i = 0; i < append.count;) {
    const uint32_t b = (append.start + i) / kSlots;
    const uint32_t end = std::min(append.count, (b + 1) * kSlots - append.start);
    DirectoryCache::set_bucket(copy, b, append.units[b]);  // the line was flushed: not from there
    for (; i < end; ++i) {
      const uint64_t spread = spread_bits(append.tags[i] >> 1);
      // What a row supersedes in its entry is dropped when that is drained.
      append.counts_epoch ? DirectoryCache::add(copy, spread, b)
                          : DirectoryCache::add_version(copy, spread, b);
    }
  }
  DirectoryCache::set_count(copy, append.start + append.count);
  return copy.superseded - superseded;
}

uint32_t Core::superseded_in(uint32_t level, uint64_t index) const {
  const DirectoryCache::Copy* copy = cached_copy(level, index);
  if (copy != nullptr) return copy->superseded;
  return LineState{pm::load_relaxed(entry_at(level, index)->lines[0].state)}.hint();
}

void Core::set_superseded(uint32_t level, uint64_t index, uint32_t count) const {
  if (cached_copy(level, index) != nullptr) {
    directory_cache_->at(level, index).superseded = count;
    return;
  }
  DirectoryLine& line = entry_at(level, index)->lines[0];
  // A hint, not flushed.
  pm::store_release(line.state, LineState{pm::load_relaxed(line.state)}.with_hint(count).word);
}

void Core::count_superseded(const Append& append) const {
  if (append.start == 0) return;
  const uint32_t buckets = (1U << (append.start + kSlots - 1) / kSlots) - 1;
  uint32_t count = superseded_in(append.level, append.index);
  for (uint32_t i = 0; i < append.count; ++i) {
    const FilterBits bits = filter_of(append.tags[i] >> 1);
    const uint32_t lines = append.room / kLineRecords;
    if ((kernels_.candidates(*append.entry, lines, bits) & buckets) != 0) ++count;
  }
  set_superseded(append.level, append.index, count);
}

uint32_t Core::records_in(uint32_t level, uint64_t index) const {
  const DirectoryCache::Copy* copy = cached_copy(level, index);
  return copy != nullptr ? copy->count : used(level, index, place_at(level, index));
}

void Core::prefetch_end(uint32_t level, uint64_t index) const {
  const Place place = place_at(level, index);
  const Entry& entry = *place.entry;
  const DirectoryCache::Copy* copy = cached_copy(level, index);
  if (copy == nullptr) return prefetch_entry(place);
  if (copy->count >= place.records()) return;  // it is drained first
  const uint32_t line = copy->count / kLineRecords;
  pm::prefetch_to_change(&entry.lines[0]);
  pm::prefetch_to_change(&entry.lines[line]);
  if (line + 1 < place.lines) pm::prefetch_to_change(&entry.lines[line + 1]);
  const uint32_t slot = copy->count % kSlots;
  if (slot == 0) return;
  Bucket& bucket = *bucket_at(copy->units[copy->count / kSlots]);
  pm::prefetch_to_change(&bucket.tags[slot]);
  pm::prefetch_to_change(&bucket.tags[kSlots - 1]);
  pm::prefetch_to_change(&bucket.values[slot]);
  pm::prefetch_to_change(&bucket.values[kSlots - 1]);
}

void Core::rebuild_entry(uint32_t level, uint64_t index) const {
  if (!has_copy(level, index)) return;
  DirectoryCache::clear(directory_cache_->at(level, index));
  populate(level, index);
}

}  // namespace perdure::index::plush
