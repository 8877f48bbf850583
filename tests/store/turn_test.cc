// A store that one thread has to itself.
#include "store/turn.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pm/pool_impl.h"
#include "store/expiry_time.h"
#include "store/fixture.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using store::StoreImpl;

class StoreTurnTest : public testing::TestWithParam<StoreCase> {};
INSTANTIATE_TEST_SUITE_P(Stores, StoreTurnTest,
                         testing::Values(StoreCase{"hash", {.index = StoreIndex::kHash}},
                                         StoreCase{"ordered", {.index = StoreIndex::kOrdered}},
                                         StoreCase{"pm", {.index = StoreIndex::kPm}}),
                         name_of);

// What the index said when records were asked for is out of date by then: other keys were written
// and removed, alone, in batches and by prefix, some have expired, the log was compacted, and
// snapshots of the index were made.
TEST_P(StoreTurnTest, KeysThatWereFetchedAheadAreFoundAsTheyAre) {
  Pool pool = Pool::anonymous(store_pool(64));
  StoreOptions options = GetParam().options;
  options.partitions = 2;
  options.block_bytes = 8192;
  options.garbage_percent = 10;
  options.index_snapshot_percent = 10;
  const auto store = StoreImpl::create(pool, "store", options);
  store::StoreTurn turn(*store);
  struct Record {
    std::string value;
    uint64_t expiry_ms;
  };
  std::map<std::string, Record> model;
  Random random(base_seed());
  uint64_t now_ms = StoreImpl::now_ms() + 3'600'000;  // ahead of what others go by
  // Half of them have what an index tells keys apart by in common with others.
  const auto random_key = [&] {
    const uint64_t number = random.below(3000);
    if (number % 2 == 0) return "key" + std::to_string(number);
    return "customer/" + std::to_string(number / 4) + "/address/" + std::to_string(number % 4);
  };
  const auto is_there = [&](const std::string& key) {
    const auto at = model.find(key);
    if (at == model.end()) return false;
    return at->second.expiry_ms == store::kNoExpiry || at->second.expiry_ms > now_ms;
  };
  const auto random_record = [&] {
    const bool is_long = random.below(100) == 0;
    return Record{
        std::to_string(random.below(1000)) + std::string(random.below(is_long ? 10'000 : 100), 'v'),
        random.below(4) == 0 ? now_ms + 1 + random.below(100) : store::kNoExpiry};
  };
  const auto change_others = [&] {
    switch (random.below(8)) {
      case 0: {
        Store::Batch batch;
        std::map<std::string, Record> written;
        for (int i = 0; i < 4; ++i) written[random_key()] = random_record();
        for (auto& [key, record] : written) {
          if (random.below(3) == 0) {
            batch.remove(key);
            model.erase(key);
          } else {
            std::optional<Store::Time> expires;
            if (record.expiry_ms != store::kNoExpiry) {
              expires = store::time_of_expiry(record.expiry_ms);
            }
            batch.put(key, record.value, expires);
            model[key] = record;
          }
        }
        turn.apply(batch, 0);
        break;
      }
      case 1: {
        if (random.below(8) != 0) return;
        turn.finish();
        const std::string prefix = "customer/" + std::to_string(random.below(80));
        store->remove_prefix(prefix);
        std::erase_if(model, [&](const auto& one) { return one.first.starts_with(prefix); });
        break;
      }
      default: {
        const std::string key = random_key();
        const bool was_there = is_there(key);
        ASSERT_EQ(turn.remove(key, now_ms), was_there) << key;
        model.erase(key);
      }
    }
  };
  for (int round = 0; round < 2000; ++round) {
    now_ms += random.below(3);
    std::vector<std::string> keys(random.below(50));
    for (std::string& one : keys) one = random_key();
    turn.prefetch(std::vector<std::string_view>(keys.begin(), keys.end()));
    for (const std::string& one : keys) {
      if (random.below(8) == 0) change_others();
      if (HasFatalFailure()) return;
      if (random.below(2) == 0) {
        const Record record = random_record();
        turn.write({.key = one, .value = record.value, .expiry_ms = record.expiry_ms}, now_ms);
        model[one] = record;
        continue;
      }
      store::Partition::Found found{};
      const bool is_found = turn.get(one, now_ms, found);
      ASSERT_EQ(is_found, is_there(one)) << one;
      if (is_found) {
        ASSERT_EQ(found.value, model[one].value);
        ASSERT_EQ(found.expiry_ms, model[one].expiry_ms);
      }
    }
    turn.finish();
  }
  EXPECT_EQ(store->check([](const std::string& sentence) { ADD_FAILURE() << sentence; }), 0U);
}

// A batch that removes little, and adds many small records, must not use up the room that is kept
// for removals.
TEST_P(StoreTurnTest, RemovalsGoOnInAFullPoolWhateverBatchesItTook) {
  Pool pool = Pool::anonymous(store_pool(8));
  StoreOptions options = GetParam().options;
  options.partitions = 2;
  options.block_bytes = 8192;
  const auto store = StoreImpl::create(pool, "store", options);
  store::StoreTurn turn(*store);
  const uint64_t now_ms = StoreImpl::now_ms();
  std::vector<std::string> keys;
  // Whether it had room.
  const auto try_to = [&](auto write) {
    try {
      write();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
      turn.finish();
      return false;
    }
    turn.finish();
    return true;
  };
  const std::string value(400, 'x');
  for (int i = 0;; ++i) {
    const std::string key = "large" + std::to_string(i);
    if (!try_to([&] { turn.write({.key = key, .value = value}, now_ms); })) break;
    keys.push_back(key);
  }
  ASSERT_GT(keys.size(), 1000);
  for (int i = 0;; ++i) {
    const std::string key = "small" + std::to_string(i);
    if (!try_to([&] { turn.write({.key = key}, now_ms); })) break;
    keys.push_back(key);
  }
  uint64_t number = 0;
  std::vector<std::string> left;
  uint64_t taken = 0;
  for (const std::string& key : keys) {
    Store::Batch batch;
    batch.remove(key);
    std::vector<std::string> added;
    if (key.starts_with("large")) {
      for (int i = 0; i < 50; ++i) added.push_back(std::to_string(++number));
    }
    for (const std::string& one : added) batch.put(one, "");
    if (try_to([&] { turn.apply(batch, now_ms); })) {
      left.insert(left.end(), added.begin(), added.end());
      ++taken;
    } else {
      left.push_back(key);
    }
  }
  RecordProperty("taken", static_cast<int>(taken));
  for (const std::string& key : left) {
    ASSERT_TRUE(try_to([&] { EXPECT_TRUE(turn.remove(key, now_ms)) << key; }))
        << key << ", " << left.size() << " left, " << taken << " taken of " << keys.size();
  }
}

}  // namespace
}  // namespace perdure::test
