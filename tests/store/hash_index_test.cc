// The hash index beside a multimap, whatever the order in which entries come.
#include "store/hash_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using store::HashIndex;
using store::Location;

// How the tags of entries follow one another. From another store they come in their order: then all
// of the table that is in use is one run.
enum class Order : uint8_t { kRandom, kAscending, kDescending, kFew };

class HashIndexTest : public testing::TestWithParam<Order> {
 protected:
  // Of entry i of so many.
  uint64_t tag(uint64_t i, uint64_t count) {
    switch (GetParam()) {
      case Order::kRandom:
        return random_.below(HashIndex::kTags);
      case Order::kAscending:
        return i * (HashIndex::kTags / count);
      case Order::kDescending:
        return HashIndex::kTags - 1 - i * (HashIndex::kTags / count);
      case Order::kFew:
        return random_.below(3) * (HashIndex::kTags / 2 - 1);
    }
    return 0;
  }
  void insert(uint64_t tag) {
    index_.reserve(1);
    const Location location(static_cast<uint32_t>(next_ >> 10), next_ % 1024 * 8 + 8);
    ++next_;
    index_.insert(tag, location);
    model_.emplace(tag, location.word());
  }
  uint64_t find(uint64_t tag, uint64_t word) const {
    return index_.find(tag, [&](Location location) { return location.word() == word; });
  }
  void erase(std::multimap<uint64_t, uint64_t>::iterator at) {
    const uint64_t entry = find(at->first, at->second);
    ASSERT_NE(entry, HashIndex::kNone) << at->first;
    index_.erase(entry);
    model_.erase(at);
  }
  void expect_same() {
    ASSERT_EQ(index_.size(), model_.size());
    for (const auto& [tag, word] : model_) ASSERT_NE(find(tag, word), HashIndex::kNone) << tag;
    std::vector<uint64_t> tags;
    index_.for_all([&](uint64_t tag, Location) { tags.push_back(tag); });
    ASSERT_TRUE(std::ranges::is_sorted(tags));
    for (int i = 0; i < 200; ++i) {
      const uint64_t first = random_.below(HashIndex::kTags);
      const uint64_t end = first + random_.below(HashIndex::kTags / 20);
      if (!model_.contains(first)) {
        ASSERT_EQ(find(first, 0), HashIndex::kNone);
      }
      uint64_t between = 0;
      index_.for_tags(first, end, [&](Location) { ++between; });
      ASSERT_EQ(between, std::distance(model_.lower_bound(first), model_.lower_bound(end)));
      uint64_t some = 0;
      const uint64_t left = index_.for_some(first, 50, [&](uint64_t word) {
        ASSERT_GE(HashIndex::tag_of_word(word), first);
        ++some;
      });
      ASSERT_EQ(some, std::distance(model_.lower_bound(first), model_.lower_bound(left)));
    }
  }

  HashIndex index_;
  std::multimap<uint64_t, uint64_t> model_;
  uint64_t next_ = 0;
  Random random_{base_seed()};
};

TEST_P(HashIndexTest, FindsWhatIsThere) {
  // Entries of the same tag are gone through, and those that others come before are moved.
  const bool is_slow = GetParam() == Order::kFew || GetParam() == Order::kDescending;
  const uint64_t count = is_slow ? 2000 : scaled(30'000);
  for (uint64_t i = 0; i < count; ++i) {
    insert(tag(i, count));
    if (i % (count / 4) == 0) expect_same();
  }
  expect_same();
  for (uint64_t i = 0; i < count / 2; ++i) {
    auto at = model_.lower_bound(random_.below(HashIndex::kTags));
    if (at == model_.end()) at = model_.begin();
    erase(at);
    if (i % 3 == 0) insert(tag(i, count));
  }
  expect_same();
}

INSTANTIATE_TEST_SUITE_P(Orders, HashIndexTest,
                         testing::Values(Order::kRandom, Order::kAscending, Order::kDescending,
                                         Order::kFew),
                         [](const testing::TestParamInfo<Order>& order) -> std::string {
                           switch (order.param) {
                             case Order::kRandom:
                               return "Random";
                             case Order::kAscending:
                               return "Ascending";
                             case Order::kDescending:
                               return "Descending";
                             case Order::kFew:
                               return "FewTags";
                           }
                           return "";
                         });

}  // namespace
}  // namespace perdure::test
