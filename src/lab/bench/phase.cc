#include "lab/bench/phase.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lab/ticks.h"

namespace perdure::lab {
namespace {

// How often a thread tells how far it is and looks whether it should stop, in operations.
constexpr uint64_t kChunk = 256;

// Decides which operations are timed. Its draws are independent of the keys: a structure that
// orders by key is sampled everywhere alike.
class Sampler {
 public:
  Sampler(double share, uint64_t seed)
      : state_(mix_word(seed) | 1), threshold_(static_cast<uint64_t>(share * 0x1p32)) {}

  bool take() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 32) < threshold_;
  }

 private:
  uint64_t state_;
  uint64_t threshold_;
};

// What one thread does and found. On a cache line of its own.
struct alignas(128) Worker {
  std::atomic<uint64_t> done{0};
  uint64_t begin = 0;
  uint64_t end = 0;
  double started_s = 0;
  double ended_s = 0;
  uint64_t failed = 0;
  Histogram latency;
  std::exception_ptr error;
};

class PhaseRun {
 public:
  PhaseRun(AnyIndex& index, const OperationPlan& plan, const PhaseOptions& options,
           const ProgressSink& progress, const std::atomic<bool>& stop)
      : index_(index), plan_(plan), options_(options), progress_(progress), stop_(stop) {}

  PhaseResult run();

 private:
  void work(Worker& worker);
  void carry_out(Worker& worker);
  void report_until_done();
  Progress progress_now() const;
  PhaseResult sum_up() const;

  AnyIndex& index_;
  const OperationPlan& plan_;
  const PhaseOptions& options_;
  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  std::atomic<bool> failed_{false};
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<std::latch> start_;
  std::mutex mutex_;
  std::condition_variable ended_;
  unsigned running_ = 0;
};

PhaseResult PhaseRun::run() {
  const unsigned threads = std::max(options_.threads, 1U);
  start_ = std::make_unique<std::latch>(threads);
  running_ = threads;
  std::vector<std::thread> pool;
  for (unsigned thread = 0; thread < threads; ++thread) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    const uint64_t part = plan_.operations() / threads;
    const uint64_t rest = plan_.operations() % threads;
    worker.begin = part * thread + std::min<uint64_t>(thread, rest);
    worker.end = worker.begin + part + (thread < rest ? 1 : 0);
  }
  for (auto& worker : workers_) pool.emplace_back([this, &worker] { work(*worker); });
  report_until_done();
  for (std::thread& thread : pool) thread.join();
  for (auto& worker : workers_) {
    if (worker->error) std::rethrow_exception(worker->error);
  }
  return sum_up();
}

void PhaseRun::work(Worker& worker) {
  start_->arrive_and_wait();
  worker.started_s = steady_seconds();
  try {
    carry_out(worker);
  } catch (...) {
    worker.error = std::current_exception();
    failed_.store(true, std::memory_order_relaxed);
  }
  worker.ended_s = steady_seconds();
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) ended_.notify_all();
}

void PhaseRun::carry_out(Worker& worker) {
  const TickClock& clock = TickClock::get();
  BenchClient client(index_, plan_, options_.key_bytes, options_.value_bytes);
  Sampler sampler(options_.latency_sampling, worker.begin + 1);
  uint64_t failed = 0;
  for (uint64_t place = worker.begin; place < worker.end;) {
    if (stop_.load(std::memory_order_relaxed) || failed_.load(std::memory_order_relaxed)) break;
    const uint64_t chunk_end = std::min(place + kChunk, worker.end);
    for (; place < chunk_end; ++place) {
      const Operation operation = plan_.at(place);
      bool succeeded = false;
      if (sampler.take()) {
        const uint64_t start = clock.now();
        succeeded = client.execute(operation);
        worker.latency.record(clock.now() - start);
      } else {
        succeeded = client.execute(operation);
      }
      failed += succeeded ? 0 : 1;
    }
    worker.done.store(place - worker.begin, std::memory_order_relaxed);
  }
  worker.failed = failed;
}

Progress PhaseRun::progress_now() const {
  Progress progress;
  progress.phase = options_.name;
  for (const auto& worker : workers_) {
    progress.items += worker->done.load(std::memory_order_relaxed);
  }
  progress.fraction =
      static_cast<double>(progress.items) / static_cast<double>(std::max(plan_.operations(), 1UL));
  return progress;
}

void PhaseRun::report_until_done() {
  std::unique_lock lock(mutex_);
  if (!progress_) return;
  while (!ended_.wait_for(lock, std::chrono::milliseconds(100), [this] { return running_ == 0; })) {
    progress_(progress_now());
  }
}

PhaseResult PhaseRun::sum_up() const {
  PhaseResult result;
  double started_s = workers_[0]->started_s;
  double ended_s = workers_[0]->ended_s;
  for (const auto& worker : workers_) {
    started_s = std::min(started_s, worker->started_s);
    ended_s = std::max(ended_s, worker->ended_s);
    result.operations += worker->done.load(std::memory_order_relaxed);
    result.failed += worker->failed;
    result.latency_ticks.merge(worker->latency);
  }
  result.seconds = ended_s - started_s;
  return result;
}

}  // namespace

PhaseResult run_phase(AnyIndex& index, const OperationPlan& plan, const PhaseOptions& options,
                      const ProgressSink& progress, const std::atomic<bool>& stop) {
  return PhaseRun(index, plan, options, progress, stop).run();
}

}  // namespace perdure::lab
