// The 64 KiB segments of a pool: what each of them holds, and which are free.
//
// A segment is free, a slab of blocks of one size class, or part of a run of segments that is one
// block. Its descriptor in PM says so, with check bits; in DRAM there is an Info for each, and the
// runs of free segments.
//
// Invariants
//   - free_runs_ are the segments that nobody uses, disjoint and never adjacent, and free_segments_
//     is their sum. Both change under the mutex; is_scarce() only looks.
//   - The descriptor of a segment in free_runs_ says that it is free, and is durable: a run that a
//     crash leaves without its length is found free.
//   - Only pool growth adds segments, and only shrink() takes them away. Both run under the mutex.
//   - Segments of tables (SegmentMap) have no Info that says anything, and are never free.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "pm/layout.h"
#include "pm/memory.h"
#include "pm/segment_map.h"

namespace perdure::pm {

class PoolImpl;

class Segments {
 public:
  // Free segments that only transactions that reclaim may take; the last one only as a run, which
  // comes back whole, since a slab may keep it for good.
  static constexpr uint32_t kReserve = 2;
  static constexpr uint32_t kReserveForRuns = 1;

  // What is known of a segment in DRAM.
  struct Info {
    uint64_t* taken;  // slabs: blocks that are allocated or in a cache; null until scanned
    union {
      uint32_t free_blocks;   // of slabs
      uint32_t run_segments;  // of the first segment of a run: not what a damaged header may say
    };
    SegmentKind kind;
    uint8_t size_class;
    bool listed;  // in its class's `partial`
  };

  // What a descriptor says.
  struct Content {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;     // of slabs
    uint64_t segments = 1;  // of a run, in its first segment
  };

  explicit Segments(PoolImpl& pool);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  // ---- descriptors

  SegmentDescriptor& descriptor(uint64_t segment) const {
    return segment < first_segments_ ? descriptors_[segment] : extension(segment);
  }
  // Of the segment that an offset lies in.
  uint64_t number_of(uint64_t offset) const { return (offset - data_offset_) / kSegmentBytes; }
  uint64_t offset_of(uint64_t segment) const { return data_offset_ + segment * kSegmentBytes; }
  Info& info(uint64_t segment) const { return infos_[segment]; }

  static uint64_t word_of(SegmentKind kind, int size_class, uint64_t segments, uint64_t number);
  static uint64_t free_word(uint64_t number) { return word_of(SegmentKind::kFree, 0, 1, number); }
  // Returns false, with the content of a free segment, if the descriptor is damaged.
  bool read(uint64_t segment, Content& out) const;
  // The same of a descriptor's word, where runs end at `end` or before.
  static bool parse(uint64_t word, uint64_t segment, uint64_t end, Content& out);
  // The content of a damaged one is that of a free segment.
  Content content_of(uint64_t segment) const {
    Content content;
    read(segment, content);
    return content;
  }
  // In DRAM: the block is a run of so many segments.
  void note_run(uint64_t block, uint64_t segments);

  // Calls `visit(segment)` for each segment in use, runs segment by segment.
  template <typename Visit>
  void for_each_used(Visit visit) const {
    for_each([&](uint64_t first, const Content& content, bool) {
      if (content.kind == SegmentKind::kFree) return;
      for (uint64_t s = first; s < first + content.segments; ++s) visit(s);
    });
  }
  // Calls `visit(first, content, sound)` for each free segment, slab and run in order. A damaged
  // descriptor is one of a free segment, but not sound.
  template <typename Visit>
  void for_each(Visit visit) const {
    map_.for_each_piece(0, count(), [&](uint64_t first, uint64_t last) {
      for (uint64_t i = first; i < last;) {
        Content content;
        const bool sound = parse(load_relaxed(descriptor(i).word), i, last, content);
        visit(i, content, sound);
        i += content.segments;
      }
    });
  }

  // ---- free segments

  // `count` adjacent free segments that leave `keep` others, and those that were promised, growing
  // the pool if need be. Returns false if there are none.
  bool take(uint64_t count, uint32_t keep, uint64_t& first);
  void release(uint64_t first, uint64_t count) noexcept;
  // The lowest free segment, if it is below `limit`. Never grows the pool. Returns false if there
  // is none.
  bool take_below(uint64_t limit, uint64_t& segment);
  // Takes the free segments at the end from the pool, but for kReserve and what was promised,
  // unless nothing is in use, and gives them back to the medium, with the tables between them.
  // Returns by how much the pool is smaller. Throws kIo.
  uint64_t shrink();
  // At recovery, in ascending order and never two adjacent runs: these are free.
  void add_free(uint64_t first, uint64_t count);
  // At recovery: the segments before are in use, or some of them.
  void note_used(uint64_t end) { high_water_ = end; }

  // Keeps so many segments for threads in which `promising` leads here, growing the pool if need
  // be. False: there are not enough.
  bool promise(uint64_t segments);
  void end_promise(uint64_t segments);
  static constinit inline thread_local const Segments* promising = nullptr;

  bool is_scarce(uint64_t segments) const;
  uint64_t free() const { return free_segments_.load(std::memory_order_relaxed); }
  uint64_t high_water() const;
  // Throws kNoSpace if the medium refused to let the pool grow, else kPoolFull.
  [[noreturn]] void throw_full() const;

 private:
  uint64_t count() const;
  SegmentDescriptor& extension(uint64_t segment) const;
  // Under the mutex. So that `segments` are free at the end, or else `adjacent` are somewhere, and
  // others.
  bool grow(uint64_t segments, uint64_t adjacent);
  // Where a pool must end for that.
  uint64_t wanted_end(uint64_t segments, uint64_t adjacent) const;
  uint64_t free_at_end() const;
  // Nothing is in use from here on.
  uint64_t end_of_use() const;

  PoolImpl& pool_;
  const SegmentMap& map_;
  SegmentDescriptor* descriptors_;  // of the first segments
  uint64_t first_segments_;
  uint64_t data_offset_;
  Info* infos_ = nullptr;  // one for each segment of the capacity; pages appear on use
  uint64_t infos_bytes_ = 0;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_runs_;  // first segment -> length
  std::atomic<uint64_t> free_segments_{0};
  std::atomic<uint64_t> promised_{0};
  uint64_t high_water_ = 0;
  std::atomic<bool> medium_full_{false};
};

}  // namespace perdure::pm
