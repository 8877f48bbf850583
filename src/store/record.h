// Records as they stand in blocks: taken apart, put together, verified.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "pm/checksum.h"
#include "store/layout.h"

namespace perdure::store {

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// A record in a block, as long as the block is not compacted.
struct RecordView {
  uint64_t version = 0;
  Superseded superseded{};  // if kSupersedes
  uint64_t expiry_ms = kNoExpiry;
  std::string_view key;    // empty if it stands outside
  std::string_view value;  // inline; empty for overflow
  OverflowRef overflow{};  // if kOverflow
  uint32_t key_bytes = 0;
  uint32_t bytes = 0;  // in the block, up to the next record
  uint16_t flags = 0;

  bool has(uint16_t flag) const { return (flags & flag) != 0; }
  // Whether it gives a key a value; else it takes one away, or another record's validity, or ends a
  // batch.
  bool is_put() const { return (flags & (kRemoval | kTombstone | kDead)) == 0; }
  // Whether it has a key and a value, be it for snapshots only.
  bool has_value() const { return (flags & (kRemoval | kTombstone)) == 0; }
};

// Bytes of a record in a block.
inline uint64_t record_bytes(uint16_t flags, uint64_t key_bytes, uint64_t value_bytes) {
  uint64_t bytes = sizeof(RecordHeader);
  if ((flags & kSupersedes) != 0) bytes += sizeof(Superseded);
  if ((flags & kExpires) != 0) bytes += sizeof(uint64_t);
  if ((flags & (kKeyOutside | kTombstone)) == 0) bytes += key_bytes;
  if ((flags & kOverflow) != 0) {
    bytes += sizeof(OverflowRef);
  } else {
    bytes += value_bytes;
  }
  return round_up(bytes, 8);
}

// Takes the record at `at` apart; nothing is verified but that it lies within `room` bytes. Returns
// false if it does not.
inline bool parse(const char* at, uint64_t room, RecordView& out) {
  if (room < sizeof(RecordHeader)) return false;
  RecordHeader header;
  std::memcpy(&header, at, sizeof header);
  out.flags = static_cast<uint16_t>(header.word >> 48);
  out.version = header.word & kVersionMax;
  out.key_bytes = header.sizes & 0x1ffff;
  const uint32_t value_bytes = header.sizes >> 17;
  const uint64_t bytes = record_bytes(out.flags, out.key_bytes, value_bytes);
  if (bytes > room) return false;
  out.bytes = static_cast<uint32_t>(bytes);
  const char* next = at + sizeof header;
  if (out.has(kSupersedes)) {
    std::memcpy(&out.superseded, next, sizeof out.superseded);
    next += sizeof out.superseded;
  }
  out.expiry_ms = kNoExpiry;
  if (out.has(kExpires)) {
    std::memcpy(&out.expiry_ms, next, sizeof out.expiry_ms);
    next += sizeof out.expiry_ms;
  }
  out.key = {};
  if (!out.has(kKeyOutside | kTombstone)) {
    out.key = {next, out.key_bytes};
    next += out.key_bytes;
  }
  out.value = {};
  if (out.has(kOverflow)) {
    std::memcpy(&out.overflow, next, sizeof out.overflow);
  } else {
    out.value = {next, value_bytes};
  }
  return true;
}

// The checksum that the record at `at`, of `bytes` bytes, must have in a block with this seed.
inline uint32_t checksum_of(const char* at, uint64_t bytes, uint64_t seed) {
  return pm::checksum32(at + sizeof(uint32_t), bytes - sizeof(uint32_t), seed);
}
inline bool is_intact(const char* at, const RecordView& record, uint64_t seed) {
  uint32_t checksum = 0;
  std::memcpy(&checksum, at, sizeof checksum);
  return checksum == checksum_of(at, record.bytes, seed);
}

// What the checksums of a block's use are seeded with: of no other use, partition or store.
inline uint64_t block_seed(uint64_t salt, uint32_t partition, uint64_t incarnation) {
  return salt + incarnation * 0x9fb21c651e98df25 + partition * 0xd6e8feb86659fd93;
}
inline uint64_t checksum_of(const BlockHeader& header, uint64_t seed) {
  return pm::checksum64(&header.first_version,
                        offsetof(BlockHeader, checksum) - offsetof(BlockHeader, first_version),
                        seed);
}
inline uint64_t checksum_of(const CloseRecord& close, uint64_t seed) {
  return pm::checksum64(&close, offsetof(CloseRecord, checksum), seed);
}

// What a record is made of.
struct RecordParts {
  uint16_t flags = 0;
  uint64_t version = 0;
  Superseded superseded{};
  uint64_t expiry_ms = kNoExpiry;
  std::string_view key = {};
  std::string_view value = {};
  OverflowRef overflow{};
  std::string_view whole_key = {};  // whose record it is, wherever the key stands

  uint64_t bytes() const { return record_bytes(flags, key.size(), value.size()); }
};

// Writes the record of parts.bytes() bytes to `to`, but for the checksum, which finish() gives.
inline void compose(const RecordParts& parts, char* to) {
  const bool inline_key = (parts.flags & (kKeyOutside | kTombstone)) == 0;
  const bool inline_value = (parts.flags & kOverflow) == 0;
  const auto value_bytes = static_cast<uint32_t>(inline_value ? parts.value.size() : 0);
  const RecordHeader header = {0, static_cast<uint32_t>(parts.key.size()) | value_bytes << 17,
                               parts.version | static_cast<uint64_t>(parts.flags) << 48};
  char* next = to;
  const auto put = [&](const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(next, data, bytes);
    next += bytes;
  };
  put(&header, sizeof header);
  if ((parts.flags & kSupersedes) != 0) put(&parts.superseded, sizeof parts.superseded);
  if ((parts.flags & kExpires) != 0) put(&parts.expiry_ms, sizeof parts.expiry_ms);
  if (inline_key) put(parts.key.data(), parts.key.size());
  if (inline_value) {
    put(parts.value.data(), value_bytes);
  } else {
    put(&parts.overflow, sizeof parts.overflow);
  }
  while (next != to + parts.bytes()) *next++ = 0;
}
inline void finish(char* record, uint64_t bytes, uint64_t seed) {
  const uint32_t checksum = checksum_of(record, bytes, seed);
  std::memcpy(record, &checksum, sizeof checksum);
}

}  // namespace perdure::store
