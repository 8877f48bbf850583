#include "lab/bench/trial.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "lab/bench/null_index.h"
#include "lab/ticks.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr uint64_t kReopenSample = 1000;

// A name for a pool file, which is removed at the end.
class PoolFile {
 public:
  explicit PoolFile(const std::string& folder)
      : path_(fmt::format("{}/perdure-bench-{}-{}.pool", folder, getpid(), next_number())) {}
  ~PoolFile() { unlink(path_.c_str()); }
  PoolFile(const PoolFile&) = delete;
  PoolFile& operator=(const PoolFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  static unsigned next_number() {
    static std::atomic<unsigned> number{0};
    return ++number;
  }
  std::string path_;
};

// An open pool and its structure; the structure closes first.
struct Store {
  std::optional<Pool> pool;
  std::unique_ptr<AnyIndex> index;

  void close() {
    index.reset();
    if (pool) pool->close();
    pool.reset();
  }
};

class Trial {
 public:
  Trial(const BenchOptions& options, const TrialOptions& trial, const ProgressSink& progress,
        const std::atomic<bool>& stop)
      : options_(options),
        trial_(trial),
        progress_(progress),
        stop_(stop),
        load_plan_(Mix::parse("insert"), 0, options.records, options.seed, options.key_order),
        run_plan_(*trial.mix, options.records, options.operations, options.seed,
                  options.key_order) {}

  TrialResult run();

 private:
  bool is_null() const { return trial_.structure == kNullName; }
  PoolOptions pool_options() const;
  Store create(const std::string& path) const;
  Store open(const std::string& path) const;
  MeasuredPhase phase(Store& store, const OperationPlan& plan, const char* name,
                      const ProgressSink& progress) const;
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
  TrialResult result_;
};

TrialResult Trial::run() {
  const PoolFile file(options_.folder);
  Store store = create(file.path());
  result_.load = phase(store, load_plan_, "load", progress_);
  result_.records = result_.load.phase.operations;
  if (store.pool) result_.pool = store.pool->info();
  if (run_plan_.operations() > 0 && !stop_) {
    result_.run = phase(store, run_plan_, trial_.mix->name().c_str(), progress_);
  }
  store.close();
  if (is_null() || stop_) return std::move(result_);
  result_.open_clean_ms = reopen_ms(file.path(), run_plan_);
  unlink(file.path().c_str());
  if (trial_.kill_recovery && !stop_) result_.open_killed_ms = kill_and_recover_ms();
  return std::move(result_);
}

PoolOptions Trial::pool_options() const {
  PoolOptions pool_options;
  pool_options.capacity_bytes = options_.capacity_bytes;
  if (const std::optional<Domain> domain = forced_domain(options_)) {
    pool_options.force_domain = true;
    pool_options.domain = *domain;
  }
  return pool_options;
}

Store Trial::create(const std::string& path) const {
  Store store;
  if (is_null()) {
    store.index = make_null_index(options_.key_kind, options_.value_kind);
    return store;
  }
  store.pool.emplace(Pool::create(path, pool_options()));
  store.index = create_index(*store.pool, "bench", trial_.structure, options_.key_kind,
                             options_.value_kind, options_.structure_options);
  return store;
}

Store Trial::open(const std::string& path) const {
  Store store;
  store.pool.emplace(Pool::open(path, pool_options()));
  store.index = open_index(*store.pool, "bench");
  return store;
}

MeasuredPhase Trial::phase(Store& store, const OperationPlan& plan, const char* name,
                           const ProgressSink& progress) const {
  PhaseOptions phase_options;
  phase_options.name = fmt::format("{} {}", trial_.label, name);
  phase_options.threads = trial_.threads;
  phase_options.key_bytes = options_.key_bytes;
  phase_options.value_bytes = options_.value_bytes;
  phase_options.latency_sampling = options_.latency_sampling;
  MeasuredPhase measured;
  measured.phase = run_phase(*store.index, plan, phase_options, progress, stop_);
  if (store.pool) measured.pool_bytes = store.pool->info().size_bytes;
  for (const Statistic& statistic : store.index->statistics()) {
    if (statistic.name == "dram_bytes") {
      measured.dram_bytes = static_cast<uint64_t>(statistic.value);
    }
  }
  return measured;
}

double Trial::reopen_ms(const std::string& path, const OperationPlan& plan) {
  const double start_s = steady_seconds();
  Store store = open(path);
  const double elapsed_ms = (steady_seconds() - start_s) * 1e3;
  if (plan.has_survivors()) {
    BenchClient client(*store.index, plan, options_.key_bytes, options_.value_bytes);
    for (uint64_t place = 0; place < kReopenSample; ++place) {
      const bool found = client.execute({OperationType::kLookup, plan.survivor(place)});
      result_.missing += found ? 0 : 1;
    }
  }
  store.close();
  return elapsed_ms;
}

void Trial::load_and_wait_for_death(const std::string& path, int ready_fd) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    Store store = create(path);
    phase(store, load_plan_, "load", {});
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
  const PoolFile file(options_.folder);
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    load_and_wait_for_death(file.path(), ends[1]);
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
  return reopen_ms(file.path(), loaded);
}

}  // namespace

std::optional<Domain> forced_domain(const BenchOptions& options) {
  if (options.domain) return options.domain;
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
