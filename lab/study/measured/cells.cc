#include "lab/study/measured/cells.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "lab/bench/report.h"
#include "lab/bench/trial.h"
#include "lab/machine.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

// What all cells of a machine and a medium say alike.
constexpr const char* kConditions[] = {"medium", "domain",  "domain_forced", "durability",
                                       "timer",  "machine", "emulation",     "started"};
// What those say that measure the limits of the machine too.
constexpr const char* kLimits[] = {"flush_instruction", "floor_ns", "read_chain_ns"};

// Of the report of one cell the figures of the experiment, and what they depend on.
json kept_of(const MeasuredCell& cell, const BenchReport& report) {
  const json document = to_json(report);
  json kept = {{"experiment", cell.experiment},
               {"structure", cell.structure},
               {"threads", cell.bench.threads.front()},
               {"elapsed_s", document.at("elapsed_s")},
               {"notes", document.at("notes")}};
  for (const char* name : kConditions) kept[name] = document.at(name);
  if (cell.bench.limits) {
    for (const char* name : kLimits) kept[name] = document.at(name);
  }
  for (const json& result : document.at("results")) {
    if ((result.at("phase") == "load") == cell.is_load) kept["result"] = result;
  }
  kept["result"]["operation"] = cell.experiment;
  kept["result"]["windows"] = nullptr;  // of so short phases they say little
  kept["result"].erase("ratio_to_first");
  return kept;
}

json measure_cell(const MeasuredCell& cell, const std::function<void(uint64_t)>& tell,
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

}  // namespace

MeasuredCells::MeasuredCells(const std::string& state, const json& parameters,
                             const ProgressSink& progress, const std::atomic<bool>& stop)
    : progress_(progress), stop_(stop), state_(state, parameters) {
  for (const json& kept : state_.results()) {
    measured_.insert_or_assign(
        CellKey(kept.at("experiment"), kept.at("structure"), kept.at("threads")), kept);
  }
}

void MeasuredCells::note(const std::string& sentence) {
  if (std::ranges::find(notes_, sentence) == notes_.end()) notes_.push_back(sentence);
}

void MeasuredCells::find_contenders(const std::vector<std::string>& structures) {
  for (const std::string& name : structures) {
    try {
      contenders_.push_back(find_contender(name));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      note(fmt::format("skipped: {}", error.what()));
    }
  }
}

void MeasuredCells::add(const std::string& experiment, const BenchOptions& bench, bool is_load) {
  const Workload& workload = bench.workloads.front();
  // Before hours of work: throws if there are too few records for so many operations.
  const OperationPlan plan(workload, bench.records, bench.operations, bench.seed, bench.key_order);
  bool limits = bench.limits;
  for (const Contender& contender : contenders_) {
    MeasuredCell cell{
        .experiment = experiment, .structure = contender.name, .bench = bench, .is_load = is_load};
    cell.bench.structures = {contender.name};
    const std::string reason = unable(contender, bench, workload, bench.threads.front());
    if (!reason.empty()) {
      note(fmt::format("skipped: {}", reason));
      continue;
    }
    cell.bench.limits = std::exchange(limits, false);
    resumed_ += measured_.count(cell.key());
    cells_.push_back(std::move(cell));
  }
}

void MeasuredCells::measure() {
  std::vector<Job> jobs;
  std::vector<const MeasuredCell*> job_cells;
  for (const MeasuredCell& cell : cells_) {
    if (measured_.contains(cell.key())) continue;
    Job job{.name = fmt::format("{} {} x{}", cell.structure, cell.experiment,
                                cell.bench.threads.front()),
            .steps = cell.steps()};
    job.work = [&cell](const auto& tell, const auto& stop) {
      return measure_cell(cell, tell, stop);
    };
    steps_ += job.steps;
    jobs.push_back(std::move(job));
    job_cells.push_back(&cell);
  }
  const auto cell_of = [&](const Job& job) -> const MeasuredCell& {
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
            const MeasuredCell& cell = cell_of(job);
            failures_.push_back({{"structure", cell.structure},
                                 {"experiment", cell.experiment},
                                 {"threads", cell.bench.threads.front()},
                                 {"message", error.what()}});
          },
      .progress = [&](uint64_t steps, const auto& running) { show(steps, running); }};
  run_jobs(jobs, 1, events, stop_);  // one at a time: they would slow each other down
}

size_t MeasuredCells::done() const {
  return static_cast<size_t>(std::ranges::count_if(
      cells_, [&](const MeasuredCell& cell) { return measured_.contains(cell.key()); }));
}

void MeasuredCells::show(uint64_t steps, const std::vector<const Job*>& running) const {
  if (!progress_) return;
  std::string detail = fmt::format("{} of {} cells", done(), cells_.size());
  for (const Job* job : running) detail += ", " + job->name;
  progress_(
      {.phase = "study",
       .items = steps,
       .fraction = static_cast<double>(steps) / static_cast<double>(std::max(steps_, uint64_t{1})),
       .detail = std::move(detail)});
}

json MeasuredCells::results(const std::function<bool(const MeasuredCell&)>& chosen) const {
  json list = json::array();
  for (const MeasuredCell& cell : cells_) {
    const auto at = measured_.find(cell.key());
    if (at != measured_.end() && chosen(cell)) list.push_back(at->second.at("result"));
  }
  return list;
}

// What the cells were measured under, as results of the benchmark have it.
json MeasuredCells::conditions() const {
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
  for (const MeasuredCell& cell : cells_) {
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

json MeasuredCells::document(const json& results) const {
  json notes = notes_;
  for (const MeasuredCell& cell : cells_) {
    const auto at = measured_.find(cell.key());
    if (at == measured_.end()) continue;
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
  json study = conditions();
  study.update(json{{"perdure", kVersion},
                    {"interrupted", stop_ && done() < cells_.size()},
                    {"cells_asked", cells_.size()},
                    {"cells_resumed", resumed_},
                    {"notes", std::move(notes)},
                    {"failures", failures_},
                    {"results", results}});
  return study;
}

}  // namespace perdure::lab::study
