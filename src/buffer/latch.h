// A latch on a page in the buffer pool: shared or exclusive. Only the one thread that commits waits for a latch
// while it holds others; all others try, and begin again.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "pm/pause.h"

namespace perdure::buffer {

class Latch {
 public:
  bool try_lock() {
    uint32_t none = 0;
    const bool done = word_.compare_exchange_strong(none, kExclusive, std::memory_order_acquire,
                                                    std::memory_order_relaxed);
    pm::may_pause();
    return done;
  }
  void lock() {
    for (uint32_t spins = 0; !try_lock(); ++spins) wait(spins);
  }
  void unlock() { pm::publish(word_, 0U); }

  bool try_lock_shared() {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    while ((seen & kExclusive) == 0) {
      if (word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        pm::may_pause();
        return true;
      }
    }
    return false;
  }
  void lock_shared() {
    for (uint32_t spins = 0; !try_lock_shared(); ++spins) wait(spins);
  }
  void unlock_shared() {
    pm::may_pause();
    word_.fetch_sub(1, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kExclusive = 1U << 31;
  static void wait(uint32_t spins) {
    if (spins < 64) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }

  std::atomic<uint32_t> word_{0};
};

}  // namespace perdure::buffer
