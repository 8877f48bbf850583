// What an FPTree keeps in PM: leaves, in groups. Inner nodes are in DRAM (inner.h).
//
//   root, 256 bytes
//     | seal, leaf_records, leaf_group, inner_records ... | immutable
//     | groups | spill | ...                               | one line; two words that change
//
//   group, one block of the heap
//     | next ...                                           | one line; offset of a group, or 0
//     | leaf 0 | leaf 1 | ... leaf_group of them           |
//
//   leaf, of 64 records: 1,152 bytes, 64-byte aligned
//     | bitmap (8) | 0 (8) | fingerprints (64, from byte 16) | record 0 | record 1 | ...
//     The first line holds the bitmap and 48 fingerprints; records have 16 bytes, never across lines.
//
//   spill, one block: what a clean close leaves for the next opening; see Spill
//
// The bitmap decides everything. A record counts exactly if its bit is set. A leaf is in use
// exactly if its bitmap is not 0; there is no list of leaves: their order is that of their keys,
// which only DRAM needs to know. With byte strings a record is {first eight bytes of the key,
// offset of a block} and the block is allocated exactly if the bit is set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/structure.h"
#include "index/tree/content.h"

namespace perdure::index::fptree {

using tree::Slot;

inline constexpr uint64_t kRootMagic = 0x3130454552545046;  // "FPTREE01"
inline constexpr uint32_t kLeafRecords = 64;
inline constexpr uint32_t kLeafRecordsMin = 4;
inline constexpr uint32_t kLeafGroup = 14;  // fills a block of 16 KiB
inline constexpr uint32_t kLeafGroupMax = 64;
inline constexpr uint32_t kInnerRecords = 128;
inline constexpr uint32_t kInnerRecordsMin = 4;
inline constexpr uint32_t kInnerRecordsMax = 1024;

struct Root {
  RootSeal seal;
  uint64_t leaf_records;
  uint64_t leaf_group;
  uint64_t inner_records;
  uint64_t reserved[3];
  uint64_t groups;  // the first group; there is always one
  uint64_t spill;   // the block that describes the tree as it is, or 0
  uint64_t reserved2[22];
};
static_assert(offsetof(Root, groups) == 64 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = 3 * sizeof(uint64_t);

struct alignas(64) GroupHead {
  uint64_t next;
  uint64_t reserved[7];
};
static_assert(sizeof(GroupHead) == 64);

// The beginning of a leaf; Geometry knows the rest.
struct Leaf {
  uint64_t bitmap;
  uint64_t reserved;
};
static_assert(sizeof(Leaf) == 16);

struct Geometry {
  uint32_t records;  // of a leaf
  uint32_t group;    // leaves

  uint64_t full() const { return ~uint64_t{0} >> (64 - records); }
  uint64_t all_leaves() const { return ~uint64_t{0} >> (64 - group); }
  uint64_t slots_at() const { return sizeof(Leaf) + ((records + 15) & ~15U); }
  uint64_t leaf_bytes() const {
    return (slots_at() + records * sizeof(Slot) + pm::kLineBytes - 1) & ~(pm::kLineBytes - 1);
  }
  uint64_t group_bytes() const { return sizeof(GroupHead) + group * leaf_bytes(); }

  static uint8_t* fingerprints(Leaf& leaf) { return reinterpret_cast<uint8_t*>(&leaf + 1); }
  static const uint8_t* fingerprints(const Leaf& leaf) {
    return reinterpret_cast<const uint8_t*>(&leaf + 1);
  }
  Slot* slots(Leaf& leaf) const {
    return reinterpret_cast<Slot*>(reinterpret_cast<char*>(&leaf) + slots_at());
  }
  const Slot* slots(const Leaf& leaf) const {
    return reinterpret_cast<const Slot*>(reinterpret_cast<const char*>(&leaf) + slots_at());
  }
};

// The head of a spill. Behind it, as words: the offsets of the groups, in the order of their chain;
// then for each leaf, in ascending order, its place (number of its group in the high half, its own
// number there in the low one) and the separator before it: a word, or the length of a byte string
// and its bytes, filled up with zeros to a whole word.
struct Spill {
  uint64_t checksum;  // xxh3 of all that follows, up to `bytes`
  uint64_t bytes;     // with the head
  uint64_t groups;
  uint64_t leaves;
};
static_assert(sizeof(Spill) == 32);

}  // namespace perdure::index::fptree
