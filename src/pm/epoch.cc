#include "pm/epoch.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

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

bool barrier_in_all_threads() {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

bool register_for_barriers() {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         barrier_in_all_threads();
}

}  // namespace

EpochManager::EpochManager()
    : asymmetric_(register_for_barriers()), slots_(std::make_unique<Slot[]>(kMaxThreads)) {}

EpochManager::~EpochManager() {
  for (Retired& one : retired_) one.action();
}

void EpochManager::take_thread_number() {
  struct Taken {
    Taken() { thread_number = ThreadNumbers::instance().take(); }
    ~Taken() {
      ThreadNumbers::instance().give(thread_number);
      thread_number = kNoNumber;
    }
  };
  thread_local const Taken taken;
  // The thread is ending and has given its number back: this one is kept.
  if (thread_number == kNoNumber) thread_number = ThreadNumbers::instance().take();
}

uint64_t EpochManager::oldest_pinned() const {
  // After this every reader has either made its pin visible, or will see what was unlinked. (A
  // child of fork() registers again.) Without it nothing may be taken for free.
  if (asymmetric_ && !barrier_in_all_threads() && !register_for_barriers()) return 0;
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
