// RocksDB on a slow medium with its caches, as the study of restarts reads it. In the module of
// RocksDB's peers, so that the command itself does not depend on it.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::lab::study {

struct CachedDbOptions {
  std::string
      folder;  // of the database, and the pool beside it; both are made if they are not there
  uint64_t records = 0;
  uint64_t value_bytes = 100;
  uint64_t latency_ns = 0;  // of each read from a file
  uint64_t dram_bytes = 0;  // of the block cache
  uint64_t pm_bytes = 0;    // of the cache in the pool, with 2Q before it; 0: none, and LRU
  bool in_dram = true;      // whether it keeps what 2Q has in DRAM
};

class CachedDb {
 public:
  struct Counters {
    uint64_t medium_reads = 0;  // from files
    uint64_t medium_ns = 0;     // that they took
    uint64_t dram_bytes = 0;    // in the block cache
    uint64_t pm_blocks = 0;     // in the other one
    uint64_t pm_hits = 0;
    uint64_t pm_dram_bytes = 0;  // that its index takes
    uint64_t pm_recovered = 0;   // blocks that it had when it was opened
    uint64_t pm_opening_ns = 0;  // which took so long
  };

  virtual ~CachedDb() = default;
  // Throws Error if it is not there or has another value. Thread-safe.
  virtual void read(uint64_t record) = 0;
  virtual Counters counters() const = 0;
};

// What the module defines. Throws Error.
using OpenCachedDb = CachedDb*(const CachedDbOptions& options);
inline constexpr char kOpenCachedDbSymbol[] = "perdure_open_cached_db";

}  // namespace perdure::lab::study
