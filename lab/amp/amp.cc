#include "lab/amp/amp.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "lab/amp/collect.h"
#include "lab/amp/trial.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

struct NamedMix {
  const char* name;
  const char* mix;
};
constexpr std::array<NamedMix, 4> kWorkloads = {{{"load", "insert"},
                                                 {"a", "lookup=.5,insert=.5"},
                                                 {"b", "lookup=.95,insert=.05"},
                                                 {"c", "lookup"}}};

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, message);
}

// A folder for the pool of a run, removed at the end.
class PoolFolder {
 public:
  explicit PoolFolder(const std::string& parent) : path_(parent + "/perdure-amp-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      throw Error(ErrorCode::kIo, fmt::format("{}: cannot make a folder in it", parent));
    }
  }
  ~PoolFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  PoolFolder(const PoolFolder&) = delete;
  PoolFolder& operator=(const PoolFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Amp {
 public:
  Amp(const AmpOptions& options, const ProgressSink& progress, const std::atomic<bool>& stop)
      : progress_(progress), stop_(stop) {
    report_.options = options;
    AmpOptions& used = report_.options;
    if (used.operations == 0) used.operations = used.records;
    if (used.capacity_bytes == 0) used.capacity_bytes = default_amp_capacity_bytes(used);
    report_.profile = options.profile;
  }

  AmpReport run() {
    for (const std::string& structure : report_.options.structures) run_structure(structure);
    report_.interrupted = stop_;
    return std::move(report_);
  }

 private:
  void run_structure(const std::string& structure);
  AmpTrial run_trial(const std::string& structure, const AmpWorkload* workload);
  void keep(const std::string& structure, const AmpWorkload& workload, const AmpPhase& phase);

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  AmpReport report_;
};

// All workloads begin with the same load, which is reported of the first of them.
void Amp::run_structure(const std::string& structure) {
  const auto& workloads = report_.options.workloads;
  const auto load = std::find_if(workloads.begin(), workloads.end(),
                                 [](const AmpWorkload& each) { return each.is_load; });
  bool load_is_kept = load == workloads.end();
  for (const AmpWorkload& workload : workloads) {
    if (workload.is_load || stop_) continue;
    const AmpTrial trial = run_trial(structure, &workload);
    if (!load_is_kept && trial.load) {
      keep(structure, *load, *trial.load);
      load_is_kept = true;
    }
    if (trial.run) keep(structure, workload, *trial.run);
  }
  if (load_is_kept || stop_) return;
  const AmpTrial trial = run_trial(structure, nullptr);
  if (trial.load) keep(structure, *load, *trial.load);
}

AmpTrial Amp::run_trial(const std::string& structure, const AmpWorkload* workload) {
  const PoolFolder folder(report_.options.folder);
  return run_amp_trial(report_.options, structure, workload, folder.path(), progress_, stop_);
}

void Amp::keep(const std::string& structure, const AmpWorkload& workload, const AmpPhase& phase) {
  AmpResult& result = report_.results.emplace_back();
  result.structure = structure;
  result.workload = workload.name;
  result.records = report_.options.records;
  result.operations = phase.operations;
  result.failed = phase.failed;
  result.pool_bytes = phase.pool_bytes;
  result.seconds = phase.seconds;
  collect(phase.report, result);
}

}  // namespace

AmpWorkload amp_workload(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const NamedMix& known : kWorkloads) {
    if (lower == known.name) {
      return {.name = lower, .mix = Mix::parse(known.mix), .is_load = lower == "load"};
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("no workload \"{}\": choose from load, a, b, c", name));
}

uint64_t default_amp_capacity_bytes(const AmpOptions& options) {
  constexpr uint64_t kLeast = uint64_t{64} << 20;
  constexpr uint64_t kStep = uint64_t{16} << 20;
  const uint64_t key_bytes = options.key_kind == Kind::kU64 ? 8 : options.key_bytes;
  const uint64_t value_bytes = options.value_kind == Kind::kU64 ? 8 : options.value_bytes;
  const uint64_t raw_bytes = options.records * (key_bytes + value_bytes);
  return std::max(kLeast, (8 * raw_bytes + kStep - 1) / kStep * kStep);
}

void check_amp_options(const AmpOptions& options) {
  require(!options.structures.empty(), "name at least one structure; see `perdure list`");
  for (const std::string& structure : options.structures) catalog_entry(structure);
  require(!options.workloads.empty(), "name at least one workload: load, a, b or c");
  require(options.records > 0, "--records must be at least 1");
  require(!options.threads.empty(), "give at least one number of threads");
  for (const uint64_t threads : options.threads) {
    require(threads >= 1 && threads <= 100'000,
            fmt::format("{} threads: give 1 to 100000", threads));
  }
  require(options.key_bytes >= 8 && options.key_bytes <= (uint64_t{1} << 20),
          fmt::format("keys of {} bytes: give 8 bytes (so that all can differ) to 1 MiB",
                      options.key_bytes));
  require(options.value_bytes <= (uint64_t{64} << 20),
          fmt::format("values of {} bytes: give at most 64 MiB", options.value_bytes));
}

AmpReport run_amp(const AmpOptions& options, const ProgressSink& progress,
                  const std::atomic<bool>& stop) {
  check_amp_options(options);
  return Amp(options, progress, stop).run();
}

}  // namespace perdure::lab
