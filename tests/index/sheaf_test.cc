// What the scenarios over the catalogue cannot reach of Sheaf.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "index/sheaf/core.h"
#include "index/sheaf/inner.h"
#include "index/sheaf/layout.h"
#include "index/sheaf/log.h"
#include "perdure/catalog.h"
#include "pm/emulated_media.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"
#include "support/short_memory.h"

namespace perdure::index {
namespace {

class Sheaf : public testing::Test {
 protected:
  static constexpr uint64_t kKeys = 20000;

  static double figure(const AnyIndex& index, const std::string& name) {
    for (const Statistic& one : index.statistics()) {
      if (one.name == name) return one.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }
  std::unique_ptr<AnyIndex> create(const OptionMap& options = {}) {
    return create_index(pool_, "t", "sheaf", Kind::kU64, Kind::kU64, options);
  }
  sheaf::Root& root(const std::string& name = "t") {
    return *pm::impl_of(pool_).at<sheaf::Root>(pm::impl_of(pool_).find(name)->root);
  }
  static uint64_t faults(const AnyIndex& index) {
    return index.check([](const std::string& text) { ADD_FAILURE() << text; });
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
};

TEST_F(Sheaf, AscendingKeysFillLeaves) {
  const auto index = create();
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
  EXPECT_GT(figure(*index, "leaf_fill"), 0.9);
  EXPECT_EQ(faults(*index), 0U);
}

// A scan looks at no more of a buffer than its limit can need: which must count what the buffer
// removes.
TEST_F(Sheaf, ShortScansSeeWhatBuffersHave) {
  constexpr uint64_t kMost = 4000;
  const auto index = create();
  std::map<uint64_t, uint64_t> model;
  std::mt19937_64 random(1);
  for (uint64_t key = 0; key < kMost; key += 2) index->insert(key, key), model[key] = key;
  for (uint64_t round = 0; round < 60; ++round) {
    // Runs of removals, single new keys, new values: what is in the buffers changes from round to
    // round.
    const uint64_t begin = random() % kMost;
    const uint64_t end = begin + random() % 30;
    for (uint64_t key = begin; key < end; ++key) {
      EXPECT_EQ(index->remove(key), model.erase(key) != 0);
    }
    for (int i = 0; i < 10; ++i) {
      const uint64_t key = random() % kMost;
      index->upsert(key, round);
      model[key] = round;
    }
    for (const uint64_t limit : {uint64_t{1}, uint64_t{7}, uint64_t{40}, uint64_t{400}}) {
      const uint64_t from = random() % kMost;
      std::map<uint64_t, uint64_t> seen;
      index->scan(from, limit, [&](Datum key, Datum value) {
        return seen.emplace(key.word(), value.word()).second;
      });
      std::map<uint64_t, uint64_t> wanted;
      for (auto one = model.lower_bound(from); one != model.end() && wanted.size() < limit; ++one)
        wanted.insert(*one);
      ASSERT_EQ(seen, wanted) << "from " << from << ", at most " << limit;
    }
  }
}

TEST_F(Sheaf, RemovingEverythingLeavesFewLeaves) {
  for (const bool upwards : {true, false}) {
    const auto index = create_index(pool_, upwards ? "t" : "u", "sheaf", Kind::kU64, Kind::kU64,
                                    {{"leaf_bytes", "512"}, {"buffer_records", "4"}});
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
    EXPECT_GT(figure(*index, "leaves"), 500);
    for (uint64_t key = 0; key < kKeys; ++key) index->remove(upwards ? key : kKeys - 1 - key);
    EXPECT_LT(figure(*index, "leaves"), 20);
    EXPECT_EQ(figure(*index, "records"), 0);
    EXPECT_EQ(faults(*index), 0U);
  }
}

TEST_F(Sheaf, UpdatesOfFewKeysKeepOneLeafAndTheFirstChunks) {
  const auto index = create({{"chunk_bytes", "1024"}});
  for (uint64_t i = 0; i < 20 * kKeys; ++i) index->upsert(i % 40, i);
  EXPECT_EQ(figure(*index, "leaves"), 1);
  EXPECT_EQ(figure(*index, "records"), 40);
  EXPECT_EQ(figure(*index, "log_bytes"), 4 * 1024);
}

TEST_F(Sheaf, TheLogIsAPartOfTheLeaves) {
  const auto index = create({{"leaf_bytes", "1024"}, {"chunk_bytes", "1024"}});
  for (uint64_t key = 0; key < 5 * kKeys; ++key) index->insert(key * 7919 % (5 * kKeys), key);
  EXPECT_LT(figure(*index, "log_bytes"), figure(*index, "pool_bytes") / 6);
  EXPECT_GT(figure(*index, "buffered_records"), 100);
}

TEST_F(Sheaf, OpeningReplaysNoMoreThanTheLogHolds) {
  auto index = create({{"leaf_bytes", "1024"}, {"chunk_bytes", "1024"}});
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
  const double buffered = figure(*index, "buffered_records");
  index.reset();
  index = open_index(pool_, "t");
  EXPECT_EQ(figure(*index, "buffered_records"), buffered);
  EXPECT_GE(figure(*index, "recovered_operations"), buffered);
  EXPECT_LE(figure(*index, "recovered_operations"), figure(*index, "log_bytes") / 24);
  Value value;
  for (uint64_t key = 0; key < kKeys; ++key) {
    ASSERT_TRUE(index->lookup(key * 7919 % kKeys, value));
    ASSERT_EQ(value.datum().word(), key);
  }
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, TheDirectoryGrowsAndIsUsedAgain) {
  auto index = create({{"leaf_bytes", "256"}, {"buffer_records", "4"}});
  for (int round = 0; round < 3; ++round) {
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
    EXPECT_GT(figure(*index, "leaves"), 1000);
    index.reset();
    index = open_index(pool_, "t");
    EXPECT_EQ(faults(*index), 0U);
    for (uint64_t key = 0; key < kKeys; ++key) ASSERT_TRUE(index->remove(key));
  }
}

TEST_F(Sheaf, ADamagedHeaderOfALeafIsRefused) {
  auto index = create();
  for (uint64_t key = 0; key < 1000; ++key) index->insert(key, key);
  index.reset();
  auto& leaf = *pm::impl_of(pool_).at<sheaf::Leaf>(root().slot);
  for (uint64_t* word : {&leaf.merged, &leaf.low, &leaf.first}) {
    *word ^= 1;
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { open_index(pool_, "t"); }));
    *word ^= 1;
  }
  index = open_index(pool_, "t");
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(Sheaf, ADamagedRecordIsFoundAndNotMerged) {
  const auto index = create();
  for (uint64_t key = 0; key < 1000; ++key) index->insert(key, key);
  auto& leaf = *pm::impl_of(pool_).at<sheaf::Leaf>(root().slot);
  ASSERT_GT(leaf.count, 0U);
  leaf.records()[0].value ^= 1;
  EXPECT_GT(index->check([](const std::string&) {}), 0U);
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] {
    for (uint64_t i = 0; i < 1000; ++i) index->upsert(i, i);
  }));
}

// What the filters of the leaves say, after merges, removals, splits and an opening.
TEST_F(Sheaf, AKeyThatIsThereIsNotInsertedAgain) {
  for (const char* leaf_bytes : {"512", "8192"}) {
    SCOPED_TRACE(leaf_bytes);
    const std::string name = std::string("t") + leaf_bytes;
    auto index = create_index(pool_, name, "sheaf", Kind::kU64, Kind::kU64,
                              {{"leaf_bytes", leaf_bytes}, {"buffer_records", "8"}});
    test::Random random(7);
    std::map<uint64_t, uint64_t> model;
    const auto insert_all_again = [&] {
      for (const auto& [key, value] : model) {
        ASSERT_FALSE(index->insert(key, value + 1)) << key;
        Value found;
        ASSERT_TRUE(index->lookup(key, found));
        ASSERT_EQ(found.datum().word(), value);
      }
    };
    for (int round = 0; round < 4; ++round) {
      for (uint64_t i = 0; i < kKeys / 2; ++i) {
        const uint64_t key = random.below(kKeys) << 40;
        ASSERT_EQ(index->insert(key, i), model.emplace(key, i).second) << key;
      }
      insert_all_again();
      for (auto at = model.begin(); at != model.end();) {
        if (random.chance(50)) {
          ASSERT_TRUE(index->remove(at->first));
          at = model.erase(at);
        } else {
          ++at;
        }
      }
      insert_all_again();
      if (round % 2 == 1) {
        index.reset();
        index = open_index(pool_, name);
        insert_all_again();
      }
    }
    EXPECT_EQ(faults(*index), 0U);
  }
}

TEST(SheafFilter, HasWhatWasAddedAndLittleElse) {
  for (const bool ascending : {true, false}) {
    test::Random random(3);
    sheaf::Filter filter;
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 320; ++i) {
      keys.push_back(ascending ? i : random.next());
      filter.add(keys.back());
    }
    for (const uint64_t key : keys) EXPECT_TRUE(filter.may_have(key));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 10000; ++i) {
      wrong += filter.may_have(ascending ? 1000 + i : random.next()) ? 1U : 0U;
    }
    EXPECT_LT(wrong, 1500U);
    EXPECT_GT(wrong, 100U);
    filter.clear();
    for (const uint64_t key : keys) EXPECT_FALSE(filter.may_have(key));
  }
}

// Each has begun a chunk of the few there are, and will never go on with it.
TEST_F(Sheaf, ThreadsThatHaveGoneDoNotKeepTheLog) {
  const auto index = create({{"chunk_bytes", "1024"}});
  for (int thread = 0; thread < 20; ++thread) {
    std::thread([&] {
      for (uint64_t i = 0; i < 5; ++i) index->upsert(i, i);
    }).join();
  }
  for (uint64_t i = 0; i < 2000; ++i) index->upsert(i % 40, i);
  EXPECT_EQ(figure(*index, "records"), 40);
  EXPECT_EQ(faults(*index), 0U);
}

// Random keys fill leaves of all sizes; then whatever a removal needs must come from what it frees.
TEST_F(Sheaf, AFullPoolTakesEveryRemoval) {
  for (const uint64_t capacity : {3, 8, 24}) {
    for (const char* leaf_bytes : {"1024", "8192"}) {
      SCOPED_TRACE(std::to_string(capacity) + " MiB, leaves of " + leaf_bytes);
      Pool pool = Pool::create(dir_.file("full"), {.capacity_bytes = capacity << 20});
      auto index =
          create_index(pool, "t", "sheaf", Kind::kU64, Kind::kU64, {{"leaf_bytes", leaf_bytes}});
      test::Random random(capacity);
      std::vector<uint64_t> keys;
      for (int refused = 0; refused < 20;) {
        const uint64_t key = random.next();
        try {
          index->upsert(key, ~key);
          keys.push_back(key);
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
          ++refused;
        }
      }
      EXPECT_GT(keys.size() * 16, (capacity << 20) / 6);
      Value value;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (i == keys.size() / 2) {
          index.reset();
          index = open_index(pool, "t");
        }
        ASSERT_TRUE(index->lookup(keys[i], value)) << i;
        ASSERT_TRUE(index->remove(keys[i])) << i;
      }
      EXPECT_EQ(faults(*index), 0U);
      EXPECT_EQ(figure(*index, "records"), 0);
      index.reset();
      pool.close();
      std::remove(dir_.file("full").c_str());
    }
  }
}

// An operation that finds no memory has changed nothing, in the middle of a split as well.
TEST_F(Sheaf, MemoryThatRunsOutChangesNothing) {
  auto index = create({{"leaf_bytes", "512"}, {"buffer_records", "4"}, {"chunk_bytes", "1024"}});
  std::map<uint64_t, uint64_t> model;
  test::Random random(1);
  uint64_t refused = 0;
  for (uint64_t i = 0; i < kKeys; ++i) {
    const uint64_t key = random.below(4000);
    const bool remove = random.chance(i < kKeys / 2 ? 20 : 70);
    try {
      test::ShortMemory memory(random.below(30));
      if (remove) {
        index->remove(key);
      } else {
        index->upsert(key, i);
      }
      memory.end();
      if (remove) {
        model.erase(key);
      } else {
        model[key] = i;
      }
    } catch (const std::bad_alloc&) {
      ++refused;
    }
    if (i % 5000 == 4999) {
      index.reset();
      index = open_index(pool_, "t");
    }
    if (i % 1000 != 999) continue;
    EXPECT_EQ(faults(*index), 0U);
    std::map<uint64_t, uint64_t> found;
    index->for_each([&](Datum k, Datum v) { found[k.word()] = v.word(); });
    ASSERT_EQ(found, model) << i;
  }
  EXPECT_GT(refused, 100U);
}

// ---- byte strings

class SheafOfBytes : public Sheaf {
 protected:
  using Model = std::map<std::string, std::string>;

  std::unique_ptr<AnyIndex> create(const OptionMap& options = {}) {
    return create_index(pool_, "t", "sheaf", Kind::kBytes, Kind::kBytes, options);
  }
  // Lookups, and scans in both directions from each of the model's keys in turn.
  static void expect_same(const AnyIndex& index, const Model& model) {
    ASSERT_EQ(faults(index), 0U);
    Value value;
    for (const auto& [key, expected] : model) {
      ASSERT_TRUE(index.lookup(key, value)) << key.size();
      ASSERT_EQ(value.bytes(), expected) << key.size();
    }
    auto at = model.begin();
    index.scan("", ~uint64_t{0}, [&](Datum key, Datum found) {
      if (at == model.end() || key.bytes() != at->first || found.bytes() != at->second) {
        ADD_FAILURE() << "another record than expected, with a key of " << key.bytes().size();
        return false;
      }
      ++at;
      return true;
    });
    ASSERT_EQ(at, model.end());
    for (at = model.begin(); at != model.end(); ++at) {
      std::vector<std::string> keys;
      const auto add = [&](Datum key, Datum /*value*/) {
        keys.emplace_back(key.bytes());
        return true;
      };
      index.scan(at->first, 2, add);
      ASSERT_EQ(keys.front(), at->first);
      ASSERT_EQ(keys.size() == 2, std::next(at) != model.end());
      if (keys.size() == 2) {
        ASSERT_EQ(keys.back(), std::next(at)->first);
      }
      keys.clear();
      index.scan_back(Datum(at->first), 2, add);
      ASSERT_EQ(keys.front(), at->first);
      ASSERT_EQ(keys.size() == 2, at != model.begin());
      if (keys.size() == 2) {
        ASSERT_EQ(keys.back(), std::prev(at)->first);
      }
    }
  }
  // Writes them all in some order, then opens again, removes half, writes some again.
  void take_through(std::vector<std::string> keys, const OptionMap& options) {
    Model model;
    auto index = create(options);
    std::shuffle(keys.begin(), keys.end(), std::mt19937_64(11));
    for (const std::string& key : keys) {
      const bool is_new = model.emplace(key, std::to_string(key.size())).second;
      ASSERT_EQ(index->insert(key, std::to_string(key.size())), is_new);
      ASSERT_FALSE(index->insert(key, "another"));
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(*index, model));
    index.reset();
    index = open_index(pool_, "t");
    ASSERT_NO_FATAL_FAILURE(expect_same(*index, model));
    for (size_t i = 0; i < keys.size(); i += 2) {
      ASSERT_EQ(index->remove(keys[i]), model.erase(keys[i]) == 1);
      ASSERT_FALSE(index->update(keys[i], "none"));
    }
    for (size_t i = 0; i < keys.size(); i += 3) {
      model[keys[i]] = std::string(i % 300, 'x');
      index->upsert(keys[i], model[keys[i]]);
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(*index, model));
    index.reset();
    index = open_index(pool_, "t");
    ASSERT_NO_FATAL_FAILURE(expect_same(*index, model));
  }
};

// The eight bytes behind what all keys begin with say nothing, in more than one leaf.
TEST_F(SheafOfBytes, ManyKeysWithOneHeadAreToldApart) {
  std::vector<std::string> keys = {"", "a", "common", "common begun", "commonly", "z"};
  for (uint64_t i = 0; i < 3000; ++i) {
    keys.push_back("common 8 bytes." + std::to_string(i * 7919 % 100003));
    if (i % 10 == 0) keys.push_back("common " + std::to_string(i));
  }
  take_through(keys, {{"leaf_bytes", "1024"}, {"buffer_records", "8"}, {"chunk_bytes", "2048"}});
}

// A head is filled up with zeros: it is the same, whatever leaf they are in.
TEST_F(SheafOfBytes, KeysOfZerosAreToldByTheirLength) {
  std::vector<std::string> keys;
  for (uint64_t bytes = 0; bytes <= 1024; ++bytes) keys.emplace_back(bytes, '\0');
  take_through(keys, {{"buffer_records", "8"}});
}

TEST_F(SheafOfBytes, TheLongestKeysFitInTheSmallestLeaves) {
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < 400; ++i) {
    const std::string number = std::to_string(1000 + i);
    keys.push_back(std::string(1020, 'a') + number);
    keys.push_back(number + std::string(1020, 'b'));
    keys.push_back(number);
  }
  take_through(keys, {{"leaf_bytes", "256"}, {"buffer_records", "4"}, {"chunk_bytes", "2048"}});
  const auto index = open_index(pool_, "t");
  EXPECT_TRUE(test::fails_with(ErrorCode::kTooLarge,
                               [&] { index->insert(std::string(1025, 'a'), "too long"); }));
}

// Of a record in the log each byte counts, but for those of the last one: it could be torn, and was
// never acknowledged.
TEST_F(SheafOfBytes, ADamagedLogRecordIsRefused) {
  const std::string long_value(500, 'l');  // in a block of its own
  auto index = create();
  index->insert("first", "a value");
  index->insert("second", long_value);
  index->remove("first");
  index->insert("last", "a value");
  index.reset();
  pm::PoolImpl& pool = pm::impl_of(pool_);
  char* chunk = nullptr;
  for (uint64_t offset : root().chunks) {
    if (*pool.at<uint64_t>(offset + 64 + 8) != 0) chunk = pool.at<char>(offset + 64);
  }
  ASSERT_NE(chunk, nullptr);
  std::vector<sheaf::LogEntry*> entries;
  for (auto* entry = reinterpret_cast<sheaf::LogEntry*>(chunk); entry->number != 0;
       entry = reinterpret_cast<sheaf::LogEntry*>(reinterpret_cast<char*>(entry) +
                                                  entry->line_bytes())) {
    entries.push_back(entry);
  }
  ASSERT_EQ(entries.size(), 4U);
  for (size_t i = 0; i + 1 < entries.size(); ++i) {
    auto* const bytes = reinterpret_cast<char*>(entries[i]);
    const uint64_t count = entries[i]->bytes();
    for (uint64_t at = 0; at < count; ++at) {
      bytes[at] ^= 4;
      EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { open_index(pool_, "t"); }))
          << "record " << i << ", byte " << at;
      bytes[at] ^= 4;
    }
  }
  index = open_index(pool_, "t");
  expect_same(*index, {{"second", long_value}, {"last", "a value"}});
}

// A tree that is open meets it: what it reads is never another value, and a merge does not copy it.
TEST_F(SheafOfBytes, ADamagedLogRecordIsNeitherReadNorMerged) {
  const auto index = create();
  for (uint64_t i = 0; i < 20; ++i) index->insert("key " + std::to_string(i), "a value");
  pm::PoolImpl& pool = pm::impl_of(pool_);
  for (const uint64_t offset : root().chunks) {
    auto* entry = pool.at<sheaf::LogEntry>(offset + 64);
    if (entry->number == 0) continue;
    ASSERT_EQ(entry->key(), "key 0");
    const_cast<char*>(entry->value().bytes.data())[0] ^= 1;
  }
  Value value;
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->lookup("key 0", value); }));
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt,
                               [&] { index->scan("", 100, [](Datum, Datum) { return true; }); }));
  EXPECT_GT(index->check([](const std::string&) {}), 0U);
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] {
    for (uint64_t i = 0; i < 1000; ++i) index->upsert("other " + std::to_string(i), "a value");
  }));
}

// A write frees the block of the value before, but none that damage leads to.
TEST_F(SheafOfBytes, ADamagedLinkInTheLogFreesNothing) {
  const std::string long_value(500, 'l');
  const auto index = create();
  index->insert("key", long_value);
  const auto neighbour =
      create_index(pool_, "neighbour", "sheaf", Kind::kBytes, Kind::kBytes, OptionMap{});
  neighbour->insert("key", long_value);
  pm::PoolImpl& pool = pm::impl_of(pool_);
  const auto link_of = [&](const char* name) -> uint64_t& {
    const auto& tree = *pool.at<sheaf::Root>(pool.find(name)->root);
    uint64_t* link = nullptr;
    for (const uint64_t offset : tree.chunks) {
      auto* entry = pool.at<sheaf::LogEntry>(offset + 64);
      if (entry->number != 0) link = reinterpret_cast<uint64_t*>(entry + 1);
    }
    return *link;
  };
  const uint64_t own = link_of("t");
  link_of("t") = link_of("neighbour");
  const uint64_t allocated = pool_.info().allocated_bytes;
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->upsert("key", "short"); }));
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->update("key", long_value); }));
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->remove("key"); }));
  EXPECT_EQ(pool_.info().allocated_bytes, allocated);
  Value value;
  ASSERT_TRUE(neighbour->lookup("key", value));
  EXPECT_EQ(value.bytes(), long_value);
  link_of("t") = own;
  index->upsert("key", "short");
  EXPECT_EQ(faults(*index) + faults(*neighbour), 0U);
}

TEST_F(Sheaf, SmallerOptionsThanTheTreeHasAreRefused) {
  create({{"leaf_bytes", "1024"}}).reset();
  EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument,
                               [&] { open_index(pool_, "t", {{"leaf_bytes", "2048"}}); }));
}

// Every state that an insert leaves can be opened.
TEST_F(Sheaf, TheLargestLeavesOfByteStringsOpenAgain) {
  auto index = create_index(pool_, "t", "sheaf", Kind::kBytes, Kind::kBytes,
                            {{"leaf_bytes", "16384"}, {"recovery_threads", "1"}});
  for (const char* common : {"", "long"}) {
    // Of the second ones what separates two leaves is as long as a key may be.
    const std::string prefix = *common != 0 ? std::string(1000, 'k') : "";
    const int keys = *common != 0 ? 120 : 800;
    for (int i = 0; i < keys; ++i) {
      char text[16];
      std::snprintf(text, sizeof text, "%08d", i);
      const std::string value(static_cast<uint32_t>(i) * 2654435761U >> 16 & 0xff, 'v');
      const std::string key = prefix + text;
      ASSERT_TRUE(index->insert(Datum(key), Datum(value)));
      ASSERT_EQ(faults(*index), 0U) << i;
      index.reset();
      index = open_index(pool_, "t", {{"recovery_threads", "1"}});
    }
  }
  EXPECT_EQ(figure(*index, "records"), 920);
  EXPECT_GT(figure(*index, "leaf_fill"), 0.6);
}

// Others write on, as long as the log may grow, and are told when it may not.
TEST_F(Sheaf, AReaderThatStaysHoldsNobodyUpForEver) {
  using BytesCore = sheaf::Core<tree::Bytes>;
  pm::PoolImpl& pool = pm::impl_of(pool_);
  const auto core = BytesCore::create(pool, "t", Kind::kBytes, Kind::kBytes,
                                      {.log_bytes = uint64_t{64} << 10, .chunk_bytes = 2048});
  const auto write = [&](uint64_t i) {
    core->write(Verb::kUpsert, tree::Bytes::Key("key" + std::to_string(i % 40)), "of some bytes");
  };
  write(0);
  uint64_t written = 0;
  const bool there = core->lookup(tree::Bytes::Key("key0"), [&](std::string_view value) {
    std::thread([&] {
      EXPECT_TRUE(test::fails_with(ErrorCode::kPoolFull, [&] {
        for (;; ++written) write(written);
      }));
    }).join();
    EXPECT_EQ(value, "of some bytes");
  });
  EXPECT_TRUE(there);
  EXPECT_GT(written, 20U * 2048 / 64);  // all of the log
  for (uint64_t i = 0; i < 5000; ++i) write(i);
  EXPECT_EQ(core->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

// Of byte strings. Damage in the log is done to a tree that is closed, or behind its back.
class SheafBytes : public Sheaf {
 protected:
  static constexpr uint64_t kChunkBytes = 2048;
  static constexpr const char* kShort = "short";
  std::string name_ = "t";

  std::unique_ptr<AnyIndex> create() {
    return create_index(pool_, name_, "sheaf", Kind::kBytes, Kind::kBytes,
                        {{"leaf_bytes", "1024"}, {"buffer_records", "8"}, {"chunk_bytes", "2048"}});
  }
  std::unique_ptr<AnyIndex> open() { return open_index(pool_, name_); }
  // The last of the log's records for which `is_it` holds.
  sheaf::LogEntry* last_record(const std::function<bool(const sheaf::LogEntry&)>& is_it) {
    sheaf::LogEntry* last = nullptr;
    for (const uint64_t chunk : root(name_).chunks) {
      for (uint64_t at = 64; at < kChunkBytes; at += 64) {
        auto* entry = pm::impl_of(pool_).at<sheaf::LogEntry>(chunk + at);
        const bool whole = entry->number != 0 && at + entry->bytes() <= kChunkBytes;
        if (whole && is_it(*entry) && (last == nullptr || entry->number > last->number))
          last = entry;
      }
    }
    EXPECT_NE(last, nullptr);
    return last;
  }
  sheaf::LogEntry* removal_of(std::string_view key) {
    return last_record(
        [&](const sheaf::LogEntry& entry) { return entry.removal != 0 && entry.key() == key; });
  }
  // So many records that their leaf has been merged.
  static void fill(AnyIndex& index, std::string_view prefix) {
    for (int i = 0; i < 20; ++i)
      index.upsert(Datum(std::string(prefix) + std::to_string(i)), kShort);
  }
};

// The removal's record looks like a torn one: the block of what it removed is free, or another
// key's.
TEST_F(SheafBytes, ALostRemovalGivesNobodyAnothersValue) {
  for (const bool in_leaf : {false, true}) {
    for (const bool taken : {false, true}) {
      SCOPED_TRACE(in_leaf ? "in the leaf" : "in the log");
      SCOPED_TRACE(taken ? "taken" : "free");
      name_ += "t";
      auto index = create();
      const std::string mine(600, 'm');
      const std::string other(600, 'o');
      index->insert("mine", mine);
      if (in_leaf) fill(*index, "a");
      ASSERT_TRUE(index->remove("mine"));
      index.reset();
      index = open();
      // As many as the buffer takes beside the removal, which would else be merged.
      if (taken) {
        for (int i = 0; i < 2; ++i) index->insert("z" + std::to_string(i), other);
      }
      index.reset();
      auto* removal = removal_of("mine");
      ASSERT_NE(removal, nullptr);
      removal->checksum ^= 1;
      if (!in_leaf) {
        EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { open(); }));
      } else {
        index = open();
        Value value;
        // Refused, unless nobody has taken just this block.
        try {
          if (index->lookup("mine", value)) {
            EXPECT_EQ(value.datum().bytes(), mine);
          }
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
        }
        EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->upsert("mine", mine); }));
        EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->remove("mine"); }));
        for (int i = 0; taken && i < 2; ++i) {
          ASSERT_TRUE(index->lookup("z" + std::to_string(i), value));
          EXPECT_EQ(value.datum().bytes(), other);
        }
      }
      index.reset();
      removal->checksum ^= 1;
      index = open();
      EXPECT_EQ(faults(*index), 0U);
    }
  }
}

// Beside an older record of the key in the leaf.
TEST_F(SheafBytes, ADamagedKeyInTheLogDoesNotShowWhatIsOlder) {
  auto index = create();
  const auto scan = [&] { index->scan("", ~uint64_t{0}, [](Datum, Datum) { return true; }); };
  const auto scan_back = [&] {
    index->scan_back(std::nullopt, ~uint64_t{0}, [](Datum, Datum) { return true; });
  };
  index->insert("kept", "old");
  index->insert("gone", "old");
  fill(*index, "a");
  index->upsert("kept", "new");
  index->remove("gone");
  for (const std::string_view key : {"kept", "gone"}) {
    auto* entry = last_record([&](const sheaf::LogEntry& one) { return one.key() == key; });
    ASSERT_NE(entry, nullptr);
    const_cast<char*>(entry->text())[0] ^= 1;
    Value value;
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->lookup(key, value); }));
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { index->upsert(key, "newer"); }));
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, scan));
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, scan_back));
    const_cast<char*>(entry->text())[0] ^= 1;
  }
  EXPECT_EQ(faults(*index), 0U);
}

// A torn record whose value has, on a line of its own, what would be a record if the log had no
// salt.
TEST_F(SheafBytes, AValueIsNotTakenForARecord) {
  auto index =
      create_index(pool_, "t", "sheaf", Kind::kBytes, Kind::kBytes, {{"chunk_bytes", "2048"}});
  index->insert("0123456789abcdef", "first");
  const auto* first = last_record([](const sheaf::LogEntry&) { return true; });
  ASSERT_NE(first, nullptr);
  const pm::PoolImpl& pool = pm::impl_of(pool_);
  const uint64_t place = pool.offset_of(first) + 64;  // of the second record
  uint64_t use = 0;
  for (const uint64_t chunk : root().chunks) {
    if (place > chunk && place - chunk < kChunkBytes)
      use = *pool.at<uint64_t>(chunk) & ~(~0ULL << 48);
  }
  struct {
    char before[32];  // the rest of the line
    sheaf::LogEntry entry;
    char text[10];
  } value{};
  value.entry.key_bytes = 4;
  value.entry.value_bytes = 6;
  value.entry.number = 1000;
  std::memcpy(value.text, "evilforged", sizeof value.text);
  value.entry.checksum = value.entry.checksum_at(sheaf::LogEntry::seed(0, use, place + 64));
  index->insert("fedcba9876543210",
                std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  index.reset();
  auto* second = pool.at<sheaf::LogEntry>(place);
  ASSERT_EQ(second->key(), "fedcba9876543210");
  ASSERT_EQ(pool.at<sheaf::LogEntry>(place + 64)->key(), "evil");
  second->checksum ^= 1;
  index = open();
  EXPECT_EQ(figure(*index, "records"), 1);
  EXPECT_EQ(faults(*index), 0U);
}

// Dies at a fence: what was stored stays in the caches, and what was not fenced is not durable.
class DyingProcess final : public pm::EmulatedMedia {
 public:
  DyingProcess() { pm::emulate_media(this); }
  ~DyingProcess() override { pm::emulate_media(nullptr); }
  DyingProcess(const DyingProcess&) = delete;
  DyingProcess& operator=(const DyingProcess&) = delete;

  void written_back(uintptr_t address, size_t bytes) override {
    if (dead_) return;
    for (uintptr_t line = address & ~uintptr_t{63}; line < address + bytes; line += 64) {
      std::memcpy(pending_[line].data(), reinterpret_cast<const void*>(line), 64);
    }
  }
  void fenced() override {
    const bool here =
        std::ranges::any_of(
            pending_, [&](const auto& one) { return is_place_ && is_place_(one.first - base_); }) &&
        --fences_there_ == 0;
    if (dead_ || here || --fences_left_ == 0) {
      dead_ = true;
      pending_.clear();
      throw Error(ErrorCode::kIo, "the process dies");
    }
    for (const auto& [line, bytes] : pending_) durable_[line] = bytes;
    pending_.clear();
  }
  void die_after(uint64_t fences) { fences_left_ = fences; }
  // Or when so many fences have made lines durable at offsets of the pool for which `is_place`
  // holds.
  void die_at(const char* base, uint64_t fences, std::function<bool(uint64_t)> is_place) {
    base_ = reinterpret_cast<uintptr_t>(base);
    fences_there_ = fences;
    is_place_ = std::move(is_place);
  }
  void begin_process() {
    dead_ = false;
    is_place_ = nullptr;
    fences_left_ = ~uint64_t{0};
  }
  void forget() {
    pending_.clear();
    durable_.clear();
  }
  // Moves what became durable of the mapping at `base` into the image of the file.
  void take_durable(const char* base, uint64_t file_bytes, std::string& image) {
    image.resize(std::max<size_t>(image.size(), file_bytes));
    for (const auto& [line, bytes] : durable_) {
      const uint64_t at = line - reinterpret_cast<uintptr_t>(base);
      if (at + bytes.size() <= image.size()) std::memcpy(&image[at], bytes.data(), bytes.size());
    }
    durable_.clear();
  }

 private:
  using Line = std::array<char, 64>;
  std::map<uintptr_t, Line> pending_;
  std::map<uintptr_t, Line> durable_;
  uint64_t fences_left_ = ~uint64_t{0};
  uintptr_t base_ = 0;
  uint64_t fences_there_ = 0;
  std::function<bool(uint64_t)> is_place_;
  bool dead_ = false;
};

// A process dies at any fence; the next one reads what is in the caches, shows it, and goes on;
// then the power fails. What was shown or acknowledged is there, and nothing of earlier uses of the
// log comes back.
struct Deaths {
  uint64_t growth_bytes = uint64_t{8} << 20;
  OptionMap shape;
  uint64_t more_keys = 0;     // in each round
  bool at_growth = false;     // it dies when a segment or a slab is made
  uint64_t fences_max = 400;  // until the process dies
  uint64_t removals = 40;     // percent
  Kind kind = Kind::kU64;     // of keys and values
};

// The model's words as what the tree has: byte strings have some bytes in common, and values of
// several lengths, of which the longer ones have blocks of their own.
class Words {
 public:
  explicit Words(Kind kind) : kind_(kind) {}
  Datum key(uint64_t key) {
    if (kind_ == Kind::kU64) return key;
    const std::string digits = std::to_string(key);
    key_ = "a key " + std::string(6 - digits.size(), '0') + digits + std::string(key % 3 * 20, 'k');
    return key_;
  }
  Datum value(uint64_t value) {
    if (kind_ == Kind::kU64) return value;
    value_ = std::to_string(value);
    if (value % 3 != 0) value_ += std::string(value % 3 * 50, 'v');
    return value_;
  }
  static uint64_t word_of_key(Datum key) {
    return key.kind() == Kind::kU64 ? key.word()
                                    : std::stoull(std::string(key.bytes().substr(6, 6)));
  }
  // Of a value that is whole.
  static uint64_t word_of_value(Datum value) {
    if (value.kind() == Kind::kU64) return value.word();
    const uint64_t word = std::stoull(std::string(value.bytes()));
    EXPECT_EQ(Words(Kind::kBytes).value(word).bytes(), value.bytes());
    return word;
  }

 private:
  Kind kind_;
  std::string key_;
  std::string value_;
};

void survive(const std::string& path, const Deaths& deaths) {
  const PoolOptions options{.capacity_bytes = uint64_t{8} << 20,
                            .growth_bytes = deaths.growth_bytes,
                            .force_domain = true,
                            .domain = Domain::kLine};
  DyingProcess medium;
  test::Random random(5);
  std::map<uint64_t, uint64_t> model;
  uint64_t next_value = 1;
  uint64_t keys = 300;
  const auto found_in = [](const AnyIndex& index) {
    std::map<uint64_t, uint64_t> found;
    index.for_each(
        [&](Datum k, Datum v) { found[Words::word_of_key(k)] = Words::word_of_value(v); });
    return found;
  };
  Words words(deaths.kind);
  uint64_t key = 0;  // of the last operation
  const auto write = [&](AnyIndex& index) {
    key = random.below(keys);
    const uint64_t value = next_value++;
    const bool remove = random.chance(deaths.removals);
    if (remove) {
      index.remove(words.key(key));
      model.erase(key);
    } else {
      index.upsert(words.key(key), words.value(value));
      model[key] = value;
    }
  };
  {
    Pool pool = Pool::create(path, options);
    create_index(pool, "t", "sheaf", deaths.kind, deaths.kind, deaths.shape);
    pool.close();
  }
  std::string durable = test::read_file(path);
  for (uint64_t round = 0; round < 300; ++round) {
    keys += deaths.more_keys;
    {
      Pool pool = Pool::open(path, options);
      const char* const base = pm::impl_of(pool).base();
      auto index = open_index(pool, "t", {{"recovery_threads", "1"}});
      ASSERT_EQ(found_in(*index), model) << "after power failure " << round;
      const auto complain = [](const std::string& text) { ADD_FAILURE() << text; };
      ASSERT_EQ(index->check(complain) + pool.check(complain), 0U);
      medium.die_after(1 + random.below(deaths.fences_max));
      if (deaths.at_growth) {
        // What says how many segments there are, or what one of them is.
        const uint64_t descriptors = pm::impl_of(pool).header().descriptors_offset;
        medium.die_at(base, 1 + random.below(3), [=](uint64_t at) {
          return at == offsetof(pm::PoolHeader, segments_word) ||
                 (at >= descriptors && (at - descriptors) % sizeof(pm::SegmentDescriptor) == 0 &&
                  at < descriptors + 64 * sizeof(pm::SegmentDescriptor));
        });
      }
      try {
        for (;;) write(*index);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kIo);
      }
      index.reset();
      medium.take_durable(base, std::filesystem::file_size(path), durable);
    }
    medium.begin_process();
    Pool pool = Pool::open(path, options);
    const char* const base = pm::impl_of(pool).base();
    auto index = open_index(pool, "t", {{"recovery_threads", "1"}});
    auto found = found_in(*index);
    if (found.contains(key)) {
      model[key] = found[key];  // the operation that was interrupted has happened, or has not
    } else {
      model.erase(key);
    }
    ASSERT_EQ(found, model) << "after death " << round;
    for (uint64_t i = random.below(3) * 40; i > 0; --i) write(*index);
    medium.take_durable(base, std::filesystem::file_size(path), durable);
    index.reset();
    pool.close();
    medium.forget();  // the power had failed before
    test::write_file(path, durable);
  }
}

TEST_F(Sheaf, AProcessDiesAndThenThePowerFails) {
  survive(dir_.file("dying"), {.shape = {{"leaf_bytes", "256"},
                                         {"buffer_records", "4"},
                                         {"chunk_bytes", "512"},
                                         {"log_bytes", "4096"}}});
}

TEST_F(Sheaf, AProcessDiesAmongByteStringsAndThenThePowerFails) {
  survive(dir_.file("dying"), {.shape = {{"leaf_bytes", "512"},
                                         {"buffer_records", "4"},
                                         {"chunk_bytes", "2048"},
                                         {"log_bytes", "8192"}},
                               .kind = Kind::kBytes});
}

// New slabs and new segments all the time: what says that they are there must not be taken back,
// either.
TEST_F(Sheaf, AProcessDiesWhileThePoolGrowsAndThenThePowerFails) {
  survive(dir_.file("dying"), {.growth_bytes = uint64_t{64} << 10,
                               .shape = {{"leaf_bytes", "8192"},
                                         {"buffer_records", "4"},
                                         {"chunk_bytes", "512"},
                                         {"log_bytes", "4096"}},
                               .more_keys = 200,
                               .at_growth = true,
                               .fences_max = 4000,
                               .removals = 5});
}

}  // namespace
}  // namespace perdure::index
