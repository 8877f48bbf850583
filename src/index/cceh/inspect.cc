// Looking at a whole table: iteration, statistics, verification.
#include <fmt/core.h>

#include "index/cceh/core.h"
#include "index/structure.h"

namespace perdure::index::cceh {

template <typename Content>
void Core<Content>::copy_segment(uint64_t hash, std::vector<HashSlot>& out, uint32_t& depth) const {
  out.clear();
  const HeldAll held(*this, hash);
  const Entry entry = entry_of(hash);
  depth = static_cast<uint32_t>(root_.initial_depth);
  if (!entry) return;
  require_sound(entry);
  depth = entry.depth();
  const Segment& segment = segment_of(entry);
  for (uint32_t b = 0; b < geometry_.buckets; ++b) {
    for (const HashSlot& slot : segment.buckets[b].slots) {
      if (!is_empty(slot, b, hash, depth)) out.push_back(slot);
    }
  }
}

template <typename Content>
void Core<Content>::visit_segments(
    const std::function<void(uint64_t first, Entry entry)>& visit) const {
  const Directory& now = directory();
  for (uint64_t i = 0; i >> now.depth == 0;) {
    const Entry entry{pm::load_acquire(now.entries()[i])};
    const uint32_t depth = entry ? entry.depth() : static_cast<uint32_t>(root_.initial_depth);
    if (entry) visit(i, entry);
    i += depth > now.depth ? 1 : uint64_t{1} << (now.depth - depth);
  }
}

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(pool_.offset_of(&directory()), directory_bytes(directory().depth));
  visit_segments([&](uint64_t first, Entry entry) {
    meet(entry.segment(), geometry_.segment_bytes());
    if constexpr (Content::kOutOfPlace) {
      std::vector<HashSlot> slots;
      uint32_t depth = 0;
      copy_segment(first << (64 - directory().depth), slots, depth);
      for (const HashSlot& slot : slots) meet(slot.value, records_.bytes(slot.value));
    } else {
      (void)first;
    }
  });
}

template <typename Content>
void Core<Content>::check_segment(uint64_t first, Entry entry,
                                  const std::function<void(const std::string&)>& fail) const {
  const Directory& now = directory();
  const uint32_t depth = entry.depth();
  const auto where = [&] { return fmt::format("'{}', segment at entry {}", name_, first); };
  if (depth < root_.initial_depth || depth > now.depth) {
    return fail(where() + ": its depth is out of range");
  }
  const uint64_t count = uint64_t{1} << (now.depth - depth);
  if (first % count != 0) return fail(where() + ": it does not begin at a multiple of its range");
  for (uint64_t i = first; i < first + count; ++i) {
    if (now.entries()[i] != entry.word) return fail(where() + ": its directory entries disagree");
  }
  if (!pool_.heap().is_allocated(entry.segment(), geometry_.segment_bytes())) {
    return fail(where() + ": it is not an allocated block");
  }
  const uint64_t prefix = first << (64 - now.depth);
  KeysMet<Content> keys(records_);
  for (uint32_t b = 0; b < geometry_.buckets; ++b) {
    for (const HashSlot& slot : segment_of(entry).buckets[b].slots) {
      if (is_empty(slot, b, prefix, depth)) continue;
      if (!geometry_.may_live_in(slot.hash, b))
        fail(where() + ": a record is too far from its bucket");
      check_slot(records_, keys, slot, [&](const char* what) { fail(where() + ": " + what); });
    }
  }
}

template <typename Content>
uint64_t Core<Content>::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  if (root_.pending != 0) fail(fmt::format("'{}': a change of the directory is pending", name_));
  visit_segments([&](uint64_t first, Entry entry) { check_segment(first, entry, fail); });
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t segments = 0;
  std::vector<HashSlot> slots;
  uint32_t depth = 0;
  visit_segments([&](uint64_t first, Entry) {
    copy_segment(first << (64 - directory().depth), slots, depth);
    records += slots.size();
    ++segments;
  });
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes",
           stripes_.dram_bytes() + pm::EpochManager::kDramBytes +
               (settled_ == nullptr ? 0 : settled_words() * sizeof(uint64_t)),
           "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", records, "records");
  list.add("segments", segments, "segments");
  list.add("directory_depth", directory().depth, "");
  list.add_ratio("load_factor", records, segments * geometry_.buckets * kBucketSlots, "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_CCEH_INSTANTIATE)

}  // namespace perdure::index::cceh
