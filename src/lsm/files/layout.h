// What files look like in their pool. All numbers little-endian, all offsets from the pool's begin.
//
//   Root         | seal | salt (sealed) | offset of the first TablePage |
//   TablePage    4 KiB: the offset of the next page, a mark, and 510 entries: each the offset of an Inode, or 0
//   Inode        1 KiB | append offset, state, time, tail: a line | NameRecord | 20 ExtentPages | 32 extents |
//   ExtentPage   4 KiB: a mark, and 255 more extents
//   extent       | checked length | offset of its bytes |
//
// The number of a file is that of its entry, counted from 1; 0 is the root directory, which has no
// inode. A directory has no content: who is in it is what the name records say, each with the
// number of its directory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/structure.h"

namespace perdure::files {

inline constexpr uint64_t kRootMagic = 0x3173656c69467250;  // "PrFiles1"
inline constexpr size_t kNameBytesMax = 255;

struct Root {
  index::RootSeal seal;
  uint64_t salt;  // random: what other files left in a block does not pass for metadata of these
  uint64_t reserved[4];
  uint64_t table;  // offset of the first TablePage, or 0; not sealed, since it is linked
};
static_assert(sizeof(Root) == 64);
inline constexpr uint64_t kSealedBytes = offsetof(Root, table) - sizeof(index::RootSeal);

struct TablePage {
  static constexpr uint32_t kEntries = 510;
  uint64_t next;
  uint64_t mark;  // checked: the page's number, from 1
  uint64_t entries[kEntries];
};
static_assert(sizeof(TablePage) == 4096);

enum class State : uint64_t {
  kLive = 1,
  kDoomed = 2
};  // doomed: removed, its space not yet returned
enum class FileKind : uint16_t { kFile = 1, kDirectory = 2 };

// Replaced as a whole, by a redo record.
struct NameRecord {
  uint64_t parent;  // number of its directory
  FileKind kind;
  uint16_t name_bytes;
  uint32_t number;
  char name[256];     // zeros behind it
  uint64_t checksum;  // xxh3 of all before, seeded with the salt
};
static_assert(sizeof(NameRecord) == 280);

// The check is stored before the offset, in its line: an offset that is durable has its check.
struct ExtentSlot {
  uint64_t check;   // checked: bytes / 64; its salt covers file, place and offset
  uint64_t offset;  // 0: none
};

struct ExtentPage {
  static constexpr uint32_t kSlots = 255;
  uint64_t mark;  // checked: number of the file
  uint64_t reserved;
  ExtentSlot extents[kSlots];
};
static_assert(sizeof(ExtentPage) == 4096);

struct Inode {
  static constexpr uint32_t kPages = 20;
  static constexpr uint32_t kSlots = 32;
  uint64_t size_word;      // checked: the append offset
  uint64_t state_word;     // checked: State
  uint64_t modified_word;  // checked: seconds since 1970
  // The tail: bytes behind the append offset that count if all of them are there. In the line of
  // size_word, so that what is stored there becomes durable in the order of the stores.
  uint64_t tail_sum;  // xxh3 of the bytes from the append offset to the end of the tail
  // checked: where the tail ends; at the append offset or before it, or 0: none
  uint64_t tail_word;
  uint64_t reserved[3];
  NameRecord name;
  uint64_t reserved2;
  uint64_t pages[kPages];
  ExtentSlot extents[kSlots];
};
static_assert(sizeof(Inode) == 1024 && offsetof(Inode, tail_word) < 64 &&
              offsetof(Inode, pages) == 352 && offsetof(Inode, extents) == 512);

inline constexpr uint32_t kExtentsMax = Inode::kSlots + Inode::kPages * ExtentPage::kSlots;
inline constexpr uint64_t kExtentBytesMin = 4096;
// Of a tail. More bytes take longer to sum up than a fence takes.
inline constexpr uint64_t kTailBytesMax = 1024;

inline constexpr uint64_t kTableSalt = 0x7ab1e;
inline constexpr uint64_t kSizeSalt = 0x517e;
inline constexpr uint64_t kStateSalt = 0x57a7e;
inline constexpr uint64_t kTimeSalt = 0x71e3;
inline constexpr uint64_t kPageSalt = 0xe97e;
inline constexpr uint64_t kTailSalt = 0x7a11;

}  // namespace perdure::files
