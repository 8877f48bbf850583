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

// A thread pauses at a place at most once in a while, however often it comes there, and for up to a
// part of the time since: at rare ones, such as the end of a rebuild, nearly each time and for
// long, and frequent ones leave it the time to get somewhere. By the seed: short at many places, so
// that several threads may stand still at a time, or long at few, so that much happens around one
// that does.
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

// While a change of shape is announced, threads that come to certain places stop there until it is
// some time past. By the processor's clock.
struct Hold {
  std::atomic<uint64_t> arrive_until{0};
  std::atomic<uint64_t> until{0};
  std::atomic<uint64_t> salt{0};  // decides at which places
  std::atomic<uint64_t> quiet_until{0};
  std::atomic<bool> busy{false};
};
Hold hold;
thread_local uint64_t announced_until = 0;  // by this thread

// Whether the thread has been held at this place.
bool was_held(uint64_t address) {
  if (hold.arrive_until.load(std::memory_order_relaxed) <= __rdtsc()) return false;
  if (mix(address + hold.salt.load(std::memory_order_relaxed)) % 4 != 0) return false;
  const uint64_t until = hold.until.load(std::memory_order_relaxed);
  const uint64_t now = __rdtsc();
  if (now < until) {
    std::this_thread::sleep_for(std::chrono::microseconds((until - now) / kClocksPerUs));
  }
  return true;
}

}  // namespace

[[gnu::noinline]] void pause_on_purpose() {
  static const uint64_t seed = seed_of_process();
  if (seed == 0) return;
  const uint64_t number = next_number(seed);
  // The seed picks the places where threads pause, for the rest is then fast enough that much
  // happens during one pause; elsewhere they seldom do. Relative to this function, so that the
  // kernel's choice of addresses does not matter.
  const Habit habit = habit_of(seed);
  const uint64_t address = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) -
                           reinterpret_cast<uintptr_t>(&pause_on_purpose);
  if (was_held(address)) return;
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

// With two of three seeds. At most half of the time somebody is held.
void before_change(const char* name) {
  static const uint64_t seed = seed_of_process();
  may_pause();
  if (seed % 3 == 0 || hold.busy.exchange(true, std::memory_order_acquire)) return;
  const uint64_t now = __rdtsc();
  if (hold.quiet_until.load(std::memory_order_relaxed) <= now) {
    const uint64_t number = next_number(seed + std::hash<std::string_view>{}(name));
    const uint64_t arrive_us = 50 + number % 200;
    const uint64_t stay_us = 200 + (number >> 20) % 2500;
    const uint64_t arrive_until = now + arrive_us * kClocksPerUs;
    const uint64_t until = arrive_until + stay_us * kClocksPerUs;
    hold.salt.store(number, std::memory_order_relaxed);
    hold.until.store(until, std::memory_order_relaxed);
    hold.quiet_until.store(until + (until - now), std::memory_order_relaxed);
    hold.arrive_until.store(arrive_until, std::memory_order_relaxed);
    announced_until = until;
    std::this_thread::sleep_for(std::chrono::microseconds(arrive_us));
  }
  hold.busy.store(false, std::memory_order_release);
}

// Here every pause is long: shapes change seldom. Half of the seeds pause at no such place, for
// then more changes; the others at one in two.
void pause_at_place(const char* name) {
  static const uint64_t seed = seed_of_process();
  if (announced_until > __rdtsc()) {
    // Those who are held go on before this thread does.
    const uint64_t number = next_number(seed);
    if (number % 4 != 0) {
      const uint64_t left_us = (announced_until - __rdtsc()) / kClocksPerUs;
      std::this_thread::sleep_for(std::chrono::microseconds(left_us + number / 4 % 1000));
    }
    announced_until = 0;
    return;
  }
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
