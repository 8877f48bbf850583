// 2Q as a block cache of LevelDB.
#include <leveldb/cache.h>

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "lsm/placement.h"
#include "lsm/two_queue.h"
#include "perdure/error.h"
#include "perdure/leveldb.h"

namespace perdure {
namespace {

using leveldb::Slice;

// A block in DRAM: destroyed when neither the queue nor a reader has it.
struct Block {
  std::string key;
  void* value;
  void (*deleter)(const Slice& key, void* value);
  std::atomic<uint32_t> users;

  void release() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    deleter(Slice(key), value);
    delete this;
  }
};

class TwoQueueCache final : public leveldb::Cache {
 public:
  explicit TwoQueueCache(const TwoQueueCacheOptions& options)
      : block_bytes_(options.block_bytes),
        queue_({.capacity_bytes = options.capacity_bytes,
                .block_bytes = options.block_bytes,
                .reference_percent = options.reference_percent}) {}

  ~TwoQueueCache() override {
    std::vector<Block*> gone;
    queue_.with_each([&](auto& shard) { shard.prune([](const Block*) { return true; }, gone); });
    release_all(gone);
  }

  Handle* Insert(const Slice& key, void* value, size_t charge,
                 void (*deleter)(const Slice& key, void* value)) override {
    auto* block = new Block{key.ToString(), value, deleter, 2};  // the queue's, and the caller's
    std::vector<Block*> gone;
    queue_.with(block->key, [&](auto& shard) { shard.put(block->key, block, charge, gone); });
    release_all(gone);
    return handle_of(block);
  }

  Handle* Lookup(const Slice& slice) override {
    const std::string_view key(slice.data(), slice.size());
    return queue_.with(key, [&](auto& shard) -> Handle* {
      if (Block** found = shard.find(key)) {
        (*found)->users.fetch_add(1, std::memory_order_relaxed);
        return handle_of(*found);
      }
      lsm::next_read =
          shard.wants(key, block_bytes_) ? lsm::Placement::kCopy : lsm::Placement::kInPlace;
      return nullptr;
    });
  }

  void Release(Handle* handle) override { block_of(handle)->release(); }
  void* Value(Handle* handle) override { return block_of(handle)->value; }

  void Erase(const Slice& slice) override {
    const std::string key = slice.ToString();
    std::vector<Block*> gone;
    queue_.with(key, [&](auto& shard) { shard.erase(key, gone); });
    release_all(gone);
  }

  uint64_t NewId() override { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  void Prune() override {
    std::vector<Block*> gone;
    queue_.with_each([&](auto& shard) {
      shard.prune([](const Block* block) { return block->users.load() == 1; }, gone);
    });
    release_all(gone);
  }

  size_t TotalCharge() const override { return queue_.counters().bytes; }
  lsm::TwoQueueCounters counters() const { return queue_.counters(); }

 private:
  static Handle* handle_of(Block* block) { return reinterpret_cast<Handle*>(block); }
  static Block* block_of(Handle* handle) { return reinterpret_cast<Block*>(handle); }
  static void release_all(const std::vector<Block*>& blocks) {
    for (Block* block : blocks) block->release();
  }

  uint64_t block_bytes_;
  lsm::TwoQueue<std::string, Block*, lsm::BytesHash> queue_;
  std::atomic<uint64_t> last_id_{0};
};

}  // namespace

std::unique_ptr<leveldb::Cache> leveldb_2q_cache(const TwoQueueCacheOptions& options) {
  return std::make_unique<TwoQueueCache>(options);
}

TwoQueueCacheStatistics statistics_of_2q_cache(const leveldb::Cache& cache) {
  const auto* own = dynamic_cast<const TwoQueueCache*>(&cache);
  if (own == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "this cache was not made by leveldb_2q_cache()");
  }
  const lsm::TwoQueueCounters counters = own->counters();
  return {.hits = counters.hits,
          .copied = counters.admitted + counters.promoted,
          .in_place = counters.in_place,
          .evictions = counters.evictions,
          .bytes = counters.bytes,
          .references = counters.references};
}

}  // namespace perdure
