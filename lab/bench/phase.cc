#include "lab/bench/phase.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "common/ticks.h"
#include "lab/bench/operation_batch.h"
#include "lab/bench/processors.h"

namespace perdure::lab {
namespace {

// How often a thread draws its next operations, tells how far it is and looks whether it should
// stop, in operations: seldom enough to cost little, often enough for stores that take
// milliseconds.
constexpr uint64_t kStep = 64;

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

struct Range {
  uint64_t begin;
  uint64_t end;
};

// The places of the plan that one thread carries out, in ascending order.
class Share {
 public:
  Share(Range whole, unsigned thread, unsigned threads, bool in_turn)
      : whole_(whole), thread_(thread), threads_(threads), in_turn_(in_turn) {}

  // Number `index` of its ranges; nothing after the last.
  std::optional<Range> range(uint64_t index) const {
    const uint64_t places = whole_.end - whole_.begin;
    if (!in_turn_) {
      if (index > 0) return std::nullopt;
      const uint64_t part = places / threads_;
      const uint64_t rest = places % threads_;
      const uint64_t begin = whole_.begin + part * thread_ + std::min<uint64_t>(thread_, rest);
      return Range{begin, begin + part + (thread_ < rest ? 1 : 0)};
    }
    // Blocks are counted from place 0, so that warm-up and measured part agree on whose they are.
    constexpr uint64_t kBlock = OperationPlan::kBlock;
    const uint64_t first = whole_.begin / kBlock;
    const uint64_t mine = first + (thread_ + threads_ - first % threads_) % threads_;
    const uint64_t block = mine + index * threads_;
    if (block * kBlock >= whole_.end) return std::nullopt;
    return Range{std::max(block * kBlock, whole_.begin),
                 std::min((block + 1) * kBlock, whole_.end)};
  }

 private:
  Range whole_;
  unsigned thread_;
  unsigned threads_;
  bool in_turn_;
};

// The batches that a thread gathers, one for each type that has batched calls. Empty without
// batches.
class Batches {
 public:
  Batches(AnyIndex& index, uint64_t size) {
    for (size_t type = 0; size > 1 && type < kOperationTypes; ++type) {
      const auto of = static_cast<OperationType>(type);
      if (OperationBatch::takes(of)) batches_[type].emplace(index, of, size);
    }
  }
  // Null if operations of the type are carried out one by one.
  OperationBatch* of(OperationType type) {
    auto& batch = batches_[static_cast<size_t>(type)];
    return batch ? &*batch : nullptr;
  }

 private:
  std::array<std::optional<OperationBatch>, kOperationTypes> batches_;
};

// What one thread does and found. On cache lines of its own.
struct alignas(128) Worker {
  unsigned number = 0;
  std::atomic<uint64_t> done{0};        // measured operations, for windows and progress
  std::atomic<uint64_t> done_below{0};  // all its places below this one are done
  alignas(128) double started_s = 0;
  double ended_s = 0;
  uint64_t failed = 0;
  uint64_t fingerprints = 0;
  uint64_t scanned = 0;
  std::array<TypeResult, kOperationTypes> by_type;
  std::exception_ptr error;
};

class PhaseRun {
 public:
  PhaseRun(AnyIndex& index, const OperationPlan& plan, const PhaseOptions& options,
           const ProgressSink& progress, const std::atomic<bool>& stop)
      : index_(index),
        plan_(plan),
        options_(options),
        progress_(progress),
        stop_(stop),
        threads_(std::max(options.threads, 1U)),
        warmup_(std::min(options.warmup, plan.operations())),
        start_(threads_) {}

  PhaseResult run();

 private:
  void work(Worker& worker);
  template <bool kMeasured>
  void carry_out(Worker& worker, BenchClient& client, Range places);
  template <bool kMeasured>
  void carry_out_range(Worker& worker, BenchClient& client, Batches& batches, Sampler& sampler,
                       Range range);
  bool ends() const {
    return stop_.load(std::memory_order_relaxed) || cut_.load(std::memory_order_relaxed);
  }
  bool wait_for_all_below(uint64_t place) const;
  void watch_until_done();
  void close_window(double now_s);
  uint64_t done() const;
  Progress progress_now() const;
  PhaseResult sum_up() const;
  BenchClient make_client() const {
    return {index_, plan_, options_.form,
            options_.compare ? BenchClient::Compare::kValues : BenchClient::Compare::kNothing};
  }
  uint64_t missing_effects() const;

  AnyIndex& index_;
  const OperationPlan& plan_;
  const PhaseOptions& options_;
  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  const unsigned threads_;
  const uint64_t warmup_;
  std::barrier<> start_;
  std::atomic<bool> cut_{false};  // an error, or the end of the time
  std::atomic<double> measured_since_s_{0};
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex mutex_;
  std::condition_variable ended_;
  unsigned running_ = 0;
  double window_start_s_ = 0;
  uint64_t window_start_done_ = 0;
  std::vector<double> window_mops_;
};

PhaseResult PhaseRun::run() {
  running_ = threads_;
  for (unsigned thread = 0; thread < threads_; ++thread) {
    workers_.emplace_back(std::make_unique<Worker>())->number = thread;
  }
  std::vector<std::thread> pool;
  for (auto& worker : workers_) pool.emplace_back([this, &worker] { work(*worker); });
  watch_until_done();
  for (std::thread& thread : pool) thread.join();
  for (auto& worker : workers_) {
    if (worker->error) std::rethrow_exception(worker->error);
  }
  PhaseResult result = sum_up();
  if (result.complete) result.failed += missing_effects();
  return result;
}

// Of operations from all over the stream. Only what the index says afterwards shows an update that
// it dropped and reported as done.
uint64_t PhaseRun::missing_effects() const {
  constexpr uint64_t kSample = 20'000;
  BenchClient client = make_client();
  const uint64_t step = std::max(plan_.operations() / kSample, uint64_t{1});
  uint64_t missing = 0;
  for (uint64_t place = 0; place < plan_.operations(); place += step) {
    missing += client.has_effect(plan_.at(place)) ? 0 : 1;
  }
  return missing;
}

void PhaseRun::work(Worker& worker) {
  if (options_.pinned) run_on_processor(worker.number);
  BenchClient client = make_client();
  const auto guarded = [&](auto part) {
    try {
      part();
    } catch (...) {
      worker.error = std::current_exception();
      cut_.store(true, std::memory_order_relaxed);
    }
  };
  start_.arrive_and_wait();
  if (warmup_ > 0) {
    guarded([&] { carry_out<false>(worker, client, {0, warmup_}); });
    start_.arrive_and_wait();
  }
  worker.started_s = steady_seconds();
  measured_since_s_.store(worker.started_s, std::memory_order_relaxed);
  const uint64_t scanned_before = client.scanned();
  if (!worker.error) {
    guarded([&] { carry_out<true>(worker, client, {warmup_, plan_.operations()}); });
  }
  worker.ended_s = steady_seconds();
  worker.scanned = client.scanned() - scanned_before;
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) ended_.notify_all();
}

template <bool kMeasured>
void PhaseRun::carry_out(Worker& worker, BenchClient& client, Range places) {
  const bool in_turn = plan_.has_dependences();
  const Share share(places, worker.number, threads_, in_turn);
  Sampler sampler(options_.latency_sampling, worker.number + 1);
  Batches batches(index_, options_.batch);
  for (uint64_t index = 0; const std::optional<Range> range = share.range(index); ++index) {
    if (in_turn && !wait_for_all_below(plan_.dependence(range->begin))) return;
    carry_out_range<kMeasured>(worker, client, batches, sampler, *range);
    if (ends()) return;
    // This thread's next block is `threads_` blocks on; it has none between.
    worker.done_below.store(range->begin / OperationPlan::kBlock * OperationPlan::kBlock +
                                threads_ * OperationPlan::kBlock,
                            std::memory_order_release);
  }
  worker.done_below.store(places.end == plan_.operations() ? ~uint64_t{0} : places.end,
                          std::memory_order_release);
}

// Calls `work` and takes the time.
template <typename Work>
auto time_one(TypeResult& measured, Work work) {
  const TickClock& clock = TickClock::get();
  const uint64_t start = clock.now();
  const auto result = work();
  measured.latency_ticks.record(clock.now() - start);
  return result;
}

template <bool kMeasured>
void PhaseRun::carry_out_range(Worker& worker, BenchClient& client, Batches& batches,
                               Sampler& sampler, Range range) {
  const auto carry_out_batch = [&](OperationType type, OperationBatch& batch) {
    TypeResult& measured = worker.by_type[static_cast<size_t>(type)];
    const auto work = [&] { return batch.carry_out(client); };
    return kMeasured && sampler.take() ? time_one(measured, work) : work();
  };
  uint64_t fingerprints = 0;
  uint64_t failed = 0;
  uint64_t place = range.begin;
  while (place < range.end && !ends()) {
    const uint64_t count = std::min(kStep, range.end - place);
    // Drawn beforehand: so little lies between two operations that a processor can begin the second
    // while it waits for the memory of the first, as it would in a program that has its keys at
    // hand.
    struct Drawn {
      Operation operation;
      uint64_t key;
    };
    std::array<Drawn, kStep> drawn;
    uint64_t timed = 0;  // a bit for each
    for (uint64_t i = 0; i < count; ++i) {
      const Operation operation = plan_.at(place + i);
      drawn[i] = {operation, plan_.key_of(operation.record)};
      fingerprints += OperationPlan::fingerprint(place + i, operation);
      if constexpr (kMeasured) {
        ++worker.by_type[static_cast<size_t>(operation.type)].operations;
        timed |= uint64_t{sampler.take()} << i;
      }
    }
    for (uint64_t i = 0; i < count; ++i) {
      const auto& [operation, key] = drawn[i];
      if (OperationBatch* batch = batches.of(operation.type)) [[unlikely]] {
        batch->add(client.prepare(operation, key), key);
        if (batch->full()) failed += carry_out_batch(operation.type, *batch);
        continue;
      }
      const auto work = [&] { return client.execute(operation, key); };
      const bool succeeded =
          (timed >> i & 1) != 0
              ? time_one(worker.by_type[static_cast<size_t>(operation.type)], work)
              : work();
      failed += succeeded ? 0 : 1;
    }
    if constexpr (kMeasured) {
      worker.done.store(worker.done.load(std::memory_order_relaxed) + count,
                        std::memory_order_relaxed);
    }
    place += count;
  }
  for (size_t type = 0; type < kOperationTypes; ++type) {
    const auto of = static_cast<OperationType>(type);
    OperationBatch* batch = batches.of(of);
    if (batch != nullptr && batch->count() > 0) failed += carry_out_batch(of, *batch);
  }
  worker.failed += failed;
  worker.fingerprints += fingerprints;
}

// False when the phase ends first. No thread waits for a place of its own, and all take theirs in
// order: the thread with the first place that is not done waits for none.
bool PhaseRun::wait_for_all_below(uint64_t place) const {
  for (const auto& worker : workers_) {
    while (worker->done_below.load(std::memory_order_acquire) < place) {
      if (ends()) return false;
      std::this_thread::yield();
    }
  }
  return true;
}

uint64_t PhaseRun::done() const {
  uint64_t done = 0;
  for (const auto& worker : workers_) done += worker->done.load(std::memory_order_relaxed);
  return done;
}

Progress PhaseRun::progress_now() const {
  Progress progress;
  const bool warming_up = measured_since_s_.load(std::memory_order_relaxed) == 0;
  progress.phase = options_.name + (warming_up && warmup_ > 0 ? " warm-up" : "");
  progress.items = done();
  if (warming_up && warmup_ > 0) return progress;
  const uint64_t planned = std::max<uint64_t>(plan_.operations() - warmup_, 1);
  progress.fraction = static_cast<double>(progress.items) / static_cast<double>(planned);
  if (options_.time_limit_s > 0 && !warming_up) {
    const double elapsed_s = steady_seconds() - measured_since_s_.load(std::memory_order_relaxed);
    progress.fraction = std::max(progress.fraction, elapsed_s / options_.time_limit_s);
  }
  progress.fraction = std::min(progress.fraction, 1.0);
  return progress;
}

void PhaseRun::close_window(double now_s) {
  const uint64_t now_done = done();
  window_mops_.push_back(static_cast<double>(now_done - window_start_done_) /
                         (now_s - window_start_s_) / 1e6);
  window_start_s_ = now_s;
  window_start_done_ = now_done;
}

// Until the threads have ended: closes the windows, ends the time, tells how far it is.
void PhaseRun::watch_until_done() {
  constexpr double kProgressSeconds = 0.1;
  const double window_s = options_.window_s;
  double next_progress_s = steady_seconds() + kProgressSeconds;
  std::unique_lock lock(mutex_);
  while (running_ > 0) {
    const double begun_s = measured_since_s_.load(std::memory_order_relaxed);
    if (begun_s > 0 && window_start_s_ == 0) window_start_s_ = begun_s;
    const double window_end_s = window_start_s_ + window_s;
    const double limit_s =
        options_.time_limit_s > 0 ? begun_s + options_.time_limit_s : window_end_s;
    const double until_s =
        begun_s > 0 ? std::min({window_end_s, next_progress_s, limit_s}) : steady_seconds() + 0.001;
    ended_.wait_for(lock, std::chrono::duration<double>(std::max(until_s - steady_seconds(), 0.0)),
                    [this] { return running_ == 0; });
    if (running_ == 0) return;
    const double now_s = steady_seconds();
    if (window_start_s_ > 0 && now_s >= window_end_s) close_window(now_s);
    if (options_.time_limit_s > 0 && begun_s > 0 && now_s >= limit_s) {
      cut_.store(true, std::memory_order_relaxed);
    }
    if (now_s < next_progress_s) continue;
    next_progress_s = now_s + kProgressSeconds;
    if (progress_) progress_(progress_now());
  }
}

PhaseResult PhaseRun::sum_up() const {
  PhaseResult result;
  double started_s = workers_[0]->started_s;
  double ended_s = workers_[0]->ended_s;
  uint64_t fingerprints = 0;
  for (const auto& worker : workers_) {
    started_s = std::min(started_s, worker->started_s);
    ended_s = std::max(ended_s, worker->ended_s);
    result.failed += worker->failed;
    result.scanned += worker->scanned;
    fingerprints += worker->fingerprints;
    for (size_t type = 0; type < kOperationTypes; ++type) {
      result.operations += worker->by_type[type].operations;
      result.by_type[type].operations += worker->by_type[type].operations;
      result.by_type[type].latency_ticks.merge(worker->by_type[type].latency_ticks);
    }
  }
  result.seconds = ended_s - started_s;
  result.complete = result.operations == plan_.operations() - warmup_;
  result.stream_hash = plan_.stream_hash(fingerprints);
  result.window_mops = window_mops_;
  return result;
}

}  // namespace

Histogram PhaseResult::latency_ticks() const {
  Histogram all;
  for (const TypeResult& type : by_type) all.merge(type.latency_ticks);
  return all;
}

PhaseResult run_phase(AnyIndex& index, const OperationPlan& plan, const PhaseOptions& options,
                      const ProgressSink& progress, const std::atomic<bool>& stop) {
  return PhaseRun(index, plan, options, progress, stop).run();
}

}  // namespace perdure::lab
