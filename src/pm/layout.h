// The bytes of a pool file that are not a structure's. docs/pool-format.md draws them.
//
//   0              header, one page
//   4 KiB          root directory, 256 entries of 256 bytes; more are in blocks
//   68 KiB         lanes, 32 of 2 KiB: what an interrupted change needs to be finished or undone
//   132 KiB        segment descriptors, 256 bytes for each 64 KiB of the capacity that the pool was made with (a
//                  hole in the file where the pool has not grown to)
//   data_offset    segments of 64 KiB; behind that capacity also descriptors (pm/segment_map.h)
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure::pm {

inline constexpr char kMagic[8] = {'P', 'E', 'R', 'D', 'U', 'R', 'E', '\n'};
inline constexpr uint64_t kSegmentBytes = 64 << 10;
inline constexpr uint64_t kHeaderBytes = 4096;

// Pools are made with the first of these, and get the other with the first word of the header that
// only that has.
inline constexpr uint32_t kFirstFormat = 2;
inline constexpr uint32_t kExtendedFormat = 3;

// The immutable part is sealed by a checksum. What changes while the pool lives are single words,
// each written with one atomic store and each with its own check bits, so that no crash tears them
// and no flipped bit passes; and the version, in the word that it shares with `header_bytes`.
struct alignas(256) PoolHeader {
  char magic[8];
  uint32_t format_version;  // kFirstFormat or kExtendedFormat
  uint32_t header_bytes;
  uint64_t layout_hash;  // of the sizes that the format depends on
  uint8_t uuid[16];
  uint64_t capacity_bytes;  // that the pool was made with
  uint64_t growth_bytes;
  uint64_t directory_offset;
  uint64_t lanes_offset;
  uint64_t descriptors_offset;
  uint64_t data_offset;
  uint64_t created_unix_s;
  uint64_t reserved[19];
  uint64_t checksum;                   // xxh3 of all bytes before, with kFirstFormat as the version
  alignas(64) uint64_t segments_word;  // checked: segments in use, from data_offset
  alignas(64) uint64_t generation_word;  // checked: generation * 4 + CloseMark
  // 0, or checked: offset of the log of transactions. Builds without transactions refuse a pool
  // that has one.
  alignas(64) uint64_t transactions_word;
  // 0, or checked: the capacity that the pool was raised to, in segments. With kExtendedFormat.
  alignas(64) uint64_t capacity_word;
  // 0, or checked: offset of the first DirectoryBlock. With kExtendedFormat.
  uint64_t directory_word;
};
static_assert(offsetof(PoolHeader, checksum) == 248 && offsetof(PoolHeader, segments_word) == 256 &&
              offsetof(PoolHeader, generation_word) == 320 &&
              offsetof(PoolHeader, transactions_word) == 384 &&
              offsetof(PoolHeader, capacity_word) == 448 &&
              offsetof(PoolHeader, directory_word) == 456 && sizeof(PoolHeader) == 512);

// How the last close of the pool went.
enum class CloseMark : uint8_t {
  kOpen = 0,    // it is open, or a crash ended it
  kClean = 1,   // clean
  kSealed = 3,  // clean, and each segment in use carries a seal of this generation
};

// A word of 48 bits with 16 check bits. `salt` tells words of different meaning apart.
uint64_t seal_word(uint64_t value, uint64_t salt);
// Returns false if the check bits do not fit.
bool unseal_word(uint64_t word, uint64_t salt, uint64_t& value);

inline constexpr uint64_t kSegmentsSalt = 0x5e65;
inline constexpr uint64_t kGenerationSalt = 0x6e4e;
inline constexpr uint64_t kDescriptorSalt = 0xde5c;
inline constexpr uint64_t kLaneSalt = 0x1a7e;
inline constexpr uint64_t kTransactionsSalt = 0x7a5c;
inline constexpr uint64_t kCapacitySalt = 0xca9a;
inline constexpr uint64_t kDirectorySalt = 0xd12ec;

inline constexpr uint32_t kDirectoryEntries = 256;  // in the fixed part of the pool
inline constexpr uint32_t kDirectoryBlockEntries = 255;
inline constexpr uint32_t kDirectoryBlocks = 256;
inline constexpr uint32_t kStructuresMax =
    kDirectoryEntries + kDirectoryBlocks * kDirectoryBlockEntries;
inline constexpr size_t kNameBytesMax = 95;

// What `in_use` of a directory entry says. A build that knows no dropped entries takes one for
// damaged.
inline constexpr uint64_t kEntryFree = 0;
inline constexpr uint64_t kEntryInUse = 1;
inline constexpr uint64_t kEntryDropped = 2;  // the structure is gone, its blocks are being freed

// A structure by name. Written whole by a lane's redo record, so it is there wholly or not at all.
// A free entry carries a checksum, too: a page of zeros is damage, not a directory without names.
struct DirectoryEntry {
  char name[96];  // NUL-terminated
  char type[32];  // NUL-terminated
  uint8_t key_kind;
  uint8_t value_kind;
  uint8_t reserved8[6];
  uint64_t root;  // offset of the structure's root block
  uint64_t drop;  // offset of the first page of the list of blocks that a drop frees, or 0
  uint64_t reserved[11];
  uint64_t checksum;  // xxh3 of all bytes before, seeded with the entry's number
  uint64_t in_use;    // kEntryFree and so on
};
static_assert(sizeof(DirectoryEntry) == 256 && offsetof(DirectoryEntry, root) == 136 &&
              offsetof(DirectoryEntry, drop) == 144);

// More of the directory: the entries behind those of the fixed part, or of the block before. A
// segment of the heap, made when all entries are in use, and never given back.
struct DirectoryBlock {
  uint64_t magic;
  uint64_t number;    // 0, 1, ...
  uint64_t checksum;  // xxh3 of the two words before
  uint64_t next;      // 0, or checked: offset of the next block
  uint64_t reserved[28];
  DirectoryEntry entries[kDirectoryBlockEntries];
};
static_assert(sizeof(DirectoryBlock) == kSegmentBytes && offsetof(DirectoryBlock, entries) == 256);
inline constexpr uint64_t kDirectoryBlockMagic = 0x31726964;  // "dir1"

// A page of the list of a dropped structure's blocks. Records follow: a word that is a segment's
// number << 8, plus how many words of its bitmap follow it (slabs), or 0 (a run that begins there).
struct DropPage {
  uint64_t checksum;  // xxh3 of what follows, records included, seeded with the page's offset
  uint64_t next;      // offset of the next page, or 0
  uint64_t bytes;     // that the page was allocated from
  uint64_t words;     // of records
};
static_assert(sizeof(DropPage) == 32);

enum class SegmentKind : uint8_t { kFree = 0, kSlab = 1, kRun = 2 };

// What a segment holds. `word` is checked and packs kind (bits 0-7), size class (8-15) and the
// length in segments (16-47): of a run in its first segment, else 1. All segments of a run but the
// first have the word of a free one. No word is 0: a page of zeros is damage, not sixteen free
// segments.
//
// `seal` is a checksum over the segment's 64 KiB and its descriptor, made by a clean close, and
// counts as long as the header's generation word says so.
struct alignas(256) SegmentDescriptor {
  uint64_t word;
  uint64_t pending_run_segments;  // length of a run that an intent is about
  uint64_t reserved[6];
  uint64_t bitmap[16];  // slabs: one bit for each block, set while allocated
  uint64_t seal;
  uint64_t reserved2[7];
};
static_assert(sizeof(SegmentDescriptor) == 256 && offsetof(SegmentDescriptor, bitmap) == 64);

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kIntentsPerLane = 60;
inline constexpr uint32_t kRedoBytes = 1024;

// "This block is allocated exactly if the word at `link` leads to it." Link 0: no intent.
struct Intent {
  uint64_t block;  // offset; the low bits hold IntentFlags
  uint64_t link;   // offset of the word; in the highest six bits the number, of a bit or to exceed
};

inline constexpr uint32_t kLinkNumberShift = 58;
inline constexpr uint64_t kTaggedOffsetMask = (uint64_t{1} << 48) - 64;
inline constexpr uint64_t kLinkOffsetMask = (uint64_t{1} << kLinkNumberShift) - 1;

enum IntentFlags : uint64_t {
  // How the word leads to the block, in three bits; 0: 8 bytes, the block's offset.
  kLinkIsUnit = 1,  // 4 bytes, in units of 256 bytes
  kLinkIsBit = 2,   // 8 bytes: exactly if one of its bits is set
  kLinkAbove = 3,   // 8 bytes: exactly if it exceeds a number
  kLinkUpTo = 4,    // exactly if it does not
  kAsPrevious = 5,  // exactly if it leads to the block of the intent before, in the same line
  kLinkTagged = 6,  // 8 bytes, of which bits 6 to 47 are the block's offset
  kLinkMask = 7,

  kBlockIsRun = 8,   // the block is a run of segments
  kOnlyFrees = 16,   // as long as the word leads to the block the intent decides nothing
  kIntentMask = 63,  // blocks are 64-byte aligned
};

struct alignas(256) Lane {
  uint64_t armed;  // 0, or: redo bytes (low half) and a checksum over them (high half)
  uint64_t mark;   // checked: the lane's number + 1; a page of zeros is damage, not idle lanes
  uint64_t reserved[6];
  Intent intents[kIntentsPerLane];
  uint8_t redo[kRedoBytes];
};
static_assert(sizeof(Lane) == 2048 && offsetof(Lane, redo) == 1024);

}  // namespace perdure::pm
