// Making, opening, finding the way, and writing single records.
#include <fmt/core.h>

#include "index/hot/core.h"

namespace perdure::index::hot {

template <typename Policy, typename Content>
Core<Policy, Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      obsolete_mark_(obsolete_mark(pool.generation())),
      node_entries_(static_cast<uint32_t>(root.node_entries)),
      records_(pool, epochs_),
      stripes_(kLocksInNodes ? 0 : uint64_t{1} << kStripeBits),
      retired_(epochs_, pool.heap()) {}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::create(pm::PoolImpl& pool,
                                                                     const std::string& name,
                                                                     Kind key, Kind value,
                                                                     const Options& options) {
  require_range("node_entries", options.node_entries, kEntriesMin, kEntriesMax);
  Root image{};
  image.seal.magic = Policy::kMagic;
  image.node_entries = options.node_entries == 0 ? kEntriesMax : options.node_entries;
  const uint64_t root =
      make_structure(pool, name, Policy::kName, key, value, &image, sizeof image, kSealedBytes, {});
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::open(pm::PoolImpl& pool,
                                                                   const std::string& name,
                                                                   Kind key, Kind value,
                                                                   const Options& options) {
  const uint64_t at = find_structure(pool, name, Policy::kName, key, value, Policy::kMagic,
                                     sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "node_entries", options.node_entries, root.node_entries);
  const uint64_t top = root.top;
  if (root.node_entries < kEntriesMin || root.node_entries > kEntriesMax) {
    pool.throw_corrupt(
        fmt::format("the root of '{}' has nodes of {} entries", name, root.node_entries));
  }
  if (top != 0 && (bytes_of(top) == 0 || !pool.leads_inside(offset_of(top), bytes_of(top)) ||
                   !pool.heap().is_allocated(offset_of(top), bytes_of(top)) ||
                   !Form::fits(*pool.at<Node>(offset_of(top)), bytes_of(top)))) {
    pool.throw_corrupt(fmt::format("the top node of '{}' is damaged", name));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::throw_damaged(uint64_t word) const {
  pool_.throw_corrupt(
      fmt::format("'{}': the node at {} is not one that its place is for", name_, offset_of(word)));
}

// ---- the way

template <typename Policy, typename Content>
uint32_t Core<Policy, Content>::position_between(const Node& node, uint32_t a, uint32_t b) {
  const uint32_t bits = Form::partial_of(node, a) ^ Form::partial_of(node, b);
  return bits == 0 ? Form::kNowhere
                   : Form::position_of(node, static_cast<uint32_t>(std::bit_width(bits)) - 1);
}

template <typename Policy, typename Content>
size_t Core<Policy, Content>::node_for(const Path& path, uint32_t position) {
  size_t at = 0;
  while (at + 1 < path.size() && Form::first_position(*path[at + 1].node) <= position) ++at;
  return at;
}

template <typename Policy, typename Content>
std::pair<uint32_t, uint32_t> Core<Policy, Content>::sharing(const Step& step, uint32_t position) {
  const Node& node = *step.node;
  uint32_t low = step.entry;
  uint32_t high = step.entry;
  while (low > 0 && position_between(node, low - 1, low) > position) --low;
  while (high + 1 < node.count && position_between(node, high, high + 1) > position) ++high;
  return {low, high};
}

// Moves on to the entry that shares most bits with those that have been looked at. False: that was
// the last one.
template <typename Policy, typename Content>
bool Core<Policy, Content>::next_nearest(Step& step) {
  const Node& node = *step.node;
  if (step.low == 0 && step.high + 1 == node.count) return false;
  // The side that parts from them further down.
  const bool down = step.high + 1 == node.count ||
                    (step.low > 0 && position_between(node, step.low - 1U, step.low) >
                                         position_between(node, step.high, step.high + 1U));
  step.entry = down ? --step.low : ++step.high;
  return true;
}

// Goes the way of a key; where that ends at an entry which has gone, to the record that shares most
// bits with it.
// False: there is no record. A way may be as long as keys have positions, so this takes no stack
// for it.
template <typename Policy, typename Content>
bool Core<Policy, Content>::nearest(uint64_t top, Text text, Spot& spot) const {
  Path& path = spot.path;
  bool on_its_way = true;
  const auto go_down = [&](uint64_t word, int32_t above) {
    Node& node = enter(word, above);
    const uint32_t entry = on_its_way ? Form::search(node, text) : 0;
    path.push_back(
        {&node, word, entry, static_cast<uint16_t>(entry), static_cast<uint16_t>(entry)});
  };
  go_down(top, kAboveAll);
  for (;;) {
    const Step& step = path.back();
    Item item = read(*step.node, step.word, step.entry);
    if constexpr (kWords) {
      // Where the entry has gone any record of the node will do: if the key belongs into the node,
      // it is put in its place by its bits; and if not, it parts from all of them at one position.
      if (!item.live || (!item.child && item.word != text)) {
        uint32_t spare = 0;
        Item added;
        if (find_added(*step.node, step.word, text, !item.live, spare, added)) {
          item = added;
          path.back().entry = spare;
        }
      }
    }
    if (item.live && !item.child) {
      spot.item = item;
      return true;
    }
    if (item.live) {
      prefetch(item.word);
      go_down(item.word, first_position(*step.node));
      continue;
    }
    on_its_way = false;
    while (!next_nearest(path.back())) {
      if (spot.hollow.empty() && live_count_of(path.back()) == 0) spot.hollow = path;
      path.pop_back();
      if (path.empty()) return false;
    }
  }
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Spot Core<Policy, Content>::locate(Text text) const {
  Spot spot;
  const uint64_t word = read_top();
  if (word == 0) return spot;
  spot.path.reserve(8);
  if (!nearest(word, text, spot)) return spot;
  spot.differs = Form::first_difference(text, text_of(spot.item));
  spot.same = spot.differs == Form::kNowhere;
  return spot;
}

// ---- writing

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::replace(const Condition& condition,
                                                                       const Spot& spot,
                                                                       const Key& key,
                                                                       const Value& value) {
  const Step& step = spot.path.back();
  const Lock lock = lock_of(step.word);
  const Held held(*this, lock);
  uint64_t* slot = Form::slot_in(*step.node, step.entry);
  if (!holds(step, spot.item)) return Outcome::kAgain;
  if (!condition.holds_for(records_, stored(step))) return Outcome::kNot;
  if constexpr (kWords) {
    (void)key;
    lock.begin_change();
    pm::store_release(slot[1], value);
    memory_.persist(&slot[1], sizeof slot[1]);  // before anybody can see it
  } else {
    const uint64_t before = spot.item.word;
    const uint64_t bytes = records_.bytes(before);
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t record = records_.make(txn, key.bytes, value);
    txn.will_link(record, slot, pm::Link::kTagged);
    txn.will_unlink(before, slot, pm::Link::kTagged, pm::Heap::Txn::Release::kLater);
    // The record and the intents, before the entry leads to it.
    txn.commit([&] {
      lock.begin_change();
      pm::store_release(slot[0], record);
      memory_.flush(slot, sizeof *slot);
    });
    retired_.add(before, bytes);
  }
  return Outcome::kDone;
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::take_out(const Condition& condition,
                                                                        const Spot& spot) {
  const Step& step = spot.path.back();
  const Lock lock = lock_of(step.word);
  const Held held(*this, lock);
  uint64_t& state = step.node->state;
  if (!holds(step, spot.item)) return Outcome::kAgain;
  if (!condition.holds_for(records_, stored(step))) return Outcome::kNot;
  const bool added = step.entry >= step.node->count;
  uint64_t& word = added ? *Form::slot_in(*step.node, step.entry) : state;
  const auto clear = [&] {
    lock.begin_change();
    pm::store_release(word, added ? 0 : word & ~live_bit(step.entry));
    memory_.flush(&word, sizeof word);
  };
  if constexpr (kWords) {
    clear();
    memory_.fence();  // before anybody can see it
  } else {
    const uint64_t record = spot.item.word;
    const uint64_t bytes = records_.bytes(record);
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.will_unlink(record, &state, pm::link_bit(step.entry), pm::Heap::Txn::Release::kLater);
    txn.commit(clear);  // the intent, before the entry is gone
    retired_.add(record, bytes);
  }
  return Outcome::kDone;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_once(const Condition& condition, const Key& key,
                                       const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (uint32_t attempts = 0;; ++attempts) {
    const Spot spot = locate(text_of(key));
    if (attempts > kAttemptsMax) throw_damaged(read_top());
    if (!spot.hollow.empty()) {
      try_tidy(spot.hollow);
      continue;
    }
    if (!spot.same && !condition.holds_if_absent()) return false;
    const Outcome outcome = spot.path.empty() ? insert_first(key, value)
                            : spot.same       ? replace(condition, spot, key, value)
                                              : insert(spot, key, value);
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
    if (attempts > kAttemptsMax) throw_damaged(read_top());
    if (!spot.same) return false;
    const Outcome outcome = take_out(condition, spot);
    if (outcome == Outcome::kNot) return false;
    if (outcome != Outcome::kDone) continue;
    try_tidy(spot.path);
    return true;
  }
}

PERDURE_HOT_INSTANTIATE()

}  // namespace perdure::index::hot
