#include "store/snapshot.h"

#include <exception>
#include <numeric>
#include <utility>

#include "store/held_shards.h"

namespace perdure::store {

StoreSnapshot::StoreSnapshot(const StoreImpl& store) : store_(store) {
  versions_.reserve(store.shards_.size());
  positions_.reserve(store.shards_.size());
  std::vector<uint32_t> all(store.shards_.size());
  std::iota(all.begin(), all.end(), 0);
  try {
    // All at one moment: no batch is seen in part.
    const StoreImpl::HeldShards held(store, std::move(all));
    for (const auto& shard : store.shards_) {
      versions_.push_back(shard->partition.take_snapshot());
      positions_.push_back(shard->partition.next_change());
    }
    time_ms_ = StoreImpl::now_ms();
  } catch (...) {
    release(versions_.size());
    throw;
  }
}

StoreSnapshot::~StoreSnapshot() { release(versions_.size()); }

void StoreSnapshot::release(size_t count) noexcept {
  for (uint32_t number = 0; number < count; ++number) {
    try {
      store_.with(number, true,
                  [&](Partition& partition) { partition.release_snapshot(versions_[number]); });
    } catch (const std::exception&) {
      // The medium has failed, or memory is short: the partition goes on to keep what it keeps.
    }
  }
}

}  // namespace perdure::store
