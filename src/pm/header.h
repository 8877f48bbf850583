// The fixed part of a pool file, judged before, or without, an open pool.
#pragma once

#include <cstdint>
#include <string>

#include "perdure/error.h"
#include "pm/layout.h"
#include "pm/mapping.h"

namespace perdure::pm {

inline constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Of what the byte layout depends on besides the format version.
uint64_t layout_hash();
uint64_t generation_word(uint64_t generation, CloseMark mark);
// The version that it has now. It may be about to change.
uint32_t format_version_of(const PoolHeader& header);
uint64_t header_checksum(const PoolHeader& header);
// Whether there is something that kExtendedFormat is for.
bool is_extended(const PoolHeader& header);
// Where everything begins, in a pool of the header's capacity.
void place_tables(PoolHeader& header);
Error corrupt_header(const std::string& path, const std::string& what);

// The header page as it is on the medium; `lenient`: as it must have been, if it is damaged. Throws
// kEmpty, kForeign, kTruncated, kCorrupt, kVersion.
PoolHeader read_header(const Mapping& mapping, bool lenient);
// What a pool of this header may grow to. Throws kCorrupt.
uint64_t capacity_of(const PoolHeader& header, const Mapping& mapping, bool lenient);

// ---- entries and blocks of the root directory (root_directory.cc)

uint64_t entry_checksum(const DirectoryEntry& entry, uint32_t number);
uint64_t block_checksum(const DirectoryBlock& block);
// Whether it is one that is whole, free or not.
bool is_sound_entry(const DirectoryEntry& entry, uint32_t number);
// "u64" or "bytes".
std::string kind_name(uint8_t kind);

}  // namespace perdure::pm
