// Reading a leaf's log.
#include "index/nvtree/core.h"
#include "index/tree/sort.h"

namespace perdure::index::nvtree {

template <typename Content>
int Core<Content>::find(const Leaf& leaf, uint32_t count, const Key& key, uint64_t& value) const {
  if (count == 0) return -1;
  const uint64_t word = Content::word_of(key);
  uint64_t superseded = 0;
  uint32_t within = (count - 1) % kLineEntries;
  for (uint32_t number = (count - 1) / kLineEntries;; --number, within = kLineEntries - 1) {
    const Line& line = leaf.lines()[number];
    for (uint32_t s = within + 1; s-- > 0;) {
      const uint32_t entry = number * kLineEntries + s;
      const bool same = pm::load_relaxed(line.slots[s].key) == word;
      if constexpr (Content::kOutOfPlace) {
        // A record may be gone unless its entry is live.
        const Tag tag{pm::load_relaxed(line.tags) >> Leaf::tag_shift(entry) & 0xffff};
        if (same && tag.is_record() && (superseded >> entry & 1) == 0) {
          value = pm::load_acquire(line.slots[s].value);
          if (records_.key(value) == key.bytes) return static_cast<int>(entry);
        }
        superseded |= tag.superseded();
      } else if (same) {
        // The newest entry of the key decides.
        value = pm::load_relaxed(line.slots[s].value);
        return leaf.tag(entry).is_record() ? static_cast<int>(entry) : -1;
      }
    }
    if (number == 0) return -1;
  }
}

template <typename Content>
const Leaf& Core<Content>::leaf_behind(uint64_t link) const {
  if (link % pm::kLineBytes != 0 || !pool_.leads_inside(link, leaf_bytes(leaf_records_))) {
    throw_damaged("the list of leaves");
  }
  return leaf_at(link);
}

template <typename Content>
uint64_t Core<Content>::leaves_max() const {
  return (pool_.end_offset() - pool_.header().data_offset) / leaf_bytes(leaf_records_);
}

template <typename Content>
uint64_t Core<Content>::live_mask(const Leaf& leaf, uint32_t count) const {
  uint64_t live = 0;
  uint64_t superseded = 0;
  for (uint32_t entry = 0; entry < count; ++entry) {
    const Tag tag = leaf.tag(entry);
    superseded |= tag.superseded();
    live |= uint64_t{tag.is_record()} << entry;
  }
  return live & ~superseded;
}

template <typename Content>
bool Core<Content>::before(const Slot& a, const Slot& b) const {
  if constexpr (Content::kOutOfPlace) {
    if (a.key == b.key) return records_.key(a.value) < records_.key(b.value);
  }
  return a.key < b.key;
}

template <typename Content>
uint32_t Core<Content>::live_slots(const Leaf& leaf, uint32_t count, Slot* out) const {
  uint32_t found = 0;
  for (uint64_t live = live_mask(leaf, count); live != 0; live &= live - 1) {
    const Slot& slot = leaf.slot(static_cast<uint32_t>(std::countr_zero(live)));
    out[found++] = {pm::load_relaxed(slot.key), pm::load_acquire(slot.value)};
  }
  return found;
}

template <typename Content>
uint32_t Core<Content>::snapshot(uint64_t at, Slot* out, uint64_t& next) const {
  const StripeLock& lock = lock_of(at);
  const Leaf& leaf = leaf_behind(at);
  uint32_t found = 0;
  uint32_t stamp = 0;
  do {
    stamp = lock.begin_read();
    next = pm::load_acquire(leaf.next);
    found = live_slots(leaf, count_of(leaf), out);
  } while (!lock.validate(stamp));
  if constexpr (Content::kOutOfPlace) {
    std::sort(out, out + found, [this](const Slot& a, const Slot& b) { return before(a, b); });
  } else {
    tree::sort_words(out, found);
  }
  return found;
}

PERDURE_INSTANTIATE_PART(PERDURE_NVTREE_INSTANTIATE)

}  // namespace perdure::index::nvtree
