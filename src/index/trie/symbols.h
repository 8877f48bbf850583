// Keys as rows of symbols, the first one the most significant: of words from the highest bits down,
// of byte strings from the first byte on.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "index/trie/layout.h"
#include "pm/memory.h"

namespace perdure::index::trie {

// Bits: of a symbol, 8 or 4. kWindowBytes: of a node's window.
template <bool kWords, uint32_t Bits, uint32_t kWindowBytes>
struct Symbols {
  using Text = std::conditional_t<kWords, uint64_t, std::string_view>;
  static constexpr uint32_t kPerByte = 8 / Bits;
  static constexpr uint32_t kCount = 1U << Bits;
  // Where two keys are equal.
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  static uint32_t bytes_of(Text text) {
    if constexpr (kWords) {
      return (void)text, 8;
    } else {
      return static_cast<uint32_t>(text.size());
    }
  }
  static uint32_t length(Text text) { return bytes_of(text) * kPerByte; }
  static uint8_t byte_at(Text text, uint32_t i) {
    if constexpr (kWords) {
      return static_cast<uint8_t>(text >> (56 - 8 * i));
    } else {
      return static_cast<uint8_t>(text[i]);
    }
  }
  static uint32_t symbol_in(uint8_t byte, uint32_t i) {
    if constexpr (Bits == 8) {
      return (void)i, byte;
    } else {
      return i % 2 == 0 ? byte >> 4 : byte & 15;
    }
  }
  static uint32_t at(Text text, uint32_t i) { return symbol_in(byte_at(text, i / kPerByte), i); }

  // The first symbol from `begin` on that is not the same in both: the shorter one's length, if
  // that is a beginning of the other.
  static uint32_t first_difference(Text a, Text b) {
    if constexpr (kWords) {
      return a == b ? kNowhere : static_cast<uint32_t>(std::countl_zero(a ^ b)) / Bits;
    } else {
      const size_t common = std::min(a.size(), b.size());
      size_t i = 0;
      while (i < common && a[i] == b[i]) ++i;
      if (i == common && a.size() == b.size()) return kNowhere;
      auto symbol = static_cast<uint32_t>(i) * kPerByte;
      if (Bits == 4 && i < common && ((a[i] ^ b[i]) & 0xf0) == 0) ++symbol;
      return symbol;
    }
  }

  // ---- windows
  static uint32_t window_end(uint32_t branch) { return (branch + kPerByte - 1) / kPerByte; }
  // The first symbol that the window of a node with this branch has.
  static uint32_t window_begin(uint32_t branch) {
    const uint32_t end = window_end(branch);
    return end <= kWindowBytes ? 0 : (end - kWindowBytes) * kPerByte;
  }
  static uint32_t window_symbol(const Node& node, uint32_t branch, uint32_t i) {
    const uint32_t place = i / kPerByte + kWindowBytes - window_end(branch);
    return symbol_in(node.window[place], i);
  }
  // Of a node whose keys begin as `text` does.
  static void set_window(Node& node, uint32_t branch, Text text) {
    node.branch = static_cast<uint16_t>(branch);
    const uint32_t end = window_end(branch);
    for (uint32_t i = 0; i < kWindowBytes; ++i) {
      const uint32_t place = i + end;
      node.window[i] = place < kWindowBytes ? 0 : byte_at(text, place - kWindowBytes);
    }
    if (branch % kPerByte != 0) node.window[kWindowBytes - 1] &= 0xf0;
  }
  static bool window_fits(const Node& node, uint32_t branch, Text text) {
    Node wanted{};
    set_window(wanted, branch, text);
    return std::equal(wanted.window, wanted.window + kWindowBytes, node.window);
  }
};

}  // namespace perdure::index::trie
