// Closing and opening again.
#include <cstdint>
#include <string>

#include "support/child.h"
#include "support/no_threads.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class Reopen : public ScenarioTest {
 protected:
  // Random operations on `keys` keys, on the index and in the model.
  void work(TypedIndex index, Model& model, uint64_t operations, uint64_t keys) {
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t key = random_.below(keys);
      if (random_.chance(30)) {
        ASSERT_EQ(index.remove(key), model.erase(key) == 1) << "key " << key;
      } else {
        index.upsert(key, i);
        model[key] = i;
      }
    }
  }
};

TEST_P(Reopen, AnEmptyStructureStaysEmpty) {
  Store store = create_small(MiB(64));
  store.close();
  store = reopen();
  EXPECT_EQ(difference(store.typed(), {}, 100), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
  EXPECT_EQ(store.index->key_kind(), GetParam().key);
  EXPECT_EQ(store.index->value_kind(), GetParam().value);
}

TEST_P(Reopen, KeepsEveryAcknowledgedInsert) {
  const uint64_t count = scaled(20'000);
  Model model;
  Store store = create_small(MiB(128));
  for (uint64_t key = 0; key < count; ++key) {
    ASSERT_TRUE(store.typed().insert(key, key + 1));
    model[key] = key + 1;
  }
  store.close();
  store = reopen();
  EXPECT_TRUE(store.pool.info().clean);
  EXPECT_EQ(difference(store.typed(), model, count + 100), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

TEST_P(Reopen, KeepsUpdatesAndRemovals) {
  constexpr uint64_t kKeys = 2000;
  Model model;
  Store store = create_small(MiB(128));
  ASSERT_NO_FATAL_FAILURE(work(store.typed(), model, scaled(40'000), kKeys));
  store.close();
  store = reopen();
  EXPECT_EQ(difference(store.typed(), model, kKeys), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

TEST_P(Reopen, ManyTimesCountsEachGeneration) {
  constexpr uint64_t kKeys = 500;
  Model model;
  Store store = create_small(MiB(64));
  uint64_t generation = store.pool.info().generation;
  for (uint64_t round = 0; round < scaled(60); ++round) {
    ASSERT_NO_FATAL_FAILURE(work(store.typed(), model, random_.below(1000), kKeys));
    store.close();
    store = reopen();
    const PoolInfo info = store.pool.info();
    ASSERT_EQ(info.generation, ++generation);
    ASSERT_TRUE(info.clean);
    ASSERT_EQ(difference(store.typed(), model, kKeys), "") << "round " << round;
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << "round " << round;
  }
}

TEST_P(Reopen, OfOneStructureInAPoolThatStaysOpen) {
  constexpr uint64_t kKeys = 500;
  Model model;
  Store store = create_small(MiB(64));
  for (uint64_t round = 0; round < scaled(30); ++round) {
    ASSERT_NO_FATAL_FAILURE(work(store.typed(), model, random_.below(1000), kKeys));
    store.index.reset();
    store.index = open_index(store.pool, kIndexName);
    ASSERT_EQ(difference(store.typed(), model, kKeys), "") << "round " << round;
  }
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Reopen, MovedPoolsAndStructuresStayUsable) {
  Store store = create_small(MiB(64));
  ASSERT_TRUE(store.typed().insert(1, 1));
  Store moved = std::move(store);
  ASSERT_TRUE(moved.typed().insert(2, 2));
  EXPECT_EQ(difference(moved.typed(), {{1, 1}, {2, 2}}, 10), "");
  moved.close();
  moved = reopen();
  EXPECT_EQ(difference(moved.typed(), {{1, 1}, {2, 2}}, 10), "");
}

TEST_P(Reopen, OfAProcessThatLeftWithoutClosing) {
  constexpr uint64_t kKeys = 2000;
  create_small(MiB(64)).close();
  Model model;
  for (uint64_t key = 0; key < kKeys; key += 3) model[key] = key + 1;
  const std::string wrong = in_crashing_child([&]() -> std::string {
    const auto* store = new Store(reopen());  // never closed
    for (const auto& [key, value] : model) store->typed().upsert(key, value);
    return {};
  });
  ASSERT_EQ(wrong, "");
  Store store = reopen();
  EXPECT_FALSE(store.pool.info().clean);
  EXPECT_EQ(difference(store.typed(), model, kKeys), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

TEST_P(Reopen, OnAnOrdinaryFileInItsOwnDomain) {
  constexpr uint64_t kKeys = 100;  // each write waits for the disk
  const TempDir disk(TempDir::Place::kDisk);
  for (const Durability durability :
       {Durability::kBest, Durability::kProcess, Durability::kPower}) {
    PoolOptions options;
    options.capacity_bytes = MiB(64);
    options.growth_bytes = MiB(1);
    // On a machine whose disk is DRAM, only process crashes can be survived.
    options.durability = durability;
    const std::string path = disk.file(to_string(durability));
    Model model;
    try {
      Store store = create_store(path, options, GetParam(), small_options(GetParam().structure));
      ASSERT_NO_FATAL_FAILURE(work(store.typed(), model, scaled(130), kKeys));
      store.pool.sync();
      store.close();
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kDurability) << error.what();
      continue;
    }
    Store store = open_store(path, options);
    EXPECT_EQ(difference(store.typed(), model, kKeys), "") << to_string(durability);
    EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << to_string(durability);
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, Reopen, wanted(all_cases()), by_turns());

class ParallelRecovery : public ScenarioTest {
 protected:
  static constexpr char kOption[] = "recovery_threads";

 public:
  static std::vector<Case> cases() {
    std::vector<Case> cases = all_cases();
    std::erase_if(cases, [](const Case& c) {
      for (const OptionInfo& option : c.entry().options) {
        if (option.name == kOption) return false;
      }
      return true;
    });
    return cases;
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ParallelRecovery);

TEST_P(ParallelRecovery, FindsTheSameWithAnyNumberOfThreads) {
  const uint64_t keys = scaled(20'000);
  create_store(pool_path(), pool_options(MiB(256)), GetParam(), {}).close();
  Model model;
  for (const char* threads : {"1", "2", "3", "8", "0"}) {
    for (uint64_t i = 0; i < keys; ++i) model[random_.below(keys)] = i;
    const std::string wrong = in_crashing_child([&]() -> std::string {
      const auto* store = new Store(
          open_store(pool_path(), pool_options(MiB(256)), {{kOption, threads}}));  // never closed
      for (const auto& [key, value] : model) store->typed().upsert(key, value);
      return {};
    });
    ASSERT_EQ(wrong, "");
    Store store = open_store(pool_path(), pool_options(MiB(256)), {{kOption, threads}});
    EXPECT_FALSE(store.pool.info().clean);
    ASSERT_EQ(difference(store.typed(), model, keys), "") << threads << " threads";
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << threads << " threads";
  }
}

// Threads make it faster, no more: a process that may have none opens, writes and closes.
TEST_P(ParallelRecovery, NeedsNoThread) {
  constexpr uint64_t kKeys = 5000;
  const PoolOptions options = pool_options(MiB(256));
  create_store(pool_path(), options, GetParam(), {}).close();
  Model model;
  for (uint64_t round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kKeys; ++i) model[random_.below(kKeys)] = i;
    const std::string wrong = in_crashing_child([&]() -> std::string {
      const NoThreads none;
      const auto* store =
          new Store(open_store(pool_path(), options, {{kOption, "8"}}));  // never closed
      for (const auto& [key, value] : model) store->typed().upsert(key, value);
      return {};
    });
    ASSERT_EQ(wrong, "");
    const NoThreads none;
    Store store = open_store(pool_path(), options, {{kOption, "8"}});
    EXPECT_FALSE(store.pool.info().clean);
    ASSERT_EQ(difference(store.typed(), model, kKeys), "");
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
    store.close();
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, ParallelRecovery, wanted(ParallelRecovery::cases()), case_name);

}  // namespace
}  // namespace perdure::test
