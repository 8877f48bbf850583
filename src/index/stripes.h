// Version locks in DRAM, each for a part of a structure, for nodes that have no room for a lock or
// must not be made dirty by one.
//
//   StripeLock& lock = stripes[number];
//   lock.lock();             // other writers wait; readers go on
//   ...look around...
//   lock.begin_change();     // readers wait, and those under way will read again
//   ...store, flush, fence...
//   lock.unlock();
//
//   uint32_t stamp;
//   do { stamp = lock.begin_read(); ... } while (!lock.validate(stamp));
//
// So a reader never sees a word that is not yet durable, and waits for a store and its fence only,
// not for a writer's search.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "pm/pause.h"

namespace perdure::index {

// Waits a little; longer and longer ones let other threads run.
class Backoff {
 public:
  void pause() {
    if (++spins_ < 64) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  int spins_ = 0;
};

class StripeLock {
 public:
  static constexpr uint32_t kChanging = 2;

  bool try_lock() {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    return (seen & kLocked) == 0 &&
           word_.compare_exchange_strong(seen, seen | kLocked, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void lock() {
    for (Backoff backoff; !try_lock();) backoff.pause();
    pm::may_pause();
  }
  // By the holder, before the first store that readers could see.
  void begin_change() {
    word_.store(word_.load(std::memory_order_relaxed) | kChanging, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    pm::may_pause();
  }
  // Readers that began before will fail to validate, if anything was changed.
  void unlock() {
    const uint32_t seen = word_.load(std::memory_order_relaxed);
    const uint32_t version = (seen & kChanging) != 0 ? kVersion : 0;
    pm::publish(word_, (seen & ~(kLocked | kChanging)) + version);
  }
  // The same without begin_change(): what readers see is the same, but elsewhere.
  void unlock_moved() {
    const uint32_t seen = word_.load(std::memory_order_relaxed);
    pm::publish(word_, (seen & ~(kLocked | kChanging)) + kVersion);
  }

  [[gnu::always_inline]] uint32_t begin_read() const {
    uint32_t seen = word_.load(std::memory_order_acquire);
    if ((seen & kChanging) != 0) [[unlikely]]
      seen = wait_for_change();
    pm::may_pause();
    return seen & ~kLocked;
  }
  // Without waiting. If nothing is changing, what was read before of what the lock guards is
  // durable. Of several locks, this can be asked of the `or` of what they say.
  [[gnu::always_inline]] uint32_t look() const {
    const uint32_t seen = word_.load(std::memory_order_acquire);
    pm::may_pause();
    return seen;
  }
  static bool is_changing(uint32_t seen) { return (seen & kChanging) != 0; }
  bool validate(uint32_t stamp) const {
    pm::may_pause();
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool same = (word_.load(std::memory_order_relaxed) & ~kLocked) == stamp;
    pm::may_pause();
    return same;
  }

 private:
  static constexpr uint32_t kLocked = 1;
  static constexpr uint32_t kVersion = 4;

  // Apart, so that a reader who need not wait has few instructions.
  [[gnu::cold, gnu::noinline]] uint32_t wait_for_change() const {
    for (Backoff backoff;; backoff.pause()) {
      const uint32_t seen = word_.load(std::memory_order_acquire);
      if ((seen & kChanging) == 0) return seen;
    }
  }

  std::atomic<uint32_t> word_{0};
};

class Stripes {
 public:
  explicit Stripes(uint64_t count) : locks_(new StripeLock[count]), count_(count) {}
  StripeLock& operator[](uint64_t number) const { return locks_[number]; }
  // Of 2^kBits stripes, one for a number of any size: numbers near each other have different ones.
  template <uint32_t kBits>
  StripeLock& of(uint64_t number) const {
    return locks_[number * 0x9e3779b97f4a7c15 >> (64 - kBits)];
  }
  uint64_t count() const { return count_; }
  uint64_t dram_bytes() const { return count_ * sizeof(StripeLock); }

 private:
  std::unique_ptr<StripeLock[]> locks_;
  uint64_t count_;
};

}  // namespace perdure::index
