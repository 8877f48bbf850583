// Several threads on one structure.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/complaints.h"
#include "support/linearizability.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// The clock of histories. Relaxed: it must not order the accesses of the threads that it observes,
// or the thread sanitizer would not see races between them. On x86 the instruction is a full fence.
class Clock {
 public:
  uint64_t tick() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const uint64_t now = time_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return now;
  }

 private:
  std::atomic<uint64_t> time_{1};
};

class Concurrent : public ScenarioTest {};

// Threads that write and read the same few keys in short rounds; after each the histories are
// judged. Other keys are written meanwhile, so that records move under the readers' feet.
class ContendedRounds {
 public:
  static constexpr uint32_t kThreads = 4;
  static constexpr uint64_t kKeys = 6;
  static constexpr uint64_t kOperations = 600;  // of a thread in a round, at most kEventsMax in all
  static constexpr uint64_t kOtherKeys = 400;

  ContendedRounds(TypedIndex index, uint64_t rounds, uint64_t seed)
      : index_(index), rounds_(rounds), seed_(seed), initial_(kKeys), histories_(kThreads) {}

  std::string run() {
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, t] {
        Random random(seed_ + t);
        for (uint64_t round = 0; round < rounds_; ++round) {
          barrier_.arrive_and_wait();
          complaints_.catch_in([&] { play(t, random); });
          barrier_.arrive_and_wait();
        }
      });
    }
    for (uint64_t round = 0; round < rounds_; ++round) {
      barrier_.arrive_and_wait();
      barrier_.arrive_and_wait();
      complaints_.catch_in([&] { judge(round); });
    }
    for (std::thread& thread : threads) thread.join();
    return complaints_.text();
  }

 private:
  using History = std::vector<std::vector<Event>>;  // of each key

  void play(uint32_t thread, Random& random) {
    histories_[thread].assign(kKeys, {});
    for (uint64_t i = 0; i < kOperations; ++i) {
      if (random.chance(25)) {
        index_.upsert(kKeys + random.below(kOtherKeys), random.below(1 << 20));
      }
      const uint64_t key = random.chance(40) ? 0 : random.below(kKeys);
      const auto call = static_cast<Call>(random.below(7));
      histories_[thread][key].push_back(perform(call, key, random.next() >> 1));
    }
  }

  Event perform(Call call, uint64_t key, uint64_t value) {
    Event event{call, true, value};
    // What is there, most of the time, unless another thread is faster.
    if (call >= Call::kExchange) event.expected = index_.lookup(key).value_or(value + 1);
    event.invoked = clock_.tick();
    switch (call) {
      case Call::kInsert:
        event.result = index_.insert(key, value);
        break;
      case Call::kUpdate:
        event.result = index_.update(key, value);
        break;
      case Call::kUpsert:
        index_.upsert(key, value);
        break;
      case Call::kRemove:
        event.result = index_.remove(key);
        break;
      case Call::kLookup: {
        const auto found = index_.lookup(key);
        event.result = found.has_value();
        event.value = found.value_or(0);
        break;
      }
      case Call::kExchange:
        event.result = index_.compare_exchange(key, event.expected, value);
        break;
      case Call::kRemoveIf:
        event.result = index_.compare_remove(key, event.expected);
        break;
    }
    event.returned = clock_.tick();
    return event;
  }

  // Between two rounds, when nobody writes.
  void judge(uint64_t round) {
    for (uint64_t key = 0; key < kKeys; ++key) {
      std::vector<Event> history;
      for (const History& of_thread : histories_) {
        if (of_thread.empty()) continue;
        history.insert(history.end(), of_thread[key].begin(), of_thread[key].end());
      }
      history.push_back(perform(Call::kLookup, key, 0));
      if (!linearizable(initial_[key], history)) {
        complaints_.add("round " + std::to_string(round) + ", key " + std::to_string(key) +
                        " is not linearizable:\n" + describe(initial_[key], history));
      }
      initial_[key] = history.back().result ? std::optional(history.back().value) : std::nullopt;
    }
  }

  TypedIndex index_;
  uint64_t rounds_;
  uint64_t seed_;
  std::vector<std::optional<uint64_t>> initial_;  // of each key, before the round
  std::vector<History> histories_;                // of each thread
  std::barrier<> barrier_{kThreads + 1};
  Clock clock_;
  Complaints complaints_;
};
static_assert(ContendedRounds::kThreads * ContendedRounds::kOperations < kEventsMax);

TEST_P(Concurrent, EveryKeyIsLinearizable) {
  Store store = create_small(MiB(256));
  ContendedRounds rounds(store.typed(), scaled(120), base_seed());
  EXPECT_EQ(rounds.run(), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

// Structures whose partitions may be owned by threads, which then give some of them away.
class ConcurrentWithWorkers : public ScenarioTest {};

std::vector<Case> cases_with_workers() {
  std::vector<Case> cases = concurrent_cases();
  std::erase_if(cases, [](const Case& one) {
    return std::ranges::none_of(one.entry().options,
                                [](const OptionInfo& option) { return option.name == "workers"; });
  });
  return cases;
}

// One key is asked for much more often than the others, so its worker has more to do, and the
// partitions beside the key's own move, while histories are recorded.
TEST_P(ConcurrentWithWorkers, EveryKeyIsLinearizable) {
  OptionMap options = small_options(GetParam().structure);
  options["partitions"] = "8";
  options["workers"] = "2";
  options["balance"] = "1";
  Store store = create_store(pool_path(), pool_options(MiB(256)), GetParam(), options);
  const auto moved = [&] {
    for (const Statistic& one : store.index->statistics()) {
      if (one.name == "moved_partitions") return one.value;
    }
    return 0.0;
  };
  // Workers measure how busy they are: how soon partitions move depends on what else runs here.
  for (uint64_t times = 0; times == 0 || moved() == 0; ++times) {
    ASSERT_LT(times, 100U) << "no partition has moved";
    for (uint64_t key = 0; key < ContendedRounds::kKeys; ++key) store.typed().remove(key);
    ContendedRounds rounds(store.typed(), scaled(40), base_seed() + times);
    ASSERT_EQ(rounds.run(), "");
  }
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Concurrent, OnlyOneInsertAndOneRemoveOfAKeyWin) {
  constexpr uint32_t kThreads = 3;
  const uint64_t keys = scaled(6000);
  Store store = create_small(MiB(256));
  const TypedIndex index = store.typed();
  std::vector<std::atomic<uint32_t>> winners(keys);  // how often the key was inserted or removed
  std::vector<std::atomic<uint64_t>> values(keys);
  Complaints complaints;
  const auto in_threads = [&](const std::function<void(uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] { complaints.catch_in([&] { body(t); }); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  Model model;
  in_threads([&](uint32_t thread) {
    for (uint64_t key = 0; key < keys; ++key) {
      const uint64_t value = key * kThreads + thread;
      if (!index.insert(key, value)) continue;
      winners[key].fetch_add(1, std::memory_order_relaxed);
      values[key].store(value, std::memory_order_relaxed);
    }
  });
  for (uint64_t key = 0; key < keys; ++key) {
    ASSERT_EQ(winners[key].exchange(0), 1U) << "inserts of key " << key;
    model[key] = values[key];
  }
  EXPECT_EQ(difference(index, model, keys), "");
  in_threads([&](uint32_t) {
    for (uint64_t key = 0; key < keys; ++key) {
      if (index.remove(key)) winners[key].fetch_add(1, std::memory_order_relaxed);
    }
  });
  for (uint64_t key = 0; key < keys; ++key) {
    ASSERT_EQ(winners[key], 1U) << "removals of key " << key;
  }
  EXPECT_EQ(difference(index, {}, keys), "");
  EXPECT_EQ(complaints.text(), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

// Keys that nobody writes, keys that are always there but get ever newer versions, and keys that
// come and go; readers of the first two, and a walk over all.
class Stress {
 public:
  static constexpr uint64_t kStable = 1000;  // keys [0, kStable) never change
  static constexpr uint64_t kHot = 50;       // the next kHot keys get new versions
  static constexpr uint64_t kFirstChurn = kStable + kHot;
  static constexpr uint32_t kWriters = 2;
  static constexpr uint32_t kReaders = 2;

  Stress(TypedIndex index, uint64_t operations, uint64_t seed)
      : index_(index), operations_(operations), seed_(seed), models_(kWriters) {}

  std::string run() {
    for (uint64_t key = 0; key < kFirstChurn; ++key) index_.upsert(key, versioned(key, 1));
    std::vector<std::thread> writers;
    std::vector<std::thread> readers;
    for (uint32_t t = 0; t < kWriters; ++t) {
      writers.emplace_back([this, t] { complaints_.catch_in([&] { write(t); }); });
    }
    for (uint32_t t = 0; t < kReaders; ++t) {
      readers.emplace_back([this, t] { complaints_.catch_in([&] { read(t); }); });
    }
    readers.emplace_back([this] { complaints_.catch_in([&] { walk(); }); });
    for (std::thread& writer : writers) writer.join();
    done_.store(true, std::memory_order_relaxed);
    for (std::thread& reader : readers) reader.join();
    return complaints_.text();
  }

  // What the structure holds at the end.
  Model model() const {
    Model all;
    for (uint64_t key = 0; key < kStable; ++key) all[key] = versioned(key, 1);
    for (const Model& of_writer : models_) all.insert(of_writer.begin(), of_writer.end());
    return all;
  }
  uint64_t universe() const { return kFirstChurn + kWriters * kChurn; }

 private:
  static constexpr uint64_t kChurn = 3000;  // of each writer

  static uint64_t versioned(uint64_t key, uint64_t version) { return version << 16 | key; }

  void write(uint32_t thread) {
    Random random(seed_ + thread);
    Model& model = models_[thread];
    for (uint64_t i = 0; i < operations_; ++i) {
      if (random.chance(20)) {
        // Each hot key has one writer, so its versions grow.
        const uint64_t key = kStable + random.below(kHot / kWriters) * kWriters + thread;
        model[key] = versioned(key, i + 2);
        index_.upsert(key, model[key]);
        continue;
      }
      const uint64_t key = kFirstChurn + random.below(kChurn) * kWriters + thread;
      const bool present = model.contains(key);
      if (random.chance(35)) {
        if (index_.remove(key) != present) complaints_.add("a removal lied");
        model.erase(key);
      } else if (index_.insert(key, i) == present) {
        complaints_.add("an insert lied");
      } else if (!present) {
        model[key] = i;
      } else if (index_.update(key, i)) {
        model[key] = i;
      } else {
        complaints_.add("an update did not find its key");
      }
    }
    for (uint64_t key = kStable + thread; key < kFirstChurn; key += kWriters) {
      model.try_emplace(key, versioned(key, 1));
    }
  }

  void read(uint32_t thread) {
    Random random(seed_ + 100 + thread);
    std::map<uint64_t, uint64_t> newest;  // version seen of each hot key
    do {
      for (uint64_t i = 0; i < 100; ++i) {
        const uint64_t key = random.below(kFirstChurn);
        const auto found = index_.lookup(key);
        if (!found) {
          complaints_.add("key " + std::to_string(key) + " was not found");
        } else if (*found == TypedIndex::kTorn || (*found & 0xffff) != key) {
          complaints_.add("key " + std::to_string(key) + " had value " + std::to_string(*found));
        } else if (*found < newest[key]) {
          complaints_.add("key " + std::to_string(key) + " went back to an older version");
        } else if (key < kStable && *found != versioned(key, 1)) {
          complaints_.add("key " + std::to_string(key) + " changed");
        } else {
          newest[key] = *found;
        }
      }
    } while (!done_.load(std::memory_order_relaxed));
  }

  void walk() const {
    do {
      std::vector<uint32_t> seen(kStable);
      index_.for_each([&](uint64_t key, uint64_t value) {
        if (key == TypedIndex::kTorn || value == TypedIndex::kTorn) {
          complaints_.add("for_each visited a torn record");
        } else if (key < kStable) {
          ++seen[key];
          if (value != versioned(key, 1)) complaints_.add("for_each visited a wrong value");
        }
      });
      for (uint64_t key = 0; key < kStable; ++key) {
        if (seen[key] != 1) {
          complaints_.add("for_each visited key " + std::to_string(key) + " " +
                          std::to_string(seen[key]) + " times");
        }
      }
    } while (!done_.load(std::memory_order_relaxed));
  }

  TypedIndex index_;
  uint64_t operations_;
  uint64_t seed_;
  std::vector<Model> models_;  // of each writer's keys
  std::atomic<bool> done_{false};
  mutable Complaints complaints_;
};

TEST_P(Concurrent, ReadersAlwaysFindWhatNobodyRemoves) {
  Store store = create_small(MiB(512));
  Stress stress(store.typed(), scaled(50'000), base_seed());
  EXPECT_EQ(stress.run(), "");
  EXPECT_EQ(difference(store.typed(), stress.model(), stress.universe()), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
  store.close();
  store = reopen();
  EXPECT_EQ(difference(store.typed(), stress.model(), stress.universe()), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Concurrent, wanted(concurrent_cases()), by_turns());
INSTANTIATE_TEST_SUITE_P(Catalog, ConcurrentWithWorkers, wanted(cases_with_workers()), case_name);

}  // namespace
}  // namespace perdure::test
