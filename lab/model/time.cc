#include "lab/model/time.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace perdure::lab {
namespace {

using nlohmann::json;

constexpr double kMediaBytes = 64;

// What one operation costs alone, and how long it keeps the media busy.
struct Demand {
  double cpu_ns = 0;
  double read_ns = 0;
  double fence_ns = 0;
  double read_busy_ns = 0;
  double write_busy_ns = 0;

  double latency_ns() const { return cpu_ns + read_ns + fence_ns; }
  double busiest_ns() const { return std::max(read_busy_ns, write_busy_ns); }
};

// Bytes per nanosecond are GB/s.
double busy_ns(double bytes, double random_bytes, double sequential_gb_per_s,
               double random_gb_per_s) {
  return (bytes - random_bytes) / sequential_gb_per_s + random_bytes / random_gb_per_s;
}

Demand demand_of(const Counters& counters, const Profile& profile, const TimeOptions& options) {
  const auto per_operation = [&](uint64_t count) {
    return static_cast<double>(count) / static_cast<double>(counters.operations);
  };
  const auto bytes = [&](uint64_t twelfths) {
    return per_operation(twelfths) / kTwelfths * kMediaBytes;
  };
  Demand demand;
  const double accesses = per_operation(counters.loads + counters.stores + counters.streams);
  demand.cpu_ns = options.cpu_ns > 0 ? options.cpu_ns
                                     : accesses * profile.access_ns +
                                           per_operation(counters.locked) * profile.locked_ns;
  const double buffered = per_operation(counters.pm_misses_buffered);
  demand.read_ns =
      (per_operation(counters.pm_misses()) - buffered) * profile.media_read_latency_ns +
      buffered * profile.buffered_read_latency_ns +
      per_operation(counters.dram_misses) * profile.dram_read_latency_ns;
  demand.fence_ns = per_operation(counters.fences_waiting) * profile.fence_latency_ns +
                    per_operation(counters.flushes + counters.wpq_nontemporal) * profile.flush_ns;
  demand.write_busy_ns =
      busy_ns(bytes(counters.media_write_twelfths), bytes(counters.media_write_random_twelfths),
              profile.sequential_write_gb_per_s, profile.random_write_gb_per_s);
  demand.read_busy_ns = busy_ns(per_operation(counters.media_read_units) * kMediaBytes,
                                per_operation(counters.media_read_random_units) * kMediaBytes,
                                profile.sequential_read_gb_per_s, profile.random_read_gb_per_s);
  return demand;
}

// M/D/1: what an operation waits for a resource that it needs for busy_ns, used to this share.
double waiting_ns(double busy, double utilisation) {
  return busy * utilisation / (2 * (1 - utilisation));
}

double waiting_ns(const Demand& demand, double per_ns) {
  return waiting_ns(demand.read_busy_ns, per_ns * demand.read_busy_ns) +
         waiting_ns(demand.write_busy_ns, per_ns * demand.write_busy_ns);
}

// The throughput at which threads that wait as long as they then must do just that much. The time
// that the threads spend grows with throughput, so halving the interval finds it.
double throughput_per_ns(const Demand& demand, double threads) {
  double low = 0;
  double high = threads / demand.latency_ns();
  if (demand.busiest_ns() > 0) high = std::min(high, 1 / demand.busiest_ns());
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    const double spent = middle * (demand.latency_ns() + waiting_ns(demand, middle));
    (spent < threads ? low : high) = middle;
  }
  return low;
}

}  // namespace

TimeEstimate estimate_time(const Counters& counters, const Profile& profile,
                           const TimeOptions& options, uint64_t threads) {
  TimeEstimate estimate;
  estimate.threads = threads;
  if (counters.operations == 0 || threads == 0) return estimate;
  const Demand demand = demand_of(counters, profile, options);
  if (demand.latency_ns() <= 0) return estimate;
  const auto running = static_cast<double>(std::min(threads, profile.cores));
  const double per_ns = throughput_per_ns(demand, running);

  estimate.cpu_ns = demand.cpu_ns;
  estimate.read_ns = demand.read_ns;
  estimate.fence_ns = demand.fence_ns;
  estimate.read_utilisation = per_ns * demand.read_busy_ns;
  estimate.write_utilisation = per_ns * demand.write_busy_ns;
  const double read_wait = waiting_ns(demand.read_busy_ns, estimate.read_utilisation);
  const double write_wait = waiting_ns(demand.write_busy_ns, estimate.write_utilisation);
  estimate.waiting_ns = read_wait + write_wait;
  estimate.operations_per_s = per_ns * 1e9;
  estimate.operation_ns = running / per_ns;

  const std::pair<double, const char*> parts[] = {{demand.cpu_ns, "cpu"},
                                                  {demand.read_ns, "read latency"},
                                                  {demand.fence_ns, "fence latency"},
                                                  {read_wait, "read bandwidth"},
                                                  {write_wait, "write bandwidth"}};
  estimate.bottleneck =
      std::max_element(std::begin(parts), std::end(parts), [](const auto& a, const auto& b) {
        return a.first < b.first;
      })->second;
  return estimate;
}

json to_json(const TimeEstimate& estimate) {
  return {{"threads", estimate.threads},
          {"operations_per_s", estimate.operations_per_s},
          {"operation_ns", estimate.operation_ns},
          {"bottleneck", estimate.bottleneck},
          {"cpu_ns", estimate.cpu_ns},
          {"read_ns", estimate.read_ns},
          {"fence_ns", estimate.fence_ns},
          {"waiting_ns", estimate.waiting_ns},
          {"read_utilisation", estimate.read_utilisation},
          {"write_utilisation", estimate.write_utilisation}};
}

}  // namespace perdure::lab
