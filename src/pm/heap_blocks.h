// Blocks of slabs: size classes, their free blocks in DRAM, and the caches of the lanes.
//
// A slab is a segment of blocks of one size. Which of them are allocated stands in the bitmap of
// its descriptor in PM, which only transactions change (pm/heap.h). Which of them are taken stands
// in DRAM, and is what allocation goes by: a block is taken from when it comes into a lane's cache
// until it is free on the medium and nobody may look at it any more.
//
// Invariants
//   - taken covers allocated: no block is handed out whose bit in PM is set, or may be set by an
//     intent that has not ended.
//   - A lane's cache is touched by who holds the lane. A class's lists and the `taken` bits of its
//     segments change under the class's mutex.
//   - A slab that is empty and not needed goes back as a free segment, after its descriptor says so
//     durably.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "pm/layout.h"
#include "pm/segments.h"

namespace perdure::pm {

class HeapBlocks {
 public:
  static constexpr int kClasses = 17;

  HeapBlocks(PoolImpl& pool, Segments& segments);

  // ---- size classes
  static int class_of(uint64_t bytes);  // -1: a run of segments
  static uint32_t class_bytes(int size_class) {
    return kClassBytes[static_cast<size_t>(size_class)];
  }
  static uint32_t blocks_in(int size_class) {
    return static_cast<uint32_t>(kSegmentBytes / class_bytes(size_class));
  }
  // Whether a block of the class will do for what would get one of class `wanted`: as large, and as
  // well aligned, since units of 256 bytes and nodes rely on that.
  static bool serves(int size_class, int wanted);

  // ---- lanes
  // Waits for a lane that nobody holds. Throws kIo if the medium has failed.
  uint32_t acquire_lane();
  void release_lane(uint32_t lane) { lanes_[lane].busy.clear(std::memory_order_release); }

  // ---- blocks
  // A free block of the class `wanted` or, if that is used up, of a larger one, for who holds the
  // lane. Returns its class. Throws kPoolFull, kNoSpace.
  int take(uint32_t lane, int wanted, bool reclaim, uint64_t& block);
  // Hands a block out again that is free on the medium. What it cannot hand out, because the medium
  // fails or memory is short, stays unused until the pool is opened again.
  void release(uint64_t block, int size_class) noexcept;
  // Of a block that goes: from now until it is released it counts as taken. Throws kCorrupt if it
  // cannot be a block in use.
  void require_in_use(uint64_t block);
  // At recovery: a slab that was found. Nobody looks inside yet.
  void adopt(uint64_t segment, int size_class);
  // Slabs without a block in use become free segments, wherever caches and lists had kept them; but
  // one of each class that has too few free blocks else, as low in the pool as there is room.
  // Throws kIo.
  void end_empty_slabs();
  // The bitmap word of a slab's block, and its bit.
  std::pair<uint64_t*, uint64_t> bitmap_bit(uint64_t block) const;

 private:
  static constexpr std::array<uint32_t, kClasses> kClassBytes = {
      64,   128,  192,  256,  384,  512,   768,   1024, 1536,
      2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768};

  struct alignas(64) SizeClass {
    std::mutex mutex;
    std::vector<uint32_t> partial;    // scanned segments with free blocks
    std::vector<uint32_t> unscanned;  // segments found when opening; nobody looked inside yet
    uint64_t free_blocks = 0;         // in scanned segments
  };

  struct alignas(64) LaneState {
    std::atomic_flag busy;
    std::array<std::vector<uint64_t>, kClasses> cache;
  };

  // What an allocation may use: only transactions that reclaim reach for the reserves.
  enum class Reach : uint8_t { kCommon, kBlockReserve, kSegmentReserve };

  // Blocks of each class that only transactions that reclaim may take.
  static uint64_t reserve_blocks(int size_class) { return 16384 / class_bytes(size_class); }

  // A free block of the class through the lane's cache. Returns false if there is none.
  bool take_from_class(uint32_t lane, int size_class, Reach reach, uint64_t& block);
  bool refill(uint32_t lane, int size_class, Reach reach);
  // Of all lanes but this one and those that are busy.
  void return_caches(uint32_t own_lane, int size_class);
  // Under the class's mutex.
  void find_free_blocks(SizeClass& state, int size_class, size_t wanted, Reach reach);
  void take_from_segment(uint32_t segment, int size_class, size_t wanted,
                         std::vector<uint64_t>& out);
  void scan_segment(uint32_t segment);
  // Of a segment that was taken.
  void make_slab(uint32_t segment, int size_class);
  bool is_empty_slab(uint32_t segment, int size_class) const;
  // Slabs of the class that are empty, in ascending order, become free segments.
  void end_slabs(SizeClass& state, std::span<const uint32_t> segments);

  PoolImpl& pool_;
  Segments& segments_;
  std::array<SizeClass, kClasses> classes_;
  std::unique_ptr<LaneState[]> lanes_;
};

}  // namespace perdure::pm
