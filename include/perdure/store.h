// RStore: a durable key-value store of low and predictable latency, embedded in a program.
//
//   perdure::Pool pool = perdure::Pool::create("/dev/shm/words.pool", {.capacity_bytes = 1 << 30});
//   perdure::Store store = perdure::Store::create(pool, "words");
//   store.put("perdure", "to last, to go on existing");
//   std::optional<std::string> meaning = store.get("perdure");
//
// Keys and values are byte strings. The records lie in a log in the pool, the index in DRAM unless
// it is asked for in PM: a write costs one flush of what it says and one fence, a read one line of
// the index and the record. The store is cut into partitions, by the hash of the key or by
// boundaries among the keys; each partition has a log of its own, and compacts it a little with
// each write, so that no write waits for long.
//
// Every call is atomic, durable when it returns (as the pool's durability says), and may be made by
// any thread. Errors of all calls: kCorrupt (a record is damaged), kIo (the medium has failed, now
// or before); of those that write also kPoolFull and kNoSpace (nothing was changed), kTooLarge,
// kReadOnly.
// Source: Lersch et al., "Enabling Low Tail Latency on Multicore Key-Value Stores", PVLDB 2020.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"
#include "perdure/task.h"

namespace perdure {

namespace store {
class StoreCursor;
class StoreImpl;
class StoreSnapshot;
class StoreTurn;
}  // namespace store

// What finds a record. In DRAM, and rebuilt from the log when the store is opened, or in PM.
enum class StoreIndex : uint8_t {
  kAsCreated,  // at creation: kHash
  kHash,       // the fastest; 9 to 12 bytes of DRAM a record
  kOrdered,    // finds records in the order of their keys, too: a B+tree; 22 to 32 bytes a record
  // by hash, in PM: nothing is rebuilt, and next to no DRAM is taken, however many records there
  // are
  kPm
};

// How a store is made or opened.
struct StoreOptions {
  // At creation: what the store has unless an opening asks for something else. At opening: for this
  // time. Whether it is in PM is fixed at creation.
  StoreIndex index = StoreIndex::kAsCreated;
  // With kPm: which structure it is. A concurrent one of the catalogue from words to words, with
  // options of its own if there are any ("cceh:initial_depth=4,segment_buckets=256"); empty:
  // "cceh". Fixed at creation.
  std::string index_structure = {};
  // How many parts the store is cut into, 1 to 1024; 0: one for each 4 MiB of the pool's capacity,
  // at most 64, with an ordered index 16. As many threads can write at the same time. Fixed at
  // creation.
  uint32_t partitions = 0;
  // Keys, ascending, that cut the store into partitions: one more than there are boundaries, each
  // with the keys from a boundary on, and before the next one. None: the hash of the key chooses
  // the partition. With boundaries, scans read one partition after the other, which is faster than
  // all side by side; choose them so that partitions become about equally large. Up to 1 MiB
  // together. Fixed at creation.
  std::vector<std::string> boundaries = {};
  // Bytes of a block of the log, a power of two from 1 KiB to 64 KiB; 0: as the pool's capacity
  // suggests. Fixed at creation.
  uint32_t block_bytes = 0;
  // How much of the log may be garbage before it is compacted, in percent of what counts, 5 to 400.
  // Less takes less room and more writing. 0: 25, and less, down to 5, where the pool has no room
  // for so much. Of this opening.
  uint32_t garbage_percent = 0;
  // How much of the log may come to be, in percent of what counts, before a partition writes its
  // index in DRAM to the pool anew, a little with each write: an opening after a crash reads that
  // snapshot, and of the log what has come since. Less makes that opening shorter, and writes more:
  // each time about 8 bytes a record, of an ordered index some 20. The pool needs room for two of
  // them; if it gets full they go. 0: there are none but those of a clean close; else 5 to 400. Of
  // this opening.
  uint32_t index_snapshot_percent = 25;
  // Threads that read the log when the store is opened; 0: one for each processor. Of this opening.
  uint32_t recovery_threads = 0;
  // Whether open() returns as soon as the roots and the headers of the blocks are read, while
  // threads go on to read the partitions. A call that needs one which is not ready yet reads it, or
  // waits for the thread that does; what concerns all of the store waits for all. Damage that
  // open() would have reported is then an error of each call that needs the partition. A process
  // must not fork() before the store is_ready(). Of this opening.
  bool serve_early = false;
  // Who works on the partitions. 0: whoever calls, which costs a latch; best for plain calls. Else
  // so many worker threads, each of which owns a part of the partitions: calls go to them as
  // messages, and what arrives together becomes durable by one fence; best for tasks, which run
  // there without a message. Who calls while a worker sleeps works on its partitions in its place,
  // on what others have asked for meanwhile, too: functions that were given to modify() and the
  // like may be called by the thread of another call. Of this opening.
  uint32_t workers = 0;
  // Whether workers that have more to do than others give partitions away.
  bool balance = false;
  // How much of the log is kept for changes(), of all partitions together, in whole blocks of each;
  // ~0: as much as the pool has room for. 0: what consumers have not read. Of this opening.
  uint64_t changes_bytes = 0;
  // How much of it consumers that lag behind may have kept; 0: a quarter of the pool's capacity. Of
  // this opening.
  uint64_t unread_bytes = 0;
  // How much of the pool the store may take, an equal part of it each partition; 0: what there is,
  // with `evict` seven eighths of the capacity. kInvalidArgument if that is less than 12 blocks for
  // each partition. Of this opening.
  uint64_t bytes_max = 0;
  // The store as a cache: beyond that it evicts records, where it otherwise refuses writes. What
  // has expired goes first, then, block by block, what was written or moved longest ago and not
  // read since. Records that an eviction takes are gone for good, each batch's among them one by
  // one; changes() does not tell of it. Of this opening.
  bool evict = false;
  // Whether a record may be evicted; none: all may. Called with the partition stopped, for several
  // of them at the same time: it must not use the store.
  std::function<bool(std::string_view key, std::string_view value)> may_evict = {};
  // Called for each key that is evicted before its time, as may_evict: it must not throw, either. A
  // crash may bring some of them back.
  std::function<void(std::string_view key)> evicted = {};
};

// What Store::verify() has met.
struct StoreVerification {
  uint64_t partitions = 0;
  uint64_t blocks = 0;       // of records
  uint64_t long_values = 0;  // in blocks of their own
  uint64_t unused_blocks = 0;
  uint64_t records = 0;  // of the log: those that count, and those that do not any more
  uint64_t record_bytes = 0;
  uint64_t faults = 0;
};

// What Store::backup() has written.
struct StoreBackup {
  uint64_t entries = 0;                  // records, of a backup since another one changes
  uint64_t bytes = 0;                    // of the file
  std::vector<uint64_t> positions = {};  // of each partition, where the next one goes on
};

// A key-value store in a pool: see above.
class Store {
 public:
  static constexpr uint64_t kKeyBytesMax = uint64_t{64} << 10;
  static constexpr uint64_t kValueBytesMax = uint64_t{64} << 20;

  // When a record ends to be there, by the system's clock. Default: never.
  using Time = std::chrono::system_clock::time_point;

  // Makes a store in a pool. Errors: kInvalidArgument, kNameExists, kPoolFull, kNoSpace, kReadOnly.
  static Store create(Pool& pool, const std::string& name, const StoreOptions& options = {});
  // Keys for StoreOptions::boundaries that cut a store into so many partitions of about as many of
  // the sampled keys each; fewer where the sample has too few different ones. They are as short as
  // tells the keys apart. The sample may be in any order. kInvalidArgument if there would be more
  // than 1024 partitions, or none.
  static std::vector<std::string> boundaries_of(std::vector<std::string> sample,
                                                uint32_t partitions);
  // Opens one, and rebuilds its index on all processors: after a clean close from a snapshot of the
  // index; after a crash from the last one before it, and what the log has got since; else from the
  // log, about 0.1 us a record. Errors: kNoSuchName, kWrongType, kCorrupt, kInUse, kInvalidArgument
  // (other partitions or block_bytes).
  static Store open(Pool& pool, const std::string& name, const StoreOptions& options = {});

  // Opened with `serve_early`: whether the partition, or all of them, can be used without waiting;
  // statistics() has how many can (partitions_ready), and counts these alone. A partition that
  // could not be read never will be: then both throw what open() would have (kCorrupt, kIo), as
  // wait_until_ready() does, and so does every call that needs it.
  bool is_ready(uint32_t partition) const;
  bool is_ready() const;
  void wait_until_ready() const;

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  // Closes the store. All else that uses it must have ended.
  ~Store();

  // The value of a key.
  std::optional<std::string> get(std::string_view key) const;
  // The same into `value`, whose memory is used again. Returns false, and leaves it, if there is
  // none. `version`, if given, is set to the record's version, for compare_and_swap().
  bool get(std::string_view key, std::string& value, uint64_t* version = nullptr) const;
  bool contains(std::string_view key) const;

  // Writes a record, whether or not the key is there; it ends to be there at `expires`, if given.
  // Returns its version: of two records of a key the later has the higher one.
  uint64_t put(std::string_view key, std::string_view value, std::optional<Time> expires = {});
  // Only if the key is not there. Returns whether it was written.
  bool insert(std::string_view key, std::string_view value, std::optional<Time> expires = {});
  // Only if the key is there.
  bool update(std::string_view key, std::string_view value, std::optional<Time> expires = {});
  // Only if the record of the key is there and has this version.
  bool compare_and_swap(std::string_view key, uint64_t version, std::string_view value,
                        std::optional<Time> expires = {});
  // Returns whether the key was there.
  bool remove(std::string_view key);
  // Only if the record of the key is there and has this version. Returns whether it was removed.
  bool compare_and_remove(std::string_view key, uint64_t version);

  // Adds to a number in decimal digits, 0 if the key is not there, and returns the sum. The record
  // keeps its expiry. Throws kInvalidArgument if the value is no 64-bit number, or the sum would be
  // none.
  int64_t increment(std::string_view key, int64_t by = 1);
  // Appends to a value, empty if the key is not there; returns its new length. Keeps the expiry.
  uint64_t append(std::string_view key, std::string_view suffix);
  // Replaces the value by what `change` makes of it (given null if the key is not there); if it
  // returns nothing, the record is removed. `change` is called once, and once more if the pool was
  // full and there was room to be had from other partitions; it must not use the store. Keeps the
  // expiry.
  void modify(std::string_view key,
              const std::function<std::optional<std::string>(const std::string_view*)>& change);

  // The values of several keys, faster than one after the other: `values[i]` is set if key i is
  // there. Returns how many are. kInvalidArgument if `values` is shorter than `keys`.
  uint64_t multi_get(std::span<const std::string_view> keys,
                     std::span<std::optional<std::string>> values) const;

  // Several writes that become durable together, at the price of one fence, or two if they concern
  // several partitions. No other thread sees a part of them, an error means that nothing was
  // changed, and a crash before apply() returns keeps all of them or none. Equal keys: the last one
  // stays. kTooLarge if those of one partition do not fit into a block. Who works on the partitions
  // concerned waits meanwhile.
  class Batch {
   public:
    void put(std::string_view key, std::string_view value, std::optional<Time> expires = {});
    void remove(std::string_view key);
    void clear() { writes_.clear(); }
    size_t size() const { return writes_.size(); }

   private:
    friend class store::StoreImpl;
    friend class store::StoreTurn;
    struct Write {
      std::string key;
      std::string value;
      uint64_t expiry_ms;
      bool removal;
    };
    std::vector<Write> writes_;
  };
  void apply(const Batch& batch);

  // Removes all records whose keys begin with `prefix`, an empty one all there are, and returns how
  // many that were. Atomic and durable as a batch; in the log it is one record for each partition
  // that has such records, however many. Cost: with an ordered index a read for each of them; with
  // a hash index a read for each record of the store. Nobody works on the partitions meanwhile.
  // kTooLarge if the prefix has more than a quarter of a block.
  uint64_t remove_prefix(std::string_view prefix);

  // Calls `visit` once for each record, in no particular order. Records that are written meanwhile
  // may or may not be seen. `visit` may use the store.
  void for_each(
      const std::function<void(std::string_view key, std::string_view value)>& visit) const;

  // Calls `visit` for up to `limit` records in the order of keys, from the first whose key is not
  // less than `from`, until it returns false. Records that are written meanwhile may or may not be
  // seen; others are seen exactly once. `visit` may use the store. Cost: as a cursor's. kWrongType
  // if the index is by hash.
  void scan(std::string_view from, uint64_t limit,
            const std::function<bool(std::string_view key, std::string_view value)>& visit) const;

  // A place among the records in the order of keys. Its records are copies, read up to 256 of a
  // partition at a time: one that has been written or removed since may be seen as it was. Changes
  // do not disturb it: it goes on behind the key where it stands. For one thread; its store must
  // stay open, and stay where it is. Cost: a few random reads for each partition to begin with
  // (one, where boundaries cut the store), then one for each record, several of them at the same
  // time.
  class Cursor {
   public:
    Cursor(Cursor&&) noexcept;
    Cursor& operator=(Cursor&&) noexcept;
    ~Cursor();

    // To the first record, the last one; the first whose key is not less than `key`, the last one
    // whose key is not greater. Not valid() if there is none, nor if reading throws (kCorrupt).
    void first();
    void last();
    void seek(std::string_view key);
    void seek_down(std::string_view key);
    // Whether it stands at a record.
    bool valid() const;
    // To the record with the next key, or the one before; not valid() at the end. Only if it is
    // valid(). If reading throws (kCorrupt) it stands where it stood, and the next call tries
    // again: no scan goes on without the records of a partition that could not be read.
    void next();
    void previous();
    // Of the record. Valid until the cursor is moved.
    std::string_view key() const;
    std::string_view value() const;
    uint64_t version() const;

   private:
    friend class Store;
    explicit Cursor(std::unique_ptr<store::StoreCursor> impl);
    std::unique_ptr<store::StoreCursor> impl_;
  };
  // Not valid() until it is told where to stand. kWrongType if the index is by hash.
  Cursor cursor() const;

  // The store at one moment, to be read while writes go on: what is written later is not seen, what
  // is removed later still is. Any thread may use it; it must end before the store does, and is
  // gone after a crash. Cost: taking one stops all writes for some 0.1 us a partition; for each
  // record that is superseded or removed while it lives, 60 to 120 bytes of DRAM (and with an
  // ordered index its key), and its room in the log. So a store that is written to gets full
  // sooner, at the latest when its records were all written anew. std::bad_alloc from its reads if
  // there was no memory for that.
  class Snapshot {
   public:
    Snapshot(Snapshot&&) noexcept;
    Snapshot& operator=(Snapshot&&) noexcept;
    ~Snapshot();

    std::optional<std::string> get(std::string_view key) const;
    // As the store's; each record is seen exactly once.
    void for_each(
        const std::function<void(std::string_view key, std::string_view value)>& visit) const;
    void scan(std::string_view from, uint64_t limit,
              const std::function<bool(std::string_view key, std::string_view value)>& visit) const;
    // The snapshot must live as long.
    Cursor cursor() const;
    // The partition's last write that it sees.
    uint64_t version(uint32_t partition) const;
    // Where changes() of the partition has what came after it.
    uint64_t position(uint32_t partition) const;

   private:
    friend class Store;
    explicit Snapshot(std::unique_ptr<store::StoreSnapshot> impl);
    std::unique_ptr<store::StoreSnapshot> impl_;
  };
  // The store as it is now: what is written from here on does not show in it. The store must
  // outlive it.
  Snapshot snapshot() const;

  // What was written, in order: a stream for a replica, a backup, a feed. A position is a version:
  // the stream of a partition from a position on has all its writes of this version and later ones,
  // each once, and none that a crash takes back. What expires is told by the record's time, not by
  // a removal.
  struct Change {
    // What was done to the key.
    enum class Kind : uint8_t { kPut, kRemove, kRemovePrefix };
    Kind kind = Kind::kPut;
    uint64_t version = 0;
    std::string key;  // of kRemovePrefix the prefix
    std::string value;
    std::optional<Time> expires;
    // The next one is of the same batch. Positions between these are for those who can do with half
    // of one.
    bool goes_on = false;
    // If a batch concerned several partitions: the version that ends it in one of them, which names
    // it in all; else 0.
    uint32_t batch_partition = 0;
    uint64_t batch_version = 0;
  };
  // What changes() gives: a stream of one partition. For one thread at a time; the store must
  // outlive it.
  class Changes {
   public:
    Changes(Changes&&) noexcept;
    Changes& operator=(Changes&&) noexcept;
    ~Changes();
    // Returns false, and leaves `out`, if there is nothing more for now: a later call looks again.
    // Cost: a copy; the partition is looked at for each 256 KiB.
    bool next(Change& out);
    // Behind what next() has given: where another stream goes on.
    uint64_t position() const;

   private:
    friend class Store;
    struct Impl;
    explicit Changes(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  // Of a partition, from a position on. For one thread; the store must stay open, and stay where it
  // is. Throws, as next() does if it falls behind: kInvalidArgument if the log is not kept from
  // there on. Then, or to begin with, a snapshot says what there is, and position(partition) of it
  // where the stream goes on.
  Changes changes(uint32_t partition, uint64_t from) const;
  // The first position that is kept of a partition, and that of its next write.
  uint64_t first_change(uint32_t partition) const;
  uint64_t next_change(uint32_t partition) const;

  // Those who read the changes, by name, up to 16: what a consumer has not acknowledged is kept,
  // over openings and crashes, as far as `unread_bytes` and the room in the pool allow. Rather than
  // refuse a write, the store lets go of the oldest of it, and the consumer learns that from
  // changes(). add_consumer() begins at the next writes, at one moment for all partitions. Durable
  // on return. Errors: kNameExists, kNoSuchName, kInvalidArgument (more than 47 bytes, more than
  // 16, a position that goes back or beyond the next write), kReadOnly, kPoolFull, kNoSpace, kIo.
  void add_consumer(const std::string& name);
  void remove_consumer(const std::string& name);
  std::vector<std::string> consumers() const;
  uint64_t consumer_position(const std::string& name, uint32_t partition) const;
  // What is before `position` is not needed any more. Cost: a line and a fence.
  void acknowledge(const std::string& name, uint32_t partition, uint64_t position);

  // Writes the store as it is at one moment to a file, while it goes on; what others write
  // meanwhile is not in it. A backup of this name is replaced once the new one is whole and
  // durable. Cost: as a snapshot's, and a copy.
  // `since`: an earlier backup of this store; the file has only what was written after that one, if
  // the log is kept so far (changes_bytes; or a consumer who acknowledges `positions`), else
  // kInvalidArgument. Errors too: kNotFound, kPermission, kForeign, kCorrupt, kIo of the files;
  // kExists (the file is there, and no backup); kInvalidArgument if it is `since` itself, or not of
  // the history that the store has now (its pool was put back to an older state, an earlier version
  // of this library wrote to it, it evicted, or backups were made in more than some hundred
  // openings since): then make a whole one; kReadOnly if the pool is open to read and the store was
  // not closed. The first backup of an opening makes a note of it in the pool.
  StoreBackup backup(const std::string& file, const std::string& since = {}) const;
  // Whether others can go on from a backup that is made now. Not of a store that evicts; of a pool
  // that is open to read only if a backup was made in the last opening to write, whose note says
  // what the store has.
  bool can_back_up_since() const;
  // As backup(), of the store `name` of a pool file that another process has open to write, which
  // makes the backup if it opened the pool with PoolOptions::serve_backups, as `perdure serve`
  // does. `consumer`, if given, is made if it is not there, and has acknowledged what the backup
  // has on return. Errors besides: kLocked, kPermission, kInUse, kIo as of Pool::backup_live(),
  // kNoSuchName (no such store is open there). `positions` is empty.
  static StoreBackup backup_live(const std::string& pool, const std::string& name,
                                 const std::string& file, const std::string& since = {},
                                 const std::string& consumer = {});
  // Makes a store of a whole backup and those that go on from it, each from the one before. All are
  // verified before anything is made: kNotFound, kForeign, kTruncated, kCorrupt, kInvalidArgument
  // (not one after the other). It has the partitions that the other one had; versions are new. Else
  // as create(); if it throws then, a part of the store is there.
  static Store restore(Pool& pool, const std::string& name, std::span<const std::string> files,
                       const StoreOptions& options = {});

  // The same from a task (perdure/task.h): `co_await` suspends the task until what it wrote is
  // durable, and lets its worker do other work meanwhile, of which all is made durable by one
  // fence. With workers only; without, nothing is suspended, and each call does what the one
  // without `async` does. Cost: one allocation, and a message if another worker owns the partition.
  // async_apply() and async_remove_prefix() stop the worker for as long as the calls without would.
  // A task may make the calls without `async`, too, and await those of another store: its worker
  // waits, and those who call meanwhile do the worker's work in its place, so that tasks of two
  // stores may wait for each other. Only its own tasks wait with it; so tasks of two stores that
  // run() tasks of each other may wait for ever. `version`, if given, is set if the record is
  // there; it must outlive the call.
  Task<std::optional<std::string>> async_get(std::string key, uint64_t* version = nullptr) const;
  Task<bool> async_contains(std::string key) const;
  Task<uint64_t> async_put(std::string key, std::string value, std::optional<Time> expires = {});
  Task<bool> async_insert(std::string key, std::string value, std::optional<Time> expires = {});
  Task<bool> async_update(std::string key, std::string value, std::optional<Time> expires = {});
  Task<bool> async_compare_and_swap(std::string key, uint64_t version, std::string value,
                                    std::optional<Time> expires = {});
  Task<bool> async_remove(std::string key);
  Task<bool> async_compare_and_remove(std::string key, uint64_t version);
  Task<int64_t> async_increment(std::string key, int64_t by = 1);
  Task<uint64_t> async_append(std::string key, std::string suffix);
  Task<void> async_modify(
      std::string key, std::function<std::optional<std::string>(const std::string_view*)> change);
  // Value i is that of key i. Cost: a message for each partition that has some of the keys, one
  // after the other.
  Task<std::vector<std::optional<std::string>>> async_multi_get(
      std::vector<std::string> keys) const;
  // Up to `limit` records in the order of keys, from the first whose key is not less than `from`;
  // `downwards` in the other order, from the last whose key is not greater. As scan(): what is
  // written meanwhile may or may not be among them. Cost: a message for each partition that may
  // have some of them, for each 256 records; between these the worker does other work.
  struct Record {
    std::string key;
    std::string value;
    uint64_t version = 0;
  };
  Task<std::vector<Record>> async_scan(std::string from, uint64_t limit,
                                       bool downwards = false) const;
  Task<void> async_apply(Batch batch);
  Task<uint64_t> async_remove_prefix(std::string prefix);

  // Runs a task on a worker, in turn; waits for its end, and returns its result or throws what it
  // threw. Not from a task: kInvalidArgument. Without workers the calling thread runs it.
  template <typename T>
  T run(Task<T> task) {
    run_to_end(end_of(task));
    return task.take_result();
  }
  // Runs it while the caller goes on; from a task, too. The store's end waits for it. What it
  // throws ends the process. Without workers as run().
  void spawn(Task<void> task);

  // How many partitions it has.
  uint32_t partitions() const;
  // Which of them has a key, if it is there.
  uint32_t partition_of(std::string_view key) const;
  // How many records there are, with those that have expired and are not yet compacted. Cost: one
  // load for each partition.
  uint64_t size() const;

  // Verifies all blocks, records and the index. `report` gets one sentence for each violation;
  // returns how many there were. Needs that nobody writes.
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  // The same for a store that need not open, and must not be open: reads all that it has in the
  // pool, goes on behind what is damaged, and names each such place. If there is none, opens it and
  // does what check() does. Changes nothing in a pool that is open to read. Errors: kNoSuchName,
  // kWrongType.
  static StoreVerification verify(Pool& pool, const std::string& name,
                                  const std::function<void(const std::string&)>& report);
  // Figures for people: records, bytes, compaction, DRAM.
  std::vector<Statistic> statistics() const;

 private:
  friend class store::StoreImpl;
  explicit Store(std::unique_ptr<store::StoreImpl> impl);
  template <typename T>
  static Task<void> end_of(Task<T>& task) {
    co_await task.end();
  }
  void run_to_end(Task<void> task);

  std::unique_ptr<store::StoreImpl> impl_;
};

}  // namespace perdure
