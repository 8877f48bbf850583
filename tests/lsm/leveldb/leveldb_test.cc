// LevelDB over a pool: its usual work, kills, full pools, damage, and where blocks are read.
//
// PERDURE_KILL_ROUNDS: how many kills.
#include "perdure/leveldb.h"

#include <gtest/gtest.h>
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/filter_policy.h>
#include <leveldb/iterator.h>
#include <leveldb/write_batch.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lsm/numbered_records.h"
#include "perdure/files.h"
#include "support/child.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

PoolOptions pool_options(uint64_t capacity_bytes) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{1} << 20;
  return options;
}

// Pool, environment and database, in this order.
struct Store {
  Store(const std::string& path, uint64_t capacity_bytes, leveldb::Cache* cache = nullptr,
        const LevelDbEnvOptions& env_options = {})
      : Store(path, pool_options(capacity_bytes), cache, env_options) {}
  Store(const std::string& path, const PoolOptions& options_of_pool,
        leveldb::Cache* cache = nullptr, const LevelDbEnvOptions& env_options = {})
      : pool(std::filesystem::exists(path) ? Pool::open(path, options_of_pool)
                                           : Pool::create(path, options_of_pool)),
        env(leveldb_env(pool, env_options)),
        filter(leveldb::NewBloomFilterPolicy(10)) {
    leveldb::Options options;
    options.env = env.get();
    options.create_if_missing = true;
    options.paranoid_checks = true;
    options.compression = leveldb::kNoCompression;
    options.write_buffer_size = 64 << 10;  // so that all levels see work
    options.max_file_size = 1 << 20;
    options.block_cache = cache;
    options.filter_policy = filter.get();
    leveldb::DB* opened = nullptr;
    status = leveldb::DB::Open(options, "/stores/db", &opened);
    db.reset(opened);
  }

  Pool pool;
  std::unique_ptr<leveldb::Env> env;
  std::unique_ptr<const leveldb::FilterPolicy> filter;
  std::unique_ptr<leveldb::DB> db;
  leveldb::Status status;
};

Model contents_of(leveldb::DB& db) {
  Model all;
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  const std::unique_ptr<leveldb::Iterator> at(db.NewIterator(options));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    all[at->key().ToString()] = at->value().ToString();
  }
  EXPECT_TRUE(at->status().ok()) << at->status().ToString();
  return all;
}

class LevelDb : public testing::Test {
 protected:
  std::string path() const { return folder_.file("pool"); }
  TempDir folder_;
};

TEST_F(LevelDb, DoesItsUsualWorkOverManyOpenings) {
  Model model;
  uint64_t number = 0;
  Random random(base_seed());
  for (int round = 0; round < 4; ++round) {
    Store store(path(), uint64_t{64} << 20);
    ASSERT_TRUE(store.status.ok()) << store.status.ToString();
    ASSERT_EQ(contents_of(*store.db), model);
    for (uint64_t i = 0; i < scaled(6000); ++i) {
      const std::string key = key_of(random.below(3000));
      if (random.chance(20)) {
        ASSERT_TRUE(store.db->Delete({}, key).ok());
        model.erase(key);
        continue;
      }
      const std::string value = value_of(++number);
      leveldb::WriteOptions options;
      options.sync = random.chance(10);
      ASSERT_TRUE(store.db->Put(options, key, value).ok());
      model[key] = value;
    }
    if (round == 2) store.db->CompactRange(nullptr, nullptr);
    ASSERT_EQ(contents_of(*store.db), model);
    std::string found;
    for (uint64_t i = 0; i < 3000; ++i) {
      const bool there = store.db->Get({}, key_of(i), &found).ok();
      ASSERT_EQ(there, model.contains(key_of(i)));
      if (there) {
        ASSERT_EQ(found, model[key_of(i)]);
      }
    }
  }
}

TEST_F(LevelDb, WritesLogsAndTakesItsLock) {
  Store store(path(), uint64_t{64} << 20);
  ASSERT_TRUE(store.status.ok()) << store.status.ToString();
  std::string log;
  ASSERT_TRUE(leveldb::ReadFileToString(store.env.get(), "/stores/db/LOG", &log).ok());
  EXPECT_NE(log.find("Delete type"), std::string::npos) << log;
  leveldb::Options options;
  options.env = store.env.get();
  leveldb::DB* second = nullptr;
  EXPECT_FALSE(leveldb::DB::Open(options, "/stores/db", &second).ok());
  store.db.reset();
  EXPECT_TRUE(leveldb::DestroyDB("/stores/db", options).ok());
  EXPECT_FALSE(store.env->FileExists("/stores/db/CURRENT"));
}

// Writes number 0, 1, ... report each when it is acknowledged; the odd ones are not synced, and
// flushed all the same: the death of a process loses none of them.
TEST_F(LevelDb, AKilledProcessLosesNothingThatWasAcknowledged) {
  const char* text = std::getenv("PERDURE_KILL_ROUNDS");
  const uint64_t rounds = text == nullptr ? scaled(10) : std::strtoull(text, nullptr, 10);
  Random random(base_seed());
  uint64_t first = 0;
  Model model;
  Pool::create(path(), pool_options(uint64_t{64} << 20)).close();
  for (uint64_t round = 0; round < rounds; ++round) {
    uint64_t acknowledged = first;
    Child child([&](int out) {
      auto* store = new Store(path(), uint64_t{64} << 20);  // never closed
      if (!store->status.ok()) throw Error(ErrorCode::kCorrupt, store->status.ToString());
      for (uint64_t i = first;; ++i) {
        leveldb::WriteOptions options;
        options.sync = i % 2 == 0;
        leveldb::WriteBatch batch;  // of two records, which are there both or neither
        batch.Put(key_of(i % 2000), value_of(i));
        batch.Put("twin" + key_of(i % 2000), value_of(i));
        const leveldb::Status status = store->db->Write(options, &batch);
        if (!status.ok()) throw Error(ErrorCode::kCorrupt, status.ToString());
        send(out, &i, sizeof i);
      }
    });
    const uint64_t enough = random.below(uint64_t{1} << (4 + random.below(10)));
    uint64_t told = 0;
    for (uint64_t n = 0; n < enough && child.receive(&told, sizeof told); ++n)
      acknowledged = told + 1;
    child.kill();
    while (child.receive(&told, sizeof told)) acknowledged = told + 1;
    child.wait();
    for (; first < acknowledged; ++first) {
      model[key_of(first % 2000)] = value_of(first);
      model["twin" + key_of(first % 2000)] = value_of(first);
    }
    Store store(path(), uint64_t{64} << 20);
    ASSERT_TRUE(store.status.ok()) << store.status.ToString();
    const Model there = contents_of(*store.db);
    if (there != model) {  // the write that was under way
      model[key_of(first % 2000)] = value_of(first);
      model["twin" + key_of(first % 2000)] = value_of(first);
      ++first;
    }
    ASSERT_EQ(there, model) << "round " << round;
  }
}

TEST_F(LevelDb, AFullPoolIsAnErrorAndLosesNothing) {
  Model model;
  {
    Store store(path(), uint64_t{6} << 20);
    ASSERT_TRUE(store.status.ok()) << store.status.ToString();
    leveldb::Status status;
    for (uint64_t i = 0; i < 100'000; ++i) {
      leveldb::WriteOptions options;
      options.sync = true;
      status = store.db->Put(options, key_of(i), value_of(i));
      if (!status.ok()) break;
      model[key_of(i)] = value_of(i);
    }
    EXPECT_TRUE(status.IsIOError()) << status.ToString();
    EXPECT_NE(status.ToString().find("pool"), std::string::npos) << status.ToString();
    std::string found;
    for (const auto& [key, value] : model) {
      ASSERT_TRUE(store.db->Get({}, key, &found).ok());
      ASSERT_EQ(found, value);
    }
  }
  EXPECT_GT(model.size(), 1000U);
  // There is room for what opening writes once files that nobody needs are gone.
  Pool pool = Pool::open(path());
  const Files files = Files::open(pool, "files");
  files.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
}

// LevelDB has gone on in its log as if the record that did not fit was there: what follows would be
// lost.
TEST_F(LevelDb, AnAppendThatFailedIsTheLastOne) {
  Pool pool = Pool::create(path(), pool_options(uint64_t{6} << 20));
  const std::unique_ptr<leveldb::Env> env = leveldb_env(pool);
  const auto make = [&](const std::string& name) {
    leveldb::WritableFile* file = nullptr;
    EXPECT_TRUE(env->NewWritableFile(name, &file).ok());
    return std::unique_ptr<leveldb::WritableFile>(file);
  };
  const std::string much(uint64_t{4} << 20, 'x');
  EXPECT_TRUE(make("/ballast")->Append(much).ok());
  const auto log = make("/log");
  EXPECT_TRUE(log->Append("the head of a record").ok());
  EXPECT_TRUE(log->Append(much).IsIOError());
  EXPECT_TRUE(env->RemoveFile("/ballast").ok());
  EXPECT_TRUE(log->Append("another record").IsIOError());
  EXPECT_TRUE(log->Sync().IsIOError());
}

// A database whose power fails.
class PoweredDatabase {
 public:
  PoweredDatabase(const std::string& path, const PoolOptions& options) : store_(path, options) {}

  bool opened() const { return store_.status.ok(); }
  Model contents() const { return contents_of(*store_.db); }
  bool put(const std::string& key, const std::string& value, bool sync) {
    leveldb::WriteOptions options;
    options.sync = sync;
    const leveldb::Status status = store_.db->Put(options, key, value);
    if (status.ok()) return true;
    EXPECT_TRUE(status.IsIOError()) << status.ToString();
    EXPECT_NE(status.ToString().find("pool"), std::string::npos) << status.ToString();
    return false;
  }
  bool has(const std::string& key) const {
    std::string found;
    return store_.db->Get({}, key, &found).ok();
  }

 private:
  Store store_;
};

// And the database says so when it happens.
TEST_F(LevelDb, APowerFailureLosesNothingThatWasSynced) {
  EXPECT_GT(fail_power<PoweredDatabase>(path(), pool_options(uint64_t{64} << 20), rounds(40)),
            1000U);
}

TEST_F(LevelDb, FilesAreRemovedAsFilesAndDirectoriesAsDirectories) {
  Pool pool = Pool::create(path(), pool_options(uint64_t{6} << 20));
  const std::unique_ptr<leveldb::Env> env = leveldb_env(pool);
  ASSERT_TRUE(env->CreateDir("/d").ok());
  ASSERT_TRUE(leveldb::WriteStringToFile(env.get(), "x", "/f").ok());
  EXPECT_TRUE(env->RemoveFile("/d").IsIOError());
  EXPECT_TRUE(env->RemoveDir("/f").IsIOError());
  EXPECT_TRUE(env->FileExists("/d") && env->FileExists("/f"));
  EXPECT_TRUE(env->RemoveFile("/none").IsNotFound());
  EXPECT_TRUE(env->RemoveFile("/f").ok());
  EXPECT_TRUE(env->RemoveDir("/d").ok());
}

TEST_F(LevelDb, DamageIsItsOwnError) {
  {
    Store store(path(), uint64_t{64} << 20);
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_TRUE(store.db->Put({}, key_of(i), value_of(i)).ok());
    store.db->CompactRange(nullptr, nullptr);
  }
  std::string image = read_file(path());
  const std::string wanted = std::string(100, 'c');
  size_t at = image.size() / 8;
  for (int i = 0; i < 50; ++i) {
    at = image.find(wanted, at + 4096);
    if (at == std::string::npos) break;
    image[at] ^= 1;
  }
  write_file(path(), image);
  Store store(path(), uint64_t{64} << 20);
  leveldb::Status status = store.status;
  if (status.ok()) {
    leveldb::ReadOptions options;
    options.verify_checksums = true;
    const std::unique_ptr<leveldb::Iterator> all(store.db->NewIterator(options));
    for (all->SeekToFirst(); all->Valid(); all->Next()) continue;
    status = all->status();
  }
  EXPECT_TRUE(status.IsCorruption()) << status.ToString();
}

TEST_F(LevelDb, TwoQueueCopiesTheHotBlocksAlone) {
  const std::unique_ptr<leveldb::Cache> cache =
      leveldb_2q_cache({.capacity_bytes = 1 << 20, .block_bytes = 4096});
  Store store(path(), uint64_t{64} << 20, cache.get());
  ASSERT_TRUE(store.status.ok()) << store.status.ToString();
  Model model;
  for (uint64_t i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(store.db->Put({}, key_of(i), value_of(i)).ok());
    model[key_of(i)] = value_of(i);
  }
  store.db->CompactRange(nullptr, nullptr);
  const TwoQueueCacheStatistics loaded = statistics_of_2q_cache(*cache);
  for (int round = 0; round < 3; ++round) {  // far more than fits in
    ASSERT_EQ(contents_of(*store.db), model);
  }
  const TwoQueueCacheStatistics scanned = statistics_of_2q_cache(*cache);
  EXPECT_GT(scanned.in_place - loaded.in_place, scanned.copied - loaded.copied);
  EXPECT_LE(scanned.bytes, uint64_t{1} << 20);
  EXPECT_EQ(cache->TotalCharge(), scanned.bytes);
  // A few keys that are read often come to DRAM and stay.
  std::string found;
  for (int round = 0; round < 50; ++round) {
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(store.db->Get({}, key_of(i), &found).ok());
  }
  const TwoQueueCacheStatistics hot = statistics_of_2q_cache(*cache);
  EXPECT_GT(hot.hits - scanned.hits, 350U);
  EXPECT_EQ(contents_of(*store.db), model);
  cache->Prune();
  EXPECT_EQ(cache->TotalCharge(), 0U);
  const std::unique_ptr<leveldb::Cache> other(leveldb::NewLRUCache(1000));
  EXPECT_THROW(statistics_of_2q_cache(*other), Error);
}

// LevelDB's keys of blocks have 16 bytes, one more than a string has room for in itself.
TEST_F(LevelDb, TwoQueueLooksUpWithoutAllocating) {
  const std::unique_ptr<leveldb::Cache> cache = leveldb_2q_cache({.capacity_bytes = 1 << 20});
  const leveldb::Slice key("sixteen bytes it");
  cache->Release(cache->Insert(key, nullptr, 100, [](const leveldb::Slice&, void*) {}));
  ShortMemory memory(0);
  leveldb::Cache::Handle* found = cache->Lookup(key);
  leveldb::Cache::Handle* none = cache->Lookup("sixteen bytes no");
  memory.end();
  EXPECT_EQ(memory.refused(), 0U);
  EXPECT_EQ(none, nullptr);
  ASSERT_NE(found, nullptr);
  cache->Release(found);
}

TEST_F(LevelDb, ReadsInPlaceLeaveTheBlockCacheEmpty) {
  for (const BlockReads reads : {BlockReads::kInPlace, BlockReads::kCopy}) {
    const std::unique_ptr<leveldb::Cache> cache(leveldb::NewLRUCache(8 << 20));
    Store store(path(), uint64_t{64} << 20, cache.get(), {.reads = reads});
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_TRUE(store.db->Put({}, key_of(i), value_of(i)).ok());
    store.db->CompactRange(nullptr, nullptr);
    std::string found;
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_TRUE(store.db->Get({}, key_of(i), &found).ok());
    // Blocks that lie in two extents are copied in any case.
    EXPECT_EQ(cache->TotalCharge() > (64 << 10), reads == BlockReads::kCopy)
        << cache->TotalCharge();
  }
}

}  // namespace
}  // namespace perdure::test
