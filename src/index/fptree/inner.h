// The inner nodes: a B+tree in DRAM over the leaves.
//
//   Position at = inner.find(key);              // no lock
//   ...lock at.leaf, or note its version...
//   if (!at.holds()) ...find again...           // else the leaf is the key's
//
// Optimistic version locks (the paper's transactional memory is gone from processors): who descends
// notes a node's version, reads, and validates before it follows what it read. Who changes nodes
// holds one mutex for all of them, and makes readers of each node it changes wait until the whole
// change is made, so that nobody meets a half of it. Nodes and separators that go are reclaimed by
// epochs; all calls need a guard.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/fptree/space.h"
#include "index/stripes.h"
#include "index/tree/back.h"
#include "index/tree/content.h"
#include "pm/epoch.h"

namespace perdure::index::fptree {

// Between two children: no key on its left is as large, none on its right smaller. Byte strings are
// copies in DRAM.
template <bool kOutOfPlace>
struct SeparatorOf {
  uint64_t word = 0;
};
template <>
struct SeparatorOf<true> {
  uint64_t word = 0;
  const std::string* text = nullptr;
};

template <typename Content>
class Inner {
 public:
  using Key = typename Content::Key;
  using Separator = SeparatorOf<Content::kOutOfPlace>;

  struct alignas(16) Node {
    StripeLock lock;
    uint32_t level;  // 1: its children are leaves
    uint32_t count;  // of children; one more than separators
  };

  // While it holds, all keys from that of find() to the bound are the leaf's. Keys from the bound
  // on may have become the leaf's, too: `bound` may stand in a node above the parent, and go with
  // the next one.
  struct Position {
    const Node* parent;
    uint32_t stamp;
    LeafRef* leaf;
    bool bounded;     // whether there was a leaf on the right
    Separator bound;  // the smallest key there
    // The leaf there, for who will go on: a guess, which stays a leaf while the guard lasts. Null
    // if the parent is not its, too.
    const LeafRef* next;
    bool holds() const { return parent->lock.validate(stamp); }
  };
  struct Item {
    Separator separator;
    LeafRef* leaf;
  };

  Inner(pm::EpochManager& epochs, uint32_t capacity) : epochs_(epochs), capacity_(capacity) {}
  ~Inner();  // needs that nobody reads any more
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

  static Separator separator_of(const Key& key);
  static Key key_of(const Separator& separator);
  static void forget(const Separator& separator);

  // Makes the tree, when opening, of at least one leaf in ascending order. Takes the separators;
  // that of the first leaf counts for nothing.
  void build(const std::vector<Item>& items);

  Position find(const Key& key) const;
  // The same step by step, for batches: one node further down, at first to the root; from the last
  // one to a position, without a bound. Asks memory for what comes next. False: it is changing just
  // now.
  struct Steps {
    const Node* node = nullptr;
    const Node* parent = nullptr;  // which led to it under this stamp; null: it was the root
    uint32_t stamp = 0;
  };
  bool step(const Key& key, Steps& at, Position& found) const;
  // The leaf of the greatest key under the ceiling, and the least key that is the leaf's; without a
  // bound. While it holds, all keys between the two are the leaf's. Keys below may have become so,
  // too.
  Position find_under(const tree::Ceiling<Content>& ceiling, tree::Floor<Content>& floor) const;

  // What an insert() needs of DRAM: had beforehand, it cannot fail when records have moved already.
  // Throws bad_alloc, and kInternal for a tree that is too deep.
  class Supplies {
   public:
    Supplies(Inner& inner, const Key& at);
    ~Supplies();
    Supplies(const Supplies&) = delete;
    Supplies& operator=(const Supplies&) = delete;

   private:
    friend class Inner;
    Inner& inner_;
    Separator separator_;
    uint32_t nodes_;     // that are kept for it
    bool used_ = false;  // the separator is in the tree
  };

  // ---- changes: the caller holds mutex()
  std::mutex& mutex() const { return mutex_; }
  // A leaf for the keys from that of the supplies on, which had belonged to another leaf.
  void insert(Supplies& supplies, LeafRef* leaf);
  // The leaf of the key goes, or the one `step` places (-1 to 1) from there that has the same
  // parent; its keys belong to a neighbour from now on: the one on its right if `to_right`, else
  // the one on its left if that has the same parent. Needs no memory.
  void erase(const Key& key, int step, bool to_right);
  // The leaves next to the key's leaf that have the same parent, or null.
  struct Neighbours {
    LeafRef* left;
    LeafRef* right;
    bool alone;  // the only leaf of all
  };
  Neighbours neighbours(const Key& key) const;

  // ---- inspection; nobody changes the tree meanwhile
  using Bound = const Separator*;  // null: none
  void for_each_leaf(const std::function<void(LeafRef* leaf, Bound low, Bound high)>& visit) const;
  uint32_t depth() const { return root_of().level; }
  bool single() const { return depth() == 1 && root_of().count == 1; }
  struct Size {
    uint64_t nodes = 0;
    uint64_t bytes = 0;
  };
  Size size() const;
  uint64_t check(const std::function<void(const std::string&)>& fail) const;

 private:
  // A node is split when it is full, and is full again after two more children at the earliest, so
  // that a tree of this depth has seen 2^63 leaves split.
  static constexpr uint32_t kDepthMax = 64;

  struct Path {
    std::array<Node*, kDepthMax> nodes;
    std::array<uint32_t, kDepthMax> at;
    uint32_t depth = 0;  // of the last node, from the root
  };
  // The nodes of a change: their readers wait until it ends.
  class Change {
   public:
    Change() = default;
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    void begin(Node& node);

   private:
    std::array<Node*, 4 * size_t{kDepthMax}>
        nodes_;  // a path, and three of each level to merge them
    uint32_t count_ = 0;
  };

  Separator* separators(Node& node) const { return reinterpret_cast<Separator*>(&node + 1); }
  const Separator* separators(const Node& node) const {
    return reinterpret_cast<const Separator*>(&node + 1);
  }
  void** children(Node& node) const {
    return reinterpret_cast<void**>(separators(node) + capacity_);
  }
  void* const* children(const Node& node) const {
    return reinterpret_cast<void* const*>(separators(node) + capacity_);
  }
  uint64_t node_bytes() const {
    return sizeof(Node) + capacity_ * (sizeof(Separator) + sizeof(void*));
  }
  Node& root_of() const { return *pm::acquire(root_); }

  Node* make_node(uint32_t level) const;
  Node* spare_node(uint32_t level);
  static void free_node(Node* node);
  void free_subtree(Node* node) const;
  static Separator load(const Separator& from);
  static void store(Separator& to, const Separator& from);
  static bool at_most(const Separator& separator, const Key& key);
  static std::strong_ordering compare(const Separator& separator, const Key& key);
  uint32_t child_index(const Node& node, uint32_t count, const Key& key) const;
  // The last child whose separator `begins(separator)` has on its left.
  template <typename Begins>
  uint32_t child_by(const Node& node, uint32_t count, Begins begins) const;
  Path path_to(const Key& key) const;
  void* child(const Node& node, uint32_t at) const { return children(node)[at]; }
  // The header, and where a search looks first.
  void prefetch(const Node& node) const {
    pm::prefetch(&node);
    for (uint32_t part = 1; part < 8; ++part)
      pm::prefetch(separators(node) + uint64_t{capacity_} * part / 8);
  }
  // Down to a leaf, by what `choose(node, count, whether it is the top, found)` makes of each node:
  // a child's index.
  template <typename Choose>
  Position find_by(Choose choose) const;

  void insert_child(Node& node, uint32_t at, const Separator& separator, void* child);
  Node* split_node(Node& node, uint32_t at, Separator& separator, void*& child);
  Separator erase_child(Node& node, uint32_t at, bool to_right);
  void balance(Path& path, Change& change);
  void merge_children(Node& parent, uint32_t at, Change& change);
  void retire(Node* node);
  void retire(const Separator& separator);
  uint64_t check_node(const Node& node, Bound low, Bound high,
                      const std::function<void(const std::string&)>& fail) const;
  void visit_leaves(const Node& node, Bound low, Bound high,
                    const std::function<void(LeafRef*, Bound, Bound)>& visit) const;

  pm::EpochManager& epochs_;
  uint32_t capacity_;  // children of a node
  std::atomic<Node*> root_{nullptr};
  mutable std::mutex mutex_;
  std::vector<Node*> spare_;     // for those that have supplies
  uint64_t spare_promised_ = 0;  // of them, or more if memory ended
};

template <typename Content>
auto Inner<Content>::load(const Separator& from) -> Separator {
  Separator out;
  out.word = pm::load_relaxed(from.word);
  if constexpr (Content::kOutOfPlace) out.text = pm::load_acquire(from.text);
  return out;
}

// Whether the separator is not greater than the key. A separator that is read while it changes may
// have the word of one and the text of another; both were in the tree since this reader's guard.
template <typename Content>
bool Inner<Content>::at_most(const Separator& separator, const Key& key) {
  const uint64_t word = Content::word_of(key);
  const uint64_t own = pm::load_relaxed(separator.word);
  if constexpr (Content::kOutOfPlace) {
    if (own == word) {
      const std::string* text = pm::load_acquire(separator.text);
      return text == nullptr || std::string_view(*text) <= key.bytes;
    }
  }
  return own <= word;
}

// The same, exactly.
template <typename Content>
std::strong_ordering Inner<Content>::compare(const Separator& separator, const Key& key) {
  const uint64_t word = Content::word_of(key);
  const uint64_t own = pm::load_relaxed(separator.word);
  if constexpr (Content::kOutOfPlace) {
    if (own == word) {
      const std::string* text = pm::load_acquire(separator.text);
      return text == nullptr ? std::strong_ordering::less : std::string_view(*text) <=> key.bytes;
    }
  }
  return own <=> word;
}

template <typename Content>
template <typename Begins>
uint32_t Inner<Content>::child_by(const Node& node, uint32_t count, Begins begins) const {
  const Separator* at = separators(node);
  uint32_t begin = 0;
  for (uint32_t length = count - 1; length > 0;) {
    const uint32_t half = (length + 1) / 2;
    begin = begins(at[begin + half - 1]) ? begin + half : begin;
    length -= half;
  }
  return begin;
}

template <typename Content>
uint32_t Inner<Content>::child_index(const Node& node, uint32_t count, const Key& key) const {
  return child_by(node, count, [&](const Separator& separator) { return at_most(separator, key); });
}

template <typename Content>
template <typename Choose>
auto Inner<Content>::find_by(Choose choose) const -> Position {
  for (Backoff backoff;; backoff.pause()) {
    const Node* node = &root_of();
    uint32_t stamp = node->lock.begin_read();
    if (node != root_.load(std::memory_order_acquire)) continue;
    Position found{};
    for (bool top = true;; top = false) {
      const uint32_t at = choose(*node, pm::load_relaxed(node->count), top, found);
      void* const next = pm::load_acquire(children(*node)[at]);
      const bool has_after = node->level == 1 && at + 1 < pm::load_relaxed(node->count);
      const void* const after = has_after ? pm::load_acquire(children(*node)[at + 1]) : nullptr;
      if (!node->lock.validate(stamp)) break;
      if (node->level == 1) {
        found.parent = node;
        found.stamp = stamp;
        found.leaf = static_cast<LeafRef*>(next);
        found.next = static_cast<const LeafRef*>(after);
        return found;
      }
      const auto* below = static_cast<const Node*>(next);
      prefetch(*below);
      const uint32_t below_stamp = below->lock.begin_read();
      if (!node->lock.validate(stamp)) break;
      node = below;
      stamp = below_stamp;
    }
  }
}

template <typename Content>
auto Inner<Content>::find(const Key& key) const -> Position {
  return find_by([&](const Node& node, uint32_t count, bool, Position& found) {
    const uint32_t at = child_index(node, count, key);
    if (at + 1 < count) {
      found.bounded = true;
      found.bound = load(separators(node)[at]);
    }
    return at;
  });
}

template <typename Content>
bool Inner<Content>::step(const Key& key, Steps& at, Position& found) const {
  if (at.node == nullptr) {
    at.node = &root_of();
  } else {
    const Node& node = *at.node;
    const uint32_t stamp = node.lock.begin_read();
    // Only now: a node may have been split since it was found.
    const bool here = at.parent == nullptr ? &node == root_.load(std::memory_order_acquire)
                                           : at.parent->lock.validate(at.stamp);
    if (!here) return false;
    const uint32_t child = child_index(node, pm::load_relaxed(node.count), key);
    void* const next = pm::load_acquire(children(node)[child]);
    if (!node.lock.validate(stamp)) return false;
    if (node.level == 1) {
      found = {&node, stamp, static_cast<LeafRef*>(next), false, {}, nullptr};
      pm::prefetch(next);
      return true;
    }
    at = {static_cast<const Node*>(next), &node, stamp};
  }
  prefetch(*at.node);
  return true;
}

template <typename Content>
auto Inner<Content>::find_under(const tree::Ceiling<Content>& ceiling,
                                tree::Floor<Content>& floor) const -> Position {
  Separator low;
  bool lowest = true;
  const Position found = find_by([&](const Node& node, uint32_t count, bool top, Position&) {
    if (top) lowest = true;
    const uint32_t at = child_by(node, count, [&](const Separator& separator) {
      return ceiling.admits([&](const Key& key) { return compare(separator, key); });
    });
    if (at > 0) {
      lowest = false;
      low = load(separators(node)[at - 1]);
    }
    return at;
  });
  if (lowest) {
    floor.set_lowest();
  } else {
    floor.set(key_of(low));
  }
  return found;
}

extern template class Inner<tree::Words>;
extern template class Inner<tree::Bytes>;

}  // namespace perdure::index::fptree
