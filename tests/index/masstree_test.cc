// What the scenarios' keys do not reach in the Masstree: layers over layers, keys whose slices
// differ in length only, scans that begin inside of a layer, and layers that go.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "index/masstree/layout.h"
#include "perdure/catalog.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::index {
namespace {

using masstree::Permutation;

TEST(MasstreePermutation, KeepsItsRanksThroughInsertsAndRemovals) {
  std::vector<uint32_t> model;
  Permutation permutation;
  test::Random random(test::base_seed());
  for (int i = 0; i < 5000; ++i) {
    const bool insert = !permutation.is_full() && (model.empty() || random.below(2) == 0);
    if (insert) {
      const auto rank = static_cast<uint32_t>(random.below(model.size() + 1));
      const uint32_t slot = permutation.free_slot();
      permutation = permutation.with(rank, slot);
      model.insert(model.begin() + rank, slot);
    } else {
      const auto rank = static_cast<uint32_t>(random.below(model.size()));
      permutation = permutation.without(rank);
      model.erase(model.begin() + rank);
    }
    ASSERT_TRUE(permutation.sound());
    ASSERT_EQ(permutation.count(), model.size());
    for (uint32_t rank = 0; rank < model.size(); ++rank)
      ASSERT_EQ(permutation.slot(rank), model[rank]);
  }
}

TEST(MasstreePermutation, ASlotThatStandsTwiceIsDamage) {
  const Permutation two = Permutation().with(0, 0).with(1, 1);
  EXPECT_TRUE(two.sound());
  EXPECT_FALSE(Permutation(two.word() & ~uint64_t{0xf0}).sound());
}

class Masstree : public testing::Test {
 protected:
  using Model = std::map<std::string, std::string>;

  static PoolOptions options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    return options;
  }
  double figure(const std::string& name) const {
    for (const Statistic& one : index_->statistics()) {
      if (one.name == name) return one.value;
    }
    return -1;
  }
  void put(const std::string& key) {
    index_->upsert(key, "v" + key);
    model_[key] = "v" + key;
  }
  void remove(const std::string& key) {
    EXPECT_TRUE(index_->remove(key));
    model_.erase(key);
  }
  void expect_equal() const {
    std::string faults;
    index_->check([&](const std::string& fault) { faults += fault + "\n"; });
    EXPECT_EQ(faults, "");
    Value value;
    for (const auto& [key, wanted] : model_) {
      ASSERT_TRUE(index_->lookup(key, value)) << key;
      ASSERT_EQ(value.bytes(), wanted);
      expect_scan(key);
      expect_scan(key + '\0');
    }
    expect_scan("");
    expect_scan_back(std::nullopt, model_.end());
  }
  void expect_scan(const std::string& from) const {
    std::vector<std::string> seen;
    index_->scan(from, 5, [&](Datum key, Datum) {
      seen.emplace_back(key.bytes());
      return true;
    });
    std::vector<std::string> wanted;
    for (auto at = model_.lower_bound(from); at != model_.end() && wanted.size() < 5; ++at)
      wanted.push_back(at->first);
    EXPECT_EQ(seen, wanted) << "from " << from;
    expect_scan_back(from, model_.upper_bound(from));
  }
  void expect_scan_back(std::optional<Datum> from, Model::const_iterator end) const {
    std::vector<std::string> seen;
    index_->scan_back(from, 5, [&](Datum key, Datum) {
      seen.emplace_back(key.bytes());
      return true;
    });
    std::vector<std::string> wanted;
    for (auto at = std::make_reverse_iterator(end); at != model_.rend() && wanted.size() < 5; ++at)
      wanted.push_back(at->first);
    EXPECT_EQ(seen, wanted);
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), options());
  std::unique_ptr<AnyIndex> index_ =
      create_index(pool_, "index", "p-masstree+vl", Kind::kBytes, Kind::kBytes, {});
  Model model_;
};

TEST_F(Masstree, KeysThatDifferInLengthOrZerosOnly) {
  for (size_t length = 0; length <= 40; ++length) {
    put(std::string(length, '\0'));
    put(std::string(length, 'a'));
    put(std::string(length, '\xff'));
  }
  EXPECT_GT(figure("layers_deep"), 4);
  expect_equal();
}

TEST_F(Masstree, LongSharedBeginningsMakeLayersThatGoWithTheirKeys) {
  const std::string beginning = "https://www.example.org/a/long/beginning/";
  const double before = figure("pool_bytes");
  for (int i = 0; i < 2000; ++i) put(beginning + std::to_string(i * 7919 % 100003) + "/page");
  EXPECT_GT(figure("layers"), 5);
  expect_equal();
  while (!model_.empty()) {
    const auto at = std::next(model_.begin(), static_cast<ptrdiff_t>(model_.size() / 2));
    remove(std::string(at->first));
  }
  expect_equal();
  EXPECT_EQ(figure("layers"), 1);
  EXPECT_EQ(figure("pool_bytes"), before);
}

// A removal whose process died is in the caches only. A merge that fills the slot must not meet the
// power failure that brings the removed entry back.
TEST(MasstreeMerge, FillsNoSlotThatIsFreeInTheCachesOnly) {
  using Image = test::FailingMedium::Image;
  constexpr uint64_t kSeeds = 4;
  test::TempDir dir;
  const std::string path = dir.file("pool");
  PoolOptions forced;
  forced.domain = Domain::kLine;
  forced.force_domain = true;
  const auto remove = [&](uint64_t key) {
    Pool pool = Pool::open(path, forced);
    open_index(pool, "i")->remove(key);
  };
  for (const char* name : {"p-masstree", "p-masstree+vl"}) {
    bool goes_on = true;
    for (uint64_t persist = 0; goes_on; ++persist) {
      for (uint64_t seed = 0; seed < kSeeds && goes_on; ++seed) {
        std::filesystem::remove(path);
        {
          Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{16} << 20});
          const auto index = create_index(pool, "i", name, Kind::kU64, Kind::kU64, {});
          // Two nodes, of nine and four.
          for (uint64_t key = 0; key < 13; ++key) index->insert(key, key);
          for (const uint64_t key : {6, 7, 8}) index->remove(key);
        }
        test::FailingMedium medium(path, Domain::kLine);
        medium.begin();
        // The process dies in the removal of 0, before it has flushed it.
        uint64_t dies = 0;
        {
          Pool pool = Pool::open(path, forced);
          const auto index = open_index(pool, "i");
          dies = medium.persists() + 1;  // the first one is about the whole node
          medium.refuse_here(dies, true);
          ASSERT_TRUE(test::fails_with(ErrorCode::kIo, [&] { index->remove(uint64_t{0}); }));
        }
        medium.refuse_here(medium.persists() + persist, true);
        try {
          remove(12);
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the power fails
        }
        goes_on = medium.refused();
        if (!goes_on) break;
        std::filesystem::rename(medium.make_image(Image::kMixed, seed), path);
        Pool pool = Pool::open(path);
        const auto index = open_index(pool, "i");
        index->check([&](const std::string& fault) {
          ADD_FAILURE() << name << ", persist " << persist << ", image " << seed << ": " << fault;
        });
        Value value;
        for (const uint64_t key : {1, 2, 3, 4, 5, 9, 10, 11})
          EXPECT_TRUE(index->lookup(key, value)) << name << ", persist " << persist << ": " << key;
      }
    }
  }
}

// Each next to the others, so that they split nodes of the same parents.
TEST_F(Masstree, ThreadsSplitNodesOfTheSameParents) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kKeys = 12'000;
  for (const char* name : {"p-masstree", "p-masstree+vl"}) {
    const auto words = create_index(pool_, name, name, Kind::kU64, Kind::kU64, {});
    std::atomic<int> wrong{0};
    {
      std::vector<std::jthread> threads;
      for (uint64_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          for (uint64_t i = 0; i < kKeys; ++i) {
            const uint64_t key = (i * 7919 % kKeys) * kThreads + thread;
            if (!words->insert(key, key + 1)) ++wrong;
            // Some go again, so that nodes are merged, too.
            if (i % 16 == 0 && !words->remove(key)) ++wrong;
          }
        });
      }
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(words->check([](const std::string& fault) { ADD_FAILURE() << fault; }), 0);
    Value value;
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t key = i * 7919 % kKeys * kThreads;
      ASSERT_EQ(words->lookup(key, value), i % 16 != 0);
      if (i % 16 != 0) {
        ASSERT_EQ(value.word(), key + 1);
      }
    }
  }
}

TEST_F(Masstree, TheLongestKeysThatDifferInTheirLastByte) {
  put(std::string(1023, 'x') + "a");
  put(std::string(1023, 'x') + "b");
  put(std::string(1023, 'x'));
  EXPECT_EQ(figure("layers"), 128);
  expect_equal();
  remove(std::string(1023, 'x') + "a");
  remove(std::string(1023, 'x'));
  remove(std::string(1023, 'x') + "b");
  EXPECT_EQ(figure("layers"), 1);
  expect_equal();
}

}  // namespace
}  // namespace perdure::index
