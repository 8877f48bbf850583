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

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/progress.h"
#include "lab/bench/floor.h"
#include "lab/bench/phase.h"
#include "lab/bench/processors.h"
#include "lab/bench/workload.h"
#include "lab/machine.h"
#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::lab {

// How fast requests come to a server.
struct OfferedRate {
  double per_s =
      // requests in a second; 0 together with the share: as fast as answers come (a closed loop)
      0;
  double peak_share =
      0;  // of what the slowest of the servers did in a closed loop of the same repeat

  bool is_closed() const { return per_s == 0 && peak_share == 0; }
  // Reads "peak" (a closed loop), "50k" or "80%". Throws Error(kInvalidArgument).
  static OfferedRate parse(std::string_view text);
  std::string name() const;  // "", "50,000/s", "80 % of the slowest peak"
};

// Of servers, which run_server_bench() (lab/serve/server_bench.h) measures in the place of
// structures.
struct ServerOptions {
  std::vector<std::string> servers;  // to be started, by name, or addresses
  unsigned connections = 50;
  unsigned pipeline = 1;  // requests on one connection at a time
  std::vector<OfferedRate> rates = {{}};
  bool uniform_arrivals = false;      // of open loops; else Poisson's
  Processors server_processors = {};  // empty: the first half
  Processors client_processors = {};  // empty: the second half
  unsigned threads = 0;  // of each server that is started; 0: one for each of its processors
  std::string command = "/proc/self/exe";  // what `perdure` servers are
};

struct BenchOptions {
  std::vector<std::string> structures;  // contenders: see contender.h
  ServerOptions server;
  uint64_t records = 1'000'000;
  uint64_t operations = 1'000'000;  // of the run phase; 0: load only
  std::vector<unsigned> threads = {1};
  std::vector<Workload> workloads = {Workload::of(Mix::parse("lookup"))};
  uint64_t batch = 1;       // operations in one call: inserts, upserts and lookups
  uint64_t warmup = 0;      // operations before those of the run phase, not measured
  double time_limit_s = 0;  // of each phase; 0: none
  double window_s = 0.1;    // of the series of throughputs
  bool pinned = false;      // thread i on the i-th processor
  KeyOrder key_order = KeyOrder::kMixed;
  Kind key_kind = Kind::kU64;
  Kind value_kind = Kind::kU64;
  uint64_t key_bytes = 16;    // of byte-string keys, the prefix and 8 more at least
  std::string key_prefix;     // of byte-string keys
  bool url_keys = false;      // byte-string keys are URLs; key_bytes is what they have on average
  uint64_t value_bytes = 64;  // of byte-string values
  std::string folder = "/dev/shm";
  std::optional<Domain> domain;  // forced; without: line on tmpfs, elsewhere what is detected
  uint64_t seed = 1;
  unsigned repeats = 3;
  double latency_sampling = 0.1;
  OptionMap structure_options;
  uint64_t capacity_bytes = 0;  // of the pools; 0: default_capacity_bytes()
  bool huge_pages = true;       // of pools, where the system gives them
  bool verify_payload = true;   // of pools: checksums of byte strings that are read
  bool reserve = true;          // all of the capacity beforehand, if the medium has the room
  bool limits = true;           // measure what the machine itself can do too, for about a second
  bool kill_recovery = false;   // also kill a loader and time the opening of what it left
  std::string
      emulated_medium;  // a profile of the memory model, or a stall for each line that is written
                        // back, such as "300ns"; empty: the medium as it is
  std::vector<std::string> notes;  // to be told with the results
};

// Latencies of single operations, in nanoseconds.
struct LatencySummary {
  double min = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double p999 = 0;
  double p9999 = 0;
  double p99999 = 0;
  double max = 0;
};

// The median of each percentile; the least minimum and the largest maximum. Zeros of none.
LatencySummary summary_of(const std::vector<LatencySummary>& repeats);

// What was measured of the operations of one type.
struct TypeSummary {
  uint64_t operations = 0;  // in the last repeat
  uint64_t samples = 0;     // latencies taken, over all repeats
  std::vector<LatencySummary> latencies;
};

// What an emulated medium was asked for.
struct PersistCounts {
  uint64_t lines = 0;   // flushed, or written past the caches
  uint64_t fences = 0;  // with lines to wait for, or without
};

// The same for each operation; what wanders to the background is counted too.
struct PersistsPerOperation {
  double lines = 0;
  double fences = 0;
};

// What is measured of servers alone. Lists have one element for each repeat.
struct ServedFigures {
  std::string workload;
  OfferedRate rate;
  std::vector<double> offered_per_s;  // of open loops
  unsigned connections = 0;
  unsigned pipeline = 0;
  std::vector<double>
      server_cpu;  // processors that the server kept busy; of servers that were started
  std::vector<double> client_cpu;  // and the clients, of closed loops
  std::vector<double>
      first_answer_ms;  // of loads: after a SIGKILL, from its start to the first right answer
};

// What was measured of one phase on one structure with one number of threads.
struct BenchResult {
  std::string structure;
  std::string kind;        // of contender: "structure", "peer", "dram", "null"
  std::string durability;  // what an operation that returned survives, in words
  std::string operation;   // "load", or the name of the workload
  bool is_load = false;
  unsigned threads = 1;
  uint64_t records = 0;      // there when the phase ended, if it was a load; else when it began
  uint64_t operations = 0;   // measured in the last repeat
  uint64_t failed = 0;       // wrong answers, over all repeats
  uint64_t stream_hash = 0;  // of the last repeat
  bool complete = false;     // the last repeat was neither interrupted nor cut by the time limit
  uint64_t scanned = 0;      // records that scans visited in the last repeat
  std::vector<double> mops;  // one for each repeat
  std::vector<LatencySummary> latencies;  // one for each repeat that sampled any
  std::array<TypeSummary, kOperationTypes> by_type;
  std::vector<std::vector<double>> window_mops;  // the series of each repeat
  uint64_t pool_bytes = 0;                       // when the phase ended, in the last repeat
  uint64_t dram_bytes = 0;
  uint64_t raw_bytes = 0;  // keys and values of the records there then
  // Of loads only:
  std::vector<double> load_s;
  std::vector<double> open_clean_ms;   // opening after a clean close
  std::vector<double> open_killed_ms;  // opening after a SIGKILL

  std::optional<PersistsPerOperation> persists;  // in the last repeat; of an emulated medium alone
  std::optional<ServedFigures> served;

  double mops_median() const;
  double mops_min() const;
  double mops_max() const;
  double mops_spread() const;  // (largest - smallest) / median
  // Of one thread: threads x elapsed time / operations.
  double ns_per_op_median() const;
  LatencySummary latency() const { return summary_of(latencies); }
  double window_mean_mops() const;  // over all windows of all repeats
  double window_stddev_mops() const;
  size_t windows() const;
};

// What slows the medium down, and by how much.
struct EmulationReport {
  std::string medium;  // name of the profile, or the stall in words
  double fence_ns = 0;
  double flush_ns = 0;
  double write_gb_per_s = 0;  // 0: not limited
  uint64_t unit_bytes = 0;
  double native_fence_ns = 0;
  double native_flush_ns = 0;
  double added_fence_ns = 0;
  double added_flush_ns = 0;
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
  Pauses pauses;                      // of a loop that does nothing
  std::optional<EmulationReport> emulation;
  std::vector<std::string> notes;  // what was skipped and why
  std::string started;             // UTC, as ISO 8601 has it
  double elapsed_s = 0;
  std::vector<BenchResult> results;
  bool interrupted = false;  // stopped early: the results are of what ran until then

  double floor_ns_median() const;
  double read_chain_ns_median() const;
  uint64_t failed() const;
  // The rate over that of the first structure in the same phase and with as many threads; 0 if that
  // was not measured.
  double ratio_to_first(const BenchResult& result) const;
};

// What its byte strings are.
RecordForm record_form(const BenchOptions& options);
// Keys and values of one record.
uint64_t raw_record_bytes(const BenchOptions& options);

// Three times the raw bytes of all records that will be there at once, 64 MiB at least.
uint64_t default_capacity_bytes(const BenchOptions& options);

// Adds what was measured of a phase in one more repeat.
void add_repeat(BenchResult& result, const PhaseResult& phase);

std::string utc_now();  // as ISO 8601 has it

// Runs it. Pool files are removed when it returns or throws. Set `stop` to end early and get what
// was measured so far. Throws Error on bad options and on any failure of pools and structures.
BenchReport run_bench(const BenchOptions& options, const ProgressSink& progress,
                      const std::atomic<bool>& stop);

double median(std::vector<double> values);  // 0 of none

}  // namespace perdure::lab
