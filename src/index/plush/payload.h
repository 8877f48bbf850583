// Keys and values of records, where they are not words: out of place, in the payload log.
//
// Tables of words have none; then every record of a key's hash is of the key.
//
// Promises
//   - compare_key() and is_same() tell records of different keys apart whose hashes are equal.
//   - Damaged payload never makes a record vanish: it is of no key, hides older records of its
//     hash, and is an error to whoever reads it (view_of()).
// Safe for lookups, under an epoch guard of log().epochs(); what changes the log needs the
// partition's lock (payload_log.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "index/plush/keys.h"
#include "index/plush/layout.h"
#include "index/plush/payload_log.h"
#include "perdure/index.h"
#include "pm/pool_impl.h"

namespace perdure::index::plush {

class Payload {
 public:
  Payload(pm::PoolImpl& pool, Root& root, const std::string& name, const Keys& keys, Kind key_kind,
          Kind value_kind, uint32_t partitions);

  // Whether records lead to payload.
  bool is_used() const { return used_; }
  // Of tables that use it.
  PayloadLog& log() const { return *log_; }

  // Whether a record of the key's hash is of the key. kUnknown: its payload is damaged, or has
  // gone, as only that of superseded records does.
  enum class Match : uint8_t { kSame, kOther, kUnknown };
  Match compare_key(uint64_t value, const Key& key) const {
    return used_ ? compare_bytes(value, key) : Match::kSame;
  }
  // Two records have the same key.
  bool is_same(uint64_t tag, uint64_t value, uint64_t other_tag, uint64_t other_value) const {
    if ((tag ^ other_tag) >> 1 != 0) return false;
    return !used_ || is_same_key(value, other_value);
  }
  // The payload of a record that is live. Throws kCorrupt if it is damaged.
  PayloadLog::View view_of(uint64_t value) const;
  // Whether a record leads to payload that has gone.
  bool dangles(uint64_t value) const { return used_ && !log_->alive(value); }

  // These records are superseded, or tombstones that vanish, and no longer needed.
  void account_garbage(std::span<const Record> dropped) const;
  // Makes the payload of unlogged writes durable; before anything durable leads to it.
  void settle(uint32_t partition) const {
    if (used_) log_->settle(partition);
  }

 private:
  Match compare_bytes(uint64_t value, const Key& key) const;
  bool is_same_key(uint64_t value, uint64_t other_value) const;
  // The hash of the key in a payload that was not verified; any word if that is no key.
  uint64_t hash_in(const PayloadLog::View& payload) const;

  pm::PoolImpl& pool_;
  const std::string& name_;
  const Keys& keys_;
  Kind key_kind_;
  Kind value_kind_;
  bool used_;
  std::unique_ptr<PayloadLog> log_;
};

}  // namespace perdure::index::plush
