// 2Q as a block cache of RocksDB.
#include <rocksdb/cache.h>

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "lsm/placement.h"
#include "lsm/rocksdb/in_dram.h"
#include "lsm/two_queue.h"
#include "perdure/error.h"
#include "perdure/rocksdb.h"

namespace perdure {
namespace {

using rocksdb::Slice;
using rocksdb::Status;

// A block in DRAM: destroyed when neither the queue nor a reader has it.
struct Block {
  std::string key;
  void* value;
  size_t charge;
  rocksdb::Cache::DeleterFn deleter;  // may be null, of blocks that only reserve room
  std::atomic<uint32_t> users;

  // Whether it was the last use.
  bool release() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    if (deleter != nullptr) deleter(Slice(key), value);
    delete this;
    return true;
  }
};

class TwoQueueCache final : public rocksdb::Cache {
 public:
  explicit TwoQueueCache(const RocksDbCacheOptions& options)
      : capacity_bytes_(options.capacity_bytes),
        block_bytes_(options.block_bytes),
        queue_({.capacity_bytes = options.capacity_bytes,
                .block_bytes = options.block_bytes,
                .reference_percent = options.reference_percent}) {}
  ~TwoQueueCache() override {
    take_all([](const Block*) { return true; });
  }

  const char* Name() const override { return "PerdureTwoQueueCache"; }

  using Cache::Insert;
  Status Insert(const Slice& key, void* value, size_t charge, DeleterFn deleter, Handle** handle,
                Priority /*priority*/) override {
    // The queue's, and the caller's if it wants a handle.
    auto* block = new Block{key.ToString(), value, charge, deleter, handle == nullptr ? 1U : 2U};
    if (handle != nullptr) *handle = handle_of(block);
    // Read from elsewhere than a file of a pool, which had taken the decision: it is not worth a
    // place in DRAM, and goes with its last handle.
    if (lsm::take_placement_of(hash_of(block->key)) == lsm::Placement::kInPlace) {
      block->release();
      return Status::OK();
    }
    const std::string text = block->key;  // the block may be gone before put() returns
    std::vector<Block*> gone;
    queue_.with(text, [&](auto& shard) { shard.put(text, block, charge, gone); });
    release_all(gone);
    return Status::OK();
  }

  using Cache::Lookup;
  Handle* Lookup(const Slice& slice, rocksdb::Statistics* /*statistics*/) override {
    const std::string_view key(slice.data(), slice.size());
    return queue_.with(key, [&](auto& shard) -> Handle* {
      if (Block** found = shard.find(key)) {
        (*found)->users.fetch_add(1, std::memory_order_relaxed);
        return handle_of(*found);
      }
      const uint64_t hash = hash_of(key);
      lsm::Placement decided = lsm::decisions.take(hash);
      if (decided == lsm::Placement::kUndecided) {
        decided = shard.wants(key, block_bytes_) ? lsm::Placement::kCopy : lsm::Placement::kInPlace;
        lsm::decisions.note(hash, decided);
      }
      lsm::next_read_of = hash;
      lsm::next_read = decided;
      return nullptr;
    });
  }

  bool Ref(Handle* handle) override {
    block_of(handle)->users.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  using Cache::Release;
  bool Release(Handle* handle, bool erase_if_last_ref) override {
    Block* block = block_of(handle);
    if (erase_if_last_ref && block->users.load(std::memory_order_acquire) == 2) {
      erase_if(block->key, block);
    }
    return block->release();
  }
  void* Value(Handle* handle) override { return block_of(handle)->value; }
  void Erase(const Slice& slice) override { erase_if(slice.ToString(), nullptr); }
  uint64_t NewId() override { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Fixed when it is made.
  void SetCapacity(size_t /*capacity*/) override {}
  void SetStrictCapacityLimit(bool /*strict*/) override {}
  bool HasStrictCapacityLimit() const override { return false; }
  size_t GetCapacity() const override { return capacity_bytes_; }
  size_t GetUsage() const override { return queue_.counters().bytes; }
  size_t GetUsage(Handle* handle) const override { return block_of(handle)->charge; }
  size_t GetOccupancyCount() const override { return queue_.counters().blocks; }
  size_t GetPinnedUsage() const override {
    size_t pinned = 0;
    queue_.with_each([&](auto& shard) {
      shard.for_each([&](const Block* block) {
        if (block->users.load(std::memory_order_relaxed) > 1) pinned += block->charge;
      });
    });
    return pinned;
  }
  size_t GetCharge(Handle* handle) const override { return block_of(handle)->charge; }
  DeleterFn GetDeleter(Handle* handle) const override { return block_of(handle)->deleter; }

  void ApplyToAllEntries(const std::function<void(const Slice& key, void* value, size_t charge,
                                                  DeleterFn deleter)>& callback,
                         const ApplyToAllEntriesOptions& /*options*/) override {
    queue_.with_each([&](auto& shard) {
      shard.for_each([&](const Block* block) {
        callback(Slice(block->key), block->value, block->charge, block->deleter);
      });
    });
  }
  void EraseUnRefEntries() override {
    take_all([](const Block* block) { return block->users.load() == 1; });
  }

  lsm::TwoQueueCounters counters() const { return queue_.counters(); }
  bool contains(std::string_view key) const {
    return queue_.with(key, [&](auto& shard) { return shard.contains(key); });
  }

 private:
  static uint64_t hash_of(std::string_view key) { return lsm::BytesHash{}(key); }
  static Handle* handle_of(Block* block) { return reinterpret_cast<Handle*>(block); }
  static Block* block_of(Handle* handle) { return reinterpret_cast<Block*>(handle); }
  static void release_all(const std::vector<Block*>& blocks) {
    for (Block* block : blocks) block->release();
  }
  // Forgets the key; if `only` is given, only if that is what is there.
  void erase_if(const std::string& key, Block* only) {
    // The key may be that of a block which goes.
    const std::string text = key;  // NOLINT(performance-unnecessary-copy-initialization)
    std::vector<Block*> gone;
    queue_.with(text, [&](auto& shard) {
      if (only == nullptr || shard.holds(text, only)) shard.erase(text, gone);
    });
    release_all(gone);
  }
  template <typename Idle>
  void take_all(Idle idle) {
    std::vector<Block*> gone;
    queue_.with_each([&](auto& shard) { shard.prune(idle, gone); });
    release_all(gone);
  }

  size_t capacity_bytes_;
  uint64_t block_bytes_;
  mutable lsm::TwoQueue<std::string, Block*, lsm::BytesHash> queue_;
  std::atomic<uint64_t> last_id_{0};
};

const TwoQueueCache& require_own(const rocksdb::Cache& cache) {
  const auto* own = dynamic_cast<const TwoQueueCache*>(&cache);
  if (own == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "this cache was not made by rocksdb_2q_cache()");
  }
  return *own;
}

}  // namespace

std::shared_ptr<rocksdb::Cache> rocksdb_2q_cache(const RocksDbCacheOptions& options) {
  return std::make_shared<TwoQueueCache>(options);
}

std::function<bool(std::string_view key)> lsm::in_dram_of(std::shared_ptr<rocksdb::Cache> cache) {
  const TwoQueueCache* own = &require_own(*cache);
  return [cache = std::move(cache), own](std::string_view key) { return own->contains(key); };
}

RocksDbCacheStatistics statistics_of_2q_cache(const rocksdb::Cache& cache) {
  const lsm::TwoQueueCounters counters = require_own(cache).counters();
  return {.hits = counters.hits,
          .copied = counters.admitted + counters.promoted,
          .in_place = counters.in_place,
          .evictions = counters.evictions,
          .bytes = counters.bytes,
          .references = counters.references};
}

}  // namespace perdure
