// Splits, the entries of new nodes in their parents, and new tops.
#include <algorithm>
#include <array>
#include <cstring>

#include "index/fastfair/core.h"

namespace perdure::index::fastfair {

namespace {

// A new node, on the stack: it is streamed to its place.
struct Image {
  alignas(pm::kLineBytes) std::array<char, kNodeBytesMax> bytes;

  explicit Image(uint64_t node_bytes) { std::memset(bytes.data(), 0, node_bytes); }
  Node& node() { return *reinterpret_cast<Node*>(bytes.data()); }
};

}  // namespace

// Gives a full, locked node a sibling with its upper half, which the caller lets the parent know.
// Throws kPoolFull, kNoSpace, having changed nothing.
template <typename Policy, typename Content>
Node& Core<Policy, Content>::split(Node& node, uint32_t count) {
  require_toggle(node);
  const Entry* entries = entries_of(node);
  const uint32_t middle = count / 2;
  const Entry first = entries[middle];
  const bool leaf = is_leaf(node);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t offset = txn.allocate(node_bytes_);
  const uint64_t toggle = next_toggle(node.sibling);
  // Whether the sibling word has its next toggle bit decides about all blocks of the split.
  const pm::Link link = pm::link_bit(static_cast<uint32_t>(toggle) - 1);

  Image image(node_bytes_);
  Node& right = image.node();
  right.sibling = sibling_offset(node.sibling) | kFirstTurn;
  right.low = leaf && kWords ? first.mark : first.other;
  right.level = node.level;
  right.generation = generation_;
  // The first entry of an inner node goes up: its child is the leftmost one of the new node.
  if (!leaf) right.leftmost = first.mark;
  const Entry* from = entries + middle + (leaf ? 0 : 1);
  std::copy(from, entries + count, entries_of(right));
  if constexpr (!kWords) {
    if (leaf) {
      right.low_key = records_.make(txn, records_.key(first.mark), {});
      txn.will_link(right.low_key, &node.sibling, link);
    } else {
      right.low_key = node_at(first.mark).low_key;
    }
  }
  memory_.copy_nontemporal(&node_at(offset), image.bytes.data(), node_bytes_);
  txn.will_link(offset, &node.sibling, link);
  // The new node and the intents, before the sibling word leads to it.
  txn.commit([&] {
    begin_change(node);
    pm::store_release(node.sibling, offset | toggle);
    memory_.persist(&node.sibling, sizeof node.sibling);  // before the copies here are cut off
    clear_from(node, middle);
  });
  return node_at(offset);
}

// Gives a node its entry in the parent, if it has none. What lacks room is left for later: the node
// is found by going right.
template <typename Policy, typename Content>
void Core<Policy, Content>::adopt(Node& child) {
  try {
    const Node* settled = nullptr;
    while (!try_adopt(child, settled)) {
    }
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::try_adopt(Node& child, const Node*& settled) {
  const uint32_t level = child.level + 1U;
  const Key low = low_of(child);
  if (top().level < level) grow(level);
  Locked parent = lock_node(low, level);
  if (parent.node == nullptr) return false;  // the top has just been taken away
  // Somebody else may have done it, and a split may have made the child a leftmost one since. Who
  // merges the child away holds the parent, too.
  if (is_obsolete(child) || parent.position.found || &leftmost_of(*parent.node) == &child)
    return true;
  if (parent.position.count == slots_) {
    if (parent.node == &top() && parent.node != settled) {
      // Before a node that only this one leads to: a crash must not take it back as a new top.
      settled = parent.node;
      parent.held.release();
      const std::lock_guard made(top_mutex_);
      return false;
    }
    Node& right = split(*parent.node, parent.position.count);
    parent.held.release();
    adopt(right);
    return false;
  }
  begin_change(*parent.node);
  insert_entry(*parent.node, parent.position, {pool_.offset_of(&child), child.low});
  memory_.fence();  // before the next shift of this node, which expects it whole
  return true;
}

// A new top of this level over the present one.
template <typename Policy, typename Content>
void Core<Policy, Content>::grow(uint32_t level) {
  const std::lock_guard lock(top_mutex_);
  Node& old = top();
  const Held held(*this, old);
  if (is_obsolete(old) || &top() != &old || old.level + 1U != level) return;
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t offset = txn.allocate(node_bytes_);
  Image image(node_bytes_);
  image.node().sibling = kFirstTurn;
  image.node().leftmost = pool_.offset_of(&old);
  image.node().level = static_cast<uint16_t>(level);
  image.node().generation = generation_;
  memory_.copy_nontemporal(&node_at(offset), image.bytes.data(), node_bytes_);
  // The new top and the intent, before the root leads to it.
  txn.publish(offset, root_.top);
}

PERDURE_INSTANTIATE_PART(PERDURE_FASTFAIR_INSTANTIATE)

}  // namespace perdure::index::fastfair
