// Lookups: from the newest place a key can be in to the oldest.
#include "index/plush/lookup.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>

namespace perdure::index::plush {

namespace {

constexpr int kOptimisticAttempts = 64;

// Bit i is set if an entry of `count` records has one in slot i of this bucket.
uint32_t valid_slots(uint32_t count, uint32_t bucket) {
  const uint32_t rest = count - bucket * kSlots;
  return rest >= kSlots ? 0xffff : (1U << rest) - 1;
}

}  // namespace

Lookup::Lookup(pm::PoolImpl& pool, const std::string& name, const Geometry& geometry,
               const Keys& keys, const Rows& rows, const Levels& levels, const Payload& payload,
               const Partitions& partitions)
    : pool_(pool),
      name_(name),
      kernels_(kernels()),
      geometry_(geometry),
      keys_(keys),
      rows_(rows),
      levels_(levels),
      payload_(payload),
      partitions_(partitions) {
  if (payload.is_used() || keys.is_ordered() || levels.filter_levels() != 2 ||
      geometry.top_max() >= geometry.deepest())
    return;
  fast_path_.on = true;
  fast_path_.wide = kernels_.wide;
  fast_path_.base = pool.base();
  fast_path_.tops = geometry.tops();
  fast_path_.common_top = &geometry.common_top();
  fast_path_.partition_bits = geometry.partition_bits();
  for (uint32_t top = 1; top <= geometry.top_max(); ++top) {
    fast_path_.tops_at[top] = {
        .rows = &rows[geometry.row_of(top, 0)],
        .copies = {&levels.copy_at(top, 0), &levels.copy_at(top + 1, 0)},
        .shifts = {geometry.index_shift(top), geometry.index_shift(top + 1)}};
  }
}

[[gnu::always_inline]] inline Found Lookup::search_bucket(Bucket& bucket, uint32_t valid,
                                                          const Key& key, const Row* reader,
                                                          uint64_t version, Hit& hit) const {
  uint32_t mask = match_tags(bucket.tags, key.hash << 1) & valid;
  while (mask != 0) {
    const auto slot = static_cast<uint32_t>(std::bit_width(mask)) - 1;
    mask &= ~(1U << slot);
    hit.tag = pm::load_acquire(bucket.tags[slot]);
    hit.value = pm::load_acquire(bucket.values[slot]);
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    // A tombstone that comes alive again gets its value first: a tag from before does not go with
    // it.
    if (reader != nullptr && pm::load_relaxed(bucket.tags[slot]) != hit.tag) return Found::kRetry;
    const Payload::Match match = payload_.compare_key(hit.value, key);
    if (match == Payload::Match::kOther) continue;
    if (match == Payload::Match::kUnknown) [[unlikely]] {
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

Found Lookup::search_marked(uint64_t row, uint32_t marked, const Key& key, const Row* reader,
                            uint64_t version, Hit& hit) const {
  hit.level = 0;
  hit.index = row;
  return search_bucket(rows_.records(row), marked, key, reader, version, hit);
}

bool Lookup::probe(uint32_t level, const Key& key, Probe& out) const {
  out.index = geometry_.index_at(level, key.hash);
  out.candidates = 0;
  out.damaged = false;
  if (levels_.has_copy(level, out.index)) {
    const DirectoryCache::Copy& copy = levels_.copy_at(level, out.index);
    const uint32_t candidates = DirectoryCache::candidates(copy, keys_.spread_bits(key.hash));
    if (candidates == 0) return true;
    if (candidates != DirectoryCache::kUnknown) {
      out.count = pm::load_acquire(copy.count);
      note_candidates(candidates, out, copy.units);
      return true;
    }
  }
  const Place place = levels_.place_at(level, out.index);
  const Entry* entry = place.entry;
  if (entry == nullptr) return false;
  out.count = levels_.used(place);
  out.damaged = out.count == Levels::kUnsound;
  if (out.count == 0 || out.damaged) return true;
  const uint32_t candidates = kernels_.candidates(*entry, place.lines, keys_.filter_of(key.hash));
  if (candidates == 0) return true;
  uint32_t units[kEntryBuckets];
  for (uint32_t b = 0; b < place.buckets(); ++b) {
    units[b] = pm::load_relaxed(entry->lines[b / kLineBuckets].bucket[b % kLineBuckets]);
  }
  note_candidates(candidates, out, units);
  return true;
}

void Lookup::note_candidates(uint32_t candidates, Probe& out, const uint32_t* units) const {
  out.candidates = candidates & ((1U << (out.count + kSlots - 1) / kSlots) - 1);
  for (uint32_t rest = out.candidates; rest != 0; rest &= rest - 1) {
    const auto b = static_cast<uint32_t>(std::countr_zero(rest));
    // A writer that empties the entry makes this garbage, but garbage inside the pool.
    const uint32_t unit = pm::load_relaxed(units[b]);
    if (!pool_.leads_inside(uint64_t{unit} * kUnitBytes, sizeof(Bucket))) [[unlikely]] {
      out.damaged = true;
      return;
    }
    Bucket* bucket = levels_.bucket_at(unit);
    out.buckets[b] = bucket;
    pm::prefetch(&bucket->tags[0]);
    pm::prefetch(&bucket->tags[8]);
    pm::prefetch(&bucket->values[0]);
    pm::prefetch(&bucket->values[8]);
  }
}

Found Lookup::search_entry(uint32_t level, const Probe& probe, const Key& key, const Row* reader,
                           uint64_t version, Hit& hit) const {
  if (probe.damaged) [[unlikely]] {
    if (reader != nullptr) return Found::kRetry;
    levels_.throw_damaged(level, probe.index);
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

[[gnu::always_inline]] inline Found Lookup::search_copy(uint32_t level,
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
    Bucket& bucket = *levels_.bucket_at(pm::load_relaxed(copy.units[at]));
    // The value's line at the same time as the tags. Loads, for processors drop some prefetches
    // from pages that they have no translation of.
    (void)pm::load_relaxed(bucket.values[0]);
    (void)pm::load_relaxed(bucket.values[kSlots / 2]);
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    const Found found = search_bucket(bucket, valid_slots(count, at), key, reader, version, hit);
    if (found == Found::kAbsent) continue;
    hit.level = level;
    hit.index = geometry_.index_at(level, key.hash);
    return found;
  }
  return Found::kAbsent;
}

[[gnu::always_inline]] inline Found Lookup::search_copies(uint32_t first, uint32_t top,
                                                          const Key& key, const Row* reader,
                                                          uint64_t version, Hit& hit) const {
  const uint64_t spread = keys_.spread_bits(key.hash);
  // Where there are copies, they nearly always name no bucket or the right one.
  const uint32_t end = levels_.copies_end(top);
  for (uint32_t level = first; level < end; ++level) {
    const DirectoryCache::Copy& copy = levels_.copy_at(level, geometry_.index_at(level, key.hash));
    const uint32_t candidates = DirectoryCache::candidates(copy, spread);
    if (candidates == DirectoryCache::kUnknown) [[unlikely]]
      return search_filters(level, key, reader, version, hit);
    if (candidates == 0) continue;
    const Found found = search_copy(level, copy, candidates, key, reader, version, hit);
    if (found != Found::kAbsent) return found;
  }
  const uint32_t next = std::max(first, end);
  if (next <= geometry_.deepest() && levels_.has_entry(next, geometry_.index_at(next, key.hash)))
      [[unlikely]]
    return search_filters(next, key, reader, version, hit);
  return reader != nullptr && !still(reader->version, version) ? Found::kRetry : Found::kAbsent;
}

Found Lookup::search_levels(uint32_t first, const Key& key, Hit& hit) const {
  return search_copies(first, geometry_.top_for(key.hash), key, nullptr, 0, hit);
}

[[gnu::always_inline]] inline Found Lookup::search_all(const Key& key, const Row* reader,
                                                       uint64_t version, Hit& hit) const {
  const uint32_t top = geometry_.top_for(key.hash);
  const Found found = search_row(geometry_.row_of(top, geometry_.index_at(top, key.hash)), key,
                                 reader, version, hit);
  if (found != Found::kAbsent) [[unlikely]]
    return found;
  return search_copies(top, top, key, reader, version, hit);
}

bool Lookup::is_superseded(uint32_t level, uint64_t hash) const {
  const uint64_t row = geometry_.row_for(hash);
  const uint32_t count = rows_.count(row);
  if ((match_tags(rows_.records(row).tags, hash << 1) & ((1U << count) - 1)) != 0) return true;
  for (uint32_t above = geometry_.level_of_row(row); above < level; ++above) {
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

Found Lookup::search(const Key& key, Hit& hit) const { return search_all(key, nullptr, 0, hit); }

// Filters of all levels first: the buckets that they point to are then fetched side by side.
Found Lookup::search_filters(uint32_t first, const Key& key, const Row* reader, uint64_t version,
                             Hit& hit) const {
  if (reader == nullptr) {
    levels_.populate_path(key.hash);
  } else {
    hit.path_unknown = !levels_.is_path_known(key.hash);
  }
  Probe probes[kLevelsMax];
  const uint32_t levels = probe_all(first, key, probes);
  return search_probed(first, {probes, levels}, key, reader, version, hit);
}

uint32_t Lookup::probe_all(uint32_t first, const Key& key, Probe* probes) const {
  uint32_t end = first;
  while (end <= geometry_.deepest() && probe(end, key, probes[end - first])) ++end;
  return end - first;
}

Found Lookup::search_probed(uint32_t first, std::span<const Probe> probes, const Key& key,
                            const Row* reader, uint64_t version, Hit& hit) const {
  for (uint32_t i = 0; i < probes.size(); ++i) {
    const Found found = search_entry(first + i, probes[i], key, reader, version, hit);
    if (found != Found::kAbsent) return found;
  }
  if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
  return Found::kAbsent;
}

bool Lookup::find(const Key& key, Hit& hit) const {
  prefetch_lookup(key.hash);
  Partition& partition = partitions_.of(key.hash);
  for (int attempt = 0; attempt < kOptimisticAttempts; ++attempt) {
    const Row& row = rows_[geometry_.row_for(key.hash)];  // another one if the partition has grown
    const uint64_t version = pm::acquire(row.version);
    if ((version & 1) != 0) {
      _mm_pause();
      continue;
    }
    const Found found = search_all(key, &row, version, hit);
    if (found == Found::kRetry) continue;
    if (hit.path_unknown && partition.lock.try_lock()) [[unlikely]] {
      const std::lock_guard lock(partition.lock, std::adopt_lock);
      levels_.populate_path(key.hash);  // for the next lookup
    }
    return found == Found::kHit && hit.live();
  }
  const std::lock_guard lock(partition.lock);
  return search(key, hit) == Found::kHit && hit.live();
}

bool Lookup::present_below(const Key& key, bool expected) const {
  if (has_fast_path()) {
    if (!expected && is_surely_absent(key.hash)) return false;
    uint64_t value = 0;
    if (expected && find_fast(key.hash, value) == Found::kHit) return true;
  }
  Hit hit;
  return search_levels(geometry_.top_for(key.hash), key, hit) == Found::kHit && hit.live();
}

// ---- groups

void Lookup::find_group(std::span<const Key> keys, std::span<Hit> hits,
                        std::span<bool> found) const {
  struct Search {
    const Row* row;
    uint64_t version;
    Found state;
    uint32_t top;
    uint32_t levels;
    Probe probes[kLevelsMax];
  };
  assert(keys.size() <= kGroupRecords);
  Search searches[kGroupRecords];
  for (const Key& key : keys) prefetch_lookup(key.hash);
  for (size_t i = 0; i < keys.size(); ++i) {
    Search& search = searches[i];
    const uint32_t top = geometry_.top_for(keys[i].hash);
    const uint64_t row = geometry_.row_of(top, geometry_.index_at(top, keys[i].hash));
    search.row = &rows_[row];
    search.version = pm::acquire(search.row->version);
    search.top = top;
    search.levels = 0;
    search.state = Found::kRetry;
    // The single lookup also caches a path that is not cached yet.
    if ((search.version & 1) != 0 || !levels_.is_path_known(keys[i].hash)) continue;
    search.state = search_row(row, keys[i], search.row, search.version, hits[i]);
    // Filters of all levels; what they point to is fetched while the next keys' are read.
    if (search.state == Found::kAbsent) search.levels = probe_all(top, keys[i], search.probes);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const Search& search = searches[i];
    Found state = search.state;
    if (state == Found::kAbsent) {
      state = search_probed(search.top, {search.probes, search.levels}, keys[i], search.row,
                            search.version, hits[i]);
    }
    found[i] =
        state == Found::kRetry ? find(keys[i], hits[i]) : state == Found::kHit && hits[i].live();
  }
}

}  // namespace perdure::index::plush
