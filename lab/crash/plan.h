// What is explored of a structure of the catalogue unless the user says otherwise: workloads that
// together reach each place of its code that flushes or fences, as far as a workload can.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/crash/index_subject.h"

namespace perdure::lab::crash {

struct PlannedRun {
  std::string title;  // "growing", "2 threads, order 1"
  IndexWorkload workload;
};

// For each pair of kinds of key and value; threads take turns in orders 1 to `schedules`. `base`
// has what the user decides: the structure, seed, domain and how many operations follow a recovery.
std::vector<PlannedRun> default_plan(const IndexWorkload& base,
                                     const std::vector<std::pair<Kind, Kind>>& kinds,
                                     unsigned schedules);

}  // namespace perdure::lab::crash
