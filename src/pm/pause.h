// Pauses on purpose, where threads publish, enter and validate. In the ordinary build everything here is
// empty. With PERDURE_PAUSES (CMake; the preset `pauses`) a thread now and then yields or sleeps at these
// places, as a system would stop it that has more threads than processors, and other threads see for
// long what else is there for some nanoseconds. Environment variable PERDURE_PAUSES=SEED decides where
// and how often; without it there are none.
#pragma once

#include <atomic>

namespace perdure::pm {

#ifdef PERDURE_PAUSES
// The place is told apart by its return address.
void pause_on_purpose();
[[gnu::always_inline]] inline void may_pause() { pause_on_purpose(); }
#else
inline void may_pause() {}
#endif

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

}  // namespace perdure::pm
