// The cells of the comparison, and its document.
#include "lab/study/range/range_indexes.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "lab/machine.h"
#include "lab/study/measured/cells.h"
#include "lab/study/once.h"
#include "lab/study/range/published.h"
#include "lab/study/state.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr uint64_t kLongKeyBytes = 20;
constexpr uint64_t kLongValueBytes = 100;
constexpr uint64_t kCapacityFactor = 8;
constexpr uint64_t kCapacityBytesMin = uint64_t{64} << 20;

RangeStudyOptions filled_in(RangeStudyOptions options) {
  if (options.structures.empty()) options.structures = range_structures();
  if (options.operations == 0) options.operations = options.records;
  return options;
}

BenchOptions bench_options(const RangeStudyOptions& options, const RangeExperiment& experiment,
                           unsigned threads) {
  BenchOptions bench;
  bench.records = experiment.is_half ? std::max(options.records / 2, uint64_t{1}) : options.records;
  bench.operations = experiment.is_load ? 0 : options.operations;
  bench.threads = {threads};
  bench.workloads = {experiment.workload};
  bench.repeats = options.repeats;
  bench.latency_sampling = options.latency_sampling;
  bench.seed = options.seed;
  bench.folder = options.folder;
  bench.emulated_medium = options.emulated_medium;
  bench.kill_recovery = experiment.is_load;
  if (experiment.long_keys) {
    bench.key_kind = bench.value_kind = Kind::kBytes;
    bench.key_bytes = kLongKeyBytes;
    bench.value_bytes = kLongValueBytes;
  }
  const uint64_t records = bench.records + bench.operations;
  bench.capacity_bytes =
      options.capacity_bytes != 0
          ? options.capacity_bytes
          : std::max(kCapacityFactor * records * raw_record_bytes(bench), kCapacityBytesMin);
  return bench;
}

// What a result hangs on: cells of runs that differ in any of it do not belong together.
json state_parameters(const RangeStudyOptions& options) {
  return {{"study", "range-indexes"},
          {"perdure", kVersion},
          {"build", build_identity()},
          {"machine", describe_machine().cpu},
          {"records", options.records},
          {"operations", options.operations},
          {"repeats", options.repeats},
          {"latency sampling", options.latency_sampling},
          {"seed", options.seed},
          {"folder", options.folder},
          {"capacity", options.capacity_bytes},
          {"emulated medium", options.emulated_medium}};
}

void add_cells(const RangeStudyOptions& options, const std::vector<RangeExperiment>& experiments,
               MeasuredCells& cells) {
  const RangeExperiment* before = nullptr;
  for (const RangeExperiment& experiment : experiments) {
    for (const unsigned threads : options.threads) {
      // How opening grows with the records does not hang on the threads that loaded them.
      if (experiment.is_half && threads != options.threads.front()) continue;
      BenchOptions bench = bench_options(options, experiment, threads);
      // Once in each part is enough.
      bench.limits = before == nullptr || before->part != experiment.part;
      cells.add(experiment.name, bench, experiment.is_load);
      before = &experiment;
    }
  }
}

json parameters_json(const RangeStudyOptions& options) {
  json parts = json::array();
  for (const RangePart part : options.parts) parts.push_back(to_string(part));
  return {{"structures", options.structures},
          {"parts", std::move(parts)},
          {"records", options.records},
          {"operations", options.operations},
          {"warmup_operations", uint64_t{0}},
          {"threads", options.threads},
          {"pinned", false},
          {"keys", to_string(KeyOrder::kMixed)},
          {"distribution", {"uniform", "self-similar 0.2"}},
          {"key_kind", {to_string(Kind::kU64), to_string(Kind::kBytes)}},
          {"value_kind", {to_string(Kind::kU64), to_string(Kind::kBytes)}},
          {"key_bytes", {8, kLongKeyBytes}},
          {"value_bytes", {8, kLongValueBytes}},
          {"path", options.folder},
          {"seed", options.seed},
          {"repeats", options.repeats},
          {"latency_sampling", options.latency_sampling},
          {"capacity_bytes", options.capacity_bytes}};
}

json published_json() {
  json recovery = json::array();
  for (const PublishedRecovery& each : published_recovery()) {
    recovery.push_back({{"structure", each.structure},
                        {"seconds_50m", each.half_s},
                        {"seconds_100m", each.full_s}});
  }
  json orders = json::array();
  for (const PublishedOrder& each : published_orders()) {
    orders.push_back({{"statement", each.statement},
                      {"experiment", each.experiment},
                      {"structure", each.structure},
                      {"is", each.is_fastest ? "fastest" : "slowest"}});
  }
  return {{"source", kRangeSource},
          {"conditions", kRangeConditions},
          {"recovery", std::move(recovery)},
          {"orders", std::move(orders)}};
}

json experiments_json(const std::vector<RangeExperiment>& experiments) {
  json all = json::array();
  for (const RangeExperiment& each : experiments) {
    all.push_back({{"name", each.name}, {"column", each.column}, {"part", to_string(each.part)}});
  }
  return all;
}

}  // namespace

nlohmann::json run_range_study(const RangeStudyOptions& options, const ProgressSink& progress,
                               const std::atomic<bool>& stop) {
  if (options.records < 2 || options.repeats < 1 || options.threads.empty() ||
      *std::ranges::min_element(options.threads) < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "give at least 2 records, 1 repeat, and one number of threads, from 1 on");
  }
  require_once(options.structures, [](const std::string& name) { return name; });
  require_once(options.parts, [](RangePart part) { return std::string(to_string(part)); });
  require_once(options.threads, [](unsigned threads) { return std::to_string(threads); });
  const RangeStudyOptions used = filled_in(options);
  const std::vector<RangeExperiment> experiments = range_experiments(used.parts);
  MeasuredCells cells(used.state, used.state.empty() ? json() : state_parameters(used), progress,
                      stop);
  cells.find_contenders(used.structures);
  add_cells(used, experiments, cells);
  cells.measure();
  const auto of_half = [&](const MeasuredCell& cell) {
    return std::ranges::find(experiments, cell.experiment, &RangeExperiment::name)->is_half;
  };
  json study = cells.document(cells.results(std::not_fn(of_half)));
  study.update(json{{"schema", "perdure-study-range-indexes-1"},
                    {"parameters", parameters_json(used)},
                    {"experiments", experiments_json(experiments)},
                    {"published", published_json()},
                    {"results_of_half", cells.results(of_half)}});
  return study;
}

}  // namespace perdure::lab::study
