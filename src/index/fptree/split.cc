// Leaves that are split, merged, and given back.
#include "index/fptree/core.h"

namespace perdure::index::fptree {

// ---- more leaves

// The leaf is full. Afterwards the key's leaf is another, or has room.
template <typename Content>
void Core<Content>::make_room(const Held& held, LeafRef& full, bool last, const Key& key) {
  const uint64_t all = geometry_.full();
  const Slot* slots = geometry_.slots(*full.leaf);
  const auto below_key = [&](const Slot& slot) {
    return tree::compare<Content>(records_, slot, key) < 0;
  };
  if (!last || !std::all_of(slots, slots + std::popcount(all), below_key)) {
    return split(held, full);
  }
  // Ascending keys: the full leaf stays as it is, and an empty one follows it. Empty leaves are
  // free leaves to recovery, so there is nothing to write.
  typename InnerNodes::Supplies supplies(inner_, key);
  LeafRef* fresh = space_.take();
  const std::lock_guard lock(inner_.mutex());
  inner_.insert(supplies, fresh);
}

template <typename Content>
uint64_t Core<Content>::copy_records(Leaf& from, uint64_t which, Leaf& to, uint64_t taken) {
  uint64_t used = 0;
  for (; which != 0; which &= which - 1) {
    const int source = std::countr_zero(which);
    const int target = std::countr_zero(~(taken | used));
    const Slot& slot = geometry_.slots(from)[source];
    fill_slot(to, target, pm::load_relaxed(slot.key), pm::load_relaxed(slot.value),
              pm::load_relaxed(Geometry::fingerprints(from)[source]));
    used |= bit(target);
  }
  // What lies outside has a clear bit and is read by nobody; who sets one later flushes its slot
  // first.
  const int first = std::countr_zero(used);
  const auto count = static_cast<size_t>(64 - std::countl_zero(used) - first);
  memory_.flush(Geometry::fingerprints(to) + first, count);
  memory_.flush(geometry_.slots(to) + first, count * sizeof(Slot));
  return used;
}

// Both bitmaps by one redo record: each record counts in one of the two leaves, whatever happens.
// Calls `moved` while readers of both leaves wait: also when the medium fails, if the records have
// moved by then, for what readers find must be where the inner nodes lead to.
template <typename Content>
template <typename Moved>
void Core<Content>::change_both(Leaf& first, uint64_t first_bitmap, Leaf& second,
                                uint64_t second_bitmap, const Held& one, const Held& other,
                                Moved moved) {
  try {
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.redo(&first.bitmap, &first_bitmap, sizeof first_bitmap);
    txn.redo(&second.bitmap, &second_bitmap, sizeof second_bitmap);
    // The copies and the redo records, before these are armed.
    txn.commit_redo([&] {
      one.begin_change();
      other.begin_change();
    });
  } catch (...) {
    if (pm::load_relaxed(second.bitmap) == second_bitmap) moved();
    throw;
  }
  moved();
}

template <typename Content>
void Core<Content>::split(const Held& held, LeafRef& full) {
  Leaf& leaf = *full.leaf;
  const uint32_t count = geometry_.records;
  std::array<std::pair<Slot, int>, 64> order;
  for (uint32_t i = 0; i < count; ++i) {
    order[i] = {geometry_.slots(leaf)[i], static_cast<int>(i)};
  }
  const auto middle = order.begin() + count / 2;
  std::nth_element(order.begin(), middle, order.begin() + count,
                   [&](const auto& a, const auto& b) { return before(a.first, b.first); });
  uint64_t moving = 0;
  for (auto one = middle; one != order.begin() + count; ++one) moving |= bit(one->second);

  const Key at = [&] {
    if constexpr (Content::kOutOfPlace) {
      return Key(records_.key(middle->first.value));
    } else {
      return middle->first.key;
    }
  }();
  typename InnerNodes::Supplies supplies(inner_, at);

  LeafRef& fresh = *space_.take();
  // A writer that came by an old way may hold it, and will turn back.
  const Held held_too(*this, fresh);
  try {
    const uint64_t copied = copy_records(leaf, moving, *fresh.leaf, 0);
    change_both(*fresh.leaf, copied, leaf, geometry_.full() & ~moving, held_too, held, [&] {
      const std::lock_guard lock(inner_.mutex());
      inner_.insert(supplies, &fresh);
    });
  } catch (...) {
    // Not when the medium has failed: the redo record may be on it, and would give the leaf what
    // the next one had put there.
    if (!pool_.failed()) space_.give_quietly(&fresh);
    throw;
  }
}

// ---- fewer leaves

// After a removal that has left few records. The lock is released before the leaf is given back.
template <typename Content>
void Core<Content>::shrink(Held& held, LeafRef& leaf, const Key& key, uint32_t left) {
  LeafRef* empty = nullptr;
  {
    const std::lock_guard lock(inner_.mutex());
    const auto next = inner_.neighbours(key);
    if (left == 0) {
      if (next.alone) return;
      inner_.erase(key, 0, false);
      empty = &leaf;
    } else {
      const uint32_t most = geometry_.records * 3 / 4;
      empty = merge_with(held, leaf, next.right, true, key, most);
      if (empty == nullptr) empty = merge_with(held, leaf, next.left, false, key, most);
    }
  }
  held.release();
  if (empty != nullptr) space_.give(empty);
}

// Moves the records of one of two neighbours, of which the caller has locked the first (the key's),
// to the other, if they are `most` at most together. Returns the leaf that is empty now and in no
// inner node, or null. The caller holds inner_.mutex(); a leaf that another thread has locked is
// left alone, as that thread may be waiting for the mutex.
template <typename Content>
LeafRef* Core<Content>::merge_with(const Held& held, LeafRef& leaf, LeafRef* neighbour,
                                   bool on_right, const Key& key, uint32_t most) {
  if (neighbour == nullptr || !neighbour->lock.try_lock()) return nullptr;
  const Held held_too(*this, *neighbour, std::adopt_lock);
  const uint64_t own = bitmap_of(*leaf.leaf);
  const uint64_t others = bitmap_of(*neighbour->leaf);
  if (std::popcount(own) + std::popcount(others) > static_cast<int>(most)) return nullptr;
  const bool own_goes = std::popcount(own) <= std::popcount(others);
  LeafRef& from = own_goes ? leaf : *neighbour;
  LeafRef& into = own_goes ? *neighbour : leaf;
  const uint64_t moving = own_goes ? own : others;
  const uint64_t staying = own_goes ? others : own;
  const auto erase = [&] {
    inner_.erase(key, own_goes ? 0 : on_right ? 1 : -1, own_goes == on_right);
  };
  if (moving != 0) {
    const uint64_t copied = copy_records(*from.leaf, moving, *into.leaf, staying);
    change_both(*into.leaf, staying | copied, *from.leaf, 0, held, held_too, erase);
  } else {
    held.begin_change();
    held_too.begin_change();
    erase();
  }
  return &from;
}

// For a full pool: merges all neighbours whose records fit one leaf. Returns whether that freed
// leaves.
template <typename Content>
bool Core<Content>::compact() {
  if (!compactable_.exchange(false, std::memory_order_acq_rel)) return false;
  bool freed = false;
  std::string text;  // of the cursor
  for (Key cursor = Content::lowest_key();;) {
    const pm::EpochManager::Guard guard(epochs_);
    LeafRef* empty = nullptr;
    Position at;
    {
      const std::lock_guard lock(inner_.mutex());
      at = inner_.find(cursor);
      if (at.leaf->lock.try_lock()) {
        const Held held(*this, *at.leaf, std::adopt_lock);
        LeafRef* next = inner_.neighbours(cursor).right;
        empty = merge_with(held, *at.leaf, next, true, cursor, geometry_.records);
      }
    }
    if (empty != nullptr) {
      space_.give(empty);
      freed = true;
      continue;  // there may be room for the next one, too
    }
    if (!at.bounded) return freed;
    if constexpr (Content::kOutOfPlace) {
      text = *at.bound.text;
      cursor = Key(text);
    } else {
      cursor = at.bound.word;
    }
  }
}

PERDURE_INSTANTIATE_PART(PERDURE_FPTREE_INSTANTIATE)

}  // namespace perdure::index::fptree
