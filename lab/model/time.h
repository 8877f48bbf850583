// An estimate of time and throughput on the modelled medium, from the counts of a run.
//
//   for (const TimeEstimate& at : estimate_time(counters, profile, {.cpu_ns = 120}, 16)) ...
//
// It is an estimate: the counts are exact, the rule below is simple.
//
// One thread spends on an operation, without contention,
//   latency = cpu + misses x read latency + flushed lines x flush cost + waiting fences x fence
//             latency + atomic operations x their cost.
// N threads share the media: per operation it is busy
//   writing: sequential bytes / sequential bandwidth + random bytes / random bandwidth,
//   reading: the same with the read bandwidths.
// A resource that is used to the share u delays each of its accesses by the waiting time of an
// M/D/1 queue, u / (2 (1 - u)) service times. Throughput X is the solution of
//   X = min(N, cores) / (latency + waiting(X)),
// which never exceeds the bandwidth limits. Each operation's own mix counts; operations of several
// types are given together, as the sum of their counters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/model/counters.h"
#include "lab/model/profile.h"

namespace perdure::lab {

struct TimeOptions {
  // Time per operation of the program itself with everything in cache. 0: take it from the number
  // of loads and stores at the profile's access_ns each.
  double cpu_ns = 0;
};

struct TimeEstimate {
  uint64_t threads = 0;
  double operations_per_s = 0;
  double operation_ns = 0;  // mean latency of one operation, waiting included
  // "cpu", "read latency", "fence latency", "read bandwidth", "write bandwidth".
  std::string bottleneck;

  // Where one thread's time goes, per operation.
  double cpu_ns = 0;
  double read_ns = 0;
  double fence_ns = 0;    // flushes and fences
  double waiting_ns = 0;  // for the media that other threads use
  // Shares of the media's time in use, 0..1.
  double read_utilisation = 0;
  double write_utilisation = 0;
};

// `threads` threads. Zero operations give an estimate of zeros, with the bottleneck "".
TimeEstimate estimate_time(const Counters& counters, const Profile& profile,
                           const TimeOptions& options, uint64_t threads);

nlohmann::json to_json(const TimeEstimate& estimate);

}  // namespace perdure::lab
