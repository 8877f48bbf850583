// RocksDB: its defaults, a Bloom filter of 10 bits, a block cache of 256 MiB, no compression (the
// values that the benchmark makes compress too well), and two background threads.

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

#include "lab/peers/key_value_store.h"
#ifdef PERDURE_HAS_LSM
#include <rocksdb/env.h>

#include "lab/peers/pool_store.h"
#include "perdure/rocksdb.h"
#endif

namespace perdure::lab::peers {
namespace {

struct RocksDb {
  static constexpr const char* kName = "RocksDB";
  using Db = rocksdb::DB;
  using Slice = rocksdb::Slice;
  using Status = rocksdb::Status;
  using ReadOptions = rocksdb::ReadOptions;
  using WriteOptions = rocksdb::WriteOptions;
  using Iterator = rocksdb::Iterator;
};

std::unique_ptr<AnyIndex> open_index(const std::string& path, const StoreOptions& options,
                                     bool synced, rocksdb::Env* env) {
  rocksdb::Options settings;
  if (env != nullptr) {
    settings.env = env;
    settings.allow_mmap_reads = true;
  }
  settings.create_if_missing = true;
  settings.compression = rocksdb::kNoCompression;
  settings.IncreaseParallelism(2);
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = rocksdb::NewLRUCache(size_t{256} << 20);
  settings.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::DB* db = nullptr;
  KeyValueStore<RocksDb>::require(rocksdb::DB::Open(settings, path, &db));
  return std::make_unique<KeyValueStore<RocksDb>>(options.key_kind, options.value_kind, nullptr,
                                                  std::unique_ptr<rocksdb::DB>(db), synced);
}

std::unique_ptr<BenchStore> open_store(const std::string& path, const StoreOptions& options,
                                       bool synced) {
  return std::make_unique<FolderStore>(path, open_index(path, options, synced, nullptr));
}

#ifdef PERDURE_HAS_LSM
std::unique_ptr<BenchStore> open_pool_store(const std::string& path, const StoreOptions& options,
                                            bool synced) {
  return std::make_unique<PoolStore<rocksdb::Env>>(
      path, options, [](Pool& pool) { return rocksdb::NewCompositeEnv(rocksdb_file_system(pool)); },
      [&](rocksdb::Env* env) { return open_index("/db", options, synced, env); });
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
      "rocksdb", "each operation: its log is synced (to no effect on tmpfs)", open_store, true));
  peers.push_back(folder_store("rocksdb-nosync",
                               "the death of the process; the last writes not a power failure",
                               open_store, false));
#ifdef PERDURE_HAS_LSM
  using perdure::lab::peers::open_pool_store;
  peers.push_back(pool_store("rocksdb+pool", open_pool_store, true));
  peers.push_back(pool_store("rocksdb+pool-nosync", open_pool_store, false));
#endif
}
