// What the scenarios over the catalogue cannot reach of the wB+Tree.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "index/wbtree/layout.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/files.h"

namespace perdure::index::wbtree {
namespace {

TEST(WbtreeOrder, KeepsPlacesWhenCellsComeAndGo) {
  Order order;
  for (uint32_t i = 0; i < kRecordsMax; ++i) order.insert(0, i + 1);
  EXPECT_EQ(order.count(), kRecordsMax);
  EXPECT_EQ(order[0], kRecordsMax);
  EXPECT_EQ(order[kRecordsMax - 1], 1U);
  order.erase(0);
  order.erase(order.count() - 1);
  EXPECT_EQ(order.count(), kRecordsMax - 2);
  EXPECT_EQ(order[0], kRecordsMax - 1);
  EXPECT_EQ(order[order.count() - 1], 2U);
}

TEST(WbtreeOrder, PassesOverCellsThatDoNotCount) {
  Node node{};
  Order listed;
  for (const uint32_t cell : {9U, 1U, 8U, 3U}) listed.append(cell);
  store_order(node, listed);
  Order order;
  load_live_order(node, kOrderValid | bit(9) | bit(3), order);
  ASSERT_EQ(order.count(), 2U);
  EXPECT_EQ(order[0], 9U);
  EXPECT_EQ(order[1], 3U);
}

// A crash in the middle of an insert leaves a leaf whose slot array is not valid, and may be
// anything.
class InvalidSlotArray : public testing::TestWithParam<Kind> {
 protected:
  InvalidSlotArray() {
    index_ = create_index(pool_, "index", "wbtree", Kind::kU64, GetParam());
    for (uint64_t key = 40; key > 0; --key) EXPECT_TRUE(index_->insert(key * 10, datum(key)));
    EXPECT_TRUE(index_->remove(uint64_t{50}));
    const auto& root = *pm::impl_of(pool_).at<Root>(pm::impl_of(pool_).find("index")->root);
    leaf_ = pm::impl_of(pool_).at<Node>(root.top);
    leaf_->bitmap &= ~kOrderValid;
    for (uint64_t& word : leaf_->order) word = ~uint64_t{0};
  }

  Datum datum(uint64_t number) {
    text_ = std::to_string(number);
    if (GetParam() == Kind::kU64) return number;
    return std::string_view(text_);
  }
  std::vector<uint64_t> keys_from(uint64_t from, uint64_t limit) const {
    std::vector<uint64_t> keys;
    index_->scan(from, limit, [&](Datum key, Datum) {
      keys.push_back(key.word());
      return true;
    });
    return keys;
  }
  double figure(const std::string& name) const {
    for (const Statistic& one : index_->statistics()) {
      if (one.name == name) return one.value;
    }
    return -1;
  }
  std::string faults() const {
    std::string all;
    index_->check([&](const std::string& fault) { all += fault + "\n"; });
    return all;
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{16} << 20});
  std::unique_ptr<AnyIndex> index_;
  Node* leaf_ = nullptr;
  std::string text_;
};

TEST_P(InvalidSlotArray, IsNotBelieved) {
  Value value;
  EXPECT_TRUE(index_->lookup(uint64_t{70}, value));
  EXPECT_TRUE(value.datum() == datum(7));
  EXPECT_FALSE(index_->lookup(uint64_t{50}, value));
  EXPECT_FALSE(index_->lookup(uint64_t{75}, value));
  EXPECT_EQ(keys_from(35, 3), (std::vector<uint64_t>{40, 60, 70}));
  EXPECT_EQ(keys_from(0, 100).size(), 39U);
  EXPECT_EQ(faults(), "");
  EXPECT_EQ(leaf_->order[0], ~uint64_t{0}) << "readers write nothing";
}

TEST_P(InvalidSlotArray, IsWrittenAnewByTheNextInsert) {
  EXPECT_TRUE(index_->update(uint64_t{70}, datum(700)));
  EXPECT_TRUE(index_->remove(uint64_t{10}));
  EXPECT_EQ(figure("invalid_slot_arrays"), 1);
  EXPECT_EQ(figure("recovered_operations"), 0);
  EXPECT_TRUE(index_->insert(uint64_t{55}, datum(5)));
  EXPECT_EQ(figure("invalid_slot_arrays"), 0);
  EXPECT_EQ(figure("recovered_operations"), 1);
  EXPECT_EQ(keys_from(35, 4), (std::vector<uint64_t>{40, 55, 60, 70}));
  EXPECT_EQ(faults(), "");
}

TEST_P(InvalidSlotArray, OfAFullLeafIsSortedWhenItIsSplit) {
  for (uint64_t key = 1; figure("depth") == 0; ++key) {
    leaf_->bitmap &= ~kOrderValid;
    leaf_->order[0] = ~uint64_t{0};
    ASSERT_TRUE(index_->insert(key * 10 + 5, datum(key)));
  }
  EXPECT_EQ(figure("leaves"), 2);
  EXPECT_EQ(keys_from(0, 1000).size(), 60U);
  EXPECT_EQ(faults(), "");
}

TEST_P(InvalidSlotArray, AndOtherFaultsAreFoundByACheck) {
  ASSERT_TRUE(index_->insert(uint64_t{55}, datum(5)));
  ASSERT_EQ(faults(), "");
  const Node good = *leaf_;
  Order order;
  load_order(*leaf_, order);
  order.erase(3);
  order.insert(3, order[2]);
  store_order(*leaf_, order);
  EXPECT_NE(faults(), "") << "a record that is not listed";
  *leaf_ = good;
  leaf_->bitmap |= bit(5);
  EXPECT_NE(faults(), "") << "a bit of the slot array's cells";
  *leaf_ = good;
  load_order(*leaf_, order);
  std::swap(leaf_->cell(order[0]), leaf_->cell(order[1]));
  EXPECT_NE(faults(), "") << "records that do not ascend";
  *leaf_ = good;
  EXPECT_EQ(faults(), "");
}

TEST(WbtreeCheck, JudgesTheSeparatorOfTheTopmostNodeBeforeItReadsIt) {
  Pool pool = Pool::anonymous();
  const auto index = create_index(pool, "index", "wbtree", Kind::kBytes, Kind::kBytes);
  ASSERT_TRUE(index->insert(std::string_view("key"), std::string_view("value")));
  const auto& root = *pm::impl_of(pool).at<Root>(pm::impl_of(pool).find("index")->root);
  pm::impl_of(pool).at<Node>(root.top)->separator =
      pm::impl_of(pool).end_offset() - sizeof(uint64_t);
  std::string found;
  EXPECT_EQ(index->check([&](const std::string& text) { found += text; }), 1U);
  EXPECT_NE(found.find("separator of the topmost node"), std::string::npos) << found;
}

INSTANTIATE_TEST_SUITE_P(Kinds, InvalidSlotArray, testing::Values(Kind::kU64, Kind::kBytes),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

}  // namespace
}  // namespace perdure::index::wbtree
