// What BzTree keeps in persistent memory.
//
//   root    | seal | parameters | descriptors of Mwcas | root node |
//   leaf    | status | level 0, sorted | metadata words, growing up ... | ... records, growing down |
//   inner   | status | level, count | count children | count - 1 separators |
//
// Words that Mwcas changes: the root node's offset, each node's status, metadata, children. All
// else of a node is written once: an inner node and the sorted records of a leaf before it is
// linked, a record of the tail before its metadata word makes it visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "index/structure.h"
#include "index/tree/content.h"
#include "pm/checksum.h"

namespace perdure::index::bztree {

using tree::Bytes;
using tree::Words;

inline constexpr uint64_t kMagic = 0x316565725f7a42aa;
inline constexpr uint32_t kNodeBytesDefault = 1024;
inline constexpr uint32_t kNodeBytesMin = 128;
inline constexpr uint32_t kNodeBytesMax = 32768;
inline constexpr uint32_t kLevelsMax = 32;
inline constexpr uint32_t kFanoutMin = 4;    // children that an inner node has room for, at least
inline constexpr uint32_t kSlotsMax = 4095;  // metadata words of a leaf
// Of a node's separators together, generously: a full node has at least four children, of which
// each may add the longest key.
inline constexpr uint32_t kSeparatorsBytesMax = 2 * kNodeBytesMax;

struct Root {
  RootSeal seal;
  uint64_t node_bytes;
  uint64_t descriptor_count;
  uint64_t reserved[4];
  uint64_t descriptors;
  uint64_t root;
  uint64_t reserved2[6];
};
static_assert(sizeof(Root) == 128 && offsetof(Root, descriptors) == 64);
inline constexpr uint64_t kSealedBytes = 16;

struct Node {
  uint64_t status;
  uint32_t level;  // 0: a leaf
  uint32_t count;  // of children; of a leaf's sorted records

  uint64_t* words() { return reinterpret_cast<uint64_t*>(this + 1); }
  const uint64_t* words() const { return reinterpret_cast<const uint64_t*>(this + 1); }
  char* bytes() { return reinterpret_cast<char*>(this); }
  const char* bytes() const { return reinterpret_cast<const char*>(this); }
};
static_assert(sizeof(Node) == 16);

// What a node has room for.
inline uint32_t room_of(uint32_t node_bytes) {
  return node_bytes - static_cast<uint32_t>(sizeof(Node));
}

// A node's status. A frozen node has been replaced, and never changes again. An inner node's has a
// count of the changes of its children besides, in the low bits.
inline constexpr uint64_t kFrozen = uint64_t{1} << 60;

// A leaf's status: frozen | garbage 16 | used 16 | slots 12 | commits 16. Every change that becomes
// visible counts as a commit, so that an unchanged status means that all metadata is unchanged.
struct LeafStatus {
  uint64_t word;

  static LeafStatus make(uint32_t slots, uint32_t used_bytes) {
    return {uint64_t{slots} << 16 | uint64_t{used_bytes / 8} << 28};
  }
  bool frozen() const { return (word & kFrozen) != 0; }
  uint32_t commits() const { return static_cast<uint32_t>(word & 0xffff); }
  // Metadata words that are in use or reserved.
  uint32_t slots() const { return static_cast<uint32_t>(word >> 16 & 0xfff); }
  // Bytes of records, from the end of the node.
  uint32_t used_bytes() const { return static_cast<uint32_t>(word >> 28 & 0xffff) * 8; }
  // Bytes of records that are no longer visible, and of the metadata of those removed.
  uint32_t garbage_bytes() const { return static_cast<uint32_t>(word >> 44 & 0xffff) * 8; }

  // Beside the node's header: all that is taken, and what of it is not garbage.
  uint32_t taken_bytes() const { return slots() * 8 + used_bytes(); }
  uint32_t live_bytes() const { return taken_bytes() - garbage_bytes(); }

  LeafStatus reserved(uint32_t slots, uint32_t bytes) const {
    return {word + (uint64_t{slots} << 16) + (uint64_t{bytes / 8} << 28)};
  }
  LeafStatus committed(uint32_t garbage_bytes) const {
    return {word + 1 + (uint64_t{garbage_bytes / 8} << 44)};
  }
};

// A record's metadata word: bytes 17 | key bytes 11 | offset 16 | out 1 | visible 1. 0: a slot that
// is reserved, or was when its writer died.
struct Meta {
  uint64_t word = 0;

  static Meta make(uint32_t offset, uint32_t key_bytes, uint32_t bytes, bool out) {
    return {1 | uint64_t{out} << 1 | uint64_t{offset} << 2 | uint64_t{key_bytes} << 18 |
            uint64_t{bytes} << 29};
  }
  bool visible() const { return (word & 1) != 0; }
  bool out() const { return (word >> 1 & 1) != 0; }  // the record is a block's offset
  uint32_t offset() const { return static_cast<uint32_t>(word >> 2 & 0xffff); }
  uint32_t key_bytes() const { return static_cast<uint32_t>(word >> 18 & 0x7ff); }
  uint32_t bytes() const { return static_cast<uint32_t>(word >> 29 & 0x1ffff); }
  uint32_t room() const { return (bytes() + 7) / 8 * 8; }
  Meta removed() const { return {word & ~uint64_t{1}}; }
};

// Of words: the key as it is compared, and a record.
template <typename Content>
struct Of {
  using Text = uint64_t;
  using OwnedText = uint64_t;
  struct Item {
    uint64_t key;
    uint64_t value;
    uint32_t room() const { return 16; }
  };
  static Text text_of(uint64_t key) { return key; }
  static Text separator(Text, Text right) { return right; }
};

// Of byte strings. A record is | checksum (4) | key | value |, or, if they are long, the offset of
// a block with both (index/records.h).
template <>
struct Of<Bytes> {
  using Text = std::string_view;
  using OwnedText = std::string;
  struct Item {
    std::string_view key;
    std::string_view value;
    uint64_t record;  // or 0
    uint32_t room() const {
      return record != 0 ? 8 : (inline_bytes(key.size(), value.size()) + 7) / 8 * 8;
    }
  };
  static uint32_t inline_bytes(uint64_t key_bytes, uint64_t value_bytes) {
    return static_cast<uint32_t>(sizeof(uint32_t) + key_bytes + value_bytes);
  }
  // Of the key and the value that stand behind it. Its seed is what the metadata word says of the
  // record, so that another record's checksum does not do.
  static uint32_t checksum_of(const char* record, Meta meta) {
    return pm::checksum32(record + sizeof(uint32_t), meta.bytes() - sizeof(uint32_t),
                          meta.word >> 1);
  }
  static bool is_intact(const char* record, Meta meta) {
    uint32_t checksum = 0;
    std::memcpy(&checksum, record, sizeof checksum);
    return checksum == checksum_of(record, meta);
  }
  // Writes a record at an offset of a node; returns its metadata word.
  static Meta write_inline(char* node, uint32_t offset, std::string_view key,
                           std::string_view value) {
    const Meta meta = Meta::make(offset, static_cast<uint32_t>(key.size()),
                                 inline_bytes(key.size(), value.size()), false);
    char* to = node + offset + sizeof(uint32_t);
    if (!key.empty()) std::memcpy(to, key.data(), key.size());
    if (!value.empty()) std::memcpy(to + key.size(), value.data(), value.size());
    const uint32_t checksum = checksum_of(node + offset, meta);
    std::memcpy(node + offset, &checksum, sizeof checksum);
    return meta;
  }
  static Text text_of(const Bytes::Key& key) { return key.bytes; }
  // The shortest text that is greater than `left` and not greater than `right`.
  static Text separator(Text left, Text right) {
    size_t same = 0;
    while (same < left.size() && left[same] == right[same]) ++same;
    return right.substr(0, same + 1);
  }
};

// ---- inner nodes

inline uint32_t ends_offset(uint32_t count) {
  return static_cast<uint32_t>(sizeof(Node)) + count * 8;
}

template <typename Content>
uint32_t inner_bytes(const Node& node) {
  const uint32_t fixed = ends_offset(node.count);
  if constexpr (!Content::kOutOfPlace) {
    return fixed + (node.count - 1) * 8;
  } else {
    const auto* ends = reinterpret_cast<const uint32_t*>(node.bytes() + fixed);
    return fixed + (node.count - 1) * 4 + (node.count > 1 ? ends[node.count - 2] : 0);
  }
}

// The lowest key of what is right of it: all keys in child i + 1 are at least separator i.
template <typename Content>
typename Of<Content>::Text separator_at(const Node& node, uint32_t i) {
  const char* after = node.bytes() + ends_offset(node.count);
  if constexpr (!Content::kOutOfPlace) {
    return reinterpret_cast<const uint64_t*>(after)[i];
  } else {
    const auto* ends = reinterpret_cast<const uint32_t*>(after);
    const uint32_t begin = i == 0 ? 0 : ends[i - 1];
    return {after + uint64_t{node.count - 1} * 4 + begin, ends[i] - begin};
  }
}

}  // namespace perdure::index::bztree
