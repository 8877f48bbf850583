// Latches of some partitions, held together. Always taken in ascending order: nobody waits in a
// circle. With workers, too: a worker has the latch of a partition while it works on it, and of one
// that it has written to until that is durable. So who has them all sees a consistent state, of
// which nothing can be lost any more.
#pragma once

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "store/store_impl.h"

namespace perdure::store {

class StoreImpl::HeldShards {
 public:
  HeldShards(const StoreImpl& store, std::vector<uint32_t> numbers) : store_(store) {
    store.end_own_batch();
    // A task of another store has latches of that one, for which who has some of these may wait.
    const Runtime::Away away(store.runtime_.get());
    std::ranges::sort(numbers);
    numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
    numbers_ = std::move(numbers);
    for (const uint32_t number : numbers_) store_.require_ready(number);
    // One barrier for all of them, rather than one for each.
    uint32_t biased = 0;
    for (const uint32_t number : numbers_) {
      if (numbers_.size() > 1 && store_.shards_[number]->latch.call_off()) ++biased;
    }
    if (biased > 1) barrier_of_all_threads();
    for (const uint32_t number : numbers_) store_.shards_[number]->latch.lock();
  }
  ~HeldShards() {
    for (const uint32_t number : numbers_) store_.shards_[number]->latch.unlock();
  }
  HeldShards(const HeldShards&) = delete;
  HeldShards& operator=(const HeldShards&) = delete;

  size_t count() const { return numbers_.size(); }
  const std::vector<uint32_t>& numbers() const { return numbers_; }

  // Makes durable what `work` writes, by one fence; also if it fails then: readers may see it.
  template <typename Work>
  void write(Work work) {
    try {
      work();
    } catch (...) {
      try {
        persist();
      } catch (const std::exception&) {
        // The pool has failed: nothing of it is told any more.
      }
      throw;
    }
    persist();
  }

 private:
  void persist() {
    bool wanted = false;
    for (const uint32_t number : numbers_) {
      store_.shards_[number]->partition.before_fence();
      wanted = wanted || store_.shards_[number]->partition.wants_fence();
    }
    if (wanted) store_.fence();
    for (const uint32_t number : numbers_) store_.shards_[number]->partition.after_fence();
  }

  const StoreImpl& store_;
  std::vector<uint32_t> numbers_;
};

}  // namespace perdure::store
