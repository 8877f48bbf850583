// The copies of entries in DRAM.
#include <algorithm>

#include "index/plush/levels.h"

namespace perdure::index::plush {

bool Levels::is_path_known(uint64_t hash) const {
  const uint32_t top = geometry_.top_for(hash);
  for (uint32_t level = top; level < copies_end(top); ++level) {
    const uint64_t index = geometry_.index_at(level, hash);
    if (DirectoryCache::is_known(directory_cache_.at(level, index), keys_.spread_bits(hash)))
      continue;
    return !has_entry(level, index);
  }
  return true;
}

void Levels::populate_path(uint64_t hash) const {
  const uint32_t top = geometry_.top_for(hash);
  for (uint32_t level = top; level < copies_end(top); ++level) {
    const uint64_t index = geometry_.index_at(level, hash);
    if (DirectoryCache::is_known(directory_cache_.at(level, index), keys_.spread_bits(hash)))
      continue;
    if (!has_entry(level, index)) return;
    populate(level, index);
  }
}

void Levels::populate(uint32_t level, uint64_t index) const {
  DirectoryCache::Copy& copy = directory_cache_.at(level, index);
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
    DirectoryCache::add_version(copy, keys_.spread_bits(bucket.tags[at % kSlots] >> 1), b);
  }
  DirectoryCache::set_count(copy, count);
  directory_cache_.make_known(copy);
}

uint32_t Levels::cache_append(const Append& append) const {
  if (!has_copy(append.level, append.index)) return 0;
  DirectoryCache::Copy& copy = directory_cache_.at(append.level, append.index);
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
      const uint64_t spread = keys_.spread_bits(append.tags[i] >> 1);
      // What a row supersedes in its entry is dropped when that is migrated.
      append.counts_epoch ? DirectoryCache::add(copy, spread, b)
                          : DirectoryCache::add_version(copy, spread, b);
    }
  }
  DirectoryCache::set_count(copy, append.start + append.count);
  return copy.superseded - superseded;
}

uint32_t Levels::superseded_in(uint32_t level, uint64_t index) const {
  const DirectoryCache::Copy* copy = cached_copy(level, index);
  if (copy != nullptr) return copy->superseded;
  return LineState{pm::load_relaxed(entry_at(level, index)->lines[0].state)}.hint();
}

void Levels::set_superseded(uint32_t level, uint64_t index, uint32_t count) const {
  if (cached_copy(level, index) != nullptr) {
    directory_cache_.at(level, index).superseded = count;
    return;
  }
  DirectoryLine& line = entry_at(level, index)->lines[0];
  // A hint, not flushed.
  pm::store_release(line.state, LineState{pm::load_relaxed(line.state)}.with_hint(count).word);
}

void Levels::count_superseded(const Append& append) const {
  if (append.start == 0) return;
  const uint32_t buckets = (1U << (append.start + kSlots - 1) / kSlots) - 1;
  uint32_t count = superseded_in(append.level, append.index);
  for (uint32_t i = 0; i < append.count; ++i) {
    const FilterBits bits = keys_.filter_of(append.tags[i] >> 1);
    const uint32_t lines = append.room / kLineRecords;
    if ((kernels_.candidates(*append.entry, lines, bits) & buckets) != 0) ++count;
  }
  set_superseded(append.level, append.index, count);
}

uint32_t Levels::count_removed(uint32_t level, uint64_t index) const {
  DirectoryLine& line = entry_at(level, index)->lines[0];
  const LineState state{pm::load_relaxed(line.state)};
  // A hint, not flushed.
  pm::store_release(line.state, state.with_hint(state.hint() + 1).word);
  return state.hint() + 1;
}

void Levels::prefetch_end(uint32_t level, uint64_t index) const {
  const Place place = place_at(level, index);
  const Entry& entry = *place.entry;
  const DirectoryCache::Copy* copy = cached_copy(level, index);
  if (copy == nullptr) return prefetch_entry(place);
  if (copy->count >= place.records()) return;  // it is migrated first
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

void Levels::rebuild_copy(uint32_t level, uint64_t index) const {
  if (!has_copy(level, index)) return;
  DirectoryCache::clear(directory_cache_.at(level, index));
  populate(level, index);
}

}  // namespace perdure::index::plush
