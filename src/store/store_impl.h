// A store: its partitions, and who works on them. In-line, that is whoever calls, behind the
// partition's latch. With workers, it is the worker that owns the partition, to which calls go as
// messages; what arrived together shares a fence. The worker takes the latch, too, which nobody
// else wants but for what concerns several partitions at once.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/owned_blocks.h"
#include "perdure/store.h"
#include "pm/lock.h"
#include "store/boundaries.h"
#include "store/hash.h"
#include "store/latch.h"
#include "store/partition.h"
#include "store/runs.h"
#include "store/runtime/runtime.h"

namespace perdure::pm {
struct LiveRequest;
}

namespace perdure::store {

class StoreSnapshot;
struct BackupEntry;
class BackupReader;

using BackupProgress = std::function<void(uint64_t done, uint64_t total)>;

// A copy of a record.
struct RecordCopy {
  std::string key;
  std::string value;
  uint64_t expiry_ms;
};

// How far a copy of a partition has come.
struct CopyPlace {
  std::string
      after;  // with an ordered index: the last key; else the next tag, and how many at a time
  uint64_t tag = 0;
  uint64_t step = 0;
  bool has_begun = false;
  bool has_ended = false;
};

// A write of a partition's log, or the end of a part of a batch over several partitions.
struct LogEntry {
  enum class Kind : uint8_t { kPut, kRemove, kRemovePrefix, kEndsBatch };
  Kind kind = Kind::kPut;
  bool goes_on = false;  // the next one is of the same batch
  uint64_t version = 0;
  uint64_t expiry_ms = kNoExpiry;
  std::string key = {};
  std::string value = {};
  // Of kEndsBatch: where the batch ends in its first partition, and, there, in all others, too.
  std::vector<BatchPart> parts = {};
};

class StoreImpl final : public RuntimeClient {
 public:
  static std::unique_ptr<StoreImpl> create(Pool& pool, const std::string& name,
                                           const StoreOptions& options);
  // `asked_first`: keys that will be asked for at once. With serve_early their partitions are the
  // first to be ready.
  static std::unique_ptr<StoreImpl> open(Pool& pool, const std::string& name,
                                         const StoreOptions& options,
                                         std::span<const std::string> asked_first = {});
  ~StoreImpl() override;
  StoreImpl(const StoreImpl&) = delete;
  StoreImpl& operator=(const StoreImpl&) = delete;

  // Calls `use(Found)` where the partition is worked on. Returns whether the key is there.
  template <typename Use>
  bool get(std::string_view key, Use use) const {
    const auto [hash, number] = place_of(key);
    if (runtime_ == nullptr && is_ready(number)) [[likely]] {
      // As with() does it, without a detour.
      Shard& shard = *shards_[number];
      const std::lock_guard held(shard.latch);
      Partition::Found found;
      if (!shard.partition.get_lazily(hash, key, now_ms, found)) return false;
      use(found);
      return true;
    }
    return with(number, false, [&](Partition& partition) {
      Partition::Found found;
      if (!partition.get_lazily(hash, key, now_ms, found)) return false;
      use(found);
      return true;
    });
  }
  bool write(const WriteRequest& request, uint64_t* version = nullptr);
  bool remove(std::string_view key);
  // Writes or removes a key that has the value `expected`; the record keeps its expiry.
  bool compare_exchange(std::string_view key, std::string_view expected, std::string_view desired);
  bool compare_remove(std::string_view key, std::string_view expected);
  bool compare_remove(std::string_view key, uint64_t version);
  static bool compare_remove(Partition& partition, uint64_t hash, std::string_view key,
                             uint64_t version);
  void modify(std::string_view key,
              const std::function<std::optional<std::string>(const std::string_view*)>& change);
  // Calls `use(i, Found)` for keys that are there.
  void multi_get(std::span<const std::string_view> keys,
                 const std::function<void(size_t i, const Partition::Found&)>& use) const;
  // Carries out several writes with few fences; `done[i]`, if given, says whether the condition of
  // write i held. If it throws, any may have been done, and `done` says which are.
  void multi_write(std::span<const WriteRequest> requests, std::span<bool> done);
  void apply(const Store::Batch& batch);
  uint64_t remove_prefix(std::string_view prefix) {
    return remove_prefix(prefix, partitions_with(prefix));
  }
  uint64_t remove_prefix(std::string_view prefix, std::vector<uint32_t> numbers);

  // consumers.cc. As the calls of Store of the same names.
  void add_consumer(const std::string& name);
  void remove_consumer(const std::string& name);
  std::vector<std::string> consumers() const;
  uint64_t consumer_position(const std::string& name, uint32_t partition) const;
  void acknowledge(const std::string& name, uint32_t partition, uint64_t position);
  struct KeptChanges {
    uint64_t first;
    uint64_t next;
  };
  KeptChanges kept_changes(uint32_t partition) const;
  // Up to about `bytes_max` of them, at least one write if there is one, in place of what `out`
  // had. Moves `from` behind them. If it throws nothing has changed; what precedes damage is told
  // first.
  void changes(uint32_t partition, uint64_t& from, Partition::LogPlace& hint, uint64_t bytes_max,
               std::vector<Store::Change>& out) const;

  // The same with the ends of batches over several partitions.
  void read_log(uint32_t partition, uint64_t& from, Partition::LogPlace& hint, uint64_t bytes_max,
                std::vector<LogEntry>& out) const;
  // How many bytes of log there are from a position on, about.
  uint64_t change_bytes(uint32_t partition, uint64_t from) const;
  // What tells the store from all others, but for copies of its pool.
  uint64_t identity() const { return root_.salt; }

  // Of the runs of the store (runs.h), once all partitions are ready. tell_run(): 0 if it cannot be
  // gone on from.
  uint64_t tell_run() const;
  bool tells_no_run() const { return runs_->tells_none(); }
  Runs::Verdict judge_run(uint64_t run, std::span<const uint64_t> positions) const;

  // backup.cc Some more of a partition's records, as a snapshot sees them; without one as they are,
  // of which what is written meanwhile may be seen or not. `out` may come to be empty before the
  // end.
  void copy_some(uint32_t number, const StoreSnapshot* snapshot, CopyPlace& place,
                 std::vector<RecordCopy>& out) const;
  StoreBackup backup(const std::string& file, const std::string& since) const;
  // Makes backups for other processes that ask the pool's writer for them (pm/live.h), until the
  // store is closed. `turns`: what is held by who uses the store by turns (StoreTurn); it is taken
  // for a moment at a time. Null: nobody does.
  void answer_backups(std::mutex* turns);
  // Asks for one. A consumer that is given, and made if it is not there, has acknowledged what is
  // in it on return.
  static StoreBackup backup_live(const std::string& pool, const std::string& name,
                                 const std::string& file, const std::string& since,
                                 const std::string& consumer, const BackupProgress& progress);
  static std::unique_ptr<StoreImpl> restore(Pool& pool, const std::string& name,
                                            std::span<const std::string> files,
                                            const StoreOptions& options);

  using Visit = std::function<void(std::string_view key, std::string_view value)>;
  void for_each(const Visit& visit, const StoreSnapshot* snapshot = nullptr) const;
  // Throws kWrongType unless there is an ordered index: cursors and scans need it.
  void require_ordered() const;
  // Of the store as it is, or as the snapshot sees it.
  void scan(uint32_t number, const ScanFrom& from, const StoreSnapshot* snapshot,
            const Partition::VisitUntil& visit) const;
  void scan(std::string_view from, uint64_t limit,
            const std::function<bool(std::string_view, std::string_view)>& visit,
            const StoreSnapshot* snapshot = nullptr) const;
  // Without a key from the last one on.
  void scan_back(std::optional<std::string_view> from, uint64_t limit,
                 const std::function<bool(std::string_view, std::string_view)>& visit) const;
  uint32_t partitions() const { return root_.partitions; }
  // opening.cc. How far the opening is. Partitions that are neither ready nor failed are being
  // opened.
  struct Progress {
    uint32_t ready = 0;
    uint32_t failed = 0;
  };
  Progress progress() const;
  // Whether it is not known yet if the partition can be read. Who must not wait looks here first.
  bool is_opening(uint32_t number) const {
    const Opening now = shards_[number]->opening.load(std::memory_order_acquire);
    return now == Opening::kWaiting || now == Opening::kRecovering;
  }
  // For tests: called before a partition is recovered, by the thread that does it. Null: nothing.
  static std::atomic<void (*)(uint32_t number)> before_recovery;
  // For tests, with workers: moves a partition to another worker, while requests for it come in.
  // Returns when it is there.
  void move_partition(uint32_t number, uint32_t worker) const { runtime_->move(number, worker); }
  // Whether the partition has been recovered.
  bool is_ready(uint32_t number) const {
    return shards_[number]->opening.load(std::memory_order_acquire) == Opening::kReady;
  }
  // Before anything is done to the partition, without any latch: waits until it is ready, or sees
  // to it. Throws what its recovery has thrown.
  void require_ready(uint32_t number) const {
    if (!is_ready(number)) [[unlikely]]
      await_ready(number);
  }
  void require_partition(uint32_t partition) const;  // Throws kInvalidArgument unless there is one.
  bool is_ordered() const { return config_.ordered; }
  bool has_index_in_pm() const { return config_.pm != nullptr; }
  // Such a store for whose index the pool had no room when it was opened: it is in DRAM until the
  // next opening.
  bool lacks_room_for_index() const { return config_.pm != nullptr && config_.pm->is_in_dram(); }
  bool cut_by_boundaries() const { return !boundaries_.empty(); }

  // The hash of a key, and the partition that has it.
  struct Place {
    uint64_t hash;
    uint32_t number;
  };
  Place place_of(std::string_view key) const {
    const uint64_t hash = hash_of(key);
    return {hash, boundaries_.empty() ? partition_of(hash, root_.partitions)
                                      : boundaries_.partition_of(key)};
  }

  // As with(), from a task. `keys`: those that the work looks for; a worker that has got several
  // requests asks the cache for them. They live where the work does.
  template <typename Work>
  Task<std::invoke_result_t<Work, Partition&>> async(uint32_t number, bool writes, Work work,
                                                     std::span<Sought> keys = {}) const {
    constexpr bool kGivesNothing = std::is_void_v<std::invoke_result_t<Work, Partition&>>;
    for (bool again = false;; again = true) {
      try {
        // The task may be another store's, whose workers know nothing of this one's batches.
        if (runtime_ == nullptr || !runtime_->is_worker()) {
          if constexpr (kGivesNothing) {
            with(number, writes, std::ref(work));
            co_return;
          } else {
            co_return with(number, writes, std::ref(work));
          }
        }
        WorkRequest<Work> request(*this, number, writes, work, keys);
        co_await runtime_->submit(request);
        require_durable();
        if constexpr (kGivesNothing) {
          co_return;
        } else {
          co_return std::move(*request.result);
        }
      } catch (const Error& error) {  // as with_all_room()
        if (!writes || again || !pm::is_full(error) || !make_all_room()) throw;
      }
    }
  }
  void run(Task<void> task) const;
  void spawn(Task<void> task) const;

  uint64_t size() const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  uint64_t check_index(const std::function<void(const std::string&)>& report) const;
  // As Store::verify(). verify.cc
  static StoreVerification verify(Pool& pool, const std::string& name,
                                  const std::function<void(const std::string&)>& report);
  void visit_blocks(const index::VisitOwned& visit) const;
  void visit_index(const index::VisitOwned& visit) const;
  std::vector<Statistic> statistics() const;

  static uint64_t now_ms();
  static uint64_t expiry_of(const std::optional<Store::Time>& expires);

 private:
  friend class StoreTurn;
  friend class StoreSnapshot;

  enum class Opening : uint8_t { kWaiting, kRecovering, kReady, kFailed };

  struct alignas(64) Shard {
    Shard(pm::PoolImpl& pool, PartitionRoot& root, uint32_t number, const PartitionConfig& config)
        : partition(pool, root, number, config) {}
    Latch latch;
    std::atomic<Opening> opening{Opening::kWaiting};
    bool touched =
        false;  // with workers: it was written to in this batch, and the worker has the latch
    Partition partition;
    bool keeps_batch = false;    // for recovery
    std::exception_ptr failure;  // of it, with kFailed
  };

  // What one thread asks to be done to a partition.
  template <typename Work>
  struct WorkRequest final : Request {
    using Result = std::invoke_result_t<Work, Partition&>;
    using Stored = std::conditional_t<std::is_void_v<Result>, bool, Result>;

    // `its_keys`: those that the work looks for, or none.
    WorkRequest(const StoreImpl& its_store, uint32_t number, bool writes, Work& its_work,
                std::span<Sought> its_keys = {})
        : Request(number, &execute), store(its_store), work(its_work), keys(its_keys) {
      wrote = writes;
      if (!keys.empty()) ahead = &look_ahead;
    }
    // No worker waits here: where somebody else has the latch, nothing is asked.
    static void look_ahead(Request& request, int step) noexcept {
      static_assert(kAheadSteps == PartitionIndex::kAheadSteps + 1);
      auto& self = static_cast<WorkRequest&>(request);
      Shard& shard = *self.store.shards_[self.partition];
      if (step == 0) {
        self.looks_ahead =
            self.store.is_ready(self.partition) && (shard.touched || shard.latch.try_lock());
      }
      if (!self.looks_ahead) return;
      if (step < PartitionIndex::kAheadSteps) {
        for (Sought& key : self.keys) {
          if (step == 0) key.way = 0;  // an attempt before this one may have left its own
          shard.partition.prefetch(step, key);
        }
      } else {
        self.store.leave(self.partition);
      }
    }
    static void execute(Request& request) noexcept {
      auto& self = static_cast<WorkRequest&>(request);
      Shard& shard = *self.store.shards_[self.partition];
      try {
        // Who waits has no latch, and what was written before is answered.
        if (!self.store.is_ready(self.partition)) self.store.end_own_batch();
        self.store.require_ready(self.partition);
      } catch (...) {
        self.error = std::current_exception();
        return;
      }
      self.store.enter(self.partition, self.wrote);
      try {
        if constexpr (std::is_void_v<Result>) {
          self.work(shard.partition);
        } else {
          self.result.emplace(self.work(shard.partition));
        }
      } catch (...) {
        self.error = std::current_exception();
      }
      self.store.leave(self.partition);
    }

    const StoreImpl& store;
    Work& work;
    std::span<Sought> keys;
    bool looks_ahead = false;
    std::optional<Stored> result;
  };

  // Partitions of which each is to be held once, in ascending order.
  class HeldShards;
  // Those that may have keys that begin so.
  std::vector<uint32_t> partitions_with(std::string_view prefix) const;

  // Has `work(Partition&)` done where the partition is worked on; returns its result once that is
  // durable.
  template <typename Work>
  auto with(uint32_t number, bool writes, Work work) const {
    Shard& shard = *shards_[number];
    if (works_in_line()) {
      end_own_batch();
      require_ready(number);
      const std::lock_guard held(shard.latch);
      if (!writes) return work(shard.partition);
      const Persisting persisting{shard.partition};
      return work(shard.partition);
    }
    WorkRequest<Work> request(*this, number, writes, work);
    runtime_->call(request);
    require_durable();  // a read may have met a write of the same batch
    if constexpr (!std::is_void_v<typename WorkRequest<Work>::Result>) {
      return std::move(*request.result);
    }
  }

  template <typename KeyAt, typename Work>
  void in_parts(size_t count, bool writes, KeyAt key_at, Work work) const;

  // At its end, makes durable what was written, also if something failed then: readers may see it.
  struct Persisting {
    ~Persisting() noexcept(false) {
      if (std::uncaught_exceptions() == before) {
        partition.persist();
        return;
      }
      try {
        partition.persist();
      } catch (const std::exception&) {
        // The pool has failed: nothing of it is told any more.
      }
    }
    Partition& partition;
    int before = std::uncaught_exceptions();
  };

  StoreImpl(Pool& pool, const std::string& name, uint64_t root, StoreIndex index,
            const StoreOptions& options);

  // Where the root of a store is, and with which index it was made. Throws kNoSuchName, kWrongType,
  // kCorrupt.
  static std::pair<uint64_t, StoreIndex> root_of(pm::PoolImpl& pool, const std::string& name);
  // Where a backup is written, and how it is made beside others.
  struct BackupWay {
    int file;
    const std::string& name;
    const BackupReader* since;  // null: all
    std::mutex* turns = nullptr;
    BackupProgress progress = nullptr;

    // What keeps those who use the store by turns out.
    std::unique_lock<std::mutex> alone() const {
      return turns == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*turns);
    }
  };
  StoreBackup backup_to(const BackupWay& way) const;
  void require_own_base(const BackupReader* since) const;
  void require_own_history(const BackupReader& since) const;
  void copy_records(uint32_t number, const StoreSnapshot& snapshot, const BackupWay& way,
                    const std::function<void(const BackupEntry& entry)>& visit) const;
  void copy_changes(uint32_t number, uint64_t from, uint64_t end, const BackupWay& way,
                    const std::function<void(const BackupEntry& entry)>& visit) const;
  std::vector<uint64_t> answer(const pm::LiveRequest& request, const BackupProgress& progress,
                               std::mutex* turns);
  void read_boundaries();
  void read_consumers();
  uint64_t consumer_bytes() const {
    return sizeof(ConsumerBlock) + root_.partitions * sizeof(uint64_t);
  }
  uint64_t* positions_of(uint64_t consumer) const {
    return reinterpret_cast<uint64_t*>(pool_.at<char>(consumer + sizeof(ConsumerBlock)));
  }
  uint64_t checksum_of(const ConsumerBlock& consumer) const;
  std::vector<uint64_t> consumer_blocks() const;
  uint64_t find_consumer(const std::string& name) const;
  void tell_unread(uint32_t partition, Partition& to) const;
  void finish_transactions();
  static std::unique_ptr<StoreImpl> finish_opening(Pool& its_pool, std::unique_ptr<StoreImpl> store,
                                                   const StoreOptions& options);
  void recover(Pool& its_pool, uint32_t threads, bool serve_early);
  void open_first(std::span<const std::string> keys);
  void mend_index(Pool& its_pool);
  void begin_run(bool serves_early) const;
  void end_last_run() const;
  void look(uint32_t threads);
  void await_ready(uint32_t number) const;
  void try_recover(uint32_t number) const noexcept;
  void recover_begun(uint32_t number) const noexcept;
  void end_opening();
  // Carries out a write. While partitions are being opened the room that they will give back
  // (snapshots of their indexes, long values that nothing refers to) is still taken: where the pool
  // is full for that reason, once more when they are open. A write that finds the pool full has
  // changed nothing.
  template <typename Write>
  auto with_all_room(Write write) const {
    try {
      return write();
    } catch (const Error& error) {
      if (!pm::is_full(error) || !make_all_room()) throw;
    }
    return write();
  }
  // with() of a write.
  template <typename Work>
  auto write_to(uint32_t number, Work work) const {
    return with_all_room([&] { return with(number, true, std::ref(work)); });
  }
  // `frees`: as WriteRequest::frees.
  void apply_once(const Store::Batch& batch, bool frees = false);
  uint64_t remove_prefix_once(std::string_view prefix, const std::vector<uint32_t>& numbers);
  // What another partition has that a write may have instead: false if there was nothing.
  bool make_all_room() const;
  // Has all partitions give back the room of their snapshots; false if there was none.
  bool give_up_snapshots() const;
  // Waits for the partitions that are being opened; false if there was none.
  bool wait_for_room() const;
  template <typename Work>
  void side_by_side(uint32_t threads, Work work_on) const;
  void fence() const { pool_.memory().fence(); }
  void start_workers(const StoreOptions& options);
  void enter(uint32_t number, bool writes) const;
  void leave(uint32_t number) const;
  void end_touched(uint32_t worker) const noexcept;
  void end_of_batch(uint32_t worker) noexcept override { end_touched(worker); }
  // If the caller is a worker of this store: what it has written becomes durable, and it has no
  // latch.
  void end_own_batch() const {
    if (runtime_ != nullptr && runtime_->is_worker()) end_touched(Runtime::current_worker());
  }
  // Whether the caller works on partitions itself, behind their latches: without workers, and a
  // worker, whose task makes a call that is no task. It would wait for ever for the answer to a
  // message to itself.
  bool works_in_line() const { return runtime_ == nullptr || runtime_->is_worker(); }
  // Throws kIo if the pool has failed: with workers, an end of a batch may have.
  void require_durable() const {
    if (pool_.failed()) [[unlikely]]
      pool_.require_writable();
  }

  pm::PoolImpl& pool_;
  pm::PoolImpl::Use use_;  // goes after all that follows: the mapping may go with it
  const Root& root_;
  std::atomic<uint32_t> snapshots_{0};  // how many partitions have some of their index
  PartitionConfig config_;
  Boundaries boundaries_;
  std::mutex consumers_change_;  // taken before any latch, without one: they come and go
  mutable std::mutex
      consumers_mutex_;              // of the list and its words; nothing else is taken behind it
  std::vector<uint64_t> consumers_;  // offsets of their blocks
  std::unique_ptr<Runs> runs_;
  std::unique_ptr<PmIndex> pm_index_;  // null if the index is in DRAM. Goes after the partitions
  std::vector<std::unique_ptr<Shard>> shards_;
  mutable std::vector<std::vector<uint32_t>> touched_;  // by worker
  std::unique_ptr<Runtime> runtime_;
  // With serve_early: who recovers partitions meanwhile.
  std::vector<std::thread> openers_;
  std::vector<uint32_t> opening_order_;  // of all partitions
  std::atomic<uint32_t> next_to_open_{0};
  bool serves_early_ = false;
};

}  // namespace perdure::store
