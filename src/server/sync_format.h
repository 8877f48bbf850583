// What a leader tells a follower: chunks of entries, in the bytes of a little-endian machine.
//
//   chunk     SyncHeader | entries
//   entry     kind (1) | goes_on (1) | 0 (2) | partition (4) | number (8) | key bytes (4) | value bytes (4) | key | value
//   unit      entries up to one that does not go on: what the leader wrote at once, and a follower does
//
// `number` is of a put the expiry, of a position the position, else 0. Partitions and positions are
// the leader's. A unit of the log ends with the positions behind it, of all partitions that it has
// writes of.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/error.h"

namespace perdure::server {

inline constexpr int64_t kSyncVersion = 1;

struct SyncHeader {
  static constexpr uint32_t kMagic = 0x31595350;  // "PSY1"
  uint32_t magic = kMagic;
  uint8_t is_copy = 0;     // records of the copy, else writes of the log
  uint8_t ends_copy = 0;   // the last ones
  uint8_t caught_up = 0;   // there is nothing more behind it for now
  uint8_t asks = 0;        // somebody waits for the follower to say what it has
  uint64_t leader_ms = 0;  // the leader's clock
  uint64_t records_left = 0;
  uint64_t bytes_left = 0;
};
static_assert(sizeof(SyncHeader) == 32);

struct SyncEntry {
  enum class Kind : uint8_t { kPut = 1, kRemove = 2, kRemovePrefix = 3, kPosition = 4 };
  Kind kind = Kind::kPut;
  bool goes_on = false;
  uint32_t partition = 0;
  uint64_t number = 0;
  std::string_view key = {};
  std::string_view value = {};
};

namespace sync_layout {
struct Entry {
  uint8_t kind;
  uint8_t goes_on;
  uint16_t reserved;
  uint32_t partition;
  uint64_t number;
  uint32_t key_bytes;
  uint32_t value_bytes;
};
static_assert(sizeof(Entry) == 24);
}  // namespace sync_layout

inline void append_entry(std::string& out, const SyncEntry& entry) {
  const sync_layout::Entry head{.kind = static_cast<uint8_t>(entry.kind),
                                .goes_on = static_cast<uint8_t>(entry.goes_on),
                                .reserved = 0,
                                .partition = entry.partition,
                                .number = entry.number,
                                .key_bytes = static_cast<uint32_t>(entry.key.size()),
                                .value_bytes = static_cast<uint32_t>(entry.value.size())};
  out.append(reinterpret_cast<const char*>(&head), sizeof head);
  out += entry.key;
  out += entry.value;
}

// Takes the first entry off; false at the end. Throws kCorrupt if that is none.
inline bool take_entry(std::string_view& bytes, SyncEntry& out) {
  if (bytes.empty()) return false;
  sync_layout::Entry head{};
  const auto damaged = [] {
    throw Error(ErrorCode::kCorrupt, "what the leader sends is cut off, or not of its form");
  };
  if (bytes.size() < sizeof head) damaged();
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes.remove_prefix(sizeof head);
  if (head.kind < 1 || head.kind > 4 || head.goes_on > 1) damaged();
  if (uint64_t{head.key_bytes} + head.value_bytes > bytes.size()) damaged();
  out = {.kind = static_cast<SyncEntry::Kind>(head.kind),
         .goes_on = head.goes_on != 0,
         .partition = head.partition,
         .number = head.number,
         .key = bytes.substr(0, head.key_bytes),
         .value = bytes.substr(head.key_bytes, head.value_bytes)};
  bytes.remove_prefix(head.key_bytes + head.value_bytes);
  return true;
}

// Positions of all partitions.
inline std::string_view bytes_of(const std::vector<uint64_t>& positions) {
  return {reinterpret_cast<const char*>(positions.data()), positions.size() * sizeof(uint64_t)};
}
inline std::vector<uint64_t> positions_of(std::string_view bytes) {
  std::vector<uint64_t> positions(bytes.size() / sizeof(uint64_t));
  std::memcpy(positions.data(), bytes.data(), positions.size() * sizeof(uint64_t));
  return positions;
}

}  // namespace perdure::server
