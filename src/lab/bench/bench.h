// The benchmark: structures of the catalogue under load, beside the machine's own limits.
//
//   lab::BenchOptions options{.structures = {"plush", "null"}, .threads = {1, 2}};
//   lab::BenchReport report = lab::run_bench(options, {}, stop);
//   fmt::print("{}", lab::to_table(report));
//
// Every combination of structure, thread count and mix gets a fresh pool in every repeat: a load
// phase, a run phase, a clean close and a reopening. Repeats go round the combinations, so that a
// noisy minute of the machine hits all of them alike; what is reported are medians of the repeats.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/bench/workload.h"
#include "lab/machine.h"
#include "lab/progress.h"
#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::lab {

struct BenchOptions {
  std::vector<std::string> structures;  // catalogue names, or "null"
  uint64_t records = 1'000'000;
  uint64_t operations = 1'000'000;  // of the run phase; 0: load only
  std::vector<unsigned> threads = {1};
  std::vector<Mix> mixes = {Mix::parse("lookup")};
  KeyOrder key_order = KeyOrder::kMixed;
  Kind key_kind = Kind::kU64;
  Kind value_kind = Kind::kU64;
  uint64_t key_bytes = 16;    // of byte-string keys, 8 at least
  uint64_t value_bytes = 64;  // of byte-string values
  std::string folder = "/dev/shm";
  std::optional<Domain> domain;  // forced; without: line on tmpfs, elsewhere what is detected
  uint64_t seed = 1;
  unsigned repeats = 3;
  double latency_sampling = 0.1;
  OptionMap structure_options;
  uint64_t capacity_bytes = 0;  // of the pools; 0: default_capacity_bytes()
  bool kill_recovery = false;   // also kill a loader and time the opening of what it left
};

// Latencies of single operations, in nanoseconds.
struct LatencySummary {
  double min = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double p999 = 0;
  double p9999 = 0;
  double max = 0;
};

// What was measured of one operation (or mix) on one structure with one number of threads.
struct BenchResult {
  std::string structure;
  std::string operation;  // "load", or the name of the mix
  unsigned threads = 1;
  uint64_t records = 0;      // there when the phase ended, if it was a load; else when it began
  uint64_t operations = 0;   // carried out in the last repeat
  uint64_t failed = 0;       // wrong answers, over all repeats
  std::vector<double> mops;  // one for each repeat
  std::vector<LatencySummary> latencies;  // one for each repeat that sampled any
  uint64_t pool_bytes = 0;                // when the phase ended, in the last repeat
  uint64_t dram_bytes = 0;
  // Of loads only:
  std::vector<double> open_clean_ms;   // opening after a clean close
  std::vector<double> open_killed_ms;  // opening after a SIGKILL

  double mops_median() const;
  // Of one thread: threads x elapsed time / operations.
  double ns_per_op_median() const;
  // The median of each percentile over the repeats; the least minimum and the largest maximum.
  LatencySummary latency() const;
};

struct BenchReport {
  BenchOptions options;  // as used: capacity filled in
  Machine machine;
  std::string medium;  // of the pools; empty when only "null" ran
  std::string domain;
  std::string durability;
  bool domain_forced = false;
  std::string flush_instruction;
  std::string timer;
  std::vector<double> floor_ns;       // one store + flush + fence of 64 bytes, in sequence
  std::vector<double> read_chain_ns;  // one dependent random read of 64 bytes
  uint64_t read_chain_bytes = 0;      // over so much memory
  std::vector<BenchResult> results;
  bool interrupted = false;  // stopped early: the results are of what ran until then

  double floor_ns_median() const;
  double read_chain_ns_median() const;
  uint64_t failed() const;
};

// Three times the raw bytes of all records that will be there at once, 64 MiB at least.
uint64_t default_capacity_bytes(const BenchOptions& options);

// Runs it. Pool files are removed when it returns or throws. Set `stop` to end early and get what
// was measured so far. Throws Error on bad options and on any failure of pools and structures.
BenchReport run_bench(const BenchOptions& options, const ProgressSink& progress,
                      const std::atomic<bool>& stop);

double median(std::vector<double> values);  // 0 of none

}  // namespace perdure::lab
