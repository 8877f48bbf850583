// Which processors the threads of a benchmark run on.
#pragma once

namespace perdure::lab {

// Binds this thread to one of the processors that the process may run on: the `number`-th, counting
// round. Where the system refuses, the thread runs where it did.
void run_on_processor(unsigned number);

}  // namespace perdure::lab
