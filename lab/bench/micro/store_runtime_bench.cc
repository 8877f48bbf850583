// What a message to a worker and its answer cost: alone, in batches, after sleep, with more threads
// than processors, and with all work on the partitions of one worker.

#include <benchmark/benchmark.h>

#include <atomic>
#include <thread>
#include <vector>

#include "store/runtime/runtime.h"

namespace perdure::store {
namespace {

struct Add : Request {
  explicit Add(uint32_t number = 0) : Request(number, &execute) {}
  static void execute(Request& request) noexcept { ++static_cast<Add&>(request).value; }
  uint64_t value = 0;
};

// Work for about a microsecond.
struct Work : Request {
  explicit Work(uint32_t number = 0) : Request(number, &execute) {}
  static void execute(Request& request) noexcept {
    uint64_t x = request.partition + 1;
    for (int i = 0; i < 650; ++i) x = x * 6364136223846793005 + 1;
    benchmark::DoNotOptimize(x);
  }
};

RuntimeClient nobody;
constexpr uint32_t kForEver = 2'000'000'000;  // of a worker that spins: it never sleeps

// The calling thread on the last processor, since workers take the first ones.
void pin_to_last_processor() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(std::thread::hardware_concurrency() - 1, &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}
void unpin() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) CPU_SET(i, &all);
  ::sched_setaffinity(0, sizeof(all), &all);
}

// A call while both spin, and, with `asleep`, while the worker sleeps: the caller serves itself.
void store_runtime_ping_pong(benchmark::State& state) {
  const bool asleep = state.range(0) != 0;
  Runtime runtime({.workers = 1, .spin_ns = asleep ? 0 : kForEver, .pin = true}, nobody);
  pin_to_last_processor();
  Add add;
  for (auto unused : state) runtime.call(add);
  state.SetItemsProcessed(state.iterations());
  unpin();
}
BENCHMARK(store_runtime_ping_pong)->ArgName("asleep")->Arg(0)->Arg(1)->UseRealTime();

// Of one call of range(0) requests; time per call.
void store_runtime_batch(benchmark::State& state) {
  Runtime runtime({.workers = 1, .spin_ns = kForEver, .pin = true}, nobody);
  pin_to_last_processor();
  std::vector<Add> adds(state.range(0));
  std::vector<Request*> requests;
  for (uint32_t i = 0; i < adds.size(); ++i) {
    adds[i].partition = i % 64;
    requests.push_back(&adds[i]);
  }
  for (auto unused : state) runtime.call(requests);
  state.SetItemsProcessed(state.iterations() * state.range(0));
  unpin();
}
BENCHMARK(store_runtime_batch)->Arg(4)->Arg(16)->Arg(64)->UseRealTime();

// From the send to the start of what is sent to a worker that sleeps, on another processor: a
// request, which the caller then runs, and a task, for which the worker is woken.
using StampClock = std::chrono::steady_clock;

template <typename Send>
void send_to_sleeper(benchmark::State& state, Send send) {
  Runtime runtime({.workers = 1, .pin = true}, nobody);
  pin_to_last_processor();
  for (auto unused : state) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const auto begin = StampClock::now();
    const StampClock::time_point arrival = send(runtime);
    state.SetIterationTime(std::chrono::duration<double>(arrival - begin).count());
  }
  state.counters["sleeps"] =
      benchmark::Counter(static_cast<double>(runtime.statistics().workers[0].sleeps),
                         benchmark::Counter::kAvgIterations);
  unpin();
}

void store_runtime_call_asleep(benchmark::State& state) {
  struct Stamp : Request {
    Stamp() : Request(0, &execute) {}
    static void execute(Request& request) noexcept {
      static_cast<Stamp&>(request).time = StampClock::now();
    }
    StampClock::time_point time;
  };
  Stamp stamp;
  send_to_sleeper(state, [&](Runtime& runtime) {
    runtime.call(stamp);
    return stamp.time;
  });
}
BENCHMARK(store_runtime_call_asleep)->UseManualTime()->Iterations(2000);

void store_runtime_wake_up(benchmark::State& state) {
  send_to_sleeper(state, [](Runtime& runtime) {
    return runtime.run([]() -> Task<StampClock::time_point> { co_return StampClock::now(); }());
  });
}
BENCHMARK(store_runtime_wake_up)->UseManualTime()->Iterations(2000);

// range(0) threads send one request at a time to range(1) workers; time per request of all.
void store_runtime_many_threads(benchmark::State& state) {
  constexpr int kRounds = 2000;
  const auto threads = static_cast<uint32_t>(state.range(0));
  Runtime runtime({.workers = static_cast<uint32_t>(state.range(1))}, nobody);
  for (auto unused : state) {
    std::vector<std::jthread> clients;
    for (uint32_t t = 0; t < threads; ++t) {
      clients.emplace_back([&, t] {
        Add add;
        for (uint32_t i = 0; i < kRounds; ++i) {
          add.partition = (t + i) % 64;
          runtime.call(add);
        }
      });
    }
  }
  state.SetItemsProcessed(state.iterations() * threads * kRounds);
}
BENCHMARK(store_runtime_many_threads)
    ->ArgNames({"threads", "workers"})
    ->ArgsProduct({{1, 2, 8, 64}, {1, 2}})
    ->UseRealTime();

// Calls of 16 requests of a microsecond, of which all go to partitions that begin at worker 0.
void store_runtime_skewed(benchmark::State& state) {
  Runtime runtime({.workers = 2, .balance = state.range(0) != 0, .balance_interval_ms = 2}, nobody);
  std::vector<Work> works(16);
  std::vector<Request*> requests;
  for (uint32_t i = 0; i < works.size(); ++i) {
    works[i].partition = i * 2;
    requests.push_back(&works[i]);
  }
  for (auto unused : state) runtime.call(requests);
  state.SetItemsProcessed(state.iterations() * 16);
  const RuntimeStatistics statistics = runtime.statistics();
  state.counters["moved"] =
      static_cast<double>(statistics.workers[0].adopted + statistics.workers[1].adopted);
}
BENCHMARK(store_runtime_skewed)->ArgName("balance")->Arg(0)->Arg(1)->UseRealTime()->MinTime(1);

// A task that submits to its own worker's partition, and to another's.
void store_runtime_task(benchmark::State& state) {
  Runtime runtime({.workers = 2, .pin = true}, nobody);
  const auto partition = static_cast<uint32_t>(state.range(0));
  const auto loop = [](Runtime& here, uint32_t to, benchmark::State& rounds) -> Task<void> {
    Add add(to);
    add.wrote = false;
    for (auto unused : rounds) co_await here.submit(add);
  };
  runtime.run(loop(runtime, partition, state), 0);
}
BENCHMARK(store_runtime_task)->ArgName("worker")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace perdure::store
