// Lookups: from the newest place a key can be in to the oldest.
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

}  // namespace

bool Core::same_key(uint64_t value, const Key& key) const {
  if (!out_of_place_) return true;
  PayloadLog::View view;
  return payload_->read(value, view) && view.key == key.bytes;
}

Core::Found Core::search_row(uint64_t row, const Key& key, const Partition* reader,
                             uint64_t version, Hit& hit) const {
  const uint32_t count = rows_[row].count.load(std::memory_order_acquire);
  Bucket& bucket = row_records_[row];
  const uint64_t tag = key.hash << 1;
  uint32_t mask = kernels_.match(bucket.tags, tag) & ((1U << count) - 1);
  while (mask != 0) {
    const auto slot = static_cast<uint32_t>(std::bit_width(mask)) - 1;
    mask &= ~(1U << slot);
    hit.tag = pm::load_acquire(bucket.tags[slot]);
    hit.value = pm::load_acquire(bucket.values[slot]);
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    // A tombstone that comes alive again gets its value first: a tag from before does not go with it.
    if (reader != nullptr && pm::load_relaxed(bucket.tags[slot]) != hit.tag) return Found::kRetry;
    if (!same_key(hit.value, key)) continue;
    hit.level = 0;
    hit.index = row;
    hit.tag_at = &bucket.tags[slot];
    hit.value_at = &bucket.values[slot];
    return Found::kHit;
  }
  return Found::kAbsent;
}

// Which buckets of the entry may hold the key, and how many records each line has.
void Core::probe(uint32_t level, const Key& key, Probe& out) const {
  out.index = index_at(level, key.hash);
  out.entry = entry_at(level, out.index);
  out.candidates = 0;
  if (out.entry == nullptr) return;
  uint32_t filled = 0;
  for (uint32_t line = 0; line < kLines; ++line) {
    out.counts[line] = line_count(*out.entry, line);
    const uint32_t buckets = (out.counts[line] + kSlots - 1) / kSlots;
    filled |= ((1U << buckets) - 1) << (line * kLineBuckets);
  }
  if (filled == 0) return;
  out.candidates = filled & kernels_.candidates(*out.entry, filter_of(key.hash));
  for (uint32_t rest = out.candidates; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    const DirectoryLine& line = out.entry->lines[at / kLineBuckets];
    const Bucket* bucket = bucket_at(pm::load_relaxed(line.bucket[at % kLineBuckets]));
    __builtin_prefetch(&bucket->tags[0]);
    __builtin_prefetch(&bucket->tags[8]);
    __builtin_prefetch(&bucket->values[0]);
    __builtin_prefetch(&bucket->values[8]);
  }
}

Core::Found Core::search_entry(uint32_t level, const Probe& probe, const Key& key,
                               const Partition* reader, uint64_t version, Hit& hit) const {
  uint32_t candidates = probe.candidates;
  while (candidates != 0) {
    const auto at = static_cast<uint32_t>(std::bit_width(candidates)) - 1;
    candidates &= ~(1U << at);
    const DirectoryLine& line = probe.entry->lines[at / kLineBuckets];
    const uint32_t unit = pm::load_relaxed(line.bucket[at % kLineBuckets]);
    // A writer that empties the entry makes this garbage, but garbage inside the pool.
    if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
    Bucket& bucket = *bucket_at(unit);
    const uint32_t rest = probe.counts[at / kLineBuckets] - at % kLineBuckets * kSlots;
    const uint32_t valid = rest >= kSlots ? 0xffff : (1U << rest) - 1;
    uint32_t mask = kernels_.match(bucket.tags, key.hash << 1) & valid;
    while (mask != 0) {
      const auto slot = static_cast<uint32_t>(std::bit_width(mask)) - 1;
      mask &= ~(1U << slot);
      hit.tag = pm::load_acquire(bucket.tags[slot]);
      hit.value = pm::load_acquire(bucket.values[slot]);
      if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
      if (!same_key(hit.value, key)) continue;
      hit.level = level;
      hit.index = probe.index;
      hit.tag_at = &bucket.tags[slot];
      hit.value_at = &bucket.values[slot];
      return Found::kHit;
    }
  }
  return Found::kAbsent;
}

Core::Found Core::search(const Key& key, bool with_row, const Partition* reader, uint64_t version,
                         Hit& hit) const {
  if (with_row) {
    const Found found = search_row(index_at(1, key.hash), key, reader, version, hit);
    if (found != Found::kAbsent) return found;
  }
  // Filters of all levels first: the buckets that they point to are then fetched side by side.
  Probe probes[kLevelsMax];
  uint32_t levels = 0;
  while (levels < kLevelsMax) {
    probe(levels + 1, key, probes[levels]);
    if (probes[levels].entry == nullptr) break;
    ++levels;
  }
  for (uint32_t i = 0; i < levels; ++i) {
    const Found found = search_entry(i + 1, probes[i], key, reader, version, hit);
    if (found != Found::kAbsent) return found;
  }
  if (reader != nullptr && !still(reader->version, version)) return Found::kRetry;
  return Found::kAbsent;
}

bool Core::find(const Key& key, Hit& hit) const {
  prefetch_path(key.hash, true);
  Partition& partition = partitions_[partition_of(key.hash)];
  for (int attempt = 0; attempt < kOptimisticAttempts; ++attempt) {
    const uint64_t version = partition.version.load(std::memory_order_acquire);
    if ((version & 1) != 0) {
      _mm_pause();
      continue;
    }
    const Found found = search(key, true, &partition, version, hit);
    if (found != Found::kRetry) return found == Found::kHit && hit.live();
  }
  const std::lock_guard lock(partition.lock);
  return search(key, true, nullptr, 0, hit) == Found::kHit && hit.live();
}

void Core::prefetch_path(uint64_t hash, bool below) const {
  const uint64_t row = index_at(1, hash);
  __builtin_prefetch(&rows_[row]);
  __builtin_prefetch(&row_records_[row].tags[0]);
  __builtin_prefetch(&row_records_[row].tags[8]);
  if (!below) return;
  for (uint32_t level = 1; level <= kLevelsMax; ++level) {
    const Entry* entry = entry_at(level, index_at(level, hash));
    if (entry == nullptr) break;
    for (const DirectoryLine& line : entry->lines) __builtin_prefetch(&line);
  }
}

}  // namespace perdure::index::plush
