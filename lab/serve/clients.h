// Clients of a server: a stream of operations, sent over many connections, its answers checked and
// timed.
//
//   const OperationPlan plan(Mix::parse("lookup=.5,update=.5"), records, operations, seed, KeyOrder::kMixed);
//   ClientsResult result = run_clients(plan, {.address = parse_server_address("redis://127.0.0.1:6379")}, {}, stop);
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "common/progress.h"
#include "lab/bench/phase.h"
#include "lab/bench/processors.h"
#include "lab/bench/record_bytes.h"
#include "lab/bench/workload.h"
#include "lab/serve/address.h"
#include "lab/serve/arrivals.h"

namespace perdure::lab::serve {

struct ClientsOptions {
  std::string name;  // for the progress bar
  ServerAddress address;
  unsigned threads = 1;
  Processors processors = {};  // thread i on the i-th of them, counting round; empty: on any
  unsigned connections = 50;   // of all threads; each thread has one at least
  // Closed loop: so many requests are sent together, and the next ones when all of them were
  // answered. Open loop: at most so many are under way on a connection; what is due beyond waits,
  // and its waiting counts.
  unsigned pipeline = 1;
  double rate = 0;  // operations in a second, of all threads; 0: closed loop
  Arrivals arrivals = Arrivals::kPoisson;
  uint64_t seed = 1;        // of arrivals
  uint64_t warmup = 0;      // operations at the start of the stream that are not measured
  double time_limit_s = 0;  // of the measured part; 0: none
  double window_s = 0.1;    // of the series of throughputs
  RecordForm form = {.text_keys = true};
  // Records are members of one sorted set, of RESP, which scans go over: see docs/benchmarking.md.
  // For mixes of inserts and scans alone. Otherwise each is a string under its key.
  bool sorted = false;
};

struct ClientsResult {
  // Latencies of all operations: in a closed loop from when they were sent, in an open one from
  // when they were due.
  PhaseResult phase;
  double client_cpu_s = 0;  // of all threads, while it was measured
  std::string first_error;  // what the server said where it refused an operation, the first time
};

// Carries out the plan until it ends, the time is over or `stop` is set; then waits for what is
// under way. Throws Error(kIo) if the server goes away or is silent for 30 s. An answer that is an
// error counts as failed.
ClientsResult run_clients(const OperationPlan& plan, const ClientsOptions& options,
                          const ProgressSink& progress, const std::atomic<bool>& stop);

// Looks for the effects of up to 20,000 operations of a plan that was carried out whole; returns
// how many are not there. Not of sorted ones.
uint64_t count_missing_effects(const OperationPlan& plan, const ClientsOptions& options);

}  // namespace perdure::lab::serve
