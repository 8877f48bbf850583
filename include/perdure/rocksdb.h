// RocksDB in a pool: its files live in persistent memory, its blocks are read in place.
//
//   perdure::Pool pool = perdure::Pool::create("/dev/shm/db.pool", {.capacity_bytes = 4ull << 30});
//   auto env = rocksdb::NewCompositeEnv(perdure::rocksdb_file_system(pool));
//   rocksdb::Options options;
//   options.env = env.get();                      // the one line
//   options.allow_mmap_reads = true;              // blocks are read in place
//   options.compression = rocksdb::kNoCompression;  // compressed blocks cannot be
//   rocksdb::DB::Open(options, "/db", &db);
//
// Programs that take a file system by name, such as db_bench, ldb and sst_dump, need no change: the library
// registers "perdure://" when it is loaded.
//
//   LD_PRELOAD=libperdure-rocksdb.so db_bench --fs_uri=perdure:///dev/shm/db.pool?4G --db=/db
//
// The path of the pool follows "perdure://"; behind a '?' may stand the capacity of one that is not there yet
// (1G otherwise). Errors of the pool become those of RocksDB: kPoolFull and kNoSpace are NoSpace, kCorrupt is
// Corruption, kNotFound is NotFound, all else IOError; no exception passes through RocksDB. There are no hard
// links (a checkpoint copies) and no files that are written at random.
//
// In the library perdure-rocksdb (CMake: find_package(perdure COMPONENTS rocksdb), perdure::rocksdb).
#pragma once

#include <memory>
#include <string>

#include "perdure/pool.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace perdure {

// On the files `name` of a pool, made if missing. The databases that use it are closed before it is destroyed,
// and it before the pool is closed. Thread-safe. Errors: those of Files::open_or_create.
std::shared_ptr<rocksdb::FileSystem> rocksdb_file_system(Pool& pool,
                                                         const std::string& name = "files");

}  // namespace perdure
