// From what a ModelSink reports to results with names of places.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "lab/amp/amp.h"

namespace perdure::lab {

// In ours, functions that only flush have names that are known. In code that is not, they are those
// that flushed and did not store.
enum class Code : uint8_t { kOurs, kForeign };

// Fills in the counts and sites of a result from ModelSink::report().
void collect(const nlohmann::json& report, AmpResult& result, Code code = Code::kOurs);

}  // namespace perdure::lab
