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
// Programs that take a file system by name, such as db_bench, ldb and sst_dump, need no change: the
// library registers "perdure://" when it is loaded.
//
//   LD_PRELOAD=libperdure-rocksdb.so db_bench --fs_uri=perdure:///dev/shm/db.pool?4G --db=/db
//
// The path of the pool follows "perdure://"; behind a '?' may stand the capacity of one that is not
// there yet (1G otherwise). Errors of the pool become those of RocksDB: kPoolFull and kNoSpace are
// NoSpace, kCorrupt is Corruption, kNotFound is PathNotFound (NotFound where somebody asks whether
// there is one), all else IOError; no exception passes through RocksDB. There are no hard links (a
// checkpoint copies) and no files that are written at random.
//
// Or RocksDB's files stay on an SSD, and the pool has its cache: rocksdb_persistent_cache() below.
//
// In the library perdure-rocksdb (CMake: find_package(perdure COMPONENTS rocksdb),
// perdure::rocksdb). Include rocksdb/file_system.h and rocksdb/cache.h as well: here these classes
// are declared only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "perdure/block_cache.h"
#include "perdure/pool.h"

namespace rocksdb {
class Cache;
class FileSystem;
class PersistentCache;
}  // namespace rocksdb

namespace perdure {

// On the files `name` of a pool, made if missing. The databases that use it are closed before it is
// destroyed, and it before the pool is closed. Thread-safe. Errors: those of Files::open_or_create.
std::shared_ptr<rocksdb::FileSystem> rocksdb_file_system(Pool& pool,
                                                         const std::string& name = "files");

// How a cache by 2Q divides its room.
struct RocksDbCacheOptions {
  uint64_t capacity_bytes = uint64_t{32} << 20;  // of DRAM; fixed
  uint64_t block_bytes =
      4096;  // what the database's blocks have: BlockBasedTableOptions::block_size
  uint32_t reference_percent =
      5;  // references to blocks that are not in DRAM, in percent of those that can be
};

// For BlockBasedTableOptions::block_cache. The cache decides by 2Q for each block that it misses
// whether it is copied to DRAM or not: then it is read in place, with a file system of this library
// and allow_mmap_reads; or, with another file system, goes when it was read, which is for
// rocksdb_persistent_cache() beside it. Thread-safe.
std::shared_ptr<rocksdb::Cache> rocksdb_2q_cache(const RocksDbCacheOptions& options = {});

// What became of the reads of a cache that rocksdb_2q_cache() made. Of others:
// Error(kInvalidArgument).
struct RocksDbCacheStatistics {
  uint64_t hits;
  uint64_t copied;    // misses that were copied to DRAM
  uint64_t in_place;  // misses that were read in place
  uint64_t evictions;
  uint64_t bytes;       // in DRAM now
  uint64_t references;  // now
};
// Throws Error(kInvalidArgument) of a cache that rocksdb_2q_cache() did not make.
RocksDbCacheStatistics statistics_of_2q_cache(const rocksdb::Cache& cache);

// Of rocksdb_persistent_cache().
struct RocksDbPersistentCacheOptions {
  std::string name = "block-cache";  // in the pool
  BlockCacheOptions cache;           // its capacity above all
  // Whether blocks are kept as they stand in the file, compressed and with their checksum: more of
  // them fit in, and each hit is decompressed. What was kept in the other way is not found.
  bool compressed = false;
  // The rocksdb_2q_cache() before it, if there is one: what that has in DRAM is not asked for here,
  // and stays nevertheless, so that it is there after a restart.
  std::shared_ptr<rocksdb::Cache> in_dram = nullptr;
};

// A block cache in a pool for a database on a slower medium: for
// BlockBasedTableOptions::persistent_cache. Blocks that RocksDB reads from files get into it, and
// stay over restarts and crashes, as RocksDB's keys do, which name files by the session that has
// written them. Several databases may share it. They are closed before the pool is. With
// rocksdb_2q_cache() as block_cache DRAM gets the blocks that are asked for twice.
//
//   rocksdb::BlockBasedTableOptions table;
//   table.block_cache = perdure::rocksdb_2q_cache({.capacity_bytes = 2ull << 30});
//   table.persistent_cache = perdure::rocksdb_persistent_cache(
//       pool, {.cache = {.capacity_bytes = 17ull << 30}, .in_dram = table.block_cache});
//
// Thread-safe. Errors: those of BlockCache::open_or_create; kInvalidArgument (another kind of cache
// in DRAM).
std::shared_ptr<rocksdb::PersistentCache> rocksdb_persistent_cache(
    Pool& pool, const RocksDbPersistentCacheOptions& options = {});

// What became of blocks. Throws Error(kInvalidArgument) of a cache that rocksdb_persistent_cache()
// did not make.
BlockCacheStatistics statistics_of_persistent_cache(const rocksdb::PersistentCache& cache);

}  // namespace perdure
