// What batches gain: 10 M records of two words, then lookups, inserts and upserts one by one and 16
// in a call, in turn, so that what else the machine does meets both. Counters are nanoseconds of
// the thread's processor time for each operation, medians of the turns: lookup_1, lookup_16 and so
// on.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/permutation.h"
#include "perdure/catalog.h"
#include "perdure/pool.h"

namespace perdure {
namespace {

constexpr uint64_t kRecords = 10'000'000;
constexpr uint64_t kTurns = 9;
constexpr uint64_t kOperations = 96'000;  // of a turn
constexpr uint64_t kBatch = 16;

double processor_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

class Subject {
 public:
  explicit Subject(AnyIndex& index) : index_(index) {}

  void insert(uint64_t count, uint64_t together) {
    each(
        count, together, [&](uint64_t) { return records_++; },
        [&](std::span<const AnyRecord> some) {
          if (together == 1) {
            index_.insert(some[0].key, some[0].value);
          } else {
            index_.multi_insert(some, std::span(flags_).first(some.size()));
          }
        });
  }
  void upsert(uint64_t count, uint64_t together) {
    each(
        count, together, [&](uint64_t) { return any(); },
        [&](std::span<const AnyRecord> some) {
          if (together == 1) {
            index_.upsert(some[0].key, some[0].value);
          } else {
            index_.multi_upsert(some);
          }
        });
  }
  void lookup(uint64_t count, uint64_t together) {
    each(
        count, together, [&](uint64_t) { return any(); },
        [&](std::span<const AnyRecord> some) {
          if (together == 1) {
            found_ += index_.lookup(some[0].key, values_[0]) ? 1 : 0;
            return;
          }
          keys_.clear();
          for (const AnyRecord& record : some) keys_.push_back(record.key);
          found_ += index_.multi_lookup(keys_, values_, flags_);
        });
  }
  uint64_t found() const { return found_; }

 private:
  uint64_t any() {
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    return (random_ >> 32) * records_ >> 32;
  }
  template <typename NumberAt, typename Work>
  void each(uint64_t count, uint64_t together, NumberAt number_at, Work work) {
    std::vector<AnyRecord> some;
    for (uint64_t i = 0; i < count; i += together) {
      some.clear();
      for (uint64_t j = 0; j < together; ++j) some.push_back({mix_word(number_at(i + j)), i + 1});
      work(some);
    }
  }

  AnyIndex& index_;
  uint64_t records_ = 0;
  uint64_t random_ = 1;
  uint64_t found_ = 0;
  std::vector<Datum> keys_;
  std::array<Value, kBatch> values_;
  std::array<bool, kBatch> flags_{};
};

void compare(benchmark::State& state, const std::string& structure) {
  const std::string path = "/dev/shm/perdure-batch-bench.pool";
  std::remove(path.c_str());
  PoolOptions options;
  options.capacity_bytes = uint64_t{2} << 30;
  options.reserve_bytes = uint64_t{3} << 29;
  options.force_domain = true;
  options.domain = Domain::kLine;
  Pool pool = Pool::create(path, options);
  {
    const auto index = catalog_entry(structure).create(pool, "t", Kind::kU64, Kind::kU64, {});
    Subject subject(*index);
    subject.insert(kRecords, kBatch);
    using Operations = void (Subject::*)(uint64_t, uint64_t);
    const std::pair<const char*, Operations> kinds[] = {
        {"lookup", &Subject::lookup}, {"insert", &Subject::insert}, {"upsert", &Subject::upsert}};
    for (auto _ : state) {
      for (const auto& [name, operations] : kinds) {
        std::array<std::vector<double>, 2> taken;
        for (uint64_t turn = 0; turn < 2 * kTurns; ++turn) {
          const double begin = processor_ns();
          (subject.*operations)(kOperations, turn % 2 == 0 ? 1 : kBatch);
          taken[turn % 2].push_back((processor_ns() - begin) / kOperations);
        }
        for (std::vector<double>& of : taken) std::sort(of.begin(), of.end());
        state.counters[std::string(name) + "_1"] = taken[0][kTurns / 2];
        state.counters[std::string(name) + "_16"] = taken[1][kTurns / 2];
      }
    }
    benchmark::DoNotOptimize(subject.found());
  }
  pool.close();
  std::remove(path.c_str());
}

const bool kRegistered = [] {
  for (const CatalogEntry& entry : catalog()) {
    benchmark::RegisterBenchmark(
        ("batches/" + std::string(entry.name)).c_str(),
        [name = std::string(entry.name)](benchmark::State& state) { compare(state, name); })
        ->Iterations(1)
        ->Unit(benchmark::kSecond);
  }
  return true;
}();

}  // namespace
}  // namespace perdure
