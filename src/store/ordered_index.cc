#include "store/ordered_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "perdure/error.h"
#include "pm/memory.h"

namespace perdure::store {

namespace {

// The first of ascending words that is not less. No branch depends on a word: what is looked for
// cannot be predicted.
size_t lower_bound_of(const std::vector<uint64_t>& words, uint64_t word) {
  const uint64_t* first = words.data();
  size_t count = words.size();
  if (count == 0) return 0;
  while (count > 1) {
    const size_t half = count / 2;
    first += half & (size_t{0} - static_cast<size_t>(first[half - 1] < word));
    count -= half;
  }
  return static_cast<size_t>(first - words.data()) + static_cast<size_t>(*first < word);
}

// The end of the words that are equal to `word`, of which `first` would be the first.
size_t end_of_equal(const std::vector<uint64_t>& words, size_t first, uint64_t word) {
  while (first < words.size() && words[first] == word) ++first;
  return first;
}

// Moves the end of a vector, from `begin` on, to the end of another one that has room for it.
template <typename T>
void move_end(std::vector<T>& from, size_t begin, std::vector<T>& to) {
  const auto first = from.begin() + static_cast<ptrdiff_t>(begin);
  to.insert(to.end(), std::move_iterator(first), std::move_iterator(from.end()));
  from.erase(first, from.end());
}

}  // namespace

OrderedIndex::OrderedIndex(const RecordKeys& keys)
    : keys_(keys), root_(new_leaf(kMax)), first_(&static_cast<Leaf&>(*root_)), last_(first_) {}

OrderedIndex::~OrderedIndex() {
  if (root_ != nullptr) free_subtree(root_);
}

void OrderedIndex::swap(OrderedIndex& other) noexcept {
  std::swap(root_, other.root_);
  std::swap(first_, other.first_);
  std::swap(last_, other.last_);
  std::swap(sparse_, other.sparse_);
  std::swap(size_, other.size_);
  std::swap(leaves_, other.leaves_);
  std::swap(dram_bytes_, other.dram_bytes_);
  changes_ = other.changes_ = std::max(changes_, other.changes_) + 1;
}

// As deep as the tree, and without a list of nodes: there may be no memory.
void OrderedIndex::free_subtree(Node* node) {
  if (!node->is_leaf) {
    for (Node* child : static_cast<Inner*>(node)->children) free_subtree(child);
  }
  free_node(node);
}

OrderedIndex::Leaf* OrderedIndex::new_leaf(size_t entries) {
  auto leaf = std::make_unique<Leaf>();
  leaf->is_leaf = true;
  leaf->heads.reserve(entries);
  leaf->places.reserve(entries);
  dram_bytes_ += bytes_of(*leaf);
  ++leaves_;
  return leaf.release();
}

std::unique_ptr<OrderedIndex::Inner> OrderedIndex::new_inner() {
  auto inner = std::make_unique<Inner>();
  inner->heads.reserve(kMax);
  inner->separators.reserve(kMax);
  inner->children.reserve(kMax);
  dram_bytes_ += bytes_of(*inner);
  return inner;
}

uint64_t OrderedIndex::bytes_of(const Node& node) {
  const uint64_t heads = node.heads.capacity() * sizeof(uint64_t);
  if (node.is_leaf) {
    return sizeof(Leaf) + heads +
           static_cast<const Leaf&>(node).places.capacity() * sizeof(uint64_t);
  }
  return sizeof(Inner) + heads + kMax * (sizeof(std::string) + sizeof(Node*));
}

void OrderedIndex::free_node(Node* node) {
  ++changes_;
  dram_bytes_ -= bytes_of(*node);
  if (node->is_leaf) {
    auto* leaf = static_cast<Leaf*>(node);
    if (leaf->sparse) std::erase(sparse_, leaf);
    --leaves_;
    delete leaf;
  } else {
    delete static_cast<Inner*>(node);
  }
}

size_t OrderedIndex::common_bytes(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Of a key, or a separator: 8 bytes that compare as they do, zeros where it has ended.
uint64_t OrderedIndex::head_of(std::string_view key, size_t skip) {
  uint64_t word = 0;
  if (skip < key.size()) {
    std::memcpy(&word, key.data() + skip, std::min(key.size() - skip, sizeof word));
  }
  return __builtin_bswap64(word);
}

// Negative if the key is less than all that begin with the node's prefix, positive if it is
// greater.
int OrderedIndex::compare_prefix(const Node& node, std::string_view key) {
  return key.substr(0, node.prefix.size()).compare(node.prefix);
}

// What is cut off the prefix comes to the fore of the heads: no key is read. Does not throw.
void OrderedIndex::shorten_prefix(Node& node, size_t bytes) {
  const size_t cut = node.prefix.size() - bytes;
  if (cut == 0) return;
  const uint64_t fore = head_of(node.prefix, bytes);
  for (uint64_t& head : node.heads) {
    head = cut >= sizeof head ? fore : fore | head >> (8 * cut);
  }
  node.prefix.resize(bytes);
}

// The child that has the key, if any has.
size_t OrderedIndex::upper_child(const Inner& inner, std::string_view key) {
  const int order = compare_prefix(inner, key);
  if (order != 0) return order < 0 ? 0 : inner.separators.size();
  const uint64_t head = head_of(key, inner.prefix.size());
  const size_t first = lower_bound_of(inner.heads, head);
  const size_t last = end_of_equal(inner.heads, first, head);
  if (first == last) return first;
  const auto texts = inner.separators.begin();
  const auto found = std::upper_bound(texts + static_cast<ptrdiff_t>(first),
                                      texts + static_cast<ptrdiff_t>(last), key);
  return static_cast<size_t>(found - texts);
}

OrderedIndex::Leaf& OrderedIndex::leaf_of(std::string_view key) const {
  Node* node = root_;
  while (!node->is_leaf) {
    const auto& inner = static_cast<const Inner&>(*node);
    node = inner.children[upper_child(inner, key)];
  }
  return static_cast<Leaf&>(*node);
}

// The entries whose heads are the key's: [first, last). If there are none, they would stand there.
bool OrderedIndex::same_head(const Leaf& leaf, std::string_view key, size_t* first, size_t* last) {
  if (const int order = compare_prefix(leaf, key); order != 0) {
    *first = *last = order < 0 ? 0 : leaf.heads.size();
    return false;
  }
  const uint64_t head = head_of(key, leaf.prefix.size());
  *first = lower_bound_of(leaf.heads, head);
  *last = end_of_equal(leaf.heads, *first, head);
  return *first != *last;
}

// Of entries with the key's head: the first whose key is not less.
size_t OrderedIndex::lower_bound(const Leaf& leaf, std::string_view key, size_t first,
                                 size_t last) const {
  while (first < last) {
    const size_t middle = (first + last) / 2;
    if (key_at(leaf, middle) < key) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

void OrderedIndex::prefetch(int step, std::string_view key, uint64_t& way) const {
  constexpr size_t kLineWords = pm::kLineBytes / sizeof(uint64_t);
  if (step == 0) {
    const Leaf& leaf = leaf_of(key);
    way = reinterpret_cast<uint64_t>(&leaf);
    pm::prefetch(&leaf);
    pm::prefetch(reinterpret_cast<const char*>(&leaf + 1) - 1);
    return;
  }
  if (way == 0) return;
  if (step == 3) {
    keys_.prefetch_at(at(way));
    const Leaf& leaf = leaf_at(way);
    const size_t i = position_at(way);
    if (i + 1 < leaf.heads.size() && leaf.heads[i + 1] == leaf.heads[i]) way = 0;
    return;
  }
  const Leaf& leaf = *reinterpret_cast<const Leaf*>(way);
  if (step == 1) {
    for (size_t i = 0; i < leaf.heads.size(); i += kLineWords) pm::prefetch(&leaf.heads[i]);
    return;
  }
  size_t first = 0;
  size_t last = 0;
  way = same_head(leaf, key, &first, &last) ? entry_of(leaf, first) : 0;
  if (way != 0) pm::prefetch(&leaf.places[first]);
}

uint64_t OrderedIndex::find_place(std::string_view key, Location place) const {
  const Leaf& leaf = leaf_of(key);
  size_t first = 0;
  size_t last = 0;
  same_head(leaf, key, &first, &last);
  return place_among(leaf, first, last, place);
}

uint64_t OrderedIndex::find_place(std::string_view key, Location place, uint64_t entry,
                                  uint64_t changes) const {
  if (entry == 0 || changes != changes_) return find_place(key, place);
  // Nothing has changed but where entries lead: it is the first one that has the key's head.
  const Leaf& leaf = leaf_at(entry);
  const size_t first = position_at(entry);
  return place_among(leaf, first, end_of_equal(leaf.heads, first, leaf.heads[first]), place);
}

uint64_t OrderedIndex::place_among(const Leaf& leaf, size_t first, size_t last, Location place) {
  for (; first != last; ++first) {
    if (leaf.places[first] == place.word()) return entry_of(leaf, first);
  }
  return kNone;
}

OrderedIndex::Position OrderedIndex::seek(std::string_view key, bool after) const {
  const Leaf& leaf = leaf_of(key);
  size_t first = 0;
  size_t last = 0;
  if (same_head(leaf, key, &first, &last)) {
    first = lower_bound(leaf, key, first, last);
    if (after && first < last && key_at(leaf, first) == key) ++first;
  }
  return {reinterpret_cast<uint64_t>(&leaf), first};
}

OrderedIndex::Position OrderedIndex::first() const {
  return {reinterpret_cast<uint64_t>(first_), 0};
}
OrderedIndex::Position OrderedIndex::last() const {
  return {reinterpret_cast<uint64_t>(last_), last_->heads.size()};
}

bool OrderedIndex::next(Position& position, Location* out) const {
  const auto* leaf = reinterpret_cast<const Leaf*>(position.leaf);
  while (position.before == leaf->heads.size()) {
    leaf = leaf->next;
    if (leaf == nullptr) return false;
    position = {reinterpret_cast<uint64_t>(leaf), 0};
  }
  *out = Location::of_word(leaf->places[position.before++]);
  return true;
}

bool OrderedIndex::previous(Position& position, Location* out) const {
  const auto* leaf = reinterpret_cast<const Leaf*>(position.leaf);
  while (position.before == 0) {
    leaf = leaf->previous;
    if (leaf == nullptr) return false;
    position = {reinterpret_cast<uint64_t>(leaf), leaf->heads.size()};
  }
  *out = Location::of_word(leaf->places[--position.before]);
  return true;
}

// Full nodes on the way are split, from the root down, so that there is always room in the parent.
void OrderedIndex::reserve(std::string_view key, uint64_t count) {
  tidy();
  sparse_.reserve(count + 1);
  Leaf* leaf = nullptr;
  for (bool split = true; split;) {
    split = false;
    Node* node = root_;
    while (!node->is_leaf && !split) {
      auto& inner = static_cast<Inner&>(*node);
      split = inner.children.size() >= kMax;
      if (split) {
        split_inner(inner);
      } else {
        node = inner.children[upper_child(inner, key)];
      }
    }
    if (split) continue;
    leaf = static_cast<Leaf*>(node);
    split = leaf->heads.size() >= kMax;
    if (split) split_leaf(*leaf, count);
  }
  const size_t wanted = leaf->heads.size() + count;
  if (wanted > leaf->heads.capacity() || wanted > leaf->places.capacity()) {
    dram_bytes_ -= bytes_of(*leaf);
    leaf->heads.reserve(wanted);
    leaf->places.reserve(wanted);
    dram_bytes_ += bytes_of(*leaf);
  }
  seek(key, false);  // what insert() reads is readable
}

void OrderedIndex::insert(std::string_view key, Location location) {
  Leaf& leaf = leaf_of(key);
  if (leaf.heads.empty()) leaf.prefix.clear();
  if (!key.starts_with(leaf.prefix)) shorten_prefix(leaf, common_bytes(key, leaf.prefix));
  size_t first = 0;
  size_t last = 0;
  if (same_head(leaf, key, &first, &last)) first = lower_bound(leaf, key, first, last);
  const auto at = static_cast<ptrdiff_t>(first);
  leaf.heads.insert(leaf.heads.begin() + at, head_of(key, leaf.prefix.size()));
  leaf.places.insert(leaf.places.begin() + at, location.word());
  ++size_;
  ++changes_;
}

void OrderedIndex::erase(uint64_t entry) {
  Leaf& leaf = leaf_at(entry);
  const auto at = static_cast<ptrdiff_t>(position_at(entry));
  leaf.heads.erase(leaf.heads.begin() + at);
  leaf.places.erase(leaf.places.begin() + at);
  --size_;
  ++changes_;
  // Not merged here: several inserts may have been promised room in it.
  if (leaf.heads.size() >= kMax / 4 || leaf.sparse || sparse_.size() == sparse_.capacity()) return;
  leaf.sparse = true;
  sparse_.push_back(&leaf);
}

void OrderedIndex::tidy() {
  sparse_.reserve(sparse_.size() + 1);
  while (!sparse_.empty()) {
    Leaf& leaf = *sparse_.back();
    leaf.sparse = false;
    sparse_.pop_back();
    if (first_ == last_) continue;
    if (leaf.heads.empty()) {
      remove_node(&leaf);
    } else if (leaf.heads.size() < kMax / 4 && !merge_with_next(leaf) && leaf.previous != nullptr) {
      merge_with_next(*leaf.previous);
    }
  }
}

// Gives a node that is the root a parent with room for its second half.
void OrderedIndex::require_parent(Node& node) {
  if (node.parent != nullptr) return;
  std::unique_ptr<Inner> inner = new_inner();
  inner->children.push_back(&node);
  node.parent = inner.get();
  root_ = inner.release();
}

// The parent has room for one child more.
void OrderedIndex::split_leaf(Leaf& leaf, size_t entries) {
  require_parent(leaf);
  // Keys often come in ascending order: then the last leaf is not left half empty.
  const size_t size = leaf.heads.size();
  size_t half = leaf.next == nullptr ? size * 7 / 8 : size / 2;
  std::string separator;
  for (;; --half) {
    try {
      const std::string_view right = key_at(leaf, half);
      separator = right.substr(0, common_bytes(key_at(leaf, half - 1), right) + 1);
      break;
    } catch (const Error&) {
      if (half == 1)
        throw;  // else elsewhere: a damaged record does not make its neighbours unwritable
    }
  }
  std::string prefix = leaf.prefix;
  Leaf* right = new_leaf(std::max(kMax, size - half) + entries);
  right->prefix.swap(prefix);
  move_end(leaf.heads, half, right->heads);
  move_end(leaf.places, half, right->places);
  right->walk = leaf.walk;
  ++changes_;
  right->previous = &leaf;
  right->next = leaf.next;
  (leaf.next != nullptr ? leaf.next->previous : last_) = right;
  leaf.next = right;
  add_child(leaf, right, std::move(separator));
  try {
    lengthen_prefix(leaf);
    lengthen_prefix(*right);
  } catch (const Error&) {
    // A damaged record: the heads stay as they are.
  } catch (const std::bad_alloc&) {
  }
}

void OrderedIndex::split_inner(Inner& inner) {
  require_parent(inner);
  const size_t half = inner.children.size() / 2;
  std::string prefix = inner.prefix;
  Inner* right = new_inner().release();
  right->prefix.swap(prefix);
  move_end(inner.heads, half, right->heads);
  move_end(inner.separators, half, right->separators);
  move_end(inner.children, half, right->children);
  for (Node* child : right->children) child->parent = right;
  std::string separator = std::move(inner.separators.back());
  inner.separators.pop_back();
  inner.heads.pop_back();
  add_child(inner, right, std::move(separator));
  try {
    lengthen_prefix(inner);
    lengthen_prefix(*right);
  } catch (const std::bad_alloc&) {
    // It is shorter than it might be.
  }
}

// Does not throw.
void OrderedIndex::add_child(Node& left, Node* right, std::string separator) {
  Inner& parent = *left.parent;
  const auto at = std::ranges::find(parent.children, &left) - parent.children.begin();
  right->parent = &parent;
  parent.children.insert(parent.children.begin() + at + 1, right);
  if (parent.separators.empty()) parent.prefix.clear();
  if (!separator.starts_with(parent.prefix)) {
    shorten_prefix(parent, common_bytes(separator, parent.prefix));
  }
  parent.heads.insert(parent.heads.begin() + at, head_of(separator, parent.prefix.size()));
  parent.separators.insert(parent.separators.begin() + at, std::move(separator));
  if (!std::has_single_bit(parent.separators.size())) return;
  try {
    lengthen_prefix(parent);
  } catch (const std::bad_alloc&) {
    // It is shorter than it might be.
  }
}

// Reads all keys of the leaf if they have more in common than is known. Throws having changed
// nothing.
void OrderedIndex::lengthen_prefix(Leaf& leaf) const {
  const std::string_view low = key_at(leaf, 0);
  const size_t bytes = common_bytes(low, key_at(leaf, leaf.heads.size() - 1));
  if (bytes <= leaf.prefix.size()) return;
  std::string prefix(low.substr(0, bytes));
  for (const uint64_t word : leaf.places) keys_.prefetch_at(Location::of_word(word));
  std::vector<uint64_t> heads(leaf.heads.size());
  for (size_t i = 0; i < heads.size(); ++i) heads[i] = head_of(key_at(leaf, i), bytes);
  std::ranges::copy(heads, leaf.heads.begin());
  leaf.prefix.swap(prefix);
}

void OrderedIndex::lengthen_prefix(Inner& inner) {
  if (inner.separators.empty()) return;
  const std::string_view low = inner.separators.front();
  const size_t bytes = common_bytes(low, inner.separators.back());
  if (bytes <= inner.prefix.size()) return;
  inner.prefix = low.substr(0, bytes);
  for (size_t i = 0; i < inner.heads.size(); ++i) {
    inner.heads[i] = head_of(inner.separators[i], bytes);
  }
}

// A node without entries. Does not throw.
void OrderedIndex::remove_node(Node* node) {
  if (node->is_leaf) {
    const auto& leaf = static_cast<Leaf&>(*node);
    if (walk_at_ == &leaf) walk_at_ = leaf.next;
    (leaf.previous != nullptr ? leaf.previous->next : first_) = leaf.next;
    (leaf.next != nullptr ? leaf.next->previous : last_) = leaf.previous;
  }
  Inner& parent = *node->parent;
  const auto at = std::ranges::find(parent.children, node) - parent.children.begin();
  parent.children.erase(parent.children.begin() + at);
  if (!parent.separators.empty()) {
    const ptrdiff_t separator = std::max<ptrdiff_t>(at, 1) - 1;
    parent.separators.erase(parent.separators.begin() + separator);
    parent.heads.erase(parent.heads.begin() + separator);
  }
  free_node(node);
  if (parent.children.empty()) return remove_node(&parent);
  while (!root_->is_leaf && static_cast<Inner*>(root_)->children.size() == 1) {
    Node* child = static_cast<Inner*>(root_)->children.front();
    child->parent = nullptr;
    free_node(root_);
    root_ = child;
  }
}

// If both are small, and a walk has met both or neither. Does not throw.
bool OrderedIndex::merge_with_next(Leaf& leaf) {
  Leaf* next = leaf.next;
  const size_t size = leaf.heads.size();
  if (next == nullptr || next->parent != leaf.parent ||
      (is_walked_ && (leaf.walk == walk_) != (next->walk == walk_)) ||
      size + next->heads.size() > std::min(kMax / 2, leaf.heads.capacity())) {
    return false;
  }
  const size_t bytes = common_bytes(leaf.prefix, next->prefix);
  shorten_prefix(leaf, bytes);
  shorten_prefix(*next, bytes);
  move_end(next->heads, 0, leaf.heads);
  move_end(next->places, 0, leaf.places);
  ++changes_;
  remove_node(next);
  return true;
}

}  // namespace perdure::store
