#include "lab/bench/bench.h"

#include <algorithm>

namespace perdure::lab {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double BenchResult::mops_median() const { return median(mops); }

double BenchResult::ns_per_op_median() const {
  const double rate = mops_median();
  return rate > 0 ? 1e3 * threads / rate : 0;
}

LatencySummary BenchResult::latency() const {
  LatencySummary summary;
  if (latencies.empty()) return summary;
  const auto median_of = [this](double LatencySummary::* member) {
    std::vector<double> values;
    for (const LatencySummary& latency : latencies) values.push_back(latency.*member);
    return median(values);
  };
  summary.p50 = median_of(&LatencySummary::p50);
  summary.p90 = median_of(&LatencySummary::p90);
  summary.p99 = median_of(&LatencySummary::p99);
  summary.p999 = median_of(&LatencySummary::p999);
  summary.p9999 = median_of(&LatencySummary::p9999);
  summary.min = latencies[0].min;
  for (const LatencySummary& latency : latencies) {
    summary.min = std::min(summary.min, latency.min);
    summary.max = std::max(summary.max, latency.max);
  }
  return summary;
}

double BenchReport::floor_ns_median() const { return median(floor_ns); }

double BenchReport::read_chain_ns_median() const { return median(read_chain_ns); }

uint64_t BenchReport::failed() const {
  uint64_t failed = 0;
  for (const BenchResult& result : results) failed += result.failed;
  return failed;
}

uint64_t default_capacity_bytes(const BenchOptions& options) {
  constexpr uint64_t kLeast = uint64_t{64} << 20;
  constexpr uint64_t kStep = uint64_t{16} << 20;
  uint64_t inserts = 0;
  for (const Mix& mix : options.mixes) {
    const OperationPlan plan(mix, options.records, options.operations, options.seed,
                             options.key_order);
    inserts = std::max(inserts, plan.count_of(OperationType::kInsert));
  }
  const uint64_t key_bytes = options.key_kind == Kind::kU64 ? 8 : options.key_bytes;
  const uint64_t value_bytes = options.value_kind == Kind::kU64 ? 8 : options.value_bytes;
  const uint64_t raw_bytes = (options.records + inserts) * (key_bytes + value_bytes);
  return std::max(kLeast, (3 * raw_bytes + kStep - 1) / kStep * kStep);
}

}  // namespace perdure::lab
