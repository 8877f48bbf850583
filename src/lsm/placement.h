// What a cache has decided about the block that its thread is about to read.
#pragma once

#include <cstdint>
#include <utility>

namespace perdure::lsm {

// LevelDB and RocksDB look a block up in their cache and, on a miss, read it at once, in the same
// thread. Reads that no lookup came before are of what stays open with a table, or of a database
// with another cache.
enum class Placement : uint8_t { kUndecided, kCopy, kInPlace };

inline thread_local Placement next_read = Placement::kUndecided;
inline thread_local uint64_t next_read_of = 0;  // a hash of the key that it was decided about

inline Placement take_placement() { return std::exchange(next_read, Placement::kUndecided); }
// The same if it was about this key: for who is brought a block that was read elsewhere, in no file
// of a pool.
inline Placement take_placement_of(uint64_t hash) {
  return next_read_of == hash ? take_placement() : Placement::kUndecided;
}

}  // namespace perdure::lsm
