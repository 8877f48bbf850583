#include "lab/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

double BenchResult::mops_min() const {
  return mops.empty() ? 0 : *std::min_element(mops.begin(), mops.end());
}

double BenchResult::mops_max() const {
  return mops.empty() ? 0 : *std::max_element(mops.begin(), mops.end());
}

double BenchResult::mops_spread() const {
  const double middle = mops_median();
  return middle > 0 ? (mops_max() - mops_min()) / middle : 0;
}

size_t BenchResult::windows() const {
  size_t count = 0;
  for (const std::vector<double>& series : window_mops) count += series.size();
  return count;
}

double BenchResult::window_mean_mops() const {
  double sum = 0;
  for (const std::vector<double>& series : window_mops) {
    sum = std::accumulate(series.begin(), series.end(), sum);
  }
  return windows() > 0 ? sum / static_cast<double>(windows()) : 0;
}

double BenchResult::window_stddev_mops() const {
  if (windows() < 2) return 0;
  const double mean = window_mean_mops();
  double squares = 0;
  for (const std::vector<double>& series : window_mops) {
    for (const double rate : series) squares += (rate - mean) * (rate - mean);
  }
  return std::sqrt(squares / static_cast<double>(windows() - 1));
}

LatencySummary summary_of(const std::vector<LatencySummary>& repeats) {
  LatencySummary summary;
  if (repeats.empty()) return summary;
  for (double LatencySummary::* member :
       {&LatencySummary::p50, &LatencySummary::p90, &LatencySummary::p99, &LatencySummary::p999,
        &LatencySummary::p9999, &LatencySummary::p99999}) {
    std::vector<double> values;
    for (const LatencySummary& latency : repeats) values.push_back(latency.*member);
    summary.*member = median(values);
  }
  summary.min = repeats[0].min;
  for (const LatencySummary& latency : repeats) {
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

double BenchReport::ratio_to_first(const BenchResult& result) const {
  for (const BenchResult& first : results) {
    if (first.operation != result.operation || first.threads != result.threads) continue;
    const double rate = first.mops_median();
    return rate > 0 ? result.mops_median() / rate : 0;
  }
  return 0;
}

uint64_t raw_record_bytes(const BenchOptions& options) {
  return (options.key_kind == Kind::kU64 ? 8 : options.key_bytes) +
         (options.value_kind == Kind::kU64 ? 8 : options.value_bytes);
}

uint64_t default_capacity_bytes(const BenchOptions& options) {
  constexpr uint64_t kLeast = uint64_t{64} << 20;
  constexpr uint64_t kStep = uint64_t{16} << 20;
  uint64_t inserts = 0;
  for (const Workload& workload : options.workloads) {
    const OperationPlan plan(workload, options.records, options.warmup + options.operations,
                             options.seed, options.key_order);
    inserts = std::max(inserts, plan.count_of(OperationType::kInsert));
  }
  const uint64_t raw_bytes = (options.records + inserts) * raw_record_bytes(options);
  return std::max(kLeast, (9 * raw_bytes / 2 + kStep - 1) / kStep * kStep);
}

}  // namespace perdure::lab
