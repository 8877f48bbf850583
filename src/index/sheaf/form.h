// What a Sheaf does not say of words alone: keys, values and records of either content.
//
// Words are in the leaves' slots themselves. Byte strings are in the leaves, too, behind the slots,
// and in the log: no record has a block of its own, but for values of more than
// inline_value_bytes(), which are records of index/records.h, whose key is the hash of the key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "index/tree/content.h"
#include "pm/checksum.h"

namespace perdure::index::sheaf {

using tree::Slot;

template <typename Content>
struct Form;

template <>
struct Form<tree::Words> {
  using Key = uint64_t;
  // What the inner part compares.
  using Low = uint64_t;
  using Stored = uint64_t;
  using Item = Slot;
  // Leaves and buffers are measured in units: here records.
  static constexpr uint64_t kUnitBytes = sizeof(Slot);

  static Key key_of(uint64_t key) { return key; }
  static Low low_of(Key key) { return key; }
  // What filters and fingerprints are made of.
  static uint64_t word_of(Key key) { return key; }
};

// Of a key that begins with `prefix` bytes which others have, too: what comes next, as a number.
// Zeros are missing ones.
inline uint64_t head_at(std::string_view key, uint64_t prefix) {
  return key.size() > prefix ? tree::prefix_of(key.substr(prefix)) : 0;
}

template <>
struct Form<tree::Bytes> {
  static constexpr uint64_t kUnitBytes = 8;
  static constexpr uint64_t kKeyBytesMax = tree::RangeTrees::kKeyBytesMax;
  // Longer values have a block of their own: in small leaves, fewer bytes are much.
  static constexpr uint64_t kInlineValueBytes = 256;
  static uint64_t inline_value_bytes(uint64_t leaf_bytes) {
    return std::min(kInlineValueBytes, leaf_bytes / 32);
  }

  struct Key {
    std::string_view bytes;
    uint64_t hash;
  };
  using Low = std::string_view;
  // A value where it lies.
  struct Stored {
    std::string_view bytes;  // the value, or the offset of a record
    bool external = false;
    uint64_t block() const {
      uint64_t offset = 0;
      std::memcpy(&offset, bytes.data(), sizeof offset);
      return offset;
    }
  };
  // A record of a leaf or of the log, where it lies.
  struct Item {
    std::string_view key;
    Stored value;
    uint64_t slot = 0;  // the word that led to it, with its check
  };

  static Key key_of(const tree::Bytes::Key& key) {
    return {key.bytes, pm::checksum64(key.bytes.data(), key.bytes.size())};
  }
  static Low low_of(const Key& key) { return key.bytes; }
  // What stands beside each reference to a record, in leaves and buffers: a checksum of its value,
  // seeded with the hash of its key. It says nothing of the place, so that merges copy it.
  static constexpr uint32_t kCheckShift = 40;
  static uint64_t check_of(uint64_t hash, const Stored& value) {
    const uint64_t seed = value.external ? ~hash : hash;
    return pm::checksum64(value.bytes.data(), value.bytes.size(), seed) >> kCheckShift;
  }
  static uint64_t word_of(const Key& key) { return key.hash; }
  static uint64_t units_of(uint64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes; }
  // Of a record with its slot.
  static uint64_t units_of(uint64_t key_bytes, uint64_t value_bytes) {
    return sizeof(Slot) / kUnitBytes + units_of(key_bytes + value_bytes);
  }
  static uint64_t units_of(const Item& item) {
    return units_of(item.key.size(), item.value.bytes.size());
  }
};

// The second word of a slot in a leaf of byte strings: where the record is and how long, and its
// check.
struct RecordPlace {
  uint32_t at;           // bytes from the leaf's beginning
  uint32_t key_bytes;    // up to 1024
  uint32_t value_bytes;  // up to 256
  bool external;

  static RecordPlace of(uint64_t word) {
    return {static_cast<uint32_t>(word & 0xffff), static_cast<uint32_t>(word >> 16 & 0x7ff),
            static_cast<uint32_t>(word >> 27 & 0x3ff), (word >> 37 & 1) != 0};
  }
  uint64_t word(uint64_t check) const {
    return at | uint64_t{key_bytes} << 16 | uint64_t{value_bytes} << 27 |
           uint64_t{external ? 1U : 0U} << 37 | check << Form<tree::Bytes>::kCheckShift;
  }
  uint64_t bytes() const { return uint64_t{key_bytes} + value_bytes; }
};

}  // namespace perdure::index::sheaf
