// What structures write: runs them on the memory model and counts, by operation and by call site.
//
//   AmpOptions options{.structures = {"plush"}, .workloads = {amp_workload("load")}};
//   AmpReport report = run_amp(options, progress, stop);
//   fmt::print("{}", to_table(report));
//
// Each run has a process, a pool and a thread of its own, so that no run leaves traces in another:
// what a structure counts depends neither on what ran before nor on where the system puts things.
// Two runs with the same options give equal counts.
//
// A workload loads N records and then carries out as many operations. Between the two, and at the
// end, caches and buffers are written back, and the writes are charged to the operations that
// caused them: so an operation pays for all that it writes, and for nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/progress.h"
#include "lab/bench/workload.h"
#include "lab/model/counters.h"
#include "lab/model/model.h"
#include "lab/model/profile.h"
#include "perdure/index.h"

namespace perdure::lab {

struct AmpWorkload {
  std::string name;  // as it is asked for: "load", "a", "b", "c"
  Mix mix;
  bool is_load = false;  // into an empty structure
};

// "load": inserts only; "a": half lookups, half inserts; "b": 95 % lookups, 5 % inserts; "c":
// lookups only. Any case. Throws Error(kInvalidArgument) that lists them.
AmpWorkload amp_workload(std::string_view name);

struct AmpOptions {
  std::vector<std::string> structures;  // names of the catalogue
  std::vector<AmpWorkload> workloads = {amp_workload("load")};
  uint64_t records = 1'000'000;
  uint64_t operations = 0;  // after the load; 0: as many as records
  Profile profile = builtin_profile("optane-100");
  std::vector<uint64_t> threads = {1};  // of the estimates of time
  OptionMap structure_options;
  Kind key_kind = Kind::kU64;
  Kind value_kind = Kind::kU64;
  uint64_t key_bytes = 16;  // of byte strings
  uint64_t value_bytes = 64;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
  uint64_t capacity_bytes = 0;  // of the pools; 0: default_amp_capacity_bytes()
};

// Eight times the raw bytes of the records that are loaded, 64 MiB at least.
uint64_t default_amp_capacity_bytes(const AmpOptions& options);

// A call site, and what it caused.
struct AmpSite {
  std::string file;  // as the compiler saw it; empty if unknown
  unsigned line = 0;
  std::string function;
  std::string place;  // "write.cc:123", or an address
  SiteCounters counters;
};

struct AmpResult {
  std::string structure;  // or the program
  std::string workload;   // or "program"
  uint64_t records = 0;   // that the structure had before, or was loaded with; 0: not known
  uint64_t operations = 0;
  uint64_t failed = 0;  // answers that were wrong
  uint64_t pool_bytes = 0;
  double seconds = 0;                                     // that the run took here
  std::vector<std::pair<std::string, Counters>> by_type;  // by type of operation, in their order
  std::vector<AmpSite> sites;                             // those that wrote most first

  // Of everything that happened.
  Counters total() const;
  // Of operations alone, without what was done between them.
  Counters of_operations() const;
  // Null if there was no such operation.
  const Counters* find(std::string_view type) const;
};

struct AmpReport {
  AmpOptions options;   // as used: sizes filled in
  bool ours = true;     // structures of the catalogue, not a program
  std::string program;  // with its arguments
  Profile profile;      // as used: scaled
  std::vector<AmpResult> results;
  int program_code = 0;  // exit code of the program
  bool interrupted = false;

  uint64_t failed() const;
};

// Throws Error(kInvalidArgument) on what run_amp() would refuse before it runs anything.
void check_amp_options(const AmpOptions& options);

// Runs everything. `options.profile` is used as it is: scale it before. Set `stop` to end early and
// get what was counted so far. Throws Error on bad options and on any failure of a structure.
AmpReport run_amp(const AmpOptions& options, const ProgressSink& progress,
                  const std::atomic<bool>& stop);

// Runs a program that was built with perdure-cc or perdure-c++, with its standard streams, and
// reports what it did. `profile` names a profile or its file; records other than 0 scale it. Throws
// Error if the program cannot be run, ends by a signal, or was not built so.
AmpReport run_amp_program(const std::vector<std::string>& command, const std::string& profile,
                          uint64_t records, const std::vector<uint64_t>& threads);

}  // namespace perdure::lab
