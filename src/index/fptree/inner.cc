#include "index/fptree/inner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace perdure::index::fptree {

// ---- nodes and separators

template <typename Content>
auto Inner<Content>::make_node(uint32_t level) const -> Node* {
  void* memory = ::operator new(node_bytes(), std::align_val_t{pm::kLineBytes});
  std::memset(memory, 0, node_bytes());
  return new (memory) Node{{}, level, 0};
}

// For a change that must not fail.
template <typename Content>
auto Inner<Content>::spare_node(uint32_t level) -> Node* {
  if (spare_.empty()) return make_node(level);
  Node* node = spare_.back();
  spare_.pop_back();
  node->level = level;
  return node;
}

template <typename Content>
void Inner<Content>::free_node(Node* node) {
  node->~Node();
  ::operator delete(node, std::align_val_t{pm::kLineBytes});
}

template <typename Content>
void Inner<Content>::free_subtree(Node* node) const {
  for (uint32_t i = 0; i < node->count; ++i) {
    if (i > 0) forget(separators(*node)[i - 1]);
    if (node->level > 1) free_subtree(static_cast<Node*>(child(*node, i)));
  }
  free_node(node);
}

template <typename Content>
Inner<Content>::~Inner() {
  if (Node* root = root_.load(std::memory_order_relaxed)) free_subtree(root);
  for (Node* node : spare_) free_node(node);
}

template <typename Content>
auto Inner<Content>::separator_of(const Key& key) -> Separator {
  if constexpr (Content::kOutOfPlace) {
    return {key.prefix, new std::string(key.bytes)};
  } else {
    return {key};
  }
}

template <typename Content>
auto Inner<Content>::key_of(const Separator& separator) -> Key {
  if constexpr (Content::kOutOfPlace) {
    return Key(*separator.text);
  } else {
    return separator.word;
  }
}

template <typename Content>
void Inner<Content>::forget(const Separator& separator) {
  if constexpr (Content::kOutOfPlace) {
    delete separator.text;
  } else {
    (void)separator;
  }
}

template <typename Content>
void Inner<Content>::store(Separator& to, const Separator& from) {
  if constexpr (Content::kOutOfPlace) pm::store_release(to.text, from.text);
  pm::store_release(to.word, from.word);
}

// Without memory to note what goes, it stays: a change that has begun must not fail.
template <typename Content>
void Inner<Content>::retire(Node* node) {
  try {
    epochs_.retire([node] { free_node(node); });
  } catch (const std::bad_alloc&) {
  }
}

template <typename Content>
void Inner<Content>::retire(const Separator& separator) {
  if constexpr (Content::kOutOfPlace) {
    try {
      epochs_.retire([text = separator.text] { delete text; });
    } catch (const std::bad_alloc&) {
    }
  } else {
    (void)separator;
  }
}

// ---- supplies

template <typename Content>
Inner<Content>::Supplies::Supplies(Inner& inner, const Key& at)
    : inner_(inner), separator_(separator_of(at)), nodes_(0) {
  try {
    const std::lock_guard lock(inner.mutex_);
    const uint32_t depth = inner.depth();
    if (depth + 2 > kDepthMax) {
      throw Error(ErrorCode::kInternal, "an FPTree cannot have more levels of inner nodes");
    }
    // One of each level and a root; and one more, for others may make the tree deeper meanwhile.
    while (inner.spare_.size() < inner.spare_promised_ + depth + 2) {
      inner.spare_.reserve(inner.spare_.size() + 1);
      inner.spare_.push_back(inner.make_node(1));
    }
    nodes_ = depth + 2;
    inner.spare_promised_ += nodes_;
  } catch (...) {
    forget(separator_);
    throw;
  }
}

template <typename Content>
Inner<Content>::Supplies::~Supplies() {
  if (!used_) forget(separator_);
  const std::lock_guard lock(inner_.mutex_);
  inner_.spare_promised_ -= nodes_;
}

// ---- changes

template <typename Content>
void Inner<Content>::Change::begin(Node& node) {
  const auto end = nodes_.begin() + count_;
  if (std::find(nodes_.begin(), end, &node) != end) return;
  nodes_[count_++] = &node;
  node.lock.lock();
  node.lock.begin_change();
}

template <typename Content>
Inner<Content>::Change::~Change() {
  for (uint32_t i = 0; i < count_; ++i) nodes_[i]->lock.unlock();
}

template <typename Content>
auto Inner<Content>::path_to(const Key& key) const -> Path {
  Path path;
  Node* node = &root_of();
  for (;; ++path.depth) {
    assert(path.depth < kDepthMax);
    path.nodes[path.depth] = node;
    path.at[path.depth] = child_index(*node, node->count, key);
    if (node->level == 1) return path;
    node = static_cast<Node*>(child(*node, path.at[path.depth]));
  }
}

// Behind child `at`, where there is room.
template <typename Content>
void Inner<Content>::insert_child(Node& node, uint32_t at, const Separator& separator,
                                  void* added) {
  Separator* between = separators(node);
  void** below = children(node);
  for (uint32_t i = node.count; i > at + 1; --i) {
    pm::store_release(below[i], below[i - 1]);
    store(between[i - 1], between[i - 2]);
  }
  pm::store_release(below[at + 1], added);
  store(between[at], separator);
  pm::store_release(node.count, node.count + 1);
}

// Makes a node on the right of a full one, and adds a child behind child `at` of the two. Returns
// the new node; `separator` is then the one before it. A full node that grows at its end stays
// full, so that ascending keys leave no half-empty nodes behind.
template <typename Content>
auto Inner<Content>::split_node(Node& node, uint32_t at, Separator& separator, void*& added)
    -> Node* {
  Node* right = spare_node(node.level);
  const uint32_t count = node.count;
  if (at + 1 == count) {
    children(*right)[0] = added;
    right->count = 1;
    return right;
  }
  const uint32_t half = count / 2;
  for (uint32_t i = half; i < count; ++i) {
    children(*right)[i - half] = child(node, i);
    if (i > half) separators(*right)[i - half - 1] = separators(node)[i - 1];
  }
  right->count = count - half;
  const Separator middle = separators(node)[half - 1];
  pm::store_release(node.count, half);
  if (at < half) {
    insert_child(node, at, separator, added);
  } else {
    insert_child(*right, at - half, separator, added);
  }
  separator = middle;
  return right;
}

template <typename Content>
void Inner<Content>::insert(Supplies& supplies, LeafRef* leaf) {
  Separator separator = supplies.separator_;
  const Path path = path_to(key_of(separator));
  supplies.used_ = true;
  Change change;
  uint32_t depth = path.depth;
  change.begin(*path.nodes[depth]);
  while (path.nodes[depth]->count == capacity_ && depth > 0) change.begin(*path.nodes[--depth]);
  void* added = leaf;
  for (depth = path.depth;; --depth) {
    Node& node = *path.nodes[depth];
    if (node.count < capacity_) return insert_child(node, path.at[depth], separator, added);
    added = split_node(node, path.at[depth], separator, added);
    if (depth == 0) break;
  }
  Node* root = spare_node(path.nodes[0]->level + 1);
  root->count = 2;
  children(*root)[0] = path.nodes[0];
  children(*root)[1] = added;
  separators(*root)[0] = separator;
  pm::publish(root_, root, "fptree: inner root");
}

// Returns the separator that goes with the child.
template <typename Content>
auto Inner<Content>::erase_child(Node& node, uint32_t at, bool to_right) -> Separator {
  Separator* between = separators(node);
  void** below = children(node);
  const uint32_t gone = to_right || at == 0 ? at : at - 1;
  assert(node.count >= 2 && gone + 1 < node.count);
  const Separator separator = between[gone];
  for (uint32_t i = gone; i + 2 < node.count; ++i) store(between[i], between[i + 1]);
  for (uint32_t i = at; i + 1 < node.count; ++i) pm::store_release(below[i], below[i + 1]);
  pm::store_release(node.count, node.count - 1);
  return separator;
}

template <typename Content>
void Inner<Content>::erase(const Key& key, int step, bool to_right) {
  Path path = path_to(key);
  path.at[path.depth] += static_cast<uint32_t>(step);
  Change change;
  // A node whose only child goes is gone itself.
  while (path.nodes[path.depth]->count == 1) {
    assert(path.depth > 0);
    pm::before_change("fptree: a node goes");
    change.begin(*path.nodes[path.depth]);
    retire(path.nodes[path.depth]);
    --path.depth;
  }
  Node& node = *path.nodes[path.depth];
  change.begin(node);
  retire(erase_child(node, path.at[path.depth], to_right));
  balance(path, change);
}

// Merges nodes that have become sparse with a neighbour, and takes away roots with a single child.
template <typename Content>
void Inner<Content>::balance(Path& path, Change& change) {
  for (uint32_t depth = path.depth; depth > 0; --depth) {
    const Node& node = *path.nodes[depth];
    Node& parent = *path.nodes[depth - 1];
    if (node.count > capacity_ / 4 || parent.count == 1) break;
    const uint32_t at = path.at[depth - 1];
    const uint32_t left = at + 1 < parent.count ? at : at - 1;
    const auto count_of = [&](uint32_t i) { return static_cast<Node*>(child(parent, i))->count; };
    if (count_of(left) + count_of(left + 1) > capacity_ * 3 / 4) break;
    merge_children(parent, left, change);
  }
  for (;;) {
    Node& root = root_of();
    if (root.level == 1 || root.count > 1) break;
    change.begin(root);
    pm::publish(root_, static_cast<Node*>(child(root, 0)), "fptree: inner root");
    retire(&root);
  }
}

// Child `at` takes in the one on its right.
template <typename Content>
void Inner<Content>::merge_children(Node& parent, uint32_t at, Change& change) {
  Node& left = *static_cast<Node*>(child(parent, at));
  Node& right = *static_cast<Node*>(child(parent, at + 1));
  change.begin(parent);
  change.begin(left);
  change.begin(right);
  const Separator between = separators(parent)[at];
  for (uint32_t i = 0; i < right.count; ++i) {
    store(separators(left)[left.count - 1], i == 0 ? between : separators(right)[i - 1]);
    pm::store_release(children(left)[left.count], child(right, i));
    pm::store_release(left.count, left.count + 1);
  }
  erase_child(parent, at + 1, false);  // its separator is now the one between the two in `left`
  retire(&right);
}

template <typename Content>
auto Inner<Content>::neighbours(const Key& key) const -> Neighbours {
  const Path path = path_to(key);
  const Node& node = *path.nodes[path.depth];
  const uint32_t at = path.at[path.depth];
  const auto leaf = [&](uint32_t i) { return static_cast<LeafRef*>(child(node, i)); };
  return {at > 0 ? leaf(at - 1) : nullptr, at + 1 < node.count ? leaf(at + 1) : nullptr,
          path.depth == 0 && node.count == 1};
}

// ---- making a whole tree

template <typename Content>
void Inner<Content>::build(const std::vector<Item>& items) {
  // Some room in each node, so that the first splits of leaves do not split all nodes.
  const auto fill = std::max<size_t>(2, capacity_ - capacity_ / 8);
  struct Below {
    Separator separator;
    void* child;
  };
  std::vector<Below> below;
  below.reserve(items.size());
  for (const Item& item : items) below.push_back({item.separator, item.leaf});
  forget(below.front().separator);
  uint32_t level = 0;
  do {
    ++level;
    std::vector<Below> nodes;
    for (size_t i = 0; i < below.size();) {
      Node* node = make_node(level);
      const Separator first = below[i].separator;
      for (; i < below.size() && node->count < fill; ++i) {
        if (node->count > 0) separators(*node)[node->count - 1] = below[i].separator;
        children(*node)[node->count++] = below[i].child;
      }
      nodes.push_back({first, node});
    }
    below.swap(nodes);
  } while (below.size() > 1);
  pm::publish(root_, static_cast<Node*>(below.front().child));
}

// ---- inspection

template <typename Content>
void Inner<Content>::visit_leaves(const Node& node, Bound low, Bound high,
                                  const std::function<void(LeafRef*, Bound, Bound)>& visit) const {
  for (uint32_t i = 0; i < node.count; ++i) {
    const Bound from = i == 0 ? low : &separators(node)[i - 1];
    const Bound to = i + 1 == node.count ? high : &separators(node)[i];
    if (node.level == 1) {
      visit(static_cast<LeafRef*>(child(node, i)), from, to);
    } else {
      visit_leaves(*static_cast<const Node*>(child(node, i)), from, to, visit);
    }
  }
}

template <typename Content>
void Inner<Content>::for_each_leaf(
    const std::function<void(LeafRef* leaf, Bound low, Bound high)>& visit) const {
  visit_leaves(root_of(), nullptr, nullptr, visit);
}

template <typename Content>
auto Inner<Content>::size() const -> Size {
  Size size;
  std::vector<const Node*> todo{&root_of()};
  while (!todo.empty()) {
    const Node& node = *todo.back();
    todo.pop_back();
    ++size.nodes;
    size.bytes += node_bytes();
    for (uint32_t i = 0; i < node.count; ++i) {
      if constexpr (Content::kOutOfPlace) {
        if (i > 0) size.bytes += sizeof(std::string) + separators(node)[i - 1].text->capacity();
      }
      if (node.level > 1) todo.push_back(static_cast<const Node*>(child(node, i)));
    }
  }
  return size;
}

template <typename Content>
uint64_t Inner<Content>::check_node(const Node& node, Bound low, Bound high,
                                    const std::function<void(const std::string&)>& fail) const {
  uint64_t found = 0;
  const auto complain = [&](const char* what) {
    fail(fmt::format("an inner node of level {} {}", node.level, what)), ++found;
  };
  if (node.count == 0 || node.count > capacity_) {
    complain("has no children, or too many");
    return found;
  }
  const auto below = [](const Separator& a, const Separator& b) { return !at_most(b, key_of(a)); };
  for (uint32_t i = 0; i + 1 < node.count; ++i) {
    const Separator& own = separators(node)[i];
    const Bound before = i == 0 ? low : &separators(node)[i - 1];
    if (before != nullptr && !below(*before, own)) complain("has separators that do not ascend");
    if (high != nullptr && !below(own, *high)) complain("has a separator past its range");
  }
  for (uint32_t i = 0; node.level > 1 && i < node.count; ++i) {
    const auto& next = *static_cast<const Node*>(child(node, i));
    if (next.level + 1 != node.level) complain("has a child of another level");
    found += check_node(next, i == 0 ? low : &separators(node)[i - 1],
                        i + 1 == node.count ? high : &separators(node)[i], fail);
  }
  return found;
}

template <typename Content>
uint64_t Inner<Content>::check(const std::function<void(const std::string&)>& fail) const {
  return check_node(root_of(), nullptr, nullptr, fail);
}

template class Inner<tree::Words>;
template class Inner<tree::Bytes>;

}  // namespace perdure::index::fptree
