#include "store/runtime/runtime.h"

#include <gtest/gtest.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "perdure/error.h"
#include "store/runtime/ring.h"
#include "support/scale.h"

namespace perdure::store {
namespace {

constexpr uint32_t kSlow =
    test::kUnderThreadSanitizer || test::kUnderAddressSanitizer || test::kWithPauses ? 10 : 1;
constexpr uint32_t kNobody = Runtime::kAnyWorker;

// Partitions that are counters, without any synchronisation: the thread sanitizer sees two workers
// at one.
class Counters : public RuntimeClient {
 public:
  explicit Counters(uint32_t partitions = 64) : counters_(partitions) {}

  struct Counter {
    uint32_t owner = kNobody;
    uint64_t value = 0;
    uint64_t ended = 0;  // its value at the last end of a batch
  };

  void adopt(uint32_t partition, uint32_t worker) noexcept override {
    EXPECT_EQ(counters_[partition].owner, kNobody);
    EXPECT_EQ(Runtime::current_worker(), worker);
    counters_[partition].owner = worker;
  }
  void release(uint32_t partition, uint32_t worker) noexcept override {
    EXPECT_EQ(counters_[partition].owner, worker);
    EXPECT_EQ(counters_[partition].ended, counters_[partition].value);
    counters_[partition].owner = kNobody;
  }
  void end_of_batch(uint32_t worker) noexcept override {
    for (Counter* const counter : written_[worker]) counter->ended = counter->value;
    written_[worker].clear();
  }

  void write(uint32_t partition) {
    Counter& counter = counters_[partition];
    EXPECT_EQ(counter.owner, Runtime::current_worker());
    ++counter.value;
    written_[counter.owner].push_back(&counter);
  }
  Counter& at(uint32_t partition) { return counters_[partition]; }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const Counter& counter : counters_) sum += counter.value;
    return sum;
  }

 private:
  std::vector<Counter> counters_;
  std::array<std::vector<Counter*>, 16> written_;
};

// Adds one to the counter of its partition and notes the sum.
struct Increment : Request {
  Increment(Counters& all, uint32_t number) : Request(number, &execute), counters(&all) {}
  static void execute(Request& request) noexcept {
    auto& self = static_cast<Increment&>(request);
    self.counters->write(self.partition);
    self.sum = self.counters->at(self.partition).value;
    self.worker = Runtime::current_worker();
  }
  Counters* counters;
  uint64_t sum = 0;
  uint32_t worker = kNobody;
};

struct Read : Request {
  Read(Counters& all, uint32_t number) : Request(number, &execute), counters(&all) {}
  static void execute(Request& request) noexcept {
    auto& self = static_cast<Read&>(request);
    self.value = self.counters->at(self.partition).value;
    self.wrote = false;
  }
  Counters* counters;
  uint64_t value = 0;
};

// Notes in which order its steps ahead and it itself come: "a0", "a1", ..., "a!".
struct Noted : Request {
  Noted(std::vector<std::string>& all, char its_name, uint32_t number)
      : Request(number, &execute), notes(&all), name(its_name) {
    ahead = &look_ahead;
    wrote = false;
  }
  static void look_ahead(Request& request, int step) noexcept {
    auto& self = static_cast<Noted&>(request);
    self.notes->push_back(std::string(1, self.name) + std::to_string(step));
  }
  static void execute(Request& request) noexcept {
    auto& self = static_cast<Noted&>(request);
    self.notes->push_back(std::string(1, self.name) + "!");
  }
  std::vector<std::string>* notes;
  char name;
};

struct Failing : Request {
  explicit Failing(uint32_t number) : Request(number, &execute) {}
  static void execute(Request& request) noexcept {
    request.error = std::make_exception_ptr(std::runtime_error("asked to fail"));
  }
};

std::vector<Request*> pointers(std::deque<Increment>& increments) {
  std::vector<Request*> list;
  for (Increment& increment : increments) list.push_back(&increment);
  return list;
}

TEST(Ring, IsFullAtItsCapacityAndKeepsTheOrder) {
  for (const uint32_t capacity : {1U, 2U, 4U, 64U}) {
    Ring<int> ring(capacity);
    std::vector<int> items(capacity + 1);
    for (int round = 0; round < 10; ++round) {
      EXPECT_TRUE(ring.empty());
      for (uint32_t i = 0; i < capacity; ++i) ASSERT_TRUE(ring.push(items[i]));
      EXPECT_FALSE(ring.push(items[capacity]));
      int* first = nullptr;
      ASSERT_EQ(ring.pop({&first, 1}), 1U);
      EXPECT_EQ(first, items.data());
      EXPECT_TRUE(ring.push(items[capacity]));
      std::vector<int*> rest(capacity + 5);
      ASSERT_EQ(ring.pop(rest), capacity);
      for (uint32_t i = 0; i < capacity; ++i) EXPECT_EQ(rest[i], &items[i + 1]);
    }
  }
}

TEST(Runtime, RunsARequestOnTheWorkerOfItsPartition) {
  Counters counters;
  Runtime runtime({.workers = 3}, counters);
  for (uint32_t p = 0; p < 64; ++p) {
    Increment increment(counters, p);
    runtime.call(increment);
    EXPECT_EQ(increment.sum, 1U);
    EXPECT_EQ(increment.worker, p % 3);
  }
  const RuntimeStatistics statistics = runtime.statistics();
  EXPECT_EQ(statistics.workers[0].requests, 22U);
  EXPECT_EQ(statistics.partitions[5].requests, 1U);
  EXPECT_EQ(statistics.partitions[5].worker, 2U);
}

TEST(Runtime, RunsTheRequestsOfACallInTheirOrder) {
  Counters counters(4);
  Runtime runtime({.workers = 2, .partitions = 4}, counters);
  std::deque<Increment> increments;
  for (uint32_t i = 0; i < 4000; ++i) increments.emplace_back(counters, i % 4);
  runtime.call(pointers(increments));
  for (uint32_t i = 0; i < 4000; ++i) ASSERT_EQ(increments[i].sum, i / 4 + 1);
  runtime.call(std::span<Request* const>{});
}

TEST(Runtime, KeepsTheOrderOfACallWhileItsPartitionIsMovedOn) {
  constexpr uint32_t kWorkers = 4;
  for (const uint32_t ring_size : {2U, 16U}) {
    Counters counters(1);
    Runtime runtime({.workers = kWorkers, .partitions = 1, .ring_size = ring_size}, counters);
    uint64_t before = 0;
    for (uint32_t round = 0; round < 400 / kSlow; ++round) {
      std::deque<Increment> increments;
      for (uint32_t i = 0; i < 300; ++i) increments.emplace_back(counters, 0);
      // One step each call: it never comes back to a worker that it has left.
      std::jthread mover([&] { runtime.move(0, (round + 1) % kWorkers); });
      runtime.call(pointers(increments));
      for (const Increment& increment : increments) ASSERT_EQ(increment.sum, ++before);
    }
  }
}

// Two workers whose rings to each other are always full. Tasks of one worker, one partition.
TEST(Task, KeepsTheOrderOfItsWorkerThroughFullRings) {
  constexpr uint32_t kTasks = 100;
  constexpr uint32_t kRounds = 300 / kSlow;
  Counters counters(2);
  std::optional<Runtime> running(
      std::in_place, RuntimeOptions{.workers = 2, .partitions = 2, .ring_size = 1, .batch = 7},
      counters);
  Runtime& runtime = *running;
  std::array<std::vector<uint64_t>, 2> sums;
  for (uint32_t home = 0; home < 2; ++home) {
    for (uint32_t i = 0; i < kTasks; ++i) {
      runtime.spawn(
          [](Runtime& here, Counters& all, std::vector<uint64_t>& order) -> Task<void> {
            const uint32_t other = 1 - Runtime::current_worker();
            for (uint32_t round = 0; round < kRounds; ++round) {
              Increment increment(all, other);
              co_await here.submit(increment);
              order.push_back(increment.sum);
            }
          }(runtime, counters, sums[home]),
          home);
    }
  }
  running.reset();  // waits for them
  for (const std::vector<uint64_t>& order : sums) {
    ASSERT_EQ(order.size(), kTasks * kRounds);
    for (uint64_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i + 1);
  }
}

TEST(Runtime, HoldsBackCallersWhenRingsAreFull) {
  for (const uint32_t ring_size : {1U, 2U, 8U}) {
    Counters counters;
    Runtime runtime({.workers = 2, .ring_size = ring_size, .batch = 3}, counters);
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (uint32_t round = 0; round < 20; ++round) {
          std::deque<Increment> increments;
          for (uint32_t i = 0; i < 200; ++i) increments.emplace_back(counters, i % 64);
          runtime.call(pointers(increments));
        }
      });
    }
    threads.clear();
    EXPECT_EQ(counters.total(), 4U * 20 * 200);
  }
}

TEST(Runtime, ServesMoreThreadsThanItHasSlotsFor) {
  constexpr uint32_t kThreads = 100;
  constexpr uint32_t kRounds = 300 / kSlow;
  Counters counters;
  Runtime runtime({.workers = 2, .ring_size = 4, .client_slots = 8}, counters);
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kRounds; ++i) {
        Increment increment(counters, (t + i) % 64);
        runtime.call(increment);
      }
      std::deque<Increment> increments;
      for (uint32_t i = 0; i < 50; ++i) increments.emplace_back(counters, t % 64);
      runtime.call(pointers(increments));
    });
  }
  threads.clear();
  EXPECT_EQ(counters.total(), kThreads * (kRounds + 50));
}

TEST(Runtime, TakesThreadsThatComeAndGo) {
  Counters counters;
  for (int runtimes = 0; runtimes < 3; ++runtimes) {
    Runtime runtime({.workers = 1, .client_slots = 2}, counters);
    RuntimeClient nobody;
    Runtime other({.workers = 1, .partitions = 1, .client_slots = 2}, nobody);
    for (uint32_t t = 0; t < 100; ++t) {
      std::jthread([&] {
        Increment increment(counters, t % 64);
        runtime.call(increment);
        Request nothing(0, [](Request&) noexcept {});
        other.call(nothing);
        runtime.call(increment);
      });
    }
  }
  EXPECT_EQ(counters.total(), 600U);
}

// Every wait ends in the kernel, on both sides.
TEST(Runtime, LosesNoWakeUp) {
  constexpr uint32_t kRounds = 200'000 / kSlow;
  Counters counters(2);
  Runtime runtime({.workers = 2, .partitions = 2, .spin_ns = 0}, counters);
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Increment increment(counters, t);
      Increment other(counters, 1 - t);
      const std::array<Request*, 2> both{&increment, &other};
      for (uint32_t i = 0; i < kRounds / 4; ++i) {
        runtime.call(increment);
        runtime.call(both);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(counters.total(), kRounds / 2 * 3);
  EXPECT_GT(runtime.statistics().workers[0].sleeps, 0U);
}

// Nobody has to wake a worker for a call, and a caller that has its turn is the worker.
TEST(Runtime, CallersServeWorkersThatSleep) {
  Counters counters;
  Runtime runtime({.workers = 2, .spin_ns = 1000}, counters);
  uint64_t served = 0;
  for (uint32_t round = 0; served < 20; ++round) {
    ASSERT_LT(round, 10'000U);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const uint64_t wakes_before = runtime.statistics().workers[1].sleeps;
    Increment increment(counters, 1);
    runtime.call(increment);
    ASSERT_EQ(increment.sum, round + 1);
    ASSERT_EQ(increment.worker, 1U);
    ASSERT_EQ(counters.at(1).ended, increment.sum);
    EXPECT_EQ(Runtime::current_worker(), kNobody);
    const uint64_t served_before =
        std::exchange(served, runtime.statistics().workers[1].served_by_callers);
    if (served != served_before) {
      EXPECT_EQ(runtime.statistics().workers[1].sleeps, wakes_before);
    }
  }
}

// What a caller finds for a sleeping worker may be a task's: that one goes on in the worker's own
// thread, which is woken for it.
TEST(Task, StaysInItsWorkersThreadWhileCallersServe) {
  constexpr uint32_t kRounds = 3000 / kSlow;
  Counters counters(2);
  Runtime runtime({.workers = 2, .partitions = 2, .spin_ns = 0}, counters);
  std::array<std::jthread, 2> callers;
  for (uint32_t t = 0; t < 2; ++t) {
    callers[t] = std::jthread([&, t](const std::stop_token& stop) {
      for (uint32_t i = t; !stop.stop_requested(); ++i) {
        Increment increment(counters, i % 2);
        runtime.call(increment);
      }
    });
  }
  std::vector<std::jthread> runners;
  for (uint32_t home = 0; home < 2; ++home) {
    runners.emplace_back([&, home] {
      for (uint32_t i = 0; i < 4; ++i) {
        runtime.run(
            [](Runtime& here, Counters& all, uint32_t mine) -> Task<void> {
              const std::thread::id thread = std::this_thread::get_id();
              for (uint32_t round = 0; round < kRounds / 4; ++round) {
                Increment increment(all, 1 - mine);
                co_await here.submit(increment);
                EXPECT_EQ(std::this_thread::get_id(), thread);
                EXPECT_EQ(Runtime::current_worker(), mine);
                EXPECT_EQ(increment.worker, 1 - mine);
              }
            }(runtime, counters, home),
            home);
      }
    });
  }
  runners.clear();
  for (std::jthread& caller : callers) caller = {};
  uint64_t served = 0;
  for (const WorkerStatistics& worker : runtime.statistics().workers) {
    served += worker.served_by_callers;
  }
  EXPECT_GT(served, 0U);
}

// Nor after work that has ended long since, and with the balancer, too.
TEST(Runtime, IdleWorkersTakeNoProcessorTime) {
  const auto busy_ms = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
  };
  Counters counters;
  Runtime runtime({.workers = 4, .balance = true}, counters);
  for (uint32_t i = 0; i < 1000; ++i) {
    Increment increment(counters, i % 64);
    runtime.call(increment);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = busy_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_LT(busy_ms() - before, 20 * kSlow);  // of 1600 of the workers
}

// The sender does not sleep: its next message comes when the worker is about to.
TEST(Runtime, LosesNoWakeUpWhileAWorkerFallsAsleep) {
  constexpr uint32_t kRounds = 200'000 / kSlow;
  Counters counters;
  std::atomic<uint32_t> done = 0;
  Runtime runtime({.workers = 1, .spin_ns = 0}, counters);
  for (uint32_t i = 1; i <= kRounds; ++i) {
    runtime.spawn([](std::atomic<uint32_t>& told, uint32_t value) -> Task<void> {
      told = value;
      co_return;
    }(done, i));
    for (uint32_t spins = 0; done != i; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
    // Between none and about a microsecond, so that all moments of the way to sleep are met.
    for (uint32_t n = 0; n < i * 7919 % 512; ++n)
      std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

TEST(Runtime, CompletesARequestOnlyAfterTheEndOfItsBatch) {
  Counters counters;
  Runtime runtime({.workers = 2}, counters);
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 10'000 / kSlow; ++i) {
        Increment increment(counters, t);  // of no other thread
        runtime.call(increment);
        ASSERT_EQ(counters.at(t).ended, increment.sum);
      }
    });
  }
}

TEST(Runtime, MovesPartitionsUnderLoad) {
  constexpr uint32_t kPartitions = 8;
  constexpr uint32_t kRounds = 2000 / kSlow;
  for (const uint32_t ring_size : {1U, 256U}) {
    Counters counters(kPartitions);
    Runtime runtime({.workers = 3, .partitions = kPartitions, .ring_size = ring_size}, counters);
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t i = 0; i < kRounds; ++i) {
          std::deque<Increment> increments;
          for (uint32_t n = 0; n < 8; ++n) increments.emplace_back(counters, (t + i + n / 2) % 8);
          runtime.call(pointers(increments));
        }
      });
    }
    for (uint32_t m = 0; m < 2; ++m) {
      threads.emplace_back([&, m] {
        for (uint32_t i = 0; i < kRounds; ++i) runtime.move((i + m * 5) % kPartitions, (i / 3) % 3);
      });
    }
    threads.clear();
    EXPECT_EQ(counters.total(), 4U * kRounds * 8);
    uint64_t moved = 0;
    for (const WorkerStatistics& worker : runtime.statistics().workers) moved += worker.adopted;
    EXPECT_GT(moved, 0U);
  }
}

TEST(Runtime, MoveReturnsWhenThePartitionIsThere) {
  Counters counters;
  Runtime runtime({.workers = 3}, counters);
  for (uint32_t i = 0; i < 1000; ++i) {
    runtime.move(7, i % 3);
    EXPECT_EQ(runtime.statistics().partitions[7].worker, i % 3);
    Increment increment(counters, 7);
    runtime.call(increment);
    ASSERT_EQ(increment.worker, i % 3);
  }
}

TEST(Balancer, SpreadsWhatOneWorkerHas) {
  struct Work : Request {
    explicit Work(uint32_t number) : Request(number, &execute) {}
    static void execute(Request&) noexcept {
      for (int i = 0; i < 100'000; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  };
  Counters counters(8);
  Runtime runtime({.workers = 2, .partitions = 8, .balance = true, .balance_interval_ms = 2},
                  counters);
  std::deque<Work> works;
  std::vector<Request*> requests;
  for (uint32_t p = 0; p < 8; p += 2) requests.push_back(&works.emplace_back(p));
  ASSERT_EQ(runtime.statistics().workers[1].adopted, 0U);
  while (runtime.statistics().workers[1].adopted == 0) runtime.call(requests);
}

Task<uint64_t> add_at(Runtime& runtime, Counters& counters, uint32_t partition) {
  const uint32_t home = Runtime::current_worker();
  Increment increment(counters, partition);
  co_await runtime.submit(increment);
  EXPECT_EQ(Runtime::current_worker(), home);
  EXPECT_EQ(increment.worker, partition % 3);
  co_return increment.sum;
}

Task<uint64_t> add_everywhere(Runtime& runtime, Counters& counters, uint32_t partitions) {
  uint64_t sum = 0;
  for (uint32_t p = 0; p < partitions; ++p) {
    sum += co_await add_at(runtime, counters, p);
    co_await runtime.yield();
  }
  co_return sum;
}

TEST(Task, RunsRequestsOnOtherWorkersAndComesBack) {
  Counters counters;
  Runtime runtime({.workers = 3}, counters);
  for (uint32_t round = 1; round < 100; ++round) {
    for (uint32_t worker = 0; worker < 3; ++worker) {
      runtime.run(add_everywhere(runtime, counters, 64), worker);
    }
  }
  EXPECT_EQ(runtime.run(add_everywhere(runtime, counters, 10)), 99U * 3 * 10 + 10);
}

const std::vector<std::string> kTwoTogether = {"a0", "b0", "a1", "b1", "a2", "b2",
                                               "a3", "b3", "a4", "b4", "a!", "b!"};

TEST(Runtime, LooksAheadForAllOfACallBeforeItRunsOne) {
  Counters counters;
  Runtime runtime({.workers = 1}, counters);
  std::vector<std::string> notes;
  Noted a(notes, 'a', 1);
  Noted b(notes, 'b', 2);
  runtime.call(std::vector<Request*>{&a, &b});
  EXPECT_EQ(notes, kTwoTogether);
  notes.clear();
  runtime.call(a);
  EXPECT_EQ(notes, (std::vector<std::string>{"a!"}));
}

// Of two tasks that are ready both requests are looked ahead for; of one alone, its request runs at
// once.
TEST(Task, LooksAheadForRequestsOfOthersThatAreReady) {
  Counters counters;
  Runtime runtime({.workers = 1}, counters);
  std::vector<std::string> notes;
  const auto ask = [&](char name, int times) -> Task<void> {
    for (int i = 0; i < times; ++i) {
      Noted request(notes, name, 1);
      co_await runtime.submit(request);
    }
  };
  const auto both = [&]() -> Task<void> {  // on the worker, so that neither begins before the other
    runtime.spawn(ask('a', 1));
    runtime.spawn(ask('b', 1));
    co_return;
  };
  runtime.run(both());
  runtime.wait_for_spawned();
  EXPECT_EQ(notes, kTwoTogether);
  notes.clear();
  runtime.run(ask('a', 2));
  EXPECT_EQ(notes, (std::vector<std::string>{"a!", "a!"}));
}

TEST(Task, RunsManyAtOnceThroughTinyRings) {
  Counters counters;
  {
    Runtime runtime({.workers = 3, .ring_size = 1, .batch = 2}, counters);
    for (uint32_t i = 0; i < 300; ++i) {
      runtime.spawn([](Runtime& here, Counters& all) -> Task<void> {
        co_await add_everywhere(here, all, 64);
      }(runtime, counters));
    }
  }  // waits for them
  EXPECT_EQ(counters.total(), 300U * 64);
}

TEST(Task, SurvivesMovesOfItsPartitions) {
  Counters counters(6);
  std::optional<Runtime> running(
      std::in_place, RuntimeOptions{.workers = 3, .partitions = 6, .ring_size = 4}, counters);
  Runtime& runtime = *running;
  constexpr uint32_t kRounds = 2000 / kSlow;
  for (uint32_t i = 0; i < 20; ++i) {
    runtime.spawn([](Runtime& here, Counters& all) -> Task<void> {
      for (uint32_t round = 0; round < kRounds; ++round) {
        Increment increment(all, round % 6);
        co_await here.submit(increment);
        Read read(all, round % 6);
        co_await here.submit(read);
        EXPECT_GE(read.value, increment.sum);
      }
    }(runtime, counters));
  }
  for (uint32_t i = 0; i < kRounds; ++i) runtime.move(i % 6, (i / 6) % 3);
  running.reset();  // waits for them
  EXPECT_EQ(counters.total(), 20U * kRounds);
}

TEST(Task, SeesOnlyWhatABatchHasEnded) {
  Counters counters(1);
  Runtime runtime({.workers = 1, .partitions = 1}, counters);
  const auto reader = [](Runtime& here, Counters& all) -> Task<uint64_t> {
    uint64_t waits = 0;
    for (uint32_t i = 0; i < 5000; ++i) {
      const uint64_t batches = here.statistics().workers[0].batches;
      Read read(all, 0);
      co_await here.submit(read);
      EXPECT_LE(read.value, all.at(0).ended);
      waits += here.statistics().workers[0].batches - batches;
      co_await here.yield();
    }
    co_return waits;
  };
  EXPECT_EQ(runtime.run(reader(runtime, counters)), 0U) << "nothing is written: no read waits";
  // A writer takes turns with the reader: what it has just written, the reader waits for.
  const auto beside_writer = [&](Runtime& here, Counters& all) -> Task<uint64_t> {
    here.spawn([](Runtime& there, Counters& written) -> Task<void> {
      Increment increment(written, 0);
      for (uint32_t i = 0; i < 1000; ++i) co_await there.submit(increment);
    }(here, all));
    co_await here.yield();
    co_return co_await reader(here, all);
  };
  EXPECT_GT(runtime.run(beside_writer(runtime, counters)), 0U);
}

Task<int> throws_after(Runtime& runtime, uint32_t partition) {
  co_await runtime.yield();
  Failing failing(partition);
  co_await runtime.submit(failing);
  co_return 1;
}

Task<std::string> catches(Runtime& runtime, uint32_t partition) {
  try {
    co_await throws_after(runtime, partition);
  } catch (const std::runtime_error& error) {
    co_return error.what();
  }
  co_return "nothing";
}

TEST(Errors, ComeOutWhereSomebodyWaits) {
  Counters counters;
  Runtime runtime({.workers = 2}, counters);
  Failing failing(1);
  EXPECT_THROW(runtime.call(failing), std::runtime_error);
  Increment increment(counters, 0);
  Failing other(0);
  const std::array<Request*, 2> both{&increment, &other};
  runtime.call(both);
  EXPECT_EQ(increment.sum, 1U);
  EXPECT_THROW(other.rethrow_error(), std::runtime_error);
  for (const uint32_t partition : {0U, 1U}) {
    EXPECT_THROW(runtime.run(throws_after(runtime, partition), 0), std::runtime_error);
    EXPECT_EQ(runtime.run(catches(runtime, partition), 0), "asked to fail");
  }
}

TEST(Errors, OptionsOutOfRangeAreRefused) {
  Counters counters;
  for (const RuntimeOptions& options :
       {RuntimeOptions{.workers = 0}, RuntimeOptions{.partitions = 0},
        RuntimeOptions{.ring_size = 3}, RuntimeOptions{.ring_size = 0},
        RuntimeOptions{.batch = 0}}) {
    EXPECT_THROW(Runtime(options, counters), Error);
  }
}

TEST(Runtime, FinishesWhatWasSpawnedBeforeItEnds) {
  for (uint32_t round = 0; round < 200 / kSlow; ++round) {
    Counters counters;
    {
      Runtime runtime({.workers = 2, .spin_ns = round % 2 == 0 ? 0U : 20'000U}, counters);
      for (uint32_t i = 0; i < 20; ++i) {
        runtime.spawn([](Runtime& here, Counters& all, uint32_t p) -> Task<void> {
          Increment increment(all, p);
          co_await here.submit(increment);
          // And a task that a task leaves behind.
          here.spawn([](Runtime& there, Counters& counted, uint32_t q) -> Task<void> {
            Increment another(counted, q);
            co_await there.submit(another);
          }(here, all, p + 1));
        }(runtime, counters, i));
      }
    }
    ASSERT_EQ(counters.total(), 40U);
  }
}

TEST(Runtime, BeginsAgainWithTheSamePartitions) {
  Counters counters;
  for (uint32_t round = 0; round < 50; ++round) {
    Runtime runtime({.workers = 1 + round % 4}, counters);
    runtime.move(round, round % runtime.workers());
    for (uint32_t p = 0; p < 64; ++p) {
      Increment increment(counters, p);
      runtime.call(increment);
      ASSERT_EQ(increment.sum, round + 1);
    }
  }
  for (uint32_t p = 0; p < 64; ++p) EXPECT_EQ(counters.at(p).owner, kNobody);
}

TEST(Runtime, WorksInTheBackgroundWhenIdle) {
  struct Background : RuntimeClient {
    bool idle(uint32_t /*worker*/) noexcept override {
      const uint32_t before = left.load();
      if (before == 0) return false;
      left = before - 1;
      left.notify_all();
      return true;
    }
    std::atomic<uint32_t> left = 1000;
  };
  Background background;
  Runtime runtime({.workers = 1}, background);
  for (uint32_t left = 0; (left = background.left) != 0;) background.left.wait(left);
}

}  // namespace
}  // namespace perdure::store
