// The experiments and cells of the evaluation, and its document.
#include "lab/study/radix/radix_trees.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/units.h"
#include "lab/machine.h"
#include "lab/study/measured/cells.h"
#include "lab/study/once.h"
#include "lab/study/radix/published.h"
#include "lab/study/state.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr uint64_t kPoolFactor = 16;
constexpr uint64_t kPoolBytesMin = uint64_t{64} << 20;
constexpr uint64_t kOperationsForEachRange = 10;
constexpr uint64_t kWriteLatencyNsMax = 1'000'000;

KeyOrder order_of(RadixKeys keys) {
  switch (keys) {
    case RadixKeys::kDense:
      return KeyOrder::kDense;
    case RadixKeys::kSparse:
      return KeyOrder::kMixed;
    case RadixKeys::kClustered:
      break;
  }
  return KeyOrder::kClustered;
}

const char* mix_of(RadixOperation operation) {
  switch (operation) {
    case RadixOperation::kInsert:
      return "insert";
    case RadixOperation::kSearch:
      return "lookup";
    case RadixOperation::kRange:
      break;
  }
  return "scan";
}

RadixStudyOptions filled_in(RadixStudyOptions options) {
  if (options.structures.empty()) options.structures = radix_structures();
  if (options.operations == 0) options.operations = options.records;
  return options;
}

BenchOptions bench_options(const RadixStudyOptions& options, const RadixExperiment& experiment,
                           unsigned threads) {
  BenchOptions bench;
  Workload workload = Workload::of(Mix::parse(mix_of(experiment.operation)));
  bench.records = options.records;
  bench.operations = options.operations;
  if (experiment.operation == RadixOperation::kInsert) bench.operations = 0;
  if (experiment.operation == RadixOperation::kRange) {
    bench.operations = std::max(options.operations / kOperationsForEachRange, uint64_t{1});
    workload.scan_length = {experiment.length, experiment.length};
  }
  bench.threads = {threads};
  bench.workloads = {workload};
  bench.key_order = order_of(experiment.keys);
  bench.repeats = options.repeats;
  bench.latency_sampling = 0.01;  // so that what single operations are timed with does not count
  bench.seed = options.seed;
  bench.folder = options.folder;
  if (experiment.write_latency_ns > 0) {
    bench.emulated_medium = fmt::format("{}ns", experiment.write_latency_ns);
  }
  bench.capacity_bytes =
      options.capacity_bytes != 0
          ? options.capacity_bytes
          : std::max(kPoolFactor * options.records * raw_record_bytes(bench), kPoolBytesMin);
  return bench;
}

// What a result hangs on: cells of runs that differ in any of it do not belong together.
json state_parameters(const RadixStudyOptions& options) {
  return {{"study", "radix-trees"},     {"perdure", kVersion},
          {"build", build_identity()},  {"machine", describe_machine().cpu},
          {"records", options.records}, {"operations", options.operations},
          {"repeats", options.repeats}, {"seed", options.seed},
          {"folder", options.folder},   {"capacity", options.capacity_bytes}};
}

json parameters_json(const RadixStudyOptions& options) {
  json keys = json::array();
  for (const RadixKeys each : options.keys) keys.push_back(to_string(each));
  return {{"structures", options.structures},
          {"records", options.records},
          {"operations", options.operations},
          {"warmup_operations", uint64_t{0}},
          {"write_latencies_ns", options.write_latencies_ns},
          {"lengths", options.lengths},
          {"threads", options.threads},
          {"pinned", false},
          {"keys", std::move(keys)},
          {"distribution", "uniform"},
          {"key_kind", to_string(Kind::kU64)},
          {"value_kind", to_string(Kind::kU64)},
          {"key_bytes", 8},
          {"value_bytes", 8},
          {"path", options.folder},
          {"seed", options.seed},
          {"repeats", options.repeats},
          {"capacity_bytes", options.capacity_bytes}};
}

json experiments_json(const std::vector<RadixExperiment>& experiments) {
  json all = json::array();
  for (const RadixExperiment& each : experiments) {
    json experiment = {
        {"name", each.name}, {"keys", to_string(each.keys)}, {"operation", mix_of(each.operation)}};
    if (each.operation == RadixOperation::kInsert) {
      experiment["write_latency_ns"] = each.write_latency_ns;
    } else if (each.operation == RadixOperation::kRange) {
      experiment["length"] = each.length;
    }
    all.push_back(std::move(experiment));
  }
  return all;
}

void check(const RadixStudyOptions& options) {
  if (options.records < 2 || options.repeats < 1 || options.threads.empty() ||
      *std::ranges::min_element(options.threads) < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "give at least 2 records, 1 repeat, and one number of threads, from 1 on");
  }
  for (const uint64_t latency_ns : options.write_latencies_ns) {
    if (latency_ns <= kWriteLatencyNsMax) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("write latencies are from 0 to {} ns more than this memory's",
                            format_count(kWriteLatencyNsMax)));
  }
  for (const uint32_t length : options.lengths) {
    if (length > 0) continue;
    throw Error(ErrorCode::kInvalidArgument, "a range query asks for 1 record at least");
  }
  require_once(options.structures, [](const std::string& name) { return name; });
  require_once(options.keys, [](RadixKeys keys) { return std::string(to_string(keys)); });
  const auto name_of = [](uint64_t number) { return std::to_string(number); };
  require_once(options.write_latencies_ns, name_of);
  require_once(options.lengths, name_of);
  require_once(options.threads, name_of);
}

}  // namespace

const char* to_string(RadixKeys keys) noexcept {
  switch (keys) {
    case RadixKeys::kDense:
      return "dense";
    case RadixKeys::kSparse:
      return "sparse";
    case RadixKeys::kClustered:
      break;
  }
  return "clustered";
}

RadixKeys parse_radix_keys(std::string_view text) {
  std::string names;
  for (const RadixKeys keys : kRadixKeys) {
    if (text == to_string(keys)) return keys;
    names += (names.empty() ? "" : ", ") + std::string(to_string(keys));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no distribution of keys: choose from {}", text, names));
}

std::vector<std::string> radix_structures() {
  return {"wort", "woart", "art-cow", "p-art+vl", "wbtree", "nv-tree", "fptree", "fast-fair"};
}

std::vector<RadixExperiment> radix_experiments(const RadixStudyOptions& options) {
  std::vector<RadixExperiment> all;
  for (const RadixKeys keys : options.keys) {
    for (const uint64_t latency_ns : options.write_latencies_ns) {
      all.push_back({.name = fmt::format("insert, {} keys, {} ns", to_string(keys), latency_ns),
                     .keys = keys,
                     .operation = RadixOperation::kInsert,
                     .write_latency_ns = latency_ns});
    }
    all.push_back({.name = fmt::format("search, {} keys", to_string(keys)),
                   .keys = keys,
                   .operation = RadixOperation::kSearch});
    for (const uint32_t length : options.lengths) {
      all.push_back({.name = fmt::format("range of {}, {} keys", length, to_string(keys)),
                     .keys = keys,
                     .operation = RadixOperation::kRange,
                     .length = length});
    }
  }
  return all;
}

json run_radix_study(const RadixStudyOptions& options, const ProgressSink& progress,
                     const std::atomic<bool>& stop) {
  check(options);
  const RadixStudyOptions used = filled_in(options);
  const std::vector<RadixExperiment> experiments = radix_experiments(used);
  MeasuredCells cells(used.state, used.state.empty() ? json() : state_parameters(used), progress,
                      stop);
  cells.find_contenders(used.structures);
  for (const RadixExperiment& experiment : experiments) {
    for (const unsigned threads : used.threads) {
      BenchOptions bench = bench_options(used, experiment, threads);
      bench.limits = &experiment == &experiments.front() && threads == used.threads.front();
      cells.add(experiment.name, bench, experiment.operation == RadixOperation::kInsert);
    }
  }
  cells.measure();
  json study = cells.document(cells.results([](const MeasuredCell&) { return true; }));
  study.update(json{{"schema", "perdure-study-radix-trees-1"},
                    {"parameters", parameters_json(used)},
                    {"emulation", nullptr},  // another one in each experiment
                    {"experiments", experiments_json(experiments)},
                    {"published", {{"source", kRadixSource}, {"conditions", kRadixConditions}}}});
  return study;
}

}  // namespace perdure::lab::study
