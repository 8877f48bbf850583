// What Level hashing keeps in PM.
//
//   root, 256 bytes
//     | seal, node_bytes ...                      | immutable
//     | top | bottom | next | extra 0 | ... 4     | `next` only while it grows
//     | extra 5 | ... 12                          |
//     | extra 13 | ... 15 | ...                   |
//
//   level, one block
//     | bits ... (64 bytes) | node 0 | node 1 | ... 2^bits of them
//
//   node of `level+rb`, 64 bytes: one cache line
//     | token | settled | hash 0 | value 0 | hash 1 | value 1 | hash 2 | value 2 |
//
//   node of `level`, 72 bytes, as the study measured it: alignment makes the token and the fields
//   beside it larger than meant, and every node but one in eight straddles two lines
//     | token | hash 0 | value 0 | hash 1 | value 1 | hash 2 | value 2 | settled | dummy |
//
//   settled: the generation of the pool from which on all of the node is durable; not flushed
//
// The top level has twice as many nodes as the bottom. Two hash functions, the leading bits of both
// halves of one 64-bit hash, give two nodes in each level.
//
// Which slots are empty. With 8-byte keys and values the token has a bit for each slot that counts.
// With byte strings a slot counts if its value, the offset of a record, is not 0, and the token is
// not used: a record and its link must be decided by one word. Every key is legal.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "index/records.h"
#include "index/structure.h"

namespace perdure::index::level {

inline constexpr uint64_t kRootMagic = 0x31304c564c504450;  // "PDPLVL01"
inline constexpr uint32_t kSlots = 3;
inline constexpr uint32_t kBitsMin = 5;  // of the top level
inline constexpr uint32_t kBitsMax = 32;
inline constexpr uint32_t kExtraBitsMin =
    2;  // of extra levels: that their nodes are migrated in fours
inline constexpr uint32_t kExtras = 16;
inline constexpr uint32_t kLevels = 3 + kExtras;

struct WideNode {
  uint64_t token;
  HashSlot slots[kSlots];
  uint64_t settled;
  uint64_t dummy;
};
static_assert(sizeof(WideNode) == 72 && offsetof(WideNode, slots) == 8);

struct alignas(64) LineNode {
  uint64_t token;
  uint64_t settled;
  HashSlot slots[kSlots];
};
static_assert(sizeof(LineNode) == 64 && offsetof(LineNode, slots) == 16);

struct LevelHeader {
  uint32_t bits;
  uint32_t inverse;  // ~bits: a smaller level would lose records when it is migrated
  uint32_t reserved[14];
};
static_assert(sizeof(LevelHeader) == 64);

struct Root {
  RootSeal seal;
  uint64_t node_bytes;
  uint64_t reserved[5];
  uint64_t top;  // offsets of levels
  uint64_t bottom;
  uint64_t next;             // the new top level, while records move out of the bottom one
  uint64_t extras[kExtras];  // small levels, where no larger top level fits the pool
  uint64_t reserved2[5];
};
static_assert(offsetof(Root, top) == 64 && offsetof(Root, extras) == 88 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = sizeof(uint64_t);

// Node numbers: by the leading bits of either half of the hash.
constexpr uint64_t side_of(uint64_t hash, uint32_t side) {
  return side == 0 ? hash : std::rotl(hash, 32);
}

// The variants that Woo et al. (IEEE Access 2021) study.
struct Reference {
  static constexpr char kName[] = "level";
  // HashSlot and token may lie in different lines: the one must be durable before the other is
  // stored.
  static constexpr bool kOneLine = false;
  using Node = WideNode;
};
struct Trimmed {
  static constexpr char kName[] = "level+rb";  // RB: nodes as large as they were meant to be
  static constexpr bool kOneLine = true;
  using Node = LineNode;
};

}  // namespace perdure::index::level
