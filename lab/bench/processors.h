// Which processors the threads of a benchmark run on.
#pragma once

#include <string_view>
#include <vector>

namespace perdure::lab {

using Processors = std::vector<unsigned>;  // numbers as the system has them, in order

// Those that the process may run on.
Processors allowed_processors();

// Reads "0", "0,2" or "0-3,8". Throws Error(kInvalidArgument), also on processors that the process
// may not run on.
Processors parse_processors(std::string_view text);

// Binds this thread to one of the processors that the process may run on: the `number`-th, counting
// round. Where the system refuses, the thread runs where it did.
void run_on_processor(unsigned number);

// Binds this thread to these, of which there is one at least. Where the system refuses, it runs
// where it did.
void run_on_processors(const Processors& processors);

}  // namespace perdure::lab
