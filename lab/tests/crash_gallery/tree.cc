// The leaves of a tree: a chain in key order, in which a full leaf gives its upper half to a new
// one.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

constexpr uint64_t kKeys = 4;

struct Chain {
  struct Leaf {
    alignas(64) uint64_t count;
    uint64_t next;  // a leaf's number; 0: the end (the first leaf has nobody before it)
    uint64_t keys[kKeys];
  } leaves[8];
};

// Keys that have moved on to the next leaf may still be in this one as well.
bool is_own(const Chain& root, const Chain::Leaf& leaf, uint64_t key) {
  return leaf.next == 0 || key < root.leaves[leaf.next].keys[0];
}

Chain::Leaf& leaf_of(Chain& root, uint64_t key) {
  Chain::Leaf* leaf = &root.leaves[0];
  while (!is_own(root, *leaf, key)) leaf = &root.leaves[leaf->next];
  return *leaf;
}

// Leaves are never given back: the reachable ones are the first.
uint64_t first_free(const Chain& root) {
  uint64_t count = 1;
  for (uint64_t at = root.leaves[0].next; at != 0; at = root.leaves[at].next) ++count;
  return count;
}

void link(uint64_t& next, uint64_t leaf) {
  next = leaf;
  memory.persist(&next, sizeof next);  // crash in split_before_sibling
}

// The new leaf is published in the chain and is given its own sibling afterwards: until then
// everything to the right of it is lost.
template <bool kRepaired>
class SplitBeforeSibling : public RootProgram<Chain> {
 public:
  uint32_t operation_count() const override { return 10; }

 protected:
  void perform(Chain& root, uint32_t number) override {
    // Downwards, so that the leaf that splits has others to its right.
    const uint64_t key = 100 - 5 * number;
    Chain::Leaf* leaf = &leaf_of(root, key);
    if (leaf->count == kKeys) {
      split(root, *leaf);
      leaf = &leaf_of(root, key);
    }
    const uint64_t slot = leaf->count;
    pm::store_relaxed(leaf->keys[slot], key);
    pm::store_release(leaf->count, slot + 1);  // the same line: the key cannot come later
    memory.persist(leaf, sizeof *leaf);
  }
  std::string restore(Chain& root) override {
    std::set<uint64_t> keys;
    uint64_t at = 0;
    do {
      const Chain::Leaf& leaf = root.leaves[at];
      for (uint64_t i = 0; i < leaf.count; ++i) {
        if (is_own(root, leaf, leaf.keys[i])) keys.insert(leaf.keys[i]);
      }
      at = leaf.next;
    } while (at != 0);
    return fmt::format("{}", fmt::join(keys, " "));
  }

 private:
  void split(Chain& root, Chain::Leaf& leaf) {
    const uint64_t fresh = first_free(root);
    Chain::Leaf& right = root.leaves[fresh];
    uint64_t sorted[kKeys];
    std::copy(leaf.keys, leaf.keys + kKeys, sorted);
    std::sort(sorted, sorted + kKeys);
    for (uint64_t i = 0; i < kKeys / 2; ++i) right.keys[i] = sorted[kKeys / 2 + i];
    right.count = kKeys / 2;
    right.next = 0;
    const uint64_t sibling = leaf.next;
    if (kRepaired) right.next = sibling;
    memory.persist(&right, sizeof right);
    link(leaf.next, fresh);
    if (!kRepaired) link(right.next, sibling);
    // The lower half alone, in one step: what moved is not looked at here any more.
    compact(root, leaf);
  }

  static void compact(const Chain& root, Chain::Leaf& leaf) {
    for (uint64_t i = 0; i < leaf.count;) {
      if (is_own(root, leaf, leaf.keys[i])) {
        ++i;
        continue;
      }
      // The last key takes the place: for a moment it is there twice, and the one that it replaces
      // is in the next leaf.
      pm::store_release(leaf.keys[i], leaf.keys[leaf.count - 1]);
      pm::store_release(leaf.count, leaf.count - 1);
    }
    memory.persist(&leaf, sizeof leaf);
  }
};

}  // namespace

void add_tree(std::vector<Entry>& entries) {
  entries.push_back(make_entry<SplitBeforeSibling>("split_before_sibling", "tree.cc"));
}

}  // namespace perdure::crash_gallery
