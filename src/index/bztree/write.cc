// Insert, update, upsert, remove.
#include <fmt/core.h>

#include <cstring>

#include "index/bztree/core.h"

namespace perdure::index::bztree {

// Repeats an attempt until it is done. If there is no room in the pool, once more after everything
// that waits for readers who have gone was given back.
template <typename Content>
template <typename Attempt>
bool Core<Content>::persevere(Text text, uint32_t room, Attempt attempt) {
  bool reclaimed = false;
  for (uint32_t attempts = 1;; ++attempts) {
    try {
      // Words keep the marks of what a failing medium interrupted: no attempt would ever succeed.
      if (pool_.failed()) [[unlikely]]
        pool_.require_writable();
      if (attempts % kAttemptsInGoodFaith == 0) require_live(text);
      if (attempts == kAttemptsMax) {
        pool_.throw_corrupt(fmt::format("'{}': a leaf takes no change", name_));
      }
      Outcome outcome = attempt();
      if (outcome == Outcome::kFull) outcome = make_room(text, room);
      if (outcome == Outcome::kDone) return true;
      if (outcome == Outcome::kNot) return false;
      if (outcome == Outcome::kBusy) wait_for_descriptor();
    } catch (const Error& error) {
      if (!pm::is_full(error) || reclaimed) throw;
      reclaimed = true;
      reclaim();
    }
  }
}

// For who is told again and again that another thread was faster: that no frozen node is in the
// tree, where only damage could leave one. Whoever sees one frozen finds another in its place from
// then on.
template <typename Content>
void Core<Content>::require_live(Text text) const {
  const pm::EpochManager::Guard guard(epochs_);  // none of these nodes is used for something else
  Path before;
  descend(text, before);
  std::array<bool, kLevelsMax> frozen;
  for (uint32_t i = 0; i <= before.depth; ++i) {
    frozen[i] = (mwcas_.read(before.steps[i].node->status) & kFrozen) != 0;
  }
  Path now;
  descend(text, now);
  for (uint32_t i = 0; i <= before.depth && i <= now.depth; ++i) {
    if (!frozen[i] || before.steps[i].node != now.steps[i].node) continue;
    throw_damaged(before.steps[i].offset, "is frozen, but in the tree");
  }
}

// Those of operations that a failing medium interrupted never come back.
template <typename Content>
void Core<Content>::wait_for_descriptor() {
  pool_.require_writable();
  mwcas_.wait();
}

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (Content::kOutOfPlace) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  const uint32_t room = room_for(key, value);
  return persevere(Codec::text_of(key), room,
                   [&] { return try_write(condition, key, value, room); });
}

template <typename Content>
bool Core<Content>::goes_out(const Key& key, const Value& value) const {
  if constexpr (Content::kOutOfPlace) {
    return key.bytes.size() + value.size() > node_bytes_ / 8;
  } else {
    return (void)key, (void)value, false;
  }
}

// What a record takes of a leaf.
template <typename Content>
uint32_t Core<Content>::room_for(const Key& key, const Value& value) const {
  if constexpr (Content::kOutOfPlace) {
    return goes_out(key, value) ? 8
                                : (Codec::inline_bytes(key.bytes.size(), value.size()) + 7) / 8 * 8;
  } else {
    return (void)key, (void)value, 16;
  }
}

template <typename Content>
bool Core<Content>::has_room(LeafStatus status, uint32_t slots, uint32_t bytes) const {
  return status.taken_bytes() + slots * 8 + bytes <= room_of(node_bytes_) &&
         status.slots() + slots <= kSlotsMax;
}

template <typename Content>
Meta Core<Content>::write_record(Node& leaf, uint32_t offset, const Key& key, const Value& value,
                                 uint64_t record) const {
  char* to = leaf.bytes() + offset;
  if constexpr (!Content::kOutOfPlace) {
    const uint64_t words[2] = {key, value};
    std::memcpy(to, words, sizeof words);
    return Meta::make(offset, 8, 16, false);
  } else if (record != 0) {
    std::memcpy(to, &record, sizeof record);
    return Meta::make(offset, 0, 8, true);
  } else {
    return Codec::write_inline(leaf.bytes(), offset, key.bytes, value);
  }
}

// Whether a write goes on, by what was found. No lock is needed: a record's metadata word names a
// place of the leaf that nothing else is ever written to, so if the multi-word CAS finds the word,
// it finds the value.
template <typename Content>
bool Core<Content>::holds(const Condition& condition, const Node& leaf, Found found) const {
  if (!found) return condition.holds_if_absent();
  return condition.holds_if_present([&](const Value& expected) {
    return intact_item_of(leaf, found.meta, pool_.verifies_payload()).value == expected;
  });
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::try_write(const Condition& condition, const Key& key,
                                                         const Value& value, uint32_t room) {
  const pm::EpochManager::Guard guard(epochs_);
  Path path;
  descend(Codec::text_of(key), path);
  Node& leaf = path.leaf();
  const LeafStatus status = status_of(leaf);
  if (status.frozen()) return Outcome::kAgain;
  const Found found = find(leaf, status.slots(), Codec::text_of(key));
  if (!holds(condition, leaf, found)) return Outcome::kNot;
  if (!has_room(status, found ? 0 : 1, room)) return Outcome::kFull;
  if (!found && has_leftover(leaf, status)) return Outcome::kFull;
  return put(condition, key, value, leaf, status, found, room);
}

// Space is reserved by a store that a crash forgets, so a record may have been written, and reached
// PM, where the status of the next life has free space, in which the next slot may be. What stands
// there must not pass for metadata: such a slot is not reserved, and the leaf is replaced by a
// copy, whose slots are
// 0. Who reserves a slot has read its word after the status, which has not changed since: nobody
//    has
// written there. A slot that is 0 is so in PM, too: nothing but whole leaves stores zeros.
template <typename Content>
bool Core<Content>::has_leftover(const Node& leaf, LeafStatus status) const {
  return pm::load_acquire(leaf.words()[status.slots()]) != 0;
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::put(const Condition& condition, const Key& key,
                                                   const Value& value, Node& leaf,
                                                   LeafStatus status, Found found, uint32_t room) {
  pm::Heap::TxnIfNeeded txn;
  uint64_t record = 0;
  if constexpr (Content::kOutOfPlace) {
    const bool out = goes_out(key, value);
    if (out || found.meta.out()) txn.begin(pool_.heap(), !out);
    if (out) record = records_.make(*txn.get(), key.bytes, value);
  }
  // The space is this thread's, whatever becomes of the rest.
  const LeafStatus reserved = status.reserved(found ? 0 : 1, room);
  if (!mwcas_.exchange_volatile(leaf.status, status.word, reserved.word)) return Outcome::kAgain;
  const uint32_t offset = node_bytes_ - reserved.used_bytes();
  const Meta fresh = write_record(leaf, offset, key, value, record);
  // Durable with the operation's descriptor, before the metadata that leads to it.
  memory_.flush(leaf.bytes() + offset, room);
  return commit(condition, Codec::text_of(key), leaf, reserved, found ? found.slot : status.slots(),
                fresh, found, txn.get(), record);
}

// Makes a record visible in `slot`: in the place of `found`, or in the slot reserved for it.
template <typename Content>
typename Core<Content>::Outcome Core<Content>::commit(const Condition& condition, Text text,
                                                      Node& leaf, LeafStatus status, uint32_t slot,
                                                      Meta fresh, Found found, pm::Heap::Txn* txn,
                                                      uint64_t record) {
  const bool adds = !found;
  for (;;) {
    pm::Mwcas::Operation operation(mwcas_, txn);
    if (!operation) return Outcome::kBusy;
    const uint32_t garbage = adds ? 0 : std::max(found.meta.room(), 8U);
    operation.add(leaf.status, status.word, status.committed(garbage).word);
    operation.add(leaf.words()[slot], found.meta.word, fresh.word);
    if (record != 0) operation.keep(record);
    const uint64_t old = found.meta.out() ? record_at(leaf, found.meta) : 0;
    if (old != 0) operation.drop(old);
    if (operation.execute()) {
      if (old != 0) records_.retire(old);
      return Outcome::kDone;
    }
    // Somebody committed something, or reserved space. A transaction is good for one attempt.
    status.word = mwcas_.read(leaf.status);
    if (status.frozen() || txn != nullptr) return Outcome::kAgain;
    found = find(leaf, status.slots(), text);
    if (!holds(condition, leaf, found)) return Outcome::kNot;
    if (found.meta.out() || adds != !found) return Outcome::kAgain;
    if (!adds) slot = found.slot;
  }
}

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const Text text = Codec::text_of(key);
  bool sparse = false;
  if (!persevere(text, 0, [&] { return try_remove(condition, text, sparse); })) return false;
  if (sparse) shrink(text);
  return true;
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::try_remove(const Condition& condition, Text text,
                                                          bool& sparse) {
  const pm::EpochManager::Guard guard(epochs_);
  Path path;
  descend(text, path);
  Node& leaf = path.leaf();
  const LeafStatus status = status_of(leaf);
  if (status.frozen()) return Outcome::kAgain;
  const Found found = find(leaf, status.slots(), text);
  if (!found || !holds(condition, leaf, found)) return Outcome::kNot;
  const uint64_t record = found.meta.out() ? record_at(leaf, found.meta) : 0;
  pm::Heap::TxnIfNeeded txn;
  if (record != 0) txn.begin(pool_.heap(), true);
  pm::Mwcas::Operation operation(mwcas_, txn.get());
  if (!operation) return Outcome::kBusy;
  const LeafStatus after = status.committed(std::max(found.meta.room(), 8U) + 8);
  operation.add(leaf.status, status.word, after.word);
  operation.add(leaf.words()[found.slot], found.meta.word, found.meta.removed().word);
  if (record != 0) operation.drop(record);
  if (!operation.execute()) return Outcome::kAgain;
  if (record != 0) records_.retire(record);
  sparse = is_sparse(leaf);
  return Outcome::kDone;
}

PERDURE_BZTREE_INSTANTIATE()

}  // namespace perdure::index::bztree
