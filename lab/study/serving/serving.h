// What the dissertation on a key-value store in persistent memory measured of servers, repeated on
// this machine: mixes of reads and writes with values of 100 and of 1000 bytes, latencies against
// the rate of requests, scans, memory and what it costs; ours beside Redis and memcached.
//
//   ServingStudyOptions options{.records = 1'000'000};
//   const json study = run_serving_study(options, progress, stop);
//   fmt::print("{}", serving_table(study));
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/progress.h"
#include "lab/bench/bench.h"

namespace perdure::lab::study {

struct ServingStudyOptions {
  std::vector<std::string> servers = {"perdure", "perdure:hash", "redis", "redis+aof", "memcached"};
  std::vector<std::string> parts = {"100", "1000", "scans"};
  uint64_t records = 200'000;
  uint64_t operations = 1'000'000;  // of each phase, at most
  double time_limit_s = 2;          // of each phase
  unsigned repeats = 1;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
  std::string distribution = "zipfian";
  ServerOptions server;              // connections, rates and processors
  double dram_price = 1500.0 / 128;  // of a GiB
  double pm_price = 695.0 / 128;
};

// The study as docs/studies.md has its JSON. Set `stop` to end early with what is done. Throws
// Error on bad options and if no server can be measured.
nlohmann::json run_serving_study(const ServingStudyOptions& options, const ProgressSink& progress,
                                 const std::atomic<bool>& stop);

// Throughputs, latencies at each rate, scans, memory and cost; then what was published.
std::string serving_table(const nlohmann::json& study);

// The report of its results, with these tables in front.
std::string serving_html(const nlohmann::json& study);

}  // namespace perdure::lab::study
