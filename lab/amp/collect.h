// From what a ModelSink reports to results with names of places.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lab/amp/amp.h"

namespace perdure::lab {

// Fills in the counts and sites of a result from ModelSink::report().
void collect(const nlohmann::json& report, AmpResult& result);

}  // namespace perdure::lab
