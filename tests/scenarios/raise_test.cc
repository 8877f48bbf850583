// A pool that is full gets a larger capacity when it is opened, keeps all that is in it, and takes
// more.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/failing_medium.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class Raise : public ScenarioTest {
 protected:
  static constexpr uint64_t kFirst = Pool::kMinCapacityBytes;

  PoolOptions raising(uint64_t capacity_bytes) const {
    PoolOptions options = pool_options(kFirst);
    options.capacity_at_least_bytes = capacity_bytes;
    return options;
  }
  // Until the pool is full, or there are `most` records.
  static void fill(TypedIndex index, Model& model, uint64_t most) {
    try {
      for (uint64_t i = model.size(); i < most; ++i) {
        index.upsert(i, i * 3 + 1);
        model[i] = i * 3 + 1;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
    }
  }
};

TEST_P(Raise, AFullPoolKeepsAllAndTakesMore) {
  Model model;
  {
    Store store = create_small(kFirst);
    fill(store.typed(), model, 100'000);
    store.close();
  }
  for (const uint64_t capacity : {MiB(5), MiB(11), MiB(80)}) {
    SCOPED_TRACE(capacity);
    Store store = open_store(pool_path(), raising(capacity));
    ASSERT_EQ(store.pool.info().capacity_bytes, capacity);
    ASSERT_EQ(difference(store.typed(), model, model.size() + 10), "");
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
    const uint64_t before = model.size();
    fill(store.typed(), model, before + std::max<uint64_t>(6000, scaled(30'000)));
    EXPECT_GT(model.size(), before + 1000);
    ASSERT_EQ(difference(store.typed(), model, model.size() + 10), "");
    // As after the death of the process, or closed.
    if (capacity != MiB(11)) store.close();
  }
  Store store = reopen();
  ASSERT_EQ(store.pool.info().capacity_bytes, MiB(80));
  ASSERT_EQ(difference(store.typed(), model, model.size() + 10), "");
  for (uint64_t i = 0; i < model.size(); ++i) ASSERT_TRUE(store.typed().remove(i));
  ASSERT_EQ(difference(store.typed(), {}, 100), "");
  store.index.reset();
  // What was made in the raised pool needs nothing of the first one.
  const auto& [structure, key, value] = GetParam();
  const auto other = create_index(store.pool, "other", structure, key, value);
  Model fresh;
  fill(TypedIndex(*other), fresh, 5000);
  ASSERT_EQ(fresh.size(), 5000U);
  store.index = open_index(store.pool, kIndexName);
  ASSERT_EQ(difference(TypedIndex(*other), fresh, 5100), "");
  ASSERT_EQ(faults(store.pool, {store.index.get(), other.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Raise, wanted(all_cases()), by_turns());

// Power fails, or the medium refuses, at each persist of raising, and at some of growing into what
// is new.
class RaiseCrash : public Raise {
 protected:
  static constexpr uint64_t kCapacity = uint64_t{80} << 20;
  static constexpr uint64_t kMore = 700;

  PoolOptions line_pool(uint64_t capacity_bytes) const {
    PoolOptions options = raising(capacity_bytes);
    options.domain = Domain::kLine;
    options.growth_bytes = pm::kSegmentBytes;
    return options;
  }
  // `end`: where closing begins, of which a structure may keep to itself that the medium fails.
  void work(FailingMedium& medium, uint64_t* begin = nullptr, uint64_t* raised = nullptr,
            uint64_t* end = nullptr) {
    acknowledged_ = 0;
    if (begin != nullptr) *begin = medium.persists();
    Pool pool = Pool::open(work_, line_pool(kCapacity));
    {
      const auto index = open_index(pool, kIndexName);
      if (raised != nullptr) *raised = medium.persists();
      for (; acknowledged_ < kMore; ++acknowledged_) {
        const uint64_t key = model_.size() + acknowledged_;
        TypedIndex(*index).upsert(key, key + 9);
      }
      if (end != nullptr) *end = medium.persists();
    }
    pool.close();
  }
  void judge() {
    Pool pool = Pool::open(work_, line_pool(0));
    const uint64_t capacity = pool.info().capacity_bytes;
    EXPECT_TRUE(capacity == kFirst || capacity == kCapacity) << capacity;
    {
      const auto index = open_index(pool, kIndexName);
      Model expected = model_;
      // The one in flight happened, or did not.
      const uint64_t in_flight = model_.size() + acknowledged_;
      for (uint64_t key = model_.size(); key < in_flight; ++key) expected[key] = key + 9;
      if (TypedIndex(*index).lookup(in_flight)) expected[in_flight] = in_flight + 9;
      ASSERT_EQ(difference(TypedIndex(*index), expected, in_flight + 10), "");
      ASSERT_EQ(faults_and_leaks(pool, {index.get()}), "");
    }
    pool.close();
    // Another attempt, and the pool grows over whatever lies there.
    pool = Pool::open(work_, line_pool(kCapacity));
    const auto index = open_index(pool, kIndexName);
    Model fresh = model_;
    for (uint64_t key = model_.size(); key < model_.size() + 2 * kMore; ++key)
      TypedIndex(*index).upsert(key, fresh[key] = key + 11);
    ASSERT_EQ(difference(TypedIndex(*index), fresh, fresh.size() + 10), "");
    ASSERT_EQ(faults_and_leaks(pool, {index.get()}), "");
  }

  std::string work_ = dir_.file("work");
  Model model_;
  uint64_t acknowledged_ = 0;
};

TEST_P(RaiseCrash, PowerThatFailsLeavesTheOneCapacityOrTheOther) {
  {
    Store store{Pool::create(pool_path(), line_pool(0)), nullptr};
    const auto& [structure, key, value] = GetParam();
    store.index =
        create_index(store.pool, kIndexName, structure, key, value, small_options(structure));
    fill(store.typed(), model_, 4000);
    store.close();
  }
  const auto take_copy = [&] {
    std::filesystem::copy_file(pool_path(), work_,
                               std::filesystem::copy_options::overwrite_existing);
  };
  take_copy();
  uint64_t begin = 0;
  uint64_t raised = 0;
  uint64_t end = 0;
  {
    FailingMedium medium(work_, Domain::kLine);
    medium.begin();
    medium.refuse([](uint64_t) { return false; }, [](uint64_t) { return false; });
    work(medium, &begin, &raised, &end);
  }
  ASSERT_NO_FATAL_FAILURE(judge());
  ASSERT_GT(raised, begin);
  std::vector<uint64_t> places;
  // Recovery has many; the raising is in the middle of them.
  const uint64_t step = std::max<uint64_t>(1, (raised - begin) / 12);
  for (uint64_t at = begin; at < raised; at += step) places.push_back(at);
  for (int i = 0; i < 6; ++i) places.push_back(raised + random_.below(end - raised));
  using Image = FailingMedium::Image;
  for (const uint64_t at : places) {
    const auto image = static_cast<Image>(random_.below(3));
    SCOPED_TRACE("persist " + std::to_string(at) + " of " + std::to_string(raised) + ", " +
                 std::to_string(end) + ", image " + std::to_string(static_cast<int>(image)));
    take_copy();
    ASSERT_TRUE(power_fails(work_, Domain::kLine, at, image, random_.next(),
                            [&](FailingMedium& medium) { work(medium); }));
    ASSERT_NO_FATAL_FAILURE(judge());
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, RaiseCrash, wanted(all_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
