// A latch on a page in the buffer pool: shared, exclusive, or optimistic. Only the one thread that
// commits waits for a latch while it holds others; all others try, and begin again.
//
// Who reads optimistically stores nothing: it notes the version, reads what may change under its
// hands, makes nothing of it that could do harm, and then asks whether the version is still the
// same. Versions change when the latch is held exclusively, and when the frame gets another page:
// between close() and open() there is none to read.
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
    if (done) begin_change(kHeld);
    return done;
  }
  void lock() {
    for (uint32_t spins = 0; !try_lock(); ++spins) wait(spins);
  }
  void unlock() {
    end_change(kHeld);
    pm::publish(word_, 0U);
  }

  // By the pool, while nobody has the frame pinned.
  void close() { begin_change(kClosed); }
  void open() { end_change(kClosed); }
  // False: not now.
  bool try_begin_read(uint64_t& version) const {
    version = pm::acquire(version_);
    return (version & (kHeld | kClosed)) == 0;
  }
  bool validate(uint64_t version) const {
    pm::may_pause();
    // What was read, before the version is read again.
    std::atomic_thread_fence(std::memory_order_acquire);
    return version_.load(std::memory_order_relaxed) == version;
  }

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
  static constexpr uint64_t kHeld = 1;
  static constexpr uint64_t kClosed = 2;
  static constexpr uint64_t kStep = 4;
  // One at a time: who holds it exclusively, or the pool.
  void begin_change(uint64_t why) {
    version_.store(version_.load(std::memory_order_relaxed) | why, std::memory_order_relaxed);
    // The version, before what is changed.
    std::atomic_thread_fence(std::memory_order_release);
    pm::may_pause();
  }
  void end_change(uint64_t why) {
    pm::publish(version_, (version_.load(std::memory_order_relaxed) & ~why) + kStep);
  }
  static void wait(uint32_t spins) {
    if (spins < 64) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }

  std::atomic<uint64_t> version_{kClosed};
  std::atomic<uint32_t> word_{0};
};

}  // namespace perdure::buffer
