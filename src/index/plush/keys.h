// What stands for a key: its hash or, in an ordered table, its place in the table's range.
//
// Promises
//   - The same key has the same hash for as long as the table lives: levels and log records are
//     found by it.
//   - A key of one word and its hash determine each other, so a record of words needs no copy of
//     its key.
//   - In an ordered table hashes are in the order of the keys.
// Immutable once made; any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "index/hash.h"
#include "index/plush/kernels.h"
#include "index/plush/layout.h"

namespace perdure::index::plush {

// A key, with its hash. `bytes` is empty for keys that their hash holds whole.
struct Key {
  uint64_t hash;
  std::string_view bytes;
};

class Keys {
 public:
  explicit Keys(const Shape& shape);

  bool is_ordered() const { return ordered_; }
  uint64_t min() const { return min_; }  // 0 and the largest word, if not ordered
  uint64_t max() const { return max_; }

  Key key_of(uint64_t key) const { return {hash_of_word(key), {}}; }
  Key key_of(std::string_view bytes) const;
  // What stands for a word key: its hash or, in an ordered table, its position; and back.
  uint64_t hash_of_word(uint64_t key) const { return ordered_ ? position_of(key) : hash_of(key); }
  uint64_t word_of_hash(uint64_t hash) const {
    return ordered_ ? (hash >> order_shift_) + min_ : key_of_hash(hash);
  }
  uint64_t position_of(uint64_t key) const;

  bool is_inside(uint64_t key) const { return key >= min_ && key <= max_; }
  // Of an ordered table, whose keys are words.
  bool is_inside(std::string_view key) const { return !ordered_ || is_inside(word_of(key)); }
  static uint64_t word_of(std::string_view key) {
    uint64_t word = 0;
    std::memcpy(&word, key.data(), sizeof word);
    return word;
  }

  // For what needs evenly spread bits. From a hash with or without its top bit, which tags do not
  // have.
  uint64_t spread_bits(uint64_t hash) const { return ordered_ ? hash_of(hash << 1) : hash; }
  uint8_t mark_of(uint64_t hash) const { return static_cast<uint8_t>(spread_bits(hash)); }
  FilterBits filter_of(uint64_t hash) const { return filter_bits(spread_bits(hash)); }

 private:
  bool ordered_;
  uint32_t order_shift_;  // ordered: leading zeros of the widest place
  uint64_t min_;
  uint64_t max_;
};

}  // namespace perdure::index::plush
