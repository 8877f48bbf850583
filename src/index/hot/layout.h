// The layout of a height-optimised trie in PM.
//
//   root, 256 bytes
//     | seal (16), node_entries ... one line: | top: a child word |
//
//   child word, 8 bytes, changed by one store
//     | 0, 14 bits | turn, 2 bits | offset / 64, 42 bits | 0, 2 bits | lines, 4 bits |       0: no child
//     `lines` are those of the node. One bit of `turn` is set, and each store sets the other one: the heap's
//     intents for all blocks that come or go with the store ask for a bit of it.
//
//   node      | state | obsolete | count, width, bits, height | positions | partial keys | entries |
//     lock          of the reference: 8 bytes before the positions (index/node_lock.h)
//     state         bits 0 to 31: the entry is there; 32 to 63: it leads to a node. Of the first a removal
//                   clears one; all else of a node never changes, but for values, child words and spares
//     positions     `bits` bits of the keys, ascending. Words: a mask of 8 bytes; byte strings: 2 bytes each
//     partial keys  `width` bytes each, in the order of the keys: the highest bit is that of the first position.
//                   A bit that does not decide about the entry is 0
//     entries       words: | key | value | or | child word | 0 |; byte strings: the offset of a record
//                   (index/records.h), or a child word
//     spares        of words, in nodes without subtries: | key | value |, records that were added later, in no order.
//                   A key of 0: none. They fill the node's block
//
// A key is a row of bits. Words: from the highest on. Byte strings: 16 positions for each byte, of
// which nine are used: whether there is a byte, and its bits. So no key is the beginning of
// another, and all are in order.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "index/simd.h"
#include "index/structure.h"
#include "pm/heap.h"
#include "pm/layout.h"
#include "pm/memory.h"

namespace perdure::index::hot {

inline constexpr uint32_t kEntriesMin = 3;
inline constexpr uint32_t kEntriesMax = 32;
inline constexpr uint32_t kLinesMax = 11;
inline constexpr uint32_t kSparesMin =
    4;  // of a new node, unless it could not hold as many records
inline constexpr uint32_t kHeightMax = 255;

// ---- child words
inline constexpr uint32_t kTurnBit = 48;  // the first of two
inline constexpr uint64_t kLinesMask = 15;
constexpr uint64_t offset_of(uint64_t word) { return word & pm::kTaggedOffsetMask; }
constexpr uint64_t bytes_of(uint64_t word) { return (word & kLinesMask) * pm::kLineBytes; }
// The bit that says that the word has been stored; 0: there is no child.
constexpr uint32_t turn_of(uint64_t word) {
  return (word >> (kTurnBit + 1) & 1) != 0 ? kTurnBit + 1 : kTurnBit;
}
constexpr uint64_t child_word(uint64_t offset, uint64_t bytes) {
  return offset | bytes / pm::kLineBytes | uint64_t{1} << kTurnBit;
}
// What leads where `word` leads, and takes the place of `before`.
constexpr uint64_t in_turn(uint64_t word, uint64_t before) {
  const uint32_t turn = before != 0 && turn_of(before) == kTurnBit ? kTurnBit + 1 : kTurnBit;
  return (word & ~(uint64_t{3} << kTurnBit)) | uint64_t{1} << turn;
}

struct Node {
  uint64_t state;
  // obsolete_mark() of the generation in which it was replaced; its complement, of a row: of that
  // from which on all of it is durable. Not flushed.
  uint32_t obsolete;
  uint8_t count;
  uint8_t width;  // of a partial key: 1, 2 or 4 bytes
  uint8_t bits;
  uint8_t height;  // 1: all entries are records. A guide; after removals it may be too large
};
static_assert(sizeof(Node) == 16 && offsetof(Node, obsolete) == 8 && offsetof(Node, count) == 12);

constexpr uint64_t live_bit(uint32_t entry) { return uint64_t{1} << entry; }
constexpr bool is_live(uint64_t state, uint32_t entry) { return (state >> entry & 1) != 0; }
constexpr bool is_child(uint64_t state, uint32_t entry) { return (state >> (32 + entry) & 1) != 0; }
constexpr uint32_t live_count(uint64_t state) {
  return static_cast<uint32_t>(std::popcount(static_cast<uint32_t>(state)));
}

struct Root {
  RootSeal seal;
  uint64_t node_entries;
  uint64_t reserved[5];
  uint64_t top;   // child word
  uint64_t lock;  // of `top` (index/node_lock.h), where nodes have their locks, too
  uint64_t reserved2[22];
};
static_assert(offsetof(Root, node_entries) == 16 && offsetof(Root, top) == 64 &&
              sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = sizeof(uint64_t);

// The bits of `word` where `mask` has one, side by side.
[[gnu::target("bmi2")]] inline uint64_t gather_bmi2(uint64_t word, uint64_t mask) {
  return _pext_u64(word, mask);
}
inline const bool kHasGather = __builtin_cpu_supports("bmi2") != 0;
inline uint64_t gather(uint64_t word, uint64_t mask) {
  if (kHasGather) [[likely]]
    return gather_bmi2(word, mask);
  uint64_t out = 0;
  for (uint64_t bit = 1; mask != 0; mask &= mask - 1, bit <<= 1) {
    if ((word & mask & -mask) != 0) out |= bit;
  }
  return out;
}

// Of the bits of `mask` the one of this number, counted from the lowest; 0 if it has no more than
// that.
[[gnu::target("bmi2")]] inline uint64_t nth_bit_bmi2(uint64_t mask, uint32_t number) {
  return _pdep_u64(uint64_t{1} << number, mask);
}
inline uint64_t nth_bit(uint64_t mask, uint32_t number) {
  if (kHasGather) [[likely]]
    return nth_bit_bmi2(mask, number);
  for (; number > 0; --number) mask &= mask - 1;
  return mask & -mask;
}

// The highest of `count` partial keys that has no bit which `key` has not.
template <typename Partial>
uint32_t highest_match(const char* partials, uint32_t count, Partial key) {
  if constexpr (kVectorsAllowed) {
    __m128i absent;
    if constexpr (sizeof(Partial) == 1) absent = _mm_set1_epi8(static_cast<char>(~key));
    if constexpr (sizeof(Partial) == 2) absent = _mm_set1_epi16(static_cast<int16_t>(~key));
    if constexpr (sizeof(Partial) == 4) absent = _mm_set1_epi32(static_cast<int32_t>(~key));
    const uint32_t end = count * sizeof(Partial);
    for (uint32_t at = (end - 1) & ~15U;; at -= 16) {
      // May read on into the entries, which are behind in the same block.
      const __m128i some =
          _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(partials + at)), absent);
      __m128i none;
      if constexpr (sizeof(Partial) == 1) none = _mm_cmpeq_epi8(some, _mm_setzero_si128());
      if constexpr (sizeof(Partial) == 2) none = _mm_cmpeq_epi16(some, _mm_setzero_si128());
      if constexpr (sizeof(Partial) == 4) none = _mm_cmpeq_epi32(some, _mm_setzero_si128());
      auto hits = static_cast<uint32_t>(_mm_movemask_epi8(none));
      if (end - at < 16) hits &= (1U << (end - at)) - 1;
      if (hits != 0)
        return (at + 31 - static_cast<uint32_t>(std::countl_zero(hits))) / sizeof(Partial);
      if (at == 0) return 0;  // the first has no bits, unless it is damaged
    }
  } else {
    for (uint32_t i = count; i-- > 1;) {
      Partial partial = 0;
      std::memcpy(&partial, partials + i * sizeof partial, sizeof partial);
      if ((partial & ~key) == 0) return i;
    }
    return 0;
  }
}

// Keys as rows of bits, and where things are in a node. Words or byte strings; with the node's lock
// or without.
template <bool kWords, bool kLocksInNodes = false>
struct Form {
  static constexpr uint32_t kHeaderBytes = sizeof(Node) + (kLocksInNodes ? 8 : 0);
  using Text = std::conditional_t<kWords, uint64_t, std::string_view>;
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  static constexpr uint32_t kPerByte = 16;
  static constexpr uint32_t kPositions = kWords ? 64 : 1024 * kPerByte;
  static constexpr uint32_t kEntryBytes = kWords ? 16 : 8;

  static bool bit_at(Text text, uint32_t position) {
    if constexpr (kWords) {
      return (text >> (63 - position) & 1) != 0;
    } else {
      const uint32_t byte = position / kPerByte;
      if (byte >= text.size()) return false;
      const uint32_t bit = position % kPerByte;
      // Masked: a damaged node may have a position that is none.
      return bit == 0 || (static_cast<uint8_t>(text[byte]) >> ((8 - bit) & 7) & 1) != 0;
    }
  }
  // Whether keys have it.
  static constexpr bool is_position(uint32_t position) {
    return position < kPositions && (kWords || position % kPerByte <= 8);
  }
  static uint32_t first_difference(Text a, Text b) {
    if constexpr (kWords) {
      return a == b ? kNowhere : static_cast<uint32_t>(std::countl_zero(a ^ b));
    } else {
      const size_t common = std::min(a.size(), b.size());
      const auto i = static_cast<uint32_t>(
          std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(common), b.begin()).first -
          a.begin());
      if (i == common) return a.size() == b.size() ? kNowhere : i * kPerByte;
      const auto bits = static_cast<uint8_t>(a[i] ^ b[i]);
      return i * kPerByte + 1 + static_cast<uint32_t>(std::countl_zero(bits));
    }
  }

  // ---- nodes
  static constexpr uint32_t partials_at(uint32_t bits) {
    return kHeaderBytes + (kWords ? 8 : (2 * bits + 7) & ~7U);
  }
  static constexpr uint32_t entries_at(uint32_t count, uint32_t width, uint32_t bits) {
    constexpr uint32_t kAlign = kEntryBytes - 1;
    return (partials_at(bits) + count * width + kAlign) & ~kAlign;
  }
  static constexpr uint32_t node_bytes(uint32_t count, uint32_t width, uint32_t bits) {
    return entries_at(count, width, bits) + count * kEntryBytes;
  }
  static constexpr uint32_t width_for(uint32_t bits) { return bits <= 8 ? 1 : bits <= 16 ? 2 : 4; }
  // Whether the header is that of a node in so many bytes.
  static bool fits(const Node& node, uint64_t bytes) {
    return node.count - 1U < kEntriesMax && node.bits < node.count &&
           node.width == width_for(node.bits) && (node.bits > 0 || node.count == 1) &&
           node_bytes(node.count, node.width, node.bits) <= bytes;
  }

  static const char* bytes_in(const Node& node) { return reinterpret_cast<const char*>(&node); }
  static uint64_t& lock_in(Node& node)
    requires kLocksInNodes
  {
    return *reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) + sizeof(Node));
  }
  static uint64_t mask_in(const Node& node)
    requires kWords
  {
    return *reinterpret_cast<const uint64_t*>(bytes_in(node) + kHeaderBytes);
  }
  static const uint16_t* positions_in(const Node& node)
    requires(!kWords)
  {
    return reinterpret_cast<const uint16_t*>(bytes_in(node) + kHeaderBytes);
  }
  // The least position; 0 if there is none.
  static uint32_t first_position(const Node& node) {
    if (node.bits == 0) return 0;
    if constexpr (kWords) {
      return static_cast<uint32_t>(std::countl_zero(mask_in(node)));
    } else {
      return positions_in(node)[0];
    }
  }
  // That of the bit `bit` of partial keys, counted from the lowest; kNowhere if there is none.
  static uint32_t position_of(const Node& node, uint32_t bit) {
    if constexpr (kWords) {
      const uint64_t one = nth_bit(mask_in(node), bit);
      return one == 0 ? kNowhere : static_cast<uint32_t>(std::countl_zero(one));
    } else {
      return bit < node.bits ? positions_in(node)[node.bits - 1 - bit] : kNowhere;
    }
  }
  // Whether there are as many as the header says, ascending.
  static bool has_positions(const Node& node) {
    if constexpr (kWords) {
      return static_cast<uint32_t>(std::popcount(mask_in(node))) == node.bits;
    } else {
      const uint16_t* positions = positions_in(node);
      for (uint32_t i = 0; i < node.bits; ++i) {
        if (!is_position(positions[i]) || (i > 0 && positions[i] <= positions[i - 1])) return false;
      }
      return true;
    }
  }
  static uint32_t partial_of(const Node& node, uint32_t entry) {
    const char* at = bytes_in(node) + partials_at(node.bits) + size_t{entry} * node.width;
    if (node.width == 1) return load_partial<uint8_t>(at);
    if (node.width == 2) return load_partial<uint16_t>(at);
    return load_partial<uint32_t>(at);
  }
  template <typename Partial>
  static uint32_t load_partial(const char* at) {
    Partial partial = 0;
    std::memcpy(&partial, at, sizeof partial);
    return partial;
  }
  // Writes four bytes, of which all but the partial key's belong to the next ones and to the
  // entries: so in ascending order, and before the entries.
  static void put_partial(char* node, uint32_t bits, uint32_t entry, uint32_t partial) {
    std::memcpy(node + partials_at(bits) + size_t{entry} * width_for(bits), &partial,
                sizeof partial);
  }
  // The entry that a key leads to.
  static uint32_t search(const Node& node, Text text) {
    uint32_t key = 0;
    if constexpr (kWords) {
      key = static_cast<uint32_t>(gather(text, mask_in(node)));
    } else {
      const uint16_t* positions = positions_in(node);
      for (uint32_t i = 0; i < node.bits; ++i) {
        key = key << 1 | static_cast<uint32_t>(bit_at(text, positions[i]));
      }
    }
    const char* partials = bytes_in(node) + partials_at(node.bits);
    if (node.width == 1) return highest_match(partials, node.count, static_cast<uint8_t>(key));
    if (node.width == 2) return highest_match(partials, node.count, static_cast<uint16_t>(key));
    return highest_match(partials, node.count, key);
  }
  // ---- spares, of which slot_in() numbers the first one as `count`
  // Of nodes whose entries are words' records, which is so from their beginning.
  static bool is_row(const Node& node) {
    return kWords && node.height == 1 && pm::load_relaxed(node.state) >> 32 == 0;
  }
  // How many a node has in so many bytes.
  static uint32_t spares_in(const Node& node, uint64_t bytes) {
    if (!is_row(node)) return 0;
    const uint64_t room = (bytes - entries_at(node.count, node.width, node.bits)) / kEntryBytes;
    return std::min(static_cast<uint32_t>(room), kEntriesMax) - node.count;
  }
  // The bytes of a node that has room for `records` records at most: those of the block that the
  // heap gives for it and some spares.
  static uint64_t bytes_with_spares(uint32_t count, uint32_t width, uint32_t bits,
                                    uint32_t records) {
    const uint64_t without = node_bytes(count, width, bits);
    const uint32_t most = std::max(records, count) - count;
    const uint64_t least = without + uint64_t{std::min(most, kSparesMin)} * kEntryBytes;
    return std::min(pm::Heap::block_bytes(least), without + uint64_t{most} * kEntryBytes);
  }

  // The slot of an entry's word, behind which a word's value is.
  static uint64_t* slot_in(Node& node, uint32_t entry) {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) +
                                       entries_at(node.count, node.width, node.bits) +
                                       size_t{entry} * kEntryBytes);
  }
};

// An entry in DRAM.
struct Item {
  uint64_t word = 0;   // key, record or child word
  uint64_t value = 0;  // of words
  bool child = false;
  bool live = false;
};

// A node in DRAM, from which others are made: its entries in order, and between each two the first
// position at which the keys of one and of the other differ. That is all there is to know of a
// Patricia trie: the least position is its root's.
struct Image {
  uint32_t count = 0;
  uint32_t height = 1;
  Item items[kEntriesMax + 1];
  uint32_t differs[kEntriesMax];  // between item i and i + 1

  void append(const Item& item) { items[count++] = item; }
  // Puts an item before the one of this number; `position`: in which it differs from that or,
  // behind the last one, from the one before.
  void insert(uint32_t at, const Item& item, uint32_t position, bool before) {
    std::copy_backward(items + at, items + count, items + count + 1);
    items[at] = item;
    // Before: between it and the one that follows; else between the one before and it.
    const uint32_t gap = before ? at : at - 1;
    std::copy_backward(differs + gap, differs + count - 1, differs + count);
    differs[gap] = position;
    ++count;
  }
  // Of records of words: puts one where its key belongs. False: the key is there.
  bool insert_word(const Item& item) {
    const Item* behind = std::lower_bound(
        items, items + count, item, [](const Item& a, const Item& b) { return a.word < b.word; });
    const auto at = static_cast<uint32_t>(behind - items);
    if (at < count && items[at].word == item.word) return false;
    std::copy_backward(items + at, items + count, items + count + 1);
    items[at] = item;
    const auto part = [&](uint32_t gap) {
      differs[gap] = Form<true>::first_difference(items[gap].word, items[gap + 1].word);
    };
    // The gap that it comes into becomes two.
    if (at < count) std::copy_backward(differs + at, differs + count - 1, differs + count);
    if (at < count) part(at);
    if (at > 0) part(at - 1);
    ++count;
    return true;
  }
  // The entries around one that share all bits up to a position, with it.
  std::pair<uint32_t, uint32_t> sharing(uint32_t around, uint32_t position) const {
    uint32_t low = around;
    uint32_t high = around;
    while (low > 0 && differs[low - 1] > position) --low;
    while (high + 1 < count && differs[high] > position) ++high;
    return {low, high};
  }
  // Entries `from` to before `end`.
  Image part(uint32_t from, uint32_t end) const {
    Image out;
    out.height = height;
    out.count = end - from;
    std::copy(items + from, items + end, out.items);
    std::copy(differs + from, differs + end - 1, out.differs);
    return out;
  }
  // Where the root parts them: the number of the first entry behind it.
  uint32_t middle() const {
    return static_cast<uint32_t>(std::min_element(differs, differs + count - 1) - differs) + 1;
  }
  // Puts the entries of `other` into the place of one.
  void replace(uint32_t at, const Image& other) {
    const uint32_t more = other.count - 1;
    std::copy_backward(items + at + 1, items + count, items + count + more);
    std::copy_backward(differs + at, differs + count - 1, differs + count - 1 + more);
    std::copy(other.items, other.items + other.count, items + at);
    std::copy(other.differs, other.differs + more, differs + at);
    count += more;
  }
};

}  // namespace perdure::index::hot
