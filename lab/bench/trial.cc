#include "lab/bench/trial.h"

#include <fmt/core.h>
#include <linux/magic.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/ticks.h"
#include "lab/bench/store_path.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr uint64_t kReopenSample = 1000;

// What this process took from malloc.
uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class Trial {
 public:
  Trial(const BenchOptions& options, const TrialOptions& trial, const ProgressSink& progress,
        const std::atomic<bool>& stop)
      : options_(options),
        trial_(trial),
        progress_(progress),
        stop_(stop),
        load_plan_(Mix::parse("insert"), 0, options.records, options.seed, options.key_order),
        run_plan_(*trial.workload, options.records,
                  options.operations > 0 ? options.warmup + options.operations : 0, options.seed,
                  options.key_order) {}

  TrialResult run();

 private:
  StoreOptions store_options() const;
  PhaseOptions phase_options(const std::string& name) const;
  MeasuredPhase phase(BenchStore& store, const OperationPlan& plan, const PhaseOptions& phase,
                      const ProgressSink& progress) const;
  uint64_t dram_bytes(BenchStore& store) const;
  // Opens what is at `path`, checks a sample of the records, closes. Returns the time to open.
  double reopen_ms(const std::string& path, const OperationPlan& plan);
  double kill_and_recover_ms();
  [[noreturn]] void load_and_wait_for_death(const std::string& path, int ready_fd) const;

  const BenchOptions& options_;
  const TrialOptions& trial_;
  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  OperationPlan load_plan_;
  OperationPlan run_plan_;
  uint64_t heap_bytes_before_ = 0;
  TrialResult result_;
};

TrialResult Trial::run() {
  const StorePath place(options_.folder);
  heap_bytes_before_ = heap_bytes();
  std::unique_ptr<BenchStore> store = trial_.contender->create(place.path(), store_options());
  result_.load = phase(*store, load_plan_, phase_options("load"), progress_);
  result_.records = result_.load.phase.operations;
  result_.pool = store->pool_info();
  // A load that the time limit cut leaves fewer records than the run addresses.
  if (run_plan_.operations() > 0 && !stop_ && result_.load.phase.complete) {
    PhaseOptions run = phase_options(trial_.workload->name);
    run.warmup = options_.warmup;
    result_.run = phase(*store, run_plan_, run, progress_);
  }
  store.reset();
  if (!trial_.contender->open || stop_) return std::move(result_);
  result_.open_clean_ms = reopen_ms(place.path(), run_plan_);
  place.remove();
  if (trial_.kill_recovery && trial_.contender->may_fork && !stop_) {
    result_.open_killed_ms = kill_and_recover_ms();
  }
  return std::move(result_);
}

StoreOptions Trial::store_options() const {
  StoreOptions store_options;
  store_options.key_kind = options_.key_kind;
  store_options.value_kind = options_.value_kind;
  store_options.key_bytes = options_.key_bytes;
  store_options.value_bytes = options_.value_bytes;
  store_options.threads = trial_.threads;
  store_options.structure_options = options_.structure_options;
  store_options.pool.capacity_bytes = options_.capacity_bytes;
  if (options_.reserve) store_options.pool.reserve_bytes = options_.capacity_bytes;
  store_options.pool.huge_pages = options_.huge_pages;
  store_options.pool.verify_payload = options_.verify_payload;
  if (const std::optional<Domain> domain = forced_domain(options_)) {
    store_options.pool.force_domain = true;
    store_options.pool.domain = *domain;
  }
  return store_options;
}

PhaseOptions Trial::phase_options(const std::string& name) const {
  PhaseOptions phase_options;
  phase_options.name = fmt::format("{} {}", trial_.label, name);
  phase_options.threads = trial_.threads;
  phase_options.form = record_form(options_);
  phase_options.latency_sampling = options_.latency_sampling;
  phase_options.batch = options_.batch;
  phase_options.time_limit_s = options_.time_limit_s;
  phase_options.window_s = options_.window_s;
  phase_options.pinned = options_.pinned;
  phase_options.compare = trial_.contender->keeps_records;
  return phase_options;
}

MeasuredPhase Trial::phase(BenchStore& store, const OperationPlan& plan, const PhaseOptions& phase,
                           const ProgressSink& progress) const {
  MeasuredPhase measured;
  const PersistCounts before = trial_.medium != nullptr ? trial_.medium->counts() : PersistCounts();
  measured.phase = run_phase(store.index(), plan, phase, progress, stop_);
  if (trial_.medium != nullptr && measured.phase.operations > 0) {
    const PersistCounts after = trial_.medium->counts();
    const auto operations = static_cast<double>(measured.phase.operations + phase.warmup);
    measured.persists = {static_cast<double>(after.lines - before.lines) / operations,
                         static_cast<double>(after.fences - before.fences) / operations};
  }
  measured.pool_bytes = store.stored_bytes();
  measured.dram_bytes = dram_bytes(store);
  // What a warm-up inserts and removes is not counted apart; it is in the mix's proportion.
  const auto count = [&](OperationType type) {
    return measured.phase.by_type[static_cast<size_t>(type)].operations;
  };
  const uint64_t records =
      result_.records + count(OperationType::kInsert) - count(OperationType::kRemove);
  measured.raw_bytes = records * raw_record_bytes(options_);
  return measured;
}

uint64_t Trial::dram_bytes(BenchStore& store) const {
  for (const Statistic& statistic : store.index().statistics()) {
    if (statistic.name == "dram_bytes") return static_cast<uint64_t>(statistic.value);
  }
  // Of stores that do not count it: what malloc gave since the store was made.
  const uint64_t now = heap_bytes();
  return now > heap_bytes_before_ ? now - heap_bytes_before_ : 0;
}

double Trial::reopen_ms(const std::string& path, const OperationPlan& plan) {
  const double start_s = steady_seconds();
  std::unique_ptr<BenchStore> store = trial_.contender->open(path, store_options());
  const double elapsed_ms = (steady_seconds() - start_s) * 1e3;
  if (plan.has_survivors() && result_.load.phase.complete) {
    BenchClient client(store->index(), plan, record_form(options_));
    for (uint64_t place = 0; place < kReopenSample; ++place) {
      const bool found = client.execute({OperationType::kLookup, plan.survivor(place)});
      result_.missing += found ? 0 : 1;
    }
  }
  store.reset();
  return elapsed_ms;
}

void Trial::load_and_wait_for_death(const std::string& path, int ready_fd) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const std::unique_ptr<BenchStore> store = trial_.contender->create(path, store_options());
    phase(*store, load_plan_, phase_options("load"), {});
    if (write(ready_fd, "", 1) == 1) {
      for (;;) pause();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "perdure: in the loader to be killed: {}\n", error.what());
  }
  _exit(1);
}

double Trial::kill_and_recover_ms() {
  if (progress_) progress_({trial_.label + " kill and recover", 0, -1});
  const StorePath place(options_.folder);
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    load_and_wait_for_death(place.path(), ends[1]);
  }
  close(ends[1]);
  char ready = 0;
  ssize_t got = -1;
  if (child > 0) {
    do {
      got = read(ends[0], &ready, 1);
    } while (got < 0 && errno == EINTR);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  close(ends[0]);
  if (got != 1) {
    throw Error(ErrorCode::kIo, "the loader that was to be killed ended by itself");
  }
  if (stop_) return 0;
  // Before the run phase: all loaded records are there.
  const OperationPlan loaded(Mix::parse("lookup"), options_.records, 0, options_.seed,
                             options_.key_order);
  return reopen_ms(place.path(), loaded);
}

}  // namespace

std::optional<Domain> forced_domain(const BenchOptions& options) {
  if (options.domain) return options.domain;
  if (!options.emulated_medium.empty()) return Domain::kLine;
  if (std::getenv("PERDURE_DOMAIN") != nullptr) return std::nullopt;
  struct statfs medium{};
  if (statfs(options.folder.c_str(), &medium) != 0 || medium.f_type != TMPFS_MAGIC) {
    return std::nullopt;
  }
  return Domain::kLine;
}

TrialResult run_trial(const BenchOptions& options, const TrialOptions& trial,
                      const ProgressSink& progress, const std::atomic<bool>& stop) {
  return Trial(options, trial, progress, stop).run();
}

}  // namespace perdure::lab
