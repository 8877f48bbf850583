// A medium that answers as slowly as an SSD, whatever the files are on: each request takes a time
// at least, which its thread sleeps through.
#pragma once

#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace perdure::lab::study {

// What began at `begin` ends `latency` later, when this returns. Returns how long it took.
inline std::chrono::steady_clock::duration take_until(std::chrono::steady_clock::time_point begin,
                                                      std::chrono::steady_clock::duration latency) {
  using Clock = std::chrono::steady_clock;
  // The system wakes a thread up some microseconds late.
  constexpr std::chrono::microseconds kLate{20};
  thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1);
  static_cast<void>(precise);
  const Clock::time_point end = begin + latency;
  if (latency > 2 * kLate) std::this_thread::sleep_until(end - kLate);
  while (Clock::now() < end) continue;
  return Clock::now() - begin;
}

struct SlowMedium {
  std::chrono::steady_clock::duration latency{};
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> taken_ns{0};

  // A read that begins now ends when this returns.
  void wait(std::chrono::steady_clock::time_point begin) {
    const auto taken = take_until(begin, latency);
    reads.fetch_add(1, std::memory_order_relaxed);
    taken_ns.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(taken).count()),
                       std::memory_order_relaxed);
  }
};

}  // namespace perdure::lab::study
