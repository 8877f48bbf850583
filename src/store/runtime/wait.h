// How a thread waits: it spins for a while, yields, and then sleeps in the kernel.
//
// To spin costs nothing while nobody else wants the processor, and everything when somebody does, for
// the thread that is waited for may be the one that does not run. A yield tells which: it returns late if
// another thread ran meanwhile. From then on this thread yields instead of spinning, until a yield
// returns at once again.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace perdure::store {

// Sleeps while `word` is `value`, or shorter.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
// Wakes one thread that sleeps on `address`. The word itself is not touched and may be gone: whoever
// sleeps on what came to lie there is woken in vain, which every user of a futex must bear.
inline void futex_wake(const void* address) noexcept {
  ::syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

using WaitClock = std::chrono::steady_clock;

// Whether other threads wanted the processor when this thread last yielded.
inline thread_local constinit bool crowded = false;

inline void yield_processor() noexcept {
  constexpr std::chrono::nanoseconds kAlone{
      1500};  // longer than the call, shorter than two switches
  const auto begin = WaitClock::now();
  ::sched_yield();
  crowded = WaitClock::now() - begin > kAlone;
}

// Waits for `ready()` without sleeping: about `spin_ns`, or some yields. Returns whether it came; if
// not, the caller sleeps. With `spin_ns` 0 it only looks once.
template <typename Ready>
bool spin_until(Ready ready, uint32_t spin_ns) {
  if (ready()) return true;
  if (spin_ns == 0) return false;
  if (!crowded) {
    const auto end = WaitClock::now() + std::chrono::nanoseconds(spin_ns);
    do {
      for (int i = 0; i < 32; ++i) {
        _mm_pause();
        if (ready()) return true;
      }
    } while (WaitClock::now() < end);
  }
  constexpr int kYields = 8;
  for (int i = 0; i < kYields; ++i) {
    yield_processor();
    if (ready()) return true;
    if (!crowded && i > 0) return false;  // nobody to make room for
  }
  return false;
}

}  // namespace perdure::store
