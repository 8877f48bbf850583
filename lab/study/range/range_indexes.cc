// Running the comparison: which cells are missing, who measures them, and where they are kept.
#include "lab/study/range/range_indexes.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "lab/bench/contender.h"
#include "lab/bench/report.h"
#include "lab/bench/trial.h"
#include "lab/machine.h"
#include "lab/study/once.h"
#include "lab/study/range/published.h"
#include "lab/study/state.h"
#include "lab/study/workers.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr uint64_t kLongKeyBytes = 20;
constexpr uint64_t kLongValueBytes = 100;
constexpr uint64_t kCapacityFactor = 8;
constexpr uint64_t kCapacityBytesMin = uint64_t{64} << 20;
// What all cells of a machine and a medium say alike.
constexpr const char* kConditions[] = {"medium", "domain",  "domain_forced", "durability",
                                       "timer",  "machine", "emulation",     "started"};
// What those say that measure the limits of the machine too.
constexpr const char* kLimits[] = {"flush_instruction", "floor_ns", "read_chain_ns"};

RangeStudyOptions filled_in(RangeStudyOptions options) {
  if (options.structures.empty()) options.structures = range_structures();
  if (options.operations == 0) options.operations = options.records;
  return options;
}

BenchOptions bench_options(const RangeStudyOptions& options, const RangeExperiment& experiment,
                           const std::string& structure, unsigned threads) {
  BenchOptions bench;
  bench.structures = {structure};
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

struct Cell {
  const RangeExperiment* experiment;
  std::string structure;
  unsigned threads;
  BenchOptions bench;

  auto key() const { return std::tuple(experiment->name, structure, threads); }
  uint64_t steps() const { return bench.repeats * (bench.records + bench.operations); }
};

// Of the report of one cell the figures of the experiment, and what they depend on.
json kept_of(const Cell& cell, const BenchReport& report) {
  const json document = to_json(report);
  json kept = {{"experiment", cell.experiment->name},
               {"structure", cell.structure},
               {"threads", cell.threads},
               {"elapsed_s", document.at("elapsed_s")},
               {"notes", document.at("notes")}};
  for (const char* name : kConditions) kept[name] = document.at(name);
  if (cell.bench.limits) {
    for (const char* name : kLimits) kept[name] = document.at(name);
  }
  for (const json& result : document.at("results")) {
    if ((result.at("phase") == "load") == cell.experiment->is_load) kept["result"] = result;
  }
  kept["result"]["operation"] = cell.experiment->name;
  kept["result"]["windows"] = nullptr;  // of so short phases they say little
  kept["result"].erase("ratio_to_first");
  return kept;
}

json measure(const Cell& cell, const std::function<void(uint64_t)>& tell,
             const std::atomic<bool>& stop) {
  uint64_t before = 0;
  uint64_t of_phase = 0;
  const ProgressSink sink = [&](const Progress& progress) {
    if (progress.items < of_phase) before += of_phase;
    of_phase = progress.items;
    tell(std::min(before + of_phase, cell.steps()));
  };
  const BenchReport report = run_bench(cell.bench, sink, stop);
  return report.interrupted ? json() : kept_of(cell, report);
}

class RangeStudy {
 public:
  RangeStudy(const RangeStudyOptions& options, const ProgressSink& progress,
             const std::atomic<bool>& stop)
      : progress_(progress),
        stop_(stop),
        options_(filled_in(options)),
        experiments_(range_experiments(options_.parts)),
        state_(options_.state, options_.state.empty() ? json() : state_parameters(options_)) {}

  json run();

 private:
  using CellKey = std::tuple<std::string, std::string, unsigned>;

  void find_cells();
  void add_cells(const RangeExperiment& experiment, unsigned threads);
  void note(const std::string& sentence);
  void take_kept_cells();
  void measure_missing();
  void show(uint64_t steps, const std::vector<const Job*>& running) const;
  json document() const;
  json parameters() const;
  json conditions() const;

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  RangeStudyOptions options_;
  std::vector<RangeExperiment> experiments_;
  StateFile state_;
  std::vector<Contender> contenders_;
  std::vector<Cell> cells_;
  std::map<CellKey, json> measured_;
  std::vector<std::string> notes_;
  json failures_ = json::array();
  size_t resumed_ = 0;
  uint64_t steps_ = 0;
};

void RangeStudy::note(const std::string& sentence) {
  if (std::ranges::find(notes_, sentence) == notes_.end()) notes_.push_back(sentence);
}

void RangeStudy::find_cells() {
  for (const std::string& name : options_.structures) {
    try {
      contenders_.push_back(find_contender(name));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      note(fmt::format("skipped: {}", error.what()));
    }
  }
  for (const RangeExperiment& experiment : experiments_) {
    for (const unsigned threads : options_.threads) {
      // How opening grows with the records does not hang on the threads that loaded them.
      if (experiment.is_half && threads != options_.threads.front()) continue;
      add_cells(experiment, threads);
    }
    // Before hours of work: throws if there are too few records for so many operations.
    const OperationPlan plan(experiment.workload, options_.records, options_.operations,
                             options_.seed, KeyOrder::kMixed);
  }
}

void RangeStudy::add_cells(const RangeExperiment& experiment, unsigned threads) {
  for (const Contender& contender : contenders_) {
    BenchOptions bench = bench_options(options_, experiment, contender.name, threads);
    const std::string reason = unable(contender, bench, experiment.workload, threads);
    if (reason.empty()) {
      // Once in each part is enough.
      bench.limits = cells_.empty() || cells_.back().experiment->part != experiment.part;
      cells_.push_back({&experiment, contender.name, threads, std::move(bench)});
    } else {
      note(fmt::format("skipped: {}", reason));
    }
  }
}

void RangeStudy::take_kept_cells() {
  for (const json& kept : state_.results()) {
    const CellKey key(kept.at("experiment"), kept.at("structure"), kept.at("threads"));
    measured_.insert_or_assign(key, kept);
  }
  for (const Cell& cell : cells_) resumed_ += measured_.count(cell.key());
}

void RangeStudy::measure_missing() {
  std::vector<Job> jobs;
  std::vector<const Cell*> job_cells;
  for (const Cell& cell : cells_) {
    if (measured_.contains(cell.key())) continue;
    Job job{.name = fmt::format("{} {} x{}", cell.structure, cell.experiment->name, cell.threads),
            .steps = cell.steps()};
    job.work = [&cell](const auto& tell, const auto& stop) { return measure(cell, tell, stop); };
    steps_ += job.steps;
    jobs.push_back(std::move(job));
    job_cells.push_back(&cell);
  }
  const auto cell_of = [&](const Job& job) -> const Cell& {
    return *job_cells[static_cast<size_t>(&job - jobs.data())];
  };
  const JobEvents events = {
      .ended =
          [&](const Job& job, const json& result) {
            state_.add(result);
            measured_.insert_or_assign(cell_of(job).key(), result);
          },
      .failed =
          [&](const Job& job, const Error& error) {
            const Cell& cell = cell_of(job);
            failures_.push_back({{"structure", cell.structure},
                                 {"experiment", cell.experiment->name},
                                 {"threads", cell.threads},
                                 {"message", error.what()}});
          },
      .progress = [&](uint64_t steps, const auto& running) { show(steps, running); }};
  run_jobs(jobs, 1, events, stop_);  // one at a time: they would slow each other down
}

void RangeStudy::show(uint64_t steps, const std::vector<const Job*>& running) const {
  if (!progress_) return;
  const auto done = std::ranges::count_if(
      cells_, [&](const Cell& cell) { return measured_.contains(cell.key()); });
  std::string detail = fmt::format("{} of {} cells", done, cells_.size());
  for (const Job* job : running) detail += ", " + job->name;
  progress_(
      {.phase = "study",
       .items = steps,
       .fraction = static_cast<double>(steps) / static_cast<double>(std::max(steps_, uint64_t{1})),
       .detail = std::move(detail)});
}

json RangeStudy::run() {
  find_cells();
  take_kept_cells();
  measure_missing();
  return document();
}

// What the cells were measured under, as results of the benchmark have it.
json RangeStudy::conditions() const {
  json found = {{"medium", ""},
                {"domain", ""},
                {"domain_forced", false},
                {"durability", ""},
                {"flush_instruction", ""},
                {"timer", ""},
                {"machine", to_json(describe_machine())},
                {"emulation", nullptr},
                {"started", ""}};
  std::vector<double> floors;
  std::vector<double> chains;
  double elapsed_s = 0;
  for (const Cell& cell : cells_) {
    const auto at = measured_.find(cell.key());
    if (at == measured_.end()) continue;
    const json& kept = at->second;
    // Volatile bounds have no medium; the first that has one tells it.
    if (found["medium"] == "") {
      for (const char* name : kConditions) found[name] = kept.at(name);
    }
    if (kept.contains("floor_ns")) {
      found["flush_instruction"] = kept.at("flush_instruction");
      floors.push_back(kept.at("floor_ns"));
      if (kept.at("read_chain_ns").is_number()) chains.push_back(kept.at("read_chain_ns"));
    }
    elapsed_s += kept.at("elapsed_s").get<double>();
  }
  found["floor_ns"] = floors.empty() ? json(nullptr) : json(median(floors));
  found["read_chain_ns"] = chains.empty() ? json(nullptr) : json(median(chains));
  found["elapsed_s"] = elapsed_s;
  return found;
}

json RangeStudy::parameters() const {
  json parts = json::array();
  for (const RangePart part : options_.parts) parts.push_back(to_string(part));
  return {{"structures", options_.structures},
          {"parts", std::move(parts)},
          {"records", options_.records},
          {"operations", options_.operations},
          {"warmup_operations", uint64_t{0}},
          {"threads", options_.threads},
          {"pinned", false},
          {"keys", to_string(KeyOrder::kMixed)},
          {"distribution", {"uniform", "self-similar 0.2"}},
          {"key_kind", {to_string(Kind::kU64), to_string(Kind::kBytes)}},
          {"value_kind", {to_string(Kind::kU64), to_string(Kind::kBytes)}},
          {"key_bytes", {8, kLongKeyBytes}},
          {"value_bytes", {8, kLongValueBytes}},
          {"path", options_.folder},
          {"seed", options_.seed},
          {"repeats", options_.repeats},
          {"latency_sampling", options_.latency_sampling},
          {"capacity_bytes", options_.capacity_bytes}};
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

json RangeStudy::document() const {
  json results = json::array();
  json half = json::array();
  json notes = notes_;
  for (const Cell& cell : cells_) {
    const auto at = measured_.find(cell.key());
    if (at == measured_.end()) continue;
    (cell.experiment->is_half ? half : results).push_back(at->second.at("result"));
    for (const json& sentence : at->second.at("notes")) {
      if (std::ranges::find(notes, sentence) == notes.end()) notes.push_back(sentence);
    }
  }
  for (const json& failure : failures_) {
    notes.push_back(fmt::format(
        "{}, {}, {} threads: not measured: {}", failure.at("structure").get<std::string>(),
        failure.at("experiment").get<std::string>(), failure.at("threads").get<unsigned>(),
        failure.at("message").get<std::string>()));
  }
  json experiments = json::array();
  for (const RangeExperiment& each : experiments_) {
    experiments.push_back(
        {{"name", each.name}, {"column", each.column}, {"part", to_string(each.part)}});
  }
  const bool complete = results.size() + half.size() == cells_.size();
  json study = conditions();
  study.update(json{{"schema", "perdure-study-range-indexes-1"},
                    {"perdure", kVersion},
                    {"parameters", parameters()},
                    {"experiments", std::move(experiments)},
                    {"published", published_json()},
                    {"interrupted", stop_ && !complete},
                    {"cells_asked", cells_.size()},
                    {"cells_resumed", resumed_},
                    {"notes", std::move(notes)},
                    {"failures", failures_},
                    {"results", std::move(results)},
                    {"results_of_half", std::move(half)}});
  return study;
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
  return RangeStudy(options, progress, stop).run();
}

}  // namespace perdure::lab::study
