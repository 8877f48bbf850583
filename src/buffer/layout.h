// What a database looks like in its pool. All numbers little-endian, all offsets from the pool's
// begin.
//
//   Root      | seal | parameters (sealed) | head | batch | blocks |
//   log       a ring of log_bytes: entries, see log.h; or, if the ring is in a file (log_file.h), none;
//             then a line: | checked: the log's end, an LSN | - |
//   table     a word for each PM frame: checked, page id + 1, or 0: empty; then as many hints, of the
//             same form: pages that were in DRAM, until one that is 0
//   frames    the PM frames, page_bytes each
//   staging   kStagedMax pages, on their way to the page file
//   pages     the page file, if it lies in the pool
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/structure.h"

namespace perdure::buffer {

inline constexpr uint64_t kRootMagic = 0x3162446572647250;  // "PrdreDb1"
// With the log in a file: who does not know of that is to find no database.
inline constexpr uint64_t kRootMagicLogFile = 0x6662446572647250;  // "PrdreDbf"
inline constexpr uint32_t kStagedMax = 32;

struct Root {
  index::RootSeal seal;
  // Sealed: fixed at creation.
  uint64_t salt;  // random: entries of other logs do not pass for entries of this one
  uint64_t log_bytes;
  uint64_t store_pages;  // room in the pool for pages; 0: they are in a file
  uint32_t page_bytes;
  uint32_t parts;
  uint64_t extras;       // kHasHints, kHasLogEnd
  uint64_t log_in_file;  // 1: the log's ring is in a file
  // Changed by one 8-byte store each, but for frames and the blocks, which a redo record replaces
  // together.
  uint64_t head;   // LSN: older log records are not needed
  uint64_t batch;  // checked: staged pages that may be torn in the page file
  uint64_t log;
  uint64_t staging;
  uint64_t pages;
  uint64_t table;
  uint64_t frames;
  uint64_t frame_count;  // checked
};
static_assert(sizeof(Root) == 128 && offsetof(Root, head) == 64);
inline constexpr uint64_t kSealedBytes = offsetof(Root, head) - sizeof(index::RootSeal);

// Extras: behind the table are as many words again, hints (hints.cc); behind a ring in the pool is
// the line with the log's end.
inline constexpr uint64_t kHasHints = 1;
inline constexpr uint64_t kHasLogEnd = 2;

inline constexpr uint64_t kHeadSalt = 0x4ead;
inline constexpr uint64_t kBatchSalt = 0xba7c;
inline constexpr uint64_t kCountSalt = 0xc0047;
inline constexpr uint64_t kHintSalt = 0x41275;
inline constexpr uint64_t kLogEndSalt = 0x10f3;
inline constexpr uint64_t kTableSalt = 0x7ab1e0;  // plus the frame's number, shifted

}  // namespace perdure::buffer
