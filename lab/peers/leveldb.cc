// LevelDB: its defaults, a Bloom filter of 10 bits, a block cache of 256 MiB, no compression (the
// values that the benchmark makes compress too well).

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/filter_policy.h>
#include <leveldb/iterator.h>

#include "lab/peers/key_value_store.h"
#ifdef PERDURE_HAS_LSM
#include "lab/peers/pool_store.h"
#include "perdure/leveldb.h"
#endif

namespace perdure::lab::peers {
namespace {

struct LevelDb {
  static constexpr const char* kName = "LevelDB";
  using Db = leveldb::DB;
  using Slice = leveldb::Slice;
  using Status = leveldb::Status;
  using ReadOptions = leveldb::ReadOptions;
  using WriteOptions = leveldb::WriteOptions;
  using Iterator = leveldb::Iterator;
};

struct Parts {
  std::unique_ptr<const leveldb::FilterPolicy> filter{leveldb::NewBloomFilterPolicy(10)};
  std::unique_ptr<leveldb::Cache> cache{leveldb::NewLRUCache(size_t{256} << 20)};
};

std::unique_ptr<AnyIndex> open_index(const std::string& path, const StoreOptions& options,
                                     bool synced, leveldb::Env* env) {
  auto parts = std::make_shared<Parts>();
  leveldb::Options settings;
  if (env != nullptr) settings.env = env;
  settings.create_if_missing = true;
  settings.compression = leveldb::kNoCompression;
  settings.filter_policy = parts->filter.get();
  settings.block_cache = parts->cache.get();
  leveldb::DB* db = nullptr;
  KeyValueStore<LevelDb>::require(leveldb::DB::Open(settings, path, &db));
  return std::make_unique<KeyValueStore<LevelDb>>(options.key_kind, options.value_kind, parts,
                                                  std::unique_ptr<leveldb::DB>(db), synced);
}

std::unique_ptr<BenchStore> open_store(const std::string& path, const StoreOptions& options,
                                       bool synced) {
  return std::make_unique<FolderStore>(path, open_index(path, options, synced, nullptr));
}

#ifdef PERDURE_HAS_LSM
std::unique_ptr<BenchStore> open_pool_store(const std::string& path, const StoreOptions& options,
                                            bool synced) {
  return std::make_unique<PoolStore<leveldb::Env>>(
      path, options, [](Pool& pool) { return leveldb_env(pool); },
      [&](leveldb::Env* env) { return open_index("/db", options, synced, env); });
}
#endif

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) void perdure_bench_peers(
    std::vector<perdure::lab::Contender>& peers) {
  using perdure::lab::peers::folder_store;
#ifdef PERDURE_HAS_LSM
  using perdure::lab::peers::pool_store;
#endif
  using perdure::lab::peers::open_store;
  peers.push_back(folder_store(
      "leveldb", "each operation: its log is synced (to no effect on tmpfs)", open_store, true));
  peers.push_back(folder_store("leveldb-nosync",
                               "the death of the process; the last writes not a power failure",
                               open_store, false));
#ifdef PERDURE_HAS_LSM
  using perdure::lab::peers::open_pool_store;
  peers.push_back(pool_store("leveldb+pool", open_pool_store, true));
  peers.push_back(pool_store("leveldb+pool-nosync", open_pool_store, false));
#endif
}
