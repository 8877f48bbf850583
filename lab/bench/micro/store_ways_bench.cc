// What the ways to a store cost, and what it does beside: calls in-line, to a worker, from tasks;
// writes beside a snapshot, with a log that is kept for a consumer, with eviction. 2 M records of
// 20 + 100 bytes on tmpfs, each of which is as likely to be asked for.

#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/permutation.h"
#include "perdure/store.h"

namespace perdure {
namespace {

constexpr uint64_t kRecords = 2'000'000;

std::string key_of(uint64_t i) {
  std::string key(20, 'k');
  const uint64_t word = mix_word(i);
  std::memcpy(key.data(), &word, sizeof word);
  return key;
}

// Numbers of records, in no order.
class Choice {
 public:
  std::string key() { return key_of(mix_word(++n_) % kRecords); }

 private:
  uint64_t n_ = 0;
};

// A pool with the records, made when it is first asked for.
class LoadedPool {
 public:
  LoadedPool() : path_(fmt::format("/dev/shm/perdure-ways-{}.pool", ::getpid())) {
    PoolOptions options;
    options.capacity_bytes = uint64_t{2} << 30;
    options.domain = Domain::kLine;
    options.force_domain = true;
    pool_.emplace(Pool::create(path_, options));
    Store store = Store::create(*pool_, "s");
    const std::string value(100, 'v');
    for (uint64_t i = 0; i < kRecords; ++i) store.put(key_of(i), value);
  }
  ~LoadedPool() {
    pool_.reset();
    std::filesystem::remove(path_);
  }
  LoadedPool(const LoadedPool&) = delete;
  LoadedPool& operator=(const LoadedPool&) = delete;

  static Store open(const StoreOptions& options) {
    static LoadedPool loaded;
    return Store::open(*loaded.pool_, "s", options);
  }

 private:
  std::string path_;
  std::optional<Pool> pool_;
};

void store_get(benchmark::State& state) {
  const Store store = LoadedPool::open({.workers = static_cast<uint32_t>(state.range(0))});
  Choice choice;
  std::string value;
  for (auto unused : state) benchmark::DoNotOptimize(store.get(choice.key(), value));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(store_get)->ArgName("workers")->Arg(0)->Arg(1)->UseRealTime();

void store_multi_get_16(benchmark::State& state) {
  const Store store = LoadedPool::open({.workers = static_cast<uint32_t>(state.range(0))});
  Choice choice;
  std::vector<std::string> keys(16);
  std::vector<std::string_view> views(16);
  std::vector<std::optional<std::string>> values(16);
  for (auto unused : state) {
    for (size_t i = 0; i < keys.size(); ++i) views[i] = keys[i] = choice.key();
    store.multi_get(views, values);
  }
  state.SetItemsProcessed(state.iterations() * 16);
}
BENCHMARK(store_multi_get_16)->ArgName("workers")->Arg(0)->Arg(1)->UseRealTime();

void store_put(benchmark::State& state) {
  Store store = LoadedPool::open({.workers = static_cast<uint32_t>(state.range(0))});
  Choice choice;
  const std::string value(100, 'w');
  for (auto unused : state) store.put(choice.key(), value);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(store_put)->ArgName("workers")->Arg(0)->Arg(1)->UseRealTime();

// Plain calls of range(1) threads at the same time, half of them writes.
void store_many_threads(benchmark::State& state) {
  constexpr uint64_t kCalls = 2000;
  Store store = LoadedPool::open({.workers = static_cast<uint32_t>(state.range(0))});
  const auto threads = static_cast<uint64_t>(state.range(1));
  uint64_t first = 0;
  for (auto unused : state) {
    std::vector<std::jthread> callers;
    for (uint64_t t = 0; t < threads; ++t, first += kCalls) {
      callers.emplace_back([&store, first] {
        std::string value(100, 'w');
        for (uint64_t i = first; i < first + kCalls; ++i) {
          const std::string key = key_of(mix_word(i) % kRecords);
          if (i % 2 == 0) {
            benchmark::DoNotOptimize(store.get(key, value));
          } else {
            store.put(key, value);
          }
        }
      });
    }
  }
  state.SetItemsProcessed(state.iterations() * threads * kCalls);
}
BENCHMARK(store_many_threads)
    ->ArgNames({"workers", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2, 8, 64}})
    ->UseRealTime();

constexpr uint32_t kCallsOfTask = 1000;

Task<void> get_some(const Store& store, uint64_t first, std::atomic<uint32_t>& left) {
  for (uint64_t i = 0; i < kCallsOfTask; ++i) {
    benchmark::DoNotOptimize(co_await store.async_get(key_of(mix_word(first + i) % kRecords)));
  }
  if (left.fetch_sub(1) == 1) left.notify_one();
}

Task<void> put_some(Store& store, uint64_t first, std::atomic<uint32_t>& left) {
  for (uint64_t i = 0; i < kCallsOfTask; ++i) {
    co_await store.async_put(key_of(mix_word(first + i) % kRecords), std::string(100, 'w'));
  }
  if (left.fetch_sub(1) == 1) left.notify_one();
}

// range(0) tasks at the same time, on one worker.
template <typename Begin>
void run_tasks(benchmark::State& state, Begin begin) {
  Store store = LoadedPool::open({.workers = 1});
  const auto tasks = static_cast<uint32_t>(state.range(0));
  uint64_t first = 0;
  for (auto unused : state) {
    std::atomic<uint32_t> left{tasks};
    for (uint32_t i = 0; i < tasks; ++i, first += kCallsOfTask)
      store.spawn(begin(store, first, left));
    while (const uint32_t now = left.load()) left.wait(now);
  }
  state.SetItemsProcessed(state.iterations() * tasks * kCallsOfTask);
}

void store_tasks_get(benchmark::State& state) { run_tasks(state, get_some); }
BENCHMARK(store_tasks_get)->ArgName("tasks")->Arg(1)->Arg(16)->UseRealTime();
void store_tasks_put(benchmark::State& state) { run_tasks(state, put_some); }
BENCHMARK(store_tasks_put)->ArgName("tasks")->Arg(1)->Arg(16)->UseRealTime();

// A snapshot lives all the time; a new one is taken after so many writes.
void store_put_beside_snapshot(benchmark::State& state) {
  Store store = LoadedPool::open({});
  std::optional<Store::Snapshot> snapshot;
  Choice choice;
  const std::string value(100, 'w');
  const int64_t each = state.range(0);
  int64_t n = 0;
  for (auto unused : state) {
    if (n++ % each == 0) {
      snapshot.reset();
      snapshot.emplace(store.snapshot());
    }
    store.put(choice.key(), value);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(store_put_beside_snapshot)
    ->ArgName("writes")
    ->Arg(1'000)
    ->Arg(100'000)
    ->Arg(1'000'000)
    ->UseRealTime();

// A consumer acknowledges all after so many writes.
void store_put_with_consumer(benchmark::State& state) {
  Store store = LoadedPool::open({});
  store.add_consumer("c");
  Choice choice;
  const std::string value(100, 'w');
  const int64_t each = state.range(0);
  int64_t n = 0;
  for (auto unused : state) {
    store.put(choice.key(), value);
    if (++n % each != 0) continue;
    for (uint32_t i = 0; i < store.partitions(); ++i) {
      store.acknowledge("c", i, store.next_change(i));
    }
  }
  store.remove_consumer("c");
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(store_put_with_consumer)->ArgName("writes")->Arg(100'000)->Arg(1'000'000)->UseRealTime();

// Of keys of which three quarters are not there: the store evicts as many as come. Goes last, for
// it leaves fewer records.
void store_put_as_cache(benchmark::State& state) {
  Store store = LoadedPool::open({.bytes_max = uint64_t{256} << 20, .evict = true});
  const std::string value(100, 'w');
  uint64_t n = 0;
  for (auto unused : state) store.put(key_of(mix_word(++n) % (4 * kRecords)), value);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(store_put_as_cache)->UseRealTime();

}  // namespace
}  // namespace perdure
