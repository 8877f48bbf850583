// What the scenarios over the catalogue cannot reach of Sheaf.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "index/sheaf/layout.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/files.h"

namespace perdure::index {
namespace {

using sheaf::Leaf;
using sheaf::Root;

class Sheaf : public testing::Test {
 protected:
  static constexpr uint64_t kKeys = 20000;

  static double figure(const AnyIndex& index, const std::string& name) {
    for (const Statistic& one : index.statistics()) {
      if (one.name == name) return one.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }
  std::unique_ptr<AnyIndex> create(const OptionMap& options = {}) {
    return create_index(pool_, "t", "sheaf", Kind::kU64, Kind::kU64, options);
  }
  Root& root() { return *pm::impl_of(pool_).at<Root>(pm::impl_of(pool_).find("t")->root); }
  static uint64_t faults(const AnyIndex& index) {
    return index.check([](const std::string& text) { ADD_FAILURE() << text; });
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
};

TEST_F(Sheaf, AscendingKeysFillLeaves) {
  const auto index = create();
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
  EXPECT_GT(figure(*index, "leaf_fill"), 0.9);
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, RemovingEverythingLeavesFewLeaves) {
  for (const bool upwards : {true, false}) {
    const auto index = create_index(pool_, upwards ? "t" : "u", "sheaf", Kind::kU64, Kind::kU64,
                                    {{"leaf_bytes", "512"}, {"buffer_records", "4"}});
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
    EXPECT_GT(figure(*index, "leaves"), 500);
    for (uint64_t key = 0; key < kKeys; ++key) index->remove(upwards ? key : kKeys - 1 - key);
    EXPECT_LT(figure(*index, "leaves"), 20);
    EXPECT_EQ(figure(*index, "records"), 0);
    EXPECT_EQ(faults(*index), 0U);
  }
}

TEST_F(Sheaf, UpdatesOfFewKeysKeepOneLeafAndTheFirstChunks) {
  const auto index = create({{"chunk_bytes", "1024"}});
  for (uint64_t i = 0; i < 20 * kKeys; ++i) index->upsert(i % 40, i);
  EXPECT_EQ(figure(*index, "leaves"), 1);
  EXPECT_EQ(figure(*index, "records"), 40);
  EXPECT_EQ(figure(*index, "log_bytes"), 4 * 1024);
}

TEST_F(Sheaf, TheLogIsAPartOfTheLeaves) {
  const auto index = create({{"leaf_bytes", "1024"}, {"chunk_bytes", "1024"}});
  for (uint64_t key = 0; key < 5 * kKeys; ++key) index->insert(key * 7919 % (5 * kKeys), key);
  EXPECT_LT(figure(*index, "log_bytes"), figure(*index, "pool_bytes") / 6);
  EXPECT_GT(figure(*index, "buffered_records"), 100);
}

TEST_F(Sheaf, OpeningReplaysNoMoreThanTheLogHolds) {
  auto index = create({{"leaf_bytes", "1024"}, {"chunk_bytes", "1024"}});
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
  const double buffered = figure(*index, "buffered_records");
  index.reset();
  index = open_index(pool_, "t");
  EXPECT_EQ(figure(*index, "buffered_records"), buffered);
  EXPECT_GE(figure(*index, "recovered_operations"), buffered);
  EXPECT_LE(figure(*index, "recovered_operations"), figure(*index, "log_bytes") / 24);
  Value value;
  for (uint64_t key = 0; key < kKeys; ++key) {
    ASSERT_TRUE(index->lookup(key * 7919 % kKeys, value));
    ASSERT_EQ(value.datum().word(), key);
  }
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, TheDirectoryGrowsAndIsUsedAgain) {
  auto index = create({{"leaf_bytes", "256"}, {"buffer_records", "4"}});
  for (int round = 0; round < 3; ++round) {
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
    EXPECT_GT(figure(*index, "leaves"), 1000);
    index.reset();
    index = open_index(pool_, "t");
    EXPECT_EQ(faults(*index), 0U);
    for (uint64_t key = 0; key < kKeys; ++key) ASSERT_TRUE(index->remove(key));
  }
}

TEST_F(Sheaf, ADamagedHeaderOfALeafIsRefused) {
  auto index = create();
  for (uint64_t key = 0; key < 1000; ++key) index->insert(key, key);
  index.reset();
  auto& leaf = *pm::impl_of(pool_).at<Leaf>(root().slot);
  for (uint64_t* word : {&leaf.merged, &leaf.low, &leaf.first}) {
    *word ^= 1;
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { open_index(pool_, "t"); }));
    *word ^= 1;
  }
  index = open_index(pool_, "t");
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, ADamagedRecordIsFoundAndNotMerged) {
  const auto index = create();
  for (uint64_t key = 0; key < 1000; ++key) index->insert(key, key);
  auto& leaf = *pm::impl_of(pool_).at<Leaf>(root().slot);
  ASSERT_GT(leaf.count, 0U);
  leaf.records()[0].value ^= 1;
  EXPECT_GT(index->check([](const std::string&) {}), 0U);
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] {
    for (uint64_t i = 0; i < 1000; ++i) index->upsert(i, i);
  }));
}

TEST_F(Sheaf, SmallerOptionsThanTheTreeHasAreRefused) {
  create({{"leaf_bytes", "1024"}}).reset();
  EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument,
                               [&] { open_index(pool_, "t", {{"leaf_bytes", "2048"}}); }));
}

}  // namespace
}  // namespace perdure::index
