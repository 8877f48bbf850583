// Putting new leaves in the place of others: compaction, splits, merges, and empty leaves.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "index/nvtree/core.h"

namespace perdure::index::nvtree {

// Makes the key's full leaf, whose lock is held, one that takes another entry. Throws kPoolFull,
// kNoSpace, having changed nothing.
template <typename Content>
void Core<Content>::make_room(const Key& key, uint64_t at) {
  Slot slots[kLeafRecords];
  const uint32_t count = live_slots(leaf_at(at), leaf_records_, slots);
  std::sort(slots, slots + count, [this](const Slot& a, const Slot& b) { return before(a, b); });
  const std::span<const Slot> live(slots, count);
  if (count > leaf_records_ * 3 / 4) {
    try {
      split(key, at, live);
      return;
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      if (count == leaf_records_) throw;
    }
  }
  Held held = inner_.lock(key);
  if (held.parent->leaf(held.slot) != at) throw_damaged("the order of the leaves");
  replace(held, held.slot, 1, live, {});
}

template <typename Content>
void Core<Content>::split(const Key& key, uint64_t at, std::span<const Slot> live) {
  // A key beyond all others: more of these may come, and find the left leaf full for good.
  const bool at_end = tree::compare<Content>(records_, live.back(), key) < 0;
  const size_t left = at_end ? live.size() - live.size() / 8 - 1 : live.size() / 2;
  for (;;) {
    {
      Held held = inner_.lock(key);
      if (held.parent->leaf(held.slot) != at) throw_damaged("the order of the leaves");
      if (held.parent->count() < inner_.records()) {
        replace(held, held.slot, 1, live.first(left), live.subspan(left));
        return;
      }
    }
    inner_.rebuild(key);
  }
}

// ---- after removals

// Merges the key's leaf with a neighbour if both are sparse, or takes it out if it is empty.
template <typename Content>
void Core<Content>::tidy(const Key& key) {
  try {
    with_reclaim([&] {
      for (int attempt = 0; attempt < kTidyAttempts; ++attempt) {
        if (tidy_once(key)) break;
        std::this_thread::yield();
      }
      return true;
    });
  } catch (const Error& error) {
    // The removal is done; where there is no room to merge, the next one tries again.
    if (!pm::is_full(error)) throw;
  }
}

// Returns false if it is worth another attempt.
template <typename Content>
bool Core<Content>::tidy_once(const Key& key) {
  const pm::EpochManager::Guard guard(epochs_);
  LeafLock lock;
  const uint64_t at = lock_leaf(key, lock);
  Slot slots[kLeafRecords];
  const Leaf& leaf = leaf_at(at);
  const uint32_t live = live_slots(leaf, count_of(leaf), slots);
  if (live > leaf_records_ * 3 / 8) return true;
  Held held = inner_.lock(key);
  // Who replaces the leaf needs its lock.
  if (held.parent->leaf(held.slot) != at) throw_damaged("the order of the leaves");
  if (held.parent->count() == 1) {
    held = {};
    if (inner_.has_one_leaf()) return true;
    inner_.rebuild(key);
    return false;
  }
  if (live == 0) {
    replace(held, held.slot, 1, {}, {});
    return true;
  }
  const uint32_t lower = held.slot > 0 ? held.slot - 1 : 0;
  const uint64_t other = held.parent->leaf(held.slot > 0 ? lower : 1);
  // Not waited for: its holder may be waiting for the parent.
  LeafLock other_lock;
  if (&lock_of(other) != lock.mutex()) {
    other_lock = LeafLock(lock_of(other), std::try_to_lock);
    if (!other_lock) return false;
  }
  const Leaf& partner = leaf_at(other);
  const uint32_t count = count_of(partner);
  if (static_cast<uint32_t>(std::popcount(live_mask(partner, count))) + live >
      leaf_records_ * 5 / 8) {
    return true;
  }
  const uint32_t total = live + live_slots(partner, count, slots + live);
  std::sort(slots, slots + total, [this](const Slot& a, const Slot& b) { return before(a, b); });
  replace(held, lower, 2, std::span<const Slot>(slots, total), {});
  return true;
}

// ---- the switch

// Puts leaves with the slots `lower`, and `upper` unless it is empty, in the place of `count`
// leaves of a parent, from `slot` on, whose locks are held; none if both are empty. Durable on
// return.
template <typename Content>
void Core<Content>::replace(Held& held, uint32_t slot, uint32_t count, std::span<const Slot> lower,
                            std::span<const Slot> upper) {
  typename Inner<Content>::Parent& parent = *held.parent;
  const bool vanishes = lower.empty() && parent.count() > 1;
  const uint64_t before_it = inner_.previous(held, slot);
  uint64_t& link = before_it == 0 ? root_.head : leaf_at(before_it).next;
  const uint64_t first_old = parent.leaf(slot);
  const uint64_t last_old = parent.leaf(slot + count - 1);
  const uint64_t next = pm::load_relaxed(leaf_at(last_old).next);
  require_linked(parent, slot, count, link, next);
  ChildList split_off;  // one at most
  drop_image();
  pm::Heap::Txn txn(pool_.heap(), upper.empty());
  uint64_t first_new = next;
  if (!vanishes) {
    first_new = txn.allocate(leaf_bytes(leaf_records_));
    uint64_t behind = next;
    txn.will_link(first_new, &link, pm::Link::kOffset);
    if (!upper.empty()) {
      behind = txn.allocate(leaf_bytes(leaf_records_));
      split_off.reserve(1);
      split_off.push_back(child_of(lower, upper, behind));
      write_leaf(behind, upper, next);
      txn.will_link(behind, &link, pm::Link::kAsPrevious);
    }
    write_leaf(first_new, lower, behind);
  }
  txn.will_unlink(first_old, &link, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  if (count == 2) {
    txn.will_unlink(last_old, &link, pm::Link::kAsPrevious, pm::Heap::Txn::Release::kLater);
  }
  // The leaves and the intents, before the pointer that all of them follow.
  txn.commit([&] {
    pm::store_release(link, first_new);
    memory_.flush(&link, sizeof link);
  });

  const std::string* text = nullptr;
  parent.lock.begin_change();
  if (vanishes) {
    text = parent.remove(slot);
  } else {
    parent.set_leaf(slot, first_new);
    if (count == 2) text = parent.remove(slot + 1);
    if (!split_off.empty()) {
      parent.insert(slot + 1, split_off.front());
      split_off.clear();  // its separator is the parent's
    }
  }
  held.lock.unlock();
  retired_.add({first_old, text});
  if (count == 2) retired_.add({last_old, nullptr});
  replacements_.fetch_add(1, std::memory_order_relaxed);
}

// Whether the list has the leaves as the inner part does: else damage would be copied to new
// leaves.
template <typename Content>
void Core<Content>::require_linked(const typename Inner<Content>::Parent& parent, uint32_t slot,
                                   uint32_t count, uint64_t link, uint64_t next) const {
  const uint64_t between =
      count == 1 ? parent.leaf(slot) : pm::load_relaxed(leaf_at(parent.leaf(slot)).next);
  if (link != parent.leaf(slot) || between != parent.leaf(slot + count - 1) ||
      (slot + count < parent.count() && next != parent.leaf(slot + count))) {
    throw_damaged("the list of leaves");
  }
}

// A leaf with the shortest separator of the two.
template <typename Content>
Child Core<Content>::child_of(std::span<const Slot> lower, std::span<const Slot> upper,
                              uint64_t leaf) const {
  Child child{upper.front().key, nullptr, leaf};
  if constexpr (Content::kOutOfPlace) {
    child.text = separator(records_.key(lower.back().value), records_.key(upper.front().value));
    child.word = tree::prefix_of(*child.text);
  } else {
    (void)lower;
  }
  return child;
}

template <typename Content>
void Core<Content>::write_leaf(uint64_t at, std::span<const Slot> slots, uint64_t next) const {
  alignas(64) char bytes[kLeafBytesMax];
  const uint64_t used = leaf_bytes(slots.size());
  std::memset(bytes, 0, used);
  auto& image = *reinterpret_cast<Leaf*>(bytes);
  image.count = slots.size();
  image.next = next;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    image.slot(i) = slots[i];
    image.lines()[i / kLineEntries].tags |= Tag::make(false, -1).bits << Leaf::tag_shift(i);
  }
  memory_.copy_nontemporal(&leaf_at(at), bytes, used);  // durable with the intents
}

PERDURE_INSTANTIATE_PART(PERDURE_NVTREE_INSTANTIATE)

}  // namespace perdure::index::nvtree
