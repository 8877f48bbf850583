// The shortest workload that still shows a finding.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/crash/explorer.h"

namespace perdure::lab::crash {

// Numbers of operations of the subject's workload, in order, that are enough to have a finding: by
// leaving out ever smaller parts and exploring again, for `seconds` at most. Empty if the whole
// workload shows nothing within the limits.
std::vector<uint32_t> shrink(Subject& subject, const ExploreOptions& options, double seconds);

}  // namespace perdure::lab::crash
