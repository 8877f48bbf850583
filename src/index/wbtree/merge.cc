// What removals leave: sparse nodes are merged, empty leaves are dropped, needless top nodes too.
// None of it needs room.
#include "index/wbtree/core.h"

namespace perdure::index::wbtree {

// ---- pieces of changes of shape

template <typename Content>
uint32_t Core<Content>::position_of(const Order& order, const Node& parent, uint32_t level,
                                    uint64_t child) const {
  uint32_t position = 0;
  while (position < order.count() &&
         pm::load_relaxed(cell_of(parent, level, order[position]).value) != child) {
    ++position;
  }
  return position;
}

// For the holder of the parent's lock.
template <typename Content>
uint32_t Core<Content>::require_position(const Order& order, const Node& parent, uint32_t level,
                                         const Node& child) const {
  const uint32_t position = position_of(order, parent, level, offset_of(child));
  if (position == order.count()) throw_damaged(offset_of(parent), level, "does not list its child");
  return position;
}

template <typename Content>
void Core<Content>::redo_node(pm::Heap::Txn& txn, Node& node, const Order& order,
                              uint64_t live) const {
  const uint64_t bitmap = live | kOrderValid;
  txn.redo(&node.bitmap, &bitmap, sizeof bitmap);
  txn.redo(node.order, order.words, sizeof order.words);
}

template <typename Content>
void Core<Content>::commit(pm::Heap::Txn& txn, LockSet& held) {
  // Intents, redo records, and all that the bitmaps will reveal, before they do.
  txn.commit([&] {
    held.begin_change();
    txn.apply();
  });
}

template <typename Content>
void Core<Content>::unlink_separator(pm::Heap::Txn& txn, uint64_t separator, const uint64_t& bitmap,
                                     uint32_t cell) const {
  if (Content::kOutOfPlace && separator != 0) {
    txn.will_unlink(separator, &bitmap, pm::link_bit(cell), pm::Heap::Txn::Release::kLater);
  }
}

// A node that goes when the bit is cleared.
template <typename Content>
void Core<Content>::unlink_node(pm::Heap::Txn& txn, const Node& node, const uint64_t& bitmap,
                                uint32_t cell) const {
  txn.will_unlink(offset_of(node), &bitmap, pm::link_bit(cell), pm::Heap::Txn::Release::kLater);
}

template <typename Content>
void Core<Content>::retire_node(const Node& node) {
  pm::Heap& heap = pool_.heap();
  epochs_.retire([&heap, at = offset_of(node)] { heap.release(at); });
}

template <typename Content>
void Core<Content>::retire_separator(uint64_t separator) {
  if (Content::kOutOfPlace && separator != 0) records_.retire(separator);
}

// ---- when

template <typename Content>
bool Core<Content>::may_merge(uint32_t left, uint32_t right, uint32_t level) const {
  // Room is left, so that the next inserts do not split again.
  return left + right <= shape(level).records * 3 / 4;
}

template <typename Content>
void Core<Content>::tidy(const Key& key) {
  for (Backoff backoff; tidy_once(key);) backoff.pause();
}

// Makes one change on the way to the key, the lowest that is due. Returns whether there may be
// another: after a change, or if someone was in the way.
template <typename Content>
bool Core<Content>::tidy_once(const Key& key) {
  Path path;
  descend(key, 0, path);
  if (path.depth > 0 && live_count(*path[path.depth].node) == 1) {
    collapse(path);
    return true;
  }
  for (uint32_t level = 0; level < path.depth; ++level) {
    Node& node = *path[level].node;
    const uint32_t records = live_count(node);
    if (!is_sparse(records, level)) continue;
    LockSet held(pool_);
    StripeLock& above = lock_above(path, level);
    if (!held.add(above) || !above.validate(stamp_above(path, level))) return true;
    if (records == 0 && level > 0) throw_damaged(offset_of(node), level, "has no child");
    if (records == 0) {  // a leaf: nothing of it is worth copying
      drop(held, path);
      return true;
    }
    if (merge_with_sibling(held, *path[level + 1].node, node, level)) return true;
  }
  return false;
}

// With the parent locked. Returns false if no sibling is small enough.
template <typename Content>
bool Core<Content>::merge_with_sibling(LockSet& held, Node& parent, Node& node, uint32_t level) {
  Order order;
  exact_cells(parent, level + 1, order);
  const uint32_t position = require_position(order, parent, level + 1, node);
  for (uint32_t left = position > 0 ? position - 1 : 0;
       left <= position && left + 1 < order.count(); ++left) {
    const Node& a = node_at(parent.cell(order[left]).value, level);
    const Node& b = node_at(parent.cell(order[left + 1]).value, level);
    if (!may_merge(live_count(a), live_count(b), level)) continue;
    if (held.add(lock_of(a, level)) && held.add(lock_of(b, level)) &&
        may_merge(live_count(a), live_count(b), level)) {
      merge(held, parent, left, level);
    }
    return true;
  }
  return false;
}

// ---- how

// The node at a position takes the records of the one to its right, which goes.
template <typename Content>
void Core<Content>::merge(LockSet& held, Node& parent, uint32_t position, uint32_t level) {
  Order above;
  exact_cells(parent, level + 1, above);
  const uint32_t cell = above[position + 1];
  Node& left = node_at(parent.cell(above[position]).value, level);
  Node& right = node_at(parent.cell(cell).value, level);
  Order order;
  Order moving;
  exact_cells(left, level, order);
  exact_cells(right, level, moving);
  uint64_t live = live_cells(left);
  if (!Content::kOutOfPlace && level == 0) {
    // Words have no intents. A process that died may have left the bitmap in the caches only: no
    // cell is written to that is free there, and counts on the medium.
    memory_.persist(&left.bitmap, sizeof left.bitmap);
  }
  for (uint32_t i = 0; i < moving.count(); ++i) {
    const auto to = static_cast<uint32_t>(std::countr_zero(shape(level).cells() & ~live));
    Slot slot = right.cell(moving[i]);
    // What was the first is looked at from now on, and is for all that its parent was for.
    if (level > 0 && i == 0) slot.key = parent.cell(cell).key;
    store_cell(left, to, slot);  // its bit is clear: nobody looks at it
    order.append(to);
    live |= bit(to);
  }
  memory_.flush(&left, shape(level).bytes());

  pm::Heap::Txn txn(pool_.heap(), true);
  uint64_t separator = right.separator;
  if (level > 0) {
    Node& heir = node_at(right.cell(moving[0]).value, level - 1);
    txn.redo(&heir.separator, &right.separator, sizeof(uint64_t));
    separator = heir.separator;
  }
  unlink_node(txn, right, parent.bitmap, cell);
  unlink_separator(txn, separator, parent.bitmap, cell);
  above.erase(position + 1);
  redo_node(txn, parent, above, live_cells(parent) & ~bit(cell));
  redo_node(txn, left, order, live);
  commit(txn, held);
  retire_node(right);
  retire_separator(separator);
}

// Takes an empty leaf out, with the nodes above it that have no other child. The parent is locked.
// Gives up if others are in the way.
template <typename Content>
void Core<Content>::drop(LockSet& held, const Path& path) {
  if (!held.add(lock_of(*path[0].node, 0)) || live_count(*path[0].node) > 0) return;
  uint32_t level = 1;
  while (live_count(*path[level].node) == 1 && level < path.depth) {
    ++level;
    StripeLock& lock = lock_of(*path[level].node, level);
    if (!held.add(lock) || !lock.validate(path[level].stamp)) return;
  }
  Node& parent = *path[level].node;
  if (live_count(parent) == 1) return;  // a needless topmost node, which goes first
  Order order;
  exact_cells(parent, level, order);
  const uint32_t position = require_position(order, parent, level, *path[level - 1].node);
  const uint32_t cell = order[position];
  order.erase(position);
  std::array<uint64_t, kDepthMax> separators;
  pm::Heap::Txn txn(pool_.heap(), true);
  for (uint32_t below = 0; below < level; ++below) {
    separators[below] = path[below].node->separator;
    unlink_node(txn, *path[below].node, parent.bitmap, cell);
    unlink_separator(txn, separators[below], parent.bitmap, cell);
  }
  redo_node(txn, parent, order, live_cells(parent) & ~bit(cell));
  commit(txn, held);
  for (uint32_t below = 0; below < level; ++below) {
    retire_node(*path[below].node);
    retire_separator(separators[below]);
  }
}

// The only child of the topmost node takes its place. Gives up if others are in the way.
template <typename Content>
void Core<Content>::collapse(const Path& path) {
  Node& node = *path[path.depth].node;
  LockSet held(pool_);
  if (!held.add(top_lock_) || !top_lock_.validate(path.top_stamp) ||
      !held.add(lock_of(node, path.depth)) || live_count(node) != 1) {
    return;
  }
  Order order;
  exact_cells(node, path.depth, order);
  const uint64_t separator = node.separator;
  const Node& child = node_at(node.cell(order[0]).value, path.depth - 1);
  const uint64_t top[] = {offset_of(child), uint64_t{path.depth} - 1};
  const uint64_t nothing = 0;
  const TopFollows top_follows(this);
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.redo(&root_.top, top, sizeof top);
  txn.redo(&node.bitmap, &nothing, sizeof nothing);  // what its separator goes with
  txn.will_unlink(offset_of(node), &root_.top, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  unlink_separator(txn, separator, node.bitmap, order[0]);
  commit(txn, held);
  retire_node(node);
  retire_separator(separator);
}

PERDURE_INSTANTIATE_PART(PERDURE_WBTREE_INSTANTIATE)

}  // namespace perdure::index::wbtree
