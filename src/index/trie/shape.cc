// Nodes that come, grow, shrink and go: each beside the tree, put in its place by one store.
#include <cstring>

#include "index/trie/core.h"

namespace perdure::index::trie {

namespace {

// A node in the making, in DRAM.
struct Image {
  explicit Image(uint64_t node_bytes) { std::memset(bytes, 0, node_bytes); }
  alignas(pm::kLineBytes) char bytes[kNodeBytesMax];
  Node& node() { return *reinterpret_cast<Node*>(bytes); }
};

}  // namespace

// Puts a node with what was in the slot, a leaf or a node whose keys differ from here on, and the
// new leaf into the slot.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::branch_off(const Spot& spot,
                                                                          const Key& key,
                                                                          const Value& value) {
  const Held held(*this, spot.node);
  if (!leads_to(spot.node, spot.symbol, spot.word)) return Outcome::kAgain;
  uint64_t* slot = slot_of(spot.node, spot.symbol);
  const Text text = text_of(key);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t bytes = Shape::bytes_of(Shape::kSmall);
  const uint64_t offset = txn.allocate(bytes);
  const uint64_t leaf = make_leaf(txn, key, value);
  Image image(bytes);
  Node& node = image.node();
  Symbol::set_window(node, spot.differs, text);
  const auto add = [&](uint32_t symbol, uint64_t child) {
    if (symbol == kEnd) {
      node.end = child;
    } else {
      Shape::add(node, Shape::kSmall, symbol, child);
    }
  };
  const uint32_t ours = symbol_or_end(text, spot.differs);
  if (ours < spot.theirs) add(ours, leaf_word(leaf));  // sorted, for shapes that are
  add(spot.theirs, spot.word);
  if (ours > spot.theirs) add(ours, leaf_word(leaf));
  memory_.copy_nontemporal(pool_.at<char>(offset), image.bytes, bytes);
  txn.will_link(offset, slot, pm::Link::kTagged);
  txn.will_link(leaf, slot, pm::Link::kAsPrevious);
  commit(txn, spot.node, {slot, node_word(offset, Shape::kSmall, spot.differs)});
  return Outcome::kDone;
}

template <typename Policy, typename Content>
uint32_t Core<Policy, Content>::count_children(const Owner& node) const {
  uint32_t count = pm::load_relaxed(node.node->end) != 0 ? 1 : 0;
  for (uint32_t symbol = 0; Shape::next(*node.node, tag_of(node.word), symbol) != nullptr;
       ++symbol) {
    ++count;
  }
  return count;
}

// A node that contradicts itself is not replaced: the children that a copy passes over would be
// lost, and with the node what tells of it.
template <typename Policy, typename Content>
void Core<Policy, Content>::require_sound(const Owner& node) const {
  if (!Shape::is_sound(*node.node, tag_of(node.word))) throw_damaged(node.word);
}

// Puts a copy of a node into its place, and a leaf with it if that is not 0 (of a transaction that
// has made it). The caller has the locks of both, and retires the node.
template <typename Policy, typename Content>
void Core<Policy, Content>::copy(pm::Heap::Txn& txn, const Owner& parent, uint64_t* slot,
                                 const Owner& node, uint64_t tag, uint32_t symbol,
                                 uint64_t leaf) const {
  const uint64_t bytes = Shape::bytes_of(tag);
  const uint64_t offset = txn.allocate(bytes);
  Image image(bytes);
  Node& fresh = image.node();
  std::memcpy(image.bytes, node.node, offsetof(Node, window) + Shape::kWindowBytes);
  fresh.end = node.node->end;
  bool added = leaf == 0;
  const auto add = [&](uint32_t at, uint64_t child) { Shape::add(fresh, tag, at, child); };
  uint32_t at = 0;
  while (uint64_t* child = Shape::next(*node.node, tag_of(node.word), at)) {
    if (!added && symbol < at) {
      add(symbol, leaf_word(leaf));
      added = true;
    }
    add(at++, *child);
  }
  if (!added) add(symbol, leaf_word(leaf));
  memory_.copy_nontemporal(pool_.at<char>(offset), image.bytes, bytes);
  txn.will_link(offset, slot, pm::Link::kTagged);
  if (leaf != 0) txn.will_link(leaf, slot, pm::Link::kAsPrevious);
  txn.will_unlink(offset_of(node.word), slot, pm::Link::kTagged, pm::Heap::Txn::Release::kLater);
  commit(txn, parent, {slot, node_word(offset, tag, branch_of(node.word))});
}

// Puts a larger copy in the place of a node that is full, with the leaf.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::grow(const Spot& spot,
                                                                    const Key& key,
                                                                    const Value& value) {
  const Held held(*this, spot.parent, spot.node);
  if (!leads_to(spot.parent, spot.parent_symbol, spot.node.word) ||
      !leads_to(spot.node, spot.symbol, 0) ||
      Shape::has_room(*spot.node.node, tag_of(spot.node.word), spot.symbol)) {
    return Outcome::kAgain;
  }
  require_sound(spot.node);
  const bool with_end = spot.node.node->end != 0;
  const uint32_t count =
      count_children(spot.node) + (with_end ? 0 : 1);  // without it, with the leaf
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t leaf = make_leaf(txn, key, value);
  copy(txn, spot.parent, slot_of(spot.parent, spot.parent_symbol), spot.node, Shape::tag_for(count),
       spot.symbol, leaf);
  retire_node(spot.node);
  return Outcome::kDone;
}

// Gives a node with one child or none its place up, and a node that is too large a smaller one.
// Throws if there is no room for that.
template <typename Policy, typename Content>
void Core<Policy, Content>::tidy(const Hollow& at) {
  const Owner& node = at.node;
  {
    const Held held(*this, node);  // what most removals find out by one lock
    const uint32_t count = count_children(node);
    if (is_obsolete(node) ||
        (count > 1 && Shape::shrunk(tag_of(node.word), count) == tag_of(node.word)))
      return;
  }
  const Held held(*this, at.parent, node);
  if (is_obsolete(node) || !leads_to(at.parent, at.symbol, node.word)) return;
  require_sound(node);
  uint64_t* slot = slot_of(at.parent, at.symbol);
  const uint32_t count = count_children(node);
  const uint64_t tag = Shape::shrunk(tag_of(node.word), count);
  if (count > 1 && tag == tag_of(node.word)) return;
  pm::Heap::Txn txn(pool_.heap(), true);
  if (count > 1) {
    copy(txn, at.parent, slot, node, tag, 0, 0);
  } else {
    uint64_t child = node.node->end;
    uint32_t symbol = 0;
    if (const uint64_t* only = Shape::next(*node.node, tag_of(node.word), symbol)) child = *only;
    const Place place = child == 0 ? removal(at.parent, at.symbol, slot) : Place{slot, child};
    txn.will_unlink(offset_of(node.word), place.word, place.form, pm::Heap::Txn::Release::kLater);
    commit(txn, at.parent, place);
  }
  retire_node(node);
}

// Under its lock, after it was replaced.
template <typename Policy, typename Content>
void Core<Policy, Content>::retire_node(const Owner& node) {
  pm::store_release(node.node->obsolete, obsolete_mark_);  // writers begin again
  retired_.add(offset_of(node.word), Shape::bytes_of(tag_of(node.word)));
}

// ---- memory

template <typename Policy, typename Content>
void Core<Policy, Content>::reclaim() {
  retired_.flush();
  epochs_.collect();
}

PERDURE_INSTANTIATE_PART(PERDURE_TRIE_INSTANTIATE)

}  // namespace perdure::index::trie
