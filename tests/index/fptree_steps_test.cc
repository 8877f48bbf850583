// FPTree with others' work between two steps of an operation: orders of events that threads meet
// seldom.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "index/fptree/core.h"
#include "perdure/pool.h"
#include "pm/pool_impl.h"
#include "support/failing_medium.h"
#include "support/files.h"

namespace perdure::index::fptree {

// The steps of Core's operations.
struct Steps {
  using Tree = Core<tree::Words>;

  // A write whose thread has seen the pool writable.
  static bool insert(Tree& tree, uint64_t key, uint64_t value) {
    return tree.write_once(Verb::kInsert, key, value);
  }
  static auto find(const Tree& tree, uint64_t key) { return tree.inner_.find(key); }
  // The keys that a scan finds in the leaf.
  static std::vector<uint64_t> keys_of_leaf(const Tree& tree, const auto& position, uint64_t from) {
    Tree::Copied copied;
    if (!tree.copy_leaf(position, from, copied)) return {};
    std::vector<uint64_t> keys;
    for (uint32_t i = 0; i < copied.count; ++i) keys.push_back(copied.slots[i].key);
    return keys;
  }
  static auto find_under(const Tree& tree, const tree::Ceiling<tree::Words>& ceiling,
                         tree::Floor<tree::Words>& floor) {
    return tree.inner_.find_under(ceiling, floor);
  }
  // The same of a scan downwards.
  static std::vector<uint64_t> keys_of_leaf(const Tree& tree, const auto& position,
                                            const tree::Floor<tree::Words>& floor,
                                            const tree::Ceiling<tree::Words>& ceiling) {
    std::array<Slot, 64> copied;
    const Slot* end = tree.copy_slots(position, copied.data());
    if (end == nullptr) return {};
    std::vector<Slot> slots(static_cast<const Slot*>(copied.data()), end);
    tree::arrange(tree.records_, floor, ceiling, slots);
    std::vector<uint64_t> keys;
    for (const Slot& slot : slots) keys.push_back(slot.key);
    return keys;
  }
};

namespace {

class FPTreeSteps : public testing::Test {
 protected:
  std::unique_ptr<Steps::Tree> make(const Options& options) {
    return Steps::Tree::create(pm::impl_of(pool_), "t", Kind::kU64, Kind::kU64, options);
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
};

// A leaf inherits the range of the next inner node, without a change of its own inner node, after a
// scan has found it and before the scan reads it.
TEST_F(FPTreeSteps, AScanTellsOfNoKeyBeyondTheBoundThatItGoesOnFrom) {
  const auto tree = make({.leaf_records = 4, .leaf_group = 4, .inner_records = 4});
  // Leaves of 0 to 30, 40 to 70, 80 to 110 and 120 to 150 in one inner node, and of 160 to 190 in
  // another.
  for (uint64_t key = 0; key < 200; key += 10) tree->write(Verb::kInsert, key, key);
  tree->remove(130);
  const auto position = Steps::find(*tree, 120);
  ASSERT_TRUE(position.bounded);
  ASSERT_EQ(position.bound.word, 160U);
  for (uint64_t key = 160; key < 200; key += 10) tree->remove(key);
  tree->write(Verb::kInsert, 165, 165);
  ASSERT_EQ(Steps::find(*tree, 165).leaf, position.leaf);
  ASSERT_TRUE(position.holds());
  EXPECT_EQ(Steps::keys_of_leaf(*tree, position, 120), (std::vector<uint64_t>{120, 140, 150}));
  EXPECT_EQ(Steps::keys_of_leaf(*tree, position, 150), (std::vector<uint64_t>{150}));
}

// The same downwards: the range of the inner node before, which was the first one.
TEST_F(FPTreeSteps, AScanDownwardsTellsOfNoKeyBelowTheFloorThatItGoesOnFrom) {
  const auto tree = make({.leaf_records = 4, .leaf_group = 4, .inner_records = 4});
  // As above, and three more leaves in the second inner node, so that the first one goes instead of
  // merging with it.
  for (uint64_t key = 0; key < 320; key += 10) tree->write(Verb::kInsert, key, key);
  tree->remove(170);
  const uint64_t from = 180;
  tree::Ceiling<tree::Words> ceiling(&from);
  tree::Floor<tree::Words> floor;
  const auto position = Steps::find_under(*tree, ceiling, floor);
  ASSERT_FALSE(floor.lowest());
  ASSERT_EQ(floor.key(), 160U);
  for (uint64_t key = 0; key < 160; key += 10) tree->remove(key);
  tree->write(Verb::kInsert, 155, 155);
  ASSERT_EQ(Steps::find(*tree, 155).leaf, position.leaf);
  ASSERT_TRUE(position.holds());
  EXPECT_EQ(Steps::keys_of_leaf(*tree, position, floor, ceiling),
            (std::vector<uint64_t>{160, 180}));
  // What it left out comes next.
  ceiling.lower_to_below(floor.key());
  const auto next = Steps::find_under(*tree, ceiling, floor);
  EXPECT_TRUE(floor.lowest());
  EXPECT_EQ(Steps::keys_of_leaf(*tree, next, floor, ceiling), (std::vector<uint64_t>{155}));
}

// A split that the medium refuses may be on it as an armed redo record. The leaf that it was to
// fill must not be another thread's, who began to write before the medium failed.
TEST_F(FPTreeSteps, ALeafThatAFailedSplitTookIsNotTakenAgain) {
  constexpr uint64_t kKeys = 8;
  const std::string path = dir_.file("failing");
  PoolOptions forced;
  forced.domain = Domain::kLine;
  forced.force_domain = true;
  const auto open_tree = [](Pool& pool) {
    return Steps::Tree::open(pm::impl_of(pool), "t", Kind::kU64, Kind::kU64, {});
  };
  const auto split_twice = [&](test::FailingMedium&) {
    Pool pool = Pool::open(path, forced);
    const auto tree = open_tree(pool);
    try {
      tree->write(Verb::kInsert, 5, 0);
    } catch (const Error&) {
      Steps::insert(*tree, 45, 0);  // the other thread
    }
  };
  uint64_t persist = 0;
  for (;; ++persist) {
    std::filesystem::remove(path);
    {
      Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{16} << 20});
      const auto tree = Steps::Tree::create(pm::impl_of(pool), "t", Kind::kU64, Kind::kU64,
                                            {.leaf_records = 4, .leaf_group = 4});
      // Two full leaves.
      for (uint64_t key = 0; key < kKeys; ++key) tree->write(Verb::kInsert, key * 10, key);
    }
    if (!test::power_fails(path, Domain::kLine, persist, test::FailingMedium::Image::kAll, 0,
                           split_twice)) {
      break;
    }
    Pool pool = Pool::open(path);
    const auto tree = open_tree(pool);
    for (uint64_t key = 0; key < kKeys; ++key) {
      uint64_t value = kKeys;
      EXPECT_TRUE(tree->lookup(key * 10, [&](uint64_t found) { value = found; }));
      EXPECT_EQ(value, key) << "persist " << persist;
    }
  }
  EXPECT_GE(persist, 3U);  // of the split
}

}  // namespace
}  // namespace perdure::index::fptree
