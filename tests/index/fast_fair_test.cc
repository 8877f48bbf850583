// Deep trees of byte strings: nodes of a few entries, which the scenarios do not make.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "index/fastfair/layout.h"
#include "perdure/catalog.h"
#include "pm/emulated_media.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure {
namespace {

class FastFairBytes : public testing::TestWithParam<const char*> {
 protected:
  // Many keys share their first eight bytes, so that separators are compared to their end.
  static std::string key(uint64_t number) { return "a common beginning " + std::to_string(number); }

  std::string faults() const {
    std::string all;
    index_->check([&](const std::string& fault) { all += fault + "\n"; });
    return all;
  }
  double figure(const std::string& name) const {
    for (const Statistic& one : index_->statistics()) {
      if (one.name == name) return one.value;
    }
    return -1;
  }

  static PoolOptions options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    return options;
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), options());
  std::unique_ptr<AnyIndex> index_ =
      create_index(pool_, "index", GetParam(), Kind::kBytes, Kind::kBytes, {{"node_bytes", "128"}});
};

TEST_P(FastFairBytes, KeysThatShareABeginningAreFoundScannedAndRemoved) {
  constexpr uint64_t kKeys = 3000;
  test::Random random(test::base_seed());
  std::map<std::string, std::string> model;
  for (uint64_t step = 0; step < 4 * kKeys; ++step) {
    const std::string one = key(random.below(kKeys));
    if (random.chance(60)) {
      model[one] = std::to_string(step);
      index_->upsert(Datum(one), Datum(model[one]));
    } else {
      EXPECT_EQ(index_->remove(Datum(one)), model.erase(one) > 0) << one;
    }
  }
  EXPECT_GE(figure("depth"), 4);
  auto expected = model.begin();
  index_->for_each([&](Datum one, Datum value) {
    ASSERT_NE(expected, model.end());
    EXPECT_EQ(one.bytes(), expected->first);
    EXPECT_EQ(value.bytes(), expected->second);
    ++expected;
  });
  EXPECT_EQ(expected, model.end());
  EXPECT_EQ(faults(), "");
  for (const auto& record : model) EXPECT_TRUE(index_->remove(Datum(record.first)));
  EXPECT_EQ(figure("leaves"), 1);
  EXPECT_EQ(figure("depth"), 1);
  EXPECT_EQ(faults(), "");
}

TEST_P(FastFairBytes, ThreadsThatSplitAndMergeTheSameNodesLoseNothing) {
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kKeys = 600;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; round < 6; ++round) {
        for (uint64_t i = t; i < kKeys; i += kThreads) {
          EXPECT_TRUE(index_->insert(Datum(key(i)), Datum(key(round))));
        }
        for (uint64_t i = t; i < kKeys; i += kThreads) {
          if (round == 5 && i % 2 == 0) continue;
          EXPECT_TRUE(index_->remove(Datum(key(i))));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(figure("records"), kKeys / 2);
  EXPECT_EQ(faults(), "");
}

std::string variant_name(const testing::TestParamInfo<const char*>& variant) {
  std::string name = variant.param;
  for (char& c : name) c = c == '-' || c == '+' ? '_' : c;
  return name;
}

// Stops the thread that is asked to in the fence that ends the growth of the tree, for good.
class StopsGrowing final : public pm::EmulatedMedia {
 public:
  void written_back(uintptr_t, size_t) override {}
  void fenced() override {
    if (!stops_here || pm::load_acquire(*top) == before || stopped.exchange(true)) return;
    for (;;) ::pause();
  }
  static inline thread_local bool stops_here = false;
  const uint64_t* top = nullptr;
  uint64_t before = 0;
  std::atomic<bool> stopped{false};
};

// A new top is allocated for as long as the root leads to it, by an intent that ends after it can
// be found. Another one over it must wait for that: a crash would free the first, as the root leads
// to the second.
TEST_P(FastFairBytes, ATopThatIsNotFinishedIsNotGrownOver) {
  const std::string path = dir_.file("grow");
  const auto number = [](uint64_t n) { return Datum(n); };
  const std::string fault = test::in_crashing_child([&]() -> std::string {
    auto* medium = new StopsGrowing;
    pm::emulate_media(medium);
    PoolOptions options = FastFairBytes::options();
    options.force_domain = true;
    options.domain = Domain::kLine;
    auto* pool = new Pool(Pool::create(path, options));
    AnyIndex* index =
        create_index(*pool, "index", GetParam(), Kind::kU64, Kind::kU64, {{"node_bytes", "128"}})
            .release();
    pm::PoolImpl& impl = pm::impl_of(*pool);
    const auto& root = *impl.at<index::fastfair::Root>(impl.find("index")->root);
    std::atomic<uint64_t> next{1};
    const auto insert = [&] {
      const uint64_t n = next++;
      index->insert(number(n), number(n));
    };
    const uint64_t leaf = root.top;
    while (root.top == leaf) insert();
    medium->before = root.top;
    medium->top = &root.top;
    std::thread([&, medium] {
      StopsGrowing::stops_here = true;
      while (!medium->stopped) insert();
    }).detach();
    while (!medium->stopped) ::usleep(1000);
    const uint64_t first = pm::load_acquire(root.top);
    std::thread([&] {
      for (;;) insert();
    }).detach();
    for (int i = 0; i < 100 && pm::load_acquire(root.top) == first; ++i) ::usleep(2000);
    return "";
  });
  ASSERT_EQ(fault, "");
  Pool pool = Pool::open(path, options());
  const auto index = open_index(pool, "index");
  EXPECT_EQ(index->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  EXPECT_EQ(pool.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

INSTANTIATE_TEST_SUITE_P(Variants, FastFairBytes,
                         testing::Values("fast-fair", "fast-fair+rb", "fast-fair+rb+xs"),
                         variant_name);

}  // namespace
}  // namespace perdure
