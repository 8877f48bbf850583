// The payload log of one table: byte-string keys and values, out of place.
//
// Each partition appends to a chunk of 64 KiB; an entry that is larger gets a chunk of its own. Entries never move but by garbage collection, and a record points to its
// entry with a word that carries the chunk's epoch: a pointer into a chunk that has been collected
// since is recognised as dangling, and only superseded records can hold one.
//
// Durability: append() flushes; the caller's fence covers the entry together with the recovery-log
// record that points to it. Each entry has a checksum, so recovery knows whether the newest entry
// of a partition (the only one that can be incomplete) is whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "index/plush/layout.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::plush {

class PayloadLog {
 public:
  static constexpr uint64_t kPartBytesMax = uint64_t{64} << 20;  // of a key, and of a value

  struct View {
    std::string_view key;
    std::string_view value;
  };

  // A chunk as DRAM knows it.
  struct Chunk {
    uint64_t offset;
    uint64_t bytes;
    uint64_t used;  // with the header; all of it where the end was not noted
    bool counted;   // its dead bytes have been counted since it was opened
  };

  PayloadLog(pm::PoolImpl& pool, Root& root, uint32_t partitions);
  ~PayloadLog();
  PayloadLog(const PayloadLog&) = delete;
  PayloadLog& operator=(const PayloadLog&) = delete;

  // Finds the chunks of a partition and the end of the newest one. Each partition once, any thread.
  void recover(uint32_t partition);

  // All below: the caller holds the partition's lock, except for read() and alive().

  // kNow: flushed, durable after the caller's next fence. kReclaim: the same, and the heap's reserve
  // may be used. kLater: durable after settle(), before which nothing durable may lead to it.
  enum class Flush : uint8_t { kNow, kReclaim, kLater };
  // Writes an entry and returns the pointer to it. Throws kPoolFull, kNoSpace.
  uint64_t append(uint32_t partition, std::string_view key, std::string_view value, Flush flush);
  // Makes what was appended with kLater durable. At most one fence; none if there is nothing.
  void settle(uint32_t partition);

  // Whether the chunk of this pointer still is what the pointer means.
  bool alive(uint64_t pointer) const;
  // The entry at a pointer, or false if it dangles. The bytes stay readable under an epoch guard
  // that was there before the pointer was read; the chunk may be collected meanwhile.
  bool read(uint64_t pointer, View& view) const;
  // The entry at a pointer that did not dangle when the caller, under a guard, saw it.
  View read_pinned(uint64_t pointer) const;
  // Whether the entry is whole: its checksum holds.
  bool verify(uint64_t pointer) const;

  // Bytes that the entry takes; 0 if the pointer dangles.
  uint64_t bytes_of(uint64_t pointer) const;

  // What of an entry nobody needs any more: the value when its record becomes a tombstone, the rest
  // when the tombstone vanishes, or both at once.
  enum class Part : uint8_t { kValue, kRest, kAll };
  void note_dead(uint64_t pointer, Part part);
  // Bytes of a chunk's entries that were noted so since the table was opened.
  uint64_t dead_bytes(const Chunk& chunk) const;
  void set_dead(Chunk& chunk, uint64_t bytes);

  std::vector<Chunk>& chunks(uint32_t partition) { return partitions_[partition].chunks; }
  const std::vector<Chunk>& chunks(uint32_t partition) const {
    return partitions_[partition].chunks;
  }

  // Calls `visit(pointer, view)` for every entry of a chunk, in order.
  void visit_entries(const Chunk& chunk,
                     const std::function<void(uint64_t pointer, const View&)>& visit) const;

  // The chunk of chunks(partition) that is being appended to; chunks().size() if there is none.
  size_t open_chunk(uint32_t partition) const { return partitions_[partition].open; }

  // Unlinks a chunk that holds nothing of value; its memory is reused once no reader can look at it.
  void remove_chunk(uint32_t partition, size_t index);

  pm::EpochManager& epochs() const { return epochs_; }

 private:
  struct Partition {
    std::vector<Chunk> chunks;  // oldest first
    size_t open = 0;
    uint64_t unflushed = 0;  // where in the open chunk what nobody has flushed begins; 0: nowhere
  };
  struct SegmentState {
    std::atomic<uint32_t> epoch;  // of the chunk that begins here; 0: none
    std::atomic<uint32_t> dead;   // bytes
  };

  void make_loose(const Chunk& chunk) const;
  static uint64_t entry_bytes(uint64_t key_bytes, uint64_t value_bytes);
  uint64_t checksum(const PayloadEntry& entry, uint64_t epoch) const;
  void add_chunk(uint32_t partition, uint64_t bytes, bool reclaim);
  uint64_t next_epoch();
  PayloadHead& head(uint32_t partition) const;
  SegmentState& state_of(uint64_t offset) const;

  pm::PoolImpl& pool_;
  Root& root_;
  std::vector<Partition> partitions_;
  SegmentState* segments_;  // one for each segment the pool may have; pages appear on use
  uint64_t segments_bytes_;
  std::mutex epoch_mutex_;
  uint64_t epoch_next_;
  uint64_t epoch_limit_;
  mutable pm::EpochManager epochs_;
};

}  // namespace perdure::index::plush
