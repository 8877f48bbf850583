// Locks. Volatile by meaning: none survives the process, wherever its word lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "pm/memory.h"

namespace perdure::pm {

// One thread at a time; for critical sections of about a microsecond. Yields when it waits long, so
// that a preempted holder gets the processor.
class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) {
      for (int spins = 0; locked_.load(std::memory_order_relaxed); ++spins) {
        if (spins < 64) {
          _mm_pause();
        } else {
          std::this_thread::yield();
        }
      }
    }
    may_pause();
  }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { publish(locked_, false); }

 private:
  std::atomic<bool> locked_{false};
};

// A version lock inside a persistent node. The word holds the pool's generation (high half), a
// version, and a locked bit: a word left locked by a dead process bears an old generation and reads
// as free, so recovery never visits locks. Writers lock; readers note the version, read, and
// validate. The word is never flushed.
class GenerationLock {
 public:
  // `word` is 8-byte aligned memory of a node, any value; `generation` is the open pool's.
  GenerationLock(uint64_t& word, uint64_t generation) : word_(word), tag_(generation << 32) {}

  bool try_lock() {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    const uint64_t current = this_generation(seen) ? seen : tag_;
    if ((current & 1) != 0) return false;
    return word_.compare_exchange_strong(seen, current | 1, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void lock() {
    for (int spins = 0; !try_lock(); ++spins) {
      if (spins < 64) {
        _mm_pause();
      } else {
        std::this_thread::yield();
      }
    }
    may_pause();
  }
  // Releases, and makes readers that began before the lock was taken fail to validate.
  void unlock() {
    const uint64_t seen = word_.load(std::memory_order_relaxed);
    const uint64_t version = (seen + 1) & 0xffffffff;  // clears the locked bit with a carry
    may_pause();
    word_.store(tag_ | version, std::memory_order_release);
    may_pause();
  }

  // For who holds it: whether nobody has in this generation before. (Nor for 2^31 times.)
  bool is_first() const { return word_.load(std::memory_order_relaxed) == (tag_ | 1); }

  // A stamp for validate(): the word, whatever its generation. Returns false while the lock is
  // held.
  bool try_begin_read(uint64_t& stamp) const {
    stamp = word_.load(std::memory_order_acquire);
    constexpr uint64_t kHeldBits = ~uint64_t{0} << 32 | 1;
    return (stamp & kHeldBits) != (tag_ | 1);
  }
  // The same; waits while the lock is held.
  uint64_t begin_read() const {
    for (int spins = 0;; ++spins) {
      uint64_t stamp = 0;
      if (try_begin_read(stamp)) {
        may_pause();
        return stamp;
      }
      if (spins < 64) {
        _mm_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
  bool validate(uint64_t stamp) const {
    may_pause();
    std::atomic_thread_fence(std::memory_order_acquire);
    // Whoever has locked meanwhile has put another word there, of this generation.
    const bool same = word_.load(std::memory_order_relaxed) == stamp;
    may_pause();
    return same;
  }

 private:
  bool this_generation(uint64_t seen) const { return seen >> 32 == tag_ >> 32; }

  std::atomic_ref<uint64_t> word_;
  uint64_t tag_;
};

}  // namespace perdure::pm
