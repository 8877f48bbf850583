#include "pm/header.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "perdure/version.h"
#include "pm/backup_format.h"
#include "pm/checksum.h"
#include "pm/memory.h"
#include "pm/segment_map.h"

namespace perdure::pm {

uint64_t seal_word(uint64_t value, uint64_t salt) {
  return value | (checksum64(&value, sizeof value, salt) & 0xffff) << 48;
}

bool unseal_word(uint64_t word, uint64_t salt, uint64_t& value) {
  value = word & 0xffffffffffff;
  return seal_word(value, salt) == word;
}

uint64_t layout_hash() {
  const uint64_t sizes[] = {sizeof(PoolHeader),
                            sizeof(DirectoryEntry),
                            sizeof(SegmentDescriptor),
                            sizeof(Lane),
                            kDirectoryEntries,
                            kLanes,
                            kIntentsPerLane,
                            kSegmentBytes,
                            std::endian::native == std::endian::little ? 1U : 2U};
  return checksum64(sizes, sizeof sizes);
}

uint64_t generation_word(uint64_t generation, CloseMark mark) {
  return seal_word(generation << 2 | static_cast<uint64_t>(mark), kGenerationSalt);
}

uint32_t format_version_of(const PoolHeader& header) {
  constexpr uint64_t kWord = offsetof(PoolHeader, format_version) / sizeof(uint64_t);
  return static_cast<uint32_t>(load_acquire(reinterpret_cast<const uint64_t*>(&header)[kWord]));
}

uint64_t header_checksum(const PoolHeader& header) {
  std::array<uint64_t, offsetof(PoolHeader, checksum) / sizeof(uint64_t)> words;
  const auto* from = reinterpret_cast<const uint64_t*>(&header);
  for (size_t i = 0; i < words.size(); ++i) words[i] = load_relaxed(from[i]);
  uint64_t& version = words[offsetof(PoolHeader, format_version) / sizeof(uint64_t)];
  version = (version & ~uint64_t{0xffffffff}) | kFirstFormat;
  return checksum64(words.data(), sizeof words);
}

Error corrupt_header(const std::string& path, const std::string& what) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: {}; the file was damaged: restore it from a backup", path, what)};
}

bool is_extended(const PoolHeader& header) {
  return header.capacity_word != 0 || header.directory_word != 0;
}

void place_tables(PoolHeader& header) {
  header.directory_offset = kHeaderBytes;
  header.lanes_offset = header.directory_offset + kDirectoryEntries * sizeof(DirectoryEntry);
  header.descriptors_offset = header.lanes_offset + kLanes * sizeof(Lane);
  // An upper bound: the descriptors themselves take from the capacity.
  const uint64_t segments = header.capacity_bytes / kSegmentBytes;
  header.data_offset =
      round_up(header.descriptors_offset + segments * sizeof(SegmentDescriptor), kSegmentBytes);
}

namespace {

bool has_magic(const PoolHeader& header) {
  return std::memcmp(header.magic, kMagic, sizeof kMagic) == 0;
}

bool is_whole(const PoolHeader& header) { return header_checksum(header) == header.checksum; }

bool has_possible_version(const PoolHeader& header) {
  constexpr uint32_t kVersionMax = 64;  // what a release may have
  return header.format_version >= kFirstFormat && header.format_version <= kVersionMax;
}

// With one byte changed, of the fields or of the checksum, so that it holds.
bool mend_one_byte(PoolHeader& header) {
  const uint64_t difference = header_checksum(header) ^ header.checksum;
  for (unsigned byte = 0; byte < sizeof difference; ++byte) {
    if ((difference & ~(uint64_t{0xff} << 8 * byte)) != 0) continue;
    header.checksum ^= difference;
    return true;
  }
  auto* bytes = reinterpret_cast<uint8_t*>(&header);
  for (size_t at = 0; at < offsetof(PoolHeader, checksum); ++at) {
    const uint8_t found = bytes[at];
    for (unsigned value = 0; value < 256; ++value) {
      bytes[at] = static_cast<uint8_t>(value);
      if (is_whole(header)) return true;
    }
    bytes[at] = found;
  }
  return false;
}

// With another capacity, and the places that follow from it, so that the checksum holds.
bool mend_capacity(PoolHeader& header) {
  constexpr uint64_t kFineBytes = uint64_t{64} << 30;
  constexpr uint64_t kCoarseStep = uint64_t{1} << 20;
  PoolHeader other = header;
  for (uint64_t bytes = Pool::kMinCapacityBytes; bytes <= Pool::kMaxCapacityBytes;
       bytes += bytes < kFineBytes ? kSegmentBytes : kCoarseStep) {
    other.capacity_bytes = bytes;
    place_tables(other);
    if (!is_whole(other)) continue;
    header = other;
    return true;
  }
  return false;
}

// A header whose checksum does not hold as it must have been: with what is the same in all pools,
// and with that byte, or capacity, which makes the checksum hold. As it is if nothing does. Some
// tenths of a second at most.
PoolHeader mended(const PoolHeader& damaged) {
  PoolHeader header = damaged;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  if (!has_possible_version(header)) {
    header.format_version = is_extended(header) ? kExtendedFormat : kFirstFormat;
  }
  header.header_bytes = kHeaderBytes;
  header.layout_hash = layout_hash();
  std::ranges::fill(header.reserved, 0);
  return is_whole(header) || mend_one_byte(header) || mend_capacity(header) ? header : damaged;
}

}  // namespace

PoolHeader read_header(const Mapping& mapping, bool lenient) {
  const std::string& path = mapping.path();
  alignas(PoolHeader) uint8_t page[kHeaderBytes] = {};
  const uint64_t bytes = mapping.read_at(0, page, sizeof page);
  if (bytes == 0) {
    throw Error(ErrorCode::kEmpty, fmt::format("{}: is empty, not a pool; make one with "
                                               "`perdure pool create`",
                                               path));
  }
  PoolHeader header;
  std::memcpy(&header, page, sizeof header);
  if (lenient && bytes >= kHeaderBytes &&
      !(is_whole(header) && has_magic(header) && has_possible_version(header))) {
    header = mended(header);
  }
  if (bytes < sizeof header.magic || !has_magic(header)) {
    PoolHeader named = header;
    std::memcpy(named.magic, kMagic, sizeof kMagic);
    if (bytes >= kHeaderBytes && is_whole(named)) {
      // It is written last when a pool is made.
      if (std::ranges::all_of(header.magic, [](auto byte) { return byte == 0; })) {
        throw Error(
            ErrorCode::kEmpty,
            fmt::format("{}: the making of this pool was interrupted; there was nothing in it "
                        "yet: remove the file, and make the pool again",
                        path));
      }
      throw corrupt_header(path, "the magic of the header is not that of a pool, all else is");
    } else {
      if (bytes >= sizeof kBackupMagic &&
          std::memcmp(header.magic, kBackupMagic, sizeof kBackupMagic) == 0) {
        throw Error(
            ErrorCode::kForeign,
            fmt::format("{}: is a backup of a pool; open it read-only, or make a pool of it "
                        "with `perdure pool restore`",
                        path));
      }
      throw Error(ErrorCode::kForeign, fmt::format("{}: is not a Perdure pool", path));
    }
  }
  if (bytes < kHeaderBytes) {
    throw Error(ErrorCode::kTruncated,
                fmt::format("{}: has {} bytes, less than the header of a pool", path, bytes));
  }
  if (header.format_version > kFormatVersion) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: has format version {}, this build knows up to {}; use a newer "
                            "release",
                            path, header.format_version, kFormatVersion));
  }
  if (header_checksum(header) != header.checksum && !lenient) {
    throw corrupt_header(path, "the checksum of the header does not hold");
  }
  if (header.format_version < kFirstFormat) {
    throw Error(
        ErrorCode::kVersion,
        fmt::format("{}: has format version {}, this build knows only {} and later ones; write its "
                    "records out with `perdure dump` of the release that made it, and load them "
                    "into a new pool",
                    path, header.format_version, kFirstFormat));
  }
  if (header.layout_hash != layout_hash() || header.header_bytes != kHeaderBytes) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: was written with another layout of format version {}", path,
                            header.format_version));
  }
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  const bool unused_is_zero =
      std::all_of(page + offsetof(PoolHeader, segments_word) + sizeof(uint64_t),
                  page + offsetof(PoolHeader, generation_word), is_zero) &&
      std::all_of(page + offsetof(PoolHeader, generation_word) + sizeof(uint64_t),
                  page + offsetof(PoolHeader, transactions_word), is_zero) &&
      std::all_of(page + offsetof(PoolHeader, transactions_word) + sizeof(uint64_t),
                  page + offsetof(PoolHeader, capacity_word), is_zero) &&
      std::all_of(page + offsetof(PoolHeader, directory_word) + sizeof(uint64_t),
                  page + kHeaderBytes, is_zero);
  if (!lenient && !unused_is_zero) {
    throw corrupt_header(path, "unused bytes of the header are not zero");
  }
  uint64_t directory = 0;
  if (!lenient && header.directory_word != 0 &&
      !unseal_word(header.directory_word, kDirectorySalt, directory)) {
    throw corrupt_header(path, "the place of the root directory's blocks is damaged");
  }
  if (!lenient && header.format_version == kExtendedFormat && !is_extended(header)) {
    throw corrupt_header(path, "the header has nothing that its format version is for");
  }
  PoolHeader placed = header;
  place_tables(placed);
  if (header.capacity_bytes < Pool::kMinCapacityBytes ||
      header.capacity_bytes > Pool::kMaxCapacityBytes ||
      header.capacity_bytes % kSegmentBytes != 0 || header.growth_bytes % kSegmentBytes != 0 ||
      header.directory_offset != placed.directory_offset ||
      header.lanes_offset != placed.lanes_offset ||
      header.descriptors_offset != placed.descriptors_offset ||
      header.data_offset != placed.data_offset || header.data_offset > header.capacity_bytes) {
    throw corrupt_header(path, "the header's sizes contradict each other");
  }
  return header;
}

uint64_t capacity_of(const PoolHeader& header, const Mapping& mapping, bool lenient) {
  if (header.capacity_word == 0) return header.capacity_bytes;
  uint64_t segments = 0;
  const SegmentMap map(header);
  const bool sound = unseal_word(header.capacity_word, kCapacitySalt, segments) &&
                     segments > header.capacity_bytes / kSegmentBytes &&
                     segments <= Pool::kMaxCapacityBytes / kSegmentBytes &&
                     !map.is_table(segments - 1 - header.data_offset / kSegmentBytes);
  if (sound) return segments * kSegmentBytes;
  if (!lenient)
    throw corrupt_header(mapping.path(), "the pool's capacity in the header is damaged");
  // What the file has.
  return std::clamp(mapping.file_bytes() / kSegmentBytes * kSegmentBytes, header.capacity_bytes,
                    Pool::kMaxCapacityBytes);
}

}  // namespace perdure::pm
