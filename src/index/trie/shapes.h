// What the nodes of a radix tree look like, and by which store a child comes and goes: all that the
// trees differ in. A shape has
//
//   kBits              of a symbol
//   kWindowBytes       of a node's window
//   lock_of            if the lock is in the node: its word
//   kSmall             the tag of new nodes, which have room for two children
//   bytes_of(tag)      of a node; 0: no node has this tag
//   room_of(tag)       children, `end` not counted
//   tag_for(count)     the smallest node with room for so many
//   shrunk(tag, count) the node to use for so many; the same tag while it is not much too large
//   find               the slot of a child that is there, or null; for who holds the lock, or validates its version
//   first_look         where in a node a search for a symbol begins, beside the header
//   child              the child word for who does neither, or 0: never one that is not committed; if no
//                      node has the tag, kDamagedWord
//   has_room           whether prepare() would find a place
//   prepare            writes what nobody looks at before Place::word changes, and flushes it: the caller
//                      fences, and then makes the one store that commits
//   removal            the store that takes a child away
//   next               the first child from a symbol on
//   previous           the last child up to a symbol
//   add                to a node in the making
//   slots_of           where the child words are, room_of(tag) of them, in any order
//   is_sound           whether what leads to the slots contradicts itself; for `check`
//
// Readers may be anywhere in a node meanwhile. They may read a key and then a slot that was used
// again for another key in between: what it leads to does not have the key that they look for,
// which was not there when they read the slot. Writers and scans read under a version.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "index/trie/layout.h"
#include "pm/heap.h"
#include "pm/memory.h"

namespace perdure::index::trie {

// One store that lets a child come, or go; and how the heap reads the word.
struct Place {
  uint64_t* word = nullptr;  // null: there is none
  uint64_t value = 0;
  pm::Link form = pm::Link::kTagged;
};

// Flushes what must be durable before the word that commits; in the same line it is so by the order
// of the stores.
inline void flush_before(const pm::Memory& memory, const void* address, const uint64_t* word) {
  const auto line = [](const void* at) { return reinterpret_cast<uintptr_t>(at) / pm::kLineBytes; };
  if (line(address) != line(word)) memory.flush(address, 1);
}

// Where a byte is `symbol`, the highest bit of it; all others are 0.
inline uint64_t bytes_equal(uint64_t eight, uint32_t symbol) {
  constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7f;
  const uint64_t zero = eight ^ uint64_t { symbol } * 0x0101010101010101;
  return ~(((zero & kLow) + kLow) | zero | kLow);
}

// next() and previous() of nodes whose places are those of the symbols.
template <typename Shape>
uint64_t* next_by_symbol(Node& node, uint64_t tag, uint32_t& symbol) {
  for (; symbol < Shape::kSymbols; ++symbol) {
    if (uint64_t* slot = Shape::find(node, tag, symbol)) return slot;
  }
  return nullptr;
}
template <typename Shape>
uint64_t* previous_by_symbol(Node& node, uint64_t tag, uint32_t& symbol) {
  for (;; --symbol) {
    if (uint64_t* slot = Shape::find(node, tag, symbol)) return slot;
    if (symbol == 0) return nullptr;
  }
}

// The same of nodes with a slot for each symbol.
inline uint64_t* next_slot(uint64_t* slots, uint32_t& symbol, uint32_t symbols) {
  for (; symbol < symbols; ++symbol) {
    if (pm::load_acquire(slots[symbol]) != 0) return slots + symbol;
  }
  return nullptr;
}
inline uint64_t* previous_slot(uint64_t* slots, uint32_t& symbol) {
  for (;; --symbol) {
    if (pm::load_acquire(slots[symbol]) != 0) return slots + symbol;
    if (symbol == 0) return nullptr;
  }
}

// WORT: a slot for each of 16 symbols of 4 bits. A child is there if its word is not 0.
//
//   node, 192 bytes    | header, 32 | (unused) 32 | 16 child words |
struct Wort {
  static constexpr uint32_t kBits = 4;
  static constexpr uint32_t kSymbols = 16;
  static constexpr uint32_t kWindowBytes = 14;
  static constexpr uint64_t kSmall = 2;

  static constexpr uint64_t bytes_of(uint64_t tag) { return tag == kSmall ? 192 : 0; }
  static constexpr uint32_t room_of(uint64_t) { return kSymbols; }
  static constexpr uint64_t tag_for(uint32_t) { return kSmall; }
  static constexpr uint64_t shrunk(uint64_t tag, uint32_t) { return tag; }

  static uint64_t* slots_of(Node& node, uint64_t) {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) + 64);
  }
  static uint64_t* find(Node& node, uint64_t tag, uint32_t symbol) {
    uint64_t* slot = slots_of(node, tag) + symbol;
    return pm::load_acquire(*slot) == 0 ? nullptr : slot;
  }
  static constexpr uint64_t first_look(uint64_t, uint32_t symbol) {
    return 64 + uint64_t{symbol} * sizeof(uint64_t);
  }
  static uint64_t child(Node& node, uint64_t tag, uint32_t symbol) {
    return tag == kSmall ? pm::load_acquire(slots_of(node, tag)[symbol]) : kDamagedWord;
  }
  static bool has_room(Node&, uint64_t, uint32_t) { return true; }
  static Place prepare(Node& node, uint64_t tag, uint32_t symbol, uint64_t child,
                       const pm::Memory&) {
    return {slots_of(node, tag) + symbol, child};
  }
  static Place removal(Node&, uint64_t, uint32_t, uint64_t* slot) { return {slot, 0}; }
  static uint64_t* next(Node& node, uint64_t tag, uint32_t& symbol) {
    return next_slot(slots_of(node, tag), symbol, kSymbols);
  }
  static uint64_t* previous(Node& node, uint64_t tag, uint32_t& symbol) {
    return previous_slot(slots_of(node, tag), symbol);
  }
  static void add(Node& node, uint64_t tag, uint32_t symbol, uint64_t child) {
    slots_of(node, tag)[symbol] = child;
  }
  static bool is_sound(Node&, uint64_t) { return true; }
};

// ART's nodes with 4, 16, 48 and 256 children. A child is there if its word is not 0: the key, or
// the entry of the index, that leads to the word is durable before.
//
//   node 4, 64 bytes      | header, 28 | 4 keys | 4 child words |
//   node 16, 192 bytes    | header, 32 | 16 keys | (unused) 16 | 16 child words |
//   node 48, 704 bytes    | header, 32 | (unused) 32 | 256 of: number of a slot, from 1 | 48 child words |
//   node 256, 2112 bytes  | header, 32 | (unused) 32 | 256 child words |
struct Art {
  static constexpr uint32_t kBits = 8;
  static constexpr uint32_t kSymbols = 256;
  static constexpr uint32_t kWindowBytes = 14;
  static constexpr uint64_t kNode4 = 2;
  static constexpr uint64_t kNode16 = 3;
  static constexpr uint64_t kNode48 = 4;
  static constexpr uint64_t kNode256 = 5;
  static constexpr uint64_t kSmall = kNode4;

  static constexpr uint64_t bytes_of(uint64_t tag) { return kBytes[tag]; }
  static constexpr uint32_t room_of(uint64_t tag) { return kRoom[tag]; }
  static constexpr uint64_t tag_for(uint32_t count) {
    return count <= 4 ? kNode4 : count <= 16 ? kNode16 : count <= 48 ? kNode48 : kNode256;
  }
  // With some distance, so that a few inserts do not make it grow again at once.
  static constexpr uint64_t shrunk(uint64_t tag, uint32_t count) {
    return std::min(tag, tag_for(count + count / 4 + 1));
  }

  static uint8_t* keys_of(Node& node, uint64_t tag) {
    return tag == kNode4 ? node.small_keys : reinterpret_cast<uint8_t*>(&node) + sizeof(Node);
  }
  static uint8_t* index_of(Node& node) { return reinterpret_cast<uint8_t*>(&node) + 64; }
  static uint64_t* slots_of(Node& node, uint64_t tag) {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) + kBegin[tag]);
  }
  static bool has_keys(uint64_t tag) { return tag <= kNode16; }

  static constexpr uint64_t first_look(uint64_t tag, uint32_t symbol) {
    return 64 + (tag == kNode256  ? uint64_t{symbol} * sizeof(uint64_t)
                 : tag == kNode48 ? symbol
                                  : 0);
  }
  static uint64_t* find(Node& node, uint64_t tag, uint32_t symbol);
  [[gnu::always_inline]] static uint64_t child(Node& node, uint64_t tag, uint32_t symbol) {
    if (tag == kNode256) return pm::load_acquire(slots_of(node, kNode256)[symbol]);
    if (tag == kNode4) {
      const uint64_t* slot = find_small(node, symbol);
      return slot == nullptr ? 0 : pm::load_acquire(*slot);
    }
    return child_in_keys(node, tag, symbol);
  }
  static bool has_room(Node& node, uint64_t tag, uint32_t symbol) {
    return tag == kNode256 || free_slot(node, tag, symbol) != room_of(tag);
  }
  static Place prepare(Node& node, uint64_t tag, uint32_t symbol, uint64_t child,
                       const pm::Memory& memory);
  static Place removal(Node&, uint64_t, uint32_t, uint64_t* slot) { return {slot, 0}; }
  static uint64_t* next(Node& node, uint64_t tag, uint32_t& symbol);
  static uint64_t* previous(Node& node, uint64_t tag, uint32_t& symbol);
  static void add(Node& node, uint64_t tag, uint32_t symbol, uint64_t child);
  static bool is_sound(Node&, uint64_t) { return true; }

 private:
  // By the tag. Not in the functions, where the compiler puts them on the stack in each call.
  static constexpr uint64_t kBytes[8] = {0, 0, 64, 192, 704, kNodeBytesMax, 0, 0};
  static constexpr uint32_t kRoom[8] = {0, 0, 4, 16, 48, 256, 0, 0};
  static constexpr uint64_t kBegin[8] = {0, 0, sizeof(Node), 64, 64 + 256, 64, 0, 0};

  [[gnu::always_inline]] static uint64_t* find_small(Node& node, uint32_t symbol);
  // Of nodes of 16 and 48.
  [[gnu::noinline]] static uint64_t child_in_keys(Node& node, uint64_t tag, uint32_t symbol) {
    if (bytes_of(tag) == 0) return kDamagedWord;
    const uint64_t* slot = find(node, tag, symbol);
    return slot == nullptr ? 0 : pm::load_acquire(*slot);
  }
  // A slot without a child, the one that last had this symbol if there is one; room_of(tag) if
  // none.
  static uint32_t free_slot(Node& node, uint64_t tag, uint32_t symbol);
};

// The same with a lock in each node (index/node_lock.h) beside what it guards, where the published
// sources have it; it takes the place of a part of the window:
//
//   | branch, window | lock, 8 | end | ...
struct ArtWithLocks : Art {
  static constexpr uint32_t kWindowBytes = 6;
  static uint64_t& lock_of(Node& node) {
    return *reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&node) + 8);
  }
};
static_assert(offsetof(Node, window) + ArtWithLocks::kWindowBytes == 8 &&
              offsetof(Node, end) == 16);

inline uint64_t* Art::find_small(Node& node, uint32_t symbol) {
  uint64_t* slots = slots_of(node, kNode4);
  // Which of them it is no branch can foresee.
  const uint32_t four = pm::load_acquire(*reinterpret_cast<const uint32_t*>(node.small_keys));
  for (uint64_t hits = bytes_equal(four, symbol) & 0xffffffff; hits != 0; hits &= hits - 1) {
    uint64_t* slot = slots + static_cast<uint32_t>(std::countr_zero(hits)) / 8;
    if (pm::load_acquire(*slot) != 0) return slot;
  }
  return nullptr;
}

inline uint64_t* Art::find(Node& node, uint64_t tag, uint32_t symbol) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return pm::load_acquire(slots[symbol]) == 0 ? nullptr : slots + symbol;
  if (tag == kNode48) {
    const uint32_t number = pm::load_acquire(index_of(node)[symbol]);
    if (number == 0 || number > 48) return nullptr;
    return pm::load_acquire(slots[number - 1]) == 0 ? nullptr : slots + number - 1;
  }
  if (tag == kNode4) return find_small(node, symbol);
  const uint8_t* keys = keys_of(node, tag);
  for (uint32_t half = 0; half < 2; ++half) {
    const uint64_t eight = pm::load_acquire(reinterpret_cast<const uint64_t*>(keys)[half]);
    for (uint64_t hits = bytes_equal(eight, symbol); hits != 0; hits &= hits - 1) {
      const auto i = static_cast<uint32_t>(std::countr_zero(hits)) / 8;
      uint64_t* slot = slots + (uint64_t{half} * 8 + i);
      if (pm::load_acquire(*slot) != 0) return slot;
    }
  }
  return nullptr;
}

inline uint32_t Art::free_slot(Node& node, uint64_t tag, uint32_t symbol) {
  const uint64_t* slots = slots_of(node, tag);
  const uint32_t room = room_of(tag);
  if (tag == kNode48) {
    const uint32_t number = index_of(node)[symbol];
    if (number != 0 && number <= room && pm::load_relaxed(slots[number - 1]) == 0)
      return number - 1;
  }
  uint32_t free = room;
  for (uint32_t i = 0; i < room; ++i) {
    if (pm::load_relaxed(slots[i]) != 0) continue;
    if (has_keys(tag) && keys_of(node, tag)[i] == symbol) return i;
    // A slot whose child went stays that symbol's: two entries must never lead to one slot, and of
    // one that a dead process has cleared nobody would know whether it is so in PM. A copy forgets
    // them.
    if (tag == kNode48) {
      if (std::memchr(index_of(node), static_cast<int>(i + 1), kSymbols) == nullptr) return i;
    } else if (free == room) {
      free = i;
    }
  }
  return free;
}

inline Place Art::prepare(Node& node, uint64_t tag, uint32_t symbol, uint64_t child,
                          const pm::Memory& memory) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return {slots + symbol, child};
  const uint32_t slot = free_slot(node, tag, symbol);
  if (slot == room_of(tag)) return {};
  uint8_t& key = has_keys(tag) ? keys_of(node, tag)[slot] : index_of(node)[symbol];
  pm::store_release(key, static_cast<uint8_t>(has_keys(tag) ? symbol : slot + 1));
  // Also if it was so: a process that died may have stored it, and not flushed it.
  flush_before(memory, &key, slots + slot);
  return {slots + slot, child};
}

inline uint64_t* Art::next(Node& node, uint64_t tag, uint32_t& symbol) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return next_slot(slots, symbol, kSymbols);
  if (!has_keys(tag)) return next_by_symbol<Art>(node, tag, symbol);
  const uint8_t* keys = keys_of(node, tag);
  uint64_t* found = nullptr;
  uint32_t least = kSymbols;
  for (uint32_t i = 0; i < room_of(tag); ++i) {
    const uint32_t key = pm::load_acquire(keys[i]);
    if (key < symbol || key >= least || pm::load_acquire(slots[i]) == 0) continue;
    least = key;
    found = slots + i;
  }
  symbol = least;
  return found;
}

inline uint64_t* Art::previous(Node& node, uint64_t tag, uint32_t& symbol) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return previous_slot(slots, symbol);
  if (!has_keys(tag)) return previous_by_symbol<Art>(node, tag, symbol);
  const uint8_t* keys = keys_of(node, tag);
  uint64_t* found = nullptr;
  uint32_t most = 0;
  for (uint32_t i = 0; i < room_of(tag); ++i) {
    const uint32_t key = pm::load_acquire(keys[i]);
    if (key > symbol || (found != nullptr && key <= most) || pm::load_acquire(slots[i]) == 0)
      continue;
    most = key;
    found = slots + i;
  }
  symbol = most;
  return found;
}

inline void Art::add(Node& node, uint64_t tag, uint32_t symbol, uint64_t child) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) {
    slots[symbol] = child;
    return;
  }
  uint32_t slot = 0;
  while (slots[slot] != 0) ++slot;
  slots[slot] = child;
  if (has_keys(tag)) {
    keys_of(node, tag)[slot] = static_cast<uint8_t>(symbol);
  } else {
    index_of(node)[symbol] = static_cast<uint8_t>(slot + 1);
  }
}

}  // namespace perdure::index::trie
