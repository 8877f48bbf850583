// RocksDB with its files in a pool.
//
//   rocksdb_pool /dev/shm/db.pool
#include <perdure/error.h>
#include <perdure/rocksdb.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: rocksdb_pool POOL\n";
    return 2;
  }
  try {
    const std::string path = argv[1];
    perdure::Pool pool =
        std::filesystem::exists(path) ? perdure::Pool::open(path) : perdure::Pool::create(path);
    const std::unique_ptr<rocksdb::Env> env =
        rocksdb::NewCompositeEnv(perdure::rocksdb_file_system(pool));

    rocksdb::Options options;
    options.env = env.get();
    options.allow_mmap_reads = true;
    options.compression = rocksdb::kNoCompression;
    options.create_if_missing = true;
    rocksdb::DB* opened = nullptr;
    rocksdb::Status status = rocksdb::DB::Open(options, "/db", &opened);
    const std::unique_ptr<rocksdb::DB> db(opened);

    std::string runs = "0";
    if (status.ok()) static_cast<void>(db->Get({}, "runs", &runs));
    runs = std::to_string(std::stoul(runs) + 1);
    rocksdb::WriteOptions durable;
    durable.sync = true;  // two fences
    if (status.ok()) status = db->Put(durable, "runs", runs);
    if (!status.ok()) {
      std::cerr << "rocksdb_pool: " << status.ToString() << '\n';
      return 1;
    }
    std::cout << "run " << runs << '\n';
    return 0;
  } catch (const perdure::Error& error) {
    std::cerr << "rocksdb_pool: " << error.what() << '\n';
    return 1;
  }
}
