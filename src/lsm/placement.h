// What a cache has decided about the block that its thread is about to read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace perdure::lsm {

// LevelDB and RocksDB look a block up in their cache and, on a miss, read it at once, in the same
// thread. Reads that no lookup came before are of what stays open with a table, or of a database
// with another cache.
enum class Placement : uint8_t { kUndecided, kCopy, kInPlace };

inline thread_local Placement next_read = Placement::kUndecided;
inline thread_local uint64_t next_read_of = 0;  // a hash of the key that it was decided about

// What was decided about blocks that the thread has looked up, and neither read nor put into the
// cache since. RocksDB's MultiGet looks all blocks of a batch up before it reads the first one, and
// those that lie in mapped files once more before each read: what was decided the first time holds.
class Decisions {
 public:
  void note(uint64_t hash, Placement placement) {
    decided_[next_++ % decided_.size()] = {hash, placement};
  }
  // kUndecided: nothing is known of it.
  Placement take(uint64_t hash) {
    for (Decision& one : decided_) {
      if (one.hash != hash || one.placement == Placement::kUndecided) continue;
      return std::exchange(one.placement, Placement::kUndecided);
    }
    return Placement::kUndecided;
  }

 private:
  struct Decision {
    uint64_t hash = 0;
    Placement placement = Placement::kUndecided;
  };
  std::array<Decision, 32> decided_;  // as many as a batch has
  size_t next_ = 0;
};

inline thread_local Decisions decisions;

inline Placement take_placement() {
  const Placement taken = std::exchange(next_read, Placement::kUndecided);
  if (taken != Placement::kUndecided) decisions.take(next_read_of);  // it is read
  return taken;
}
// What was decided about this key: for who is brought a block that was read elsewhere, in no file
// of a pool.
inline Placement take_placement_of(uint64_t hash) {
  if (next_read_of == hash) next_read = Placement::kUndecided;
  return decisions.take(hash);
}

}  // namespace perdure::lsm
