// The benchmark of servers: those of other stores, and `perdure serve`, as their clients see them.
//
//   BenchOptions options{.workloads = {*ycsb_workload("a")}};
//   options.server.servers = {"perdure", "redis", "memcached", "redis://10.0.0.5:6379"};
//   BenchReport report = serve::run_server_bench(options, {}, stop);
//
// Servers that are named are started on this machine, bound to some processors, the clients to
// others, and loaded. Then they are measured one after another, rate by rate and workload by
// workload, and all of that again in every repeat, so that a noisy minute of the machine hits all
// of them alike. What changes which records there are is run on a server that was started anew.
#pragma once

#include <atomic>
#include <string>

#include "common/progress.h"
#include "lab/bench/bench.h"

namespace perdure::lab::serve {

// Throws Error: kInvalidArgument on bad options, kNotFound if no server named is installed, kIo.
BenchReport run_server_bench(const BenchOptions& options, const ProgressSink& progress,
                             const std::atomic<bool>& stop);

}  // namespace perdure::lab::serve
