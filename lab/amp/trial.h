// One run of a structure on the memory model, in a process of its own.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lab/amp/amp.h"

namespace perdure::lab {

// What a phase reported: ModelSink::report() and the harness's own figures.
struct AmpPhase {
  nlohmann::json report;
  uint64_t operations = 0;
  uint64_t failed = 0;
  uint64_t pool_bytes = 0;
  double seconds = 0;
};

struct AmpTrial {
  std::optional<AmpPhase> load;  // absent if it was stopped
  std::optional<AmpPhase> run;
};

// Loads a fresh structure and, if `workload` is given, runs it. The pool is made in `folder`, which
// is the caller's to remove. Throws what the structure throws, and Error(kCorrupt) if the process
// ends by a signal.
AmpTrial run_amp_trial(const AmpOptions& options, const std::string& structure,
                       const AmpWorkload* workload, const std::string& folder,
                       const ProgressSink& progress, const std::atomic<bool>& stop);

}  // namespace perdure::lab
