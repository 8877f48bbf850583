// What a cache has decided about the block that its thread is about to read.
#pragma once

#include <cstdint>

namespace perdure::lsm {

// LevelDB and RocksDB look a block up in their cache and, on a miss, read it at once, in the same thread. Reads
// that no lookup came before are of what stays open with a table, or of a database with another cache.
enum class Placement : uint8_t { kUndecided, kCopy, kInPlace };

inline thread_local Placement next_read = Placement::kUndecided;

inline Placement take_placement() {
  const Placement decided = next_read;
  next_read = Placement::kUndecided;
  return decided;
}

}  // namespace perdure::lsm
