#include "common/ticks.h"

#include <cpuid.h>

#include <ratio>

namespace perdure {
namespace {

bool has_invariant_tsc() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & (1U << 8)) != 0;
}

using Clock = std::chrono::steady_clock;

struct Moment {
  Clock::time_point time;
  uint64_t ticks;
};

// Both clocks at once: the closest of some readings, for this thread may be stopped in between.
Moment read_both() {
  Moment best{};
  auto least = Clock::duration::max();
  constexpr int kReadings = 8;
  for (int i = 0; i < kReadings; ++i) {
    const auto before = Clock::now();
    const uint64_t ticks = __rdtsc();
    const auto took = Clock::now() - before;
    if (took >= least) continue;
    least = took;
    best = {before + took / 2, ticks};
  }
  return best;
}

// A process that starts waits for this: some 20 ns of two milliseconds are as good as it needs.
double measure_ns_per_tsc_tick() {
  const Moment start = read_both();
  Moment end = start;
  while (end.time - start.time < std::chrono::milliseconds(2)) end = read_both();
  return std::chrono::duration<double, std::nano>(end.time - start.time).count() /
         static_cast<double>(end.ticks - start.ticks);
}

double ns_per_steady_tick() {
  using Period = std::chrono::steady_clock::period;
  return 1e9 * static_cast<double>(Period::num) / static_cast<double>(Period::den);
}

}  // namespace

TickClock::TickClock()
    : use_tsc_(has_invariant_tsc()),
      ns_per_tick_(use_tsc_ ? measure_ns_per_tsc_tick() : ns_per_steady_tick()) {}

const TickClock& TickClock::get() {
  static const TickClock clock;
  return clock;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t steady_ms() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace perdure
