#include "lab/bench/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>

#include "common/ticks.h"
#include "common/units.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

LatencySummary summarize(const Histogram& ticks) {
  const double ns = TickClock::get().ns_per_tick();
  return {.min = static_cast<double>(ticks.min()) * ns,
          .p50 = ticks.quantile(0.5) * ns,
          .p90 = ticks.quantile(0.9) * ns,
          .p99 = ticks.quantile(0.99) * ns,
          .p999 = ticks.quantile(0.999) * ns,
          .p9999 = ticks.quantile(0.9999) * ns,
          .p99999 = ticks.quantile(0.99999) * ns,
          .max = static_cast<double>(ticks.max()) * ns};
}

}  // namespace

OfferedRate OfferedRate::parse(std::string_view text) {
  if (text == "peak") return {};
  OfferedRate rate;
  if (text.ends_with('%')) {
    const uint64_t percent = parse_count(text.substr(0, text.size() - 1));
    rate.peak_share = static_cast<double>(percent) / 100;
  } else {
    rate.per_s = static_cast<double>(parse_count(text));
  }
  if (rate.is_closed() || rate.peak_share > 10) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no rate: give requests in a second, such as 50k, a share of "
                            "the slowest server's peak, such as 80%, or peak",
                            text));
  }
  return rate;
}

std::string OfferedRate::name() const {
  if (is_closed()) return "";
  if (peak_share > 0) return fmt::format("{:.0f} % of the slowest peak", 100 * peak_share);
  return format_count(static_cast<uint64_t>(per_s)) + "/s";
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

void add_repeat(BenchResult& result, const PhaseResult& phase) {
  result.operations = phase.operations;
  result.failed += phase.failed;
  result.stream_hash = phase.stream_hash;
  result.complete = phase.complete;
  result.scanned = phase.scanned;
  if (phase.operations == 0 || phase.seconds <= 0) return;
  result.mops.push_back(static_cast<double>(phase.operations) / phase.seconds / 1e6);
  result.window_mops.push_back(phase.window_mops);
  const Histogram all = phase.latency_ticks();
  if (all.count() > 0) result.latencies.push_back(summarize(all));
  for (size_t type = 0; type < kOperationTypes; ++type) {
    const TypeResult& of_type = phase.by_type[type];
    result.by_type[type].operations = of_type.operations;
    result.by_type[type].samples += of_type.latency_ticks.count();
    if (of_type.latency_ticks.count() == 0) continue;
    result.by_type[type].latencies.push_back(summarize(of_type.latency_ticks));
  }
}

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

RecordForm record_form(const BenchOptions& options) {
  return {.key_bytes = options.key_bytes,
          .value_bytes = options.value_bytes,
          .prefix = options.key_prefix,
          .url_keys = options.url_keys};
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
