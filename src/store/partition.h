// A partition of a store: a log-structured set of records in PM with an index in DRAM, or in PM
// (checkpoint.cc).
//
// One thread at a time works on it (its owner: a worker, or who holds its latch). A write appends
// one record and flushes it; persist() fences, and only then may anybody outside learn of the
// write. So writes that arrive together share a fence.
//
// What makes a write durable: the one fence after its record. What orders it: nothing else; a
// record names the one that it supersedes, so the two change places at once. What a crash leaves:
// of the blocks that were open, records up to the first one that does not fit its checksum, which
// is seeded with the block's incarnation, so that nothing from an earlier use of the block passes;
// recovery closes the block there before anything new is written, so that a whole record behind a
// torn one never counts.
//
// Compaction copies what counts out of a block, fences, and only then makes the block unused. A
// record that invalidates another one (Superseded) must not vanish before that one: it is carried
// on, as a tombstone if need be, as long as the block of the other exists. docs/store.md has the
// whole argument.
// Source: Lersch et al., "Enabling Low Tail Latency on Multicore Key-Value Stores", PVLDB 2020; the
// log is also the data here, which halves what is written. Tombstones: Rumble et al., RAMCloud,
// FAST 2014.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "index/owned_blocks.h"
#include "pm/pool_impl.h"
#include "store/hash.h"
#include "store/layout.h"
#include "store/partition_index.h"
#include "store/record.h"
#include "store/sorted_chunks.h"

namespace perdure::store {

// What all partitions of a store have in common.
struct PartitionConfig {
  std::string name;  // of the store
  uint64_t salt = 0;
  uint32_t block_bytes = 0;
  uint32_t garbage_percent = 0;  // as in StoreOptions
  uint32_t partitions = 1;
  bool ordered = false;  // the index
  const PmIndex* pm =
      nullptr;  // the index, if it is in PM; not moved as long as there are partitions
  // Of a partition's log, kept for changes(): as long as it is no more than the first of these, and
  // as long as a consumer has not read it and it is no more than the second.
  uint64_t changes_bytes = 0;
  uint64_t unread_bytes = 0;
  // What a partition may take of the pool, ~0: what there is; and whether it then evicts records,
  // those that `may_evict` allows, or refuses writes.
  uint64_t bytes_max = ~uint64_t{0};
  bool evicts = false;
  std::function<bool(std::string_view key, std::string_view value)> may_evict = {};
  std::function<void(std::string_view key)> evicted = {};  // each of them
  // When a snapshot of an index in DRAM is written, by what the log gets, in percent of what
  // counts; 0: there are none but that of a close. And how many partitions have one.
  uint32_t snapshot_percent = 0;
  std::atomic<uint32_t>* snapshots = nullptr;
};

// Whether a sound index snapshot of the partition stands there. Cost: reads all of it.
bool is_sound(pm::PoolImpl& pool, uint64_t offset, uint64_t salt, uint32_t partition);
// Of one that may have `bytes_max` there.
bool holds(const IndexSnapshot& snapshot, uint64_t bytes_max, uint64_t salt, uint32_t partition);
bool is_of_ordered(const IndexSnapshot& snapshot);
// Whether there is a frame with a snapshot that is sound, or is not whole yet.
bool is_recent_sound(pm::PoolImpl& pool, uint64_t offset, uint64_t salt, uint32_t partition);

// Of a key as much as a line bears.
std::string in_words(std::string_view key);

// A write, as it is asked for. Key and value are valid for the call.
struct WriteRequest {
  enum class Condition : uint8_t { kNone, kIfAbsent, kIfPresent, kIfVersion };
  std::string_view key = {};
  std::string_view value = {};
  Condition condition = Condition::kNone;
  uint64_t version = 0;  // for kIfVersion
  uint64_t expiry_ms = kNoExpiry;
  bool removal = false;  // in a group; its condition is kNone
  // In a group that leaves fewer bytes than there were: it may use what is kept for removals.
  bool frees = false;
};

// The records of a partition whose keys begin with a prefix.
struct PrefixMatches {
  std::string_view prefix;
  // Of each record its place, with the tag of its key if the index is by hash.
  std::vector<std::pair<uint64_t, Location>> records = {};
  std::vector<uint64_t> blocks = {};  // incarnations of those that they stand in
  uint64_t present = 0;               // of them, those that have not expired
};

// A write that a partition's log has.
struct LoggedChange {
  uint64_t version = 0;
  std::string_view key;  // of a removal by prefix the prefix
  std::string_view value;
  uint64_t expiry_ms = kNoExpiry;
  bool removal = false;
  bool prefix = false;
  bool goes_on = false;   // what follows is of the same batch
  BatchPart batch{0, 0};  // of a batch over several partitions: where it ends in the first of them
  bool ends_batch =
      false;  // no write: the end of that batch in this partition; the value has its BatchParts
};

// With the hash of its key.
using GroupWrite = std::pair<uint64_t, WriteRequest>;

// Where a scan begins, and which way it goes: upwards with the first record that has no lesser key,
// or downwards with the last one that has no greater key.
struct ScanFrom {
  std::string_view key = {};
  bool whole = false;   // from the first record, or the last one; then there is no key
  bool beyond = false;  // without the record of the key itself
  bool downwards = false;
  bool keys_only = false;            // values are not read, and said to be empty
  uint64_t expected = ~uint64_t{0};  // about how many records will be asked for
};

struct PartitionFigures {
  uint64_t records = 0;
  uint64_t live_bytes = 0;  // of records and overflow blocks that count
  uint64_t blocks = 0;      // that hold records
  uint64_t spare_blocks = 0;
  uint64_t pool_bytes = 0;  // of all blocks of the heap that it owns
  uint64_t dram_bytes = 0;
  uint64_t compactions = 0;  // blocks compacted since it was opened
  uint64_t moved_bytes = 0;  // by them
  uint64_t recovered_records = 0;
  uint64_t snapshots_read = 0;  // 1 if its index came from a snapshot
  uint64_t snapshots_written = 0;
  uint64_t snapshot_bytes = 0;
  uint64_t checkpoints_read = 0;  // 1 if it came from a checkpoint
  uint64_t checkpoints = 0;       // that were written
  uint64_t damaged_blocks = 0;    // that cannot be compacted
  uint64_t damaged_indexes = 0;   // 1 if it is in PM, and damaged
  uint64_t log_kept_bytes = 0;    // for changes(), with long values that nothing else needs
  uint64_t log_given_up_blocks = 0;
  uint64_t hits = 0;  // with eviction
  uint64_t misses = 0;
  uint64_t evicted_records = 0;
};

class Partition final : private RecordKeys {
 public:
  Partition(pm::PoolImpl& pool, PartitionRoot& root, uint32_t number,
            const PartitionConfig& config);
  ~Partition();
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  // Recovery, first part: finds the partition's blocks, and the last write. Returns how the batch
  // over several partitions ends that may be unfinished in some of them, if the partition's last
  // write is one: its parts as its record has them, and the partition's own version. Throws
  // kCorrupt.
  struct LastBatch {
    std::vector<BatchPart> parts;
    uint64_t version = 0;
  };
  std::optional<LastBatch> look();
  // Whether the write of this version, or a later one, is there. After look().
  bool has_reached(uint64_t version) const { return std::max(next_version_, reached_) > version; }
  // Whether a version that it has not reached may have been lost by damage. After look().
  bool ends_damaged() const { return ends_damaged_; }
  // What look() told does not count: takes it away, for good. Of all partitions, before the second
  // part of any. Durable on return. Throws kIo.
  void drop_batch();
  // What look() told counts: flushes it.
  void flush_batch() const;
  // There is no index in PM that serves: recover() is to read all records. Durable on return.
  // Throws kIo.
  void give_up_checkpoint();
  // Second part: reads all blocks, builds the index, closes blocks that a crash left open. Durable
  // on return; changes nothing in a pool that is open to read. `keeps_batch`: what look() told
  // counts. Throws kCorrupt.
  void recover(bool keeps_batch);
  // Closes open blocks and notes what is there, so that the next recovery can tell if something is
  // gone. Durable on return. Throws kIo.
  void close();

  // Gives back the room that snapshots of the index take: a crash before there is another one means
  // that all records are read. Returns whether there were any. Durable on return. Throws kIo.
  bool give_up_snapshots();

  // Whether the last process that wrote to it closed it. Of a pool that is open to read.
  bool was_closed() const { return root_.close.generation != 0; }
  // Of the pool, in which it was; 0: it was not. Before its recovery.
  uint64_t closed_generation() const { return root_.close.generation; }

  // The record of a key that is there and has not expired, valid until the partition's next write.
  // Throws kCorrupt if its checksum does not hold, kIo if the partition has failed.
  struct Found {
    std::string_view value;
    uint64_t version;
    uint64_t expiry_ms;
  };
  // `ahead`: what prefetch() has come to for this key, or null.
  bool get(uint64_t hash, std::string_view key, uint64_t now_ms, Found& out,
           const Sought* ahead = nullptr) const;
  // The same as far as nothing is out of the ordinary, in few instructions: so few that a processor
  // begins with the next lookup while it waits for the record of this one. Returns false where
  // get() is to tell, which may find the key.
  [[gnu::always_inline]] bool get_plain(uint64_t hash, std::string_view key, Found& out) const;
  // The one, and then the other, at the time that `now_ms()` tells, if it matters.
  template <typename NowMs>
  bool get_lazily(uint64_t hash, std::string_view key, NowMs now_ms, Found& out,
                  const Sought* ahead = nullptr) const {
    return get_plain(hash, key, out) || get(hash, key, now_ms(), out, ahead);
  }
  // Of a key that will be looked for: PartitionIndex::prefetch().
  void prefetch(int step, Sought& sought) const {
    index_.prefetch(step, sought, [this](Location location) { prefetch_at(location); });
  }

  // Whether the condition held; then the record is written, as `version`, and durable after
  // persist(). Throws kPoolFull, kNoSpace, kTooLarge, kCorrupt, having changed nothing. `ahead`: as
  // get().
  bool put(uint64_t hash, const WriteRequest& request, uint64_t now_ms, uint64_t* version = nullptr,
           const Sought* ahead = nullptr);
  // Whether the key was there. Durable after persist(). Needs no more room than what is kept for
  // it.
  bool remove(uint64_t hash, std::string_view key, uint64_t now_ms);

  // Several writes without conditions, of which a crash keeps all or none. prepare() makes room and
  // throws as put() does, and kTooLarge if the records do not fit into one block; nothing else of
  // the partition may be called between it and write_group(), which throws nothing, or abandon().
  // `named`: the writes are a part of a batch over several partitions; write_group() is given so
  // many BatchParts, and recovery counts the group only if all of the batch is there. All its
  // groups must be made durable by one fence, before anything else is done to these partitions;
  // note_durable() follows.
  using Group = std::vector<RecordParts>;
  Group prepare(std::span<const GroupWrite> writes, uint64_t now_ms, uint32_t named = 0);
  // The version that will end a prepared group of so many writes that is a part of a batch.
  BatchPart part_of(size_t writes) const { return {number_, next_version_ + writes}; }
  void write_group(std::span<const GroupWrite> writes, Group& group,
                   std::span<const BatchPart> parts = {});
  void note_durable() { unfenced_ = false; }
  void abandon(std::span<const RecordParts> group);
  // What the record that a write asks for takes in a block: of a long value, or key, the reference.
  uint64_t bytes_in_block(const WriteRequest& request) const { return parts_of(request).bytes(); }

  // Removal by prefix, in three parts, with nothing in between: what there is to remove; room for
  // its record (`named` as above), which may throw as remove() does, and kTooLarge; and the record.
  // One record, however many it removes. Cost: with an ordered index a read for each record that is
  // removed, else for each record of the partition.
  PrefixMatches match_prefix(std::string_view prefix, uint64_t now_ms) const;
  void prepare_prefix(PrefixMatches& matches, uint64_t now_ms, uint32_t named);
  void write_prefix(const PrefixMatches& matches, std::span<const BatchPart> parts);
  void abandon_prefix() { prefix_removals_.erase(next_version_); }  // in place of it

  // From here on what is there now stays readable, until release_snapshot() is given the same
  // number: the version of the last write. Cost: for each record that is superseded or removed
  // meanwhile about 110 bytes of DRAM, with an ordered index those of its key, too; its bytes in
  // the log are kept.
  uint64_t take_snapshot();
  // persist() follows.
  void release_snapshot(uint64_t version);
  // As get(), for_tags() and scan(), of what was there when `snapshot` was taken, at `now_ms`.
  bool get_at(uint64_t snapshot, uint64_t hash, std::string_view key, uint64_t now_ms,
              Found& out) const;

  // Compacts a little, in proportion to what was written, then makes all writes since the last call
  // durable. Throws kIo: then nothing is promised of these writes, and the partition answers
  // nothing more.
  void persist() {
    before_fence();
    if (unfenced_) memory_.fence();
    after_fence();
  }
  // The same in parts, for several partitions that share a fence.
  void before_fence();
  bool wants_fence() const { return unfenced_; }
  void after_fence();

  // Calls `visit` for records whose tags lie in [first, end). Needs a hash index.
  using Visit = std::function<void(std::string_view key, const Found& record)>;
  void for_tags(uint64_t first, uint64_t end, uint64_t now_ms, const Visit& visit) const;
  // Calls `visit`, which says whether a record is one that was looked for, for all records of some
  // block, which the number chooses, and of the ones behind it until there was one. Returns whether
  // there was.
  using VisitUntil = std::function<bool(std::string_view key, const Found& record)>;
  bool for_some(uint64_t random, uint64_t now_ms, const VisitUntil& visit) const;
  // Calls `visit` for records in the order of keys until it returns false. Needs an ordered index.
  void scan(const ScanFrom& from, uint64_t now_ms, const VisitUntil& visit) const;
  void for_tags_at(uint64_t snapshot, uint64_t first, uint64_t end, uint64_t now_ms,
                   const Visit& visit) const;
  void scan_at(uint64_t snapshot, const ScanFrom& from, uint64_t now_ms,
               const VisitUntil& visit) const;

  // What was written from the version `from` on, in order, each once: calls `visit` until it
  // returns false at the end of a batch, or there is no more. `hint` makes the next call that goes
  // on there cheaper. Only of what is durable, if the caller sees to it that the partition is not
  // written to meanwhile. Returns the position behind what was visited. Throws kInvalidArgument if
  // the log is not kept from there on, kCorrupt.
  struct LogPlace {
    uint64_t incarnation = 0;
    uint64_t at = 0;
    uint64_t version = 0;  // the first one there or behind
  };
  using VisitChange = std::function<bool(const LoggedChange& change)>;
  // `with_ends`: tells where batches over several partitions end, too.
  uint64_t changes(uint64_t from, LogPlace& hint, const VisitChange& visit,
                   bool with_ends = false) const;
  // The first position that changes() takes, and the one of the next write.
  uint64_t first_change() const { return std::min(log_from_, next_change()); }
  uint64_t next_change() const { return logged_ + 1; }
  // What next_change() was before the first write of this opening.
  uint64_t opened_change() const { return opened_change_; }
  // How many bytes of log there are from a position on, up to a block more.
  uint64_t change_bytes(uint64_t from) const;
  // The log is needed from there on, whatever its size, up to config.unread_bytes; ~0: it is not.
  void set_unread(uint64_t from) {
    unread_from_ = from;
    trim_log();
    bound_log();
  }

  using Report = std::function<void(const std::string&)>;
  uint64_t check(const Report& report) const;
  // With an index in PM: of entries that its structure has, places and words, whether they are the
  // partition's, and whether it has what it was told.
  uint64_t check_entries(std::span<const std::pair<uint64_t, uint64_t>> entries,
                         const Report& report) const;
  void visit_blocks(const index::VisitOwned& visit) const;
  PartitionFigures statistics() const;
  uint64_t records() const { return index_.size(); }

 private:
  static constexpr uint32_t kNoSlot = ~uint32_t{0};
  // Blocks that only compaction may take, and one more that only removals may.
  static constexpr uint64_t kSparesForCompaction = 1;
  static constexpr uint64_t kSparesForRemovals = 2;

  // kEmptied: all that counts has been moved from it, and a checkpoint names it still
  // (checkpoint.cc).
  enum class State : uint8_t { kAbsent, kSpare, kOpen, kClosed, kEmptied, kOverflow };

  struct Block {
    uint64_t offset = 0;
    uint64_t incarnation = 0;
    uint64_t age = 0;             // for eviction: the incarnation, or a later one if it was read
    uint64_t bytes = 0;           // of all records; of an overflow block: of what was allocated
    uint32_t live = 0;            // bytes of records that count
    uint32_t expiring = 0;        // of those, bytes of records that expire
    uint64_t last_expiry_ms = 0;  // of these
    // Records that invalidate others may stay, mostly as tombstones: their bytes then / kMarkBytes.
    uint32_t marks = 0;
    // Bytes of tombstones, and of what has expired, that were needed when last looked at.
    uint32_t pinned = 0;
    Location owner;  // of a long value: the record that refers to it
    // Of `live` and `expiring`: of records that only snapshots read.
    uint32_t saved = 0;
    uint32_t saved_expiring = 0;
    State state = State::kAbsent;
    bool damaged = false;
    bool kept = false;   // part of the log that changes() reads: stays as it is
    bool stuck = false;  // evicting from it has gained nothing

    // Bytes of records that have expired and that the index leads to, as far as that is known
    // without looking. Of these, too, snapshots may need some.
    uint32_t expired(uint64_t now_ms) const {
      return last_expiry_ms <= now_ms ? expiring - saved_expiring : 0;
    }
  };

  // Where a block is, and what the checksums of its records are seeded with.
  struct Site {
    uint64_t offset = 0;
    uint64_t seed = 0;
  };

  // Where records are appended: those of callers, and those that compaction moves.
  struct Head {
    BlockKind kind;
    uint32_t slot = kNoSlot;
    uint64_t position = 0;
  };

  // Why a record is appended decides which spare blocks it may use.
  enum class Purpose : uint8_t { kWrite, kRemoval, kCompaction };

  // A removal by prefix whose record must stay while one of the blocks is there.
  struct PrefixRemoval {
    Location location;
    std::vector<uint64_t> blocks;  // incarnations of those with records that it invalidates
  };

  // A record that snapshots may read, and that the index does not lead to any more.
  struct Saved {
    Location location;
    uint64_t version;
    uint64_t until;  // the version that superseded or removed it
  };
  struct Snapshots {
    std::multiset<uint64_t> versions;  // of those that are there
    // By key, with an ordered index; else by the tag of its hash (place_of()).
    SortedChunks<std::string, Saved> saved;
    bool incomplete = false;  // memory was short
  };

  // Of the log that changes() reads: a block of writes, the one before it directly before it.
  struct LogBlock {
    uint64_t from;  // one more than the last version that the log had before
    uint64_t incarnation;
    uint32_t slot;
  };
  // A block of a long value that no record that counts refers to, but the log, up to this version.
  struct HeldOverflow {
    uint64_t until;
    uint32_t slot;
  };

  // Calls `visit(Location)` for records whose tags lie in [first, end), with an index by hash. One
  // in PM knows no order: at the first tag it reads all blocks, and makes a list of hashes that
  // serves until the last tag.
  template <typename Visit>
  void for_tags(uint64_t first, uint64_t end, Visit visit) const {
    if (index_.pm() == nullptr) return index_.hash().for_tags(first, end, visit);
    if (first == 0 || listed_.empty()) list_hashes();
    const auto from = std::ranges::lower_bound(listed_, first, {}, HashIndex::tag_of);
    const auto to = std::ranges::lower_bound(listed_, end, {}, HashIndex::tag_of);
    for (auto hash = from; hash != to; ++hash) {
      index_.pm()->find(*hash, [&](Location location) {
        const RecordView record = view_at(location);
        if (hash_of(key_of(record)) == *hash) visit(location);
        return false;
      });
    }
    if (end >= HashIndex::kTags) listed_ = {};
  }
  void list_hashes() const;
  // Calls `visit(record, location, hash of its key)` for records of a block that count. Returns
  // their bytes.
  template <typename Visit>
  uint64_t for_block(uint32_t slot, Visit visit) const {
    uint64_t found_bytes = 0;
    for (uint64_t at = sizeof(BlockHeader); at < sizeof(BlockHeader) + blocks_[slot].bytes;) {
      const Location here(slot, at);
      const RecordView record = view_at(here);
      require_intact(here, record);
      at += record.bytes;
      if (!record.is_put() || (record.has(kOverflow) && !has_overflow(record))) continue;
      const uint64_t hash = hash_of(key_of(record));
      if (entry_of_record(record, here, hash) == PartitionIndex::kNone) continue;
      found_bytes += record.bytes;
      visit(record, here, hash);
    }
    return found_bytes;
  }
  bool has_records(uint32_t slot) const {
    return blocks_[slot].state == State::kOpen || blocks_[slot].state == State::kClosed;
  }
  // The same, block by block. With an index in PM.
  template <typename Visit>
  void for_blocks(Visit visit) const {
    for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
      if (has_records(slot)) {
        require_nothing_lost(slot, blocks_[slot].saved + for_block(slot, visit));
      }
    }
  }

  // partition.cc
  uint64_t find(uint64_t hash, std::string_view key, RecordView& out,
                const Sought* ahead = nullptr) const;
  std::string_view key_of(const RecordView& record) const;
  std::string_view value_of(const RecordView& record) const;
  bool has_overflow(const RecordView& record) const;
  const char* follow_overflow(const RecordView& record) const;
  const char* text_at(Location location) const {
    return pool_.at<char>(sites_[location.slot()].offset + location.offset());
  }
  RecordView view_at(Location location) const {
    RecordView record;
    read_at(location, record);
    return record;
  }
  void read_at(Location location, RecordView& out) const {
    if (!parse(text_at(location), config_.block_bytes - location.offset(), out)) [[unlikely]]
      throw_damaged_at(location);
  }
  [[noreturn]] void throw_damaged_at(Location location) const;
  std::string_view key_at(Location location) const override;
  std::string_view sound_key_at(Location location) const override {
    return key_of(view_at(location));
  }
  void prefetch_at(Location location) const override;
  void require_intact(Location location, const RecordView& record) const;
  void require_intact(uint64_t entry, const RecordView& record) const;
  void require_usable() const;
  // What find() has found, or that it has found nothing, must not depend on a record that is lost.
  void require_certain(uint64_t entry, const RecordView& record) const {
    const bool certain = entry != PartitionIndex::kNone
                             ? record.version >= uncertain_below_
                             : uncertain_below_ == 0 && !index_.has_lost();
    if (!certain) [[unlikely]]
      throw_uncertain();
  }
  // For what looks at all records.
  void require_certain() const {
    if (uncertain_below_ != 0 || index_.has_lost()) [[unlikely]]
      throw_uncertain();
  }
  void require_nothing_lost(uint32_t slot, uint64_t found_bytes) const;
  [[noreturn]] void throw_uncertain() const;
  static bool has_expired(const RecordView& record, uint64_t now_ms) {
    return record.expiry_ms != kNoExpiry && record.expiry_ms <= now_ms;
  }
  static void require_fits(std::string_view key, std::string_view value);
  RecordParts parts_of(const WriteRequest& request) const;
  void store_overflow(const WriteRequest& request, RecordParts& parts);
  void write(uint64_t hash, RecordParts& parts);
  void write_at(uint64_t entry, const RecordView& old, uint64_t hash, RecordParts& parts);
  // Of a removal that may come to refer to the key of what it removes.
  uint64_t removal_extra(const RecordParts& parts) const {
    return keeps_log() && (parts.flags & kTombstone) != 0 ? sizeof(OverflowRef) : 0;
  }
  uint64_t inline_bytes_max() const { return std::min<uint64_t>(2048, config_.block_bytes / 16); }
  void prefetch_head(const Head& head, uint64_t bytes) const;
  Location append(Head& head, const RecordParts& parts);
  void count(const RecordView& record, Block& block);
  void discount(const RecordView& record, Block& block);
  void forget(const RecordView& record, Location location, uint64_t until);  // it no longer counts
  void count_expired();
  void reserve_garbage(uint64_t count);
  void account_garbage(const RecordView& record, Location location, uint64_t until);
  bool keeps_log() const { return config_.changes_bytes != 0 || unread_from_ != kAllRead; }
  static uint32_t marks_of(uint16_t flags, uint64_t bytes) {
    if ((flags & kPrefix) != 0) return static_cast<uint32_t>((bytes + kMarkBytes - 1) / kMarkBytes);
    return (flags & kSupersedes) != 0 ? 1 : 0;
  }
  void append_mark(std::span<const BatchPart> parts);
  uint64_t seed_of(uint64_t incarnation) const;

  // blocks.cc
  uint64_t* entry_of(uint32_t slot) const;
  uint32_t take_slot();
  void add_page();
  void add_spare(bool reclaim);
  uint32_t add_overflow(std::string_view key, std::string_view value);
  void link_block(pm::Heap::Txn& txn, uint32_t slot, uint64_t offset);
  void unlink_block(uint32_t slot);
  void add_dead_overflow(uint32_t slot) {
    dead_overflow_.push_back(slot);
    dead_overflow_bytes_ += blocks_[slot].bytes;
  }
  void free_dead_overflow();
  void store_floors();
  void note_floors();
  void open_block(Head& head);
  void close_block(Head& head);
  void write_header(uint64_t offset, const BlockHeader& header) const;
  uint64_t header_checksum(const BlockHeader& header) const;
  // Inlined, so that a recording of fences names who asks for one.
  [[gnu::always_inline]] void fence() {
    if (defers_flush_) flush_moved();
    memory_.fence();
    unfenced_ = false;
  }

  // inspect.cc
  std::string wrong_of_entry(uint64_t place, uint64_t word) const;
  uint64_t name_lost(const Report& report) const;

  // compact.cc
  bool make_room(Head& head, uint64_t bytes, Purpose purpose);
  class FlushOfMoved;
  void flush_moved();
  uint64_t pace(const Block& block, uint64_t written_bytes) const;
  void compact_step(uint64_t written_bytes);
  bool may_lie(uint64_t garbage_bytes) const;
  bool choose_victim(uint64_t gain_bytes_min, bool thorough);
  uint64_t gain_of(const Block& block, uint64_t needed) const;
  uint32_t fewest_live(uint64_t gain_bytes_min, bool thorough);
  uint64_t bytes_after_compaction(uint32_t slot, uint64_t look_at) const;
  bool still_invalidates(const RecordView& record, uint64_t incarnation) const {
    return record.has(kSupersedes) && record.superseded.incarnation != incarnation &&
           exists(record.superseded.incarnation);
  }
  uint64_t entry_of_record(const RecordView& record, Location location, uint64_t hash,
                           const Sought* ahead = nullptr) const;
  bool counts(const RecordView& record, Location location, uint64_t* entry) const;
  void compact_record(const RecordView& record, Location here, const Sought& sought);
  static constexpr size_t kTogether = 16;
  using VictimRecords = std::array<std::pair<RecordView, Sought>, kTogether>;
  size_t read_victim(uint64_t stop, VictimRecords& records) const;
  // Whether it has expired, and is longer than the marks that would take its place.
  bool may_expire(const RecordView& record, bool invalidates) const {
    return has_expired(record, now_ms_) && record.bytes >= kMarkBytes * (invalidates ? 2 : 1) &&
           !snapshot_needs(record.version);
  }
  static constexpr uint64_t kMarkBytes = 32;  // of a tombstone
  Location append_moved(const RecordParts& parts);
  void move_record(const RecordView& record, Location from, uint64_t entry, bool invalidates);
  void prefetch_victim(uint64_t step_bytes) const;
  void end_victim();
  void free_emptied();
  void free_block(uint32_t slot);
  bool choose_fitting_victim();
  bool compact_now(uint64_t gain_bytes_min);
  void require_compactible() const {
    if (index_.is_damaged()) index_.pm()->require_sound("no room is made in it");
  }
  bool exists(uint64_t incarnation) const { return slots_.contains(incarnation); }
  uint64_t payload_bytes() const { return config_.block_bytes - sizeof(BlockHeader); }
  uint64_t garbage_bytes() const {
    // What is kept is no garbage yet.
    const uint64_t used = (closed_blocks_ - kept_closed_blocks()) * payload_bytes();
    const uint64_t live = live_bytes_ - kept_live_;
    return (used > live ? used - live : 0) + expired_bytes_;
  }

  // checkpoint.cc
  struct Scan;
  class ScannedPut;
  bool has_checkpoint() const { return checkpoint_bytes_ != 0; }
  uint64_t checkpoint_interval() const {
    return std::max(2 * uint64_t{config_.block_bytes}, 4 * sizeof(SnapshotBlock) * slots_.size());
  }
  bool wants_checkpoint() const;
  void work_on_index();
  bool write_checkpoint();
  void drop_checkpoint();
  void link_checkpoint(const std::vector<uint64_t>& image);
  bool settle();
  void free_deferred();
  bool load_checkpoint(std::span<const uint32_t> order);
  bool read_checkpoint(std::span<const uint32_t> order);
  bool scan_tail(std::span<const std::pair<uint32_t, uint64_t>> tail, Scan& scan);
  template <typename LocationOf>
  void prefetch_ways(size_t i, size_t count, LocationOf location_of) const;
  void replay(const Scan& scan, uint64_t first_version);
  void kill_superseded(const Scan& scan, uint64_t first_version, bool but_replaced);
  void kill_by_prefixes(const Scan& scan, uint64_t first_version);
  void kill(uint64_t entry);
  void end_record(Location location);
  void mark_stale(uint32_t slot);
  void forget_checkpoint();
  void unlink_checkpoint();
  void begin_index_anew();
  void end_index_recovery(bool from_checkpoint);

  // changes.cc
  static constexpr uint64_t kAllRead = ~uint64_t{0};
  void begin_log_block(BlockHeader& header, uint32_t slot);
  uint64_t kept_bytes() const;
  uint64_t kept_closed_blocks() const {
    return log_.size() - (!log_.empty() && blocks_[log_.back().slot].state == State::kOpen ? 1 : 0);
  }
  void trim_log();
  void close_log();
  void bound_log();
  bool release_log();
  bool give_up_log();
  void mark_succeeded(uint64_t incarnation);
  void find_log();
  uint64_t read_changes(uint32_t slot, uint64_t end, uint64_t& at, uint64_t from, bool with_ends,
                        std::vector<LoggedChange>& group) const;
  void find_held(const LogBlock& log, uint64_t next, std::unordered_map<uint32_t, uint64_t>& held);
  bool is_wanted(uint64_t end, uint64_t bytes) const {
    return bytes <= config_.changes_bytes || (end > unread_from_ && bytes <= config_.unread_bytes);
  }

  // evict.cc
  void note_use(Location location) const;
  bool was_used(Location location) const;
  size_t use_words() const { return (config_.block_bytes / kUseBytes + 63) / 64; }
  uint64_t taken_bytes() const {
    return (slots_.size() + spares_.size()) * pm::Heap::block_bytes(config_.block_bytes) +
           pages_.size() * sizeof(TablePage) + overflow_taken_;
  }
  bool is_beyond(uint64_t more_bytes) const {
    return taken_bytes() > config_.bytes_max || more_bytes > config_.bytes_max - taken_bytes();
  }
  [[noreturn]] void throw_bound() const;
  // For room below the bound: the least that the partition has taken meanwhile, and how many
  // compactions may come before it takes less.
  struct Search {
    uint64_t least_bytes = ~uint64_t{0};
    uint64_t compactions = 0;
  };
  bool make_cache_room(uint64_t bytes, Search& search);
  bool evict(uint64_t bytes);
  void free_surplus();
  std::vector<uint32_t> oldest_blocks() const;
  void close_heads();
  struct Eviction;
  bool plan_eviction(uint32_t slot, uint64_t bytes, uint64_t gain_bytes_min, Eviction& plan) const;
  void forget_evicted(Location here);
  void carry_out(uint32_t slot, const Eviction& plan);
  static constexpr uint64_t kUseBytes = 64;  // of a block, that one bit of used_ speaks of

  // prefix.cc
  void compact_prefix(const RecordView& record, Location here);
  bool prefix_is_needed(const RecordView& record, Location here) const;

  // saved.cc
  std::string place_of(uint64_t tag, std::string_view key) const;
  bool save(const RecordView& record, Location location, uint64_t until);
  Saved* find_saved(const RecordView& record, Location location) const;
  void move_saved(const RecordView& record, Saved& saved);
  void drop(const Saved& saved);
  void count_saved(const RecordView& record, Block& block) {
    block.saved += record.bytes;
    if (record.has(kExpires)) block.saved_expiring += record.bytes;
    if (record.has(kOverflow)) ++saved_overflow_;
  }
  void discount_saved(const RecordView& record, Block& block) {
    block.saved -= record.bytes;
    if (record.has(kExpires)) block.saved_expiring -= record.bytes;
    if (record.has(kOverflow)) --saved_overflow_;
  }
  bool snapshot_needs(uint64_t version) const {
    return snapshots_ != nullptr && version <= *snapshots_->versions.rbegin();
  }
  static bool sees(uint64_t snapshot, const Saved& saved) {
    return saved.version <= snapshot && snapshot < saved.until;
  }
  void require_complete() const;

  // recent_snapshot.cc
  class SnapshotWriting;
  static constexpr uint32_t kOfClose = 2;  // base_: PartitionRoot::snapshot
  static constexpr uint32_t kNoBase = 3;
  bool has_recent() const {
    return (root_.snapshots[0] | root_.snapshots[1] | root_.snapshot) != 0;
  }
  uint64_t snapshot_interval() const;
  uint64_t words_of_index() const;
  void work_on_snapshots();
  void begin_snapshot();
  void write_some_snapshot();
  void end_snapshot();
  void drop_writing();
  void drop_unfinished();
  void drop_recent(uint32_t place);
  void count_recent();
  void find_snapshots();
  bool load_base(std::span<const uint32_t> order);
  bool read_base(const IndexSnapshot& header, std::span<const uint32_t> order);
  void keep_base();

  // index_snapshot.cc
  uint64_t kind_of_index() const;
  IndexSnapshot compose_head(uint64_t generation, uint64_t entries,
                             std::vector<uint64_t>& image) const;
  void compose_snapshot(uint64_t generation, std::span<const uint64_t> entries,
                        std::vector<uint64_t>& image) const;
  void take_blocks(std::span<const SnapshotBlock> blocks);
  void take_prefixes(std::span<const uint64_t> words);
  void take_snapshot(const IndexSnapshot& header, const SnapshotParts& parts);
  void write_snapshot();
  void drop_snapshot();
  bool load_snapshot(const CloseRecord& close);

  // recover.cc
  void read_table();
  bool read_group(const Block& block, uint64_t end, uint64_t& at, RecordView& last) const;
  void read_header(uint32_t slot, uint64_t offset);
  void scan_block(uint32_t slot, Scan& scan, uint64_t begin = sizeof(BlockHeader));
  bool is_record(const Block& block, uint64_t at, uint64_t end, RecordView& out) const;
  uint64_t skip_damage(uint32_t slot, uint64_t at, uint64_t end);
  void scan_record(Location location, const RecordView& record, Scan& scan);
  void find_uncertain(std::span<const uint32_t> order);
  void fix_bound(Head& head);
  bool index_newer(const ScannedPut& put);
  bool has_version(Location location, uint64_t version) const;
  bool counts(const Scan& scan, const ScannedPut& put, RecordView& record);
  void index_record(const Scan& scan, const ScannedPut& put);
  void give_way(Location origin);
  void index_in_order(const Scan& scan, bool replaces_some = false);
  bool replaces(const Scan& scan, Location location);
  bool note_superseded(const Scan& scan, uint64_t version, Location location);
  std::pair<BlockKind, uint64_t> order_of(uint32_t slot) const;
  void read_records(std::span<const uint32_t> order);
  bool is_whole(uint32_t slot) const;
  void resume(Head& head, uint32_t slot, bool torn);
  void free_unreferenced_overflow();
  CloseRecord what_is_there() const;
  uint64_t close_checksum(const CloseRecord& close) const;
  [[noreturn]] void throw_damaged(const std::string& what) const;

  pm::PoolImpl& pool_;
  const pm::Memory& memory_;
  PartitionRoot& root_;
  const PartitionConfig& config_;
  uint32_t number_;

  PartitionIndex index_;
  std::vector<Block> blocks_;    // by slot
  std::vector<Site> sites_;      // of the same, side by side: a lookup needs no more of them
  std::vector<uint64_t> pages_;  // offsets of the table's pages
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> spares_;
  mutable std::vector<uint64_t>
      listed_;  // hashes by tag, while for_tags() goes on with an index in PM
  std::vector<uint32_t> dead_overflow_;           // to be freed once what killed them is durable
  std::vector<uint32_t> unowned_;                 // long values whose record is not written yet
  std::unordered_map<uint64_t, uint32_t> slots_;  // incarnation -> slot, of blocks with records
  std::vector<uint32_t> stale_;                   // blocks that a crash left half compacted
  std::deque<LogBlock> log_;                      // that changes() reads, the newest last
  std::vector<HeldOverflow> held_;
  std::unordered_map<uint64_t, PrefixRemoval> prefix_removals_;  // by version
  std::unique_ptr<Snapshots> snapshots_;                         // null if there are none

  Head head_{BlockKind::kLog};
  Head moved_head_{BlockKind::kMoved};
  uint64_t now_ms_ = 0;  // as the last caller said
  uint64_t next_version_ = 1;
  uint64_t next_incarnation_ = 1;
  uint64_t reached_ =
      0;  // one more than the last version that look() met, be it of a batch that does not count
  bool ends_damaged_ = false;  // look() has met damage behind that
  // Recovery has met a damaged record, the first one there: whether records of lower versions count
  // is not certain.
  uint64_t damage_at_ = 0;
  bool accounts_exact_ = true;   // else the next opening counts anew what is live
  uint64_t lost_bytes_ = 0;      // of records, in damaged blocks
  bool log_end_lost_ = false;    // the last block of the log is damaged
  bool moved_end_lost_ = false;  // of the records that compaction has moved
  uint64_t uncertain_below_ = 0;
  // Of the last batch that look() has found: its block, and where its records begin there.
  uint32_t batch_slot_ = kNoSlot;
  uint64_t batch_begin_ = 0;
  uint64_t batch_end_ = 0;

  // Compaction: the block being emptied, how far, and one that waits for a fence to become unused.
  uint32_t victim_ = kNoSlot;
  bool victim_is_stale_ = false;
  uint64_t cursor_ = 0;
  uint32_t emptied_ = kNoSlot;
  uint64_t written_since_step_ = 0;
  // With a checkpoint: blocks that wait for the next one, an origin before its copies.
  std::vector<uint32_t> emptied_blocks_;
  uint32_t search_from_ = 0;
  uint64_t freed_since_reset_ = 0;
  uint64_t quiet_bytes_ = 0;  // to be written before a block is looked for again
  static constexpr uint64_t kQuietBlocks = 2;
  // While a step goes on: records that are moved are flushed at its end, and are up to here.
  bool defers_flush_ = false;
  uint64_t flushed_to_ = 0;

  // The log: where what is kept begins, what consumers have not read, and the last block of it.
  uint64_t logged_ = 0;  // the version of its last record
  uint64_t opened_change_ = 1;
  uint64_t log_from_ = ~uint64_t{0};
  uint64_t unread_from_ = kAllRead;
  uint64_t last_log_block_ = 0;  // its incarnation; 0: it is not known
  uint64_t held_bytes_ = 0;
  uint64_t log_given_up_ = 0;  // blocks of it, for want of room

  // With eviction: what has been read since it was written or moved, use_words() of each block; and
  // how often a key was there.
  mutable std::vector<uint64_t> used_;
  mutable uint64_t hits_ = 0;
  mutable uint64_t misses_ = 0;
  uint64_t evicted_ = 0;      // records
  uint64_t evict_again_ = 0;  // so often blocks that have gained nothing are not looked at again

  uint64_t live_bytes_ = 0;     // of records in blocks
  uint64_t kept_live_ = 0;      // of these, in blocks that are kept
  uint64_t closed_blocks_ = 0;  // of log blocks
  uint64_t expired_bytes_ = 0;  // of live_bytes_, when last counted
  uint64_t opened_since_count_ = 0;
  uint64_t overflow_bytes_ = 0;
  uint64_t overflow_taken_ = 0;  // of the heap
  uint64_t compactions_ = 0;
  uint64_t moved_bytes_ = 0;
  uint64_t recovered_ = 0;
  uint64_t snapshots_read_ = 0;
  uint64_t checkpoints_read_ = 0;
  uint64_t snapshot_bytes_ = 0;  // of the sound snapshot of a close that is linked, if there is one
  // Of each place of PartitionRoot::snapshots what the frame there has; 0: there is none.
  uint64_t recent_bytes_[2] = {0, 0};
  uint32_t base_ = kNoBase;  // what recovery has begun with: a place of these, or kOfClose
  std::unique_ptr<SnapshotWriting> writing_;
  uint64_t next_look_ = ~uint64_t{0};  // work_on_snapshots() comes when so much has been appended
  uint64_t snapshot_begun_at_ = 0;     // the last one, when so much had been
  bool wants_snapshot_ = false;        // soon
  uint64_t leaf_words_ = 12;  // of an ordered index: what a leaf takes but for heads and places
  bool counted_recent_ = false;
  uint64_t snapshots_written_ = 0;
  // With an index in PM: of the checkpoint that is linked, and what has come since, or since one
  // failed.
  uint64_t checkpoint_bytes_ = 0;
  uint64_t appended_bytes_ = 0;       // to the log
  uint64_t dead_overflow_bytes_ = 0;  // in dead_overflow_
  bool checkpoint_now_ = false;       // whatever has come
  uint64_t checkpoints_ = 0;
  uint64_t saved_overflow_ = 0;  // long values of records that only snapshots read
  bool unfenced_ = false;        // something was flushed since the last fence
};

inline bool Partition::get_plain(uint64_t hash, std::string_view key, Found& out) const {
  if (!index_.is_hash() || pool_.failed()) [[unlikely]]
    return false;
  constexpr uint16_t kPlain = kSupersedes | kGroupGoesOn;
  const HashIndex& index = index_.hash();
  // One body for all of them: as a function that find() calls it would be one.
  const uint64_t far = index.first_place(hash) + HashIndex::kFar;
  for (uint64_t first = index.first_place(hash);; first += HashIndex::kAtOnce) {
    for (uint32_t same = index.with_tag(first, hash); same != 0; same &= same - 1) {
      const Location location = index.at(first + static_cast<uint64_t>(std::countr_zero(same)));
      const Site& site = sites_[location.slot()];
      const char* at = pool_.at<char>(site.offset + location.offset());
      RecordHeader header;
      std::memcpy(&header, at, sizeof header);
      const auto flags = static_cast<uint16_t>(header.word >> 48);
      const uint64_t key_bytes = header.sizes & 0x1ffff;
      const uint64_t value_bytes = header.sizes >> 17;
      const uint64_t bytes = record_bytes(flags & kPlain, key_bytes, value_bytes);
      const char* text = at + sizeof header + ((flags & kSupersedes) != 0 ? sizeof(Superseded) : 0);
      if ((flags & ~kPlain) != 0 || key_bytes != key.size() ||
          bytes > config_.block_bytes - location.offset() ||
          std::memcmp(text, key.data(), key_bytes) != 0) [[unlikely]]
        continue;
      if (pool_.verifies_payload() && header.checksum != checksum_of(at, bytes, site.seed))
          [[unlikely]]
        return false;
      out = {{text + key_bytes, value_bytes}, header.word & kVersionMax, kNoExpiry};
      if (out.version < uncertain_below_) [[unlikely]]
        return false;
      if (config_.evicts) note_use(location);
      return true;
    }
    if (index.ends_before(first + HashIndex::kAtOnce, hash) || first == far) [[unlikely]]
      return false;
  }
}

}  // namespace perdure::store
