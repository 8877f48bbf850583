// A pool made anew of what is in it, in the place of the old one.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/progress.h"
#include "perdure/pool.h"

namespace perdure::cli {

struct CompactedStructure {
  StructureInfo info;
  uint64_t records = 0;  // of files, how many
};

struct CompactReport {
  std::vector<CompactedStructure> structures;
  uint64_t bytes_before = 0;  // that the pool occupied on its medium
  uint64_t bytes_after = 0;
};

// Thrown when `interrupted` was raised; the pool is as it was.
struct CompactInterrupted {};

// Copies all structures of a pool to a new one beside it, POOL.<uuid>.compacting, which nobody else
// can read, checks that, and gives it the pool's owner, group, permissions and name. The pool is
// locked until then, so that nobody writes to it meanwhile. A crash leaves the old pool or the new
// one, both whole; files that it leaves, whose names have the uuid of this pool, are removed by the
// next call. Throws kNoSpace (not enough room beside it, with figures), kInvalidArgument (it has
// what cannot be copied, or the file has other names), kPermission (the copy cannot get its owner
// or group), kCorrupt (a copy is not what it should be), kExists (a file of the copy's name is no
// regular one, or somebody writes to it), what Pool::open and the structures throw.
CompactReport compact_pool(const std::string& pool, const PoolOptions& options,
                           const ProgressSink& progress, const std::atomic<bool>& interrupted);

}  // namespace perdure::cli
