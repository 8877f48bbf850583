// What a Sheaf keeps in PM.
//
//   root, 256 bytes
//     | seal, leaf_bytes ...                           | immutable
//     | directory | log | ...                          | one line; set once
//     | slot | chunk 0 to 3                            | the first of the directory, the first of the table
//
//   directory block, a chain of them: which leaves there are, in no order
//     | next | slot 0 | slot 1 | ...                   | a slot is the offset of a leaf, or 0
//
//   leaf, 128 bytes and its records, in a block of the size that fits; never changed once a slot leads to it
//     | merged | low | first | last | count, bytes | checksums | | one line
//     | lines                                          | one line: where to look for a key
//     | key, value | key, value ...                    | in the order of the keys
//   of byte strings
//     | head, place | head, place ...                  | in the order of the keys: eight bytes behind what all keys
//     |                                                | begin with, and where the record is (form.h: RecordPlace)
//     | low | key value | key value ...                | each from a multiple of 8 bytes on
//
//   log table
//     | chunk 4 | chunk 5 | ...                        | offsets, or 0
//
//   log chunk
//     | header | ...                                   | one line
//     | records of three words, each with a flag bit   | nine of them in each 256 bytes (log.h)
//   of byte strings
//     | checksum, lengths | number | link | key value  | each from a line's beginning on
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "index/sheaf/form.h"
#include "index/structure.h"
#include "pm/checksum.h"
#include "pm/memory.h"

namespace perdure::index::sheaf {

inline constexpr uint64_t kRootMagic = 0x3130464145485344;  // "DSHEAF01"
inline constexpr uint64_t kLeafHeaderBytes = 128;
inline constexpr uint64_t kLeafBytes = 8192;
inline constexpr uint64_t kLeafBytesMin = 256;
inline constexpr uint64_t kLeafBytesMax = 16384;
// A leaf of byte strings may be larger by a record and the keys that its range begins with. Its
// block is of the size that fits that.
inline constexpr uint64_t kLeafBytesBeyond = 4096;
inline constexpr uint32_t kBufferRecords = 48;
inline constexpr uint32_t kBufferRecordsMin = 4;
inline constexpr uint32_t kBufferRecordsMax = 64;  // one bit of a word each
inline constexpr uint32_t kLookupLines = 64;
inline constexpr uint32_t kFirstChunks = 4;

struct alignas(64) Root {
  RootSeal seal;
  uint64_t leaf_bytes;       // of the largest leaf
  uint64_t buffer_records;   // that a leaf's buffer holds
  uint64_t directory_bytes;  // of a directory block
  uint64_t chunk_bytes;      // of a log chunk
  uint64_t chunks_max;
  uint64_t first_chunks : 8;  // kFirstChunks
  uint64_t salt : 56;         // of byte strings: random, for the checksums of the log's records
  // One line of words that are set once.
  uint64_t directory;  // offset of the first directory block
  uint64_t log;        // offset of the log table
  uint64_t reserved1[6];
  // The first words of the directory and of the log table: so that a structure is made at once.
  uint64_t slot;
  uint64_t chunks[kFirstChunks];
  uint64_t reserved2[11];
};
static_assert(sizeof(Root) == 256 && offsetof(Root, directory) == 64);
inline constexpr uint64_t kSealedBytes = offsetof(Root, directory) - sizeof(RootSeal);

struct alignas(64) Directory {
  uint64_t next;  // offset of the next block, or 0

  uint64_t* slots() { return &next + 1; }
  const uint64_t* slots() const { return &next + 1; }
  static uint64_t count(uint64_t directory_bytes) { return directory_bytes / sizeof(uint64_t) - 1; }
};

struct alignas(64) Leaf {
  uint64_t merged;  // log records of the leaf's range with numbers up to this are in here
  uint64_t low;     // the least key of the range
  uint64_t first;   // of its records; as low if there are none
  uint64_t last;
  uint32_t count;             // of records
  uint32_t bytes;             // of the block
  uint32_t content_checksum;  // over the records
  uint32_t header_checksum;   // over all of the header but itself, seeded with the leaf's offset
  // Of byte strings, else 0.
  uint32_t content_bytes;  // slots, low and records, without what fills the last line
  uint16_t prefix_bytes;   // that all keys begin with: what the slots' heads leave out
  uint16_t low_bytes;
  uint32_t low_checksum;  // seeded with the leaf's offset
  uint32_t external;      // whether a value is in a block of its own
  // lines[i]: the line, from the first record's on, where records of part i of [first, last] begin.
  uint8_t lines[kLookupLines];

  const Slot* records() const { return reinterpret_cast<const Slot*>(this + 1); }
  Slot* records() { return reinterpret_cast<Slot*>(this + 1); }
  uint32_t header_checksum_at(uint64_t offset) const {
    Leaf copy = *this;
    copy.header_checksum = 0;
    return pm::checksum32(&copy, sizeof copy, offset);
  }
  // Bytes of a leaf for so many units (form.h), and the other way round.
  template <typename Content>
  static uint64_t bytes_for(uint64_t units) {
    return kLeafHeaderBytes + units * Form<Content>::kUnitBytes;
  }
  template <typename Content>
  static uint32_t room_of(uint64_t bytes) {
    return static_cast<uint32_t>((bytes - kLeafHeaderBytes) / Form<Content>::kUnitBytes);
  }

  // ---- of byte strings
  std::string_view low_text() const {
    return {reinterpret_cast<const char*>(records() + count), low_bytes};
  }
  uint32_t low_checksum_at(uint64_t offset) const {
    return pm::checksum32(low_text().data(), low_bytes, offset);
  }
};
static_assert(sizeof(Leaf) == kLeafHeaderBytes && offsetof(Leaf, lines) == 64);

// Leaves, each for `most` units, that so many are divided among, so that none is nearly full.
inline constexpr uint64_t pieces_for(uint64_t units, uint64_t most) {
  const uint64_t each = most * 3 / 4;
  return (units + each - 1) / each;
}

inline constexpr uint32_t kLineRecords = pm::kLineBytes / sizeof(Slot);

}  // namespace perdure::index::sheaf
