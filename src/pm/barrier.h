// Asymmetric fences: who does a thing all the time does it with plain stores and loads, in program
// order; who seldom needs to know of it has a memory barrier executed by all threads of the process
// (membarrier(2)).
#pragma once

namespace perdure::pm {

// Whether there are such barriers, from now on; of a process that was forked, once more.
bool register_for_barriers();
// Returns false if the process is not registered.
bool barrier_in_all_threads();

}  // namespace perdure::pm
