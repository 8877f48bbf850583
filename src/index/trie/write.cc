// Writing single records.
#include <cstring>

#include "index/trie/core.h"

namespace perdure::index::trie {

// For who comes to a node that was replaced, or a slot that has changed: each time another writer
// has done something.
constexpr uint32_t kAttemptsMax = 1 << 16;

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::make_leaf(pm::Heap::Txn& txn, const Key& key,
                                          const Value& value) const {
  if constexpr (kWords) {
    const uint64_t offset = txn.allocate(sizeof(Leaf));
    auto* leaf = pool_.at<Leaf>(offset);
    *leaf = {key, value};
    memory_.flush(leaf, sizeof *leaf);  // durable with the intent, before the slot
    return offset;
  } else {
    return records_.make(txn, key.bytes, value);
  }
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::leaf_bytes(uint64_t word) const {
  if constexpr (kWords) {
    return (void)word, sizeof(Leaf);
  } else {
    return records_.bytes(offset_of(word));
  }
}

// The value of the leaf that a spot leads to, or the offset of its record. For the holder of the
// lock of the spot's node, without which nobody changes it.
template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::stored(const Spot& spot) const {
  if constexpr (kWords) {
    return pm::load_relaxed(leaf_at(spot.word).value);
  } else {
    return offset_of(spot.word);
  }
}

// The store that decides. The caller has the lock, and has told the transaction what depends on the
// word.
template <typename Policy, typename Content>
void Core<Policy, Content>::commit(pm::Heap::Txn& txn, const Owner& owner,
                                   const Place& place) const {
  // What is new, what leads to the slot, and the intents, before the store that commits.
  txn.commit([&] {
    lock_of(owner).begin_change();
    pm::store_release(*place.word, place.value);
    memory_.flush(place.word, sizeof *place.word);
  });
}

// Into a slot that has no child.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::put(const Spot& spot, const Key& key,
                                                                   const Value& value) {
  const Held held(*this, spot.node);
  if (!leads_to(spot.node, spot.symbol, 0)) return Outcome::kAgain;
  uint64_t* slot = slot_of(spot.node, spot.symbol);  // `top` or `end`
  const uint64_t tag = tag_of(spot.node.word);
  if (slot == nullptr && !Shape::has_room(*spot.node.node, tag, spot.symbol)) return Outcome::kFull;
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t leaf = make_leaf(txn, key, value);
  const Place place =
      slot != nullptr ? Place{slot, leaf_word(leaf)}
                      : Shape::prepare(*spot.node.node, tag, spot.symbol, leaf_word(leaf), memory_);
  txn.will_link(leaf, place.word, place.form);
  commit(txn, spot.node, place);
  return Outcome::kDone;
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::replace(const Condition& condition,
                                                                       const Spot& spot,
                                                                       const Key& key,
                                                                       const Value& value) {
  const Held held(*this, spot.node);
  if (!leads_to(spot.node, spot.symbol, spot.word)) return Outcome::kAgain;
  if (!condition.holds_for(records_, stored(spot))) return Outcome::kNot;
  if constexpr (kWords) {
    (void)key;
    // A lock of its own: readers may have come by a node that has been replaced since.
    StripeLock& lock = stripe_at(leaf_stripes_, offset_of(spot.word));
    lock.lock();
    const std::unique_ptr<StripeLock, void (*)(StripeLock*)> unlock(
        &lock, [](StripeLock* one) { one->unlock(); });
    lock.begin_change();
    uint64_t& home = pool_.at<Leaf>(offset_of(spot.word))->value;
    pm::store_release(home, value);
    memory_.persist(&home, sizeof home);  // before anybody can see it
  } else {
    uint64_t* slot = slot_of(spot.node, spot.symbol);
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t leaf = make_leaf(txn, key, value);
    txn.will_link(leaf, slot, pm::Link::kTagged);
    txn.will_unlink(offset_of(spot.word), slot, pm::Link::kTagged, pm::Heap::Txn::Release::kLater);
    const uint64_t bytes = leaf_bytes(spot.word);
    commit(txn, spot.node, {slot, leaf_word(leaf)});
    retired_.add(offset_of(spot.word), bytes);
  }
  return Outcome::kDone;
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::take_out(const Condition& condition,
                                                                        const Spot& spot) {
  const Held held(*this, spot.node);
  if (!leads_to(spot.node, spot.symbol, spot.word)) return Outcome::kAgain;
  if (!condition.holds_for(records_, stored(spot))) return Outcome::kNot;
  uint64_t* slot = slot_of(spot.node, spot.symbol);
  const Place place = removal(spot.node, spot.symbol, slot);
  const uint64_t leaf = offset_of(spot.word);
  const uint64_t bytes = leaf_bytes(spot.word);
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.will_unlink(leaf, place.word, place.form, pm::Heap::Txn::Release::kLater);
  commit(txn, spot.node, place);
  retired_.add(leaf, bytes);
  return Outcome::kDone;
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::try_write(const Condition& condition,
                                                                         const Spot& spot,
                                                                         const Key& key,
                                                                         const Value& value) {
  if (spot.same) return replace(condition, spot, key, value);
  if (spot.word != 0) return branch_off(spot, key, value);
  const Outcome outcome = put(spot, key, value);
  return outcome == Outcome::kFull ? grow(spot, key, value) : outcome;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_once(const Condition& condition, const Key& key,
                                       const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (uint32_t attempts = 0;; ++attempts) {
    const Spot spot = locate(text_of(key));
    if (attempts > kAttemptsMax) throw_damaged(spot.word);
    if (spot.hollow) {
      try_tidy(spot.gap);
      continue;
    }
    if (!spot.same && !condition.holds_if_absent()) return false;
    const Outcome outcome = try_write(condition, spot, key, value);
    if (outcome == Outcome::kDone) return true;
    if (outcome == Outcome::kNot) return false;
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (!kWords) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  return retry_when_full([&] { return write_once(condition, key, value); }, [&] { reclaim(); });
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const pm::EpochManager::Guard guard(epochs_);
  for (uint32_t attempts = 0;; ++attempts) {
    const Spot spot = locate(text_of(key));
    if (attempts > kAttemptsMax) throw_damaged(spot.word);
    if (spot.hollow) {
      try_tidy(spot.gap);
      continue;
    }
    if (!spot.same) return false;
    const Outcome outcome = take_out(condition, spot);
    if (outcome == Outcome::kNot) return false;
    if (outcome != Outcome::kDone) continue;
    if (spot.node.node != nullptr) try_tidy({spot.parent, spot.parent_symbol, spot.node});
    return true;
  }
}

PERDURE_TRIE_INSTANTIATE()

}  // namespace perdure::index::trie
