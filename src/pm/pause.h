// Pauses on purpose, where threads publish, enter and validate. In the ordinary build everything
// here is empty. With PERDURE_PAUSES (CMake; the preset `pauses`) a thread now and then yields or
// sleeps at these places, as a system would stop it that has more threads than processors, and
// other threads see for long what else is there for some nanoseconds. Environment variable
// PERDURE_PAUSES=SEED decides where and how often; without it there are none.
//
// Where a structure changes its shape, the place has a name. Before such a change other threads may
// be stopped on their way, with what they know of the old shape, until some time after it. At these
// places, in every build, a test can hold the thread, or look at what others see just then
// (`at_place`).
#pragma once

#include <atomic>

namespace perdure::pm {

#ifdef PERDURE_PAUSES
// The place is told apart by its return address.
void pause_on_purpose();
[[gnu::always_inline]] inline void may_pause() { pause_on_purpose(); }
// For long, with some seeds: what others do by the old shape and what they do by the new one then
// meet.
void pause_at_place(const char* name);
// By the thread that is about to change a shape: with some seeds it lets others come to places
// where they stop.
void before_change(const char* name);
#else
inline void may_pause() {}
inline void pause_at_place(const char* /*name*/) {}
inline void before_change(const char* /*name*/) {}
#endif

// What a test wants to be called by threads that come to a place with a name; null: nothing.
inline std::atomic<void (*)(const char* name)> at_place{nullptr};

// By the thread that has just published a new shape, under the locks of the change: "nv-tree: top".
inline void come_to_place(const char* name) {
  if (auto* const visit = at_place.load(std::memory_order_acquire)) visit(name);
  pause_at_place(name);
}

// What another thread has published.
template <typename T>
[[gnu::always_inline]] inline T acquire(const std::atomic<T>& word) {
  const T value = word.load(std::memory_order_acquire);
  may_pause();
  return value;
}
template <typename T>
[[gnu::always_inline]] inline void publish(std::atomic<T>& word, T value) {
  may_pause();
  word.store(value, std::memory_order_release);
  may_pause();
}
// The same of a new shape.
template <typename T>
void publish(std::atomic<T>& word, T value, const char* place) {
  before_change(place);
  word.store(value, std::memory_order_release);
  come_to_place(place);
}

}  // namespace perdure::pm
