// What a store looks like in its pool. All numbers little-endian, all offsets from the pool's
// begin.
//
//   Root            | seal | salt, partitions, block_bytes, of the boundaries: bytes and checksum (sealed) |
//                   | offset of the partition roots | offset of the boundaries, if there are any |
//                   | offset of the consumers, if there are any | of the index in PM, if it has one: of its entry |
//   runs            RunList | RunSlots, each with, for each partition, the position at which it ended
//   consumer        | next | checksum | name | for each partition the position of what it has read |
//   boundaries      for each: bytes (4), text. The keys of partition i are not less than boundary i - 1
//   PartitionRoot   128 bytes each, side by side: where its block table begins, and what a clean close found |
//                   | offset of the index snapshot, if the last close left one, or of the checkpoint |
//                   of an index in PM | of the first: offset of the list of runs, if one was told
//                   | offsets of snapshots that were written meanwhile, each behind its SnapshotFrame |
//   IndexSnapshot   header | blocks (SnapshotBlock) | blocks half compacted | removals by prefix | index entries |
//   TablePage       4 KiB: the offset of the next page, and 511 entries, each the offset of a block or 0
//   block           | BlockHeader, 64 bytes | records, one after the other, each a multiple of 8 bytes |
//   overflow        | BlockHeader, 64 bytes | key, if it is long | value |
//
//   record  | checksum (4) | key_bytes 17 bits, inline value 15 bits (4) | version 48 bits, flags 16 bits (8) |
//           | supersedes: version (8), incarnation (8), if kSupersedes | expiry (8), if kExpires |
//           | key, unless kKeyOutside | value, or an OverflowRef if kOverflow | up to 7 unused bytes |
//
// A partition is a log: records are appended to a block, each write to the newest one, and a block
// that is full is never changed again, until all that still counts in it has been moved. The log
// *is* the data. docs/store.md has the crash argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "index/structure.h"
#include "pm/layout.h"

namespace perdure::store {

inline constexpr uint64_t kRootMagic = 0x3365726f74537250;  // "PrStore3"
// "PrStore1", without consumers, and "PrStore2", without index snapshots.
inline constexpr uint64_t kRootMagicsBefore[] = {0x3165726f74537250, 0x3265726f74537250};
inline constexpr char kTypeName[] = "rstore";
inline constexpr char kPmTypeName[] =
    "rstore+pm";  // has its index in PM: what has none does not open it
inline constexpr char kOrderedTypeName[] =
    "rstore+ordered";  // has an ordered index unless told otherwise

struct Root {
  index::RootSeal seal;
  uint64_t
      salt;  // random: what another store left in a block does not pass for a record of this one
  uint32_t partitions;
  uint32_t block_bytes;
  uint64_t boundary_bytes;  // 0: partitions are chosen by the hash of the key
  uint64_t boundary_checksum;
  uint64_t reserved[2];
  // Offsets, not sealed, since they are linked.
  uint64_t partition_roots;
  uint64_t boundaries;
  uint64_t consumers;  // the first ConsumerBlock
  uint64_t pm_index;   // of type kPmTypeName only: a pm::DirectoryEntry
};
inline constexpr uint64_t kSealedBytes = offsetof(Root, partition_roots) - sizeof(index::RootSeal);
static_assert(sizeof(Root) == 96);

// Who reads the changes of a store, and how far it has come. Followed by a checked word
// (pm::seal_word) for each partition: the lowest version that it has not done with.
struct ConsumerBlock {
  static constexpr size_t kNameBytes = 48;
  uint64_t next;      // offset of the next one, or 0
  uint64_t checksum;  // of the name
  char name[kNameBytes];
};
static_assert(sizeof(ConsumerBlock) == 64);
inline constexpr size_t kConsumersMax = 16;

// The runs of which somebody was told (runs.h). Which opening has looked after them last stands in
// PartitionRoot.
struct RunList {
  uint64_t checksum;  // of what follows in it
  uint64_t slots;
  uint64_t reserved[6];
};
static_assert(sizeof(RunList) == 64);
// Followed by a checked word (pm::seal_word) for each partition: the position at which the run
// ended; 0: not known.
struct RunSlot {
  uint64_t number;      // random; 0: there is none
  uint64_t order;       // the higher, the later
  uint64_t checksum;    // of the two
  uint64_t generation;  // checked: of the pool, in which it was noted; 0: the run has ended
};
static_assert(sizeof(RunSlot) == 32);
inline constexpr uint64_t kRunsMax = 128;

// What a clean close found: a partition that has less since then is damaged. All zeros while the
// partition is open, and after a crash.
struct CloseRecord {
  uint64_t generation;  // of the pool
  uint64_t blocks;      // that hold records, and overflow blocks
  uint64_t records;     // that count
  uint64_t bytes;       // of all records in blocks
  uint64_t checksum;    // xxh3 of the words before
};

struct PartitionRoot {
  uint64_t table;  // offset of the first TablePage, or 0
  CloseRecord close;
  // Checked words (pm::seal_word), never 0: versions and incarnations below these have been given.
  // Noted before a block becomes unused that may be the only one to tell.
  uint64_t version_floor;
  uint64_t incarnation_floor;
  // Offset of an IndexSnapshot, or 0. Counts only together with `close`; never there while the
  // partition is written to.
  uint64_t snapshot;
  uint64_t checkpoint;  // with an index in PM: offset of an IndexSnapshot (checkpoint.cc), or 0
  uint64_t runs;        // of partition 0: offset of the RunList, or 0
  // Of partition 0, checked: the generation of the pool in which the list was looked after last; 0:
  // not known.
  uint64_t runs_seen;
  // Offsets of SnapshotFrames, or 0. One has the last whole snapshot that was written while the
  // partition was open, the other one is being written.
  uint64_t snapshots[2];
  uint64_t reserved[2];
};
static_assert(sizeof(PartitionRoot) == 128);
static_assert(offsetof(PartitionRoot, snapshot) == 64);  // what is before shares a line

// What a partition knows in DRAM, as a clean close found it: the next opening reads this in place
// of the records. Followed by SnapshotBlock[blocks], and words: `stale` slots; `prefix_words` (of
// each removal by prefix its version, its Location, how many blocks, and their incarnations); and
// `entries`, of the index:
//   by hash   its entries (HashIndex)
//   ordered   its leaves (ordered_words.cc)
//   in PM     as a checkpoint finds it (checkpoint.cc): how many records there are, how many changes, and of each of
//             these its place and entry (pm_index.h)
struct IndexSnapshot {
  uint64_t checksum;    // of all that follows, seeded as a block's of incarnation ~generation
  uint64_t bytes;       // of all
  uint64_t generation;  // as in CloseRecord
  uint64_t next_version;
  uint64_t next_incarnation;
  uint64_t entries;
  uint32_t blocks;
  uint32_t stale;
  uint64_t prefix_words;
};
static_assert(sizeof(IndexSnapshot) == 64);

// Before an IndexSnapshot that is written while the partition is written to (recent_snapshot.cc).
// The checksum of the snapshot is 0 until it is whole.
struct SnapshotFrame {
  uint64_t checksum;  // of `bytes`
  uint64_t bytes;     // of frame and snapshot
  uint64_t reserved[6];
};
static_assert(sizeof(SnapshotFrame) == 64);

// Of a block that holds records, or a long value.
struct SnapshotBlock {
  uint64_t incarnation;
  // Of records: when the last one of them expires. Of a long value: the Location of the record that
  // refers to it, or 0.
  uint64_t expiry_ms_or_owner;
  uint32_t slot;
  uint32_t bytes;  // of records
  uint32_t live;   // of a long value: 1 if a record that counts refers to it
  uint32_t expiring;
  uint32_t marks;
  uint32_t is_long_value;  // 1; in a snapshot that a close has left, 0
};
static_assert(sizeof(SnapshotBlock) == 40);

// What follows the header of a sound snapshot.
struct SnapshotParts {
  explicit SnapshotParts(const IndexSnapshot& header)
      : blocks(reinterpret_cast<const SnapshotBlock*>(&header + 1), header.blocks),
        stale(reinterpret_cast<const uint64_t*>(blocks.data() + blocks.size()), header.stale),
        prefixes(stale.data() + stale.size(), header.prefix_words),
        entries(prefixes.data() + prefixes.size(), header.entries) {}

  std::span<const SnapshotBlock> blocks;
  std::span<const uint64_t> stale;
  std::span<const uint64_t> prefixes;
  std::span<const uint64_t> entries;
};

struct TablePage {
  static constexpr uint32_t kEntries = 511;
  uint64_t next;  // offset of the next page, or 0
  uint64_t entries[kEntries];
};
static_assert(sizeof(TablePage) == 4096);

// Records that callers wrote, and those that compaction moved, stand in blocks of their own.
enum class BlockKind : uint32_t { kLog = 1, kMoved = 2, kOverflow = 3 };

// `incarnation` numbers the uses of a partition's blocks: no two uses have the same one, and of two
// blocks of records the later opened has the higher. 0: the block is unused. It is stored last when
// a block is opened, so that within the line it makes the rest count.
struct BlockHeader {
  uint64_t incarnation;
  // Checked (pm::seal_word): where the records end, of kLog with kSucceeded; 0 while they are
  // appended.
  uint64_t end;
  uint64_t first_version;  // no lower than any version that the partition gave before
  uint64_t bytes;          // of records: of the block; overflow: of key and value
  uint32_t partition;
  BlockKind kind;
  // Overflow: xxh3 of key and value. kLog: one more than the last version that the log had before.
  uint64_t content;
  // Of kLog: the incarnation of the kLog block before, if all that was written between stands in
  // these two.
  uint64_t previous;
  uint64_t
      checksum;  // of the members but incarnation and end, seeded with the incarnation and the salt
};
static_assert(sizeof(BlockHeader) == 64);

// Another kLog block came after this one, and was closed, too.
inline constexpr uint64_t kSucceeded = uint64_t{1} << 40;

inline constexpr uint64_t kBlockBytesMin = 1024;
inline constexpr uint64_t kBlockBytesMax = 64 << 10;
inline constexpr uint32_t kPartitionsMax = 1024;
inline constexpr uint64_t kKeyBytesMax = 64 << 10;
inline constexpr uint64_t kValueBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kVersionMax = (uint64_t{1} << 48) - 1;

inline constexpr uint64_t kVersionSalt = 0x7e45;
inline constexpr uint64_t kIncarnationSalt = 0x17ca;
inline constexpr uint64_t kPositionSalt = 0x9051;
inline constexpr uint64_t kRunSalt = 0x2c45;

// Record flags.
enum RecordFlags : uint16_t {
  kSupersedes = 1,  // an older record of the key is invalid, from this one on
  kExpires = 2,     //
  kOverflow = 4,    // the value stands in a block of its own
  kKeyOutside = 8,  // the key, too
  kRemoval = 16,    // there is no value: the key is gone. With its key
  kTombstone = 32,  // what compaction leaves of a record that still invalidates another one. No key
  kGroupGoesOn = 64,  // valid only together with the record that follows
  // With kTombstone; the last record of a group that is part of a batch over several partitions.
  // Its value is a list of BatchParts: that of the coordinator, and in the coordinator's record
  // those of all others, too.
  kBatch = 128,
  // With kRemoval: the key is a prefix. All older records of the partition whose keys begin with it
  // are invalid.
  kPrefix = 256,
  // A copy of a record that was invalid when compaction moved it, for a snapshot that still reads
  // it. Recovery takes it for nothing but the end of what it supersedes.
  kDead = 512
};

struct RecordHeader {
  uint32_t checksum;  // of all bytes of the record after it
  uint32_t sizes;     // key_bytes | inline value bytes << 17
  uint64_t word;      // version | flags << 48
};
static_assert(sizeof(RecordHeader) == 16);

// The record of `version` in the block of `incarnation` is invalid. Kept as long as that block is.
struct Superseded {
  uint64_t version;
  uint64_t incarnation;
};

struct OverflowRef {
  uint64_t slot;         // number of the block in the partition's table
  uint64_t incarnation;  // of the block
  uint64_t value_bytes;
};

// Where a batch ends in one of its partitions: with its record of this version.
struct BatchPart {
  uint64_t partition;
  uint64_t version;
  bool operator==(const BatchPart&) const = default;
};

inline constexpr uint64_t kNoExpiry = 0;

}  // namespace perdure::store
