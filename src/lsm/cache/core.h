// A block cache. See include/perdure/block_cache.h and docs/lsm.md.
//
// Why a crash does no harm. At all times:
//   1. Of each key at most one record is valid on the medium, whatever part of what was not fenced
//      has reached it: the one that was written last. A new one is written when the one before is
//      invalid for good: its check was made 0 and fenced, or the segment that it is in durably
//      begun another use (erase_record(), begin_use()).
//   2. A record counts if its check fits the use of its segment and its place, and its block the
//      check of the block. So a record that was written in part is none, however many of its lines
//      are there: nothing orders them, and inserting needs no fence. What it replaces was invalid
//      before, so the key is missing.
//   3. A use has a name that no other has (layout.h). Its header is fenced before anything is
//      written into it, so records that were valid in an earlier use cannot come back: their
//      segment's header is a later one. A header that is torn fits no use; then the segment is
//      empty.
// Segments are taken from the heap by its transactions. They stay with the cache.
//
// Who reads or writes a segment pins it, and looks afterwards whether its use is still the one that
// was meant. Who is about to use it again marks its use as ending first, then looks whether
// somebody has it pinned: if so, the use goes on, and another segment is taken, as readers call
// code of others (lookup()). Whoever pins it later goes away again: readers with a miss; who erases
// a record waits until the use is over durably, or goes on.
//
// Locks, in the order in which a thread takes them: a lane's; the one of the space, or that of a
// stripe of the index. Pins are held while waiting for the lock of a stripe. Nobody waits for a pin
// for long (kRounds in space.cc). Who holds the lock of a stripe waits for none, and for no lane,
// but for a use to end or to go on: one persist.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lsm/cache/layout.h"
#include "lsm/cache/table.h"
#include "perdure/block_cache.h"
#include "pm/pool_impl.h"

namespace perdure::block_cache {

class Core {
 public:
  static std::shared_ptr<Core> create(pm::PoolImpl& pool, const std::string& name,
                                      const BlockCacheOptions& options);
  static std::shared_ptr<Core> open(pm::PoolImpl& pool, const std::string& name,
                                    const BlockCacheOptions& options);

  bool insert(std::string_view key, std::string_view block);
  bool lookup(std::string_view key, const std::function<char*(size_t bytes)>& room);
  bool erase(std::string_view key);

  void for_each(
      const std::function<void(std::string_view key, std::string_view block)>& visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  BlockCacheOptions options() const;
  BlockCacheStatistics counters() const;

 private:
  static constexpr size_t kStripes = 256;
  static constexpr size_t kLanes = 8;
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct alignas(pm::kLineBytes) Stripe {
    std::mutex mutex;
    Table table;
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t inserts = 0;
    uint64_t evictions = 0;
    uint64_t reinserted = 0;
    uint64_t damaged = 0;
    uint64_t recovered = 0;
  };

  struct alignas(pm::kLineBytes) Segment {
    // Its use, counted since the cache was opened, times 2; 1 more while that is about to end, or
    // to go on after all.
    std::atomic<uint64_t> state{0};
    std::atomic<uint32_t> pins{0};
    // Of one that is in a lane changed under its lock, else by nobody.
    Use name;
    uint32_t lines = 0;  // with the header; 0: no use has begun
    std::atomic<uint64_t> offset{0};

    uint64_t use() const { return state.load(std::memory_order_relaxed) >> 1; }
  };

  // Where threads append: a segment, as long as there is room in it.
  struct alignas(pm::kLineBytes) Lane {
    std::mutex mutex;
    uint32_t segment = kNone;
  };

  // Holds a segment to be read or written as long as its use is the one that was meant.
  class Pin {
   public:
    Pin(Segment& segment, Where where) : segment_(&segment) {
      segment.pins.fetch_add(1, std::memory_order_seq_cst);
      const uint64_t state = segment.state.load(std::memory_order_seq_cst);
      const bool same = where.is_of(state >> 1);
      meant_ = same && state % 2 == 0;
      ending_ = same && state % 2 != 0;
    }
    Pin(Pin&& other) noexcept
        : segment_(other.segment_), meant_(other.meant_), ending_(other.ending_) {
      other.segment_ = nullptr;
    }
    Pin& operator=(Pin&&) = delete;
    ~Pin() {
      if (segment_ != nullptr) segment_->pins.fetch_sub(1, std::memory_order_release);
    }
    explicit operator bool() const { return meant_; }
    // Else, if it is not meant, its use is over, durably.
    bool is_ending() const { return ending_; }

   private:
    Segment* segment_;
    bool meant_;
    bool ending_;
  };

  // Lines of a segment that are the caller's to write.
  struct Room {
    Where where;
    Pin pin;
  };

  struct Block {
    std::string_view key;
    uint64_t hash;
    std::string_view bytes;
    uint64_t check;
  };

  // A record that is to have its second chance.
  struct Kept {
    Where where;
    uint64_t hash;
    RecordHead head;
    std::string key_and_block;
  };

  Core(pm::PoolImpl& pool, const std::string& name, uint64_t root);

  // Opening (recover.cc): throws kCorrupt.
  void read_table();
  void recover(uint32_t threads);
  void recover_segment(uint32_t segment);
  void find(uint64_t hash, Where where);

  uint64_t hash_of(std::string_view key) const {
    return pm::checksum64(key.data(), key.size(), root_.salt);
  }
  Stripe& stripe_of(uint64_t hash) const { return stripes_[hash >> 56]; }
  uint64_t check_of_block(std::string_view bytes) const {
    return pm::checksum64(bytes.data(), bytes.size(), root_.salt);
  }
  char* line_of(uint32_t segment, uint64_t line) const {
    return pool_.base() + segments_[segment].offset.load(std::memory_order_relaxed) +
           line * pm::kLineBytes;
  }
  static RecordHead head_at(const char* record);
  // Whether a head of this place is one of a record of the key with this hash.
  bool is_record(const RecordHead& head, uint64_t hash, Where where) const;
  // The same for any key, which is read; the record's lengths are judged before.
  bool is_record(const char* record, Where where, RecordHead& head, uint64_t& hash) const;
  // Calls `visit(where, head, hash)` for each record between the lines, and passes over what is
  // none.
  template <typename Visit>
  void walk(uint32_t segment, uint64_t use, uint64_t end, Visit visit) const {
    for (uint64_t line = 1; line < end;) {
      const Where where = Where::of(segment, use, line);
      RecordHead head;
      uint64_t hash = 0;
      if (!is_record(line_of(segment, line), where, head, hash)) {
        ++line;
        continue;
      }
      visit(where, head, hash);
      line += record_bytes(head.key_bytes, head.block_bytes) / pm::kLineBytes;
    }
  }

  // Space (space.cc). Nothing: there is none to be had.
  std::optional<Room> reserve(uint64_t bytes);
  std::optional<Room> reserve_in(Lane& lane, uint64_t bytes);
  uint32_t take_segment(uint64_t kept_lines_max);
  bool grow();
  uint32_t end_oldest_use();
  bool end_use(uint32_t segment);
  Use begin_use(uint32_t segment);
  void use_again(uint32_t segment, uint64_t kept_lines_max);
  void put_back(uint32_t segment, const Kept& kept);

  // The caller holds the lock of the stripe.
  void write_record(const Block& block, Where where);
  void erase_record(Where where);

  bool may_write() const;
  bool has_same(Stripe& stripe, const Block& block);

  pm::PoolImpl& pool_;
  pm::PoolImpl::Use open_;
  const pm::Memory& memory_;
  std::string name_;
  Root& root_;
  uint64_t lines_max_;  // of a segment
  std::unique_ptr<Stripe[]> stripes_;
  std::unique_ptr<Segment[]> segments_;
  std::array<Lane, kLanes> lanes_;
  mutable std::mutex space_mutex_;
  std::deque<uint32_t> oldest_first_;  // in use, and in no lane
  uint32_t taken_ = 0;                 // from the heap: the first ones
  std::atomic<uint32_t> lanes_in_use_{1};
  std::atomic<uint64_t> last_sequence_{0};
  std::atomic<uint64_t> declined_{0};
  uint64_t opening_ns_ = 0;
  std::function<bool(std::string_view key)> is_wanted_;
};

}  // namespace perdure::block_cache
