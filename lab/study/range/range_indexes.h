// The comparison of range indexes, repeated: single operations, mixes, skew, long keys, memory,
// recovery and latencies of every range tree, measured here; beside what was published.
//
//   RangeStudyOptions options{.records = 1'000'000, .threads = {1, 2}};
//   const json study = run_range_study(options, progress, stop);
//   fmt::print("{}", range_table(study));
//
// Its cells are measured as measured/cells.h has it, structure by structure within an experiment.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/progress.h"
#include "lab/bench/bench.h"
#include "lab/bench/workload.h"

namespace perdure::lab::study {

// What experiments have in common: their keys, and how records are chosen.
enum class RangePart {
  kLoad,         // into an empty structure, then memory and opening; of all records and of half
  kUniform,      // 8-byte keys and values
  kSelfSimilar,  // a fifth of the records gets four fifths of the operations, and so on within
  kLongKeys      // byte strings: keys of 20 bytes, values of 100
};
inline constexpr RangePart kRangeParts[] = {RangePart::kLoad, RangePart::kUniform,
                                            RangePart::kSelfSimilar, RangePart::kLongKeys};

const char* to_string(RangePart part) noexcept;  // "load", "uniform", "self-similar", "long-keys"
RangePart parse_range_part(std::string_view text);  // Throws Error(kInvalidArgument).

struct RangeExperiment {
  std::string name;    // among all: "lookup, self-similar 0.2"
  std::string column;  // within its part: "lookup"
  RangePart part;
  Workload workload;
  bool is_load = false;  // nothing but a load, whose loader is also killed
  bool is_half = false;  // of half the records
  bool long_keys = false;
};

// All experiments of these parts, in the order in which they are measured.
std::vector<RangeExperiment> range_experiments(const std::vector<RangePart>& parts);

struct RangeStudyOptions {
  std::vector<std::string> structures;  // contenders; empty: all ordered ones of the catalogue, and
                                        // the volatile B+tree as a bound
  std::vector<RangePart> parts = {std::begin(kRangeParts), std::end(kRangeParts)};
  uint64_t records = 200'000;
  uint64_t operations = 0;  // of each experiment; 0: as many as records
  std::vector<unsigned> threads = {1, 2};
  unsigned repeats = 1;
  double latency_sampling = 0.1;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
  uint64_t capacity_bytes = 0;  // of each pool; 0: eight times the raw bytes, 64 MiB at least
  std::string emulated_medium;  // as of the benchmark
  std::string state;            // a file that keeps finished cells; empty: none
};

// Ordered structures of the catalogue, and "dram-btree".
std::vector<std::string> range_structures();

// The study as docs/studies.md has its JSON. Set `stop` to end early with what is done. A cell that
// fails is reported, and the others go on. Throws Error on bad options, and what StateFile throws.
nlohmann::json run_range_study(const RangeStudyOptions& options, const ProgressSink& progress,
                               const std::atomic<bool>& stop);

// For each part and number of threads the throughputs, then latencies, memory, recovery, and what
// was published.
std::string range_table(const nlohmann::json& study);

// The report of its results, with what was published in front.
std::string range_html(const nlohmann::json& study);

}  // namespace perdure::lab::study
