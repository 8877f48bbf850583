// A store: its partitions, each behind a latch, worked on by whoever calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "index/owned_blocks.h"
#include "perdure/store.h"
#include "pm/lock.h"
#include "store/partition.h"

namespace perdure::store {

class StoreImpl {
 public:
  static std::unique_ptr<StoreImpl> create(pm::PoolImpl& pool, const std::string& name,
                                           const StoreOptions& options);
  static std::unique_ptr<StoreImpl> open(pm::PoolImpl& pool, const std::string& name,
                                         const StoreOptions& options);
  ~StoreImpl();
  StoreImpl(const StoreImpl&) = delete;
  StoreImpl& operator=(const StoreImpl&) = delete;

  // Calls `use(Found)` under the partition's latch. Returns whether the key is there.
  template <typename Use>
  bool get(std::string_view key, Use use) const {
    const uint64_t hash = hash_of(key);
    Shard& shard = shard_of(hash);
    const std::lock_guard held(shard.latch);
    Partition::Found found;
    if (!shard.partition.get(hash, key, now_ms(), found)) return false;
    use(found);
    return true;
  }
  bool write(const WriteRequest& request, uint64_t* version = nullptr);
  bool remove(std::string_view key);
  void modify(std::string_view key,
              const std::function<std::optional<std::string>(const std::string_view*)>& change);
  // Calls `use(i, Found)` for keys that are there.
  void multi_get(std::span<const std::string_view> keys,
                 const std::function<void(size_t i, const Partition::Found&)>& use) const;
  // Carries out several writes with few fences; `done[i]`, if given, says whether the condition of write i
  // held. If it throws, any may have been done, and `done` says which are.
  void multi_write(std::span<const WriteRequest> requests, std::span<bool> done);
  void apply(const Store::Batch& batch);

  void for_each(const std::function<void(std::string_view, std::string_view)>& visit) const;
  uint64_t size() const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const index::VisitOwned& visit) const;
  std::vector<Statistic> statistics() const;

  static uint64_t now_ms();
  static uint64_t expiry_of(const std::optional<Store::Time>& expires);

 private:
  struct alignas(64) Shard {
    Shard(pm::PoolImpl& pool, PartitionRoot& root, uint32_t number, const PartitionConfig& config)
        : partition(pool, root, number, config) {}
    pm::SpinLock latch;
    Partition partition;
  };
  // Partitions of which each is to be held once, in ascending order.
  class HeldShards;

  StoreImpl(pm::PoolImpl& pool, const std::string& name, uint64_t root,
            const StoreOptions& options);

  uint64_t hash_of(std::string_view key) const;
  uint32_t number_of(uint64_t hash) const;
  Shard& shard_of(uint64_t hash) const { return *shards_[number_of(hash)]; }
  void recover(uint32_t threads);
  void fence() const { pool_.memory().fence(); }

  pm::PoolImpl& pool_;
  const Root& root_;
  PartitionConfig config_;
  std::vector<std::unique_ptr<Shard>> shards_;
  bool recovered_ = false;
  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
};

}  // namespace perdure::store
