// The payload log of one table: byte-string keys and values, out of place.
//
// Each partition appends to a chunk of 64 KiB; an entry that is larger gets a chunk of its own.
// Entries never move but by garbage collection, and a record points to its entry with a word that
// carries the epoch of the chunk: how often this table has made a chunk of its place, the segment.
// A pointer into a chunk that has been collected since is recognised as dangling; only superseded
// records can hold one.
//
// Epochs. Each segment of the pool has a word that tells the last epoch of its place, sealed,
// durable before a chunk of that epoch is linked, and never lowered. So no durable pointer has an
// epoch that its place is given again, after any sequence of crashes. A place that has reached the
// largest epoch is kept as an empty chunk for good: 64 KiB for 8.8 TB written to it.
//
// Who follows a pointer, and why the bytes are still what they were:
//   - lookups, scans and walks have an epoch guard from before they read the pointer. A chunk goes
//     back to the heap when all guards have gone that were there when its epoch was taken away
//     (remove_chunk()).
//   - who holds the partition's lock needs no guard: its chunks are removed under this lock only,
//     so a pointer that is alive stays so. One that is not is not followed, whoever has the place
//     by now: it never has that epoch again.
//   - what is kept aside: a migration's records. Those that count are in its source, too, where the
//     collector finds them, and says so when it moves their payload (migrator.h); others hide
//     behind a newer record of their key.
//   - a payload that no record leads to yet: nothing is collected between its append and the record
//     that leads to it. Collector::store() collects before it appends, and a group before its first
//     payload.
//
// Durability: append() flushes; the caller's fence covers the entry together with the recovery-log
// record that points to it. Each entry has a checksum, so recovery knows whether the newest entry
// of a partition (the only one that can be incomplete and pointed to) is whole.
//
// Ends. What a crash leaves behind the last whole entry of a chunk may be whole as well: several
// entries are flushed under one fence. A new entry in front of it, of the right size, would make a
// later crash take it for what was to be appended there. So the header of each chunk notes its end,
// after a fence that makes the entries before it durable; the note of a chunk that is appended to
// is taken away, durably, before. Where a crash left no note the end is found by checksums, noted
// after what is before it is durable, and nothing is ever appended to this chunk again. An entry
// before a noted end is not torn but damaged if its checksum does not hold.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <vector>

#include "index/plush/layout.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::plush {

class PayloadLog {
 public:
  static constexpr uint64_t kPartBytesMax = uint64_t{64} << 20;  // of a key, and of a value
  static constexpr uint64_t kEpochMax = (uint64_t{1} << 27) - 1;
  // The word of a place whose last chunk had this epoch.
  static uint64_t place_word(uint64_t segment, uint64_t epoch);

  struct View {
    std::string_view key;
    std::string_view value;
  };

  // A chunk as DRAM knows it.
  struct Chunk {
    uint64_t offset;
    uint64_t bytes;
    uint64_t used;       // with the header
    bool counted;        // its garbage has been counted since it was opened
    bool noted;          // its header notes the end
    bool kept = false;   // never collected: it holds damaged entries, or its place is used up
    bool found = false;  // its end was found by checksums since it was opened
  };

  PayloadLog(pm::PoolImpl& pool, Root& root, uint32_t partitions);
  ~PayloadLog();
  PayloadLog(const PayloadLog&) = delete;
  PayloadLog& operator=(const PayloadLog&) = delete;

  // Finds the chunks of a partition, and the ends that a crash left without a note. Each partition
  // once, any thread. Throws kCorrupt.
  void recover(uint32_t partition);
  // Notes the ends of a partition's chunks, all of which is made durable. Durable with the caller's
  // fence.
  void close(uint32_t partition);

  // All below: the caller holds the partition's lock, except for read() and alive().

  // kNow: flushed, durable after the caller's next fence. kReclaim: the same, and the heap's
  // reserve may be used. kLater: durable after settle(), before which nothing durable may lead to
  // it.
  enum class Flush : uint8_t { kNow, kReclaim, kLater };
  // Writes an entry and returns the pointer to it. Throws kPoolFull, kNoSpace.
  uint64_t append(uint32_t partition, std::string_view key, std::string_view value, Flush flush);
  // Makes what was appended with kLater durable. At most one fence; none if there is nothing.
  void settle(uint32_t partition);

  // Whether the chunk of this pointer still is what the pointer means.
  bool alive(uint64_t pointer) const;
  // The entry at a pointer, or false if it dangles or its sizes cannot be. The bytes stay readable
  // under an epoch guard that was there before the pointer was read; the chunk may be collected
  // meanwhile.
  bool read(uint64_t pointer, View& view) const;
  // The entry at a pointer that did not dangle when the caller, under a guard, saw it. Throws
  // kCorrupt if its sizes cannot be, or if the pool verifies payload and its checksum does not
  // hold.
  View read_pinned(uint64_t pointer) const;
  // Whether the entry is whole: its checksum holds.
  bool verify(uint64_t pointer) const;
  // Whether the entry is one that a crash may have torn: not before an end that was noted.
  bool may_be_torn(uint32_t partition, uint64_t pointer) const;
  // Flushes a whole entry, which a process that died may have left in the caches only. The caller
  // fences.
  void write_back(uint64_t pointer) const;

  // Bytes that the entry takes; 0 if it cannot be read.
  uint64_t bytes_of(uint64_t pointer) const;
  // What an entry takes.
  static uint64_t entry_bytes(uint64_t key_bytes, uint64_t value_bytes);

  // What of an entry nobody needs any more: the value when its record becomes a tombstone, the rest
  // when the tombstone vanishes, or both at once.
  enum class Part : uint8_t { kValue, kRest, kAll };
  void note_garbage(uint64_t pointer, Part part);
  // Bytes of a chunk's entries that were noted so since the table was opened.
  uint64_t garbage_bytes_of(const Chunk& chunk) const;
  void set_garbage(Chunk& chunk, uint64_t bytes);

  std::vector<Chunk>& chunks(uint32_t partition) { return partitions_[partition].chunks; }
  const std::vector<Chunk>& chunks(uint32_t partition) const {
    return partitions_[partition].chunks;
  }

  // Calls `visit(pointer, view)` for every entry of a chunk, in order. Returns false at an entry
  // that is damaged: what is behind it, nobody knows.
  bool visit_entries(const Chunk& chunk,
                     const std::function<void(uint64_t pointer, const View&)>& visit) const;

  // The chunk of chunks(partition) that is being appended to; chunks().size() if there is none.
  size_t open_chunk(uint32_t partition) const { return partitions_[partition].open; }

  // Unlinks a chunk that holds nothing of value; its memory is reused once no reader can look at
  // it. Not a chunk that is kept.
  void remove_chunk(uint32_t partition, size_t index);

  // How many pages of places a table in the pool may have, and how many it has room for: fewer if
  // the pool's capacity was raised after that. The second throws kCorrupt.
  static uint64_t place_pages(const pm::PoolImpl& pool) { return pages_for(pool.segments_max()); }
  static uint64_t place_pages(const pm::PoolImpl& pool, const Root& root);
  // Makes room for the pages of places that the table lacks, if the pool has room. Throws kIo.
  void extend_places();
  // Keeps them where they are.
  std::shared_lock<std::shared_mutex> hold_places() const {
    return std::shared_lock(places_mutex_);
  }
  // What the root of a new table has as its `places_word`.
  static uint64_t places_word(const pm::PoolImpl& pool);
  // The word for so many.
  static uint64_t places_word(uint64_t pages);

  pm::EpochManager& epochs() const { return epochs_; }
  // As the pool's.
  bool may_be_unflushed() const { return pool_.may_be_unflushed(); }

 private:
  struct Partition {
    std::vector<Chunk> chunks;  // oldest first
    size_t open = 0;
    uint64_t unflushed = 0;  // where in the open chunk what nobody has flushed begins; 0: nowhere
  };
  struct SegmentState {
    std::atomic<uint32_t> epoch;    // of the chunk that begins here; 0: none
    std::atomic<uint32_t> garbage;  // bytes
  };

  static uint64_t pages_for(uint64_t segments) {
    return (segments + PlacePage::kSegments - 1) / PlacePage::kSegments;
  }
  uint64_t checksum(const View& view, uint64_t pointer) const;
  bool view_at(uint64_t pointer, View& view) const;
  bool is_whole(uint64_t pointer, const View& view) const;
  // The entry at `at` of a chunk, if it is whole and ends at `limit` or before.
  bool whole_entry(const Chunk& chunk, uint64_t epoch, uint64_t at, uint64_t limit,
                   View& view) const;
  uint64_t& page_link(uint64_t segment) const {
    return pool_.at<uint64_t>(root_.payload_places)[segment / PlacePage::kSegments];
  }
  // The word of a segment; null if its page has yet to be made, or there is no room for the page.
  uint64_t* place(uint64_t segment) const;
  void make_page(uint64_t segment, bool reclaim);
  void add_chunk(uint32_t partition, uint64_t bytes, bool reclaim);
  // Of the chunks that an entry was appended to since: all but the open one, or all.
  void note_ends(uint32_t partition, bool open_too, bool to_be_continued);
  void note_end(Chunk& chunk, bool to_be_continued) const;
  void find_end(Chunk& chunk, bool& continues) const;
  uint64_t segment_of(uint64_t offset) const;
  uint64_t last_epoch(uint64_t offset) const;
  uint64_t next_epoch(uint64_t offset) const;
  [[noreturn]] void throw_damaged(uint32_t partition, uint64_t offset) const;
  PayloadHead& head(uint32_t partition) const;
  SegmentState& state_of(uint64_t offset) const { return segments_[segment_of(offset)]; }

  pm::PoolImpl& pool_;
  Root& root_;
  std::vector<Partition> partitions_;
  SegmentState* segments_;  // one for each segment the pool may have; pages appear on use
  uint64_t segments_bytes_;
  std::mutex pages_mutex_;                  // who makes pages of places, or room for more of them
  mutable std::shared_mutex places_mutex_;  // of where they are
  mutable pm::EpochManager epochs_;
};

}  // namespace perdure::index::plush
