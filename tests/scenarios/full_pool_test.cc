// A pool that reaches its capacity in the middle of operations.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.h"
#include "support/scale.h"
#include "support/scenario.h"
#include "support/workload.h"

namespace perdure::test {
namespace {

class FullPool : public ScenarioTest {
 protected:
  uint64_t smallest() const { return GetParam().entry().traits.capacity_bytes_min; }
  uint64_t several_mib() const { return std::max(smallest(), MiB(3)); }

  static constexpr int kRefusals = 8;
  static constexpr uint64_t kCycles = 2;

  void begin_again() {
    model_.clear();
    next_key_ = 0;
    std::remove(pool_path().c_str());
  }

  // Inserts new keys until the pool is full: several in a row do not fit, since a single long one
  // may find no room where short ones still do. An insert that fails must leave no trace. Returns
  // how many were inserted.
  uint64_t fill(TypedIndex index) {
    uint64_t inserted = 0;
    for (int refused = 0; refused < kRefusals;) {
      const uint64_t key = next_key_++;
      const Outcome outcome = perform(index, {Verb::kInsert, key, key});
      if (outcome == Outcome::kFull) {
        EXPECT_EQ(index.lookup(key), std::nullopt) << "key " << key;
        ++refused;
        continue;
      }
      EXPECT_EQ(outcome, Outcome::kTrue) << "key " << key;
      model_[key] = key;
      ++inserted;
      refused = 0;
    }
    return inserted;
  }

  // Removes a random part of the records; none of this may need room. Returns how many.
  uint64_t remove_some(TypedIndex index, uint64_t percent) {
    uint64_t removed = 0;
    for (auto record = model_.begin(); record != model_.end();) {
      if (!random_.chance(percent)) {
        ++record;
        continue;
      }
      EXPECT_EQ(perform(index, {Verb::kRemove, record->first, 0}), Outcome::kTrue)
          << "key " << record->first;
      record = model_.erase(record);
      ++removed;
    }
    return removed;
  }

  void expect_intact(const Store& store) const {
    EXPECT_EQ(difference(store.typed(), model_, next_key_), "");
    EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
  }

  Model model_;
  uint64_t next_key_ = 0;
};

TEST_P(FullPool, AnInsertThatFailsChangesNothing) {
  for (const uint64_t capacity_bytes : {smallest(), several_mib()}) {
    SCOPED_TRACE(capacity_bytes);
    begin_again();
    Store store = create_small(capacity_bytes);
    EXPECT_GT(fill(store.typed()), 100U);
    for (uint64_t i = 0; i < rounds(4); ++i) fill(store.typed());
    expect_intact(store);
    EXPECT_LE(store.pool.info().size_bytes, capacity_bytes);
    store.close();
    store = reopen();
    expect_intact(store);
    EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
  }
}

TEST_P(FullPool, TheErrorSaysWhatToDo) {
  Store store = create_small(smallest());
  fill(store.typed());
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, pool_path(), [&] {
    for (uint64_t key = next_key_;; ++key) {
      if (store.typed().insert(key, key)) model_[key] = key;
    }
  }));
}

TEST_P(FullPool, AnUpdateThatFailsKeepsTheOldValue) {
  Store store = create_small(several_mib());
  fill(store.typed());
  for (uint64_t i = 0; i < rounds(80); ++i) {
    auto& [key, value] = *model_.lower_bound(random_.below(model_.rbegin()->first + 1));
    const Verb verb = random_.chance(50) ? Verb::kUpdate : Verb::kUpsert;
    const Outcome outcome = perform(store.typed(), {verb, key, value + 1});
    ASSERT_NE(outcome, Outcome::kFalse) << "key " << key;
    if (outcome == Outcome::kTrue) ++value;
    ASSERT_EQ(store.typed().lookup(key), value) << "key " << key;
  }
  expect_intact(store);
  store.close();
  store = reopen();
  expect_intact(store);
}

TEST_P(FullPool, RemovingNeedsNoRoomAndMakesRoom) {
  const uint64_t capacity_bytes = several_mib() + MiB(1) * random_.below(2);
  Store store = create_small(capacity_bytes);
  ASSERT_GT(fill(store.typed()), 100U);
  for (uint64_t cycle = 0; cycle < rounds(kCycles); ++cycle) {
    SCOPED_TRACE(std::to_string(capacity_bytes) + " bytes, cycle " + std::to_string(cycle));
    const uint64_t removed = remove_some(store.typed(), 50);
    expect_intact(store);
    const uint64_t inserted = fill(store.typed());
    // At least half of what was removed fits again, with some slack for uneven lengths.
    EXPECT_GE(inserted, removed * 45 / 100) << "after removing " << removed;
    if (cycle % 2 == 0) continue;
    expect_intact(store);
    store.close();
    store = reopen();
    expect_intact(store);
    EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
  }
}

TEST_P(FullPool, RemovingEverythingMakesRoomAgain) {
  Store store = create_small(several_mib());
  const uint64_t first = fill(store.typed());
  for (uint64_t cycle = 0; cycle < kCycles; ++cycle) {
    SCOPED_TRACE("cycle " + std::to_string(cycle));
    remove_some(store.typed(), 100);
    ASSERT_TRUE(model_.empty());
    expect_intact(store);
    EXPECT_GE(fill(store.typed()), first / 2) << "at first there was room for " << first;
    expect_intact(store);
  }
}

TEST_P(FullPool, TheSmallestPoolHoldsAStructureOfDefaultOptions) {
  Store store = create_store(pool_path(), pool_options(smallest()), GetParam(), {});
  EXPECT_GT(fill(store.typed()), 100U);
  remove_some(store.typed(), 70);
  EXPECT_GT(fill(store.typed()), 30U);
  expect_intact(store);
  store.close();
  store = reopen();
  expect_intact(store);
}

INSTANTIATE_TEST_SUITE_P(Catalog, FullPool, wanted(all_cases()), by_turns());

class FullPoolConcurrent : public FullPool {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullPoolConcurrent);

TEST_P(FullPoolConcurrent, ManyThreadsKeepWhatWasAcknowledged) {
  constexpr uint32_t kThreads = 4;
  constexpr uint64_t kFailuresMax = 50;  // of each thread in a cycle
  Store store = create_small(several_mib());
  const TypedIndex index = store.typed();
  std::vector<Model> models(kThreads);
  std::vector<uint64_t> next_keys(kThreads);
  for (uint64_t cycle = 0; cycle < kCycles; ++cycle) {
    std::vector<std::thread> threads;
    std::vector<std::string> lies(kThreads);
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Random random(base_seed() + cycle * kThreads + t);
        Model& model = models[t];
        const auto act = [&](Verb verb, uint64_t key, uint64_t value) {
          try {
            return perform(index, {verb, key, value});
          } catch (const std::exception& error) {
            lies[t] += std::string(error.what()) + "\n";
            return Outcome::kFull;
          }
        };
        for (auto record = model.begin(); record != model.end();) {
          if (random.chance(40)) {
            ++record;
          } else if (act(Verb::kRemove, record->first, 0) == Outcome::kTrue) {
            record = model.erase(record);
          } else {
            lies[t] += "a removal failed\n";
            return;
          }
        }
        for (uint64_t failures = 0; failures < kFailuresMax;) {
          const uint64_t key = next_keys[t]++ * kThreads + t;
          const Outcome outcome = act(Verb::kInsert, key, key);
          if (outcome == Outcome::kTrue) model[key] = key;
          if (outcome == Outcome::kFalse) lies[t] += "an insert of a new key returned false\n";
          if (outcome == Outcome::kFull) ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& lie : lies) ASSERT_EQ(lie, "");
    model_.clear();
    for (const Model& model : models) model_.insert(model.begin(), model.end());
    next_key_ = *std::max_element(next_keys.begin(), next_keys.end()) * kThreads;
    expect_intact(store);
  }
  store.close();
  store = reopen();
  expect_intact(store);
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, FullPoolConcurrent, wanted(concurrent_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
