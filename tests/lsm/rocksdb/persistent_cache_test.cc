// RocksDB on files of the system, with its block cache in a pool: warm after restarts and kills,
// with 2Q before it.
#include <gtest/gtest.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/persistent_cache.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "perdure/rocksdb.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

std::string cached_key(uint64_t number) { return "key" + std::to_string(100'000 + number); }
std::string cached_value(uint64_t number) {
  std::string value(100 + mix(number) % 200, static_cast<char>('a' + number % 26));
  return std::to_string(number) + value;
}

// A database in a folder, a pool beside it.
struct CachedDb {
  CachedDb(const std::string& folder, bool compressed, rocksdb::CompressionType compression,
           uint64_t dram_bytes, uint64_t pm_bytes = uint64_t{16} << 20)
      : pool(open_pool(folder + "/cache.pool")) {
    if (dram_bytes != 0) queue = rocksdb_2q_cache({.capacity_bytes = dram_bytes});
    persistent = rocksdb_persistent_cache(
        pool, {.cache = {.capacity_bytes = pm_bytes}, .compressed = compressed, .in_dram = queue});
    statistics = rocksdb::CreateDBStatistics();
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = compression;
    options.statistics = statistics;
    rocksdb::BlockBasedTableOptions table;
    table.persistent_cache = persistent;
    table.block_cache = queue;
    table.no_block_cache = queue == nullptr;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, folder + "/db", &opened);
    if (!status.ok()) throw Error(ErrorCode::kIo, status.ToString());
    db.reset(opened);
  }

  static Pool open_pool(const std::string& path) {
    try {
      return Pool::open(path);
    } catch (const Error&) {
      return Pool::create(path, {.capacity_bytes = uint64_t{64} << 20});
    }
  }
  // How many blocks came from the pool, and how many from files.
  uint64_t from_pool() const { return statistics->getTickerCount(rocksdb::PERSISTENT_CACHE_HIT); }
  uint64_t from_files() const { return statistics->getTickerCount(rocksdb::PERSISTENT_CACHE_MISS); }

  void read_all(uint64_t keys, uint64_t step = 1) const {
    std::string found;
    for (uint64_t i = 0; i < keys; i += step) {
      ASSERT_TRUE(db->Get({}, cached_key(i), &found).ok());
      ASSERT_EQ(found, cached_value(i));
    }
  }
  void load(uint64_t keys) const {
    for (uint64_t i = 0; i < keys; ++i) {
      if (!db->Put({}, cached_key(i), cached_value(i)).ok()) throw Error(ErrorCode::kIo, "put");
    }
    if (!db->Flush({}).ok() || !db->CompactRange({}, nullptr, nullptr).ok())
      throw Error(ErrorCode::kIo, "flush");
  }

  Pool pool;
  std::shared_ptr<rocksdb::PersistentCache> persistent;
  std::shared_ptr<rocksdb::Cache> queue;
  std::shared_ptr<rocksdb::Statistics> statistics;
  std::unique_ptr<rocksdb::DB> db;
};

constexpr uint64_t kKeys = 20'000;

class RocksDbPersistentCache : public testing::Test {
 protected:
  TempDir folder_;
};

// The first one: it forks.
TEST_F(RocksDbPersistentCache, IsWarmInAnotherProcessAfterAKill) {
  Child child([&](int out) {
    auto* first = new CachedDb(folder_.path(), false, rocksdb::kNoCompression, 0);
    first->load(kKeys);
    first->read_all(kKeys);
    const uint64_t misses = first->from_files();
    send(out, &misses, sizeof misses);
    for (;;) first->read_all(kKeys);
  });
  uint64_t misses = 0;
  ASSERT_TRUE(child.receive(&misses, sizeof misses));
  EXPECT_GT(misses, 500U);
  child.kill();
  child.wait();
  const CachedDb again(folder_.path(), false, rocksdb::kNoCompression, 0);
  EXPECT_GT(statistics_of_persistent_cache(*again.persistent).recovered, 500U);
  again.read_all(kKeys);
  EXPECT_GT(again.from_pool(), kKeys * 99 / 100);
  EXPECT_LE(again.from_files(), 20U);  // of what a table is opened by
}

TEST_F(RocksDbPersistentCache, BothWaysOfKeepingBlocksAreRightAndApart) {
  {
    const CachedDb first(folder_.path(), false, rocksdb::kSnappyCompression, 0);
    first.load(kKeys);
  }
  uint64_t bytes[2] = {};
  for (const bool compressed : {false, true}) {
    for (int opening = 0; opening < 2; ++opening) {
      const CachedDb each(folder_.path(), compressed, rocksdb::kSnappyCompression, 0);
      EXPECT_EQ(each.persistent->IsCompressed(), compressed);
      each.read_all(kKeys);
      if (opening == 0) {
        EXPECT_GT(each.from_files(), 500U);  // what the other way kept is not found
      } else {
        EXPECT_LE(each.from_files(), 20U);
      }
      bytes[compressed ? 1 : 0] = statistics_of_persistent_cache(*each.persistent).blocks;
    }
  }
  EXPECT_GT(bytes[1], bytes[0]);  // both are there
}

TEST_F(RocksDbPersistentCache, OnlyWhatIsAskedForAgainComesToDram) {
  const CachedDb both(folder_.path(), false, rocksdb::kNoCompression, 1 << 20);
  both.load(kKeys);
  const RocksDbCacheStatistics loaded = statistics_of_2q_cache(*both.queue);
  both.read_all(kKeys, 25);  // of each block at most one
  const RocksDbCacheStatistics scanned = statistics_of_2q_cache(*both.queue);
  EXPECT_LE(scanned.bytes, uint64_t{1} << 20);
  EXPECT_GT(scanned.in_place - loaded.in_place, scanned.copied - loaded.copied);
  EXPECT_EQ(scanned.evictions, loaded.evictions);  // what was read once has pushed out nothing
  // A few keys come to DRAM and stay.
  std::string found;
  for (int round = 0; round < 100; ++round) {
    for (uint64_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(both.db->Get({}, cached_key(i * 1900), &found).ok());
      ASSERT_EQ(found, cached_value(i * 1900));
    }
  }
  const RocksDbCacheStatistics hot = statistics_of_2q_cache(*both.queue);
  EXPECT_GT(hot.hits - scanned.hits, 900U);
  EXPECT_LE(hot.bytes, uint64_t{1} << 20);
  // Iterators, and writes that replace files.
  for (uint64_t i = 0; i < kKeys; i += 3) ASSERT_TRUE(both.db->Put({}, cached_key(i), "new").ok());
  ASSERT_TRUE(both.db->CompactRange({}, nullptr, nullptr).ok());
  uint64_t seen = 0;
  const std::unique_ptr<rocksdb::Iterator> at(both.db->NewIterator({}));
  for (at->SeekToFirst(); at->Valid(); at->Next(), ++seen) {
    ASSERT_EQ(at->key().ToString(), cached_key(seen));
    ASSERT_EQ(at->value().ToString(), seen % 3 == 0 ? "new" : cached_value(seen));
  }
  EXPECT_EQ(seen, kKeys);
}

// What DRAM has is not asked for in the pool, whose cache is much too small; it is there after a
// restart all the same.
TEST_F(RocksDbPersistentCache, WhatIsInDramStaysInThePool) {
  const auto read_hot = [](const CachedDb& each) {
    std::string found;
    for (uint64_t i = 0; i < 50; ++i)
      ASSERT_TRUE(each.db->Get({}, cached_key(i * 380), &found).ok());
  };
  constexpr uint64_t kPool = uint64_t{2} << 20;
  {
    const CachedDb first(folder_.path(), false, rocksdb::kNoCompression, 1 << 20, kPool);
    first.load(kKeys);
    for (int round = 0; round < 20; ++round) {
      read_hot(first);
      first.read_all(kKeys, 100 + static_cast<uint64_t>(round));
    }
    for (int round = 0; round < 4; ++round) first.read_all(kKeys, 20);
    read_hot(first);
    EXPECT_GT(statistics_of_persistent_cache(*first.persistent).evictions, 500U);
  }
  const CachedDb again(folder_.path(), false, rocksdb::kNoCompression, 1 << 20, kPool);
  const uint64_t before = again.from_files();
  read_hot(again);
  EXPECT_LE(again.from_files() - before, 20U);
}

// Clients share the cache by ids in their keys, and what they have put in stays.
TEST_F(RocksDbPersistentCache, GivesNoIdTwiceOverRestarts) {
  std::set<uint64_t> ids;
  for (int opening = 0; opening < 3; ++opening) {
    Pool pool = CachedDb::open_pool(folder_.file("cache.pool"));
    for (int cache = 0; cache < 2; ++cache) {
      const auto each = rocksdb_persistent_cache(pool, {.cache = {.capacity_bytes = 8 << 20}});
      for (int i = 0; i < 100; ++i) ids.insert(each->NewId());
    }
  }
  EXPECT_EQ(ids.size(), 600U);
}

TEST_F(RocksDbPersistentCache, TellsOfItself) {
  Pool pool = CachedDb::open_pool(folder_.file("cache.pool"));
  const auto cache =
      rocksdb_persistent_cache(pool, {.name = "mine", .cache = {.capacity_bytes = 8 << 20}});
  EXPECT_TRUE(cache->Insert("a key", "some bytes", 10).ok());
  std::unique_ptr<char[]> bytes;
  size_t size = 0;
  ASSERT_TRUE(cache->Lookup("a key", &bytes, &size).ok());
  EXPECT_EQ(std::string(bytes.get(), size), "some bytes");
  EXPECT_TRUE(cache->Lookup("another", &bytes, &size).IsNotFound());
  const std::string long_key(300, 'k');
  EXPECT_TRUE(cache->Insert(long_key, "x", 1).ok());
  EXPECT_TRUE(cache->Lookup(long_key, &bytes, &size).ok());
  EXPECT_TRUE(cache->Insert("large", std::string(2 << 20, 'x').data(), 2 << 20).IsTryAgain());
  EXPECT_EQ(cache->Stats().front().at("perdure.hits"), 2);
  EXPECT_NE(cache->GetPrintableOptions().find("capacity_bytes: 8388608"), std::string::npos);
  EXPECT_NE(cache->NewId(), cache->NewId());
  EXPECT_EQ(statistics_of_persistent_cache(*cache).declined, 1U);
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "rocksdb_2q_cache", [&] {
    rocksdb_persistent_cache(pool, {.name = "other", .in_dram = rocksdb::NewLRUCache(1 << 20)});
  }));
}

}  // namespace
}  // namespace perdure::test
