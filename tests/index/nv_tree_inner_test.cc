// The inner part of an NV-Tree by itself, under threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "index/nvtree/inner.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "support/at_place.h"
#include "support/scale.h"

namespace perdure::index::nvtree {
namespace {

using Words = Inner<tree::Words>;

class InnerPart : public testing::Test {
 protected:
  static constexpr uint32_t kRecords = 256;
  static constexpr uint64_t kLeaves = uint64_t{kRecords} * kRecords / 2;

  InnerPart() {
    ChildList children;
    for (uint64_t i = 0; i < kLeaves; ++i) children.push_back({i << 32, nullptr, i + 1});
    inner_.build(std::move(children));
  }
  // Fills the parent of key 0, or empties it but for one leaf, so that its group must be rebuilt.
  void make_rebuild_due(bool fill) {
    const pm::EpochManager::Guard guard(epochs_);
    const Words::Held held = inner_.lock(0);
    held.parent->lock.begin_change();
    const uint64_t bound = held.parent->child(1).word;
    for (uint64_t i = 1; fill && held.parent->count() < kRecords; ++i) {
      held.parent->insert(1, {bound - i, nullptr, kLeaves + i});
    }
    while (!fill && held.parent->count() > 1) held.parent->remove(held.parent->count() - 1);
  }

  pm::EpochManager epochs_;
  Words inner_{epochs_, kRecords};
};

// Who finds a leaf by a parent locks the leaf and validates the parent. If another parent of the
// same keys could be valid at that time, somebody may have replaced the leaf by way of that one.
TEST_F(InnerPart, NoTwoParentsOfAKeyAreValidAtATime) {
  std::atomic<bool> done{false};
  std::atomic<uint64_t> both_valid{0};
  std::thread reader([&] {
    while (!done.load(std::memory_order_relaxed)) {
      const pm::EpochManager::Guard guard(epochs_);
      const auto first = inner_.find(0);
      const auto second = inner_.find(0);
      if (first.parent != second.parent && first.parent->lock.validate(first.stamp)) ++both_valid;
    }
  });
  const uint64_t rounds = test::scaled(1500);
  for (uint64_t round = 0; round < rounds; ++round) {
    make_rebuild_due(round % 2 == 0);
    const pm::EpochManager::Guard guard(epochs_);
    inner_.rebuild(0);
  }
  done = true;
  reader.join();
  EXPECT_EQ(inner_.rebuilds(), rounds);
  EXPECT_EQ(both_valid, 0U);
}

// The same at the one moment that matters, which threads meet seldom: the new top has just been
// published.
TEST_F(InnerPart, NoOldParentIsValidOnceTheNewTopIsThere) {
  for (const bool fill : {true, false}) {
    make_rebuild_due(fill);
    const pm::EpochManager::Guard guard(epochs_);
    std::vector<Words::Place> before;  // of keys of all the parents
    for (uint64_t i = 0; i < kLeaves; i += kRecords / 4) before.push_back(inner_.find(i << 32));
    uint64_t replaced = 0;
    const test::AtPlace published("nv-tree: top", [&] {
      for (uint64_t i = 0; i < before.size(); ++i) {
        if (inner_.find((i * kRecords / 4) << 32).parent == before[i].parent) continue;
        ++replaced;
        EXPECT_FALSE(before[i].parent->lock.validate(before[i].stamp)) << "parent of leaf " << i;
      }
    });
    inner_.rebuild(0);
    EXPECT_GT(replaced, 1U);
  }
}

}  // namespace
}  // namespace perdure::index::nvtree
