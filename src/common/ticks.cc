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

double measure_ns_per_tsc_tick() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const uint64_t start_ticks = __rdtsc();
  auto end = start;
  while (end - start < std::chrono::milliseconds(10)) end = Clock::now();
  const uint64_t ticks = __rdtsc() - start_ticks;
  return std::chrono::duration<double, std::nano>(end - start).count() / static_cast<double>(ticks);
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
