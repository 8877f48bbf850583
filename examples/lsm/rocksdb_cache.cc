// RocksDB with its files in a folder and a block cache in a pool, which is warm when the program
// runs again.
//
//   rocksdb_cache /var/lib/db /mnt/pmem/cache.pool
#include <perdure/error.h>
#include <perdure/rocksdb.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/persistent_cache.h>
#include <rocksdb/table.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

namespace {

constexpr int kRecords = 10'000;

rocksdb::Status load(rocksdb::DB& db) {
  for (int i = 0; i < kRecords; ++i) {
    const rocksdb::Status status =
        db.Put({}, "key" + std::to_string(i), std::string(100, static_cast<char>('a' + i % 26)));
    if (!status.ok()) return status;
  }
  return db.Flush({});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: rocksdb_cache FOLDER POOL\n";
    return 2;
  }
  try {
    const std::string path = argv[2];
    perdure::Pool pool =
        std::filesystem::exists(path) ? perdure::Pool::open(path) : perdure::Pool::create(path);

    rocksdb::BlockBasedTableOptions table;
    table.block_cache = perdure::rocksdb_2q_cache({.capacity_bytes = 4 << 20});
    table.persistent_cache = perdure::rocksdb_persistent_cache(
        pool, {.cache = {.capacity_bytes = 64 << 20}, .in_dram = table.block_cache});
    rocksdb::Options options;
    options.create_if_missing = true;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* opened = nullptr;
    rocksdb::Status status = rocksdb::DB::Open(options, argv[1], &opened);
    const std::unique_ptr<rocksdb::DB> db(opened);
    std::string value;
    if (status.ok() && db->Get({}, "key0", &value).IsNotFound()) status = load(*db);
    for (int i = 0; i < kRecords && status.ok(); i += 7)
      status = db->Get({}, "key" + std::to_string(i), &value);
    if (!status.ok()) {
      std::cerr << "rocksdb_cache: " << status.ToString() << '\n';
      return 1;
    }
    const perdure::BlockCacheStatistics cache =
        perdure::statistics_of_persistent_cache(*table.persistent_cache);
    std::cout << cache.recovered << " blocks were there, " << cache.hits << " were hit, "
              << cache.inserts << " came\n";
    return 0;
  } catch (const perdure::Error& error) {
    std::cerr << "rocksdb_cache: " << error.what() << '\n';
    return 1;
  }
}
