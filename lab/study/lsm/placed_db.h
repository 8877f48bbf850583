// LevelDB in a pool or in files of the system, as the study of what is worth DRAM uses it. In the
// module of LevelDB's peers, so that the command itself does not depend on it.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::lab::study {

struct PlacedDbOptions {
  enum class Cache : uint8_t { kNone, kLru, kTwoQueue };

  std::string path;     // of the pool, or of the database's folder; made if it is not there
  bool in_pool = true;  // in the domain `line`
  uint64_t pool_bytes = uint64_t{1} << 30;
  uint64_t value_bytes = 112;  // keys have 16
  bool all_footers = true;     // else of 64 tables, the fewest that LevelDB keeps open
  bool index_in_dram = true;
  Cache cache = Cache::kNone;  // of data blocks
  uint64_t cache_bytes = 0;
  double added_ns = 0;  // that a line of the pool takes longer than one of DRAM
};

// Not thread-safe. Throws Error.
class PlacedDb {
 public:
  virtual ~PlacedDb() = default;
  // Records 0 to count - 1, compacted.
  virtual void load(uint64_t count) = 0;
  // The record is there.
  virtual void read(uint64_t record) = 0;
  // Adds an update to the group.
  virtual void put(uint64_t record) = 0;
  // Writes the group, synced, and begins another.
  virtual void commit() = 0;
  virtual uint64_t dram_bytes() const = 0;  // of data blocks
};

// What the module defines.
using OpenPlacedDb = PlacedDb*(const PlacedDbOptions& options);
inline constexpr char kOpenPlacedDbSymbol[] = "perdure_open_placed_db";

}  // namespace perdure::lab::study
