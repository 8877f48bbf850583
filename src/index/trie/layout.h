// What the radix trees keep in PM, whatever their nodes look like.
//
//   root, 256 bytes
//     | seal, symbol_bits ... one line: | top: a child word |
//
//   child word, 8 bytes, changed by one store
//     | branch, 16 bits | offset / 64, 42 bits | 0, 3 bits | tag, 3 bits |       0: no child
//     Tag 1 is a leaf; the others are the kinds of nodes, which the shape knows. `branch` is that of the
//     node, so that a lookup knows which symbol to look for before it has read a byte of the node.
//
//   node     | branch | window | end | obsolete | what the shape puts there ...
//   leaf     words: | key | value |, a block of its own; byte strings: a record (index/records.h)
//
// A key is a row of symbols: bytes, or halves of them. All keys below a node have the same first
// `branch` symbols, and differ in the next one, or end there: the key that ends has its leaf in
// `end`, before all others. Symbols between a node's branch and its child's are compressed: the
// child's window has the last of them.
//
// Branch and window are those of the node's keys, counted from the keys' beginning, and never
// change: when a new node comes between a node and its parent, or a parent goes, the node is what
// it was. So a change of the tree's shape is one store to the word that leads there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/structure.h"
#include "pm/layout.h"

namespace perdure::index::trie {

inline constexpr uint64_t kLeafTag = 1;
inline constexpr uint64_t kTagMask = 7;

constexpr uint64_t tag_of(uint64_t word) { return word & kTagMask; }
constexpr uint64_t offset_of(uint64_t word) { return word & pm::kTaggedOffsetMask; }
constexpr uint32_t branch_of(uint64_t word) { return static_cast<uint32_t>(word >> 48); }
constexpr bool is_leaf(uint64_t word) { return tag_of(word) == kLeafTag; }
constexpr uint64_t leaf_word(uint64_t offset) { return offset | kLeafTag; }
constexpr uint64_t node_word(uint64_t offset, uint64_t tag, uint32_t branch) {
  return uint64_t{branch} << 48 | offset | tag;
}

// Leads outside of every pool.
inline constexpr uint64_t kDamagedWord = leaf_word(0);

inline constexpr uint32_t kWindowBytesMax = 14;

struct Node {
  uint16_t branch;  // symbols that all keys below share
  // The last bytes of these; of half a byte the other half is 0. A shape may have fewer of them,
  // and use the rest for something else.
  uint8_t window[kWindowBytesMax];
  uint64_t end;           // child word of the key that has no more symbols; the word is a leaf's
  uint32_t obsolete;      // obsolete_mark() of the generation in which it was replaced
  uint8_t small_keys[4];  // of the shapes' smallest nodes
};
static_assert(sizeof(Node) == 32 && offsetof(Node, end) == 16 && offsetof(Node, obsolete) == 24);
inline constexpr uint64_t kNodeBytesMax = 2112;

// Of two words.
struct Leaf {
  uint64_t key;
  uint64_t value;
};
static_assert(sizeof(Leaf) == 16);

struct Root {
  RootSeal seal;
  uint64_t symbol_bits;  // 8 or 4
  uint64_t reserved[5];
  uint64_t top;   // child word
  uint64_t lock;  // of `top` (index/node_lock.h), where nodes have their locks, too
  uint64_t reserved2[22];
};
static_assert(offsetof(Root, symbol_bits) == 16 && offsetof(Root, top) == 64 &&
              sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = sizeof(uint64_t);

}  // namespace perdure::index::trie
