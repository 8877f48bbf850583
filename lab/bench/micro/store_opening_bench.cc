// How soon a store serves after its process was killed: until open() returns, until the first
// partition is ready, and until all are. With 10 M records of 20 + 100 bytes, on tmpfs; each
// opening by a process of its own, which is killed, too.

#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/permutation.h"
#include "perdure/store.h"

namespace perdure {
namespace {

using Milliseconds = std::array<double, 4>;  // pool, open(), first partition, all

// Has a process do it that ends by SIGKILL once `work` tells something, with its store open.
using Tell = std::function<void(const Milliseconds&)>;
Milliseconds in_killed_process(const std::function<void(const Tell& tell)>& work) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    work([&](const Milliseconds& told) {
      if (::write(ends[1], told.data(), sizeof told) != sizeof told) std::abort();
      ::kill(::getpid(), SIGKILL);
    });
    std::abort();
  }
  ::close(ends[1]);
  Milliseconds told{};
  if (::read(ends[0], told.data(), sizeof told) != sizeof told) told = {};
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return told;
}

PoolOptions pool_options() {
  PoolOptions options;
  options.capacity_bytes = uint64_t{5} << 30;
  options.domain = Domain::kLine;
  options.force_domain = true;
  return options;
}

// A pool that a killed process has left.
class KilledStore {
 public:
  explicit KilledStore(StoreIndex index, uint64_t records)
      : path_(fmt::format("/dev/shm/perdure-opening-{}.pool", ::getpid())) {
    in_killed_process([&](const Tell& tell) {
      Pool pool = Pool::create(path_, pool_options());
      Store store = Store::create(pool, "s", {.index = index});
      std::string key(20, 'k');
      std::string value(100, 'v');
      for (uint64_t i = 0; i < records; ++i) {
        const uint64_t word = mix_word(i);
        std::memcpy(key.data(), &word, sizeof word);
        std::memcpy(value.data(), &word, sizeof word);
        store.put(key, value);
      }
      tell({});
    });
  }
  ~KilledStore() { std::filesystem::remove(path_); }
  KilledStore(const KilledStore&) = delete;
  KilledStore& operator=(const KilledStore&) = delete;

  Milliseconds open() const {
    return in_killed_process([&](const Tell& tell) {
      using Clock = std::chrono::steady_clock;
      const auto begin = Clock::now();
      const auto since = [&] {
        return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      };
      Milliseconds told{};
      Pool pool = Pool::open(path_, pool_options());
      told[0] = since();
      const Store store = Store::open(pool, "s", {.recovery_threads = 2, .serve_early = true});
      told[1] = since();
      const auto any_is_ready = [&] {
        for (uint32_t i = 0; i < store.partitions(); ++i) {
          if (store.is_ready(i)) return true;
        }
        return false;
      };
      while (!any_is_ready()) std::this_thread::sleep_for(std::chrono::microseconds(50));
      told[2] = since();
      store.wait_until_ready();
      told[3] = since();
      tell(told);  // not closed: the next one finds it as this one did
    });
  }

 private:
  std::string path_;
};

// Argument: a StoreIndex. Time: until the first partition serves; the counters are medians.
void store_opens_after_kill(benchmark::State& state) {
  const char* text = std::getenv("PERDURE_OPENING_RECORDS");
  const uint64_t records = text != nullptr ? std::strtoull(text, nullptr, 0) : 10'000'000;
  const KilledStore store(static_cast<StoreIndex>(state.range(0)), records);
  std::array<std::vector<double>, std::tuple_size_v<Milliseconds>> all;
  for (auto unused : state) {
    const Milliseconds told = store.open();
    for (size_t i = 0; i < all.size(); ++i) all[i].push_back(told[i]);
    state.SetIterationTime(told[2] / 1000);
  }
  constexpr const char* kNames[] = {"pool_ms", "open_ms", "first_ms", "all_ms"};
  for (size_t i = 0; i < all.size(); ++i) {
    std::ranges::sort(all[i]);
    state.counters[kNames[i]] = all[i][all[i].size() / 2];
  }
}
BENCHMARK(store_opens_after_kill)
    ->ArgName("index")
    ->Arg(static_cast<int>(StoreIndex::kHash))
    ->Arg(static_cast<int>(StoreIndex::kPm))
    ->Arg(static_cast<int>(StoreIndex::kOrdered))
    ->UseManualTime()
    ->Iterations(9)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace perdure
