// The nodes of WOART: ART's sizes, each with one word that commits. Lee et al., FAST 2017.
//
// A child is there if that word says so; the key that leads to it, and its child word, are durable
// before:
//
//   node 4, 64 bytes      | branch, window | the word | end | obsolete, (unused) 4 | 4 child words |
//                         the word: | 4 keys | 4 slots of 2 bits, in the order of their keys | 0, 8 bits |
//                         a bit for each slot | 0, 12 bits |
//   node 16, 192 bytes    | branch, window | a bit for each slot | end | obsolete, (unused) 4 | 16 keys |
//                         (unused) 16 | 16 child words |
//   node 48, 704 bytes    | branch, window | (unused) 8 | end | obsolete, (unused) 36 |
//                         256 of: 128 + slot, or 0 | 48 child words |
//   node 256, 2112 bytes  | branch, window | (unused) 8 | end | obsolete, (unused) 36 | 256 child words |
//
// Branch and window are 8 bytes, as the header in the paper. Bytes of the index of a node of 48
// have a bit of their own, 7, so that in all nodes but the largest one bit decides about a child,
// which the heap's intents ask.
//
// What a slot or a key holds whose bit is 0 means nothing: it may be what was removed, or what a
// process that died was about to link, durable or not. Who sets the bit has written and flushed
// both anew.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "index/trie/shapes.h"
#include "pm/pause.h"

namespace perdure::index::trie {

struct Woart : Art {
  static constexpr uint32_t kWindowBytes = 6;

  static uint64_t* find(Node& node, uint64_t tag, uint32_t symbol);
  // A slot is written before its bit is set, so a reader that saw a bit before its child was
  // removed could find the next one in the slot, which is not there yet. If the bit is set
  // afterwards, too, what was read was there: between its being written and its being there, the
  // bit is 0. If it is not, the child was removed meanwhile.
  static uint64_t child(Node& node, uint64_t tag, uint32_t symbol) {
    if (bytes_of(tag) == 0) [[unlikely]]
      return kDamagedWord;
    const uint64_t* slot = find(node, tag, symbol);
    if (slot == nullptr) return 0;
    pm::may_pause();
    const uint64_t word = pm::load_acquire(*slot);
    pm::may_pause();
    return tag == kNode256 || find(node, tag, symbol) == slot ? word : 0;
  }
  static bool has_room(Node& node, uint64_t tag, uint32_t) {
    return tag == kNode256 || free_slot(node, tag) < room_of(tag);
  }
  static Place prepare(Node& node, uint64_t tag, uint32_t symbol, uint64_t child,
                       const pm::Memory& memory);
  static Place removal(Node& node, uint64_t tag, uint32_t symbol, uint64_t* slot);
  static uint64_t* next(Node& node, uint64_t tag, uint32_t& symbol);
  static uint64_t* previous(Node& node, uint64_t tag, uint32_t& symbol);
  static void add(Node& node, uint64_t tag, uint32_t symbol, uint64_t child);
  static bool is_sound(Node& node, uint64_t tag);

 private:
  // The word of a node of 4.
  class Four {
   public:
    static constexpr uint32_t kFirstBit = 48;  // of those that say which slots count

    explicit Four(uint64_t word) : word_(word) {}
    uint64_t word() const { return word_; }
    uint32_t bits() const { return static_cast<uint32_t>(word_ >> kFirstBit) & 15; }
    uint32_t count() const { return 0x4332322132212110 >> 4 * bits() & 15; }  // bits that are 1
    uint32_t key(uint32_t slot) const { return static_cast<uint32_t>(word_ >> 8 * slot) & 0xff; }
    // The slot with so many smaller keys.
    uint32_t slot(uint32_t rank) const {
      return static_cast<uint32_t>(word_ >> (kOrder + 2 * rank)) & 3;
    }
    Four with(uint32_t symbol, uint32_t slot) const;
    Four without(uint32_t slot) const;
    bool is_sound() const;

   private:
    static constexpr uint32_t kOrder = 32;

    uint64_t word_;
  };

  static constexpr uint32_t kIndexBit = 7;  // of a byte of the index

  static uint64_t& word_of(Node& node) { return reinterpret_cast<uint64_t*>(&node)[1]; }
  static uint64_t& index_word_of(Node& node, uint32_t symbol) {
    return reinterpret_cast<uint64_t*>(index_of(node))[symbol / 8];
  }
  static uint32_t shift_of(uint32_t symbol) { return symbol % 8 * 8; }
  // room_of(tag): there is none.
  static uint32_t free_slot(Node& node, uint64_t tag);
  // The store that lets a slot count for a symbol.
  static Place commit(Node& node, uint64_t tag, uint32_t symbol, uint32_t slot);
};
static_assert(offsetof(Node, window) + Woart::kWindowBytes == sizeof(uint64_t));

inline Woart::Four Woart::Four::with(uint32_t symbol, uint32_t slot) const {
  uint32_t rank = 0;
  while (rank < count() && key(this->slot(rank)) < symbol) ++rank;
  const uint32_t order = static_cast<uint32_t>(word_ >> kOrder) & 0xff;
  const uint32_t below = order & ((1U << 2 * rank) - 1);
  const uint32_t fresh = (below | slot << 2 * rank | (order - below) << 2) & 0xff;
  const uint64_t keys = (word_ & 0xffffffff & ~(uint64_t{0xff} << 8 * slot)) | uint64_t{symbol}
                                                                                   << 8 * slot;
  return Four(keys | uint64_t{fresh} << kOrder | uint64_t{bits() | 1U << slot} << kFirstBit);
}

inline Woart::Four Woart::Four::without(uint32_t slot) const {
  uint32_t rank = 0;
  while (rank < 3 && this->slot(rank) != slot) ++rank;
  const uint32_t order = static_cast<uint32_t>(word_ >> kOrder) & 0xff;
  const uint32_t below = order & ((1U << 2 * rank) - 1);
  const uint32_t fresh = below | (order >> 2 * (rank + 1) << 2 * rank);
  return Four((word_ & 0xffffffff) | uint64_t{fresh} << kOrder |
              uint64_t{bits() & ~(1U << slot)} << kFirstBit);
}

inline bool Woart::Four::is_sound() const {
  uint32_t met = 0;
  for (uint32_t rank = 0; rank < count(); ++rank) {
    if (rank > 0 && key(slot(rank)) <= key(slot(rank - 1))) return false;
    met |= 1U << slot(rank);
  }
  return met == bits() && (word_ & ~(uint64_t{0xff'ffffffff} | uint64_t{15} << kFirstBit)) == 0;
}

inline uint64_t* Woart::find(Node& node, uint64_t tag, uint32_t symbol) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return pm::load_acquire(slots[symbol]) == 0 ? nullptr : slots + symbol;
  if (tag == kNode48) {
    const uint64_t entry = pm::load_acquire(index_word_of(node, symbol)) >> shift_of(symbol) & 0xff;
    const uint64_t slot = entry - (1U << kIndexBit);
    return slot < room_of(kNode48) ? slots + slot : nullptr;
  }
  const uint64_t word = pm::load_acquire(word_of(node));
  if (tag == kNode4) {
    const Four four(word);
    for (uint32_t bits = four.bits(); bits != 0; bits &= bits - 1) {
      const auto slot = static_cast<uint32_t>(std::countr_zero(bits));
      if (four.key(slot) == symbol) return slots + slot;
    }
    return nullptr;
  }
  const auto* keys = reinterpret_cast<const uint64_t*>(keys_of(node, tag));
  for (uint32_t half = 0; half < 2; ++half) {
    const uint64_t eight = pm::load_acquire(keys[half]);
    for (uint64_t hits = bytes_equal(eight, symbol); hits != 0; hits &= hits - 1) {
      const uint32_t slot = half * 8 + static_cast<uint32_t>(std::countr_zero(hits)) / 8;
      if ((word >> slot & 1) != 0) return slots + slot;
    }
  }
  return nullptr;
}

inline uint32_t Woart::free_slot(Node& node, uint64_t tag) {
  uint64_t used = 0;
  if (tag == kNode48) {
    constexpr uint64_t kOnes = 0x0101010101010101;
    uint64_t counts = 0;  // of entries, a byte for each of eight columns
    for (uint32_t symbol = 0; symbol < kSymbols; symbol += 8) {
      counts += index_word_of(node, symbol) >> kIndexBit & kOnes;
    }
    const uint64_t count = counts * kOnes >> 56;
    if (count >= room_of(tag)) return room_of(tag);
    // While nothing is removed they are taken one by one.
    const auto number = static_cast<uint32_t>(count);
    const auto entry = static_cast<int>(1U << kIndexBit | number);
    if (std::memchr(index_of(node), entry, kSymbols) == nullptr) return number;
    for (uint32_t symbol = 0; symbol < kSymbols; symbol += 8) {
      for (uint64_t eight = index_word_of(node, symbol); eight != 0; eight >>= 8) {
        if ((eight >> kIndexBit & 1) != 0) used |= uint64_t{1} << (eight & 63);
      }
    }
  } else {
    used = tag == kNode4 ? Four(word_of(node)).bits() : word_of(node);
  }
  return std::min(static_cast<uint32_t>(std::countr_one(used)), room_of(tag));
}

inline Place Woart::commit(Node& node, uint64_t tag, uint32_t symbol, uint32_t slot) {
  if (tag == kNode48) {
    uint64_t& word = index_word_of(node, symbol);
    const uint32_t shift = shift_of(symbol);
    const uint64_t entry = uint64_t{1U << kIndexBit | slot} << shift;
    return {&word, (word & ~(uint64_t{0xff} << shift)) | entry, pm::link_bit(shift + kIndexBit)};
  }
  uint64_t& word = word_of(node);
  if (tag == kNode4)
    return {&word, Four(word).with(symbol, slot).word(), pm::link_bit(Four::kFirstBit + slot)};
  return {&word, word | uint64_t{1} << slot, pm::link_bit(slot)};
}

inline Place Woart::prepare(Node& node, uint64_t tag, uint32_t symbol, uint64_t child,
                            const pm::Memory& memory) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return {slots + symbol, child};
  const uint32_t slot = free_slot(node, tag);
  if (slot >= room_of(tag)) return {};
  const Place place = commit(node, tag, symbol, slot);
  pm::store_release(slots[slot], child);
  flush_before(memory, slots + slot, place.word);  // with the intents, before the bit
  if (tag == kNode16) {
    uint8_t& key = keys_of(node, tag)[slot];
    pm::store_release(key, static_cast<uint8_t>(symbol));
    flush_before(memory, &key, place.word);  // in one line with it
  }
  return place;
}

inline Place Woart::removal(Node& node, uint64_t tag, uint32_t symbol, uint64_t* slot) {
  if (tag == kNode256) return {slot, 0};
  if (tag == kNode48) {
    uint64_t& word = index_word_of(node, symbol);
    const uint32_t shift = shift_of(symbol);
    return {&word, word & ~(uint64_t{0xff} << shift), pm::link_bit(shift + kIndexBit)};
  }
  const auto number = static_cast<uint32_t>(slot - slots_of(node, tag));
  uint64_t& word = word_of(node);
  if (tag == kNode4)
    return {&word, Four(word).without(number).word(), pm::link_bit(Four::kFirstBit + number)};
  return {&word, word & ~(uint64_t{1} << number), pm::link_bit(number)};
}

inline uint64_t* Woart::next(Node& node, uint64_t tag, uint32_t& symbol) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return next_slot(slots, symbol, kSymbols);
  if (!has_keys(tag)) return next_by_symbol<Woart>(node, tag, symbol);
  const uint64_t word = pm::load_acquire(word_of(node));
  if (tag == kNode4) {
    const Four four(word);
    for (uint32_t rank = 0; rank < four.count(); ++rank) {
      const uint32_t slot = four.slot(rank);
      if (four.key(slot) < symbol) continue;
      symbol = four.key(slot);
      return slots + slot;
    }
    return nullptr;
  }
  const uint8_t* keys = keys_of(node, tag);
  uint64_t* found = nullptr;
  uint32_t least = kSymbols;
  for (uint64_t bits = word & 0xffff; bits != 0; bits &= bits - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(bits));
    const uint32_t key = pm::load_acquire(keys[slot]);
    if (key < symbol || key >= least) continue;
    least = key;
    found = slots + slot;
  }
  if (found != nullptr) symbol = least;
  return found;
}

inline uint64_t* Woart::previous(Node& node, uint64_t tag, uint32_t& symbol) {
  uint64_t* slots = slots_of(node, tag);
  if (tag == kNode256) return previous_slot(slots, symbol);
  if (!has_keys(tag)) return previous_by_symbol<Woart>(node, tag, symbol);
  const uint64_t word = pm::load_acquire(word_of(node));
  if (tag == kNode4) {
    const Four four(word);
    for (uint32_t rank = four.count(); rank > 0; --rank) {
      const uint32_t slot = four.slot(rank - 1);
      if (four.key(slot) > symbol) continue;
      symbol = four.key(slot);
      return slots + slot;
    }
    return nullptr;
  }
  const uint8_t* keys = keys_of(node, tag);
  uint64_t* found = nullptr;
  uint32_t most = 0;
  for (uint64_t bits = word & 0xffff; bits != 0; bits &= bits - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(bits));
    const uint32_t key = pm::load_acquire(keys[slot]);
    if (key > symbol || (found != nullptr && key <= most)) continue;
    most = key;
    found = slots + slot;
  }
  if (found != nullptr) symbol = most;
  return found;
}

inline void Woart::add(Node& node, uint64_t tag, uint32_t symbol, uint64_t child) {
  if (tag == kNode256) return Art::add(node, tag, symbol, child);
  uint64_t* slots = slots_of(node, tag);
  uint32_t slot = 0;
  while (slots[slot] != 0) ++slot;
  slots[slot] = child;
  if (tag == kNode16) keys_of(node, tag)[slot] = static_cast<uint8_t>(symbol);
  const Place place = commit(node, tag, symbol, slot);
  *place.word = place.value;
}

// Of what next() does not notice itself: slots that lead nowhere, or two entries for one slot or
// symbol.
inline bool Woart::is_sound(Node& node, uint64_t tag) {
  if (tag == kNode4 && !Four(word_of(node)).is_sound()) return false;
  uint64_t met = 0;
  uint32_t entries = 0;
  if (tag == kNode48) {
    for (uint32_t symbol = 0; symbol < kSymbols; ++symbol) {
      const uint32_t entry = index_of(node)[symbol];
      if (entry == 0) continue;
      const uint32_t slot = entry - (1U << kIndexBit);
      if (slot >= room_of(tag)) return false;
      met |= uint64_t{1} << slot;
      ++entries;
    }
    if (static_cast<uint32_t>(std::popcount(met)) != entries) return false;
  } else if (has_keys(tag)) {
    met = tag == kNode4 ? Four(word_of(node)).bits() : word_of(node);
    if (met >> room_of(tag) != 0) return false;
  }
  for (; met != 0; met &= met - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(met));
    if (slots_of(node, tag)[slot] == 0) return false;
    if (tag == kNode16) {
      const uint32_t symbol = keys_of(node, tag)[slot];
      if (find(node, tag, symbol) != slots_of(node, tag) + slot) return false;
    }
  }
  return true;
}

}  // namespace perdure::index::trie
