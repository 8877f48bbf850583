// What the scenarios do not look at in the Bw-tree: nodes go with their records, at each level;
// what others, and a crash, find at the places where a node goes and is born; the table of nodes in
// a full pool.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "perdure/catalog.h"
#include "support/at_place.h"
#include "support/files.h"

namespace perdure::index {
namespace {

class BwTree : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<AnyIndex> make(const OptionMap& options) {
    return create_index(pool_, "tree", "p-bwtree", GetParam(), GetParam(), options);
  }
  static double figure(const AnyIndex& tree, const std::string& name) {
    for (const Statistic& one : tree.statistics()) {
      if (one.name == name) return one.value;
    }
    return -1;
  }
  // Of words the number itself; else so that keys share their beginning, and are long.
  static std::string text(uint64_t i) {
    return std::string(600, 'k') + std::to_string(1000000 + i);
  }
  static bool insert(AnyIndex& tree, uint64_t i) {
    return GetParam() == Kind::kU64 ? tree.insert(i, i) : tree.insert(text(i), "value");
  }
  static bool remove(AnyIndex& tree, uint64_t i) {
    return GetParam() == Kind::kU64 ? tree.remove(i) : tree.remove(text(i));
  }
  static bool holds(const AnyIndex& tree, uint64_t i) {
    Value value;
    return GetParam() == Kind::kU64 ? tree.lookup(i, value) : tree.lookup(text(i), value);
  }
  // How many of [from, to) are there.
  static uint64_t present(const AnyIndex& tree, uint64_t from, uint64_t to) {
    uint64_t count = 0;
    for (uint64_t i = from; i < to; ++i) count += holds(tree, i) ? 1 : 0;
    return count;
  }
  static std::string faults(const AnyIndex& tree) {
    std::string all;
    tree.check([&](const std::string& fault) { all += fault + "\n"; });
    return all;
  }
  // What a crash would leave now.
  std::string copy_pool() const {
    std::string copy = dir_.file("copy");
    std::filesystem::copy_file(dir_.file("pool"), copy);
    return copy;
  }
  // Fills a tree, empties it, and calls `look` when the root has just taken its only child in, a
  // leaf.
  template <typename Look>
  static void empty_to_the_root(AnyIndex& tree, Look look) {
    bool looked = false;
    const test::AtPlace here("bwtree: absorbed", [&] {
      if (looked || figure(tree, "depth") != 1) return;
      looked = true;
      look();
    });
    for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(insert(tree, i));
    for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(remove(tree, i));
    ASSERT_TRUE(looked);
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
};

TEST_P(BwTree, NodesGoWithTheirRecords) {
  const auto tree = make({{"node_keys", "8"}, {"chain", "3"}});
  constexpr uint64_t kRecords = 3000;
  const double empty = figure(*tree, "pool_bytes");
  for (uint64_t i = 0; i < kRecords; ++i) ASSERT_TRUE(insert(*tree, i * 7919 % kRecords));
  EXPECT_GT(figure(*tree, "depth"), 3);
  EXPECT_EQ(faults(*tree), "");
  for (uint64_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(remove(*tree, i * 6007 % kRecords));
    if (i % 500 == 0) {
      ASSERT_EQ(faults(*tree), "");
    }
  }
  EXPECT_EQ(faults(*tree), "");
  EXPECT_LE(figure(*tree, "leaves"), 3);
  EXPECT_LE(figure(*tree, "depth"), 2);
  // What is left is the table of nodes, and some superseded records.
  EXPECT_LT(figure(*tree, "pool_bytes") - empty, 64 << 10);
}

TEST_P(BwTree, ALeafIsConsolidatedWhenItsChainIsFull) {
  const auto tree = make({{"chain", "5"}});
  for (uint64_t i = 0; i < 5; ++i) insert(*tree, i);
  EXPECT_EQ(figure(*tree, "chain"), 5);
  insert(*tree, 5);
  EXPECT_EQ(figure(*tree, "chain"), 1);
  EXPECT_EQ(figure(*tree, "records"), 6);
}

// The only child is taken in, and a crash comes before it is dropped. What the root grows to
// afterwards is not its own.
TEST_P(BwTree, WhatTheRootGrowsToAfterACrashStaysWhenNodesGo) {
  const auto tree = make({{"node_keys", "8"}, {"chain", "3"}});
  std::string copy;
  empty_to_the_root(*tree, [&] { copy = copy_pool(); });
  ASSERT_FALSE(copy.empty());
  Pool crashed = Pool::open(copy);
  const auto found = open_index(crashed, "tree");
  EXPECT_EQ(faults(*found), "");
  const double left = figure(*found, "records");
  for (uint64_t i = 100; i < 1100; ++i) ASSERT_TRUE(insert(*found, i));
  for (uint64_t i = 100; i < 300; ++i) ASSERT_TRUE(remove(*found, i));
  EXPECT_EQ(present(*found, 300, 1100), 800U);
  EXPECT_EQ(figure(*found, "records"), left + 800);
  EXPECT_EQ(faults(*found), "");
}

// The same without a crash, and with one after the root has grown: who lets the only child go is
// overtaken.
TEST_P(BwTree, WhatTheRootGrowsToWhileItsOnlyChildGoesStays) {
  const auto tree = make({{"node_keys", "8"}, {"chain", "3"}});
  std::string copy;
  empty_to_the_root(*tree, [&] {
    std::thread([&] {
      for (uint64_t i = 100; i < 200; ++i) EXPECT_TRUE(insert(*tree, i));
    }).join();
    EXPECT_GT(figure(*tree, "depth"), 1);
    copy = copy_pool();
  });
  ASSERT_FALSE(copy.empty());
  EXPECT_EQ(present(*tree, 100, 200), 100U);
  EXPECT_EQ(faults(*tree), "");

  Pool crashed = Pool::open(copy);
  const auto found = open_index(crashed, "tree");
  EXPECT_EQ(faults(*found), "");
  EXPECT_EQ(present(*found, 100, 200), 100U);
  for (uint64_t i = 100; i < 150; ++i) ASSERT_TRUE(remove(*found, i));
  EXPECT_EQ(present(*found, 100, 200), 50U);
  EXPECT_EQ(faults(*found), "");
}

// A crash leaves a node that is to go, and nobody removes anything afterwards.
TEST_P(BwTree, InnerNodesAreSplitAfterACrashThatLeftANodeToGo) {
  const auto tree = make({{"node_keys", "8"}, {"chain", "3"}});
  std::string copy;
  {
    const test::AtPlace here("bwtree: absorbed", [&] {
      if (copy.empty()) copy = copy_pool();
    });
    for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(insert(*tree, i));
    for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(remove(*tree, i));
  }
  ASSERT_FALSE(copy.empty());
  Pool crashed = Pool::open(copy);
  const auto found = open_index(crashed, "tree");
  for (uint64_t i = 100; i < 3100; ++i) ASSERT_TRUE(insert(*found, i));
  EXPECT_EQ(present(*found, 100, 3100), 3000U);
  EXPECT_EQ(faults(*found), "");
  EXPECT_LE(figure(*found, "leaves"), 8 * figure(*found, "inner_nodes"));
}

// Their blocks go at once if the split is overtaken.
TEST_P(BwTree, NodesThatNothingLeadsToYetAreNotLookedAt) {
  const auto tree = make({{"node_keys", "4"}, {"chain", "2"}});
  uint32_t looks = 0;
  const test::AtPlace here("bwtree: unborn", [&] {
    ++looks;
    EXPECT_EQ(faults(*tree), "");
  });
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(insert(*tree, i));
  EXPECT_GT(looks, 3U);
}

// Of words a pool has room for more leaves than the heap keeps blocks for.
TEST_P(BwTree, ARemovalByAVisitorInAFullPoolSaysWhatItWaitsFor) {
  if (GetParam() != Kind::kU64) return;
  Pool pool = Pool::create(dir_.file("small"), {.capacity_bytes = uint64_t{4} << 20});
  const auto tree = create_index(pool, "tree", "p-bwtree", GetParam(), GetParam(), {});
  uint64_t records = 0;
  try {
    while (insert(*tree, records)) ++records;
    FAIL() << "no pool is that large";
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::kPoolFull);
  }
  uint64_t removed = 0;
  const auto visit = [&](uint64_t i) {
    EXPECT_TRUE(remove(*tree, i));
    ++removed;
    return true;
  };
  try {
    tree->scan(uint64_t{0}, records, [&](Datum, Datum) { return visit(removed); });
    FAIL() << "all leaves had room";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
    EXPECT_NE(std::string(error.what()).find("after the visit"), std::string::npos) << error.what();
  }
  for (uint64_t i = removed; i < records; ++i) ASSERT_TRUE(remove(*tree, i)) << i;
  EXPECT_EQ(figure(*tree, "records"), 0);
  EXPECT_EQ(faults(*tree), "");
}

// The last eighth of the table's numbers serves when there is no room for a larger table.
TEST_P(BwTree, TheTableServesToItsEndInAFullPool) {
  if (GetParam() != Kind::kU64) return;
  const OptionMap options = {{"node_keys", "4"}, {"chain", "2"}};
  const auto tree = make(options);
  const auto other = create_index(pool_, "other", "p-bwtree", GetParam(), GetParam(), options);
  const auto nodes = [&] { return figure(*tree, "leaves") + figure(*tree, "inner_nodes"); };
  constexpr double kNumbers = 64 * 255;         // of eight chunks; the ninth has two segments
  constexpr double kEnough = kNumbers / 8 * 7;  // for a larger table
  uint64_t records = 0;
  for (double now = 0; now < kEnough - 64; now = nodes()) {
    const auto end = records + static_cast<uint64_t>(kEnough - 63 - now);
    for (; records < end; ++records) ASSERT_TRUE(insert(*tree, records));
  }
  // Blocks for nodes, and no segment.
  constexpr uint64_t kOthers = 4000;
  for (uint64_t i = 0; i < kOthers; ++i) ASSERT_TRUE(insert(*other, i));
  for (uint64_t i = 0; i < kOthers; ++i) {
    if (i % 8 != 0) {
      ASSERT_TRUE(remove(*other, i));
    }
  }
  const auto ballast = create_index(pool_, "ballast", "fptree", Kind::kU64, Kind::kBytes, {});
  uint64_t filled = 0;
  for (uint64_t bytes = 32 << 10; bytes >= 1 << 10; bytes /= 2) {
    try {
      for (;;) ballast->insert(filled++, std::string(bytes, 'b'));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kPoolFull);
    }
  }
  for (uint64_t end = records + 400; records < end; ++records) ASSERT_TRUE(insert(*tree, records));
  EXPECT_GT(nodes(), kEnough + 32);
  EXPECT_EQ(faults(*tree), "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, BwTree, testing::Values(Kind::kU64, Kind::kBytes),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace perdure::index
