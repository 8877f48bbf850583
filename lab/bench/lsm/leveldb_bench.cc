// LevelDB over a pool and over files of the system, in one folder: synced writes in groups of
// several sizes, and random reads with block caches of several kinds.
//
//   perdure_leveldb_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
//
// PERDURE_BENCH_DIR: the folder, /dev/shm without. PERDURE_DOMAIN=line has the pool flush and fence
// as persistent memory would need it. Keys have 16 bytes, values 100.
#include <benchmark/benchmark.h>
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/write_batch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "perdure/leveldb.h"

namespace {

constexpr uint64_t kRecords = 500'000;

enum class Files { kSystem, kPool };
enum class Cache { kNone, kLru, kTwoQueue };

std::string key_of(uint64_t number) {
  std::string key(16, '0');
  for (size_t i = 16; i > 0 && number > 0; number /= 10)
    key[--i] = static_cast<char>('0' + number % 10);
  return key;
}

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// A database in a folder of its own, gone afterwards.
class Database {
 public:
  Database(Files files, Cache cache, uint64_t cache_bytes) {
    const char* base = std::getenv("PERDURE_BENCH_DIR");
    folder_ = std::string(base == nullptr ? "/dev/shm" : base) + "/perdure-leveldb-bench-" +
              std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    leveldb::Options options;
    options.create_if_missing = true;
    options.compression = leveldb::kNoCompression;
    if (files == Files::kPool) {
      perdure::PoolOptions pool;
      pool.capacity_bytes = uint64_t{1} << 30;
      pool.growth_bytes = uint64_t{64} << 20;
      pool_.emplace(perdure::Pool::create(folder_ + "/pool", pool));
      env_ = perdure::leveldb_env(*pool_);
      options.env = env_.get();
    }
    if (cache == Cache::kTwoQueue)
      cache_ = perdure::leveldb_2q_cache({.capacity_bytes = cache_bytes});
    if (cache == Cache::kLru) cache_.reset(leveldb::NewLRUCache(cache_bytes));
    if (cache == Cache::kNone) cache_.reset(leveldb::NewLRUCache(0));
    options.block_cache = cache_.get();
    leveldb::DB* opened = nullptr;
    const leveldb::Status status =
        leveldb::DB::Open(options, files == Files::kPool ? "/db" : folder_ + "/db", &opened);
    if (!status.ok()) std::abort();
    db_.reset(opened);
  }
  ~Database() {
    db_.reset();
    env_.reset();
    pool_.reset();
    std::filesystem::remove_all(folder_);
  }
  leveldb::DB& operator*() const { return *db_; }
  leveldb::DB* operator->() const { return db_.get(); }

 private:
  std::string folder_;
  std::optional<perdure::Pool> pool_;
  std::unique_ptr<leveldb::Env> env_;
  std::unique_ptr<leveldb::Cache> cache_;
  std::unique_ptr<leveldb::DB> db_;
};

void synced_writes(benchmark::State& state, Files files) {
  const Database db(files, Cache::kNone, 0);
  const std::string value(100, 'v');
  leveldb::WriteOptions synced;
  synced.sync = true;
  uint64_t number = 0;
  const auto group = static_cast<uint64_t>(state.range(0));
  for (auto unused : state) {
    leveldb::WriteBatch batch;
    for (uint64_t i = 0; i < group; ++i) batch.Put(key_of(mix(number++) % kRecords), value);
    if (!db->Write(synced, &batch).ok()) std::abort();
  }
  state.SetItemsProcessed(static_cast<int64_t>(number));
}

void random_reads(benchmark::State& state, Files files, Cache cache) {
  const Database db(files, cache, static_cast<uint64_t>(state.range(0)) << 20);
  const std::string value(100, 'v');
  for (uint64_t i = 0; i < kRecords; ++i) {
    if (!db->Put({}, key_of(mix(i) % kRecords), value).ok()) std::abort();
  }
  db->CompactRange(nullptr, nullptr);
  std::string found;
  uint64_t number = 0;
  for (auto unused : state) {
    // Four reads of five go to a fifth of the keys.
    const uint64_t random = mix(++number);
    const uint64_t range = random % 5 != 0 ? kRecords / 5 : kRecords;
    static_cast<void>(db->Get({}, key_of((random >> 8) % range), &found));
  }
  state.SetItemsProcessed(static_cast<int64_t>(number));
}

BENCHMARK_CAPTURE(synced_writes, system, Files::kSystem)
    ->Arg(1)
    ->Arg(10)
    ->Arg(100)
    ->Arg(1000)
    ->UseRealTime();
BENCHMARK_CAPTURE(synced_writes, pool, Files::kPool)
    ->Arg(1)
    ->Arg(10)
    ->Arg(100)
    ->Arg(1000)
    ->UseRealTime();
BENCHMARK_CAPTURE(random_reads, system_uncached, Files::kSystem, Cache::kNone)
    ->Arg(0)
    ->UseRealTime();
BENCHMARK_CAPTURE(random_reads, pool_uncached, Files::kPool, Cache::kNone)->Arg(0)->UseRealTime();
BENCHMARK_CAPTURE(random_reads, system_lru, Files::kSystem, Cache::kLru)
    ->Arg(1)
    ->Arg(8)
    ->UseRealTime();
BENCHMARK_CAPTURE(random_reads, pool_2q, Files::kPool, Cache::kTwoQueue)
    ->Arg(1)
    ->Arg(8)
    ->UseRealTime();

}  // namespace
