// A cheap clock for timing single operations: the time-stamp counter where it runs at a constant
// rate, the steady clock elsewhere.
#pragma once

#include <x86intrin.h>

#include <chrono>
#include <cstdint>

namespace perdure {

class TickClock {
 public:
  // The clock of this process. The first call calibrates it against the steady clock (10 ms).
  static const TickClock& get();

  uint64_t now() const {
    if (use_tsc_) return __rdtsc();
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  double ns_per_tick() const { return ns_per_tick_; }
  const char* source() const { return use_tsc_ ? "rdtsc" : "steady_clock"; }

 private:
  TickClock();

  bool use_tsc_;
  double ns_per_tick_;
};

// Time since an arbitrary start.
double steady_seconds();
uint64_t steady_ms();

}  // namespace perdure
