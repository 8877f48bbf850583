// Space that records leave behind is used again.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/scenario.h"

namespace perdure::test {
namespace {

class Refill : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{512} << 20;

  PoolOptions fine_growth() const {
    PoolOptions options = pool_options(kCapacityBytes);
    options.growth_bytes = uint64_t{64} << 10;
    return options;
  }
  Store create() const {
    return create_store(pool_path(), fine_growth(), GetParam(),
                        small_options(GetParam().structure));
  }

  // Enough that what leaks shows beside what any structure needs.
  static uint64_t records() { return std::max<uint64_t>(12'000, scaled(15'000)); }

  static constexpr uint64_t kCycles = 12;
  static constexpr uint64_t kWarmUp = 4;  // cycles until the pool is in its stride

  // The most that a pool may have grown to that had `before` bytes when it was in its stride: less
  // than it would if only a hundredth of each cycle's records left something behind.
  static uint64_t tolerable(uint64_t before) {
    return before + before / 10 + (uint64_t{256} << 10);
  }

  std::vector<uint64_t> shuffled(uint64_t count) {
    std::vector<uint64_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    for (uint64_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[random_.below(i)]);
    return numbers;
  }
};

TEST_P(Refill, CyclesOfFillingAndRemovingDoNotGrowThePool) {
  const uint64_t count = records();
  Store store = create();
  uint64_t size_bytes = 0;
  for (uint64_t cycle = 0; cycle < kCycles; ++cycle) {
    SCOPED_TRACE("cycle " + std::to_string(cycle));
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(store.typed().insert(cycle * count + i, i));
    }
    if (cycle % 4 == 3) {
      store.close();
      store = open_store(pool_path(), fine_growth());
    }
    for (const uint64_t i : shuffled(count)) {
      ASSERT_TRUE(store.typed().remove(cycle * count + i));
    }
    ASSERT_EQ(difference(store.typed(), {}, 0), "");
    const uint64_t now = store.pool.info().size_bytes;
    if (cycle < kWarmUp) size_bytes = now;
    ASSERT_LE(now, tolerable(size_bytes));
  }
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Refill, RefillingWithFewerAndMoreRecordsDoesNotGrowThePool) {
  const uint64_t count_max = records();
  Store store = create();
  uint64_t size_bytes = 0;
  for (uint64_t cycle = 0; cycle < kCycles; ++cycle) {
    SCOPED_TRACE("cycle " + std::to_string(cycle));
    const uint64_t count =
        cycle < kWarmUp ? count_max : count_max / 2 + random_.below(count_max / 2);
    for (uint64_t i = 0; i < count; ++i) store.typed().upsert(i, cycle * count + i);
    for (uint64_t i = 0; i < count; ++i) ASSERT_TRUE(store.typed().remove(i));
    const uint64_t now = store.pool.info().size_bytes;
    if (cycle < kWarmUp) size_bytes = now;
    ASSERT_LE(now, tolerable(size_bytes));
  }
  EXPECT_EQ(difference(store.typed(), {}, count_max), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Refill, OverwritingWithOtherLengthsDoesNotGrowThePool) {
  constexpr uint64_t kKeys = 2000;
  const uint64_t all_rounds = std::max<uint64_t>(30, scaled(60));
  Store store = create();
  Model model;
  uint64_t size_bytes = 0;
  for (uint64_t round = 0; round < all_rounds; ++round) {
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t key = random_.below(kKeys);
      model[key] = round * kKeys + i;
      store.typed().upsert(key, model[key]);
    }
    const uint64_t now = store.pool.info().size_bytes;
    if (round < all_rounds / 3) size_bytes = now;
    ASSERT_LE(now, tolerable(size_bytes)) << "round " << round;
  }
  EXPECT_EQ(difference(store.typed(), model, kKeys), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Refill, AWindowThatSlidesOverTheKeysDoesNotGrowThePool) {
  constexpr uint64_t kWindow = 3000;
  const uint64_t steps = std::max<uint64_t>(45'000, scaled(90'000));
  Store store = create();
  uint64_t size_bytes = 0;
  for (uint64_t key = 0; key < steps; ++key) {
    ASSERT_TRUE(store.typed().insert(key, key));
    if (key >= kWindow) {
      ASSERT_TRUE(store.typed().remove(key - kWindow));
    }
    if (key % 500 != 0) continue;
    const uint64_t now = store.pool.info().size_bytes;
    if (key < steps / 3) size_bytes = now;
    ASSERT_LE(now, tolerable(size_bytes)) << "key " << key;
  }
  Model model;
  for (uint64_t key = steps - kWindow; key < steps; ++key) model[key] = key;
  EXPECT_EQ(difference(store.typed(), model, steps), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Refill, wanted(all_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
