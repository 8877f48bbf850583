// Entries of Plush that are being migrated while their records change.
#include <gtest/gtest.h>

#include <string>

#include "perdure/plush.h"

namespace perdure::test {
namespace {

using Texts = Plush<uint64_t, std::string>;

double statistic(const Texts& table, const std::string& name) {
  for (const Statistic& one : table.statistics()) {
    if (one.name == name) return one.value;
  }
  return 0;
}

class MigrationTest : public testing::TestWithParam<PlushOrder> {
 protected:
  static constexpr uint64_t kKeys = 1 << 15;
  static constexpr uint64_t kStride = 12345;  // so that keys come from everywhere in their range

  static uint64_t key_at(uint64_t i) { return i * kStride % kKeys; }

  Pool pool_ = Pool::anonymous({.capacity_bytes = uint64_t{256} << 20});
};

// An entry of the second level is half-way to its children when all keys are removed: each removal
// leaves a tombstone where the record was, and the payload of all of them is garbage and collected,
// before the rest goes down. Tombstones lead to payload, too: that of their keys.
TEST_P(MigrationTest, TombstonesKeepTheirPayloadOnTheWayDown) {
  PlushOptions options{
      .directory_bits = 1, .fanout = 16, .partitions = 1, .filter_levels = 0, .order = GetParam()};
  if (GetParam() == PlushOrder::kRange) options.key_max = kKeys - 1;
  auto table = Texts::create(pool_, "t", options);
  const std::string value(500, 'v');
  uint64_t written = 0;
  while (statistic(table, "records_level_3") == 0) {
    ASSERT_LT(written, kKeys) << "nothing was migrated";
    table.upsert(key_at(written++), value);
  }
  for (uint64_t i = 0; i < written; ++i) ASSERT_TRUE(table.remove(key_at(i))) << i;
  // Each of these gets a chunk of its own; those that are garbage are collected with it.
  const std::string large(60000, 'l');
  for (uint64_t i = 0; i < 40; ++i) table.upsert(key_at(kKeys - 1 - i), large);
  for (uint64_t i = 0; i < written; ++i) {
    std::string found;
    ASSERT_NO_THROW(ASSERT_FALSE(table.remove(key_at(i))) << i) << i;
    ASSERT_NO_THROW(ASSERT_FALSE(table.lookup(key_at(i), found)) << i) << i;
  }
  EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

INSTANTIATE_TEST_SUITE_P(Orders, MigrationTest,
                         testing::Values(PlushOrder::kHash, PlushOrder::kRange),
                         [](const auto& info) {
                           return info.param == PlushOrder::kHash ? "Hash" : "Range";
                         });

}  // namespace
}  // namespace perdure::test
