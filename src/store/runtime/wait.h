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

// Waits for `ready()` without sleeping: about `spin_ns`, or some yields. Returns whether it came;
// if not, the caller sleeps. With `spin_ns` 0 it only looks once.
template <typename Ready>
bool spin_until(Ready ready, uint32_t spin_ns) {
  if (ready()) return true;
  if (spin_ns == 0) return false;
  if (!crowd.talks) {
    const auto end = WaitClock::now() + std::chrono::nanoseconds(spin_ns);
    do {
      for (int i = 0; i < 32; ++i) {
        _mm_pause();
        if (ready()) return true;
      }
    } while (WaitClock::now() < end);
  }
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

}  // namespace perdure::store
