// Making, opening, and writing single records.
#include <fmt/core.h>

#include <cstring>
#include <new>

#include "index/masstree/core.h"

namespace perdure::index::masstree {

template <typename Policy, typename Content>
Core<Policy, Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      obsolete_mark_(obsolete_mark(pool.generation())),
      records_(pool, epochs_),
      retired_(epochs_, pool.heap()),
      stripes_(kLocksInNodes ? 0 : uint64_t{1} << kStripeBits) {}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::create(pm::PoolImpl& pool,
                                                                     const std::string& name,
                                                                     Kind key, Kind value,
                                                                     const Options&) {
  Root image{};
  image.seal.magic = Policy::kMagic;
  image.slots = kSlots;
  const auto fill = [&](char* block) {
    std::memset(block, 0, sizeof(Node));
    pool.memory().flush(block, sizeof(Node));
  };
  const NewBlock border[1] = {{sizeof(Node), offsetof(Root, first.top), fill}};
  const uint64_t root = make_structure(pool, name, Policy::kName, key, value, &image, sizeof image,
                                       kSealedBytes, border);
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::open(pm::PoolImpl& pool,
                                                                   const std::string& name,
                                                                   Kind key, Kind value,
                                                                   const Options&) {
  const uint64_t at = find_structure(pool, name, Policy::kName, key, value, Policy::kMagic,
                                     sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  if (root.slots != kSlots || root.first.top % sizeof(Node) != 0 ||
      !pool.heap().is_allocated(root.first.top, sizeof(Node)) ||
      pool.at<Node>(root.first.top)->level >= kLevelsMax) {
    pool.throw_corrupt(fmt::format("the top node of '{}' is damaged", name));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::throw_damaged(const Node& node) const {
  pool_.throw_corrupt(fmt::format("'{}': the node at {} is not the one that its place is for",
                                  name_, pool_.offset_of(&node)));
}

// ---- changes of one locked border node

// Writes an entry to a slot that does not count.
template <typename Policy, typename Content>
void Core<Policy, Content>::place(Node& node, uint32_t slot, const Entry& entry) const {
  pm::store_release(node.lengths[slot], entry.slice.length);
  pm::store_release(node.words[slot], entry.slice.word);
  pm::store_release(node.values[slot], entry.value);
  memory_.flush(&node.words[slot], sizeof node.words[slot]);
  memory_.flush(&node.values[slot], sizeof node.values[slot]);
}

// Before the first change of a node in this generation. Words have no intents by which recovery
// would make durable what a process that died had stored: without this a slot could be written to
// that is free in the caches only, and a power failure would bring back the permutation by which it
// counts.
template <typename Policy, typename Content>
void Core<Policy, Content>::settle(Node& node) const {
  if (!kWords || pm::load_relaxed(node.settled) == obsolete_mark_) return;
  memory_.flush(&node, sizeof node);
  memory_.fence();
  pm::store_relaxed(node.settled, obsolete_mark_);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::put(Node& node, const Position& position, Slice slice, const Key& key,
                                const Value& value) {
  const Permutation before = sound_permutation_of(node);
  const uint32_t slot = before.free_slot();
  const uint64_t after = before.with(position.rank, slot).word();
  if constexpr (kWords) {
    (void)key;
    settle(node);
    place(node, slot, {slice, value});
    // The entry, before the permutation: a crash must not reveal a slot's old content.
    memory_.fence();
    begin_change(node);
    pm::store_release(node.permutation, after);
    memory_.persist(&node.permutation, sizeof node.permutation);  // before anybody can see it
  } else {
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t record = records_.make(txn, key.bytes, value);
    place(node, slot, {slice, record});
    txn.will_link(record, &node.permutation, pm::link_bit(Permutation::bit_of(slot)));
    // The entry, its record and the intent, before the permutation reveals them. The slice's length
    // is in the permutation's line, and stored before it.
    txn.commit([&] {
      begin_change(node);
      pm::store_release(node.permutation, after);
      memory_.flush(&node.permutation, sizeof node.permutation);
    });
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::replace(Node& node, uint32_t slot, const Key& key, const Value& value) {
  uint64_t& home = node.values[slot];
  if constexpr (kWords) {
    (void)key;
    settle(node);
    begin_change(node);
    pm::store_release(home, value);
    memory_.persist(&home, sizeof home);  // before anybody can see it
  } else {
    const uint64_t before = pm::load_relaxed(home);
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t record = records_.make(txn, key.bytes, value);
    txn.will_link(record, &home, pm::Link::kTagged);
    txn.will_unlink(before, &home, pm::Link::kTagged, pm::Heap::Txn::Release::kLater);
    // The record and the intents, before the value leads to it.
    txn.commit([&] {
      begin_change(node);
      pm::store_release(home, record);
      memory_.flush(&home, sizeof home);
    });
    records_.retire(before);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::take_out(Node& node, const Position& position) {
  const uint64_t after = sound_permutation_of(node).without(position.rank).word();
  if constexpr (kWords) {
    settle(node);
    begin_change(node);
    pm::store_release(node.permutation, after);
    memory_.persist(&node.permutation, sizeof node.permutation);  // before anybody can miss it
  } else {
    const uint64_t record = pm::load_relaxed(node.values[position.slot]);
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.will_unlink(record, &node.permutation, pm::link_bit(Permutation::bit_of(position.slot)),
                    pm::Heap::Txn::Release::kLater);
    // The intent, before the slot no longer counts.
    txn.commit([&] {
      begin_change(node);
      pm::store_release(node.permutation, after);
      memory_.flush(&node.permutation, sizeof node.permutation);
    });
    records_.retire(record);
  }
}

// Gives a record, whose slice another key shares, a layer of its own. Throws kPoolFull, kNoSpace,
// having changed nothing.
template <typename Policy, typename Content>
void Core<Policy, Content>::deepen(Node& node, uint32_t slot, uint32_t depth) {
  if constexpr (!kWords) {
    uint64_t& home = node.values[slot];
    const uint64_t record = pm::load_relaxed(home);
    // Else layers would go down and down.
    if (node.lengths[slot] != kLonger ||
        slice_of(rest_of(records_.key(record), depth)) != slice_in(node, slot)) {
      throw_damaged(node);
    }
    const Entry only = {slice_of(rest_of(records_.key(record), depth + 1)), record};
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t layer_at = txn.allocate(sizeof(Layer));
    const uint64_t border_at = txn.allocate(sizeof(Node));
    alignas(pm::kLineBytes) Node border{};
    fill(border, &only, &only + 1);
    alignas(pm::kLineBytes) Layer layer{};
    layer.top = border_at;
    memory_.copy_nontemporal(pool_.at<Node>(border_at), &border, sizeof border);
    memory_.copy_nontemporal(pool_.at<Layer>(layer_at), &layer, sizeof layer);
    txn.will_link(layer_at, &home, pm::Link::kTagged);
    txn.will_link(border_at, &home, pm::Link::kAsPrevious);
    // The layer, its node and the intents, before the value leads to them.
    txn.commit([&] {
      begin_change(node);
      pm::store_release(home, layer_at | kLayerTag);
      memory_.flush(&home, sizeof home);
    });
  }
}

// ---- single records

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_once(const Condition& condition, const Key& key,
                                       const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const Border border = locate(text_of(key));
    Node& node = *border.node;
    Held held(*this, node);
    if (!border.seen.holds()) continue;
    const Slice slice = slice_of(rest_of(text_of(key), border.depth));
    const Position at = find(node, permutation_of(node), slice);
    if (at.found && is_of(border.value, key)) {
      if (!condition.holds_for(records_, border.value)) return false;
      replace(node, at.slot, key, value);
      return true;
    }
    if (!condition.holds_if_absent()) return false;
    if (at.found) {
      deepen(node, at.slot, border.depth);
      continue;
    }
    if (!permutation_of(node).is_full()) {
      put(node, at, slice, key, value);
      return true;
    }
    held.release();
    make_room(*border.layer, slice);
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (!kWords) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  return retry_when_full([&] { return write_once(condition, key, value); },
                         [&] {
                           retired_.flush();
                           records_.reclaim();
                         });
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const Border border = locate(text_of(key));
    if (!border.found || !is_of(border.value, key)) return false;
    Node& node = *border.node;
    Held held(*this, node);
    if (!border.seen.holds()) continue;
    if (!condition.holds_for(records_, border.value)) return false;
    const Slice slice = slice_of(rest_of(text_of(key), border.depth));
    take_out(node, find(node, permutation_of(node), slice));
    const uint32_t left = permutation_of(node).count();
    held.release();
    try {
      if (left * 3 <= kSlots) shrink(key, left == 0);
    } catch (const std::bad_alloc&) {
      // It is removed. A later removal makes the node go, or merges it.
    }
    return true;
  }
}

PERDURE_MASSTREE_INSTANTIATE()

}  // namespace perdure::index::masstree
