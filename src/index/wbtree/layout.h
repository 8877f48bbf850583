// What the wB+Tree keeps in PM.
//
//   root, 256 bytes
//     | seal, leaf_records, inner_records ...            | immutable
//     | top node | depth | ...                           | one line; two words, changed together
//
//   node: cells of 16 bytes, and a bitmap with one bit for each of them
//     cell 0        | bitmap (8) | separator (8)        |  bit 0: the slot array is valid
//     cells 1-3     | key (8) | value (8) | ...            |
//     cells 4-7     | count (1) | cell numbers (1 each)... |  the slot array: one line
//     cells 8-63    | key (8) | value (8) | ...            |
//
// Bit n of the bitmap speaks for cell n. So a bitmap of 8 bytes serves 64 cells, 59 of them for
// records, in exactly 1 KiB; smaller nodes end sooner.
//
//   leaf record   | key, or the first 8 bytes of it | value, or the offset of a record      |
//   inner record  | key, or the first 8 bytes of it | offset of the child for keys from there |
//
// Which records count is decided by the bitmap alone. The slot array gives their order. It is valid
// if it lists all cells that count, in ascending order of their keys; between them it may list
// cells whose bit is clear, which are passed over (what a removal leaves behind). Inner nodes
// change by micro-log only, and theirs is always valid and exact.
//
// A node's separator is the lowest key that it is for: the key itself, or the offset of a record of
// it in a block of the node's own (0: the empty string). It is what the parent's record for the
// node says, at its full length. Of a parent's first child neither is looked at: it is for whatever
// its parent is for, from the lowest.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "index/structure.h"
#include "index/tree/content.h"
#include "pm/memory.h"

namespace perdure::index::wbtree {

using tree::Slot;

inline constexpr uint64_t kRootMagic = 0x3130545742504450;  // "PDPBWT01"
inline constexpr uint32_t kRecordsMax = 59;
inline constexpr uint32_t kRecordsMin = 4;
inline constexpr uint32_t kLeafRecords = kRecordsMax;
inline constexpr uint32_t kInnerRecords = 32;
// A node that is dropped with all that is left below it takes two intents at each level.
inline constexpr uint32_t kDepthMax = 28;

inline constexpr uint64_t kOrderValid = 1;
inline constexpr uint32_t kOtherCells = 5;       // that hold no record
inline constexpr uint64_t kReservedBits = 0xf1;  // theirs
inline constexpr uint32_t kOrderWords = 8;

// A slot array in DRAM.
class Order {
 public:
  uint32_t count() const { return bytes()[0] & 63; }
  uint32_t operator[](uint32_t position) const { return bytes()[position + 1] & 63; }
  void append(uint32_t cell) {
    const uint32_t at = count();
    bytes()[at + 1] = static_cast<uint8_t>(cell);
    set_count(at + 1);
  }
  void insert(uint32_t position, uint32_t cell) {
    for (uint32_t i = count(); i > position; --i) bytes()[i + 1] = bytes()[i];
    bytes()[position + 1] = static_cast<uint8_t>(cell);
    set_count(count() + 1);
  }
  void erase(uint32_t position) {
    set_count(count() - 1);
    for (uint32_t i = position; i < count(); ++i) bytes()[i + 1] = bytes()[i + 2];
  }
  void set_count(uint32_t count) { bytes()[0] = static_cast<uint8_t>(count); }

  uint64_t words[kOrderWords] = {};

 private:
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(words); }
  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(words); }
};
static_assert(sizeof(Order) == 64);

struct alignas(64) Node {
  uint64_t bitmap;
  uint64_t separator;
  Slot low[3];
  uint64_t order[kOrderWords];
  Slot high[56];

  Slot& cell(uint32_t number) { return reinterpret_cast<Slot*>(this)[number]; }
  const Slot& cell(uint32_t number) const { return reinterpret_cast<const Slot*>(this)[number]; }
};
static_assert(offsetof(Node, low) == 16 && offsetof(Node, order) == 64 &&
              offsetof(Node, high) == 128 && sizeof(Node) == 1024);

constexpr uint64_t bit(uint32_t cell) { return uint64_t{1} << cell; }

// How many records a node may have, and where they are.
struct Shape {
  uint32_t records = kRecordsMax;

  constexpr uint64_t bytes() const { return (records + kOtherCells) * sizeof(Slot); }
  // The bits of the cells that may hold records.
  constexpr uint64_t cells() const {
    return ~uint64_t{0} >> (kRecordsMax - records) & ~kReservedBits;
  }
};
static_assert(Shape{kRecordsMax}.bytes() == sizeof(Node));
static_assert(std::popcount(Shape{kRecordsMax}.cells()) == kRecordsMax);
static_assert(std::popcount(Shape{kRecordsMin}.cells()) == kRecordsMin);

struct Root {
  RootSeal seal;
  uint64_t leaf_records;
  uint64_t inner_records;
  uint64_t reserved[4];
  uint64_t top;    // offset of the topmost node
  uint64_t depth;  // levels above the leaves
  uint64_t reserved2[22];
};
static_assert(offsetof(Root, top) == 64 && offsetof(Root, depth) == 72 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = 2 * sizeof(uint64_t);

// The records that count, as bits.
inline uint64_t live_cells(const Node& node) {
  return pm::load_acquire(node.bitmap) & ~kOrderValid;
}
inline uint32_t live_count(const Node& node) {
  return static_cast<uint32_t>(std::popcount(live_cells(node)));
}

inline void load_order(const Node& node, Order& order) {
  for (uint32_t i = 0; i < kOrderWords; ++i) order.words[i] = pm::load_relaxed(node.order[i]);
}
inline void store_order(Node& node, const Order& order) {
  for (uint32_t i = 0; i < kOrderWords; ++i) pm::store_release(node.order[i], order.words[i]);
}
inline Slot load_cell(const Node& node, uint32_t cell) {
  return {pm::load_relaxed(node.cell(cell).key), pm::load_relaxed(node.cell(cell).value)};
}
inline void store_cell(Node& node, uint32_t cell, const Slot& slot) {
  pm::store_release(node.cell(cell).key, slot.key);
  pm::store_release(node.cell(cell).value, slot.value);
}

// The order of a node whose slot array is valid, without what does not count.
inline void load_live_order(const Node& node, uint64_t bitmap, Order& order) {
  load_order(node, order);
  const auto live = static_cast<uint32_t>(std::popcount(bitmap & ~kOrderValid));
  if (order.count() == live) [[likely]]
    return;  // what it lists besides is nothing
  Order rest;
  for (uint32_t i = 0; i < order.count(); ++i) {
    if ((bitmap & bit(order[i])) != 0) rest.append(order[i]);
  }
  order = rest;
}

}  // namespace perdure::index::wbtree
