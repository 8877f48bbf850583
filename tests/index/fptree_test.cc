// What the scenarios over the catalogue cannot reach of the FPTree.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "index/fptree/fingerprints.h"
#include "index/fptree/layout.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/files.h"

namespace perdure::index::fptree {
namespace {

class FPTree : public testing::Test {
 protected:
  static constexpr uint64_t kRecords = 5000;

  static double figure(const AnyIndex& index, const std::string& name) {
    for (const Statistic& one : index.statistics()) {
      if (one.name == name) return one.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }
  static uint64_t violations(const AnyIndex& index) {
    return index.check([](const std::string&) {});
  }
  // Keys in no order.
  static uint64_t key(uint64_t i) { return hash_of(i); }

  std::unique_ptr<AnyIndex> create(Kind kind = Kind::kU64) {
    return create_index(pool_, "t", "fptree", kind, kind);
  }
  std::unique_ptr<AnyIndex> open() { return open_index(pool_, "t"); }
  void fill(AnyIndex& index) const {
    for (uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(index.insert(key(i), i));
  }
  Root& root() { return *pm::impl_of(pool_).at<Root>(pm::impl_of(pool_).find("t")->root); }
  // A leaf with records, and the number of one of them.
  Leaf& used_leaf(int& slot) {
    const Geometry geometry{kLeafRecords, kLeafGroup};
    for (uint32_t i = 0; i < kLeafGroup; ++i) {
      auto* leaf = pm::impl_of(pool_).at<Leaf>(root().groups + sizeof(GroupHead) +
                                               i * geometry.leaf_bytes());
      slot = std::countr_zero(leaf->bitmap);
      if (leaf->bitmap != 0) return *leaf;
    }
    throw std::logic_error("the first group has no leaf in use");
  }

  test::TempDir dir_;
  PoolOptions options_{.capacity_bytes = uint64_t{64} << 20};
  Pool pool_ = Pool::create(dir_.file("pool"), options_);
};

TEST_F(FPTree, OpensWithoutALookAtTheLeavesAfterACleanClose) {
  auto index = create();
  fill(*index);
  index.reset();
  EXPECT_NE(root().spill, 0U);
  index = open();
  EXPECT_EQ(figure(*index, "recovered_operations"), 0);
  Value value;
  EXPECT_TRUE(index->lookup(key(7), value));
  index->upsert(uint64_t{12345}, uint64_t{1});
  EXPECT_EQ(root().spill, 0U) << "a change makes it wrong";
  EXPECT_EQ(violations(*index), 0U);
}

TEST_F(FPTree, ReadsTheLeavesAfterACrash) {
  create();
  pool_.close();
  const std::string wrong = test::in_crashing_child([&]() -> std::string {
    auto* pool = new Pool(Pool::open(dir_.file("pool"), options_));  // never closed
    fill(*open_index(*pool, "t").release());
    return {};
  });
  ASSERT_EQ(wrong, "");
  pool_ = Pool::open(dir_.file("pool"), options_);
  const auto index = open();
  EXPECT_GT(figure(*index, "recovered_operations"), kRecords / kLeafRecords);
  EXPECT_EQ(figure(*index, "records"), kRecords);
  EXPECT_EQ(violations(*index), 0U);
}

TEST_F(FPTree, LookupsKeepTheSpill) {
  fill(*create());
  Value value;
  EXPECT_TRUE(open()->lookup(key(1), value));
  EXPECT_NE(root().spill, 0U);
}

TEST_F(FPTree, ADamagedSpillIsRefused) {
  fill(*create());
  for (const uint64_t byte : {0, 8, 16, 24, 32, 200}) {
    char& damaged = pm::impl_of(pool_).at<char>(root().spill)[byte];
    damaged = static_cast<char>(damaged ^ 0x10);
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "spill", [&] { open(); })) << byte;
    damaged = static_cast<char>(damaged ^ 0x10);
  }
  for (const uint64_t offset : {root().spill + 8, root().spill + 64, ~uint64_t{63}}) {
    const uint64_t sound = std::exchange(root().spill, offset);
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "spill", [&] { open(); })) << offset;
    root().spill = sound;
  }
  EXPECT_EQ(violations(*open()), 0U);
}

TEST_F(FPTree, ADamagedChainOfGroupsIsRefused) {
  create();
  const uint64_t sound = root().groups;
  for (const uint64_t offset : {uint64_t{0}, sound + 64, ~uint64_t{63}}) {
    root().groups = offset;
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "groups", [&] { open(); })) << offset;
  }
  root().groups = sound;
  pm::impl_of(pool_).at<GroupHead>(sound)->next = sound;  // a ring
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "groups", [&] { open(); }));
}

TEST_F(FPTree, CheckNoticesWhatIsWrongInALeaf) {
  const auto index = create();
  fill(*index);
  ASSERT_EQ(violations(*index), 0U);
  int slot = 0;
  Leaf& leaf = used_leaf(slot);
  const Geometry geometry{kLeafRecords, kLeafGroup};
  const auto notices = [&](auto& word, uint64_t change) {
    const auto sound = word;
    word = static_cast<std::remove_reference_t<decltype(word)>>(word ^ change);
    EXPECT_GT(violations(*index), 0U);
    word = sound;
  };
  notices(Geometry::fingerprints(leaf)[slot], 1);
  notices(geometry.slots(leaf)[slot].key, uint64_t{1} << 63);
  notices(root().spill, 64);
  notices(pm::impl_of(pool_).at<GroupHead>(root().groups)->next, 64);
  const Slot sound = geometry.slots(leaf)[slot];
  const int other = std::countr_zero(leaf.bitmap & (leaf.bitmap - 1));
  geometry.slots(leaf)[slot] = geometry.slots(leaf)[other];
  EXPECT_GT(violations(*index), 0U) << "a key twice";
  geometry.slots(leaf)[slot] = sound;
  EXPECT_EQ(violations(*index), 0U);
}

TEST_F(FPTree, AscendingKeysFillTheirLeaves) {
  const auto index = create();
  for (uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(index->insert(i, i));
  EXPECT_GT(figure(*index, "leaf_fill"), 0.97);
}

TEST_F(FPTree, RemovingEverythingGivesTheGroupsBack) {
  for (const bool ascending : {true, false}) {
    const auto index = ascending ? create() : open();
    fill(*index);
    EXPECT_GT(figure(*index, "leaf_groups"), 6);
    for (uint64_t i = 0; i < kRecords; ++i) {
      ASSERT_TRUE(index->remove(key(ascending ? i : kRecords - 1 - i)));
    }
    EXPECT_LE(figure(*index, "leaf_groups"), 2);
    EXPECT_EQ(figure(*index, "leaves"), 1);
    EXPECT_EQ(figure(*index, "inner_nodes"), 1);
    EXPECT_EQ(violations(*index), 0U);
  }
}

TEST(FPTreeFingerprints, MatchTellsEachSlot) {
  alignas(64) struct {
    Leaf leaf{};
    uint8_t fingerprints[64];
  } block{};
  for (int i = 0; i < 64; ++i) block.fingerprints[i] = static_cast<uint8_t>(i % 5);
  for (const uint32_t records : {4U, 16U, 17U, 48U, 64U}) {
    const uint64_t existing = ~uint64_t{0} >> (64 - records);
    for (uint8_t wanted = 0; wanted < 7; ++wanted) {
      uint64_t expected = 0;
      for (uint32_t i = 0; i < records; ++i) expected |= uint64_t{i % 5 == wanted} << i;
      EXPECT_EQ(match(block.leaf, records, wanted) & existing, expected);
    }
  }
}

}  // namespace
}  // namespace perdure::index::fptree
