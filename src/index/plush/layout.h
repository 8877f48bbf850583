// The bytes of Plush in PM, and the words they are made of.
//
//   root            512 bytes: parameters, and where everything else is
//   recovery log    partitions x chunks, one run of segments (pm/torn_bit_log.h)
//   level 1         2^directory_bits directory entries, one block
//   level k >= 2    tables[k] -> a table of 4-byte pointers, one for each entry of level k-1, each to
//                   a block of `fanout` directory entries that is allocated on first use. In a
//                   partition's second level entries may be short: their first 1, 2 or 4 lines
//
//   directory entry, 512 bytes, 8 lines of 64:
//     +-------------------+-------------------+-------------------+------------------+-------+
//     | filter, bucket 0  | filter, bucket 1  | filter, bucket 2  | bucket pointers  | state |
//     | 16 bytes          | 16                | 16                | 3 x 4            | 4     |
//     +-------------------+-------------------+-------------------+------------------+-------+
//     A line describes three buckets and can be changed by one flush: filters and pointers are
//     stored before the state word, and stores to one line persist in order.
//   bucket, 256 bytes: 16 tags, then 16 values
//   tag:   hash << 1 | tombstone. The hash's top bit is the top bit of the entry's index.
//   value: the value itself, or a pointer into the payload log
//
// A key of 8 bytes is hashed by a bijection, so the tag holds the whole key.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace perdure::index::plush {

inline constexpr uint32_t kSlots = 16;            // records of a bucket
inline constexpr uint32_t kRowFull = kSlots - 1;  // a row is flushed with what would be its 16th
inline constexpr uint32_t kLineBuckets = 3;       // buckets of a directory line
inline constexpr uint32_t kLines = 8;             // lines of a directory entry
inline constexpr uint32_t kLineRecords = kSlots * kLineBuckets;
inline constexpr uint32_t kEntryBuckets = kLineBuckets * kLines;
inline constexpr uint32_t kEntryRecords = kLineRecords * kLines;
inline constexpr uint32_t kUnitBytes = 256;  // what 4-byte pointers count
inline constexpr uint32_t kLevelsMax = 20;   // in PM; level 0 is in DRAM
inline constexpr uint32_t kFanoutMax = 16;

struct Record {
  uint64_t tag;
  uint64_t value;
};

struct alignas(256) Bucket {
  uint64_t tags[kSlots];
  uint64_t values[kSlots];
};
static_assert(sizeof(Bucket) == 256);

// The state word of a directory line.
//   bits 0-5    records in the line's buckets, filled in order
//   bits 6-13   generation: a line counts only if it equals that of the entry's line 0, so one store
//               to line 0 empties the whole entry
//   bits 14-31  a partition's first level: how often the DRAM entry was flushed (the epoch of its log
//               records)
//   bits 14-29  line 0 of deeper levels: how many records were removed in place, for orientation
//   bits 30-31  line 0 of the first entry of a block of a partition's second level: log2 of the block's
//               entries in the bytes of one that has all lines; the same in all lines 0 of such blocks
//               is harmless. 0 in deeper levels
struct LineState {
  static constexpr uint32_t kGenerationMask = 0xff;
  static constexpr uint32_t kEpochMask = 0x3ffff;
  static constexpr uint32_t kHintMask = 0xffff;
  static constexpr uint32_t kShapeShift = 16;  // in an epoch

  uint32_t word;

  uint32_t count() const { return word & 63; }
  uint32_t generation() const { return word >> 6 & kGenerationMask; }
  uint32_t epoch() const { return word >> 14; }
  // What deeper levels have there.
  uint32_t hint() const { return epoch() & kHintMask; }
  uint32_t lines() const { return kLines >> (epoch() >> kShapeShift); }
  LineState with_hint(uint32_t hint) const {
    const uint32_t fits = hint < kHintMask ? hint : kHintMask;
    return make(count(), generation(), (epoch() & ~kHintMask) | fits);
  }
  LineState with_lines(uint32_t lines) const {
    const auto shape = static_cast<uint32_t>(std::countr_zero(kLines / lines));
    return make(count(), generation(), hint() | shape << kShapeShift);
  }
  // Of an entry of a deeper level that counts no records.
  LineState emptied() const { return make(0, generation() + 1, epoch() & ~kHintMask); }
  static LineState make(uint32_t count, uint32_t generation, uint32_t epoch) {
    return {count | (generation & kGenerationMask) << 6 | (epoch & kEpochMask) << 14};
  }
};

struct alignas(64) DirectoryLine {
  uint64_t filter[kLineBuckets][2];
  uint32_t bucket[kLineBuckets];  // units from the pool's base; kept when the entry is emptied
  uint32_t state;                 // LineState
};
static_assert(sizeof(DirectoryLine) == 64 && offsetof(DirectoryLine, state) == 60);

// Short ones lie side by side, so each begins a line, not a unit.
struct Entry {
  DirectoryLine lines[kLines];
};
static_assert(sizeof(Entry) == 512 && alignof(Entry) == sizeof(DirectoryLine));

// Parameters that tables of the first releases do not have: all zero, the checksum too.
struct Shape {
  uint64_t ordered;  // 1: indexed by the place of the key between these two, else by its hash
  uint64_t key_min;
  uint64_t key_max;
  uint64_t preallocated_levels;  // whose buckets were allocated at creation and stay
  uint64_t directory_bits_max;   // log2 of the rows that there may be
  uint64_t checksum;             // xxh3 of all bytes before
};

// A partition that has grown. Both words change at once, by a redo record.
struct alignas(16) PartitionHead {
  uint64_t grown;  // how often: its first level is this one and 1
  uint64_t log;    // offset of its recovery log; 0: it is still in the first one
};

struct alignas(256) Root {
  uint64_t magic;
  uint32_t directory_bits;
  uint32_t fanout_bits;
  uint32_t partition_bits;
  uint32_t log_chunks;
  uint64_t log_chunk_bytes;
  uint64_t checksum;        // xxh3 of all bytes before
  uint64_t log;             // offset of the recovery logs of partitions that have not grown
  uint64_t level1;          // offset of level 1's directory
  uint64_t payload_heads;   // offset of one PayloadHead for each partition; 0: none
  uint64_t payload_places;  // offset of the offsets of PlacePages for all of the capacity; 0: none
  uint64_t heads;           // offset of one PartitionHead for each partition
  Shape shape;
  uint64_t blocks_checksum;         // xxh3 of the offsets above, from `log` on
  uint64_t tables[kLevelsMax + 1];  // by level; offsets
  // How many offsets stand at `payload_places`, checked; 0: as many as for the capacity that the
  // pool was made with.
  uint64_t places_word;
  uint64_t reserved[24];
};
static_assert(sizeof(Root) == 512 && offsetof(Root, checksum) == 32);
inline constexpr uint64_t kRootMagic = 0x35687375'6c50;  // "Plush5"
// Of tables with entries of 12 buckets, and logs without gaps.
inline constexpr uint64_t kRootMagic1 = 0x31687375'6c50;
// Of tables whose payload chunks have epochs that no other chunk has.
inline constexpr uint64_t kRootMagic2 = 0x32687375'6c50;
// Of tables that cannot grow.
inline constexpr uint64_t kRootMagic3 = 0x33687375'6c50;
// Of tables whose entries all have eight lines.
inline constexpr uint64_t kRootMagic4 = 0x34687375'6c50;

// The payload log: byte strings. Each partition has a list of chunks, newest first. For each
// segment of the pool a sealed word tells the last epoch that the table gave to a chunk there.
struct alignas(64) PayloadHead {
  uint64_t chunk;  // offset of the newest chunk
  uint64_t reserved[7];
};

// Made when the first of its segments has a chunk.
struct PlacePage {
  static constexpr uint64_t kSegments = 512;
  uint64_t words[kSegments];
};

struct alignas(64) PayloadChunk {
  uint64_t next;   // offset of the next older chunk
  uint64_t epoch;  // of this use of the place; pointers carry it
  uint64_t bytes;  // with this header
  uint64_t end;    // sealed: where the last entry ends, and whether more may follow; 0: not noted
  uint64_t reserved[4];
};
static_assert(sizeof(PayloadChunk) == 64);

// Followed by the key, the value, and zeros to a multiple of 8.
struct PayloadEntry {
  uint32_t key_bytes;
  uint32_t value_bytes;
  uint64_t checksum;  // over sizes, key, value and the pointer: a torn entry is recognised
};
static_assert(sizeof(PayloadEntry) == 16);

// Kinds of recovery-log records.
enum class LogKind : uint64_t {
  kUpsert = 1,
  kInsert = 2,  // as kUpsert, but if it is the log's last record only if the key is absent
  kUpdate = 3,  // likewise only if it is present
  kTombstone = 4,
  kCancel = 5,  // the record before did nothing: its condition did not hold
};

// The third payload word of a log record: kind, and the epoch of the DRAM entry.
inline uint64_t log_word(LogKind kind, uint32_t epoch) {
  return static_cast<uint64_t>(kind) | uint64_t{epoch} << 3;
}

}  // namespace perdure::index::plush
