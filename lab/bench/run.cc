#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "common/ticks.h"
#include "common/units.h"
#include "lab/bench/bench.h"
#include "lab/bench/contender.h"
#include "lab/bench/emulated_medium.h"
#include "lab/bench/floor.h"
#include "lab/bench/trial.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

// What an operation that returned survives, in words.
std::string survives(const PoolInfo& pool) {
  switch (pool.durability) {
    case Durability::kPower:
      return "each operation, a power failure";
    case Durability::kProcess:
      return "each operation, the death of the process";
    default:
      return "nothing";
  }
}

class Bench {
 public:
  Bench(const BenchOptions& options, const ProgressSink& progress, const std::atomic<bool>& stop)
      : progress_(progress), stop_(stop) {
    report_.options = options;
    if (options.capacity_bytes == 0) {
      report_.options.capacity_bytes = default_capacity_bytes(options);
    }
    report_.started = utc_now();
    report_.notes = options.notes;
    reserve_if_there_is_room();
    report_.machine = describe_machine();
    report_.timer = TickClock::get().source();
    if (options.limits) {
      flush_floor_.emplace(options.folder);
      report_.flush_instruction = flush_floor_->instruction();
    }
    report_.domain_forced = forced_domain(options).has_value();
    find_contenders();
    note_unequal_conditions();
    if (options.batch > 1) {
      note(
          fmt::format("inserts, upserts and lookups in batches of {}: their latencies are those of "
                      "batches",
                      options.batch));
    }
    start_emulation();
  }

  ~Bench() { pm::emulate_media(nullptr); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  BenchReport run();

 private:
  void start_emulation();
  void find_contenders();
  void note_unequal_conditions();
  // Whether it is to be measured; if not, notes why, or throws if nothing else is measured.
  bool takes_part(const Contender& contender, const Workload& workload, unsigned threads);
  void note(const std::string& sentence);
  void reserve_if_there_is_room();
  void measure_limits();
  void run_repeat(unsigned repeat);
  void keep(const TrialOptions& trial, const TrialResult& measured);
  void keep_load(const TrialOptions& trial, const TrialResult& measured);
  BenchResult& result_of(const TrialOptions& trial, const std::string& operation);
  static void add_phase(BenchResult& result, const MeasuredPhase& measured);

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  std::optional<FlushFloor> flush_floor_;
  std::vector<Contender> contenders_;
  std::unique_ptr<EmulatedMedium> medium_;
  std::unique_ptr<ReadChain> read_chain_;
  uint64_t largest_pool_bytes_ = 0;
  BenchReport report_;
};

void Bench::find_contenders() {
  std::string skipped;
  for (const std::string& name : report_.options.structures) {
    try {
      contenders_.push_back(find_contender(name));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound || report_.options.structures.size() == 1) throw;
      note(fmt::format("skipped: {}", error.what()));
      skipped += fmt::format("{}{}", skipped.empty() ? "" : "\n", error.what());
      continue;
    }
    const Contender& contender = contenders_.back();
    if (report_.options.kill_recovery && contender.open && !contender.may_fork) {
      note(
          fmt::format("{} has threads of its own, which a forked loader would lack: its recovery "
                      "after a kill is not measured",
                      name));
    }
  }
  if (contenders_.empty()) throw Error(ErrorCode::kNotFound, skipped);
}

// Structures beside stores that keep their files themselves.
void Bench::note_unequal_conditions() {
  const BenchOptions& options = report_.options;
  const auto is_structure = [](const Contender& one) { return one.kind == "structure"; };
  const auto has_files = [](const Contender& one) {
    return one.kind == "peer" || one.kind == "plugin";
  };
  if (!options.huge_pages && !options.reserve) return;
  if (std::ranges::none_of(contenders_, is_structure)) return;
  for (const Contender& contender : contenders_) {
    if (!has_files(contender)) continue;
    note(
        fmt::format("structures have pools{}{}{}; {} makes its files as it does: --small-pages "
                    "--grow measures structures without these advantages",
                    options.huge_pages ? " on huge pages where the system has them" : "",
                    options.huge_pages && options.reserve ? " and" : "",
                    options.reserve ? " with all blocks reserved beforehand" : "", contender.name));
  }
}

void Bench::start_emulation() {
  const std::string& name = report_.options.emulated_medium;
  if (name.empty()) return;
  medium_ = EmulatedMedium::of_name(name);
  report_.emulation = medium_->report();
  pm::emulate_media(medium_.get());
  for (const Contender& contender : contenders_) {
    if (contender.kind == "structure") continue;
    note(fmt::format("{} does not persist through perdure: it is not slowed", contender.name));
  }
}

void Bench::reserve_if_there_is_room() {
  BenchOptions& options = report_.options;
  std::error_code error;
  const uint64_t room_bytes = std::filesystem::space(options.folder, error).available;
  if (!options.reserve || error || room_bytes / 2 >= options.capacity_bytes) return;
  options.reserve = false;
  note(
      fmt::format("pools grow while they are measured: {} has too little room to reserve {} "
                  "beforehand",
                  options.folder, format_bytes(options.capacity_bytes)));
}

void Bench::note(const std::string& sentence) {
  auto& notes = report_.notes;
  if (std::find(notes.begin(), notes.end(), sentence) == notes.end()) notes.push_back(sentence);
}

bool Bench::takes_part(const Contender& contender, const Workload& workload, unsigned threads) {
  const std::string reason = unable(contender, report_.options, workload, threads);
  if (reason.empty()) return true;
  if (report_.options.structures.size() == 1) throw Error(ErrorCode::kInvalidArgument, reason);
  note(fmt::format("skipped: {}", reason));
  return false;
}

BenchReport Bench::run() {
  const double start_s = steady_seconds();
  for (unsigned repeat = 0; repeat < report_.options.repeats && !stop_; ++repeat) {
    measure_limits();
    run_repeat(repeat);
    measure_limits();
  }
  report_.interrupted = stop_;
  report_.elapsed_s = steady_seconds() - start_s;
  return std::move(report_);
}

void Bench::measure_limits() {
  if (!flush_floor_) return;
  // As long as what is measured beside it, about: a tenth of a second for a million operations or
  // more.
  const BenchOptions& options = report_.options;
  const double share =
      std::clamp(static_cast<double>(options.records + options.operations) / 1e6, 0.05, 1.0);
  report_.floor_ns.push_back(flush_floor_->measure_ns(share));
  report_.pauses.measure(share);
  // The chain covers as much memory as a pool does, so it waits until one was seen.
  if (read_chain_ == nullptr && largest_pool_bytes_ > 0) {
    read_chain_ = std::make_unique<ReadChain>(report_.options.folder, largest_pool_bytes_);
    report_.read_chain_bytes = read_chain_->size_bytes();
  }
  if (read_chain_ != nullptr) report_.read_chain_ns.push_back(read_chain_->measure_ns(share));
}

void Bench::run_repeat(unsigned repeat) {
  const BenchOptions& options = report_.options;
  for (const Contender& contender : contenders_) {
    for (const unsigned threads : options.threads) {
      for (const Workload& workload : options.workloads) {
        if (stop_) return;
        if (!takes_part(contender, workload, threads)) continue;
        TrialOptions trial;
        trial.contender = &contender;
        trial.threads = threads;
        trial.workload = &workload;
        if (contender.kind == "structure") trial.medium = medium_.get();
        // The loads of all workloads are alike: one of them is killed.
        trial.kill_recovery = options.kill_recovery && &workload == &options.workloads.front();
        trial.label =
            fmt::format("{}/{} {} x{}", repeat + 1, options.repeats, contender.name, threads);
        keep(trial, run_trial(options, trial, progress_, stop_));
      }
    }
  }
}

BenchResult& Bench::result_of(const TrialOptions& trial, const std::string& operation) {
  for (BenchResult& result : report_.results) {
    if (result.structure == trial.contender->name && result.threads == trial.threads &&
        result.operation == operation) {
      return result;
    }
  }
  BenchResult& result = report_.results.emplace_back();
  result.structure = trial.contender->name;
  result.kind = trial.contender->kind;
  result.durability = trial.contender->durability;
  result.threads = trial.threads;
  result.operation = operation;
  return result;
}

void Bench::add_phase(BenchResult& result, const MeasuredPhase& measured) {
  result.pool_bytes = measured.pool_bytes;
  result.dram_bytes = measured.dram_bytes;
  result.raw_bytes = measured.raw_bytes;
  result.persists = measured.persists;
  add_repeat(result, measured.phase);
}

void Bench::keep_load(const TrialOptions& trial, const TrialResult& measured) {
  BenchResult& load = result_of(trial, "load");
  add_phase(load, measured.load);
  load.is_load = true;
  load.records = measured.records;
  if (measured.load.phase.complete) load.load_s.push_back(measured.load.phase.seconds);
  load.failed += measured.missing;
  if (measured.open_clean_ms) load.open_clean_ms.push_back(*measured.open_clean_ms);
  if (measured.open_killed_ms) load.open_killed_ms.push_back(*measured.open_killed_ms);
}

void Bench::keep(const TrialOptions& trial, const TrialResult& measured) {
  keep_load(trial, measured);
  if (measured.run) {
    BenchResult& run = result_of(trial, trial.workload->name);
    run.records = measured.records;
    add_phase(run, *measured.run);
  }
  largest_pool_bytes_ = std::max(largest_pool_bytes_, measured.load.pool_bytes);
  if (measured.pool) {
    for (BenchResult& result : report_.results) {
      if (!result.durability.empty() || result.structure != trial.contender->name) continue;
      result.durability = survives(*measured.pool);
    }
    report_.medium = to_string(measured.pool->medium);
    report_.domain = to_string(measured.pool->domain);
    report_.durability = to_string(measured.pool->durability);
  }
}

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, message);
}

void check_options(const BenchOptions& options) {
  require(!options.structures.empty(), "name at least one structure to measure");
  require(options.records > 0, "--records must be at least 1");
  require(options.repeats > 0, "--repeats must be at least 1");
  require(!options.threads.empty(), "give at least one number of threads");
  for (const unsigned threads : options.threads) {
    require(threads >= 1 && threads <= 1024, fmt::format("{} threads: give 1 to 1024", threads));
  }
  const uint64_t least_key_bytes = options.key_prefix.size() + 8;
  require(options.key_bytes >= least_key_bytes && options.key_bytes <= (uint64_t{1} << 20),
          fmt::format("keys of {} bytes: give {} bytes (so that all can differ{}) to 1 MiB",
                      options.key_bytes, least_key_bytes,
                      options.key_prefix.empty() ? "" : ", after the prefix"));
  require(options.key_prefix.empty() || !options.url_keys,
          "no prefix goes before keys of kind url");
  require(options.key_prefix.empty() || options.key_kind == Kind::kBytes,
          "a prefix goes before keys that are byte strings: give --key-kind bytes too");
  require(options.value_bytes <= (uint64_t{64} << 20),
          fmt::format("values of {} bytes: give at most 64 MiB", options.value_bytes));
  require(options.latency_sampling >= 0 && options.latency_sampling <= 1,
          fmt::format("latency sampling {}: give a share from 0 to 1", options.latency_sampling));
  require(options.batch >= 1 && options.batch <= 65536,
          fmt::format("batches of {}: give 1 to 65536", options.batch));
  require(options.window_s >= 0.001 && options.window_s <= 3600,
          "statistics windows last from a millisecond to an hour");
  require(options.emulated_medium.empty() || !options.domain || *options.domain == Domain::kLine,
          "a medium is emulated in domain line: give --domain line, or none");
  require(options.time_limit_s >= 0, "a time limit is above 0");
}

}  // namespace

std::string unable(const Contender& contender, const BenchOptions& options,
                   const Workload& workload, unsigned threads) {
  if (!contender.ordered && workload.mix.has_scans()) {
    return fmt::format("{} keeps no order, so it cannot scan", contender.name);
  }
  if (!contender.concurrent && threads > 1) {
    return fmt::format("{} is for one thread at a time", contender.name);
  }
  const std::pair kinds(options.key_kind, options.value_kind);
  if (!contender.kinds.empty() &&
      std::find(contender.kinds.begin(), contender.kinds.end(), kinds) == contender.kinds.end()) {
    return fmt::format("{} has no keys of kind {} with values of kind {}", contender.name,
                       to_string(options.key_kind), to_string(options.value_kind));
  }
  return "";
}

BenchReport run_bench(const BenchOptions& options, const ProgressSink& progress,
                      const std::atomic<bool>& stop) {
  check_options(options);
  return Bench(options, progress, stop).run();
}

}  // namespace perdure::lab
