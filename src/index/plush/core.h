// Plush, as one class behind the typed facades of perdure/plush.h.
//
// The idea. Level 0, in DRAM, has 2^directory_bits rows of up to 16 records. An operation appends
// one record to the recovery log of its partition, waits for one fence, and then changes its row.
// The record that completes a row takes the row with it: all 16 go to one 256-byte bucket of the
// same entry of level 1. An entry that is full is migrated, a step with each of the operations that
// follow: its records are spread over `fanout` entries of the next level. All levels are indexed by
// the leading bits of the hash, so everything that a key can meet belongs to one partition, and one
// lock per partition is all that writers need. Lookups take no lock: they go from level 0
// downwards, and try again if a writer has taken records away meanwhile.
//
// The parts, each with the promises that it makes to the others in its header
//   keys.h          what stands for a key
//   geometry.h      which rows and entries a hash belongs to
//   rows.h          level 0
//   levels.h        the levels in PM: entries, and their copies in DRAM
//   root.h          the parameters of a table, and its first blocks
//   partition.h     what belongs to one partition, under its lock
//   payload.h       keys and values that are not words
//   lookup.h        finding a key
//   migrator.h      records on their way down, and partitions that grow
//   recovery_log.h  what rows hold, durably
//   collector.h     garbage collection of payload
// Core composes them: it makes, opens and closes a table (core.cc, recover.cc), writes (write.cc,
// batch.cc, bulk.cc), scans (range.cc) and inspects it (inspect.cc).
//
// The persist points, and what a crash leaves
//   write          log record (and payload), fence. Before: nothing happened. After: it did; the
//                  row in DRAM is rebuilt from the log.
//   flush a row    bucket, fence; directory line (filters, pointer, count and epoch in one line),
//                  fence; only then the row is emptied. Before the line is durable the bucket is
//                  unreachable and the log still holds the row. After, the epoch in the line has
//                  made the log's records of this row void.
//   migrate        in steps, each for a few targets: their buckets, fence; their directory lines,
//                  fence (a target that crosses a line: in order, fence between). After the last
//                  step one store to line 0 of the source empties it. In between records are there
//                  twice, the upper ones win, and migrating again is harmless.
//   remove         a record in PM becomes a tombstone by one 8-byte store; one in DRAM through the
//                  log.
//   rewrite        new buckets and a redo record of the directory entry, fence; the entry is
//                  replaced by the transaction (pm/heap.h).
//
// Source: Vogel et al., PVLDB 15(11), 2022; docs/structures/plush.md says where this differs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "index/plush/collector.h"
#include "index/plush/geometry.h"
#include "index/plush/keys.h"
#include "index/plush/layout.h"
#include "index/plush/levels.h"
#include "index/plush/lookup.h"
#include "index/plush/migrator.h"
#include "index/plush/partition.h"
#include "index/plush/payload.h"
#include "index/plush/recovery_log.h"
#include "index/plush/rows.h"
#include "perdure/index.h"
#include "perdure/plush.h"
#include "pm/pool_impl.h"

namespace perdure::index::plush {

class Core {
 public:
  static std::unique_ptr<Core> create(pm::PoolImpl& pool, const std::string& name, Kind key_kind,
                                      Kind value_kind, const PlushOptions& options);
  static std::unique_ptr<Core> open(pm::PoolImpl& pool, const std::string& name, Kind key_kind,
                                    Kind value_kind, const PlushOptions& options);
  ~Core();

  Kind key_kind() const { return key_kind_; }
  Kind value_kind() const { return value_kind_; }

  // Records and keys that are worked on together. A longer batch is cut into groups.
  static constexpr size_t kGroup = kGroupRecords;
  struct NewRecord {
    Key key;
    uint64_t value;            // of words
    std::string_view payload;  // of byte strings
  };

  Key key_of(uint64_t key) const { return keys_.key_of(key); }
  Key key_of(std::string_view bytes) const { return keys_.key_of(bytes); }
  bool is_ordered() const { return keys_.is_ordered(); }
  // Throws kInvalidArgument for a key outside of an ordered table.
  void require_inside(uint64_t key) const {
    if (!keys_.is_inside(key)) miss_outside(LogKind::kUpsert, key);
  }
  // Throws kTooLarge.
  static void require_sizes(std::string_view key, std::string_view value);

  // Writes; kUpsert always, kInsert if absent, kUpdate if present. Returns whether it wrote.
  bool write(LogKind kind, uint64_t key, uint64_t value, Logging logging);
  bool write(LogKind kind, std::string_view key, std::string_view value, Logging logging);
  bool remove(uint64_t key);
  bool remove(std::string_view key);
  // The same for a key with the value `expected` only.
  bool exchange(uint64_t key, uint64_t expected, uint64_t value);
  bool exchange(std::string_view key, std::string_view expected, std::string_view value);
  bool remove_if(uint64_t key, uint64_t expected);
  bool remove_if(std::string_view key, std::string_view expected);
  bool lookup(uint64_t key, uint64_t& value) const { return lookup_.lookup(key, value); }
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  bool lookup(std::string_view key, const Use& use) const;
  // Ordered tables only: as AnyIndex::scan(). Others throw kWrongType.
  void scan(uint64_t from, uint64_t limit,
            const std::function<bool(uint64_t key, uint64_t value)>& visit) const;
  void scan_bytes(uint64_t from, uint64_t limit,
                  const std::function<bool(uint64_t key, std::string_view value)>& visit) const;
  // As AnyIndex::scan_back().
  void scan_back(std::optional<uint64_t> from, uint64_t limit,
                 const std::function<bool(uint64_t key, uint64_t value)>& visit) const;
  void scan_bytes_back(
      std::optional<uint64_t> from, uint64_t limit,
      const std::function<bool(uint64_t key, std::string_view value)>& visit) const;

  // At most kGroup at once. kInsert or kUpsert; says of each record whether it wrote it.
  void write_group(LogKind kind, std::span<const NewRecord> records, std::span<bool> written);
  // Calls `use(i, value)` for each key that is there, with its word or its bytes.
  template <typename Use>
  void lookup_group(std::span<const Key> keys, Use use) const;

  void checkpoint(unsigned threads);  // 0: one per processor, 8 at most
  void for_each_word(const std::function<void(uint64_t key, uint64_t value)>& visit) const;
  void for_each_bytes(
      const std::function<void(std::string_view key, std::string_view value)>& visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  class Group;
  template <bool kBack>
  class Scan;
  void require_ordered() const;  // throws kWrongType
  template <typename Visit>
  bool give_bytes(uint64_t key, uint64_t pointer, const Visit& visit) const;

  Core(pm::PoolImpl& pool, Root& root, const std::string& name, Kind key_kind, Kind value_kind,
       const PlushOptions& options);

  // ---- core.cc
  void close();

  // ---- recover.cc
  void recover(uint32_t threads);
  void recover_partition(uint32_t partition);
  bool replay_record(Partition& partition, const pm::RedoRecord& record, uint64_t sequence,
                     bool last);

  // ---- write.cc
  // To be called under the lock of each partition that is written to: where a persist has failed,
  // the log may end with a record that a crash would leave half-written, and nothing may follow it.
  void require_writable() const { pool_.require_writable(); }
  // A value that a key must have for a write to go on: the word, or the bytes.
  struct Expected {
    uint64_t word = 0;
    std::string_view bytes = {};
  };
  bool has_value(const Hit& hit, const Expected& expected) const;
  // `write`, again while collecting payload makes room for it.
  template <typename Write>
  bool with_payload_freed(const Key& key, Write write);
  bool write_record(LogKind kind, const Key& key, uint64_t value, std::string_view payload);
  bool exchange_record(const Key& key, const Expected& expected, uint64_t value,
                       std::string_view payload);
  bool write_locked(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                    std::string_view payload);
  bool log_and_write(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                     std::string_view payload);
  bool overwrite_row(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                     std::string_view payload, const Hit& hit);
  void replace_in_row(Partition& partition, const Hit& hit, Record record);
  // `expected`, if not null: only a key with this value.
  bool remove_record(const Key& key, const Expected* expected = nullptr);
  void complete_row(Partition& partition, uint64_t row, Record record);
  // Collects payload of the key's partition for a pool that is full. False: there is none.
  bool free_payload(const Key& key, size_t times);
  // A key outside is absent, so only an update of it is no error.
  bool miss_outside(LogKind kind, uint64_t key) const;

  // ---- bulk.cc
  bool write_unlogged(LogKind kind, const Key& key, uint64_t value, std::string_view payload);
  void flush_all_rows(Partition& partition);
  // Calls `work` for each partition, on this thread and `threads` - 1 more. The first error is
  // thrown.
  void for_each_partition(unsigned threads, const std::function<void(uint32_t)>& work) const;

  // ---- inspect.cc
  struct Collected {
    uint64_t hash;
    uint64_t tag;
    uint64_t value;
    bool dangles;  // damaged, unless a newer record of the key was met before
  };
  // What is under the row that a hash belongs to. Returns the hash that the next row begins with, 0
  // after the last: if the partition grows in between, nothing is met twice or not at all.
  uint64_t collect_subtree(uint64_t hash, std::vector<Collected>& out) const;
  void collect_entry(uint32_t level, uint64_t index, std::vector<Collected>& out,
                     std::unordered_multimap<uint64_t, size_t>& seen) const;
  void collect_one(const Collected& one, std::vector<Collected>& out,
                   std::unordered_multimap<uint64_t, size_t>& seen) const;
  void visit_entries(
      const std::function<void(uint32_t level, uint64_t index, const Place&)>& visit) const;
  void check_entry(uint32_t level, uint64_t index, const Place& place,
                   const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  Kind key_kind_;
  Kind value_kind_;
  bool recovered_ = false;
  uint64_t recovered_operations_ = 0;
  Keys keys_;
  Geometry geometry_;
  Rows rows_;
  Levels levels_;
  Partitions partitions_;
  Payload payload_;
  Lookup lookup_;
  Migrator migrator_;
  RecoveryLog log_;
  Collector collector_;
};

template <typename Use>
bool Core::lookup(std::string_view key, const Use& use) const {
  if (!keys_.is_inside(key)) return false;
  const pm::EpochManager::Guard guard(payload_.log().epochs());
  Hit hit;
  if (!lookup_.find(key_of(key), hit)) return false;
  use(payload_.view_of(hit.value).value);
  return true;
}

template <typename Use>
void Core::lookup_group(std::span<const Key> keys, Use use) const {
  std::optional<pm::EpochManager::Guard> guard;
  if (payload_.is_used()) guard.emplace(payload_.log().epochs());
  Hit hits[kGroup];
  bool found[kGroup];
  lookup_.find_group(keys, std::span(hits, keys.size()), std::span(found, keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!found[i]) continue;
    if constexpr (std::is_invocable_v<Use, size_t, uint64_t>) {
      use(i, hits[i].value);
    } else {
      use(i, payload_.view_of(hits[i].value).value);
    }
  }
}

}  // namespace perdure::index::plush
