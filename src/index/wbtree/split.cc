// Splits, and a new topmost node.
#include <fmt/core.h>

#include <algorithm>

#include "index/wbtree/core.h"

namespace perdure::index::wbtree {

// Splits the leaf for the key, if it is full; first the lowest node above whose parent has room.
// The caller tries again then. Does nothing if others are at it.
template <typename Content>
void Core<Content>::make_room(const Key& key) {
  Path path;
  descend(key, 0, path);
  if (!is_full(*path[0].node, 0)) return;
  uint32_t level = 0;
  while (level < path.depth && is_full(*path[level + 1].node, level + 1)) ++level;
  LockSet held(pool_);
  StripeLock& above = lock_above(path, level);
  if (!held.add(above) || !above.validate(stamp_above(path, level))) return;
  Node& node = *path[level].node;
  if (!held.add(lock_of(node, level)) || !is_full(node, level)) return;
  if (level < path.depth) return split(held, path[level + 1].node, node, level);
  if (path.depth == kDepthMax) {
    throw Error(ErrorCode::kPoolFull,
                fmt::format("{}: '{}' has {} levels, which is all that it may have",
                            pool_.mapping().path(), name_, kDepthMax + 1));
  }
  split(held, nullptr, node, level);
}

// The shortest key that is greater than the left node's last and not greater than the right one's
// first.
static std::string_view shortest_between(std::string_view left, std::string_view right) {
  const auto [a, b] = std::ranges::mismatch(left, right);
  return right.substr(0, static_cast<size_t>(b - right.begin()) + 1);
}

template <typename Content>
Slot Core<Content>::make_separator(pm::Heap::Txn& txn, const Node& node, uint32_t level,
                                   const Order& order, uint32_t from) const {
  const Slot& first = node.cell(order[from]);
  if constexpr (Content::kOutOfPlace) {
    const std::string_view key =
        level > 0 ? separator_of(node_at(first.value, level - 1))
                  : shortest_between(records_.key(node.cell(order[from - 1]).value),
                                     records_.key(first.value));
    return {tree::prefix_of(key), records_.make(txn, key, {})};
  } else {
    return (void)txn, (void)level, Slot{first.key, first.key};
  }
}

// Writes a new node with the records from a position on. Flushed, not fenced.
template <typename Content>
void Core<Content>::fill_right(Node& right, uint64_t separator, const Node& node,
                               const Order& order, uint32_t from) const {
  Order fresh;
  uint64_t live = 0;
  uint32_t cell = 0;
  for (uint32_t i = from; i < order.count(); ++i) {
    do ++cell;
    while ((bit(cell) & kReservedBits) != 0);
    right.cell(cell) = node.cell(order[i]);
    fresh.append(cell);
    live |= bit(cell);
  }
  right.separator = separator;
  store_order(right, fresh);
  right.bitmap = live | kOrderValid;
  memory_.flush(&right, std::max<size_t>((cell + 1) * sizeof(Slot), offsetof(Node, high)));
}

// A topmost node with the one that was it until now. Nothing in it counts yet.
template <typename Content>
uint64_t Core<Content>::new_top(pm::Heap::Txn& txn, const Node& below) {
  const uint64_t at = txn.allocate(inner_.bytes());
  Node& node = *pool_.at<Node>(at);
  node.bitmap = 0;
  memory_.persist(&node.bitmap, sizeof node.bitmap);  // before the intents, which look at its bits
  node.separator = 0;
  node.cell(1) = {Content::word_of(Content::lowest_key()), offset_of(below)};
  Order order;
  order.append(1);
  store_order(node, order);
  memory_.flush(&node, offsetof(Node, high));
  return at;
}

// Moves the upper half of a node's records to a new one, right of it. Without a parent it gets one.
template <typename Content>
void Core<Content>::split(LockSet& held, Node* parent, Node& node, uint32_t level) {
  Order order;
  exact_cells(node, level, order);
  const uint32_t keep = order.count() / 2;

  const bool grows = parent == nullptr;
  Order order_above;
  if (!grows) exact_cells(*parent, level + 1, order_above);
  const TopFollows top_follows(grows ? this : nullptr);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t right = txn.allocate(shape(level).bytes());
  const Slot separator = make_separator(txn, node, level, order, keep);
  uint64_t live_above = 0;
  if (grows) {
    const uint64_t top = new_top(txn, node);
    parent = pool_.at<Node>(top);
    load_order(*parent, order_above);
    live_above = bit(1);
    txn.will_link(top, &root_.top, pm::Link::kOffset);
    const uint64_t words[] = {top, uint64_t{level} + 1};
    txn.redo(&root_.top, words, sizeof words);
  } else {
    live_above = live_cells(*parent);
  }
  fill_right(*pool_.at<Node>(right), separator.value, node, order, keep);
  const auto cell = static_cast<uint32_t>(std::countr_zero(inner_.cells() & ~live_above));
  store_cell(*parent, cell, {separator.key, right});  // its bit is clear: nobody looks at it
  memory_.flush(&parent->cell(cell), sizeof(Slot));
  txn.will_link(right, &parent->bitmap, pm::link_bit(cell));
  if constexpr (Content::kOutOfPlace) {
    txn.will_link(separator.value, &parent->bitmap, pm::link_bit(cell));
  }

  order_above.insert(require_position(order_above, *parent, level + 1, node) + 1, cell);
  redo_node(txn, *parent, order_above, live_above | bit(cell));
  uint64_t kept = 0;
  for (uint32_t i = 0; i < keep; ++i) kept |= bit(order[i]);
  order.set_count(keep);
  redo_node(txn, node, order, kept);
  commit(txn, held);
}

PERDURE_INSTANTIATE_PART(PERDURE_WBTREE_INSTANTIATE)

}  // namespace perdure::index::wbtree
