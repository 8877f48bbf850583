// Libraries that were built for PiBench, as contenders of a benchmark.
#pragma once

#include <string>

#include "lab/bench/contender.h"

namespace perdure::lab {

// Whether a contender's name is that of a library: the path of a file with ".so" in its name.
bool is_plugin(const std::string& name);

// Throws Error(kInvalidArgument) if there is no such file; making an index throws what
// load_plugin() throws.
Contender plugin_contender(const std::string& library);

}  // namespace perdure::lab
