// A cache of blocks in a pool: what it holds is warm after a restart, and never wrong.
//
//   perdure::Pool pool = perdure::Pool::create("/mnt/pmem/cache.pool", {.capacity_bytes = 20ull << 30});
//   auto cache = perdure::BlockCache::open_or_create(pool, "blocks", {.capacity_bytes = 17ull << 30});
//   if (!cache.lookup(key, block)) { block = read_from_ssd(key); cache.insert(key, block); }
//
// For blocks that are elsewhere, too, on a slower medium. It may lose a block at any time: for want
// of room, by a crash, or because its bytes were damaged. What it returns are the bytes that were
// last inserted for the key, after any sequence of crashes; a key that was erased stays so.
//
// Blocks lie in a log of segments. When all are in use the oldest one is used again; those of its
// blocks that were asked for since they were written stay, up to half a segment (FIFO with a second
// chance). Every hit verifies a checksum over key, block and the segment's present use, so that
// inserting needs no fence for the sake of a crash.
//
// DRAM: an index of 16 bytes for each of its slots, of which three eighths to three quarters are in
// use: 21 to 43 bytes for a block. It is rebuilt when the cache is opened, by several threads, from
// what stands before each block. Besides, each thread that inserts keeps room for the largest
// record that it has written to any cache, and has copies of up to half a segment while a segment
// is used again. With segments of 1 MiB these are up to 1 MiB and 512 KiB for a thread; with 64
// MiB, and such blocks, up to 64 and 32 MiB. Statistics do not count them.
//
// Thread-safe. Errors of creating and opening: kCorrupt, kIo, those of the pool; those of other
// calls are with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure {

namespace block_cache {
class Core;
}

// How a block cache is made. Use designated initialisers: members may come.
struct BlockCacheOptions {
  // Of segments, taken from the pool as the cache fills; rounded down to whole segments, at least
  // two. Opening: 0, or what it was made with. 0 at creation: a quarter of the pool's capacity.
  uint64_t capacity_bytes = 0;
  // Of one, a multiple of 4 KiB up to 64 MiB; the largest block is smaller by 64 bytes and those
  // that precede it.
  // Opening: 0, or what it was made with. 0 at creation: 1 MiB, or less in small caches.
  uint64_t segment_bytes = 0;
  // That read the cache when it is opened; 0: up to 8.
  uint32_t threads = 0;
  // Asked of a block whose segment is about to be used again, and which was not asked for: true
  // gives it its second chance, too. For who has it in DRAM, and would have it after a restart.
  // Called by threads that insert, under locks of the cache, which it must not use; it must not
  // throw.
  std::function<bool(std::string_view key)> is_wanted = nullptr;
};

// What became of blocks since the cache was opened, and what it holds.
struct BlockCacheStatistics {
  uint64_t capacity_bytes;
  uint64_t pool_bytes;  // that it has taken from the pool
  uint64_t
      // of the index, and of what belongs to segments; not what threads insert by (see above)
      dram_bytes;
  uint64_t blocks;
  uint64_t hits;
  uint64_t misses;
  uint64_t inserts;     // that wrote a block
  uint64_t declined;    // that did not
  uint64_t evictions;   // of blocks
  uint64_t reinserted;  // had their second chance
  uint64_t damaged;     // were found, but not whole: misses, too
  uint64_t recovered;   // found when the cache was opened,
  uint64_t opening_ns;  // which took so long
};

// A block cache in a pool. Copies refer to the same one, which closes with the last of them.
class BlockCache {
 public:
  static constexpr size_t kKeyBytesMax = 1024;
  static constexpr char kTypeName[] = "block-cache";

  // Errors: kInvalidArgument (options), kNameExists, kPoolFull, kNoSpace, kReadOnly.
  static BlockCache create(Pool& pool, const std::string& name,
                           const BlockCacheOptions& options = {});
  // Finds what it holds. In a read-only pool it can be read. Errors: kNoSuchName, kWrongType,
  // kInUse, kInvalidArgument (other options than it was made with). Cost: for each block one PM
  // read of some 40 bytes.
  static BlockCache open(Pool& pool, const std::string& name,
                         const BlockCacheOptions& options = {});
  // Either, whichever the pool needs.
  static BlockCache open_or_create(Pool& pool, const std::string& name,
                                   const BlockCacheOptions& options = {});

  BlockCache(const BlockCache&) noexcept;  // another handle of the same
  BlockCache& operator=(const BlockCache&) noexcept;
  BlockCache(BlockCache&&) noexcept;
  BlockCache& operator=(BlockCache&&) noexcept;
  ~BlockCache();

  // Takes a block of 1 byte or more under a key of 1 to kKeyBytesMax, in the place of one of the
  // same key. False if it declines: a block that does not fit into a segment, a pool that is
  // read-only, full before it gave the cache a segment, or whose medium has failed; or the 64
  // oldest segments are all being read. It is a hit at once, and after a crash a hit or a miss.
  // Cost: the bytes, past the caches in the domain `line`, where it also has one fence (so that
  // other threads see them); each segment has one fence when it is used again; a key that had other
  // bytes one more, before they are replaced.
  // Errors: kInvalidArgument (the key, or no bytes).
  bool insert(std::string_view key, std::string_view block);
  // Whether it is there; then `block` is it. Cost: a lock of the index, a copy, a checksum over it.
  bool lookup(std::string_view key, std::string& block) const;
  // The same, into memory that `room` gives for so many bytes. May have been called if the answer
  // is false. `room` may use the cache and may throw. As long as it runs the segment of the block
  // is not used again, so in a cache of few segments what is inserted meanwhile may be declined.
  bool lookup(std::string_view key, const std::function<char*(size_t bytes)>& room) const;
  // Forgets it: durable on return. Whether it was there. Cost: one fence, if it was. Errors:
  // kReadOnly, kIo.
  bool erase(std::string_view key);

  // Calls `visit` for each block, those of the oldest segment first, leaving out what is damaged.
  // Needs that nobody inserts.
  void for_each(
      const std::function<void(std::string_view key, std::string_view block)>& visit) const;

  // Verifies what leads to the blocks; `report` gets one sentence for each violation. Returns how
  // many there were. A block that is not whole is no violation: a power failure may leave one.
  // Needs that nobody inserts.
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  BlockCacheOptions options() const;  // that it was made with
  BlockCacheStatistics counters() const;
  std::vector<Statistic> statistics() const;  // the same, by name

 private:
  explicit BlockCache(std::shared_ptr<block_cache::Core> core);
  std::shared_ptr<block_cache::Core> core_;
};

}  // namespace perdure
