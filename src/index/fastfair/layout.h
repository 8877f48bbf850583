// What FAST&FAIR keeps in PM.
//
//   root, 256 bytes
//     | seal, node_bytes ... | top |
//
//   node, 512 bytes (`+xs`: 256)
//     | sibling + toggle | leftmost | low | low_key | level, has_zero, obsolete | generation |    48 bytes
//     | entry 0 | entry 1 | ...
//   The header of the reference has 8 bytes more that nobody uses, as the study found it: one entry in
//   four straddles two cache lines, and one entry less fits.
//
//   entry, 16 bytes       mark (never 0)            other
//     leaf of words       key                       value
//     leaf of bytes       offset of the record      first 8 bytes of its key
//     inner node          offset of a child         `low` of the child
//
// An entry counts if its mark is not 0, no mark before it is 0, and the next mark is another. So
// two equal marks side by side are a shift under way, or one that a crash interrupted: the right
// one counts.
//
// A node covers the keys from `low`, which never changes, up to the `low` of its sibling. Of byte
// strings `low` is the first eight bytes, and `low_key` leads to the whole: a block that belongs to
// the leaf that begins with it; inner nodes share the block of their leftmost leaf. Where the keys
// begin both are 0.
//
// The two lowest bits of the sibling word are the toggle bits, of which one is set: each change of
// the word sets one and clears the other, so that a bit tells the heap whether the change has
// happened (pm::link_bit).
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/structure.h"

namespace perdure::index::fastfair {

inline constexpr uint64_t kRootMagic = 0x3130524941464450;  // "PDFAIR01"
inline constexpr uint64_t kNodeBytesMin = 128;
inline constexpr uint64_t kNodeBytesMax = 2048;
inline constexpr uint32_t kLevelsMax = 64;

struct Entry {
  uint64_t mark;
  uint64_t other;
};
static_assert(sizeof(Entry) == 16);

struct Node {
  uint64_t sibling;   // offset of the node to the right, or 0; and the toggle bits
  uint64_t leftmost;  // inner nodes: the child before entry 0. Leaf of words: the value of key 0
  uint64_t low;
  uint64_t low_key;
  uint16_t level;     // 0: a leaf
  uint16_t has_zero;  // leaf of words: there is a record with key 0, which no mark can say
  uint32_t
      obsolete;  // obsolete_mark() of the generation in which it was merged into its left neighbour
  uint64_t
      generation;  // the pool's, when a writer last made sure that the node is whole; not flushed
};
static_assert(sizeof(Node) == 48 && offsetof(Node, low) == 16 && offsetof(Node, level) == 32 &&
              offsetof(Node, generation) == 40);

inline constexpr uint64_t kToggleMask = 3;
constexpr uint64_t sibling_offset(uint64_t word) { return word & ~kToggleMask; }
constexpr uint64_t toggle_of(uint64_t word) { return word & kToggleMask; }
constexpr uint64_t next_toggle(uint64_t word) { return kToggleMask - toggle_of(word); }
inline constexpr uint64_t kFirstTurn = 1;

struct Root {
  RootSeal seal;
  uint64_t node_bytes;
  uint64_t reserved[5];
  uint64_t top;  // offset of the leftmost node of the highest level
  uint64_t reserved2[23];
};
static_assert(offsetof(Root, node_bytes) == 16 && offsetof(Root, top) == 64 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = sizeof(uint64_t);

// The reference, and the variants that Woo et al. (IEEE Access 2021) study.
struct Reference {
  static constexpr char kName[] = "fast-fair";
  static constexpr uint64_t kHeaderBytes = sizeof(Node) + 8;
  static constexpr uint64_t kNodeBytes = 512;
};
struct Trimmed {
  static constexpr char kName[] = "fast-fair+rb";  // RB: the header as large as it was meant to be
  static constexpr uint64_t kHeaderBytes = sizeof(Node);
  static constexpr uint64_t kNodeBytes = 512;
};
struct Sized {
  static constexpr char kName[] = "fast-fair+rb+xs";  // XS: nodes of one block of the media
  static constexpr uint64_t kHeaderBytes = sizeof(Node);
  static constexpr uint64_t kNodeBytes = 256;
};

// Whether an entry may lie in two cache lines.
template <typename Policy>
inline constexpr bool kStraddles = Policy::kHeaderBytes % sizeof(Entry) != 0;

}  // namespace perdure::index::fastfair
