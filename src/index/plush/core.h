// Plush, as one class behind the typed faces of perdure/plush.h.
//
// The idea. Level 0, in DRAM, has 2^directory_bits rows of up to 16 records. An operation appends
// one record to the recovery log of its partition, waits for one fence, and then changes its row.
// The record that completes a row takes the row with it: all 16 go to one 256-byte bucket of the
// same entry of level 1. An entry that is full is drained, a step with each of the operations that
// follow: its records are spread over `fanout` entries of the next level. All levels are indexed by
// the leading bits of the hash, so everything that a key can meet belongs to one partition, and one
// lock per partition is all that writers need. Lookups take no lock: they go from level 0 downwards,
// and try again if a writer has emptied something meanwhile.
//
// The persist points, and what a crash leaves
//   write          log record (and payload), fence. Before: nothing happened. After: it did; the
//                  row in DRAM is rebuilt from the log.
//   move down      bucket, fence; directory line (filters, pointer, count and epoch in one line),
//                  fence; only then the row is emptied. Before the line is durable the bucket is
//                  unreachable and the log still holds the row. After, the epoch in the line has
//                  made the log's records of this row void.
//   drain          in steps, each for a few targets: their buckets, fence; their directory lines,
//                  fence (a target that crosses a line: in order, fence between). After the last
//                  step one store to line 0 of the source empties it. In between records are there
//                  twice, the upper ones win, and draining again is harmless.
//   remove         a record in PM becomes a tombstone by one 8-byte store; one in DRAM through the
//                  log.
//   rewrite        new buckets and a redo record of the directory entry, fence; the entry is
//                  replaced by the transaction (pm/heap.h).
//
// Source: Vogel et al., PVLDB 15(11), 2022; docs/structures/plush.md says where this differs.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "index/hash.h"
#include "index/plush/arena.h"
#include "index/plush/directory_cache.h"
#include "index/plush/kernels.h"
#include "index/plush/layout.h"
#include "index/plush/payload_log.h"
#include "perdure/index.h"
#include "perdure/plush.h"
#include "pm/lock.h"
#include "pm/pool_impl.h"
#include "pm/torn_bit_log.h"

namespace perdure::index::plush {

// A key, with its hash. `bytes` is empty for keys that their hash holds whole.
struct Key {
  uint64_t hash;
  std::string_view bytes;
};

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
  static constexpr size_t kGroup = 16;
  struct NewRecord {
    Key key;
    uint64_t value;            // of words
    std::string_view payload;  // of byte strings
  };

  Key key_of(uint64_t key) const { return {hash_of_word(key), {}}; }
  Key key_of(std::string_view bytes) const;
  bool is_ordered() const { return ordered_; }
  // Throws kTooLarge.
  static void require_sizes(std::string_view key, std::string_view value);

  // Writes; kUpsert always, kInsert if absent, kUpdate if present. Returns whether it wrote.
  bool write(LogKind kind, uint64_t key, uint64_t value, Logging logging);
  bool write(LogKind kind, std::string_view key, std::string_view value, Logging logging);
  bool remove(uint64_t key);
  bool remove(std::string_view key);
  bool lookup(uint64_t key, uint64_t& value) const;
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  bool lookup(std::string_view key, Use use) const;
  // Ordered tables only: as AnyIndex::scan(). Others throw kWrongType.
  void scan(uint64_t from, uint64_t limit,
            const std::function<bool(uint64_t key, uint64_t value)>& visit) const;
  void scan_bytes(uint64_t from, uint64_t limit,
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
  struct Drain;

  // A row of level 0: what its records' bucket does not say.
  struct alignas(32) Row {
    uint8_t marks[kSlots];  // by slot: a byte of the key's hash
    std::atomic<uint8_t> count;
    bool known;            // `epoch` has been read from level 1
    uint16_t first_chunk;  // low bits of the log chunk that holds the oldest record
    uint32_t epoch;        // how often this row has moved down, modulo 2^18
    // A sequence lock: odd while records go away from where a lookup in the row or below it may be looking.
    std::atomic<uint64_t> version;
  };
  static_assert(sizeof(Row) == 32);

  // The write side of the sequence locks of rows; under their partition's lock.
  class SequenceWrite {
   public:
    explicit SequenceWrite(std::span<Row> rows) : rows_(rows) {
      for (Row& row : rows_) {
        const uint64_t version = row.version.load(std::memory_order_relaxed);
        assert((version & 1) == 0);  // they do not nest
        row.version.store(version + 1, std::memory_order_relaxed);
      }
      std::atomic_thread_fence(std::memory_order_release);
    }
    explicit SequenceWrite(Row& row) : SequenceWrite(std::span(&row, 1)) {}
    ~SequenceWrite() {
      for (Row& row : rows_) {
        row.version.store(row.version.load(std::memory_order_relaxed) + 1,
                          std::memory_order_release);
      }
    }
    SequenceWrite(const SequenceWrite&) = delete;
    SequenceWrite& operator=(const SequenceWrite&) = delete;

   private:
    std::span<Row> rows_;
  };

  // What every write needs comes first, in one line, and the log's part of that in two: partitions go
  // from one processor to the next all the time.
  struct alignas(64) Partition {
    Partition(const pm::Memory& memory, char* area, uint64_t chunk_bytes, uint32_t chunks)
        : log(memory, area, chunk_bytes, chunks) {}
    pm::SpinLock lock;
    // Rows may hold records that the log does not have.
    bool unlogged = false;
    std::vector<std::unique_ptr<Drain>> drains;  // under way; each but the first for the one before
    std::deque<uint64_t> full_rows;              // whose entries of level 1 are to be drained next
    // One more than the entries of its second level that have children; 0: nobody has counted them. And
    // with how many it grows.
    uint64_t overflows = 0;
    uint64_t overflows_max = 0;
    alignas(64) pm::TornBitLog log;
    size_t payload_chunks = 0;  // after the last collection
    // Payload bytes that may have become garbage since a search of a full pool found none.
    uint64_t garbage_bytes = ~uint64_t{0} >> 1;
    // Rows that moved down since the log was begun anew, without a record in it. Nobody knows how
    // many there were before the table was opened.
    uint64_t unlogged_moves = ~uint64_t{0} >> 1;

    void prefetch() const {
      pm::prefetch_to_change(this);
      log.prefetch();
    }
  };

  // Where a record was found.
  struct Hit {
    uint64_t tag = 0;
    uint64_t value = 0;
    uint32_t level = 0;
    uint64_t index = 0;  // of the entry
    uint64_t* tag_at = nullptr;
    uint64_t* value_at = nullptr;
    bool path_unknown = false;  // a copy on the way has yet to be made
    bool live() const { return (tag & 1) == 0; }
  };
  enum class Found : uint8_t { kAbsent, kHit, kRetry };

  // Where a lookup must look in one level.
  struct Probe {
    uint64_t index;                  // of the entry
    uint32_t candidates;             // bit b: bucket b may hold the key
    uint32_t count;                  // of the entry's records
    bool damaged;                    // counts or pointers cannot be; or a writer is changing them
    Bucket* buckets[kEntryBuckets];  // of the candidates
  };

  // The live records of an entry, newest version of each key only.
  struct Gathered {
    static constexpr uint32_t kPlaces = 2048;
    uint32_t count = 0;
    uint32_t used = 0;  // records there were
    uint32_t left = 0;  // of these, still to be looked at: the oldest
    uint32_t dropped_count = 0;
    uint64_t tags[kEntryRecords];
    uint64_t values[kEntryRecords];
    // Superseded records and vanishing tombstones, which may be what superseded others.
    Record dropped[2 * kEntryRecords];
    uint16_t places[kPlaces];  // in `tags`, from 1: a hash table by tag
  };

  // An entry that is being emptied in steps. In DRAM: after a crash it begins again.
  struct Drain {
    enum class Phase : uint8_t {
      kFull,    // nothing done yet
      kGather,  // `all` is being filled
      kGroup,   // and is complete, but not grouped by child yet
      kAppend,  // what follows is filled in
    };
    enum class Why : uint8_t {
      kFull,
      kLitter,  // it has room: what is superseded in it is to go
      kGrowth,  // it is to be empty, and stay so
    };
    uint32_t level;
    uint64_t index;
    uint32_t needed;  // records that the entry must have room for
    Why why;
    Phase phase;
    uint32_t next_child;   // the children before have theirs
    uint64_t rewritten;    // the child that was rewritten last, before it is appended to
    uint32_t superseding;  // records that the children had another version of, it seems
    uint32_t begins[kFanoutMax + 1];
    Gathered all;
    uint64_t tags[kEntryRecords];  // of `all`, by child
    uint64_t values[kEntryRecords];
    uint32_t count(uint32_t child) const { return begins[child + 1] - begins[child]; }
  };

  // Records to append to one entry.
  struct Append {
    uint32_t level;
    uint64_t index;
    Entry* entry;
    uint32_t room;  // records that the entry has room for
    const uint64_t* tags;
    const uint64_t* values;
    uint32_t count;
    uint32_t start;                 // records in the entry before
    bool counts_epoch;              // level 1: the append makes the row's log records void
    uint32_t epoch;                 // level 1: of the row, before
    uint32_t fresh;                 // bit b: bucket b is newly allocated, and the entry has none
    uint32_t units[kEntryBuckets];  // of the buckets that the records go to
  };

  // Words by hash, with copies of two levels: what the common lookup begins with.
  struct FastPath {
    bool on = false;
    bool wide = false;  // with AVX-512
    const char* base = nullptr;
    const std::atomic<uint8_t>* tops = nullptr;
    uint32_t partition_bits = 0;
    struct alignas(32) Top {  // of a partition with this first level
      const Row* rows;
      const DirectoryCache::Copy* copies[2];
      uint8_t shifts[2];
    } tops_at[kLevelsMax + 1] = {};
    const Top& top(uint64_t hash) const {
      const uint64_t partition = hash >> 1 >> (63 - partition_bits);
      return tops_at[tops[partition].load(std::memory_order_acquire)];
    }
  };

  Core(pm::PoolImpl& pool, Root& root, const std::string& name, Kind key_kind, Kind value_kind,
       const PlushOptions& options);

  // ---- addresses
  uint32_t level_bits(uint32_t level) const {
    return root_.directory_bits + (level - 1) * root_.fanout_bits;
  }
  uint64_t index_at(uint32_t level, uint64_t hash) const { return hash >> index_shifts_[level]; }
  uint32_t partition_of(uint64_t hash) const {
    return root_.partition_bits == 0 ? 0
                                     : static_cast<uint32_t>(hash >> (64 - root_.partition_bits));
  }
  // The first level in PM of a partition, which its rows move down to. Under its lock; without, what is
  // found by it counts if the row's version says so.
  uint32_t top_of(uint32_t partition) const {
    return tops_[partition].load(std::memory_order_acquire);
  }
  uint32_t top_for(uint64_t hash) const { return top_of(partition_of(hash)); }
  // Of the partition that an entry belongs to.
  uint32_t partition_above(uint32_t level, uint64_t index) const {
    return static_cast<uint32_t>(index >> (level_bits(level) - root_.partition_bits));
  }
  uint32_t top_above(uint32_t level, uint64_t index) const {
    return top_of(partition_above(level, index));
  }
  // Rows are numbered like the nodes of a heap: a row of level k, whose records go to entry i of it, is
  // 2^level_bits(k) + i. So the rows that a partition has before it grows and those after it are others.
  uint64_t row_of(uint32_t level, uint64_t index) const {
    return uint64_t{1} << level_bits(level) | index;
  }
  uint64_t row_for(uint64_t hash) const {
    const uint32_t top = top_for(hash);
    return row_of(top, index_at(top, hash));
  }
  static uint64_t index_of_row(uint64_t row) { return row ^ std::bit_floor(row); }
  uint32_t level_of_row(uint64_t row) const {
    return 1 + (static_cast<uint32_t>(std::bit_width(row)) - 1 - root_.directory_bits) /
                   root_.fanout_bits;
  }
  uint64_t rows_below(uint32_t top) const {
    return uint64_t{1} << (level_bits(top) - root_.partition_bits);
  }
  // The rows of a partition, from the first on; under its lock.
  struct RowRange {
    uint64_t begin;
    uint64_t end;
  };
  RowRange rows_in(uint32_t partition) const {
    const uint32_t top = top_of(partition);
    const uint64_t begin = row_of(top, partition * rows_below(top));
    return {begin, begin + rows_below(top)};
  }
  // Of the row that an entry is below.
  Row& row_above(uint32_t level, uint64_t index) const {
    const uint32_t top = top_above(level, index);
    return rows_[row_of(top, index >> (level_bits(level) - level_bits(top)))];
  }
  uint32_t fanout() const { return 1U << root_.fanout_bits; }
  // Where the block of an entry begins, of a level below 1, in units; 0 if it does not exist (nothing
  // below does either).
  uint32_t block_of(uint32_t level, uint64_t index) const {
    const uint32_t* table = tables_[level].load(std::memory_order_acquire);
    return table == nullptr ? 0 : pm::load_acquire(table[index >> root_.fanout_bits]);
  }
  bool has_entry(uint32_t level, uint64_t index) const {
    return level == 1 || block_of(level, index) != 0;
  }
  bool has_children(uint32_t level, uint64_t index) const {
    return level < deepest_ && has_entry(level + 1, index << root_.fanout_bits);
  }
  // The lines of the entry that begins a block. Without the partition's lock this may be garbage, but with
  // so many lines the block is inside the pool.
  uint32_t lines_of_block(const Entry& first) const {
    const uint32_t lines = LineState{pm::load_acquire(first.lines[0].state)}.lines();
    const bool fits = pool_.leads_inside(pool_.offset_of(&first), block_bytes(lines));
    return fits ? lines : kLines >> 3;
  }
  uint64_t block_bytes(uint32_t lines) const {
    return uint64_t{fanout()} * lines * sizeof(DirectoryLine);
  }
  // An entry, and how many of its lines there are. Null if it does not exist.
  struct Place {
    Entry* entry;
    uint32_t lines;
    uint32_t records() const { return lines * kLineRecords; }  // that it has room for
    uint32_t buckets() const { return lines * kLineBuckets; }
    uint32_t bytes() const { return lines * static_cast<uint32_t>(sizeof(DirectoryLine)); }
    std::span<DirectoryLine> all() const { return {entry->lines, lines}; }
  };
  Place place_at(uint32_t level, uint64_t index) const {
    if (level == 1) return {level1_ + index, kLines};
    const uint32_t unit = block_of(level, index);
    if (unit == 0) return {nullptr, kLines};
    const uint64_t block = uint64_t{unit} * kUnitBytes;
    uint32_t lines = kLines;
    if (level == top_above(level, index) + 1) {
      lines = lines_of_block(*pool_.follow<Entry>(block, block_bytes(1)));
    }
    auto* first = pool_.follow<DirectoryLine>(block, block_bytes(lines));
    return {reinterpret_cast<Entry*>(first + (index & (fanout() - 1)) * lines), lines};
  }
  Entry* entry_at(uint32_t level, uint64_t index) const { return place_at(level, index).entry; }
  Bucket* bucket_at(uint32_t unit) const {
    return reinterpret_cast<Bucket*>(pool_.base() + uint64_t{unit} * kUnitBytes);
  }
  // A bucket of an entry, by the pointer in PM. Throws kCorrupt if that leads out of the pool.
  Bucket& bucket_of(const Entry& entry, uint32_t b) const {
    const uint32_t unit = pm::load_relaxed(entry.lines[b / kLineBuckets].bucket[b % kLineBuckets]);
    return *pool_.follow<Bucket>(uint64_t{unit} * kUnitBytes);
  }
  // Throws kCorrupt unless all buckets of the entry are allocated: before they are freed.
  void require_own_buckets(uint32_t level, uint64_t index, const Place& place) const;
  [[noreturn]] void throw_damaged(uint32_t level, uint64_t index) const;
  uint64_t full_hash(uint64_t tag, uint64_t index, uint32_t level) const {
    return tag >> 1 | index >> (level_bits(level) - 1) << 63;
  }
  // What stands for a word key: its hash or, in an ordered table, its position; and back.
  uint64_t hash_of_word(uint64_t key) const { return ordered_ ? position_of(key) : hash_of(key); }
  uint64_t word_of_hash(uint64_t hash) const {
    return ordered_ ? (hash >> order_shift_) + key_min_ : key_of_hash(hash);
  }
  // For what needs evenly spread bits. From a hash with or without its top bit, which tags do not have.
  uint64_t spread_bits(uint64_t hash) const { return ordered_ ? hash_of(hash << 1) : hash; }
  uint8_t mark_of(uint64_t hash) const { return static_cast<uint8_t>(spread_bits(hash)); }
  FilterBits filter_of(uint64_t hash) const { return filter_bits(spread_bits(hash)); }
  // What an operation will read: the row only, what tells of presence in the levels too, or also what
  // leads to the records there.
  enum class Reach : uint8_t { kRow, kPresence, kBuckets };
  static Reach reach_of(LogKind kind) {
    if (kind == LogKind::kUpsert) return Reach::kRow;
    return kind == LogKind::kInsert ? Reach::kPresence : Reach::kBuckets;
  }
  // Of a lookup, and of a write.
  void prefetch_lookup(uint64_t hash) const {
    pm::prefetch(&rows_[row_for(hash)]);
    prefetch_levels(hash, Reach::kBuckets);
  }
  void prefetch_write(uint64_t hash, Reach reach) const {
    partitions_[partition_of(hash)].prefetch();
    pm::prefetch_to_change(&rows_[row_for(hash)]);
    if (reach != Reach::kRow) prefetch_levels(hash, reach);
  }
  void prefetch_levels(uint64_t hash, Reach reach) const {
    const uint32_t top = top_for(hash);
    if (has_fast_path()) {
      const DirectoryCache::Copy& far = directory_cache_->at(top + 1, index_at(top + 1, hash));
      const DirectoryCache::Copy& near = directory_cache_->at(top, index_at(top, hash));
      DirectoryCache::prefetch(far, hash);
      DirectoryCache::prefetch(near, hash);
      if (reach == Reach::kBuckets) {
        DirectoryCache::prefetch_buckets(far);
        DirectoryCache::prefetch_buckets(near);
      }
      return prefetch_filters(top + 2, hash);
    }
    for (uint32_t level = copies_end(top); level-- > top;) {
      const DirectoryCache::Copy& copy = directory_cache_->at(level, index_at(level, hash));
      DirectoryCache::prefetch(copy, spread_bits(hash));
      if (reach == Reach::kBuckets) DirectoryCache::prefetch_buckets(copy);
    }
    prefetch_filters(copies_end(top), hash);
  }
  // Of the levels that have no copies: from `level` down.
  void prefetch_filters(uint32_t level, uint64_t hash) const {
    for (; level <= deepest_; ++level) {
      const Place place = place_at(level, index_at(level, hash));
      if (place.entry == nullptr) return;
      prefetch_entry(place);
    }
  }
  static void prefetch_entry(const Place& place);

  // ---- range.cc
  class Scan;
  uint64_t position_of(uint64_t key) const;
  bool is_inside(uint64_t key) const { return key >= key_min_ && key <= key_max_; }
  // Of an ordered table, whose keys are words.
  bool is_inside(std::string_view key) const { return !ordered_ || is_inside(word_of(key)); }
  static uint64_t word_of(std::string_view key) {
    uint64_t word = 0;
    std::memcpy(&word, key.data(), sizeof word);
    return word;
  }
  // A key outside is absent, so only an update of it is no error.
  bool miss_outside(LogKind kind, uint64_t key) const;
  // Too many keys for the levels there are lie close together.
  Error too_dense(uint32_t level) const;

  // ---- search.cc
  // Whether a record of the key's hash is of the key. kUnknown: its payload is damaged, or has gone, as
  // only that of superseded records does.
  enum class Match : uint8_t { kSame, kOther, kUnknown };
  Match compare_key(uint64_t value, const Key& key) const;
  // The hash of the key in a payload that was not verified; any word if that is no key.
  uint64_t hash_in(const PayloadLog::View& payload) const;
  // The payload of a record that is live. Throws kCorrupt if it is damaged.
  PayloadLog::View payload_of(uint64_t value) const;
  // A level above has a newer record, tag for tag; under the partition's lock.
  bool is_superseded(uint32_t level, uint64_t hash) const;
  Found search_row(uint64_t row, const Key& key, const Row* reader, uint64_t version,
                   Hit& hit) const {
    const uint32_t count = rows_[row].count.load(std::memory_order_acquire);
    const uint32_t marked = match_bytes(rows_[row].marks, mark_of(key.hash)) & ((1U << count) - 1);
    if (marked == 0) [[likely]]
      return Found::kAbsent;
    return search_marked(row, marked, key, reader, version, hit);
  }
  // The slots of a row whose marks are the key's.
  Found search_marked(uint64_t row, uint32_t marked, const Key& key, const Row* reader,
                      uint64_t version, Hit& hit) const;
  // `valid`: the slots that count.
  Found search_bucket(Bucket& bucket, uint32_t valid, const Key& key, const Row* reader,
                      uint64_t version, Hit& hit) const;
  // The buckets of an entry that its copy names.
  Found search_copy(uint32_t level, const DirectoryCache::Copy& copy, uint32_t candidates,
                    const Key& key, const Row* reader, uint64_t version, Hit& hit) const;
  // Returns false if the level has no entry for the key; nor have those below then.
  bool probe(uint32_t level, const Key& key, Probe& out) const;
  void note_candidates(uint32_t candidates, Probe& out, const uint32_t* units) const;
  Found search_entry(uint32_t level, const Probe& probe, const Key& key, const Row* reader,
                     uint64_t version, Hit& hit) const;
  // The same for all levels there are from `first` on; returns how many. `probes` has room for all.
  uint32_t probe_all(uint32_t first, const Key& key, Probe* probes) const;
  Found search_probed(uint32_t first, std::span<const Probe> probes, const Key& key,
                      const Row* reader, uint64_t version, Hit& hit) const;
  // Under the partition's lock.
  Found search(const Key& key, Hit& hit) const;
  // The row, then the levels.
  Found search_all(const Key& key, const Row* reader, uint64_t version, Hit& hit) const;
  Found search_levels(uint32_t first, const Key& key, const Row* reader, uint64_t version,
                      Hit& hit) const;
  // By the copies of the first levels; on with search_filters() where there is none, and below them.
  Found search_copies(uint32_t first, uint32_t top, const Key& key, const Row* reader,
                      uint64_t version, Hit& hit) const;
  Found search_filters(uint32_t first, const Key& key, const Row* reader, uint64_t version,
                       Hit& hit) const;
  // ---- fast_path.cc
  template <typename Isa>
  Found find_fast_by(uint64_t hash, uint64_t& value) const;
  Found find_fast_avx512(uint64_t hash, uint64_t& value) const;
  template <typename Isa>
  bool lookup_by(uint64_t key, uint64_t& value) const;
  bool lookup_avx512(uint64_t key, uint64_t& value) const;
  bool lookup_fully(uint64_t hash, uint64_t& value) const;
  // The value of a word, if it takes no more than the common case; else kRetry, and find() knows. Only
  // if has_fast_path().
  Found find_fast(uint64_t hash, uint64_t& value) const;
  bool has_fast_path() const { return fast_path_.on; }
  bool has_children_of(const FastPath::Top& top, uint32_t below, uint64_t hash) const;
  // The levels have nothing of a word: true if that takes no more than both copies; under the
  // partition's lock. Only if has_fast_path().
  template <typename Isa>
  bool is_surely_absent_by(uint64_t hash) const;
  bool is_surely_absent_avx512(uint64_t hash) const;
  bool is_surely_absent(uint64_t hash) const;

  // Finds a live record. Lock-free; falls back to the partition's lock when writers are too quick.
  bool find(const Key& key, Hit& hit) const;

  // ---- write.cc
  // To be called under the lock of each partition that is written to: where a persist has failed, the log
  // may end with a record that a crash would leave half-written, and nothing may follow it.
  void require_writable() const { pool_.require_writable(); }
  bool write_record(LogKind kind, const Key& key, uint64_t value, std::string_view payload);
  bool write_locked(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                    std::string_view payload);
  bool log_and_write(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                     std::string_view payload);
  bool overwrite_row(Partition& partition, LogKind kind, const Key& key, uint64_t value,
                     std::string_view payload, const Hit& hit);
  void replace_in_row(Partition& partition, const Hit& hit, Record record);
  bool remove_record(const Key& key);
  void add_to_row(uint64_t row, Record record, uint64_t log_sequence);
  void complete_row(Partition& partition, uint64_t row, Record record);
  // `expected`: what is asked first, being the likely answer. The row does not have the key.
  bool present_below(const Key& key, bool expected) const;
  void collect_if_grown(Partition& partition);
  uint64_t store_payload(Partition& partition, const Key& key, std::string_view value,
                         PayloadLog::Flush flush);
  // Collects a payload chunk of the key's partition for a pool that is full. False: there is none.
  bool free_payload(const Key& key);
  bool free_payload(Partition& partition);
  // Returns whether the log moved on to its next chunk for that.
  bool make_log_room(Partition& partition, uint64_t records);
  void copy_or_move(Partition& partition, uint64_t row);
  void reclaim_log_chunk(Partition& partition);
  bool copy_row_to_log(Partition& partition, uint64_t row);
  void compact_log(Partition& partition);
  void rebuild_row(uint64_t row) const;
  static uint32_t entry_epoch(const Entry& entry);
  // The recovery log of a partition that has this first level.
  static uint64_t log_bytes_of(const Root& root, uint32_t top);
  uint64_t log_bytes(uint32_t top) const { return log_bytes_of(root_, top); }
  uint64_t log_chunk_bytes(uint32_t top) const { return log_bytes(top) / root_.log_chunks; }
  PartitionHead& head_of(uint32_t partition) const {
    return pool_.at<PartitionHead>(root_.heads)[partition];
  }
  char* log_of(uint32_t partition) const;
  uint32_t number_of(const Partition& partition) const {
    return static_cast<uint32_t>(&partition - partitions_);
  }

  // ---- batch.cc
  class Group;
  void find_group(std::span<const Key> keys, std::span<Hit> hits, std::span<bool> found) const;
  // ---- bulk.cc
  bool write_unlogged(LogKind kind, const Key& key, uint64_t value, std::string_view payload);
  uint64_t unlogged_moves_max(const Partition& partition) const;
  // Makes the payload of unlogged writes durable; before anything durable leads to it.
  void settle_payload(Partition& partition) const;
  // Begins the log anew with what the rows hold: nothing of them is unlogged any more. Durable.
  void log_all_rows(Partition& partition);
  void move_all_down(Partition& partition);
  // Calls `work` for each partition, on this thread and `threads` - 1 more. The first error is thrown.
  void for_each_partition(unsigned threads, const std::function<void(uint32_t)>& work) const;

  // ---- migrate.cc
  void flush_row(Partition& partition, uint64_t row);
  void append_row(Partition& partition, uint64_t row, uint32_t count);
  Append append_of_row(uint64_t row, uint32_t count) const;
  void row_moved(Partition& partition, const Append& append);
  // Finds the buckets for the records, and allocates those that are missing.
  void plan(Append& append, pm::Heap::TxnIfNeeded& txn) const;
  void write_buckets(const Append& append) const;
  FilterBits filter_of_tags(const uint64_t* tags, uint32_t count) const;
  void fill_line(const Append& append, uint32_t line) const;
  // Buckets and intents: flushed, to be fenced before reveal_all().
  void stage_all(std::span<const Append> appends, pm::Heap::Txn* txn) const;
  void write_all(std::span<const Append> appends, pm::Heap::Txn* txn) const;
  // Durable on return, with what the transaction settles.
  void reveal_all(std::span<const Append> appends, pm::Heap::Txn* txn) const;
  void clear_block(uint64_t offset, uint64_t bytes) const;
  // The entry keeps its buckets when it is drained.
  bool keeps_buckets(uint32_t level, uint64_t index) const {
    return level == top_above(level, index) || level <= root_.shape.preallocated_levels;
  }
  void rewrite(uint32_t level, uint64_t index, const Gathered& live);
  bool compact(uint32_t level, uint64_t index);
  // `lines`: of each of them, if they are to be made.
  void ensure_children(uint32_t level, uint64_t index, uint32_t lines);
  // Gives children so many lines, if they have fewer.
  void widen_children(uint32_t level, uint64_t index, uint32_t lines);
  void ensure_table(uint32_t level);
  // kUnsound: the counts of its lines cannot be; or a writer is changing them.
  static constexpr uint32_t kUnsound = ~uint32_t{0};
  static uint32_t used(const Place& place);
  // Under the partition's lock. Throws kCorrupt.
  uint32_t used(uint32_t level, uint64_t index, const Place& place) const {
    const uint32_t count = used(place);
    if (count == kUnsound) [[unlikely]]
      throw_damaged(level, index);
    return count;
  }
  // The same under the partition's lock; of the copy, if there is one: one line instead of eight.
  uint32_t records_in(uint32_t level, uint64_t index) const;
  static uint32_t line_count(const Entry& entry, uint32_t line) {
    const LineState first{pm::load_acquire(entry.lines[0].state)};
    if (line == 0) return first.count();
    const LineState state{pm::load_acquire(entry.lines[line].state)};
    return state.generation() == first.generation() ? state.count() : 0;
  }

  // ---- the copies of entries in DRAM; under the partition's lock (search.cc)
  bool is_path_known(uint64_t hash) const;
  void populate_path(uint64_t hash) const;
  void populate(uint32_t level, uint64_t index) const;
  // Returns how many of the records seem to supersede others of the entry, so far as that is counted.
  uint32_t cache_append(const Append& append) const;
  // Records of an entry that seem to have a newer version in it, or were removed in place.
  uint32_t superseded_in(uint32_t level, uint64_t index) const;
  void set_superseded(uint32_t level, uint64_t index, uint32_t count) const;
  // Of an entry without a copy: what is about to be appended, by the filters.
  void count_superseded(const Append& append) const;
  // Records that an entry is drained at.
  uint32_t room_in(uint32_t level, uint64_t index) const {
    const DirectoryCache::Copy* copy = cached_copy(level, index);
    if (copy != nullptr && copy->room != 0) return copy->room;
    return place_at(level, index).records();
  }
  // What an append to the entry will change in PM.
  void prefetch_end(uint32_t level, uint64_t index) const;
  void prefetch_copy(uint32_t level, uint64_t index) const {
    if (has_copy(level, index)) DirectoryCache::prefetch(directory_cache_->at(level, index));
  }
  void rebuild_entry(uint32_t level, uint64_t index) const;
  // The level below the last that has copies.
  uint32_t copies_end(uint32_t top) const { return std::min(top + filter_levels_, kLevelsMax + 1); }
  bool has_copy(uint32_t level, uint64_t index) const {
    return level - top_above(level, index) < filter_levels_;  // none above the first level
  }
  // The copy, if it has been made.
  const DirectoryCache::Copy* cached_copy(uint32_t level, uint64_t index) const {
    if (!has_copy(level, index)) return nullptr;
    const DirectoryCache::Copy& copy = directory_cache_->at(level, index);
    return DirectoryCache::is_known(copy) ? &copy : nullptr;
  }

  // ---- drain.cc
  void gather(uint32_t level, uint64_t index, Gathered& out) const;
  void begin_gather(uint32_t level, uint64_t index, Gathered& out) const;
  // `most` more records, from the newest to the oldest.
  void gather_some(uint32_t level, uint64_t index, uint32_t most, Gathered& out) const;
  void drop_tombstones(uint32_t level, uint64_t index, Gathered& out) const;
  bool may_be_below(uint32_t level, uint64_t hash) const;
  // Two records have the same key.
  bool is_same(uint64_t tag, uint64_t value, uint64_t other_tag, uint64_t other_value) const;
  void account_garbage(const Gathered& all) const;
  void prefetch_records(uint32_t level, uint64_t index, uint32_t begin, uint32_t end) const;
  void prefetch_next_child(const Drain& drain) const;
  void prefetch_count_of_child(const Drain& drain, uint32_t child) const;
  // Makes room for `needed` more records in an entry, at once.
  void drain(Partition& partition, uint32_t level, uint64_t index, uint32_t needed);
  // A step of what is to be drained in the partition, if anything is.
  void drain_some(Partition& partition);
  // If the next step is to append to a child, plans it; what is planned must be written, fenced,
  // revealed and told to child_done(). Leaves the partition as it is if it throws.
  bool plan_next_child(Partition& partition, Append& append, pm::Heap::TxnIfNeeded& txn) const;
  void child_done(Partition& partition, const Append& append) const;
  // A step that shares the fence of a log record: before it, and after it.
  struct SharedStep {
    Append append;
    pm::Heap::TxnIfNeeded txn;
    bool planned = false;
  };
  void begin_shared_step(Partition& partition, SharedStep& step) const;
  void end_shared_step(Partition& partition, SharedStep& step);
  // One step; what cannot go on is given up.
  void try_step(Partition& partition, uint32_t children);
  static bool is_draining(const Partition& partition, uint32_t level, uint64_t index);
  void push_drain(Partition& partition, uint32_t level, uint64_t index, uint32_t needed,
                  Drain::Why why);
  // Begins to rewrite the entry if enough of it seems superseded.
  bool push_if_littered(Partition& partition, Drain& drain, const Append& append);
  // Or would be when these records are appended; once for each append.
  bool is_littered(const Drain& drain, const Append& append) const;
  void clear_litter(Partition& partition, Drain& drain);
  // The drain that is about to append to the entry of this one, or null.
  Drain* waiting_for(const Partition& partition, const Drain& drain) const;
  // Where a version of a record is in what was gathered: its place from 1, or 0.
  uint32_t place_in(const Gathered& all, uint64_t tag, uint64_t value) const;
  // Records that a drain has for its next child, of which `all` has no version.
  uint32_t count_new(const Drain& drain, const Gathered& all) const;
  // Rewrites that child with `all` and these, which the drain then need not append.
  void rewrite_with(Drain& drain, uint32_t level, uint64_t index, Gathered& all);
  // ---- grow.cc
  void note_overflow(uint32_t level, uint64_t index);
  void set_overflows_max(uint32_t number);
  void grow_if_due(Partition& partition);
  void grow(Partition& partition);
  void empty_entry(Partition& partition, uint64_t row);
  void switch_rows(Partition& partition, uint32_t top);
  void drain_step(Partition& partition, uint32_t children);
  bool group(Partition& partition, Drain& drain);
  void group_by_child(Drain& drain) const;
  Append append_of_child(const Drain& drain, uint32_t child) const;
  void append_children(Drain& drain, uint32_t end);
  void release_source(uint32_t level, uint64_t index);
  static bool has_buckets_from(const Entry& entry, uint32_t first);
  // Most of what it drains supersedes records below.
  static bool overwrites(const Drain& drain);
  void choose_room(const Drain& drain) const;
  void clear_entry(uint32_t level, uint64_t index, LineState state, uint32_t keep);
  // The record found at `before` is now `tag` and `value`: so are copies that a drain made of it.
  void follow_change(Partition& partition, const Key& key, const Hit& before, uint64_t tag,
                     uint64_t value) const;

  // ---- collect.cc
  size_t worth_collecting(uint32_t partition) const;
  bool collect_payload(Partition& partition, bool desperate);
  bool collect_chunk(Partition& partition, size_t index, bool desperate);
  void move_payload(Partition& partition, uint64_t pointer, const PayloadLog::View& view);

  // ---- core.cc
  void map_dram();
  static bool is_log_too_long(const Root& root, uint32_t directory_bits);
  static uint32_t top_max_of(const Root& root);
  static bool are_heads_sound(const pm::PoolImpl& pool, const Root& root);
  static Root make_root(pm::PoolImpl& pool, const PlushOptions& options, bool out_of_place);

  // ---- preallocate.cc
  static void require_room(pm::PoolImpl& pool, const Root& root, uint64_t other_bytes);
  void preallocate();
  void allocate_buckets(std::span<Entry* const> entries) const;

  // ---- recover.cc
  void recover(uint32_t threads);
  void recover_partition(uint32_t partition);
  bool replay_record(Partition& partition, const pm::RedoRecord& record, uint64_t sequence,
                     bool last);
  void close();

  // ---- inspect.cc
  struct Collected {
    uint64_t hash;
    uint64_t tag;
    uint64_t value;
    bool dangles;  // damaged, unless a newer record of the key was met before
  };
  // What is under the row that a hash belongs to. Returns the hash that the next row begins with, 0 after
  // the last: if the partition grows in between, nothing is met twice or not at all.
  uint64_t collect_subtree(uint64_t hash, std::vector<Collected>& out) const;
  uint64_t next_row(uint64_t hash, uint32_t top) const {
    return (index_at(top, hash) + 1) << index_shifts_[top];
  }
  void collect_entry(uint32_t level, uint64_t index, std::vector<Collected>& out,
                     std::unordered_multimap<uint64_t, size_t>& seen) const;
  void collect_one(const Collected& one, std::vector<Collected>& out,
                   std::unordered_multimap<uint64_t, size_t>& seen) const;
  void visit_entries(
      const std::function<void(uint32_t level, uint64_t index, const Place&)>& visit) const;
  void visit_children(uint32_t level, uint64_t index,
                      const std::function<void(uint32_t, uint64_t, const Place&)>& visit) const;
  void check_entry(uint32_t level, uint64_t index, const Place& place,
                   const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  const Kernels& kernels_;
  Kind key_kind_;
  Kind value_kind_;
  bool out_of_place_;
  bool ordered_;
  uint8_t index_shifts_[kLevelsMax + 1];  // by level; of hashes
  uint32_t order_shift_;                  // ordered: leading zeros of the widest place
  uint64_t key_min_;                      // 0 and the largest word, if not ordered
  uint64_t key_max_;
  uint32_t garbage_percent_;
  uint32_t filter_levels_;
  uint32_t top_max_;  // that partitions grow to
  uint32_t deepest_;  // of the levels in PM
  bool recovered_ = false;
  uint64_t recovered_operations_ = 0;
  Entry* level1_;
  std::atomic<uint32_t*> tables_[kLevelsMax + 1] = {};
  std::mutex tables_mutex_;
  std::string name_;
  Partition* partitions_ = nullptr;
  uint32_t partition_count_ = 0;
  std::unique_ptr<std::atomic<uint8_t>[]> tops_;  // by partition
  Row* rows_ = nullptr;  // of all levels that may be the first; see row_of()
  Bucket* row_records_ = nullptr;
  std::optional<Arena> rows_arena_;
  std::unique_ptr<PayloadLog> payload_;
  std::unique_ptr<DirectoryCache> directory_cache_;
  FastPath fast_path_;
};

template <typename Use>
bool Core::lookup(std::string_view key, Use use) const {
  if (!is_inside(key)) return false;
  const pm::EpochManager::Guard guard(payload_->epochs());
  Hit hit;
  if (!find(key_of(key), hit)) return false;
  use(payload_of(hit.value).value);
  return true;
}

template <typename Use>
void Core::lookup_group(std::span<const Key> keys, Use use) const {
  std::optional<pm::EpochManager::Guard> guard;
  if (out_of_place_) guard.emplace(payload_->epochs());
  Hit hits[kGroup];
  bool found[kGroup];
  find_group(keys, std::span(hits, keys.size()), std::span(found, keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!found[i]) continue;
    if constexpr (std::is_invocable_v<Use, size_t, uint64_t>) {
      use(i, hits[i].value);
    } else {
      use(i, payload_of(hits[i].value).value);
    }
  }
}

}  // namespace perdure::index::plush
