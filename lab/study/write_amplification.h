// The write-amplification study: every structure and variant under the same workloads, on the
// memory model, in one run; beside what was published of them.
//
//   StudyOptions options{.amp = {.structures = {"p-clht", "p-clht+fc"}}};
//   const StudyReport report = run_study(options, progress, stop);
//   fmt::print("{}", to_table(report));
//
// A cell is one structure under one workload. Cells are counted by processes of their own, several
// at a time, which does not change what is counted (lab/amp/amp.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/progress.h"
#include "lab/amp/amp.h"
#include "lab/machine.h"

namespace perdure::lab::study {

struct StudyOptions {
  AmpOptions amp;     // keys and values are 8 bytes; no structures: all that take them
  unsigned jobs = 0;  // processes at a time; 0: two, or as many as there are processors
  std::string state;  // a file that keeps finished cells; empty: none
};

// A cell that could not be counted.
struct StudyFailure {
  std::string structure;
  std::string workload;
  std::string message;
};

struct StudyReport {
  AmpOptions options;  // as used: structures and sizes filled in
  Profile profile;     // as used: scaled
  Machine machine;
  std::vector<AmpResult> cells;  // by structure and workload, in the order they were asked for
  std::vector<StudyFailure> failures;
  size_t resumed = 0;  // cells that the state file had
  bool interrupted = false;

  size_t cells_asked() const { return options.structures.size() * options.workloads.size(); }
  uint64_t failed() const;  // answers that were wrong
  // Whether the memory is like the one that the published figures were measured on.
  bool is_comparable() const;
};

// Structures of the catalogue with 8-byte keys and values.
std::vector<std::string> study_structures();

// `options.amp.profile` is used as it is: scale it before. Set `stop` to end early with what is
// done. A structure that fails in a cell is reported, and the others go on. Throws Error on bad
// options, and what StateFile throws.
StudyReport run_study(const StudyOptions& options, const ProgressSink& progress,
                      const std::atomic<bool>& stop);

// For each workload a table of the structures, then the effects of the optimisations.
std::string to_table(const StudyReport& report);

// {"schema": "perdure-study-write-amplification-1", "machine", "profile", "scaling", "parameters",
//  "published": {"source", "conditions"}, "interrupted", "cells_asked", "cells_resumed",
//  "results": [{"structure", "workload", "operation", "wpq_inserts_per_insert", ...,
//    "published": {...}, "deviation_percent": {...}, "time": [...], "operation_types": {...}}],
//  "effects": [...], "failures": [...]}. Figures that do not exist are null.
nlohmann::json to_json(const StudyReport& report);

// A page that needs nothing but itself: figures with their data, and all conditions.
std::string to_html(const StudyReport& report);

}  // namespace perdure::lab::study
