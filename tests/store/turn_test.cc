// A store that one thread has to itself.
#include "store/turn.h"

#include <map>
#include <string>
#include <vector>

#include "pm/pool_impl.h"
#include "store/fixture.h"
#include "support/random.h"

namespace perdure::test {
namespace {

class StoreTurnTest : public testing::TestWithParam<StoreCase> {};
INSTANTIATE_TEST_SUITE_P(Stores, StoreTurnTest,
                         testing::Values(StoreCase{"hash", {.index = StoreIndex::kHash}},
                                         StoreCase{"ordered", {.index = StoreIndex::kOrdered}},
                                         StoreCase{"pm", {.index = StoreIndex::kPm}}),
                         name_of);

// What the index said when records were asked for is out of date by then.
TEST_P(StoreTurnTest, KeysThatWereFetchedAheadAreFoundAsTheyAre) {
  using store::StoreImpl;
  Pool pool = Pool::anonymous(store_pool(64));
  StoreOptions options = GetParam().options;
  options.partitions = 2;
  options.block_bytes = 8192;
  const auto store = StoreImpl::create(pool, "store", options);
  store::StoreTurn turn(*store);
  std::map<std::string, std::string> model;
  Random random(base_seed());
  const auto key = [&] { return "key" + std::to_string(random.below(3000)); };
  const uint64_t now_ms = StoreImpl::now_ms();
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> keys(random.below(50));
    for (std::string& one : keys) one = key();
    turn.prefetch(std::vector<std::string_view>(keys.begin(), keys.end()));
    for (const std::string& one : keys) {
      if (random.below(8) == 0) {
        const std::string other = key();
        ASSERT_EQ(turn.remove(other, now_ms), model.erase(other) != 0);
      }
      if (random.below(2) == 0) {
        const std::string value = std::to_string(round) + std::string(random.below(100), 'v');
        turn.write({.key = one, .value = value}, now_ms);
        model[one] = value;
        continue;
      }
      store::Partition::Found found{};
      const bool is_there = turn.get(one, now_ms, found);
      ASSERT_EQ(is_there, model.contains(one)) << one;
      if (is_there) {
        ASSERT_EQ(found.value, model[one]);
      }
    }
    turn.finish();
  }
  EXPECT_EQ(store->size(), model.size());
}

}  // namespace
}  // namespace perdure::test
