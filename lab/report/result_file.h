// Results that were measured before, read from their JSON: of `perdure bench`
// (docs/bench-schema.md), and of `perdure amp` and `perdure study`, which count writes.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace perdure::lab::report {

// Latencies in nanoseconds, at the places of percentile_names(); NaN: not measured.
// What was not measured.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

using Percentiles = std::vector<double>;
const std::vector<std::string>& percentile_names();  // "min", "p50", ... "p99.999", "max"

// One structure, number of threads and phase.
struct BenchRow {
  std::string structure;
  std::string kind;
  std::string durability;
  std::string operation;  // "load", or the workload's name
  bool is_load = false;
  unsigned threads = 1;
  uint64_t records = 0;
  uint64_t operations = 0;
  uint64_t failed = 0;
  std::vector<double> mops;  // of each repeat
  double ns_per_op = 0;
  std::optional<Percentiles> percentiles;
  std::vector<std::pair<std::string, Percentiles>> by_operation;
  double window_s = 0;
  std::vector<std::vector<double>> windows;  // M ops/s, of each repeat
  double pool_bytes = 0;
  double dram_bytes = 0;
  double raw_bytes = 0;
  std::optional<double> space_amplification;
  std::vector<double> open_clean_ms;
  std::vector<double> open_killed_ms;
  // Flushed, and waited for, in each operation; where a medium was emulated.
  double lines_per_op = kNone;
  double fences_per_op = kNone;
  // Of servers: the workload, and how many requests in a second were offered (0: as many as were
  // answered).
  std::string workload;
  double offered_per_s = 0;
  double server_us_per_op = kNone;
};

// Writes per operation of one structure and workload, counted on the model of the memory. NaN:
// none.
struct WriteRow {
  std::string structure;
  std::string workload;
  std::string operation;  // that the figures are divided by
  double wpq_inserts = 0;
  double media_writes = 0;  // of 64 bytes
  double media_per_wpq_insert = 0;
};

struct ResultFile {
  std::string path;
  std::string label;   // short, and different from those of the other files
  std::string schema;  // "perdure-bench-2", ...
  // What the figures depend on, as names and words: machine, medium, workload.
  std::vector<std::pair<std::string, std::string>> conditions;
  std::vector<std::string> remarks;  // of the run itself
  std::vector<BenchRow> bench;       // of one kind of file,
  std::vector<WriteRow> writes;      // or of the other

  bool is_measured() const;  // of the first kind, whether it has rows or none
};

// Throws Error: kNotFound, kPermission, kIo (the file cannot be read), kInvalidArgument (it is not
// JSON, of no schema or another one than these, or lacks something), with the file's name and the
// place.
ResultFile read_result(const std::string& path);

// The same of what was read already; `path` is for its label and for messages.
ResultFile to_result(const nlohmann::json& root, const std::string& path);

// Reads several, and gives each the shortest label that tells it apart.
std::vector<ResultFile> read_results(const std::vector<std::string>& paths);

}  // namespace perdure::lab::report
