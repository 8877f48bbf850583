// What a cache has decided about the block that its thread is about to read.
#pragma once

#include <cstdint>

namespace perdure::lsm {

// LevelDB looks a block up in its cache and, on a miss, reads it at once, in the same thread. Reads that no
// lookup came before are of footers, filters and index blocks, or of a database with another cache.
enum class Placement : uint8_t { kUndecided, kCopy, kInPlace };

inline thread_local Placement next_read = Placement::kUndecided;

inline Placement take_placement() {
  const Placement decided = next_read;
  next_read = Placement::kUndecided;
  return decided;
}

}  // namespace perdure::lsm
