#include "pm/epoch.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>

#include "perdure/error.h"
#include "pm/barrier.h"

namespace perdure::pm {

namespace {

// Small numbers for living threads, reused when a thread ends.
class ThreadNumbers {
 public:
  uint32_t take() {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      // The smallest: threads that come and go leave the first table to those that stay.
      std::ranges::pop_heap(free_, std::greater());
      const uint32_t number = free_.back();
      free_.pop_back();
      return number;
    }
    if (next_ == EpochManager::kMaxThreads) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} threads use structures at the same time, more than there are places "
                      "for; use fewer threads",
                      next_));
    }
    free_.reserve(next_ + 1);  // give() does not throw
    return next_++;
  }
  void give(uint32_t number) {
    const std::lock_guard lock(mutex_);
    free_.push_back(number);
    std::ranges::push_heap(free_, std::greater());
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

}  // namespace

EpochManager::EpochManager()
    : asymmetric_(register_for_barriers()), slots_(std::make_unique<Slot[]>(kThreadsPerTable)) {
  tables_[0].store(slots_.get(), std::memory_order_release);
}

EpochManager::~EpochManager() {
  for (Retired& one : retired_) one.action();
  for (uint32_t i = 1; i < kTables; ++i) delete[] tables_[i].load(std::memory_order_acquire);
}

EpochManager::Slot& EpochManager::find_slot() {
  if (thread_number == kNoNumber) take_thread_number();
  std::atomic<Slot*>& place = tables_[thread_number / kThreadsPerTable];
  Slot* table = place.load(std::memory_order_acquire);
  if (table == nullptr) {
    auto made = std::make_unique<Slot[]>(kThreadsPerTable);
    // A collector that does not see the table yet does not know this thread's guard: it was not
    // pinned when the collector looked, as with a slot that is idle.
    if (place.compare_exchange_strong(table, made.get(), std::memory_order_seq_cst)) {
      table = made.release();
    }
  }
  return table[thread_number % kThreadsPerTable];
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
  for (const std::atomic<Slot*>& place : tables_) {
    const Slot* table = place.load(std::memory_order_seq_cst);
    for (uint32_t i = 0; table != nullptr && i < kThreadsPerTable; ++i) {
      oldest = std::min(oldest, table[i].epoch.load(std::memory_order_seq_cst));
    }
  }
  return oldest;
}

void EpochManager::retire(std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    // Readers that pin from now on get a later epoch and cannot find what was unlinked.
    retired_.push_back({epoch_.fetch_add(1, std::memory_order_seq_cst), std::move(action)});
  }
  try {
    collect();
  } catch (const std::bad_alloc&) {
    // They wait for the next one; whoever retires has done its change.
  }
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
    // Throws before anything has moved, if at all: an action that was moved would be lost.
    ready.reserve(static_cast<size_t>(retired_.end() - safe));
    std::move(safe, retired_.end(), std::back_inserter(ready));
    retired_.erase(safe, retired_.end());
    left = retired_.size();
  }
  for (Retired& one : ready) one.action();
  return left;
}

}  // namespace perdure::pm
