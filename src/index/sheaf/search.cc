// Looking into buffers and leaves.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "index/sheaf/core.h"

namespace perdure::index::sheaf {

template <typename Content>
void Core<Content>::throw_damaged(const char* what) const {
  if (pool_.failed()) pool_.require_writable();
  pool_.throw_corrupt(fmt::format("{} of '{}' is damaged", what, name_));
}

template <>
int Core<tree::Words>::find_buffered(const Ref& ref, uint32_t buffered, const Sought& key,
                                     const uint32_t* /*stamp*/) const {
  for (uint64_t some = match_fingerprints(ref, buffered, fingerprint_of(key)); some != 0;
       some &= some - 1) {
    const int i = std::countr_zero(some);
    if (i >= static_cast<int>(buffered)) break;
    if (pm::load_relaxed(ref.buffer()[i].key) == key) return i;
  }
  return -1;
}

template <>
uint64_t Core<tree::Words>::buffered_value(const Ref& ref, int buffered) const {
  return pm::load_relaxed(ref.buffer()[buffered].value);
}

template <>
uint64_t Core<tree::Words>::head_of(const Ref& /*ref*/, const Sought& key) {
  return key;
}

// 64 parts of [first, last], as a factor.
template <typename Content>
uint64_t Core<Content>::scale_of(uint64_t first, uint64_t last) {
  const auto parts = static_cast<Wide>(kLookupLines) << 64;
  const auto scale = parts / (static_cast<Wide>(last - first) + 1);
  return scale > ~uint64_t{0} ? ~uint64_t{0} : static_cast<uint64_t>(scale);
}

template <>
bool Core<tree::Words>::find_in_leaf(uint64_t offset, uint32_t /*bytes*/, uint32_t records,
                                     uint32_t begin, uint32_t end, uint64_t key,
                                     const Sought& /*key*/, uint64_t& value) const {
  const Slot* all = pool_.at<Leaf>(offset)->records();
  const Slot* base = all + uint64_t{begin} * kLineRecords;
  uint64_t count = std::min<uint64_t>((uint64_t{end} + 1) * kLineRecords, records);
  if (count <= uint64_t{begin} * kLineRecords) return false;
  count -= uint64_t{begin} * kLineRecords;
  // All lines that may have it at once, where they are few.
  for (uint64_t i = 0; i < count && i < uint64_t{4} * kLineRecords; i += kLineRecords)
    pm::prefetch(base + i);
  while (count > 1) {
    const uint64_t half = count / 2;
    base += pm::load_relaxed(base[half].key) <= key ? half : 0;
    count -= half;
  }
  if (pm::load_relaxed(base->key) != key) return false;
  value = pm::load_relaxed(base->value);
  return true;
}

template <typename Content>
typename Core<Content>::Found Core<Content>::find(const Ref& ref, const Sought& key,
                                                  bool may_be_new, int& buffered,
                                                  Stored& value) const {
  const uint64_t head = head_of(ref, key);
  const uint32_t part = part_of(ref.first, ref.scale, head);
  const uint32_t end = part + 1 < kLookupLines ? ref.lines[part + 1] : 0xff;
  // The filter is not asked about what is likely to be there.
  const bool may_be_in_leaf = !may_be_new || ref.may_be_in_leaf(head, Form::word_of(key));
  if (may_be_in_leaf)
    pm::prefetch(leaf_of(ref).records() + uint64_t{ref.lines[part]} * kLineRecords);
  buffered = find_buffered(ref, ref.buffered, key);
  if (buffered >= 0) {
    value = buffered_value(ref, buffered);
    if ((ref.removed >> buffered & 1) != 0) return Found::kRemoval;
    // A write frees the block that a long value leads to: not one that damage leads to.
    if constexpr (kBytes) require_intact(key.hash, value, ref.buffer()[buffered].value);
    return Found::kRecord;
  }
  if (!may_be_in_leaf) return Found::kNothing;
  return find_in_leaf(ref.offset, ref.block_bytes, ref.records, ref.lines[part], end, head, key,
                      value)
             ? Found::kRecord
             : Found::kNothing;
}

template <typename Content>
bool Core<Content>::read(const Ref& ref, const Sought& key, Found& found, Stored& value) const {
  pm::prefetch(&ref);
  pm::prefetch(ref.lines);
  pm::prefetch(ref.fingerprints);
  const uint32_t stamp = ref.lock.begin_read();
  const uint32_t buffered = std::min<uint32_t>(pm::load_relaxed(ref.buffered), buffer_records_);
  const uint64_t offset = pm::load_relaxed(ref.offset);
  const uint32_t records = pm::load_relaxed(ref.records);
  const uint32_t bytes = kBytes ? pm::load_relaxed(ref.block_bytes) : 0;
  const uint64_t head = head_of(ref, key);
  const uint32_t part = part_of(pm::load_relaxed(ref.first), pm::load_relaxed(ref.scale), head);
  const uint32_t begin = pm::load_relaxed(ref.lines[part]);
  const uint32_t end = part + 1 < kLookupLines ? pm::load_relaxed(ref.lines[part + 1]) : 0xff;
  const bool obsolete = pm::load_relaxed(ref.obsolete) != 0;
  // What follows goes where these lead: not to a leaf's offset beside the size of another one.
  if (!ref.lock.validate(stamp) || obsolete) return false;
  pm::prefetch(pool_.at<Leaf>(offset)->records() + uint64_t{begin} * kLineRecords);
  const int i = find_buffered(ref, buffered, key, &stamp);
  if (i == kChanged) return false;
  if (i >= 0) {
    const bool removed = (pm::load_relaxed(ref.removed) >> i & 1) != 0;
    if constexpr (kBytes) {
      const uint64_t word = pm::load_relaxed(ref.buffer()[i].value);
      if (!ref.lock.validate(stamp)) return false;
      value = entry_at(word).value();
      if (!removed) require_intact(key.hash, value, word);
    } else {
      value = buffered_value(ref, i);
    }
    found = removed ? Found::kRemoval : Found::kRecord;
  } else {
    const bool there = find_in_leaf(offset, bytes, records, begin, end, head, key, value);
    found = there ? Found::kRecord : Found::kNothing;
  }
  return ref.lock.validate(stamp);
}

template <typename Content>
bool Core<Content>::view(const Ref& ref, uint64_t key, View& out) const
  requires(!Content::kOutOfPlace)
{
  out.stamp = ref.lock.begin_read();
  out.buffered = std::min<uint32_t>(pm::load_relaxed(ref.buffered), buffer_records_);
  const uint64_t offset = pm::load_relaxed(ref.offset);
  out.records = pm::load_relaxed(ref.records);
  out.removed = pm::load_relaxed(ref.removed);
  const uint32_t part = part_of(pm::load_relaxed(ref.first), pm::load_relaxed(ref.scale), key);
  out.begin_line = pm::load_relaxed(ref.lines[part]);
  out.end_line = part + 1 < kLookupLines ? pm::load_relaxed(ref.lines[part + 1]) : 0xff;
  const bool obsolete = pm::load_relaxed(ref.obsolete) != 0;
  if (!ref.lock.validate(out.stamp) || obsolete) return false;
  out.leaf = pool_.at<Leaf>(offset)->records();
  return true;
}

namespace {

constexpr uint32_t kLinesAhead = 8;  // of a leaf, that memory is asked for before a scan reads them

// A record of a buffer.
struct BufferRecord {
  Slot slot;
  bool removal;
};

// The buffer's records that `counts(key)`, where `before(a, b)` puts their keys. Returns how many.
template <typename Counts, typename Before>
uint32_t sort_fresh(const Ref& ref, uint32_t buffered, uint64_t removed, Counts counts,
                    Before before, BufferRecord* fresh) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < buffered; ++i) {
    const Slot slot{pm::load_relaxed(ref.buffer()[i].key), pm::load_relaxed(ref.buffer()[i].value)};
    if (!counts(slot.key)) continue;
    // Kept in order: they are few.
    uint32_t to = count++;
    for (; to > 0 && before(slot.key, fresh[to - 1].slot.key); --to) fresh[to] = fresh[to - 1];
    fresh[to] = {slot, (removed >> i & 1) != 0};
  }
  return count;
}

}  // namespace

template <typename Content>
bool Core<Content>::snapshot(const Ref& ref, const Ref* following, uint64_t from, uint64_t limit,
                             std::vector<Slot>& out) const
  requires(!Content::kOutOfPlace)
{
  out.clear();
  pm::prefetch(&ref);
  pm::prefetch(ref.lines);
  View seen{};
  if (!view(ref, from, seen)) return false;
  const auto& [stamp, buffered, leaf, records, removed, line, end_line] = seen;
  uint32_t at = std::min(line * kLineRecords, records);
  for (uint32_t i = 0; i < kLinesAhead; ++i) pm::prefetch(leaf + at + uint64_t{i} * kLineRecords);
  for (uint32_t i = 0; i < buffered; i += kLineRecords) pm::prefetch(ref.buffer() + i);
  const bool goes_on = following != nullptr && records - at + buffered < limit;
  if (goes_on) {
    pm::prefetch(following);
    pm::prefetch(following->lines);
  }

  while (at < records && pm::load_relaxed(leaf[at].key) < from) ++at;
  // So many of the leaf's are enough, whatever the buffer has: its records from that key on are not
  // needed.
  const auto removals = static_cast<uint64_t>(std::popcount(removed));
  const uint64_t enough = std::min(limit, uint64_t{records}) + removals;
  const bool bounded = enough < records - at;
  const uint64_t end = bounded ? pm::load_relaxed(leaf[at + enough].key) : 0;
  BufferRecord fresh[kBufferRecordsMax];
  const uint32_t count = sort_fresh(
      ref, buffered, removed, [&](uint64_t key) { return key >= from && (!bounded || key < end); },
      std::less<>(), fresh);
  const uint64_t most = std::min<uint64_t>(limit, uint64_t{records} + count);
  out.reserve(most);
  for (uint32_t next = 0; out.size() < most;) {
    if (at < records) {
      pm::prefetch(leaf + at + uint64_t{kLinesAhead} * kLineRecords);
      const uint64_t key = pm::load_relaxed(leaf[at].key);
      if (next == count || key < fresh[next].slot.key) {
        out.push_back({key, pm::load_relaxed(leaf[at++].value)});
        continue;
      }
      if (key == fresh[next].slot.key) ++at;
    } else if (next == count) {
      break;
    }
    if (!fresh[next].removal) out.push_back(fresh[next].slot);
    ++next;
  }
  if (goes_on) {
    const Leaf* after = pool_.at<Leaf>(pm::load_relaxed(following->offset));
    for (uint32_t i = 0; i < kLinesAhead; ++i)
      pm::prefetch(after->records() + uint64_t{i} * kLineRecords);
    const uint32_t fill = pm::load_relaxed(following->buffered);
    for (uint32_t i = 0; i < std::min(fill, buffer_records_); i += kLineRecords)
      pm::prefetch(following->buffer() + i);
  }
  return ref.lock.validate(stamp);
}

template <typename Content>
bool Core<Content>::snapshot_back(const Ref& ref, uint64_t from, uint64_t limit,
                                  std::vector<Slot>& out) const
  requires(!Content::kOutOfPlace)
{
  out.clear();
  View seen{};
  if (!view(ref, from, seen)) return false;
  const auto& [stamp, buffered, leaf, records, removed, line, end_line] = seen;
  // Behind the line where the next part begins there is nothing up to `from`. `at`: records that
  // are left.
  uint32_t at = std::min((end_line + 1) * kLineRecords, records);
  for (uint32_t i = 1; i <= 4 && i * kLineRecords <= at; ++i)
    pm::prefetch(leaf + at - uint64_t{i} * kLineRecords);

  BufferRecord fresh[kBufferRecordsMax];
  const uint32_t count = sort_fresh(
      ref, buffered, removed, [&](uint64_t key) { return key <= from; }, std::greater<>(), fresh);
  while (at > 0 && pm::load_relaxed(leaf[at - 1].key) > from) --at;
  const uint64_t most = std::min<uint64_t>(limit, uint64_t{records} + count);
  out.reserve(most);
  for (uint32_t next = 0; out.size() < most;) {
    if (at > 0) {
      const uint64_t key = pm::load_relaxed(leaf[at - 1].key);
      if (next == count || key > fresh[next].slot.key) {
        out.push_back({key, pm::load_relaxed(leaf[--at].value)});
        continue;
      }
      if (key == fresh[next].slot.key) --at;
    } else if (next == count) {
      break;
    }
    if (!fresh[next].removal) out.push_back(fresh[next].slot);
    ++next;
  }
  return ref.lock.validate(stamp);
}

PERDURE_INSTANTIATE_PART(PERDURE_SHEAF_INSTANTIATE)

}  // namespace perdure::index::sheaf
