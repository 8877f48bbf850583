// SIGKILL at any moment while a pool is being recovered, closed or made.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "support/child.h"
#include "support/scale.h"
#include "support/scenario.h"
#include "support/workload.h"

namespace perdure::test {
namespace {

class KillDuringRecovery : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{256} << 20;

  // Leaves a pool at pool_path() that a crash interrupted, with as much to recover as the options
  // allow, and what it holds in model_.
  void crash(uint64_t keys, uint64_t operations, const OptionMap& options) {
    create_store(pool_path(), pool_options(kCapacityBytes), GetParam(), options).close();
    const uint32_t threads = concurrent() ? 2 : 1;
    const Workload workload{random_.next(), threads, keys, 1, operations / threads};
    Witness witness(workload, model_);
    Child child([&](int out) {
      const auto* store = new Store(reopen(kCapacityBytes));  // never closed
      write_and_tell(store->typed(), workload, out);
      ::kill(::getpid(), SIGKILL);
    });
    while (witness.receive(child)) {
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    ASSERT_EQ(witness.lies(), "");
    ASSERT_TRUE(witness.in_flight().empty());
    keys_ = keys;
  }

  std::string copy(const std::string& name) const {
    const std::string path = dir_.file(name);
    std::filesystem::copy_file(pool_path(), path,
                               std::filesystem::copy_options::overwrite_existing);
    return path;
  }

  Store open(const std::string& path) const {
    return open_store(path, pool_options(kCapacityBytes));
  }

  // Opens in a child, and kills it `delay_us` after it began, whatever it has come to.
  void open_and_kill(const std::string& path, uint64_t delay_us) const {
    Child child([&](int out) {
      send(out, "o", 1);
      const auto* store = new Store(open(path));  // never closed
      send(out, "O", 1);
      ::pause();
      (void)store;
    });
    char byte = 0;
    ASSERT_TRUE(child.receive(&byte, 1));
    ::usleep(static_cast<useconds_t>(delay_us));  // any moment is right; nothing relies on it
    child.kill();
    ASSERT_EQ(child.wait(), -SIGKILL);
  }

  // How long opening takes, measured once on a copy.
  uint64_t open_duration_us() const {
    const std::string path = copy("measured");
    const auto begin = std::chrono::steady_clock::now();
    const Store store = open(path);
    const auto end = std::chrono::steady_clock::now();
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(end - begin).count());
  }

  void kill_openings(uint64_t rounds) {
    const uint64_t duration_us = open_duration_us();
    for (uint64_t round = 0; round < rounds; ++round) {
      const std::string path = copy("work");
      const uint64_t kills = 1 + random_.below(3);
      for (uint64_t k = 0; k < kills; ++k) {
        ASSERT_NO_FATAL_FAILURE(open_and_kill(path, random_.below(duration_us * 5 / 4 + 100)));
      }
      Store store = open(path);
      EXPECT_FALSE(store.pool.info().clean);
      ASSERT_EQ(difference(store.typed(), model_, keys_), "") << "round " << round;
      ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << "round " << round;
      store.typed().upsert(keys_ + round, round);
      EXPECT_EQ(store.typed().lookup(keys_ + round), round);
      store.close();
      store = open(path);
      Model with_one_more = model_;
      with_one_more[keys_ + round] = round;
      ASSERT_EQ(difference(store.typed(), with_one_more, keys_), "") << "round " << round;
    }
  }

  Model model_;
  uint64_t keys_ = 0;
};

TEST_P(KillDuringRecovery, OfALargeLogLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(crash(scaled(20'000), scaled(40'000), {}));
  ASSERT_NO_FATAL_FAILURE(kill_openings(std::max<uint64_t>(2, rounds(3))));
}

TEST_P(KillDuringRecovery, OfManyLevelsLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(
      crash(scaled(10'000), scaled(40'000), small_options(GetParam().structure)));
  ASSERT_NO_FATAL_FAILURE(kill_openings(std::max<uint64_t>(3, rounds(8))));
}

INSTANTIATE_TEST_SUITE_P(Catalog, KillDuringRecovery, wanted(all_cases()), by_turns());

class KillDuringClose : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{64} << 20;
  static constexpr uint64_t kKeys = 2000;

  // Writes in a child, which then closes the pool, and is killed `delay_us` after it began to.
  void write_close_and_kill(const Workload& workload, uint64_t delay_us) {
    Witness witness(workload, model_);
    Child child([&](int out) {
      Store store = reopen(kCapacityBytes);
      write_and_tell(store.typed(), workload, out);
      store.close();
      ::pause();
    });
    while (witness.acknowledged() < workload.threads * workload.operations_max) {
      ASSERT_TRUE(witness.receive(child));
    }
    ::usleep(static_cast<useconds_t>(delay_us));  // any moment is right; nothing relies on it
    child.kill();
    ASSERT_EQ(child.wait(), -SIGKILL);
    ASSERT_EQ(witness.lies(), "");
  }

  Model model_;
};

TEST_P(KillDuringClose, LosesNothing) {
  create_small(kCapacityBytes).close();
  uint64_t close_us = 1000;  // how long closing takes, as last seen
  for (uint64_t round = 0; round < std::max<uint64_t>(3, rounds(8)); ++round) {
    const uint32_t threads = concurrent() ? 2 : 1;
    const Workload workload{random_.next(), threads, kKeys, 1 + round * 100'000, 1000};
    ASSERT_NO_FATAL_FAILURE(write_close_and_kill(workload, random_.below(close_us + 200)));
    Store store = reopen(kCapacityBytes);
    ASSERT_EQ(difference(store.typed(), model_, kKeys), "") << "round " << round;
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << "round " << round;
    const auto begin = std::chrono::steady_clock::now();
    store.close();
    const auto end = std::chrono::steady_clock::now();
    close_us = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(end - begin).count());
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, KillDuringClose, wanted(all_cases()), case_name);

class KillDuringCreation : public ScenarioTest {};

TEST_P(KillDuringCreation, AStructureIsThereWhollyOrNotAtAll) {
  const auto name = [](uint64_t i) { return "structure " + std::to_string(i); };
  for (uint64_t round = 0; round < std::max<uint64_t>(2, rounds(5)); ++round) {
    std::filesystem::remove(pool_path());
    Pool::create(pool_path(), pool_options(MiB(64))).close();
    Child child([&](int out) {
      auto* pool = new Pool(Pool::open(pool_path(), pool_options(MiB(64))));  // never closed
      const auto& [structure, key, value] = GetParam();
      for (uint64_t i = 0; i < 200; ++i) {  // a pool's directory is not large
        const auto index =
            create_index(*pool, name(i), structure, key, value, small_options(structure));
        TypedIndex(*index).upsert(i, i);
        send(out, "m", 1);
      }
      ::pause();
    });
    uint64_t made = 0;
    char byte = 0;
    for (const uint64_t enough = random_.below(30); made < enough; ++made) {
      ASSERT_TRUE(child.receive(&byte, 1));
    }
    child.kill();
    while (child.receive(&byte, 1)) ++made;
    ASSERT_EQ(child.wait(), -SIGKILL);

    Pool pool = Pool::open(pool_path(), pool_options(MiB(64)));
    const uint64_t count = pool.structures().size();
    ASSERT_GE(count, made);
    ASSERT_LE(count, made + 1);
    std::vector<std::unique_ptr<AnyIndex>> indexes;
    std::vector<const AnyIndex*> all;
    for (uint64_t i = 0; i < count; ++i) {
      indexes.push_back(open_index(pool, name(i)));
      all.push_back(indexes.back().get());
      const TypedIndex index(*indexes.back());
      if (i < made) {
        ASSERT_EQ(difference(index, {{i, i}}, 40), "") << name(i);
      }
      index.upsert(i, i + 1);
      ASSERT_EQ(difference(index, {{i, i + 1}}, 40), "") << name(i);
    }
    ASSERT_EQ(faults_and_leaks(pool, all), "") << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, KillDuringCreation, wanted(all_cases()), case_name);

TEST(KillDuringPoolCreation, LeavesAPoolOrAFileThatIsRefused) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  Random random(base_seed());
  for (uint64_t round = 0; round < scaled(100); ++round) {
    std::filesystem::remove(path);
    {
      Child child([&](int out) {
        send(out, "c", 1);
        const Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{64} << 20});
        ::pause();
      });
      char byte = 0;
      ASSERT_TRUE(child.receive(&byte, 1));
      ::usleep(static_cast<useconds_t>(random.below(500)));  // any moment is right
    }
    if (!std::filesystem::exists(path)) continue;
    try {
      const Pool pool = Pool::open(path);
      ASSERT_TRUE(pool.structures().empty());
      ASSERT_EQ(faults(pool, {}), "");
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::kEmpty || error.code() == ErrorCode::kForeign ||
                  error.code() == ErrorCode::kTruncated)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace perdure::test
