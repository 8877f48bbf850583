#include "store/latch.h"

#include <cstdlib>

#include "pm/barrier.h"

namespace perdure::store {

bool has_barrier() {
  static const bool there = pm::register_for_barriers();
  return there;
}

// There is a bias only where there was a barrier before. A child of fork() registers again.
void barrier_of_all_threads() {
  if (pm::barrier_in_all_threads() || pm::register_for_barriers()) return;
  std::abort();  // somebody forbade the call meanwhile: two threads at a time would be worse
}

}  // namespace perdure::store
