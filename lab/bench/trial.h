// One trial of a benchmark: a fresh pool, a load, a run, a clean close, a reopening; and, if asked
// for, a second pool whose loader is killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "lab/bench/bench.h"
#include "lab/bench/contender.h"
#include "lab/bench/emulated_medium.h"
#include "lab/bench/phase.h"
#include "perdure/pool.h"

namespace perdure::lab {

struct TrialOptions {
  const Contender* contender = nullptr;
  unsigned threads = 1;
  const Workload* workload = nullptr;
  const EmulatedMedium* medium = nullptr;  // that pools are on
  bool kill_recovery = false;
  std::string label;  // for the progress bar
};

// A phase and what the store took when it ended.
struct MeasuredPhase {
  PhaseResult phase;
  uint64_t pool_bytes = 0;
  uint64_t dram_bytes = 0;
  uint64_t raw_bytes = 0;  // of the records there then
  std::optional<PersistsPerOperation> persists;
};

struct TrialResult {
  MeasuredPhase load;
  std::optional<MeasuredPhase> run;
  uint64_t records = 0;  // loaded
  uint64_t missing = 0;  // of a sample of records, after each opening
  std::optional<PoolInfo> pool;
  std::optional<double> open_clean_ms;
  std::optional<double> open_killed_ms;
};

// Why a contender cannot do what is asked for, in words; empty if it can.
std::string unable(const Contender& contender, const BenchOptions& options,
                   const Workload& workload, unsigned threads);

// Throws what pools and structures throw. Leaves no file behind.
TrialResult run_trial(const BenchOptions& options, const TrialOptions& trial,
                      const ProgressSink& progress, const std::atomic<bool>& stop);

// Whether the pools of this benchmark are forced into a domain, and into which: the one asked for;
// without, and without PERDURE_DOMAIN in the environment, `line` on tmpfs, where the detected
// domain would need no flush and so measure another algorithm than persistent memory runs.
std::optional<Domain> forced_domain(const BenchOptions& options);

}  // namespace perdure::lab
