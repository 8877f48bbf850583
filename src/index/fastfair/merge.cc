// Merges of sparse nodes with a neighbour, and fewer levels.
#include <array>

#include "index/fastfair/core.h"

namespace perdure::index::fastfair {

// The locks of two children, beside the parent's. Only who has the merge mutex waits for a lock
// while it holds another, so nobody waits in a circle.
template <typename Policy, typename Content>
class Core<Policy, Content>::HeldAlso {
 public:
  HeldAlso(const Core& core, const Node& parent, const Node& left, const Node& right) {
    StripeLock* const have = &core.stripe_of(parent);
    StripeLock* const first = &core.stripe_of(left);
    StripeLock* const second = &core.stripe_of(right);
    if (first != have) locks_[0] = first;
    if (second != have && second != first) locks_[1] = second;
    for (StripeLock* lock : locks_) {
      if (lock != nullptr) lock->lock();
    }
    if (core.pool_.failed()) [[unlikely]] {
      release();
      core.pool_.require_writable();
    }
  }
  ~HeldAlso() { release(); }
  HeldAlso(const HeldAlso&) = delete;
  HeldAlso& operator=(const HeldAlso&) = delete;

 private:
  void release() {
    for (StripeLock* lock : locks_) {
      if (lock != nullptr) lock->unlock();
    }
  }

  std::array<StripeLock*, 2> locks_ = {};
};

// After a removal left few entries in the leaf of the key. An empty leaf is worth waiting for
// others that merge. Needs no room.
template <typename Policy, typename Content>
void Core<Policy, Content>::shrink(const Key& key, bool empty) {
  std::unique_lock lock(merge_mutex_, std::defer_lock);
  if (empty) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  for (uint32_t level = 0; level < top().level; ++level) {
    bool sparse_parent = false;
    if (merge(key, level, sparse_parent) == Merged::kAlone && level + 1U < top().level) {
      // The only child of its parent: it gets neighbours if the parent is merged first.
      bool sparse_above = false;
      if (merge(key, level + 1, sparse_above) == Merged::kDone) merge(key, level, sparse_parent);
    }
    if (!sparse_parent) break;
  }
  collapse();
}

// Merges the node of a level that covers the key with one of its neighbours.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Merged Core<Policy, Content>::merge(const Key& key, uint32_t level,
                                                                    bool& sparse_parent) {
  const Locked parent = lock_node(key, level + 1);
  if (parent.node == nullptr) return Merged::kNot;
  const uint32_t count = parent.position.count;
  sparse_parent = is_sparse(count);
  if (count == 0) return Merged::kAlone;
  // The child after this many entries covers the key.
  const uint32_t child = parent.position.at + (parent.position.found ? 1 : 0);
  const bool joined = (child > 0 && join(*parent.node, child - 1, count)) ||
                      (child < count && join(*parent.node, child, count));
  if (!joined) return Merged::kNot;
  sparse_parent = is_sparse(count - 1);
  return Merged::kDone;
}

// Merges the child of entry `at` into its left neighbour, if both fit into one node.
template <typename Policy, typename Content>
bool Core<Policy, Content>::join(Node& parent, uint32_t at, uint32_t count) {
  const Entry* entries = entries_of(parent);
  Node& left = at == 0 ? leftmost_of(parent) : node_at(entries[at - 1].mark);
  Node& right = node_at(entries[at].mark);
  const HeldAlso held(*this, parent, left, right);
  // A node between them has not got its entry yet.
  if (sibling_of(left) != &right) return false;
  require_right(require_child(parent, left), right);
  make_whole(left);
  make_whole(right);
  if (!fit_together(left, right)) return false;
  require_toggle(left);
  // What may lack memory, before anything changes: copies that never come to count would be in the
  // way of what is put there.
  pm::Heap::Txn txn(pool_.heap(), true);
  will_unlink_right(txn, left, right);
  begin_change(parent);
  remove_entry(parent, at, count);
  memory_
      // before anything is copied: from now on the left node is the only way to the right
      .fence();
  begin_change(left);
  begin_change(right);
  append_entries(left, right);
  // The copies and the intents, before the copies count.
  txn.commit([&] {
    pm::store_release(left.sibling, sibling_offset(right.sibling) | next_toggle(left.sibling));
    memory_.flush(&left.sibling, sizeof left.sibling);
  });
  pm::store_release(right.obsolete, obsolete_mark_);  // readers begin again at the top
  retire(right);
  return true;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::fit_together(const Node& left, const Node& right) const {
  const uint32_t of_left = count_entries(left);
  const uint32_t of_right = count_entries(right);
  const uint32_t together = of_left + of_right + (is_leaf(left) ? 0 : 1);
  // Some room is left, so that the next inserts do not split them again.
  return together * 4 <= slots_ * 3 || (together <= slots_ && (of_left == 0 || of_right == 0));
}

// The caller fences.
template <typename Policy, typename Content>
void Core<Policy, Content>::append_entries(Node& left, const Node& right) const {
  Entry* to = entries_of(left) + count_entries(left);
  std::array<Entry, kNodeBytesMax / sizeof(Entry)> copies;
  uint32_t count = 0;
  if (!is_leaf(left)) copies[count++] = {right.leftmost, right.low};
  const uint32_t of_right = count_entries(right);
  for (uint32_t i = 0; i < of_right; ++i) copies[count++] = entries_of(right)[i];
  if (count == 0) return;
  for (uint32_t i = 0; i < count; ++i) pm::store_release(to[i].other, copies[i].other);
  if constexpr (kStraddles<Policy>) {
    memory_.persist(to, count * sizeof(Entry));  // before marks in other lines
  }
  // In the same line stores become durable in order.
  for (uint32_t i = 0; i < count; ++i) pm::store_release(to[i].mark, copies[i].mark);
  memory_.flush(to, count * sizeof(Entry));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::will_unlink_right(pm::Heap::Txn& txn, const Node& left,
                                              const Node& right) const {
  // The blocks count until the sibling word loses its present toggle bit.
  const pm::Link link = pm::link_bit(static_cast<uint32_t>(toggle_of(left.sibling)) - 1);
  const auto later = pm::Heap::Txn::Release::kLater;
  txn.will_unlink(pool_.offset_of(&right), &left.sibling, link, later);
  if constexpr (!kWords) {
    if (is_leaf(right)) txn.will_unlink(right.low_key, &left.sibling, link, later);
  }
}

// A top with one child only is taken away. Under the merge mutex.
template <typename Policy, typename Content>
void Core<Policy, Content>::collapse() {
  for (;;) {
    const std::lock_guard lock(top_mutex_);
    Node& old = top();
    const Held held(*this, old);
    if (is_leaf(old) || sibling_of(old) != nullptr) return;
    make_whole(old);
    if (count_entries(old) > 0) return;
    require_child(old, leftmost_of(old));
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.will_unlink(pool_.offset_of(&old), &root_.top, pm::Link::kOffset,
                    pm::Heap::Txn::Release::kLater);
    // The intent, before the root leads elsewhere.
    txn.commit([&] {
      begin_change(old);
      pm::store_release(root_.top, old.leftmost);
      memory_.flush(&root_.top, sizeof root_.top);
    });
    pm::store_release(old.obsolete, obsolete_mark_);
    retire(old);
  }
}

// Hands the blocks of an unlinked node out again when no reader can look at them any more.
template <typename Policy, typename Content>
void Core<Policy, Content>::retire(Node& node) {
  if constexpr (!kWords) {
    if (is_leaf(node)) records_.retire(node.low_key);
  }
  const uint64_t offset = pool_.offset_of(&node);
  epochs_.retire([this, offset] { pool_.heap().release(offset); });
}

PERDURE_INSTANTIATE_PART(PERDURE_FASTFAIR_INSTANTIATE)

}  // namespace perdure::index::fastfair
