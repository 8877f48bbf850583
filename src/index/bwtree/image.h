// A node that is to be written.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "index/bwtree/layout.h"

namespace perdure::index::bwtree {

// A key of a node: where a range begins or ends.
struct Bound {
  uint64_t word = 0;
  std::string_view text;  // of byte strings
};

// Which part of the keys, where.
struct Range {
  uint32_t level = 0;
  uint32_t right = 0;
  Bound low;
  Bound high;
};

struct Image {
  uint32_t node_keys = 0;
  uint32_t chain = 0;
  uint32_t id = kRootId;
  Range range{};
  std::span<const Slot> items{};
  std::span<const std::string_view> texts{};  // of an inner node's items, of byte strings
  uint32_t from = 0;
  uint64_t home = 0;
  std::array<uint32_t, 2> fresh{};

  // Of the block. All that have few long texts have the same, so that one leaves room for any
  // other.
  uint64_t bytes() const;
  // Flushes what it writes.
  void write(char* block, const pm::Memory& memory) const;

 private:
  uint64_t used_bytes() const;
};

// Of what is written once.
uint32_t checksum_of(const Node& node);

}  // namespace perdure::index::bwtree
