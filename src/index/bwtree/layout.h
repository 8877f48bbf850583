// What P-BwTree keeps in persistent memory.
//
//   root   | seal | node_keys, chain | first | offsets of the mapping table's chunks |
//   chunk  | entry ... |     64 entries, the next chunk twice as many
//   entry  | tags 16 | offset of the node's block 42 | newest delta 6 |
//   node   | header | items, sorted ... | texts of byte strings ... | (to 64 bytes) | deltas of a leaf ... |
//
// A node is what its entry leads to: the base, which is never changed, and the chain of deltas that
// begins with the newest. Deltas have no blocks of their own: they stand in the node's, in the
// order in which writers took places. Words that change: entries, and of a node `committed`,
// `reserved`, `into`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "index/structure.h"
#include "index/tree/content.h"
#include "pm/layout.h"
#include "pm/memory.h"

namespace perdure::index::bwtree {

using tree::Bytes;
using tree::Slot;
using tree::Words;

inline constexpr char kName[] = "p-bwtree";
inline constexpr uint64_t kMagic = 0x3165657277625042;
inline constexpr uint32_t kNodeKeysDefault = 128;
inline constexpr uint32_t kNodeKeysMin = 4;
inline constexpr uint32_t kNodeKeysMax = 512;
inline constexpr uint32_t kChainDefault = 8;
inline constexpr uint32_t kChainMax = 24;
inline constexpr uint32_t kLevelsMax = 32;
inline constexpr uint32_t kChunks = 24;
inline constexpr uint32_t kFirstChunkEntries = 64;
inline constexpr uint32_t kRootId = 1;
// Of the separators of an inner node; one that has more is split, if it has enough children.
inline constexpr uint32_t kInnerTextBytes = 8192;

struct Root {
  RootSeal seal;
  uint64_t node_keys;
  uint64_t chain;
  uint64_t first;  // the leaf that the tree began with; it may be gone
  uint64_t reserved[3];
  std::array<uint64_t, kChunks> chunks;
};
static_assert(sizeof(Root) == 256 && offsetof(Root, chunks) == 64);
inline constexpr uint64_t kSealedBytes = 16;

// ---- entries

inline constexpr uint64_t kHeadMask = 63;  // the newest delta's place, from 1; 0: the base
inline constexpr uint64_t kBlockMask = pm::kTaggedOffsetMask;
inline constexpr uint64_t kDirty = uint64_t{1} << 63;   // not known to be durable
inline constexpr uint64_t kFrozen = uint64_t{1} << 62;  // goes into the node before it
inline constexpr uint64_t kUnborn = uint64_t{1}
                                    << 61;  // the block that leads to it may not be linked
// Of entries without a node; 0: free.
inline constexpr uint64_t kRetired = uint64_t{1} << 60;  // readers may still look at what was there
inline constexpr uint64_t kClaimed = uint64_t{1} << 59;  // a crash forgets it

// Bytes that begin at an offset of a node: offset 20 | length 12.
struct Text {
  uint32_t word = 0;
  static Text make(uint32_t offset, size_t bytes) {
    return {offset << 12 | static_cast<uint32_t>(bytes)};
  }
  uint32_t offset() const { return word >> 12; }
  uint32_t bytes() const { return word & 0xfff; }
};

enum class DeltaKind : uint8_t { kPut = 1, kRemove = 2 };

// One change of a leaf: one line, written before the entry leads to it.
struct alignas(64) Delta {
  uint64_t key;
  uint64_t value;  // of a removal of a byte string: the record that has the key
  DeltaKind kind;
  uint8_t next;     // the next older one's place, or 0
  uint16_t length;  // of the chain from here on
  uint32_t live;    // records of the leaf when this is its newest delta
  uint64_t unused[5];
};
static_assert(sizeof(Delta) == 64);

struct Node {
  uint32_t bytes;
  uint32_t id;
  uint16_t level;  // 0: a leaf
  uint16_t slots;  // places for deltas
  uint32_t count;  // of items
  uint32_t right;  // id of the next node of the level, or 0
  uint32_t from;   // the id whose block `home` led to this node first
  uint64_t home;
  std::array<uint32_t, 2> fresh;  // ids that this block is the first to lead to
  uint64_t low;                   // the least key of the range, or its first 8 bytes
  uint64_t high;                  // and the end of the range, if there is a node right of it
  Text low_text;
  Text high_text;
  // All up to here is written once.
  uint64_t committed;  // bits by places: the byte string's record counts
  uint64_t reserved;   // places taken in this generation of the pool; not flushed
  uint32_t into;       // of a frozen node: a node at whose right it stands, or the root above it
  uint32_t checksum;   // of what is written once
  uint64_t unused;

  const char* data() const { return reinterpret_cast<const char*>(this); }
  const Slot* items() const { return reinterpret_cast<const Slot*>(this + 1); }
  uint32_t items_end() const {
    return static_cast<uint32_t>(sizeof(Node)) + count * static_cast<uint32_t>(sizeof(Slot));
  }
  uint32_t deltas_at() const { return bytes - slots * static_cast<uint32_t>(sizeof(Delta)); }
  // By its place, from 1.
  Delta& delta(uint32_t place) const {
    char* deltas = const_cast<char*>(data()) + deltas_at();
    return reinterpret_cast<Delta*>(deltas)[place - 1];
  }
  std::string_view text(Text text) const { return {data() + text.offset(), text.bytes()}; }
};
static_assert(sizeof(Node) == 96 && offsetof(Node, committed) == 64);

// An inner node's item: the least key of the child's range, and the child's id in the low half of
// the value; in the high half, of byte strings, the key's text. The first item's key is the node's
// own.
inline uint32_t child_of(const Slot& item) { return static_cast<uint32_t>(item.value); }
inline Text text_of(const Slot& item) { return {static_cast<uint32_t>(item.value >> 32)}; }

}  // namespace perdure::index::bwtree
