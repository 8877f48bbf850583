// The evaluation of WORT, repeated: radix trees beside B+trees for persistent memory, by the
// distribution of keys and by the write latency of the memory.
//
//   RadixStudyOptions options{.records = 1'000'000, .write_latencies_ns = {0, 300}};
//   const json study = run_radix_study(options, progress, stop);
//   fmt::print("{}", radix_table(study));
//
// Its cells are measured as measured/cells.h has it. Inserts are measured at each latency, and what
// they flush and fence is counted where the latency is above 0; searches and range queries write
// nothing and are measured once.
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

enum class RadixKeys {
  kDense,     // about the first n numbers, in random order
  kSparse,    // uniform over all 64-bit words
  kClustered  // runs of 1,024 neighbours at random places, in random order
};
inline constexpr RadixKeys kRadixKeys[] = {RadixKeys::kDense, RadixKeys::kSparse,
                                           RadixKeys::kClustered};

const char* to_string(RadixKeys keys) noexcept;     // "dense", "sparse", "clustered"
RadixKeys parse_radix_keys(std::string_view text);  // Throws Error(kInvalidArgument).

enum class RadixOperation { kInsert, kSearch, kRange };

struct RadixExperiment {
  std::string name;  // among all: "insert, dense keys, 300 ns", "range of 100, sparse keys"
  RadixKeys keys;
  RadixOperation operation;
  uint64_t write_latency_ns = 0;  // of inserts
  uint32_t length = 0;            // of range queries
};

struct RadixStudyOptions {
  std::vector<std::string> structures;  // contenders; empty: radix_structures()
  std::vector<RadixKeys> keys = {std::begin(kRadixKeys), std::end(kRadixKeys)};
  std::vector<uint64_t> write_latencies_ns = {0, 200, 400,
                                              800};  // more, for each line that is flushed
  std::vector<uint32_t> lengths = {10, 100, 1000};   // of range queries, in records
  uint64_t records = 200'000;
  uint64_t operations = 0;  // searches; a tenth as many range queries; 0: as many as records
  std::vector<unsigned> threads = {1};
  unsigned repeats = 1;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
  uint64_t capacity_bytes = 0;  // of each pool; 0: sixteen times the raw bytes, 64 MiB at least
  std::string state;            // a file that keeps finished cells; empty: none
};

// Those that the evaluation had, FAST&FAIR, and P-ART.
std::vector<std::string> radix_structures();

// All experiments, in the order in which they are measured.
std::vector<RadixExperiment> radix_experiments(const RadixStudyOptions& options);

// The study as docs/studies.md has its JSON. Set `stop` to end early with what is done. A cell that
// fails is reported, and the others go on. Throws Error on bad options, and what StateFile throws.
nlohmann::json run_radix_study(const RadixStudyOptions& options, const ProgressSink& progress,
                               const std::atomic<bool>& stop);

// Inserts by latency, lines and fences for each insert, searches, range queries, memory; then what
// was published.
std::string radix_table(const nlohmann::json& study);

// The same as a page with plots.
std::string radix_html(const nlohmann::json& study);

}  // namespace perdure::lab::study
