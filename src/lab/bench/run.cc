#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "lab/bench/bench.h"
#include "lab/bench/floor.h"
#include "lab/bench/null_index.h"
#include "lab/bench/trial.h"
#include "lab/ticks.h"
#include "perdure/catalog.h"
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
          .max = static_cast<double>(ticks.max()) * ns};
}

class Bench {
 public:
  Bench(const BenchOptions& options, const ProgressSink& progress, const std::atomic<bool>& stop)
      : progress_(progress), stop_(stop), flush_floor_(options.folder) {
    report_.options = options;
    if (options.capacity_bytes == 0) {
      report_.options.capacity_bytes = default_capacity_bytes(options);
    }
    report_.machine = describe_machine();
    report_.timer = TickClock::get().source();
    report_.flush_instruction = flush_floor_.instruction();
    report_.domain_forced = forced_domain(options).has_value();
  }

  BenchReport run();

 private:
  void measure_limits();
  void run_repeat(unsigned repeat);
  void keep(const TrialOptions& trial, const TrialResult& measured);
  void keep_load(const TrialOptions& trial, const TrialResult& measured);
  BenchResult& result_of(const TrialOptions& trial, const std::string& operation);
  static void add_phase(BenchResult& result, const MeasuredPhase& measured);

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  FlushFloor flush_floor_;
  std::unique_ptr<ReadChain> read_chain_;
  uint64_t largest_pool_bytes_ = 0;
  BenchReport report_;
};

BenchReport Bench::run() {
  for (unsigned repeat = 0; repeat < report_.options.repeats && !stop_; ++repeat) {
    measure_limits();
    run_repeat(repeat);
    measure_limits();
  }
  report_.interrupted = stop_;
  return std::move(report_);
}

void Bench::measure_limits() {
  report_.floor_ns.push_back(flush_floor_.measure_ns());
  // The chain covers as much memory as a pool does, so it waits until one was seen.
  if (read_chain_ == nullptr && largest_pool_bytes_ > 0) {
    read_chain_ = std::make_unique<ReadChain>(report_.options.folder, largest_pool_bytes_);
    report_.read_chain_bytes = read_chain_->size_bytes();
  }
  if (read_chain_ != nullptr) report_.read_chain_ns.push_back(read_chain_->measure_ns());
}

void Bench::run_repeat(unsigned repeat) {
  const BenchOptions& options = report_.options;
  for (const std::string& structure : options.structures) {
    for (const unsigned threads : options.threads) {
      for (const Mix& mix : options.mixes) {
        if (stop_) return;
        TrialOptions trial;
        trial.structure = structure;
        trial.threads = threads;
        trial.mix = &mix;
        // The loads of all mixes are alike: one of them is killed.
        trial.kill_recovery = options.kill_recovery && &mix == &options.mixes.front();
        trial.label = fmt::format("{}/{} {} x{}", repeat + 1, options.repeats, structure, threads);
        keep(trial, run_trial(options, trial, progress_, stop_));
      }
    }
  }
}

BenchResult& Bench::result_of(const TrialOptions& trial, const std::string& operation) {
  for (BenchResult& result : report_.results) {
    if (result.structure == trial.structure && result.threads == trial.threads &&
        result.operation == operation) {
      return result;
    }
  }
  BenchResult& result = report_.results.emplace_back();
  result.structure = trial.structure;
  result.threads = trial.threads;
  result.operation = operation;
  return result;
}

void Bench::add_phase(BenchResult& result, const MeasuredPhase& measured) {
  const PhaseResult& phase = measured.phase;
  result.pool_bytes = measured.pool_bytes;
  result.dram_bytes = measured.dram_bytes;
  result.operations = phase.operations;
  result.failed += phase.failed;
  if (phase.operations == 0 || phase.seconds <= 0) return;
  result.mops.push_back(static_cast<double>(phase.operations) / phase.seconds / 1e6);
  if (phase.latency_ticks.count() > 0) result.latencies.push_back(summarize(phase.latency_ticks));
}

void Bench::keep_load(const TrialOptions& trial, const TrialResult& measured) {
  BenchResult& load = result_of(trial, "load");
  add_phase(load, measured.load);
  load.records = measured.records;
  load.failed += measured.missing;
  if (measured.open_clean_ms) load.open_clean_ms.push_back(*measured.open_clean_ms);
  if (measured.open_killed_ms) load.open_killed_ms.push_back(*measured.open_killed_ms);
}

void Bench::keep(const TrialOptions& trial, const TrialResult& measured) {
  keep_load(trial, measured);
  if (measured.run) {
    BenchResult& run = result_of(trial, trial.mix->name());
    run.records = measured.records;
    add_phase(run, *measured.run);
  }
  largest_pool_bytes_ = std::max(largest_pool_bytes_, measured.load.pool_bytes);
  if (measured.pool) {
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
  for (const std::string& structure : options.structures) {
    if (structure != kNullName) catalog_entry(structure);
  }
  require(options.records > 0, "--records must be at least 1");
  require(options.repeats > 0, "--repeats must be at least 1");
  require(!options.threads.empty(), "give at least one number of threads");
  for (const unsigned threads : options.threads) {
    require(threads >= 1 && threads <= 1024, fmt::format("{} threads: give 1 to 1024", threads));
  }
  require(options.key_bytes >= 8 && options.key_bytes <= (uint64_t{1} << 20),
          fmt::format("keys of {} bytes: give 8 bytes (so that all can differ) to 1 MiB",
                      options.key_bytes));
  require(options.value_bytes <= (uint64_t{64} << 20),
          fmt::format("values of {} bytes: give at most 64 MiB", options.value_bytes));
  require(options.latency_sampling >= 0 && options.latency_sampling <= 1,
          fmt::format("latency sampling {}: give a share from 0 to 1", options.latency_sampling));
}

}  // namespace

BenchReport run_bench(const BenchOptions& options, const ProgressSink& progress,
                      const std::atomic<bool>& stop) {
  check_options(options);
  return Bench(options, progress, stop).run();
}

}  // namespace perdure::lab
