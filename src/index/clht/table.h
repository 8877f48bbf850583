// One table of P-CLHT: its block in PM, and in DRAM what is known of its overflow buckets.
#pragma once

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "index/clht/layout.h"
#include "index/stripes.h"
#include "pm/lock.h"
#include "pm/pool_impl.h"

namespace perdure::index::clht {

// What a reader knows of a bucket's version. Without a lock: a writer, which holds it.
struct Seen {
  const pm::GenerationLock* lock = nullptr;
  uint64_t stamp = 0;
  bool holds() const { return lock == nullptr || lock->validate(stamp); }
};

template <typename Bucket>
class Table {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr uint64_t kChunk = 16;  // buckets that move together

  static uint64_t overflow_for(uint32_t bits) { return (uint64_t{1} << bits) >> kOverflowShift; }
  static uint64_t bytes_for(uint32_t bits, uint64_t overflow) {
    return sizeof(Bucket) * (1 + (uint64_t{1} << bits) + overflow);
  }
  static uint64_t extent_bytes_for(uint32_t bits) { return sizeof(Bucket) * overflow_for(bits); }
  // Writes the header and unclaimed overflow buckets; not the main buckets. Needs a fence.
  static void format(const pm::Memory& memory, char* block, uint32_t bits, uint64_t overflow) {
    alignas(pm::kLineBytes) char header[sizeof(Bucket)] = {};
    const TableHeader fields = TableHeader::make(bits, overflow);
    std::memcpy(header, &fields, sizeof fields);
    memory.copy_nontemporal(block, header, sizeof header);
    write_zeros(memory, block + sizeof(Bucket) * (1 + (uint64_t{1} << bits)),
                sizeof(Bucket) * overflow);
  }

  Table(const pm::PoolImpl& pool, uint64_t offset)
      : pool_(pool),
        offset_(offset),
        bits_(pool.at<TableHeader>(offset)->bits),
        main_(pool.at<Bucket>(offset) + 1),
        own_overflow_(pool.at<TableHeader>(offset)->overflow),
        generation_(pool.generation()),
        overflow_count_(own_overflow_),
        high_(own_overflow_ / 2) {}

  void add_extent(Bucket* buckets) {
    extents_[extent_count_] = buckets;
    ++extent_count_;
    overflow_count_.store(own_overflow_ + extent_count_ * overflow_for(bits_),
                          std::memory_order_release);
  }
  uint32_t extent_count() const { return extent_count_; }
  uint64_t extent_offset(uint32_t extent) const { return pool_.offset_of(extents_[extent]); }

  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_for(bits_, own_overflow_); }
  uint32_t bits() const { return bits_; }
  uint64_t size() const { return uint64_t{1} << bits_; }
  uint64_t overflow_count() const { return overflow_count_.load(std::memory_order_acquire); }
  uint64_t home_of(uint64_t hash) const { return hash >> (64 - bits_); }
  // A hash that belongs to another bucket.
  uint64_t vacant_hash(uint64_t home) const { return (home ^ 1) << (64 - bits_); }

  Bucket& main(uint64_t home) const { return main_[home]; }
  Bucket& overflow(uint64_t number) const {
    if (number < own_overflow_) [[likely]]
      return main_[size() + number];
    const uint64_t in_extents = number - own_overflow_;
    return extents_[in_extents / overflow_for(bits_)][in_extents % overflow_for(bits_)];
  }
  pm::GenerationLock lock_of(uint64_t home) const {
    // One for one, and no small number: what a damaged medium puts there seldom looks like a lock
    // that is held.
    constexpr uint64_t kSpread = 0x9e3779b1;
    return {main_[home].lock, generation_ * kSpread};
  }

  // Whether the link is 0 or leads to a bucket that there is. Nobody ever stores another one where
  // a chain leads, so that a reader may judge a link before he knows that the chain has not
  // changed.
  bool is_link(uint64_t next) const { return (next & ~kMoved) <= overflow_count(); }
  // The number of the overflow bucket that `bucket` leads to, or kNone. Throws kCorrupt.
  uint64_t next_number(const Bucket& bucket) const {
    const uint64_t next = pm::load_acquire(bucket.next);
    if (!is_link(next)) [[unlikely]]
      throw_damaged("a link leads to no bucket");
    return (next & ~kMoved) == 0 ? kNone : (next & ~kMoved) - 1;
  }
  Bucket* next_of(const Bucket& bucket) const {
    const uint64_t number = next_number(bucket);
    return number == kNone ? nullptr : &overflow(number);
  }
  bool is_linked(uint64_t home, uint64_t number) const {
    uint64_t steps = 0;
    uint64_t at = next_number(main_[home]);
    for (; at != kNone && at != number; at = next_number(overflow(at))) count_step(steps);
    return at == number;
  }
  // For walks along a chain: false, instead of endlessly, when there were more steps than there are
  // buckets, because the chain has changed under a reader. Throws kCorrupt if it has not.
  bool count_step(uint64_t& steps, const Seen& seen = {}) const {
    if (++steps <= overflow_count()) [[likely]]
      return true;
    if (seen.holds()) throw_damaged("a chain leads back to itself");
    return false;
  }
  // When a bucket is locked for the first time in a generation: makes its chain durable, which a
  // process that died may have left in the caches only. Else a key that is gone from there could
  // come to another slot, an unchained bucket to another chain, or a record behind a mark that says
  // that the bucket has moved; and a power failure would bring back what the chain was. One fence.
  // Does nothing if there was no such process.
  void settle(uint64_t home) const {
    if (!pool_.may_be_unflushed() || !lock_of(home).is_first()) [[likely]]
      return;
    uint64_t steps = 0;
    for (const Bucket* bucket = &main_[home]; bucket != nullptr;) {
      pool_.memory().flush(bucket, sizeof *bucket);
      bucket = next_of(*bucket);
      if (bucket != nullptr) count_step(steps);
    }
    pool_.memory().fence();  // the chain as it is, before anything is changed that rests on it
  }
  [[noreturn]] void throw_damaged(const char* what) const {
    throw pool_.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: {}, in a P-CLHT of 2^{} buckets; restore the file from a "
                          "backup",
                          pool_.mapping().path(), what, bits_)));
  }

  // Claims an overflow bucket for a chain, whose lock the caller holds. While records move into
  // this table from another, the lower half is theirs, as many as that one has. Returns kNone if
  // there is none.
  uint64_t claim(uint64_t home, const Table* from, bool moving) {
    const Owner owner = Owner::make(home, generation_);
    if (!moving) {
      if (const uint64_t number = claim_returned(owner); number != kNone) return number;
      if (const uint64_t number = claim_next(high_, overflow_count(), owner, from, false);
          number != kNone) {
        return number;
      }
      if (from != nullptr) return kNone;
    }
    return claim_next(low_, own_overflow_ / 2, owner, from, moving);
  }
  // Gives back a claimed bucket that no chain leads to any more, which must be durable.
  void give_back(uint64_t number) {
    std::atomic_ref claimed(overflow(number).lock);
    uint64_t seen = claimed.load(std::memory_order_relaxed);
    if (!claimed.compare_exchange_strong(seen, 0)) return;
    const std::lock_guard lock(mutex_);
    returned_.push_back(number);
    any_returned_.store(true, std::memory_order_relaxed);
  }

  // Of moving away from this table, in chunks: before the next one is published.
  void begin_moving() { moved_ = std::make_unique<std::atomic<uint64_t>[]>(moved_words()); }
  // Whether a bucket is known to have moved; so nobody need look at the mark in PM.
  bool has_moved(uint64_t home) const {
    const uint64_t chunk = home / kChunk;
    return (moved_[chunk / 64].load(std::memory_order_acquire) >> (chunk % 64) & 1) != 0;
  }
  // When the marks of a whole chunk are durable.
  void note_moved(uint64_t first) {
    const uint64_t chunk = first / kChunk;
    moved_[chunk / 64].fetch_or(uint64_t{1} << (chunk % 64), std::memory_order_release);
  }

  uint64_t dram_bytes() const {
    return sizeof *this + returned_.capacity() * sizeof(uint64_t) +
           (moved_ ? moved_words() * sizeof(uint64_t) : 0);
  }

  // Buckets that somebody has begun to move, and that are done.
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> done{0};

 private:
  uint64_t moved_words() const { return (size() / kChunk + 63) / 64; }
  uint64_t claim_returned(Owner owner) {
    while (any_returned_.load(std::memory_order_relaxed)) {
      uint64_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        if (returned_.empty()) break;
        number = returned_.back();
        returned_.pop_back();
        any_returned_.store(!returned_.empty(), std::memory_order_relaxed);
      }
      uint64_t nobody = 0;
      if (std::atomic_ref(overflow(number).lock).compare_exchange_strong(nobody, owner.word)) {
        return number;
      }
    }
    return kNone;
  }
  uint64_t claim_next(std::atomic<uint64_t>& cursor, uint64_t end, Owner owner, const Table* from,
                      bool moving) {
    for (uint64_t number = cursor.load(std::memory_order_relaxed); number < end;) {
      if (!cursor.compare_exchange_weak(number, number + 1)) continue;
      std::atomic_ref claimed(overflow(number).lock);
      uint64_t seen = claimed.load(std::memory_order_acquire);
      if (is_free({seen}, number, owner.home(), from, moving) &&
          claimed.compare_exchange_strong(seen, owner.word)) {
        return number;
      }
      number = cursor.load(std::memory_order_relaxed);
    }
    return kNone;
  }
  // Whether an overflow bucket may be claimed: nobody has it, or who had it before the pool was
  // opened did not come to link it, or has unlinked it.
  bool is_free(Owner seen, uint64_t number, uint64_t own_home, const Table* from,
               bool moving) const {
    if (seen.word == 0) return true;
    if (seen.of_generation(generation_) || seen.home() >= size()) return false;
    const uint64_t home = seen.home();
    if (from != nullptr &&
        (pm::load_acquire(from->main(home >> (bits_ - from->bits())).next) & kMoved) == 0) {
      return true;  // the main bucket was never reached: nothing in it means anything
    }
    if (!moving && home == own_home) return !is_linked(home, number);
    pm::GenerationLock lock = lock_of(home);
    std::unique_lock hold(lock, std::defer_lock);
    if (moving) {
      hold.lock();  // who holds a lock of this table never waits for one of the old table
    } else if (!hold.try_lock()) {
      return false;  // never wait for a second lock; it will be looked at when the pool is reopened
    }
    settle(home);
    return !is_linked(home, number);
  }

  const pm::PoolImpl& pool_;
  uint64_t offset_;
  uint32_t bits_;
  uint32_t extent_count_ = 0;
  Bucket* main_;
  uint64_t own_overflow_;
  uint64_t generation_;
  std::atomic<uint64_t> overflow_count_;
  std::array<Bucket*, kExtents> extents_ = {};
  std::atomic<uint64_t> low_{0};  // overflow buckets that were looked at, of either part
  std::atomic<uint64_t> high_;
  std::atomic<bool> any_returned_{false};
  std::unique_ptr<std::atomic<uint64_t>[]> moved_;  // a bit for each chunk
  std::mutex mutex_;
  std::vector<uint64_t> returned_;
};

}  // namespace perdure::index::clht
