#include "store/latch.h"

#include <cstdio>
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
  // Somebody forbade the call meanwhile: two threads at a time would be worse.
  std::fputs(
      "perdure: membarrier(2) is refused, which the system allowed when the store was first "
      "used; allow it, or forbid it from the start\n",
      stderr);
  std::abort();
}

}  // namespace perdure::store
