// The store as a cache: bounded, never refusing, keeping what is read; and after any crash, of each
// key the last value or none.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

class StoreCacheTest : public testing::TestWithParam<StoreCase> {
 protected:
  static PoolOptions pool_options(uint64_t mebibytes = 16) { return store_pool(mebibytes); }
  // What the bound is for: an index in PM is not.
  static double bounded_bytes(const Store& store) {
    const bool in_pm = GetParam().options.index == StoreIndex::kPm;
    return figure(store, "pool_bytes") - (in_pm ? figure(store, "index_bytes") : 0);
  }
  static StoreOptions options(uint64_t bytes_max = 2 << 20) {
    StoreOptions options = GetParam().options;
    options.block_bytes = 4096;
    options.evict = true;
    options.bytes_max = bytes_max;
    return options;
  }
  static std::string text(uint64_t i) { return std::to_string(i) + std::string(80, 'v'); }

  TempDir dir_;
  Random random_{base_seed()};
};

TEST_P(StoreCacheTest, StaysWithinItsBoundAndRefusesNothing) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  {
    Store store = Store::create(pool, "store", options());
    for (uint64_t i = 0; i < 60'000; ++i) {
      const std::string key = "k" + std::to_string(i);
      store.put(key, text(i));
      ASSERT_EQ(store.get(key), text(i));
      if (i % 200 == 0) store.put("long" + std::to_string(i % 10'000), std::string(20'000, 'L'));
      if (i % 10'000 == 0) {
        ASSERT_EQ(faults(store), "");
      }
    }
    EXPECT_LE(bounded_bytes(store), 2.1 * (1 << 20));
    EXPECT_GT(store.size(), 5000U);
    EXPECT_GT(figure(store, "evicted_records"), 30'000);
    EXPECT_EQ(figure(store, "records"), static_cast<double>(store.size()));
    EXPECT_EQ(faults(store), "");
  }
  Store store = Store::open(pool, "store", options());
  uint64_t there = 0;
  store.for_each([&](std::string_view key, std::string_view value) {
    ++there;
    if (key.starts_with("k")) {
      EXPECT_EQ(value, text(std::stoull(std::string(key.substr(1)))));
    }
  });
  EXPECT_EQ(there, store.size());
  EXPECT_EQ(faults(store), "");
}

TEST_P(StoreCacheTest, KeepsWhatIsRead) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  for (uint64_t i = 0; i < 500; ++i) store.put("hot" + std::to_string(i), text(i));
  for (uint64_t i = 0; i < 100'000; ++i) {
    store.put("cold" + std::to_string(i), text(i));
    if (i % 4 == 0) store.get("hot" + std::to_string(random_.below(500)));
  }
  uint64_t hot = 0;
  for (uint64_t i = 0; i < 500; ++i) hot += store.contains("hot" + std::to_string(i)) ? 1 : 0;
  EXPECT_GT(hot, 450U);
  EXPECT_GT(figure(store, "hit_ratio"), 0.9);
  EXPECT_FALSE(store.contains("cold20000"));
}

// Long values that were all read, in a few records.
TEST_P(StoreCacheTest, WhatIsReadGoesIfThereIsNothingElse) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options(2));
  StoreOptions options = GetParam().options;
  options.block_bytes = 1024;
  options.evict = true;
  options.bytes_max = options.partitions * 20 * 1024;
  Store store = Store::create(pool, "store", options);
  for (uint64_t i = 0; i < 3000; ++i) {
    const std::string key = "k" + std::to_string(i);
    store.put(key, std::string(100 + random_.below(1900), 'v'));
    EXPECT_TRUE(store.contains(key));
    EXPECT_TRUE(store.get(key));
  }
  EXPECT_EQ(faults(store), "");
}

TEST_P(StoreCacheTest, WhatHasExpiredGoesFirst) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  const auto past = std::chrono::system_clock::now() - std::chrono::hours(1);
  for (uint64_t i = 0; i < 3000; ++i) store.put("keep" + std::to_string(i), text(i));
  for (uint64_t i = 0; i < 30'000; ++i) store.put("gone" + std::to_string(i), text(i), past);
  uint64_t kept = 0;
  for (uint64_t i = 0; i < 3000; ++i) kept += store.contains("keep" + std::to_string(i)) ? 1 : 0;
  EXPECT_GT(kept, 2900U);
}

TEST_P(StoreCacheTest, WhatMustStayStays) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  StoreOptions options = this->options();
  options.may_evict = [](std::string_view key, std::string_view) {
    return !key.starts_with("stay");
  };
  Store store = Store::create(pool, "store", options);
  for (uint64_t i = 0; i < 40'000; ++i) {
    store.put("go" + std::to_string(i), text(i));
    if (i < 4000) store.put("stay" + std::to_string(i), text(i));
  }
  for (uint64_t i = 0; i < 4000; ++i) ASSERT_EQ(store.get("stay" + std::to_string(i)), text(i));
  // With nothing that may go it refuses, and removals make room.
  const auto fill = [&] {
    for (uint64_t i = 4000; i < 100'000; ++i) store.put("stay" + std::to_string(i), text(i));
  };
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, fill));
  EXPECT_EQ(faults(store), "");
  for (uint64_t i = 0; i < 4000; ++i) EXPECT_TRUE(store.remove("stay" + std::to_string(i)));
  store.put("stay", "1");
  EXPECT_EQ(faults(store), "");
}

// Without eviction the bound refuses.
TEST_P(StoreCacheTest, ABoundRefuses) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  StoreOptions options = this->options();
  options.evict = false;
  Store store = Store::create(pool, "store", options);
  uint64_t written = 0;
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
    for (;; ++written) store.put("k" + std::to_string(written), text(written));
  }));
  EXPECT_GT(written, 5000U);
  EXPECT_EQ(store.size(), written);
  EXPECT_LE(bounded_bytes(store), 2.1 * (1 << 20));
  for (uint64_t i = 0; i < written; ++i) ASSERT_TRUE(store.remove("k" + std::to_string(i)));
  store.put("k", "1");
  EXPECT_EQ(faults(store), "");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] {
    Store::create(pool, "small", {.partitions = 4, .block_bytes = 4096, .bytes_max = 100'000});
  }));
}

// A snapshot sees what it saw, whatever goes.
TEST_P(StoreCacheTest, SnapshotsAndChangesLiveWithIt) {
  Pool pool = Pool::create(dir_.file("pool"), pool_options());
  StoreOptions options = this->options();
  options.changes_bytes = 256 << 10;
  Store store = Store::create(pool, "store", options);
  for (uint64_t i = 0; i < 500; ++i) store.put("k" + std::to_string(i), text(i));
  std::optional<Store::Snapshot> snapshot(store.snapshot());
  for (uint64_t i = 0; i < 60'000; ++i) {
    store.put("k" + std::to_string(random_.below(20'000)), text(i));
    if (i == 30'000) {
      for (uint64_t j = 0; j < 500; ++j) ASSERT_EQ(snapshot->get("k" + std::to_string(j)), text(j));
      ASSERT_EQ(faults(store), "");
      snapshot.reset();
    }
  }
  EXPECT_EQ(faults(store), "");
}

// All that is there a snapshot needs: writes are refused, at once, be it that nothing may be
// evicted, or that what has expired must stay.
TEST_P(StoreCacheTest, WhatASnapshotNeedsMakesNoRoom) {
  const auto past = std::chrono::system_clock::now() - std::chrono::hours(1);
  for (const bool evicts : {true, false}) {
    Pool pool = Pool::create(dir_.file(evicts ? "cache" : "bounded"), pool_options());
    StoreOptions options = this->options();
    options.evict = evicts;
    Store store = Store::create(pool, "store", options);
    for (uint64_t i = 0; i < 4000; ++i) {
      const std::string key = "k" + std::to_string(i);
      i % 2 == 0 ? store.put(key, text(i)) : store.put(key, text(i), past);
    }
    std::optional<Store::Snapshot> snapshot(store.snapshot());
    const auto there = content(*snapshot);
    std::vector<Store::Snapshot> snapshots;
    // What comes now is garbage, once the snapshot is gone.
    for (const uint64_t bytes : {100, 3000, 20'000, 100}) {
      EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
        for (uint64_t i = 0; i < 100'000; ++i) {
          const std::string key = "k" + std::to_string(random_.below(4000));
          store.put(key, std::string(bytes, 'v'), past);
          if (i % 16 == 0) snapshots.push_back(store.snapshot());
        }
      }));
      EXPECT_EQ(content(*snapshot), there);
      EXPECT_EQ(faults(store), "");
    }
    snapshots.clear();
    snapshot.reset();
    for (uint64_t i = 0; i < 1000; ++i) store.put("k" + std::to_string(i), text(i));
    EXPECT_EQ(store.get("k999"), text(999));
    EXPECT_EQ(faults(store), "");
  }
}

// Sessions that end in a power failure: of each key the last value, or none, and of the write under
// way all or nothing, apart from what has been evicted.
TEST_P(StoreCacheTest, NothingOlderComesBackAfterPowerFailures) {
  using Model = std::map<std::string, std::string>;
  const std::string path = dir_.file("pool");
  const auto small = [&] {
    StoreOptions options = GetParam().options;
    options.block_bytes = 1024;
    options.recovery_threads = 1;
    options.evict = true;
    options.bytes_max = options.partitions * 20 * 1024;
    options.garbage_percent = static_cast<uint32_t>(5 + random_.below(40));
    options.changes_bytes = random_.below(3) == 0 ? 10'000 : 0;
    return options;
  };
  {
    Pool pool = Pool::create(path, pool_options(2));
    Store::create(pool, "s", small());
  }
  Model model;
  std::optional<Model> next;
  uint64_t stamp = 0;
  uint64_t evicted = 0;
  const auto key = [&] {
    if (random_.below(6) == 0) return std::to_string(random_.below(5)) + std::string(90, 'k');
    return "k" + std::to_string(random_.below(1500));
  };
  const auto value = [&] {
    std::string text = std::to_string(++stamp) + ".";
    text.resize(std::max<uint64_t>(text.size(), random_.below(random_.below(10) == 0 ? 2000 : 40)),
                'v');
    return text;
  };
  const auto fits = [](const Store& store, const Model& wanted) {
    std::string wrong;
    store.for_each([&](std::string_view at, std::string_view text) {
      const auto found = wanted.find(std::string(at));
      if (found == wanted.end()) {
        wrong += "came back: " + std::string(at) + "\n";
      } else if (found->second != text) {
        wrong += "another value: " + std::string(at) + "\n";
      }
    });
    return wrong;
  };
  for (uint64_t session = 0; session < scaled(250) && !HasFailure(); ++session) {
    SCOPED_TRACE("session " + std::to_string(session));
    FailingMedium medium(path, Domain::kLine);
    medium.begin();
    constexpr uint64_t kSoon[] = {25, 120, 900};
    medium.refuse_here(random_.below(kSoon[random_.below(3)]), true);
    try {
      Pool pool = Pool::open(path, pool_options(2));
      Store store = Store::open(pool, "s", small());
      if (const std::string wrong = fits(store, model); !wrong.empty()) {
        ASSERT_TRUE(next) << wrong;
        ASSERT_EQ(fits(store, *next), "") << "nor, without the last write:\n" << wrong;
        model = *next;
      } else if (next) {
        // Both fit if nothing of the write is left to see: what is there decides.
        for (const auto& [at, text] : *next) {
          if (store.get(at) == text) model[at] = text;
        }
      }
      next.reset();
      store.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
      for (int i = 0; i < 100'000 && !HasFailure(); ++i) {
        next = model;
        const uint64_t choice = random_.below(10);
        if (choice < 6) {
          const std::string at = key();
          const std::string text = value();
          (*next)[at] = text;
          store.put(at, text);
          ASSERT_EQ(store.get(at), text);
        } else if (choice < 8) {
          const std::string at = key();
          next->erase(at);
          store.remove(at);
        } else {
          Store::Batch batch;
          for (uint64_t n = 1 + random_.below(4); n > 0; --n) {
            const std::string at = key();
            const std::string text = value();
            (*next)[at] = text;
            batch.put(at, text);
          }
          try {
            store.apply(batch);
          } catch (const Error& error) {
            if (error.code() != ErrorCode::kTooLarge) throw;
            next = model;
          }
        }
        model = *next;
        next.reset();
        store.get(key());
        if (i % 50 == 0)
          evicted = std::max(evicted, static_cast<uint64_t>(figure(store, "evicted_records")));
      }
    } catch (const Error& error) {
      ASSERT_TRUE(medium.refused()) << error.what();
    }
    if (!medium.refused()) continue;
    using Image = FailingMedium::Image;
    constexpr Image kImages[] = {Image::kMixed, Image::kMixed, Image::kLeast, Image::kAll};
    std::filesystem::rename(medium.make_image(kImages[random_.below(4)], random_.next()), path);
  }
  EXPECT_GT(evicted, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreCacheTest,
    testing::Values(StoreCase{"OnePartition", {.partitions = 1}},
                    StoreCase{"Hash", {.partitions = 4}},
                    StoreCase{"Ordered", {.index = StoreIndex::kOrdered, .partitions = 3}},
                    StoreCase{"Pm", {.index = StoreIndex::kPm, .partitions = 3}}),
    name_of);

}  // namespace
}  // namespace perdure::test
