// What a block cache looks like in its pool. All numbers little-endian, all offsets from the pool's
// begin.
//
//   Root      | seal | salt, bytes of a segment, segments at most (sealed) | offset of the table |
//   table     for each segment a checked word with its offset, or 0: not taken from the heap yet
//   segment   | SegmentHeader: a line | records, each from a line on |
//   record    | RecordHead | key | block |
//
// A use of a segment is named by a sequence number, which grows from use to use of all segments,
// and by the generation of the pool (how often it was opened) that gave it. Who opens the cache
// goes on behind the highest sequence that it finds; as it has a generation of its own, no two uses
// ever have the same name, even if crashes or damage hide some of them. The check of a record
// covers the name of the use and the place of the record, so that what an earlier use has left, or
// what was copied from elsewhere, is no record.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/structure.h"
#include "pm/checksum.h"
#include "pm/memory.h"

namespace perdure::block_cache {

inline constexpr uint64_t kRootMagic = 0x3168636143427250;  // "PrBCach1"

struct Root {
  index::RootSeal seal;
  uint64_t salt;  // random: what another cache left in a block does not pass for a part of this one
  uint64_t segment_bytes;
  uint64_t segments_max;
  uint64_t reserved[2];
  uint64_t table;
};
static_assert(sizeof(Root) == 64);
inline constexpr uint64_t kSealedBytes = sizeof(Root) - sizeof(index::RootSeal);

// The name of a use.
struct Use {
  uint64_t sequence = 0;  // 0: none
  uint64_t generation = 0;
};

struct SegmentHeader {
  uint64_t check;
  Use use;
  uint64_t reserved[5];
};
static_assert(sizeof(SegmentHeader) == pm::kLineBytes);

struct RecordHead {
  uint64_t check;  // 0: erased
  uint64_t block_check;
  uint32_t block_bytes;
  uint16_t key_bytes;
  uint16_t reserved;
};
static_assert(sizeof(RecordHead) == 24);

inline constexpr uint64_t kSegmentBytesMin = 4096;
inline constexpr uint64_t kSegmentBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kSegmentsMax = uint64_t{1} << 20;

// What a word of the table is checked with: one that was damaged leads to no block of somebody
// else.
inline uint64_t salt_of_link(const Root& root, uint64_t segment) { return root.salt + segment; }

inline uint64_t record_bytes(uint64_t key_bytes, uint64_t block_bytes) {
  return (sizeof(RecordHead) + key_bytes + block_bytes + pm::kLineBytes - 1) &
         ~(pm::kLineBytes - 1);
}

inline uint64_t check_of(const Use& use, uint64_t segment, uint64_t salt) {
  const uint64_t image[] = {use.sequence, use.generation, segment};
  return pm::checksum64(image, sizeof image, salt);
}

// `hash`: of the key. Never 0.
inline uint64_t check_of(const RecordHead& head, uint64_t hash, const Use& use, uint64_t segment,
                         uint64_t line, uint64_t salt) {
  const uint64_t image[] = {head.block_check,
                            uint64_t{head.block_bytes} << 32 | uint64_t{head.key_bytes},
                            hash,
                            use.sequence,
                            use.generation,
                            segment << 32 | line};
  const uint64_t check = pm::checksum64(image, sizeof image, salt);
  return check == 0 ? 1 : check;
}

}  // namespace perdure::block_cache
