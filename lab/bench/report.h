// What a benchmark measured, as tables for people, as JSON and CSV for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lab/bench/bench.h"

namespace perdure::lab {

// Aligned columns with units, and a line for each condition that the figures depend on.
std::string to_table(const BenchReport& report);

// As docs/bench-schema.md has it.
nlohmann::json to_json(const BenchReport& report);

// Its member "machine".
nlohmann::json to_json(const Machine& machine);

// A header and a line for each result: docs/bench-schema.md.
std::string to_csv(const BenchReport& report);

}  // namespace perdure::lab
