// A structure that does nothing: what a benchmark of it shows is the cost of the harness.
#pragma once

#include <memory>

#include "perdure/index.h"

namespace perdure::lab {

inline constexpr const char kNullName[] = "null";

// Every operation succeeds and stores nothing; a lookup leaves its output empty, a scan visits the
// key it starts from, as often as it is asked for records. Thread-safe.
std::unique_ptr<AnyIndex> make_null_index(Kind key_kind, Kind value_kind);

}  // namespace perdure::lab
