// Splits, merges, and the end of layers. Each looks for the nodes that it changes without locks,
// takes the locks of all of them, and looks again: a node that is not obsolete under its lock is in
// the tree, and stays there until the lock is given back. What a redo record names belongs to a
// node or layer whose lock is held until the record is disarmed, so no two records that a crash
// finds armed name the same word, and it is all the same in which order recovery carries them out.
//
// Merges and ends of layers have a mutex besides: as long as one holds it nothing becomes obsolete
// but what he takes away, and only splits, which make nodes fuller and move them to new parents,
// happen beside him.
#include <algorithm>

#include "index/masstree/core.h"

namespace perdure::index::masstree {

// The entries of a node that nobody else changes, in order.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Entries Core<Policy, Content>::entries_of(const Node& node) {
  const Permutation permutation = permutation_of(node);
  Entries entries;
  entries.count = permutation.count();
  for (uint32_t rank = 0; rank < entries.count; ++rank) {
    const uint32_t slot = permutation.slot(rank);
    entries.list[rank] = {slice_in(node, slot), pm::load_relaxed(node.values[slot])};
  }
  return entries;
}

// Gives a new node its entries.
template <typename Policy, typename Content>
void Core<Policy, Content>::fill(Node& image, const Entry* begin, const Entry* end) {
  Permutation permutation;
  for (uint32_t slot = 0; begin != end; ++begin, ++slot) {
    image.words[slot] = begin->slice.word;
    image.lengths[slot] = begin->slice.length;
    image.values[slot] = begin->value;
    permutation = permutation.with(slot, slot);
  }
  image.permutation = permutation.word();
}

// A new permutation and neighbour. One record, since the line of both is then flushed once: it may
// leave the caches with that.
template <typename Policy, typename Content>
void Core<Policy, Content>::redo_head(pm::Heap::Txn& txn, Node& node, Permutation permutation,
                                      uint64_t next) {
  static_assert(offsetof(Node, next) == offsetof(Node, permutation) + sizeof(uint64_t));
  const std::array<uint64_t, 2> head = {permutation.word(), next};
  txn.redo(&node.permutation, head.data(), sizeof head);
}

// The way to where a slice belongs, as it was at some moment. False if the layer has gone.
template <typename Policy, typename Content>
bool Core<Policy, Content>::path_to(Layer& layer, Slice slice, Path& path) const {
  const auto choose = [&](Node& at, const Seen&) {
    path.push_back(at);
    return child_for(at, permutation_of(at), slice);
  };
  Node* border = nullptr;
  Seen seen;
  for (uint32_t attempts = 0;; ++attempts) {
    path.count = 0;
    if (try_reach_by(layer, {}, choose, border, seen)) break;
    if (is_obsolete(layer)) return false;
    if (attempts > kAttemptsMax) throw_damaged(node_at(layer.top));
  }
  path.push_back(*border);
  return true;
}

// Of a node whose lock is held: whether it is in the tree, and where it leads the slice.
template <typename Policy, typename Content>
bool Core<Policy, Content>::is_child_for(const Node& parent, Slice slice, const Node& child) const {
  return !is_obsolete(parent) &&
         child_for(parent, sound_permutation_of(parent), slice) == pool_.offset_of(&child);
}

// ---- splits

// Splits the border node of a slice, if it is full, and first what is full above it. Throws
// kPoolFull, kNoSpace: then what has been split stays so, which is a legal tree.
template <typename Policy, typename Content>
void Core<Policy, Content>::make_room(Layer& layer, Slice slice) {
  Path path;
  while (path_to(layer, slice, path)) {
    uint32_t at = path.count - 1;
    if (!permutation_of(path[at]).is_full()) return;
    while (at > 0 && permutation_of(path[at - 1]).is_full()) --at;
    if (split(layer, path, at, slice) && at == path.count - 1) return;
  }
}

// Splits a full node whose parent has room, or which has none. False, and nothing is changed: the
// path is no longer so.
template <typename Policy, typename Content>
bool Core<Policy, Content>::split(Layer& layer, const Path& path, uint32_t at, Slice slice) {
  Node& node = path[at];
  Node* const parent = at == 0 ? nullptr : &path[at - 1];
  const Held held = parent != nullptr ? Held(*this, *parent, node) : Held(*this, layer, node);
  if (parent != nullptr) {
    // Where the parent leads the slice is a child of its, whether the slice is still the node's or
    // behind it.
    if (!is_child_for(*parent, slice, node) || permutation_of(*parent).is_full()) return false;
  } else if (is_obsolete(layer) || layer.top != pool_.offset_of(&node)) {
    return false;
  }
  if (!sound_permutation_of(node).is_full()) return false;
  const bool is_border = node.level == 0;
  const Entries entries = entries_of(node);
  // Keys that ascend leave full nodes behind.
  const bool is_last = is_border && node.next == 0;
  const uint32_t middle = is_last ? kSlots * 3 / 4 : kSlots / 2;

  pm::Heap::Txn txn(pool_.heap());
  const uint64_t right_at = txn.allocate(sizeof(Node));
  alignas(pm::kLineBytes) Node right{};
  right.level = node.level;
  right.settled = obsolete_mark_;  // all of it is durable before anybody changes it
  right.next = node.next;
  // The middle entry of an interior node goes up: its child is the leftmost one of the new node.
  if (!is_border) right.leftmost = entries[middle].value;
  fill(right, entries.begin() + middle + (is_border ? 0 : 1), entries.end());
  memory_.copy_nontemporal(pool_.at<Node>(right_at), &right, sizeof right);

  const Entry entry = {entries[middle].slice, right_at};
  redo_head(txn, node, permutation_of(node).first(middle), is_border ? right_at : node.next);
  if (parent != nullptr) {
    const Permutation before = sound_permutation_of(*parent);
    const uint32_t slot = before.free_slot();
    place(*parent, slot, entry);
    // Recovery would carry out the redo record without it. Of words nobody reads it.
    if constexpr (!kWords) memory_.flush(&parent->lengths[slot], 1);
    const uint64_t after = before.with(find(*parent, before, entry.slice).rank, slot).word();
    txn.redo(&parent->permutation, &after, sizeof after);
    txn.will_link(right_at, &parent->permutation, pm::link_bit(Permutation::bit_of(slot)));
  } else {
    const uint64_t top_at = txn.allocate(sizeof(Node));
    alignas(pm::kLineBytes) Node top{};
    top.level = static_cast<uint16_t>(node.level + 1);
    top.leftmost = pool_.offset_of(&node);
    fill(top, &entry, &entry + 1);
    memory_.copy_nontemporal(pool_.at<Node>(top_at), &top, sizeof top);
    txn.redo(&layer.top, &top_at, sizeof top_at);
    txn.will_link(top_at, &layer.top, pm::Link::kOffset);
    txn.will_link(right_at, &layer.top, pm::Link::kAsPrevious);
  }
  // New nodes, the parent's entry, intents and redo records, before these are certain.
  txn.commit([&] {
    if (parent != nullptr) {
      begin_change(*parent);
    } else {
      begin_change(layer);
    }
    begin_change(node);
    txn.apply_in_commit();
  });
  return true;
}

// ---- merges

// After a removal left few entries in the border node of a key. An empty one is worth waiting for
// others that change the shape. Needs no room.
template <typename Policy, typename Content>
void Core<Policy, Content>::shrink(const Key& key, bool empty) {
  std::unique_lock lock(merge_mutex_, std::defer_lock);
  if (empty) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  const Text text = text_of(key);
  std::vector<Layer*> layers;
  locate(text, &layers);
  const auto slice_at = [&](size_t depth) {
    return slice_of(rest_of(text, static_cast<uint32_t>(depth)));
  };
  for (size_t depth = layers.size(); depth-- > 0;) {
    tidy(*layers[depth], slice_at(depth));
    if (depth == 0 || !remove_layer(*layers[depth - 1], slice_at(depth - 1), *layers[depth]))
      return;
  }
}

// Merges what is sparse on the way to a slice with its neighbours.
template <typename Policy, typename Content>
void Core<Policy, Content>::tidy(Layer& layer, Slice slice) {
  Path path;
  for (bool again = true; again;) {
    if (!path_to(layer, slice, path)) return;
    again = false;
    for (uint32_t at = path.count - 1; at > 0 && !again; --at) {
      if (permutation_of(path[at]).count() * 3 <= kSlots) again = merge(path[at - 1], path[at]);
    }
    if (collapse(layer)) again = true;
  }
}

// Merges a child with one of its neighbours, if both fit into one node. True: the path has changed,
// by this or by others.
template <typename Policy, typename Content>
bool Core<Policy, Content>::merge(Node& parent, const Node& child) {
  const Seen seen = see(parent);
  const Permutation permutation = permutation_of(parent);
  const uint64_t offset = pool_.offset_of(&child);
  // The child after so many entries.
  uint32_t place = 0;
  if (pm::load_relaxed(parent.leftmost) != offset) {
    const auto leads_to_child = [&](uint32_t rank) {
      return pm::load_relaxed(parent.values[permutation.slot(rank)]) == offset;
    };
    while (place < permutation.count() && !leads_to_child(place)) ++place;
    if (place++ == permutation.count()) return true;  // it has another parent since
  }
  if (!seen.holds()) return true;
  return (place > 0 && join(parent, seen, place - 1)) ||
         (place < permutation.count() && join(parent, seen, place));
}

// Merges the child of the parent's entry of this rank into its left neighbour. As merge().
template <typename Policy, typename Content>
bool Core<Policy, Content>::join(Node& parent, const Seen& seen, uint32_t rank) {
  const Permutation of_parent = permutation_of(parent);
  const uint32_t slot = of_parent.slot(rank);
  const uint64_t right_at = pm::load_relaxed(parent.values[slot]);
  const uint64_t left_at = rank == 0 ? pm::load_relaxed(parent.leftmost)
                                     : pm::load_relaxed(parent.values[of_parent.slot(rank - 1)]);
  if (!seen.holds()) return true;
  Node& left = require_child(parent, node_at(left_at));
  Node& right = require_child(parent, node_at(right_at));
  const Held held(*this, parent, left, right);
  if (!seen.holds()) return true;
  if (!of_parent.sound()) throw_damaged(parent);
  const bool is_border = left.level == 0;
  if (&left == &right || (is_border && left.next != right_at)) throw_damaged(right);
  Permutation of_left = sound_permutation_of(left);
  const Entries of_right = entries_of(right);
  const uint32_t together = of_left.count() + of_right.count + (is_border ? 0 : 1);
  // Some room is left, so that the next inserts do not split them again.
  const bool one_empty = of_left.count() == 0 || sound_permutation_of(right).count() == 0;
  if (together > (one_empty ? kSlots : kFullEnough)) return false;

  if (is_border) settle(left);  // its free slots are written to
  pm::Heap::Txn txn(pool_.heap(), true);
  const auto append = [&](const Entry& entry) {
    const uint32_t to = of_left.free_slot();
    place(left, to, entry);
    of_left = of_left.with(of_left.count(), to);
  };
  if (!is_border) append({slice_in(parent, slot), right.leftmost});
  for (const Entry& entry : of_right) append(entry);
  // Recovery would carry out the redo records without them. Of words nobody reads them.
  if constexpr (!kWords) memory_.flush(left.lengths, sizeof left.lengths);
  const uint64_t after_parent = of_parent.without(rank).word();
  redo_head(txn, left, of_left, right.next);
  txn.redo(&parent.permutation, &after_parent, sizeof after_parent);
  txn.will_unlink(right_at, &parent.permutation, pm::link_bit(Permutation::bit_of(slot)),
                  pm::Heap::Txn::Release::kLater);
  // The copies, the intent and the redo records, before these are certain.
  txn.commit([&] {
    begin_change(parent);
    begin_change(left);
    begin_change(right);
    txn.apply_in_commit();
  });
  make_obsolete(right);
  return true;
}

// A top with one child only is taken away.
template <typename Policy, typename Content>
bool Core<Policy, Content>::collapse(Layer& layer) {
  const uint64_t old_at = pm::load_acquire(layer.top);
  Node& old = node_at(old_at);
  if (old.level == 0 || permutation_of(old).count() > 0) return false;
  const Held held(*this, layer, old);
  if (layer.top != old_at || permutation_of(old).count() > 0) return false;  // a child was split
  require_child(old, node_at(old.leftmost));
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.will_unlink(pool_.offset_of(&old), &layer.top, pm::Link::kOffset,
                  pm::Heap::Txn::Release::kLater);
  // The intent, before the layer's word leads past the node.
  txn.commit([&] {
    begin_change(layer);
    begin_change(old);
    pm::store_release(layer.top, old.leftmost);
    memory_.flush(&layer.top, sizeof layer.top);
  });
  make_obsolete(old);
  return true;
}

// Takes an empty layer away. False: it is not empty.
template <typename Policy, typename Content>
bool Core<Policy, Content>::remove_layer(Layer& above, Slice slice, Layer& layer) {
  Node& border = node_at(pm::load_acquire(layer.top));
  if (border.level != 0) return false;
  for (uint32_t attempts = 0; attempts < kAttemptsMax; ++attempts) {
    Node* upper = nullptr;
    Seen seen;
    if (!try_reach(above, slice, {}, upper, seen)) continue;
    const Held held(*this, *upper, layer, border);
    if (!seen.holds()) continue;
    if (layer.top != pool_.offset_of(&border) || permutation_of(border).count() > 0) return false;
    cut_off(*upper, slice, layer, border);
    return true;
  }
  throw_damaged(border);
}

// Under the locks of all three.
template <typename Policy, typename Content>
void Core<Policy, Content>::cut_off(Node& upper, Slice slice, Layer& layer, Node& border) {
  const Permutation before = sound_permutation_of(upper);
  const Position at = find(upper, before, slice);
  if (!at.found || upper.values[at.slot] != (pool_.offset_of(&layer) | kLayerTag))
    throw_damaged(upper);
  const pm::Link link = pm::link_bit(Permutation::bit_of(at.slot));
  const auto later = pm::Heap::Txn::Release::kLater;
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.will_unlink(pool_.offset_of(&layer), &upper.permutation, link, later);
  txn.will_unlink(pool_.offset_of(&border), &upper.permutation, link, later);
  // The intents, before the slot no longer counts.
  txn.commit([&] {
    begin_change(upper);
    begin_change(layer);
    begin_change(border);
    pm::store_release(upper.permutation, before.without(at.rank).word());
    memory_.flush(&upper.permutation, sizeof upper.permutation);
  });
  make_obsolete(layer);
  make_obsolete(border);
}

PERDURE_INSTANTIATE_PART(PERDURE_MASSTREE_INSTANTIATE)

}  // namespace perdure::index::masstree
