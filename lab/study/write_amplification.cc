// Running the study: which cells are missing, who counts them, and where they are kept.
#include "lab/study/write_amplification.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "index/presets.h"
#include "lab/study/once.h"
#include "lab/study/state.h"
#include "lab/study/workers.h"
#include "perdure/catalog.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;
using CellName = std::pair<std::string, std::string>;  // structure, workload

constexpr unsigned kJobs = 2;

json cell_to_json(const AmpResult& cell) {
  json types = json::array();
  for (const auto& [name, counters] : cell.by_type) {
    json counts = {{"type", name}};
    for (const CounterField& field : kCounterFields) counts[field.name] = counters.*field.member;
    types.push_back(std::move(counts));
  }
  return {{"structure", cell.structure}, {"workload", cell.workload},
          {"records", cell.records},     {"operations", cell.operations},
          {"failed", cell.failed},       {"pool_bytes", cell.pool_bytes},
          {"seconds", cell.seconds},     {"operation_types", std::move(types)}};
}

AmpResult cell_from_json(const json& object) {
  AmpResult cell;
  cell.structure = object.at("structure");
  cell.workload = object.at("workload");
  cell.records = object.at("records");
  cell.operations = object.at("operations");
  cell.failed = object.at("failed");
  cell.pool_bytes = object.at("pool_bytes");
  cell.seconds = object.at("seconds");
  for (const json& counts : object.at("operation_types")) {
    Counters counters;
    for (const CounterField& field : kCounterFields) {
      counters.*field.member = counts.at(field.name);
    }
    cell.by_type.emplace_back(counts.at("type"), counters);
  }
  return cell;
}

// What a result hangs on: cells of runs that differ in any of it do not belong together.
json state_parameters(const AmpOptions& options, const Profile& profile) {
  return {{"study", "write-amplification"},    {"perdure", kVersion},
          {"build", build_identity()},         {"profile", lab::to_json(profile)},
          {"profile name", profile.name},      {"records", options.records},
          {"operations", options.operations},  {"seed", options.seed},
          {"capacity", options.capacity_bytes}};
}

class Study {
 public:
  Study(const StudyOptions& options, const ProgressSink& progress, const std::atomic<bool>& stop);
  StudyReport run();

 private:
  void take_kept_cells();
  // The cells to count for a structure in one go: all workloads begin with the same load, so that
  // it is counted together with the first of the others.
  std::vector<std::vector<AmpWorkload>> groups_for(const std::string& structure) const;
  void add_job(const std::string& structure, const std::vector<AmpWorkload>& workloads);
  void keep(const json& cells);
  void show(uint64_t steps, const std::vector<const Job*>& running) const;
  uint64_t steps_of(const std::vector<AmpWorkload>& workloads) const;

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  unsigned at_once_;
  StudyReport report_;
  StateFile state_;
  std::map<CellName, AmpResult> cells_;
  std::vector<Job> jobs_;
  std::vector<std::vector<CellName>> job_cells_;  // that each job counts
  uint64_t steps_ = 0;
};

AmpOptions filled_in(AmpOptions options) {
  if (options.structures.empty()) options.structures = study_structures();
  if (options.operations == 0) options.operations = options.records;
  if (options.capacity_bytes == 0) options.capacity_bytes = default_amp_capacity_bytes(options);
  return options;
}

Study::Study(const StudyOptions& options, const ProgressSink& progress,
             const std::atomic<bool>& stop)
    : progress_(progress),
      stop_(stop),
      at_once_(options.jobs != 0 ? options.jobs
                                 : std::clamp(std::thread::hardware_concurrency(), 1U, kJobs)),
      report_{.options = filled_in(options.amp),
              .profile = options.amp.profile,
              .machine = describe_machine()},
      state_(options.state,
             options.state.empty() ? json() : state_parameters(report_.options, report_.profile)) {}

StudyReport Study::run() {
  take_kept_cells();
  for (const std::string& structure : report_.options.structures) {
    for (const auto& workloads : groups_for(structure)) add_job(structure, workloads);
  }
  const JobEvents events = {
      .ended = [this](const Job&, const json& result) { keep(result); },
      .failed =
          [this](const Job& job, const Error& error) {
            for (const CellName& cell : job_cells_[static_cast<size_t>(&job - jobs_.data())]) {
              report_.failures.push_back({cell.first, cell.second, error.what()});
            }
          },
      .progress = [this](uint64_t steps, const auto& running) { show(steps, running); }};
  run_jobs(jobs_, at_once_, events, stop_);
  for (const std::string& structure : report_.options.structures) {
    for (const AmpWorkload& workload : report_.options.workloads) {
      const auto cell = cells_.find({structure, workload.name});
      if (cell != cells_.end()) report_.cells.push_back(std::move(cell->second));
    }
  }
  report_.interrupted = stop_ && report_.cells.size() < report_.cells_asked();
  return std::move(report_);
}

void Study::take_kept_cells() {
  for (const json& kept : state_.results()) {
    AmpResult cell = cell_from_json(kept);
    cells_.insert_or_assign({cell.structure, cell.workload}, std::move(cell));
  }
  for (const std::string& structure : report_.options.structures) {
    for (const AmpWorkload& workload : report_.options.workloads) {
      report_.resumed += cells_.count({structure, workload.name});
    }
  }
}

std::vector<std::vector<AmpWorkload>> Study::groups_for(const std::string& structure) const {
  std::vector<std::vector<AmpWorkload>> groups;
  const AmpWorkload* load = nullptr;
  for (const AmpWorkload& workload : report_.options.workloads) {
    if (cells_.contains({structure, workload.name})) continue;
    if (workload.is_load) {
      load = &workload;
    } else {
      groups.push_back({workload});
    }
  }
  if (load != nullptr && groups.empty()) return {{*load}};
  if (load != nullptr) groups.front().push_back(*load);
  return groups;
}

uint64_t Study::steps_of(const std::vector<AmpWorkload>& workloads) const {
  const bool runs = !workloads.front().is_load;
  return report_.options.records + (runs ? report_.options.operations : 0);
}

void Study::add_job(const std::string& structure, const std::vector<AmpWorkload>& workloads) {
  AmpOptions options = report_.options;
  options.structures = {structure};
  options.workloads = workloads;
  for (const auto& option : index::presets_of(structure).published_options) {
    options.structure_options.insert(option);  // unless another was asked for
  }
  Job job{.name = fmt::format("{} {}", structure, workloads.front().name),
          .steps = steps_of(workloads)};
  job.work = [options = std::move(options)](const std::function<void(uint64_t)>& tell,
                                            const std::atomic<bool>& stop) -> json {
    const ProgressSink sink = [&](const Progress& progress) {
      const bool runs = progress.phase.ends_with(" run");
      tell(progress.items + (runs ? options.records : 0));
    };
    const AmpReport counted = run_amp(options, sink, stop);
    if (counted.results.empty()) return nullptr;
    json cells = json::array();
    for (const AmpResult& cell : counted.results) cells.push_back(cell_to_json(cell));
    return cells;
  };
  steps_ += job.steps;
  auto& cells = job_cells_.emplace_back();
  for (const AmpWorkload& workload : workloads) cells.emplace_back(structure, workload.name);
  jobs_.push_back(std::move(job));
}

void Study::keep(const json& cells) {
  for (const json& object : cells) {
    state_.add(object);
    AmpResult cell = cell_from_json(object);
    cells_.insert_or_assign({cell.structure, cell.workload}, std::move(cell));
  }
}

void Study::show(uint64_t steps, const std::vector<const Job*>& running) const {
  if (!progress_) return;
  size_t done = 0;
  for (const std::string& structure : report_.options.structures) {
    for (const AmpWorkload& workload : report_.options.workloads) {
      done += cells_.count({structure, workload.name});
    }
  }
  std::string detail = fmt::format("{} of {} cells", done, report_.cells_asked());
  for (const Job* job : running) detail += ", " + job->name;
  progress_(
      {.phase = "study",
       .items = steps,
       .fraction = static_cast<double>(steps) / static_cast<double>(std::max(steps_, uint64_t{1})),
       .detail = std::move(detail)});
}

}  // namespace

uint64_t StudyReport::failed() const {
  uint64_t sum = 0;
  for (const AmpResult& cell : cells) sum += cell.failed;
  return sum;
}

bool StudyReport::is_comparable() const {
  return profile.domain == "line" && profile.media_unit_bytes == 256;
}

std::vector<std::string> study_structures() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) {
    const auto& kinds = entry.traits.kinds;
    if (std::ranges::find(kinds, std::pair(Kind::kU64, Kind::kU64)) != kinds.end()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

StudyReport run_study(const StudyOptions& options, const ProgressSink& progress,
                      const std::atomic<bool>& stop) {
  check_amp_options(filled_in(options.amp));
  require_once(options.amp.structures, [](const std::string& name) { return name; });
  require_once(options.amp.workloads, [](const AmpWorkload& each) { return each.name; });
  return Study(options, progress, stop).run();
}

}  // namespace perdure::lab::study
