// What was counted, as tables for people and as JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lab/amp/amp.h"

namespace perdure::lab {

// For each workload and type of operation a table with a column for each structure, figures per
// operation; before them what was modelled.
std::string to_table(const AmpReport& report);

// For each structure and workload the call sites that wrote most.
std::string sites_table(const AmpReport& report, size_t rows_max);

// The profile's parameters, one a line.
std::string profile_table(const Profile& profile);

// {"schema": "perdure-amp-1", "profile": {...}, "scaling", "parameters": {...},
//  "results": [{"structure", "workload", "records", "operations", "failed",
//    "wpq_inserts_per_insert", "media_writes_per_insert", "media_writes_per_wpq_insert",
//    "flushes_per_insert", "fences_per_insert", ..., the same per_lookup,
//    "modelled_mops", "bottleneck", "time": [{"threads", ...}],
//    "total": {counts}, "operation_types": {"insert": {counts and per_operation}, ...},
//    "sites": [{"file", "line", "function", counts}]}]}.
// Media reads and writes are in units of 64 bytes. Figures per operation of a type that did not
// occur are null.
nlohmann::json to_json(const AmpReport& report);

}  // namespace perdure::lab
