// How a thread waits: it spins for a while, yields, and then sleeps in the kernel.
//
// To spin costs nothing while nobody else wants the processor, and everything when somebody does,
// for the thread that is waited for may be the one that does not run. A yield tells which, by the
// time until it returns: at once, nobody is there, and to spin is right; after some microseconds,
// threads are there that wait for each other as this one does, and to yield is cheaper than sleep
// and wake-up; after a slice of the scheduler, somebody computes, and would take a slice at each
// yield: it is better to sleep, for who wakes up comes before who computes.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "pm/pause.h"

namespace perdure::store {

// Sleeps while `word` is `value`, or shorter.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
// Wakes one thread that sleeps on `address`. The word itself is not touched and may be gone:
// whoever sleeps on what came to lie there is woken without need, which every user of a futex must
// bear.
inline void futex_wake(const void* address) noexcept {
  ::syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

using WaitClock = std::chrono::steady_clock;

// What this thread's last yields have told.
struct Crowd {
  bool talks = false;          // threads that wait for each other: yield rather than spin
  uint32_t sleep_at_once = 0;  // threads that compute: the next so many waits do not yield
};
inline thread_local constinit Crowd crowd;

// Lets others run, who wait for each other and for this thread.
inline void yield_processor() noexcept {
  // Longer than the call, shorter than two switches of threads.
  constexpr std::chrono::nanoseconds kAlone{1500};
  // Longer than a round of many that talk, shorter than a slice.
  constexpr std::chrono::microseconds kComputes{200};
  constexpr uint32_t kWaits = 256;
  const auto begin = WaitClock::now();
  ::sched_yield();
  const auto away = WaitClock::now() - begin;
  crowd.talks = away > kAlone && away < kComputes;
  if (away >= kComputes) crowd.sleep_at_once = kWaits;
}

// For what nobody wakes this thread for.
inline void pause_briefly() noexcept {
  if (crowd.sleep_at_once == 0) {
    yield_processor();
    if (crowd.talks) return;
  } else {
    --crowd.sleep_at_once;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// Waits for `ready()` at most about `spin_ns`, or not at all where threads talk. Returns whether it
// came.
template <typename Ready>
bool spin_alone(Ready ready, uint32_t spin_ns) {
  if (ready()) return true;
  if (spin_ns == 0 || crowd.talks) return false;
  const auto end = WaitClock::now() + std::chrono::nanoseconds(spin_ns);
  do {
    for (int i = 0; i < 32; ++i) {
      _mm_pause();
      if (ready()) return true;
    }
  } while (WaitClock::now() < end);
  return false;
}

// Waits for `ready()` for some yields. Returns whether it came; if not, the caller sleeps.
template <typename Ready>
bool yield_until(Ready ready) {
  if (crowd.sleep_at_once != 0) {
    --crowd.sleep_at_once;
    return false;
  }
  constexpr int kYields = 8;
  for (int i = 0; i < kYields; ++i) {
    yield_processor();
    if (ready()) return true;
    if (!crowd.talks) return false;
  }
  return false;
}

// Waits for `ready()` without sleeping: both of these. With `spin_ns` 0 it only looks once.
template <typename Ready>
bool spin_until(Ready ready, uint32_t spin_ns) {
  return spin_alone(ready, spin_ns) || (spin_ns != 0 && yield_until(ready));
}

// A lock that one thread waits for, asleep; all others take it only while it is free.
class Turn {
 public:
  bool is_free() const noexcept { return word_.load(std::memory_order_relaxed) == kFree; }
  bool try_take() noexcept {
    uint32_t free = kFree;
    const bool taken =
        is_free() && word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire,
                                                   std::memory_order_relaxed);
    pm::may_pause();
    return taken;
  }
  // Of the one thread.
  void take(uint32_t spin_ns) noexcept {
    if (spin_until([&] { return try_take(); }, spin_ns)) return;
    while (word_.exchange(kWanted, std::memory_order_acquire) != kFree) futex_wait(word_, kWanted);
    pm::may_pause();
  }
  void give() noexcept {
    pm::may_pause();
    if (word_.exchange(kFree, std::memory_order_release) == kWanted) futex_wake(&word_);
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kTaken = 1;
  static constexpr uint32_t kWanted = 2;  // taken, and the one thread sleeps, or has slept

  std::atomic<uint32_t> word_{kFree};
};

}  // namespace perdure::store
