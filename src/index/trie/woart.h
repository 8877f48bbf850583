// The nodes of WOART and of ART+CoW, the variants of ART that the authors of WORT propose and compare.
#pragma once

#include <bit>
#include <cstdint>

#include "index/trie/shapes.h"

namespace perdure::index::trie {

// ART+CoW: ART's nodes with up to 16 children are sorted, and replaced by a copy for each new child. Larger
// ones have one word that commits, and are changed in place.
struct ArtCow : Art {
  // Only the place of a child with the same symbol that was removed.
  static bool has_room(Node& node, uint64_t tag, uint32_t symbol) {
    if (!has_keys(tag)) return Art::has_room(node, tag, symbol);
    for (uint32_t i = 0; i < room_of(tag); ++i) {
      if (keys_of(node, tag)[i] != symbol || pm::load_relaxed(slots_of(node, tag)[i]) != 0)
        continue;
      // Not behind the last one, where keys are 0.
      for (uint32_t after = i + 1; after < room_of(tag); ++after) {
        if (pm::load_relaxed(slots_of(node, tag)[after]) != 0) return true;
      }
    }
    return false;
  }
};

// WOART: children come and go by one store to a word of their own, which says which slots count. The slot is
// durable before; what it holds otherwise, from a child that went, does not count.
//
//   node 4, 128 bytes     | header, 32 | order | 4 child words |
//       order, 8 bytes    | 4 keys | for each: counts 1 bit, rank among those that count 7 bits |
//   node 16, 192 bytes    | header, 32 | bitmap, 8 | 16 keys | (unused) 8 | 16 child words |
//   node 48, 704 bytes    | header, 32 | (unused) 32 | 256 of: counts 1 bit, slot 7 bits | 48 child words |
//   node 256, 2112 bytes  | header, 32 | (unused) 32 | 256 child words |
struct Woart {
  static constexpr uint32_t kBits = 8;
  static constexpr uint32_t kSymbols = 256;
  static constexpr uint64_t kNode4 = 2;
  static constexpr uint64_t kNode16 = 3;
  static constexpr uint64_t kNode48 = 4;
  static constexpr uint64_t kNode256 = 5;
  static constexpr uint64_t kSmall = kNode4;

  static constexpr uint64_t bytes_of(uint64_t tag) {
    return tag == kNode4 ? 128 : Art::bytes_of(tag);
  }
  static constexpr uint32_t room_of(uint64_t tag) { return Art::room_of(tag); }
  static constexpr uint64_t tag_for(uint32_t count) { return Art::tag_for(count); }
  static constexpr uint64_t shrunk(uint64_t tag, uint32_t count) { return Art::shrunk(tag, count); }

  static uint64_t* find(Node& node, uint64_t tag, uint32_t symbol) {
    uint64_t* slots = slots_of(node, tag);
    if (tag == kNode256) return pm::load_acquire(slots[symbol]) == 0 ? nullptr : slots + symbol;
    if (tag == kNode48) {
      const uint64_t eight = pm::load_acquire(index_word(node, symbol));
      const uint64_t entry = eight >> symbol % 8 * 8 & 0xff;
      return entry < kCounts || entry - kCounts >= 48 ? nullptr : slots + entry - kCounts;
    }
    if (tag == kNode4) {
      const uint64_t order = pm::load_acquire(word_of(node));
      for (uint32_t i = 0; i < 4; ++i) {
        if (counts(order, i) && key_in(order, i) == symbol) return slots + i;
      }
      return nullptr;
    }
    for (uint64_t bits = pm::load_acquire(word_of(node)) & 0xffff; bits != 0; bits &= bits - 1) {
      const auto i = static_cast<uint32_t>(std::countr_zero(bits));
      if (pm::load_acquire(keys_of(node)[i]) == symbol) return slots + i;
    }
    return nullptr;
  }

  static bool has_room(Node& node, uint64_t tag, uint32_t) {
    return tag == kNode256 || std::countr_one(used_slots(node, tag)) < int(room_of(tag));
  }

  static Place prepare(Node& node, uint64_t tag, uint32_t symbol, uint64_t child,
                       const pm::Memory& memory) {
    uint64_t* slots = slots_of(node, tag);
    if (tag == kNode256) return {slots + symbol, child};
    const auto i = static_cast<uint32_t>(std::countr_one(used_slots(node, tag)));
    if (i >= room_of(tag)) return {};
    pm::store_release(slots[i], child);
    if (tag == kNode16)
      pm::store_release(keys_of(node)[i], static_cast<uint8_t>(symbol));  // in the bitmap's line
    const Place place = counting(node, tag, symbol, i);
    flush_before(memory, slots + i, place.word);
    return place;
  }

  static Place removal(Node& node, uint64_t tag, uint32_t symbol, uint64_t* slot) {
    const auto i = static_cast<uint32_t>(slot - slots_of(node, tag));
    if (tag == kNode256) return {slot, 0};
    Place place = counting(node, tag, symbol, i);
    const uint64_t bit = bit_of(tag, symbol, i);
    place.value = pm::load_relaxed(*place.word) & ~(uint64_t{1} << bit);
    return place;
  }

  static uint64_t* next(Node& node, uint64_t tag, uint32_t& symbol) {
    if (tag == kNode4) return next_in_order(node, symbol);
    if (tag == kNode16) {
      uint64_t* found = nullptr;
      uint32_t least = kSymbols;
      for (uint64_t bits = pm::load_acquire(word_of(node)) & 0xffff; bits != 0; bits &= bits - 1) {
        const auto i = static_cast<uint32_t>(std::countr_zero(bits));
        const uint32_t key = pm::load_acquire(keys_of(node)[i]);
        if (key < symbol || key >= least) continue;
        least = key;
        found = slots_of(node, tag) + i;
      }
      symbol = least;
      return found;
    }
    for (; symbol < kSymbols; ++symbol) {
      if (uint64_t* slot = find(node, tag, symbol)) return slot;
    }
    return nullptr;
  }

  static void add(Node& node, uint64_t tag, uint32_t symbol, uint64_t child) {
    uint64_t* slots = slots_of(node, tag);
    if (tag == kNode256) {
      slots[symbol] = child;
      return;
    }
    const auto i = static_cast<uint32_t>(std::countr_one(used_slots(node, tag)));
    slots[i] = child;
    if (tag == kNode16) keys_of(node)[i] = static_cast<uint8_t>(symbol);
    const Place place = counting(node, tag, symbol, i);
    *place.word = place.value;
  }

 private:
  static constexpr uint64_t kCounts = 0x80;

  static uint64_t& word_of(Node& node) {
    return *reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) + sizeof(Node));
  }
  static uint8_t* keys_of(Node& node) {
    return reinterpret_cast<uint8_t*>(&node) + sizeof(Node) + 8;
  }
  static uint64_t& index_word(Node& node, uint32_t symbol) {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) + 64)[symbol / 8];
  }
  static uint64_t* slots_of(Node& node, uint64_t tag) {
    if (tag == kNode4) return &word_of(node) + 1;
    return Art::slots_of(node, tag);
  }
  static bool counts(uint64_t order, uint32_t i) { return (order >> (39 + 8 * i) & 1) != 0; }
  static uint32_t key_in(uint64_t order, uint32_t i) {
    return static_cast<uint32_t>(order >> 8 * i & 0xff);
  }
  // Of the word that says which slots count, the bit for a slot.
  static uint32_t bit_of(uint64_t tag, uint32_t symbol, uint32_t i) {
    return tag == kNode4 ? 39 + 8 * i : tag == kNode16 ? i : symbol % 8 * 8 + 7;
  }
  // The store that makes a slot count.
  static Place counting(Node& node, uint64_t tag, uint32_t symbol, uint32_t i) {
    const pm::Link form = pm::link_bit(bit_of(tag, symbol, i));
    if (tag == kNode4) {
      const uint64_t order = pm::load_relaxed(word_of(node));
      return {&word_of(node), with_entry(order, symbol, i), form};
    }
    if (tag == kNode16) {
      return {&word_of(node), pm::load_relaxed(word_of(node)) | uint64_t{1} << i, form};
    }
    uint64_t& word = index_word(node, symbol);
    const uint32_t shift = symbol % 8 * 8;
    const uint64_t others = pm::load_relaxed(word) & ~(uint64_t{0xff} << shift);
    return {&word, others | (kCounts | i) << shift, form};
  }
  // The order word with an entry more, and everybody's rank.
  static uint64_t with_entry(uint64_t order, uint32_t symbol, uint32_t entry) {
    order = (order & ~(uint64_t{0xff} << 8 * entry)) | uint64_t{symbol} << 8 * entry |
            uint64_t{1} << (39 + 8 * entry);
    for (uint32_t i = 0; i < 4; ++i) {
      uint64_t rank = 0;
      for (uint32_t other = 0; other < 4; ++other) {
        if (counts(order, other) && key_in(order, other) < key_in(order, i)) ++rank;
      }
      order = (order & ~(uint64_t{0x7f} << (32 + 8 * i))) | rank << (32 + 8 * i);
    }
    return order;
  }
  static uint64_t* next_in_order(Node& node, uint32_t& symbol) {
    const uint64_t order = pm::load_acquire(word_of(node));
    uint32_t least = 4;
    for (uint32_t i = 0; i < 4; ++i) {
      if (!counts(order, i) || key_in(order, i) < symbol) continue;
      const auto rank = [&](uint32_t entry) { return order >> (32 + 8 * entry) & 0x7f; };
      if (least == 4 || rank(i) < rank(least)) least = i;
    }
    symbol = least == 4 ? kSymbols : key_in(order, least);
    return least == 4 ? nullptr : slots_of(node, kNode4) + least;
  }
  // One bit for each slot that counts.
  static uint64_t used_slots(Node& node, uint64_t tag) {
    if (tag == kNode16) return pm::load_relaxed(word_of(node)) & 0xffff;
    uint64_t used = 0;
    if (tag == kNode4) {
      for (uint32_t i = 0; i < 4; ++i) {
        if (counts(pm::load_relaxed(word_of(node)), i)) used |= uint64_t{1} << i;
      }
      return used;
    }
    for (uint32_t symbol = 0; symbol < kSymbols; symbol += 8) {
      const uint64_t eight = pm::load_relaxed(index_word(node, symbol));
      for (uint32_t i = 0; i < 8; ++i) {
        const uint64_t entry = eight >> 8 * i & 0xff;
        if (entry >= kCounts && entry - kCounts < 48) used |= uint64_t{1} << (entry - kCounts);
      }
    }
    return used;
  }
};

}  // namespace perdure::index::trie
