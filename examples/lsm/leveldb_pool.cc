// LevelDB with its files in a pool, and 2Q in the place of its block cache.
//
//   leveldb_pool /dev/shm/db.pool
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <perdure/error.h>
#include <perdure/leveldb.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: leveldb_pool POOL\n";
    return 2;
  }
  try {
    const std::string path = argv[1];
    perdure::Pool pool =
        std::filesystem::exists(path) ? perdure::Pool::open(path) : perdure::Pool::create(path);
    const std::unique_ptr<leveldb::Env> env = perdure::leveldb_env(pool);
    const std::unique_ptr<leveldb::Cache> cache = perdure::leveldb_2q_cache();

    leveldb::Options options;
    options.env = env.get();
    options.block_cache = cache.get();
    options.compression = leveldb::kNoCompression;
    options.create_if_missing = true;
    leveldb::DB* opened = nullptr;
    leveldb::Status status = leveldb::DB::Open(options, "/db", &opened);
    const std::unique_ptr<leveldb::DB> db(opened);

    std::string runs = "0";
    if (status.ok()) static_cast<void>(db->Get({}, "runs", &runs));
    runs = std::to_string(std::stoul(runs) + 1);
    leveldb::WriteOptions durable;
    durable.sync = true;  // two fences
    if (status.ok()) status = db->Put(durable, "runs", runs);
    if (!status.ok()) {
      std::cerr << "leveldb_pool: " << status.ToString() << '\n';
      return 1;
    }
    std::cout << "run " << runs << '\n';
    return 0;
  } catch (const perdure::Error& error) {
    std::cerr << "leveldb_pool: " << error.what() << '\n';
    return 1;
  }
}
