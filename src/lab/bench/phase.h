// One phase of a benchmark: a stream of operations, carried out by several threads on one index.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "lab/bench/client.h"
#include "lab/bench/workload.h"
#include "lab/histogram.h"
#include "lab/progress.h"
#include "perdure/index.h"

namespace perdure::lab {

struct PhaseOptions {
  std::string name;  // for the progress bar
  unsigned threads = 1;
  uint64_t key_bytes = 8;         // of byte-string keys, at least 8
  uint64_t value_bytes = 8;       // of byte-string values
  double latency_sampling = 0.1;  // share of the operations that are timed one by one
};

struct PhaseResult {
  double seconds = 0;       // from the first thread's start to the last thread's end
  uint64_t operations = 0;  // carried out; fewer than planned when it was stopped
  uint64_t failed = 0;      // reported absent or present when the opposite was true
  Histogram latency_ticks;
};

// Carries out the plan, cut into one contiguous part for each thread, until it ends or `stop` is
// set. Rethrows the first error of any thread, after all have ended.
PhaseResult run_phase(AnyIndex& index, const OperationPlan& plan, const PhaseOptions& options,
                      const ProgressSink& progress, const std::atomic<bool>& stop);

}  // namespace perdure::lab
