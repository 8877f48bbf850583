// The layout of a Masstree in PM.
//
//   root    | seal (16), reserved (48) | layer of the keys' first eight bytes (64) | reserved |
//   layer   | top: the highest node | obsolete | lock |
//   node    line 0    permutation, next, leftmost, obsolete, level, lengths of 12 slices, lock
//           line 1-3  12 slices, 12 values
//
//   permutation   bits 0 to 47: by rank, the slot of an entry (4 bits); 48 to 59: by slot, it counts
//
// A node of level 0 is a border node: a value is the value itself or, of byte strings, the offset
// of a record, or of a layer with kLayerTag. In an interior node it is the offset of the child from
// the slice on.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "index/simd.h"
#include "index/structure.h"
#include "pm/memory.h"

namespace perdure::index::masstree {

inline constexpr uint32_t kSlots = 12;
inline constexpr uint32_t kLevelsMax = 64;
inline constexpr uint64_t kLayerTag = 1;
inline constexpr uint32_t kSliceBytes = 8;
inline constexpr uint8_t kLonger = kSliceBytes + 1;  // of a key that goes on behind the slice
inline constexpr uint32_t kDepthMax = 1024 / kSliceBytes + 1;

// Eight bytes of a key as a number (missing ones are zeros), and how many there are.
struct Slice {
  uint64_t word = 0;
  uint8_t length = 0;
  auto operator<=>(const Slice&) const = default;
};

struct Node {
  uint64_t permutation;
  uint64_t next;      // border nodes: offset of the node to the right, or 0
  uint64_t leftmost;  // interior nodes: offset of the child before all slices
  uint32_t obsolete;  // obsolete_mark() of the generation in which it was taken away; not flushed
  uint16_t level;
  uint16_t reserved;
  uint8_t lengths[kSlots];
  uint32_t
      // of words: the generation, as above, from which on all of it is durable; not flushed
      settled;
  uint64_t lock;  // index/node_lock.h, where nodes have their locks
  uint64_t reserved2;
  uint64_t words[kSlots];
  uint64_t values[kSlots];
};
static_assert(sizeof(Node) == 256 && offsetof(Node, lengths) == 32 && offsetof(Node, words) == 64 &&
              offsetof(Node, values) == 160);

// How many of the slots in a mask have a word below the one that is looked for, and which have it.
struct Compared {
  uint32_t below;
  uint32_t equal;
};
[[gnu::target("avx2,popcnt")]] inline Compared compare_words_avx2(const Node& node, uint32_t slots,
                                                                  uint64_t word) {
  // There is a comparison of signed numbers only.
  const __m256i turn = _mm256_set1_epi64x(INT64_MIN);
  const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(word));
  const __m256i turned = _mm256_xor_si256(wanted, turn);
  uint32_t below = 0;
  uint32_t equal = 0;
  for (uint32_t i = 0; i < kSlots; i += 4) {
    const __m256i four = _mm256_load_si256(reinterpret_cast<const __m256i*>(node.words + i));
    const __m256i less = _mm256_cmpgt_epi64(turned, _mm256_xor_si256(four, turn));
    const __m256i same = _mm256_cmpeq_epi64(four, wanted);
    below |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(less))) << i;
    equal |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(same))) << i;
  }
  return {static_cast<uint32_t>(std::popcount(below & slots)), equal & slots};
}
inline const bool kHasAvx2 =
    kVectorsAllowed && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("popcnt") != 0;
// Without a branch by what is in the slots.
inline Compared compare_words(const Node& node, uint32_t slots, uint64_t word) {
  if (kHasAvx2) [[likely]]
    return compare_words_avx2(node, slots, word);
  uint32_t below = 0;
  uint32_t equal = 0;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint64_t other = pm::load_relaxed(node.words[i]);
    below |= static_cast<uint32_t>(other < word) << i;
    equal |= static_cast<uint32_t>(other == word) << i;
  }
  return {static_cast<uint32_t>(std::popcount(below & slots)), equal & slots};
}

struct Layer {
  uint64_t top;
  uint32_t obsolete;  // as a node's
  uint32_t reserved;
  uint64_t lock;  // as a node's
  uint64_t reserved2[5];
};
static_assert(sizeof(Layer) == 64);

struct Root {
  RootSeal seal;
  uint64_t slots;
  uint64_t reserved[5];
  Layer first;
  uint64_t reserved2[16];
};
static_assert(offsetof(Root, slots) == 16 && offsetof(Root, first) == 64 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = sizeof(uint64_t);

// The word that says which slots count, and in which order.
class Permutation {
 public:
  static constexpr uint32_t kFirstBit = 48;

  explicit Permutation(uint64_t word = 0) : word_(word) {}
  uint64_t word() const { return word_; }
  uint32_t used() const { return static_cast<uint32_t>(word_ >> kFirstBit) & kAll; }
  // Without the instruction for it, which not all processors have: the bits of each four.
  uint32_t count() const {
    constexpr uint64_t kBits = 0x4332322132212110;
    const auto bits = [&](uint32_t from) { return kBits >> (used() >> from & 15) * 4 & 15; };
    return static_cast<uint32_t>(bits(0) + bits(4) + bits(8));
  }
  bool is_full() const { return used() == kAll; }
  // Of a node, whatever damage may have made of the word.
  uint32_t slot(uint32_t rank) const { return std::min(rank_bits(rank), kSlots - 1); }
  uint32_t free_slot() const { return static_cast<uint32_t>(std::countr_one(used())); }
  static uint32_t bit_of(uint32_t slot) { return kFirstBit + slot; }

  Permutation with(uint32_t rank, uint32_t slot) const {
    const uint64_t below = ranks() & mask(rank);
    const uint64_t above = (ranks() & ~mask(rank)) << kRankBits;
    return Permutation((used_bits() | uint64_t{1} << bit_of(slot)) | (above & kRanks) |
                       uint64_t{slot} << (kRankBits * rank) | below);
  }
  Permutation without(uint32_t rank) const {
    const uint64_t below = ranks() & mask(rank);
    const uint64_t above = (ranks() >> kRankBits) & ~mask(rank);
    return Permutation((used_bits() & ~(uint64_t{1} << bit_of(slot(rank)))) | above | below);
  }
  // The entries from a rank on do not count.
  Permutation first(uint32_t rank) const {
    Permutation left = *this;
    while (left.count() > rank) left = left.without(left.count() - 1);
    return left;
  }
  bool sound() const {
    uint32_t met = 0;
    const uint32_t end = count();
    for (uint32_t rank = 0; rank < end; ++rank) met |= 1U << rank_bits(rank);
    return met == used() && (ranks() & ~mask(end)) == 0 && word_ >> (kFirstBit + kSlots) == 0;
  }

 private:
  static constexpr uint32_t kRankBits = 4;
  static constexpr uint32_t kRankMask = 15;
  static constexpr uint32_t kAll = (1U << kSlots) - 1;
  static constexpr uint64_t kRanks = (uint64_t{1} << kFirstBit) - 1;
  static uint64_t mask(uint32_t rank) { return (uint64_t{1} << (kRankBits * rank)) - 1; }
  uint64_t ranks() const { return word_ & kRanks; }
  uint32_t rank_bits(uint32_t rank) const {
    return static_cast<uint32_t>(word_ >> (kRankBits * rank)) & kRankMask;
  }
  uint64_t used_bits() const { return word_ & ~kRanks; }

  uint64_t word_;
};

}  // namespace perdure::index::masstree
