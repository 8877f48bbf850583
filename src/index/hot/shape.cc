// Nodes that come, split, join and go: each beside the trie, put in its place by one store.
#include <cassert>

#include "index/hot/core.h"
#include "pm/pause.h"

namespace perdure::index::hot {

// A node's live entries; and which of them the step took, or kNowhere. A node that contradicts
// itself is not replaced: its copy would lose what tells of it. The caller has the lock.
template <typename Policy, typename Content>
Image Core<Policy, Content>::decode(const Step& step, uint32_t& entry) const {
  Node& node = *step.node;
  if (!is_sound(node)) throw_damaged(step.word);
  const uint64_t state = state_of(node);
  Image image;
  image.height = node.height;
  entry = Form::kNowhere;
  uint32_t last = 0;
  for (auto left = static_cast<uint32_t>(state); left != 0; left &= left - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(left));
    if (image.count > 0) image.differs[image.count - 1] = position_between(node, last, i);
    if (i == step.entry) entry = image.count;
    const uint64_t* slot = Form::slot_in(node, i);
    Item item;
    item.word = pm::load_relaxed(slot[0]);
    if constexpr (kWords) item.value = pm::load_relaxed(slot[1]);
    item.child = is_child(state, i);
    image.append(item);
    last = i;
  }
  bool sound = true;
  bool has_added = false;
  for_each_added(node, step.word, [&](uint32_t, const Item& item) {
    entry = Form::kNowhere;  // others may be before it
    has_added = true;
    sound = sound && image.insert_word(item);
  });
  // But in the top node all share the bits before its first position: a copy with one that does not
  // would be a node that its place is not for, and with it nobody would find the others.
  if (has_added && step.word != pm::load_relaxed(root_.top)) {
    sound = sound && std::all_of(image.differs, image.differs + image.count - 1,
                                 [first = Form::first_position(node)](uint32_t position) {
                                   return position >= first;
                                 });
  }
  if (!sound) throw_damaged(step.word);
  return image;
}

// Whether the partial keys of a node are those of a trie.
template <typename Policy, typename Content>
bool Core<Policy, Content>::is_sound(const Node& node) {
  if (!Form::has_positions(node)) return false;
  uint64_t used = 0;
  uint64_t before = Form::partial_of(node, 0);
  if (before != 0) return false;
  for (uint32_t i = 1; i < node.count; ++i) {
    const uint64_t partial = Form::partial_of(node, i);
    // As before it down to where they part, and from there on the way to the first entry.
    const uint64_t bit = std::bit_floor(partial ^ before);
    if (partial <= before || partial != ((before & ~(2 * bit - 1)) | bit)) return false;
    used |= bit;
    before = partial;
  }
  const uint64_t behind = ~((uint64_t{1} << node.count) - 1) & 0xffffffff;
  const uint64_t state = state_of(node);
  return used == (uint64_t{1} << node.bits) - 1 && (state & (behind | behind << 32)) == 0 &&
         (state >> 32 == 0) == (node.height == 1);
}

// Writes the positions of a node. Returns how many, and for each gap between entries the bit of
// partial keys.
template <typename Policy, typename Content>
uint32_t Core<Policy, Content>::put_positions(const Image& image, char* node,
                                              uint32_t* bit_of_gap) {
  const uint32_t gaps = image.count - 1;
  if constexpr (kWords) {
    uint64_t mask = 0;
    for (uint32_t i = 0; i < gaps; ++i) mask |= uint64_t{1} << (63 - image.differs[i]);
    std::memcpy(node + Form::kHeaderBytes, &mask, sizeof mask);
    for (uint32_t i = 0; i < gaps; ++i) {
      const uint64_t behind = (uint64_t{1} << (63 - image.differs[i])) - 1;
      bit_of_gap[i] = static_cast<uint32_t>(std::popcount(mask & behind));
    }
    return static_cast<uint32_t>(std::popcount(mask));
  } else {
    uint16_t sorted[kEntriesMax];
    std::copy(image.differs, image.differs + gaps, sorted);
    std::sort(sorted, sorted + gaps);
    const auto bits = static_cast<uint32_t>(std::unique(sorted, sorted + gaps) - sorted);
    std::memcpy(node + Form::kHeaderBytes, sorted, bits * sizeof sorted[0]);
    for (uint32_t i = 0; i < gaps; ++i) {
      const uint16_t* at = std::lower_bound(sorted, sorted + bits, image.differs[i]);
      bit_of_gap[i] = static_cast<uint32_t>(sorted + bits - at) - 1;
    }
    return bits;
  }
}

// Writes a node. Returns the word that leads to it. Durable with the next fence.
template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::make_node(Change& change, const Image& image) const {
  alignas(pm::kLineBytes) char bytes[kLinesMax * pm::kLineBytes] = {};
  auto& node = *reinterpret_cast<Node*>(bytes);
  assert(can_be_node(image, true));
  uint32_t bit_of_gap[kEntriesMax];
  const uint32_t bits = put_positions(image, bytes, bit_of_gap);
  node.count = static_cast<uint8_t>(image.count);
  node.bits = static_cast<uint8_t>(bits);
  node.width = static_cast<uint8_t>(Form::width_for(bits));
  uint32_t partial = 0;
  for (uint32_t i = 1; i < image.count; ++i) {
    const uint32_t bit = uint32_t{1} << bit_of_gap[i - 1];
    partial = (partial & ~(2 * bit - 1)) | bit;
    Form::put_partial(bytes, bits, i, partial);
  }
  bool children = false;
  for (uint32_t i = 0; i < image.count; ++i) {
    const Item& item = image.items[i];
    uint64_t* slot = Form::slot_in(node, i);
    slot[0] = item.word;
    if constexpr (kWords) slot[1] = item.value;
    node.state |= live_bit(i) | uint64_t{item.child} << (32 + i);
    children |= item.child;
  }
  node.height = static_cast<uint8_t>(children ? std::clamp(image.height, 2U, kHeightMax) : 1);
  const bool row = kWords && !children;
  if (row) node.obsolete = ~obsolete_mark_;  // durable before anything leads to it
  const uint64_t used = row ? Form::bytes_with_spares(image.count, node.width, bits, node_entries_)
                            : Form::node_bytes(image.count, node.width, bits);
  const uint64_t lines = (used + pm::kLineBytes - 1) / pm::kLineBytes;
  const uint64_t offset = change.txn.allocate(lines * pm::kLineBytes);
  memory_.copy_nontemporal(pool_.at<char>(offset), bytes, lines * pm::kLineBytes);
  change.add(offset);
  return child_word(offset, lines * pm::kLineBytes);
}

template <typename Policy, typename Content>
Item Core<Policy, Content>::make_item(Change& change, const Key& key, const Value& value) const {
  Item item;
  if constexpr (kWords) {
    (void)change;
    item.word = key;
    item.value = value;
  } else {
    item.word = records_.make(change.txn, key.bytes, value);
    change.add(item.word);
  }
  return item;
}

// What leads to these entries: a new node or, of one, the entry itself.
template <typename Policy, typename Content>
Item Core<Policy, Content>::child_of(Change& change, const Image& image) const {
  if (image.count == 1) return image.items[0];
  Item item;
  item.word = make_node(change, image);
  item.child = true;
  return item;
}

// Under their locks: whether the nodes of a path are still where they were found.
template <typename Policy, typename Content>
bool Core<Policy, Content>::still_there(const Path& path, size_t first, size_t last) const {
  for (size_t i = first; i <= last; ++i) {
    if (i > 0 && (is_obsolete(*path[i - 1].node) ||
                  !is_live(state_of(*path[i - 1].node), path[i - 1].entry))) {
      return false;
    }
    if (pm::load_relaxed(slot_above(path, i)) != path[i].word) return false;
  }
  return !is_obsolete(*path[last].node);
}

// The store that decides: so many nodes from path[first] on, and what leads to the first of them,
// give way to what `word` leads to. The caller has their locks.
template <typename Policy, typename Content>
void Core<Policy, Content>::commit(Change& change, const Path& path, size_t first, size_t replaced,
                                   uint64_t word) {
  uint64_t& slot = slot_above(path, first);
  const Lock lock = lock_above(path, first);
  const uint64_t before = pm::load_relaxed(slot);
  const uint64_t after = in_turn(word, before);
  for (uint32_t i = 0; i < change.count; ++i) {
    change.txn.will_link(change.fresh[i], &slot, pm::link_bit(turn_of(after)));
  }
  for (size_t i = first; i < first + replaced; ++i) {
    change.txn.will_unlink(offset_of(path[i].word), &slot, pm::link_bit(turn_of(before)),
                           pm::Heap::Txn::Release::kLater);
  }
  // What is new, and the intents, before the word leads there.
  change.txn.commit([&] {
    lock.begin_change();
    pm::store_release(slot, after);
    memory_.flush(&slot, sizeof slot);
  });
  for (size_t i = first; i < first + replaced; ++i) retire_node(path[i]);
}

// The highest node that is replaced if path[at] gets one entry more: a guess, until the locks are
// there.
template <typename Policy, typename Content>
size_t Core<Policy, Content>::highest_changed(const Path& path, size_t at) const {
  const size_t lowest = at;
  while (live_count_of(path[at]) >= node_entries_ && grows_upwards(path, at, lowest)) --at;
  return at;
}

// The first record of a trie.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::insert_first(const Key& key,
                                                                            const Value& value) {
  const Held held(*this, root_lock());
  if (pm::load_relaxed(root_.top) != 0) return Outcome::kAgain;
  Change change(pool_.heap());
  Image image;
  image.append(make_item(change, key, value));
  commit(change, {}, 0, 0, make_node(change, image));
  return Outcome::kDone;
}

// Whether what the insert goes by in path[at] is still there, and its entry one that it has looked
// below.
template <typename Policy, typename Content>
bool Core<Policy, Content>::has_place(const Image& image, uint32_t entry, const Spot& spot,
                                      size_t at) {
  if (entry == Form::kNowhere) return false;
  const auto [low, high] = image.sharing(entry, spot.differs);
  const Item& other = image.items[entry];
  // Of several entries it is in the node that they differ behind the position; of a subtrie in its
  // top node.
  return low != high || !other.child ||
         (at + 1 < spot.path.size() && spot.path[at + 1].word == other.word);
}

// Puts a record beside the entries that share all bits with it up to a position.
template <typename Policy, typename Content>
void Core<Policy, Content>::insert_beside(Change& change, Image& image, uint32_t entry,
                                          const Item& fresh, uint32_t position, bool above) const {
  const auto [low, high] = image.sharing(entry, position);
  const Item other = image.items[entry];
  if (low == high && !other.child && image.height > 1 && image.count > 1) {
    // Room in the node is for subtries: the two records go into one. (Not if nothing else is left:
    // no node has one entry.)
    Image two;
    two.append(other);
    two.insert(above ? 1 : 0, fresh, position, !above);
    image.items[entry] = child_of(change, two);
  } else {
    image.insert(above ? high + 1 : low, fresh, position, !above);
  }
}

// Before the first record that is added to a row in this generation. A process that died may have
// left removals in the caches only. Without this the key of one could be added in another slot, and
// a power failure would bring the removed record back beside it.
template <typename Policy, typename Content>
void Core<Policy, Content>::settle(const Step& step) const {
  if (pm::load_relaxed(step.node->obsolete) == ~obsolete_mark_) return;
  memory_.flush(step.node, bytes_of(step.word));
  memory_.fence();
  pm::store_relaxed(step.node->obsolete, ~obsolete_mark_);
}

// Puts a record into a spare slot of its node, if there is one: of that to which the bit belongs in
// which it differs, so that it shares the bits before the node's first with all that are there.
// (Into the top node comes any.) One line, one fence, and no copy of the node, once it is settled.
//
// A crash before the key is durable leaves a slot without a key, which is none: the value, stored
// before it in the same line, may have come there or not. After that the record is there, with its
// value. So it is after any number of crashes: a slot whose record was removed has no key durably
// before the removal returns, and whatever value is left there is replaced, in the same line,
// before another key comes. A process that dies between store and fence leaves a record that the
// next one sees, and that a power failure may undo: nobody was told of it, and a copy of the node
// takes it along as a whole.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::add(const Step& step, const Key& key,
                                                                   const Value& value) {
  if constexpr (!kWords) {
    (void)step, (void)key, (void)value;
    return Outcome::kNoRoom;
  } else {
    const uint32_t spares = Form::spares_in(*step.node, bytes_of(step.word));
    if (spares == 0 || key == 0 || live_count_of(step) >= node_entries_) return Outcome::kNoRoom;
    const Lock lock = lock_of(step.word);
    const Held held(*this, lock);
    if (is_obsolete(*step.node)) return Outcome::kAgain;
    uint32_t live = live_count_of(*step.node);
    uint64_t* room = nullptr;
    for (uint32_t i = step.node->count; i < step.node->count + spares; ++i) {
      uint64_t* slot = Form::slot_in(*step.node, i);
      if (pm::load_relaxed(slot[0]) == key) return Outcome::kAgain;  // of another writer
      if (pm::load_relaxed(slot[0]) != 0) ++live;
      if (pm::load_relaxed(slot[0]) == 0 && room == nullptr) room = slot;
    }
    if (room == nullptr || live >= node_entries_) return Outcome::kNoRoom;
    settle(step);
    lock.begin_change();
    pm::store_release(room[1], value);
    pm::store_release(room[0], key);
    memory_.persist(room, 2 * sizeof *room);  // before anybody can see it
    return Outcome::kDone;
  }
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::insert(const Spot& spot,
                                                                      const Key& key,
                                                                      const Value& value) {
  const Path& path = spot.path;
  const Text text = text_of(key);
  size_t at = node_for(path, spot.differs);
  if (at + 1 == path.size()) {
    const Outcome outcome = add(path[at], key, value);
    if (outcome != Outcome::kNoRoom) return outcome;
  }
  if (at + 1 < path.size() && belongs_below(path[at], spot.differs, text) &&
      (live_count_of(path[at + 1]) < node_entries_ || !grows_upwards(path, at + 1, at + 1))) {
    ++at;  // it fills the lower nodes first
  }
  const size_t first = highest_changed(path, at);
  pm::come_to_place("p-hot: has found its place");
  const Held held(*this, path, first, at);
  if (!still_there(path, first, at)) return Outcome::kAgain;
  uint32_t entry = 0;
  Image image = decode(path[at], entry);
  const bool words_alone = Form::is_row(*path[at].node);
  if (!words_alone && !has_place(image, entry, spot, at)) return Outcome::kAgain;
  Change change(pool_.heap());
  const Item fresh = make_item(change, key, value);
  if (words_alone) {
    // Another writer has added it; or others have removed all that was there, and the copy would
    // have one entry. That is for the top node alone: below others it has no position of its own,
    // and nobody would enter it. The next attempt finds the node empty and takes it away.
    if (!image.insert_word(fresh) || !can_be_node(image, at == 0)) return Outcome::kAgain;
  } else {
    insert_beside(change, image, entry, fresh, spot.differs, Form::bit_at(text, spot.differs));
  }
  size_t top = at;
  while (image.count > node_entries_) {
    const uint32_t middle = image.middle();
    Image two;
    two.height = path[top].node->height + 1U;
    two.append(child_of(change, image.part(0, middle)));
    two.append(child_of(change, image.part(middle, image.count)));
    two.differs[0] = image.differs[middle - 1];
    if (!grows_upwards(path, top, at)) {
      image = two;  // a node more on the way: the trie becomes higher, or was low here
      break;
    }
    if (top == first) return Outcome::kAgain;  // another number of locks
    --top;
    image = decode(path[top], entry);
    image.replace(entry, two);
  }
  commit(change, path, top, at - top + 1, make_node(change, image));
  return Outcome::kDone;
}

// ---- after removals

// Gives nodes with few entries up, from the end of the path. Throws if there is no room for that.
template <typename Policy, typename Content>
void Core<Policy, Content>::tidy(Path path) {
  while (!path.empty() && tidy_last(path)) path.pop_back();
}

// Whether the node above has lost an entry by that.
template <typename Policy, typename Content>
bool Core<Policy, Content>::tidy_last(const Path& path) {
  const size_t last = path.size() - 1;
  const Node& node = *path[last].node;
  const uint64_t state = state_of(node);
  const uint32_t live = live_count_of(path[last]);
  if (live > node.count / 2U) return false;
  const bool alone = live == 1 && live_count(state) == 1 &&
                     is_child(state, static_cast<uint32_t>(std::countr_zero(state)));
  if (live == 0 || alone) {
    const Held held(*this, path, last, last);
    if (!still_there(path, last, last) || state_of(node) != state ||
        live_count_of(path[last]) != live) {
      return false;
    }
    take_away(path);
    return live == 0;
  }
  const uint32_t room = live == 1 ? node_entries_ : (node_entries_ + 1) / 2;
  if (last > 0 && live_count_of(path[last - 1]) + live <= room + 1) {
    join(path);
  } else if (Form::node_bytes(live, node.width, node.bits) + pm::kLineBytes <=
             bytes_of(path[last].word)) {
    shrink(path);
  }
  return false;
}

// Takes away the last node, which has no entry, or a subtrie alone, which comes into its place.
template <typename Policy, typename Content>
void Core<Policy, Content>::take_away(const Path& path) {
  const Step& step = path.back();
  const size_t last = path.size() - 1;
  const uint64_t left = state_of(*step.node);
  Change change(pool_.heap(), true);
  if (live_count(left) == 1) {
    const auto only = static_cast<uint32_t>(std::countr_zero(left));
    commit(change, path, last, 1, pm::load_relaxed(*Form::slot_in(*step.node, only)));
    return;
  }
  uint64_t& word = last == 0 ? root_.top : path[last - 1].node->state;
  const uint32_t bit = last == 0 ? turn_of(step.word) : path[last - 1].entry;
  const uint64_t after = last == 0 ? 0 : word & ~live_bit(bit);
  change.txn.will_unlink(offset_of(step.word), &word, pm::link_bit(bit),
                         pm::Heap::Txn::Release::kLater);
  // The intent, before nothing leads to the node.
  change.txn.commit([&] {
    lock_above(path, last).begin_change();
    pm::store_release(word, after);
    memory_.flush(&word, sizeof word);
  });
  retire_node(step);
}

// Puts the last node's entries into the one above.
template <typename Policy, typename Content>
void Core<Policy, Content>::join(const Path& path) {
  const size_t last = path.size() - 1;
  const Held held(*this, path, last - 1, last);
  if (!still_there(path, last - 1, last)) return;
  uint32_t entry = 0;
  const Image below = decode(path[last], entry);
  Image image = decode(path[last - 1], entry);
  if (below.count == 0 || image.count + below.count - 1 > node_entries_) return;
  image.replace(entry, below);
  if (!can_be_node(image, last == 1)) return;
  Change change(pool_.heap(), true);
  commit(change, path, last - 1, 2, make_node(change, image));
}

// Puts a smaller copy into the last node's place.
template <typename Policy, typename Content>
void Core<Policy, Content>::shrink(const Path& path) {
  const size_t last = path.size() - 1;
  const Held held(*this, path, last, last);
  if (!still_there(path, last, last)) return;
  uint32_t entry = 0;
  const Image image = decode(path[last], entry);
  if (!can_be_node(image, last == 0)) return;  // others have removed more meanwhile
  Change change(pool_.heap(), true);
  commit(change, path, last, 1, make_node(change, image));
}

PERDURE_INSTANTIATE_PART(PERDURE_HOT_INSTANTIATE)

}  // namespace perdure::index::hot
