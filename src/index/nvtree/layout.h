// What an NV-Tree keeps in PM.
//
//   root, 256 bytes
//     | seal, leaf_records ...                         | immutable
//     | head | image | ...                             | one line; two words that change
//
//   leaf, 64 + 64 * ceil(leaf_records / 3) bytes       a log of entries, and what replaces it is new
//     | count | next | ...                             | one line
//     | entries 0 to 2 | entries 3 to 5 | ...          | lines
//
//   line, 64 bytes: three entries
//     | key 0 | value 0 | key 1 | value 1 | key 2 | value 2 | tags | 0 |
//
//   tag, 16 bits each, of an entry
//     | present (1) | removal (1) | supersedes (1) | number of the entry that it supersedes (6) | 0 |
//
// An entry counts if its number is below the leaf's count. One entry is live for each key that the
// leaf holds: it is present, is no removal, and no later entry supersedes it. Entries stay as they
// are once they count, with two exceptions, each of one 8-byte store, for leaves that are full: a
// removal that finds no room clears `present`, an update that finds none replaces the value.
//
// Because entries name what they supersede, who reads the log backwards knows which entries are
// superseded without looking at their records, which may be gone.
//
//   image    the inner part, written at a clean close; root.image is 0 while there is none
//     | checksum, bytes, leaves ...                    | one line
//     | words: separator (8), leaf (8); byte strings: leaf (8), length (8), separator, padding |
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "index/structure.h"
#include "index/tree/content.h"
#include "pm/memory.h"

namespace perdure::index::nvtree {

using tree::Slot;

inline constexpr uint64_t kRootMagic = 0x3230544e4e454450;  // "PDENNT02"
inline constexpr uint32_t kLineEntries = 3;
inline constexpr uint32_t kLeafRecords =
    64;  // the reference's, and the most: one bit of a word each
inline constexpr uint32_t kLeafRecordsMin = 4;
inline constexpr uint32_t kInnerRecords = 128;
inline constexpr uint32_t kInnerRecordsMin = 4;
inline constexpr uint32_t kInnerRecordsMax = uint32_t{1} << 16;

struct Tag {
  uint64_t bits = 0;

  static constexpr uint64_t kPresent = 1;
  static constexpr uint64_t kRemoval = 2;
  static constexpr uint64_t kSupersedes = 4;
  static constexpr uint32_t kNumberShift = 3;

  static constexpr Tag make(bool removal, int superseded) {
    uint64_t bits = kPresent | (removal ? kRemoval : 0);
    if (superseded >= 0) bits |= kSupersedes | static_cast<uint64_t>(superseded) << kNumberShift;
    return {bits};
  }
  // The entry has a value, unless another one supersedes it.
  bool is_record() const { return (bits & (kPresent | kRemoval)) == kPresent; }
  bool is_removal() const { return (bits & kRemoval) != 0; }
  // One bit for the entry that this one supersedes.
  uint64_t superseded() const {
    return (bits & kSupersedes) == 0 ? 0 : uint64_t{1} << (bits >> kNumberShift & 63);
  }
};

struct alignas(64) Line {
  Slot slots[kLineEntries];
  uint64_t tags;
  uint64_t reserved;
};
static_assert(sizeof(Line) == 64);

struct alignas(64) Leaf {
  uint64_t count;
  uint64_t next;  // offset of the leaf with the next greater keys, or 0
  uint64_t reserved[6];
  // Behind it: lines.
  Line* lines() { return reinterpret_cast<Line*>(this + 1); }
  const Line* lines() const { return reinterpret_cast<const Line*>(this + 1); }

  Slot& slot(uint32_t entry) { return lines()[entry / kLineEntries].slots[entry % kLineEntries]; }
  const Slot& slot(uint32_t entry) const {
    return lines()[entry / kLineEntries].slots[entry % kLineEntries];
  }
  static constexpr uint32_t tag_shift(uint32_t entry) { return entry % kLineEntries * 16; }
  Tag tag(uint32_t entry) const {
    return {pm::load_relaxed(lines()[entry / kLineEntries].tags) >> tag_shift(entry) & 0xffff};
  }
};
static_assert(sizeof(Leaf) == 64);

constexpr uint64_t lines_of(uint64_t entries) {
  return (entries + kLineEntries - 1) / kLineEntries;
}
constexpr uint64_t leaf_bytes(uint64_t records) {
  return sizeof(Leaf) + sizeof(Line) * lines_of(records);
}
inline constexpr uint64_t kLeafBytesMax = leaf_bytes(kLeafRecords);

struct Root {
  RootSeal seal;
  uint64_t leaf_records;
  uint64_t inner_records;
  uint64_t reserved[4];
  uint64_t head;   // offset of the leaf with the least keys
  uint64_t image;  // offset of an Image that agrees with the leaves, or 0
  uint64_t reserved2[22];
};
static_assert(offsetof(Root, head) == 64 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = 2 * sizeof(uint64_t);

struct alignas(64) Image {
  uint64_t checksum;  // xxh3 of all that follows, the rest of this line included
  uint64_t bytes;     // behind this line
  uint64_t leaves;
  uint64_t reserved[5];
};
static_assert(sizeof(Image) == 64);

}  // namespace perdure::index::nvtree
