// LevelDB in a pool: its files live in persistent memory, its blocks are read in place.
//
//   perdure::Pool pool = perdure::Pool::create("/dev/shm/db.pool", {.capacity_bytes = 4ull << 30});
//   std::unique_ptr<leveldb::Env> env = perdure::leveldb_env(pool);
//   leveldb::Options options;
//   options.env = env.get();                            // the one line
//   options.compression = leveldb::kNoCompression;      // compressed blocks cannot be read in place
//   leveldb::DB::Open(options, "/db", &db);
//
// A write with `sync` is durable after one fence (two if it has more than 1 KiB), without a system
// call. A write without it
// survives the death of the process (in the domain `page` only what was synced does), as with files
// of the system. Errors of the pool become those of LevelDB: kCorrupt is Corruption, kNotFound is
// NotFound, all else IOError; no exception passes through LevelDB. After a write that found the
// pool full a database takes no more writes until it is opened again.
//
// In the library perdure-leveldb (CMake: find_package(perdure COMPONENTS leveldb),
// perdure::leveldb). Include leveldb/env.h and leveldb/cache.h as well: here these classes are
// declared only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "perdure/pool.h"

namespace leveldb {
class Cache;
class Env;
}  // namespace leveldb

namespace perdure {

// What a read returns when no 2Q cache has decided.
enum class BlockReads : uint8_t {
  kInPlace,  // a slice of the pool; LevelDB keeps no copy, whatever its block cache
  kCopy      // a copy in DRAM, which LevelDB's block cache then keeps
};

// How an environment reads, and where its files are.
struct LevelDbEnvOptions {
  std::string name = "files";  // of the files in the pool; made if missing
  // Blocks of data that the database's own block cache has missed, where that is no 2Q cache.
  BlockReads reads = BlockReads::kInPlace;
  // Whether filters and index blocks, which every lookup reads, are copied to DRAM when a table is
  // opened.
  bool index_in_dram = true;
};

// The databases that use it are closed before it is destroyed, and it before the pool is closed.
// Thread-safe.
// Errors: those of Files::open_or_create.
std::unique_ptr<leveldb::Env> leveldb_env(Pool& pool, const LevelDbEnvOptions& options = {});

// How a cache by 2Q divides its room.
struct TwoQueueCacheOptions {
  uint64_t capacity_bytes = uint64_t{8} << 20;  // of DRAM
  uint64_t block_bytes = 4096;  // what the database's blocks have: leveldb::Options::block_size
  uint32_t reference_percent =
      5;  // references to blocks that are not in DRAM, in percent of those that can be
};

// For leveldb::Options::block_cache, with an environment of leveldb_env(): the cache decides for
// each block that it misses whether it is copied to DRAM or read in place. Thread-safe.
std::unique_ptr<leveldb::Cache> leveldb_2q_cache(const TwoQueueCacheOptions& options = {});

// What became of the reads of a cache that leveldb_2q_cache() made. Of others:
// Error(kInvalidArgument).
struct TwoQueueCacheStatistics {
  uint64_t hits;
  uint64_t copied;    // misses that were copied to DRAM
  uint64_t in_place;  // misses that were read in place
  uint64_t evictions;
  uint64_t bytes;       // in DRAM now
  uint64_t references;  // now
};
// Throws Error(kInvalidArgument) of a cache that leveldb_2q_cache() did not make.
TwoQueueCacheStatistics statistics_of_2q_cache(const leveldb::Cache& cache);

}  // namespace perdure
