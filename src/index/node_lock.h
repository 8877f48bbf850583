// The lock of a node, in DRAM or in the node itself: what a structure and its reference, as it was
// published, differ in. Both have calls of StripeLock; the objects are handles.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>

#include "index/stripes.h"
#include "pm/pause.h"

namespace perdure::index {

// One of Stripes: nobody who locks makes a line of PM dirty.
class LockInDram {
 public:
  using Stamp = uint32_t;

  LockInDram() = default;  // none
  explicit LockInDram(StripeLock& lock) : lock_(&lock) {}

  void lock() const { lock_->lock(); }
  void begin_change() const { lock_->begin_change(); }
  void unlock() const { lock_->unlock(); }
  [[gnu::always_inline]] Stamp begin_read() const { return lock_->begin_read(); }
  [[gnu::always_inline]] uint32_t look() const { return lock_->look(); }
  static bool is_changing(uint32_t seen) { return StripeLock::is_changing(seen); }
  bool validate(Stamp stamp) const { return lock_->validate(stamp); }
  bool operator==(const LockInDram&) const = default;
  // By where the locks are: the order in which several are taken.
  bool operator<(const LockInDram& other) const {
    return std::compare_three_way()(lock_, other.lock_) < 0;
  }

 private:
  StripeLock* lock_ = nullptr;
};

// A word of the node: the pool's generation (high half) as in pm::GenerationLock, so that whatever
// a dead process has left there reads as free; and in the low half what StripeLock has, since
// holders look at versions, too. It is never flushed, and means nothing after a restart: what it
// costs is that the line which it makes dirty is written again when the cache lets it go.
class LockInNode {
 public:
  using Stamp = uint64_t;

  LockInNode() = default;  // none
  LockInNode(uint64_t& word, uint64_t generation) : word_(&word), tag_(generation << 32) {}

  void lock() const {
    for (Backoff backoff; !try_lock();) backoff.pause();
    pm::may_pause();
  }
  void begin_change() const {
    const std::atomic_ref<uint64_t> word(*word_);
    word.store(word.load(std::memory_order_relaxed) | kChanging, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    pm::may_pause();
  }
  void unlock() const {
    const uint64_t seen = std::atomic_ref<uint64_t>(*word_).load(std::memory_order_relaxed);
    release((seen & kChanging) != 0 ? seen + kVersion : seen);
  }
  [[gnu::always_inline]] Stamp begin_read() const {
    uint64_t seen = current(std::memory_order_acquire);
    if ((seen & kChanging) != 0) [[unlikely]]
      seen = wait_for_change();
    pm::may_pause();
    return seen & ~kLocked;
  }
  // As those of StripeLock.
  [[gnu::always_inline]] uint32_t look() const {
    const auto seen = static_cast<uint32_t>(current(std::memory_order_acquire));
    pm::may_pause();
    return seen;
  }
  static bool is_changing(uint32_t seen) { return (seen & kChanging) != 0; }
  bool validate(Stamp stamp) const {
    pm::may_pause();
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool same = (current(std::memory_order_relaxed) & ~kLocked) == stamp;
    pm::may_pause();
    return same;
  }
  bool operator==(const LockInNode& other) const { return word_ == other.word_; }
  bool operator<(const LockInNode& other) const {
    return std::compare_three_way()(word_, other.word_) < 0;
  }

 private:
  static constexpr uint64_t kLocked = 1;
  static constexpr uint64_t kChanging = StripeLock::kChanging;
  static constexpr uint64_t kVersion = 4;

  // The word, or what one of another generation stands for: free, and nothing has changed.
  uint64_t meaning(uint64_t seen) const { return seen >> 32 == tag_ >> 32 ? seen : tag_; }
  uint64_t current(std::memory_order order) const {
    return meaning(std::atomic_ref<uint64_t>(*word_).load(order));
  }
  [[gnu::cold, gnu::noinline]] uint64_t wait_for_change() const {
    for (Backoff backoff;; backoff.pause()) {
      const uint64_t seen = current(std::memory_order_acquire);
      if ((seen & kChanging) == 0) return seen;
    }
  }
  bool try_lock() const {
    const std::atomic_ref<uint64_t> word(*word_);
    uint64_t seen = word.load(std::memory_order_relaxed);
    const uint64_t free = meaning(seen);
    return (free & kLocked) == 0 &&
           word.compare_exchange_strong(seen, free | kLocked, std::memory_order_acquire,
                                        std::memory_order_relaxed);
  }
  // Versions start again after 2^30 of them, and never reach the generation.
  void release(uint64_t word) const {
    constexpr uint64_t kLowHalf = 0xffffffff;
    pm::may_pause();
    std::atomic_ref<uint64_t>(*word_).store(tag_ | (word & kLowHalf & ~(kLocked | kChanging)),
                                            std::memory_order_release);
    pm::may_pause();
  }

  uint64_t* word_ = nullptr;
  uint64_t tag_ = 0;
};

}  // namespace perdure::index
