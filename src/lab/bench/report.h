// What a benchmark measured, as a table for people and as JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lab/bench/bench.h"

namespace perdure::lab {

// Aligned columns with units, and a line for each condition that the figures depend on.
std::string to_table(const BenchReport& report);

// {"schema": "perdure-bench-1", "floor_ns", "read_chain_ns", "machine": {...},
//  "parameters": {...}, "results": [{"structure", "operation", "threads", "records", "operations",
//  "failed", "pool_bytes", "dram_bytes", "mops_median", "mops", "ns_per_op_median",
//  "ratio_to_floor", "ratio_to_read_chain",
//  "percentiles": {"min", "p50", "p90", "p99", "p99.9", "p99.99", "max"}, ...}], ...}.
// Percentiles are latencies in nanoseconds. Loads also have bytes per record and the times to open.
// Figures that were not measured are null.
nlohmann::json to_json(const BenchReport& report);

}  // namespace perdure::lab
