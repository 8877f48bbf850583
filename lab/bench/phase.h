// One phase of a benchmark: a stream of operations, carried out by several threads on one index.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/progress.h"
#include "lab/bench/client.h"
#include "lab/bench/workload.h"
#include "lab/histogram.h"
#include "perdure/index.h"

namespace perdure::lab {

struct PhaseOptions {
  std::string name;  // for the progress bar
  unsigned threads = 1;
  RecordForm form = {.key_bytes = 8, .value_bytes = 8};  // of byte strings
  double latency_sampling = 0.1;  // share of the operations that are timed one by one
  uint64_t batch = 1;       // operations of one type in one call, where there are batched calls
  uint64_t warmup = 0;      // operations at the start of the stream that are not measured
  double time_limit_s = 0;  // of the measured part; 0: none
  double window_s = 0.1;    // of the series of throughputs
  bool pinned = false;      // thread i on the i-th of the processors we may run on
  bool compare = true;      // what is read, and what a sample of the writes left
};

// What was measured of the operations of one type.
struct TypeResult {
  uint64_t operations = 0;
  Histogram latency_ticks;  // of whole calls: with batches, of batches
};

struct PhaseResult {
  double seconds = 0;       // from the first thread's start to the last thread's end
  uint64_t operations = 0;  // measured; fewer than planned when it was stopped
  // Reported absent or present when the opposite was true, or read a value that nobody wrote for
  // the key; and, of a sample after the phase, writes whose effect is not there.
  uint64_t failed = 0;
  uint64_t scanned = 0;      // records that scans visited
  bool complete = false;     // neither stopped nor cut by the time limit
  uint64_t stream_hash = 0;  // OperationPlan::stream_hash of what was carried out, warm-up included
  std::array<TypeResult, kOperationTypes> by_type;
  std::vector<double> window_mops;  // of every whole window

  Histogram latency_ticks() const;  // of all types together
};

// Carries out the plan until it ends, the time is over or `stop` is set. Each thread takes one
// contiguous part of the plan; where operations depend on earlier ones (OperationPlan::dependence),
// blocks in turn. Rethrows the first error of any thread, after all have ended.
PhaseResult run_phase(AnyIndex& index, const OperationPlan& plan, const PhaseOptions& options,
                      const ProgressSink& progress, const std::atomic<bool>& stop);

}  // namespace perdure::lab
