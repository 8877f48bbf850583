#include "pm/epoch.h"

#include <algorithm>
#include <thread>

namespace perdure::pm {

namespace {

// Small numbers for living threads, reused when a thread ends.
class ThreadNumbers {
 public:
  uint32_t take() {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (!free_.empty()) {
          const uint32_t number = free_.back();
          free_.pop_back();
          return number;
        }
        if (next_ < EpochManager::kMaxThreads) return next_++;
      }
      std::this_thread::yield();
    }
  }
  void give(uint32_t number) {
    const std::lock_guard lock(mutex_);
    free_.push_back(number);
  }
  static ThreadNumbers& instance() {
    static ThreadNumbers numbers;
    return numbers;
  }

 private:
  std::mutex mutex_;
  std::vector<uint32_t> free_;
  uint32_t next_ = 0;
};

struct ThreadNumber {
  uint32_t value = ThreadNumbers::instance().take();
  ~ThreadNumber() { ThreadNumbers::instance().give(value); }
};

}  // namespace

EpochManager::EpochManager() : slots_(std::make_unique<Slot[]>(kMaxThreads)) {}

EpochManager::~EpochManager() {
  for (Retired& one : retired_) one.action();
}

EpochManager::Slot& EpochManager::own_slot() {
  thread_local const ThreadNumber number;
  return slots_[number.value];
}

uint64_t EpochManager::oldest_pinned() const {
  uint64_t oldest = kIdle;
  for (uint32_t i = 0; i < kMaxThreads; ++i) {
    oldest = std::min(oldest, slots_[i].epoch.load(std::memory_order_seq_cst));
  }
  return oldest;
}

void EpochManager::retire(std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    // Readers that pin from now on get a later epoch and cannot find what was unlinked.
    retired_.push_back({epoch_.fetch_add(1, std::memory_order_seq_cst), std::move(action)});
  }
  collect();
}

size_t EpochManager::collect() {
  std::vector<Retired> ready;
  size_t left = 0;
  {
    const std::lock_guard lock(mutex_);
    if (retired_.empty()) return 0;
    const uint64_t oldest = oldest_pinned();
    const auto safe = std::partition(retired_.begin(), retired_.end(),
                                     [&](const Retired& one) { return one.epoch >= oldest; });
    std::move(safe, retired_.end(), std::back_inserter(ready));
    retired_.erase(safe, retired_.end());
    left = retired_.size();
  }
  for (Retired& one : ready) one.action();
  return left;
}

}  // namespace perdure::pm
