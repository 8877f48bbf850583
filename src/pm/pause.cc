#include "pm/pause.h"

#ifdef PERDURE_PAUSES
#include <x86intrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>

namespace perdure::pm {

namespace {

// The finaliser of splitmix64.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

uint64_t seed_of_process() {
  const char* text = std::getenv("PERDURE_PAUSES");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 0);
}

// Each thread has a sequence of its own, by the order in which they came.
uint64_t next_number(uint64_t seed) {
  static std::atomic<uint64_t> threads{0};
  thread_local uint64_t state = mix(seed + (threads.fetch_add(1) + 1) * 0x9e3779b97f4a7c15U);
  return mix(state += 0x9e3779b97f4a7c15U);
}

// A thread pauses at a place at most once in a while, however often it comes there, and for up to a part
// of the time since: at rare ones, such as the end of a rebuild, nearly each time and for long, and frequent
// ones leave it the time to get somewhere. By the seed: short at many places, so that several threads may
// stand still at a time, or long at few, so that much happens around one that does.
struct Habit {
  uint64_t one_in;  // places
  uint64_t part;    // of the time since
};
Habit habit_of(uint64_t seed) { return seed % 2 == 0 ? Habit{4, 32} : Habit{16, 4}; }
constexpr uint64_t kPlaces = 512;
thread_local uint64_t paused_at[kPlaces];  // by the processor's clock
constexpr uint64_t kClocksPerUs = 2500;    // roughly

void pause_for(uint64_t number, uint64_t most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(number % most_us));
}

}  // namespace

[[gnu::noinline]] void pause_on_purpose() {
  static const uint64_t seed = seed_of_process();
  if (seed == 0) return;
  const uint64_t number = next_number(seed);
  // The seed picks the places where threads pause, for the rest is then quick enough that much happens during
  // one pause; elsewhere they seldom do. Relative to this function, so that the kernel's choice of
  // addresses does not matter.
  const Habit habit = habit_of(seed);
  const uint64_t address = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) -
                           reinterpret_cast<uintptr_t>(&pause_on_purpose);
  const uint64_t place = mix(address + seed * 0x9e3779b97f4a7c15U);
  if (place % habit.one_in != 0) {
    if (number % 16384 == 0) pause_for(number >> 32, 200);
    return;
  }
  if (number % 2 == 0) return;
  uint64_t& last = paused_at[place / habit.one_in % kPlaces];
  const uint64_t now = __rdtsc();
  const uint64_t since_us = (now - last) / kClocksPerUs;
  if (since_us < uint64_t{1000} << place / habit.one_in / kPlaces % 4)
    return;  // 1 to 8 ms, by the place
  pause_for(number >> 32, std::min<uint64_t>(since_us / habit.part, 4000));
  last = __rdtsc();
}

// Here every pause is long: shapes change seldom. Half of the seeds pause at no such place, for then more
// changes; the others at one in two.
void pause_at_place(const char* name) {
  static const uint64_t seed = seed_of_process();
  if (seed == 0 || seed / 2 % 2 == 0) return;
  const uint64_t place = mix(std::hash<std::string_view>{}(name) + seed * 0x9e3779b97f4a7c15U);
  if (place % 2 == 0) return;
  constexpr uint64_t kMost_us = 4000;
  thread_local uint64_t paused_until = 0;
  const uint64_t since_us = (__rdtsc() - paused_until) / kClocksPerUs;
  // At most as long as there was none, so that half of the time is for work.
  pause_for(next_number(seed) >> 32, std::clamp<uint64_t>(since_us, 1, kMost_us));
  paused_until = __rdtsc();
}

}  // namespace perdure::pm
#endif
