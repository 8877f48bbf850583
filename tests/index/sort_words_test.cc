// What scans sort leaves with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "index/tree/sort.h"
#include "support/random.h"

namespace perdure::index::tree {
namespace {

TEST(SortWords, OrdersAnyNumberOfSlots) {
  test::Random random(test::base_seed());
  for (uint32_t count = 0; count <= 64; ++count) {
    for (const uint64_t range : {uint64_t{4}, uint64_t{1000}, ~uint64_t{0}}) {
      // of few: equal ones
      std::vector<std::pair<uint64_t, uint64_t>> expected;
      std::vector<Slot> slots;
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t key = random.next() % range;
        expected.emplace_back(key, key ^ i);
        slots.push_back({key, key ^ i});
      }
      sort_words(slots.data(), count);
      ASSERT_TRUE(std::ranges::is_sorted(slots, {}, &Slot::key)) << count;
      std::vector<std::pair<uint64_t, uint64_t>> found;
      for (const Slot& slot : slots) found.emplace_back(slot.key, slot.value);
      std::ranges::sort(found);
      std::ranges::sort(expected);
      ASSERT_EQ(found, expected) << count;
    }
  }
}

}  // namespace
}  // namespace perdure::index::tree
