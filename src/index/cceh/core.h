// CCEH: cache-line-conscious extendible hashing.
//
// The idea. A directory, indexed by the leading bits of the hash, leads to segments of 256 buckets
// of one cache line; the last eight bits select the bucket. A record that does not fit there goes
// to one of the buckets that follow, three as published. An insert writes one line. If all are full
// the segment is split: the half of its records whose next bit is 1 is copied to a new segment, the
// directory entries follow, and the copies left behind are empty slots from that moment because
// their hash no longer belongs there. A directory that has no entry to spare for a split is
// doubled.
//
// The persist points, and what a crash leaves
//   insert         value, then hash, of a slot in one line: durable in that order. Flush, fence.
//                  Without the hash the slot is as empty as before.
//   update         one 8-byte store to the value. remove: one to the hash. Flush, fence.
//   byte strings   index/records.h: the store to the slot's value decides.
//   first insert   after a crash, to a group of buckets: all of the group, as a process that died may
//                  have left it in the caches. Flush, fence, before the record is added. Else a
//                  power failure could bring a key back whose removal is in the caches only, beside
//                  the record that is added in another bucket.
//   split          the new segment, the heap's intent and `pending`, fence; the range's directory
//                  entries and the heap's bitmap, fence; `pending` = 0 and the intent's end, fence.
//                  The entry in the middle of the range decides, for the heap and for recovery: if
//                  it leads to the new segment, all entries are brought to the state after, else
//                  back to the state before. Both hold the same records, since nobody writes to
//                  the segment between copying and the fence after the entries. `cceh` then writes
//                  the half that stays anew; what that changes were empty slots before. Fence.
//   new segment    the same, decided by the first entry of the range.
//   displacement   (full pools only) a redo record of both slots: the record is in one of them.
//   doubling       the new directory and the intents, fence; root.directory, by one store, and the
//                  heap's bitmap, fence; the intents' end, fence.
// There is no step in which a record is only in a place that no directory leads to, or in two
// places that count; nothing that a reader has seen can be undone, since readers wait from the
// first store to the last fence of a change.
//
// Recovery: one word in the root; at most one range of directory entries. Nothing is scanned.
//
// Concurrency. Stripe locks (index/stripes.h) in DRAM, by leading bits and group of 16 buckets: a
// writer takes the one or two of its buckets; a split takes all of the segment, and keeps
// writers out, not readers. Lookups take none; a change of the version sends them back.
//
// Source: Nam et al., "Write-Optimized Dynamic Hashing for Persistent Memory", FAST 2019;
// docs/structures/cceh.md says where this differs.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "index/cceh/layout.h"
#include "index/content.h"
#include "index/hash_table.h"
#include "index/instantiate.h"
#include "index/stripes.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::cceh {

// What differs between the structures of this folder. In PM they are alike.
struct Variant {
  const char* name;  // in the catalogue
  bool
      // a split writes both halves, as the reference does, not only that which moves
      rewrites_split;
};
inline constexpr Variant kReference = {"cceh", true};
inline constexpr Variant kInPlace = {"cceh+ip", false};

// 0: choose from the pool's capacity.
struct Options {
  const Variant* variant = &kReference;
  uint32_t initial_depth = 0;
  uint32_t segment_buckets = 0;
  uint32_t probe_buckets = 0;
};

template <typename Content>
class Core {
 public:
  using Key = typename Content::Key;
  using Value = typename Content::Value;
  using Condition = index::Condition<Value>;

  static std::unique_ptr<Core> create(pm::PoolImpl& pool, const std::string& name, Kind key,
                                      Kind value, const Options& options);
  static std::unique_ptr<Core> open(pm::PoolImpl& pool, const std::string& name, Kind key,
                                    Kind value, const Options& options);

  bool write(const Condition& condition, const Key& key, const Value& value);
  bool remove(const Key& key, const Condition& condition = Verb::kUpdate);
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  bool lookup(const Key& key, Use use) const;

  // For batches (index/batch.h).
  struct Approach {
    Segment* segment = nullptr;
  };
  bool approach(const Key& key, Approach& at) const;
  pm::EpochManager& epochs() const { return epochs_; }

  // Calls visit(hash, value) of words, visit(key, value) of byte strings.
  template <typename Visit>
  void for_each(Visit visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  static constexpr uint32_t kGroupBuckets = 16;
  static constexpr uint64_t kGroupBytes = kGroupBuckets * sizeof(Bucket);
  static constexpr uint32_t kStripeBitsMax = 10;

  enum class Outcome : uint8_t { kDone, kNot, kNoRoom };

  // The one or two stripes of a hash's buckets, held by a writer.
  class Held {
   public:
    // Throws kIo once the medium has failed.
    Held(const Core& core, uint64_t hash);
    ~Held() { release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    void begin_change() const;

   private:
    void release() const;
    StripeLock* first_;
    StripeLock* second_;  // null if there is one only
  };

  // All stripes of a segment, held by who moves it.
  class HeldAll {
   public:
    HeldAll(const Core& core, uint64_t hash);
    ~HeldAll();
    HeldAll(const HeldAll&) = delete;
    HeldAll& operator=(const HeldAll&) = delete;
    void begin_change() const;
    void moved() { moved_ = true; }

   private:
    StripeLock* locks_;
    uint32_t count_;
    bool moved_ = false;
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name, const Variant& variant);

  // ---- addresses
  uint64_t stripe_of(uint64_t hash, uint32_t group) const {
    return (hash >> (64 - stripe_bits_)) * groups() + group;
  }
  uint32_t groups() const { return geometry_.buckets / kGroupBuckets; }
  static uint32_t group_of(uint32_t bucket) { return bucket / kGroupBuckets; }
  // The groups of the first and the last of a hash's buckets.
  uint32_t first_group(uint64_t hash) const { return group_of(geometry_.home_of(hash)); }
  uint32_t last_group(uint64_t hash) const {
    return group_of(geometry_.wrap(geometry_.home_of(hash) + geometry_.probe - 1));
  }
  // Of settled_, for all of the pool.
  uint64_t settled_words() const { return pool_.capacity_bytes() / kGroupBytes / 64 + 1; }
  const Directory& directory() const { return *pm::acquire(directory_); }
  static uint64_t index_in(const Directory& directory, uint64_t hash) {
    return hash >> (64 - directory.depth);
  }
  // Needs a guard: a directory that was doubled goes when its readers have gone.
  Entry entry_of(uint64_t hash) const {
    const Directory& now = directory();
    return {pm::load_acquire(now.entries()[index_in(now, hash)])};
  }
  // Throws kCorrupt if the entry leads outside the pool.
  Segment& segment_of(Entry entry) const {
    return *pool_.follow<Segment>(entry.segment(), geometry_.segment_bytes());
  }
  // The same for who relies on the segment's depth, too.
  void require_sound(Entry entry) const;
  // Throws kCorrupt unless all directory entries of an aligned range are this one.
  void require_agreement(const Directory& directory, Pending pending, Entry entry) const;
  void prefetch(const Segment& segment, uint64_t hash, uint32_t buckets) const;

  // ---- search
  bool matches(const HashSlot& slot, uint64_t value, const Key& key) const;
  // The value of the key in the segment; null if it is not there.
  HashSlot* find(Segment& segment, const Key& key, uint64_t& value) const;
  bool is_empty(const HashSlot& slot, uint32_t bucket, uint64_t prefix, uint32_t depth) const;
  HashSlot* empty_slot(Segment& segment, uint32_t bucket, uint64_t prefix, uint32_t depth) const;
  HashSlot* find_empty(Segment& segment, uint64_t hash, uint32_t depth) const;

  // ---- write.cc
  Outcome try_write(const Condition& condition, const Key& key, const Value& value, Entry& seen);
  void settle(const Segment& segment, uint64_t hash) const;
  void put(const Held& held, HashSlot& slot, const Key& key, const Value& value);
  void replace(const Held& held, HashSlot& slot, const Key& key, const Value& value);
  bool write_once(const Condition& condition, const Key& key, const Value& value);

  // ---- split.cc
  void make_room(uint64_t hash, Entry seen);
  void new_segment(uint64_t hash);
  void split(const HeldAll& held, uint64_t hash, Entry entry);
  void rewrite(Segment& segment, uint64_t hash, uint32_t depth);
  bool displace(const HeldAll& held, uint64_t hash, Entry entry);
  void move_record(const HeldAll& held, HashSlot& from, uint32_t bucket, HashSlot& to);
  void double_directory();
  void change_range(pm::Heap::Txn& txn, Pending pending, uint64_t segment, uint32_t depth);
  void fill_range(const Directory& directory, Pending pending) const;
  void recover();

  // ---- inspect.cc
  void copy_segment(uint64_t hash, std::vector<HashSlot>& out, uint32_t& depth) const;
  void check_segment(uint64_t first, Entry entry,
                     const std::function<void(const std::string&)>& fail) const;
  void visit_segments(const std::function<void(uint64_t first, Entry entry)>& visit) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  const Variant& variant_;
  mutable pm::EpochManager epochs_;
  Records records_;
  Geometry geometry_;
  uint32_t stripe_bits_;
  Stripes stripes_;
  // By KiB of the pool, a bit: the group of buckets that begins there is durable as it is. Null
  // unless a process that died may have left something in the caches only.
  std::unique_ptr<std::atomic<uint64_t>, decltype(&std::free)> settled_{nullptr, &std::free};
  std::atomic<Directory*> directory_;
  std::mutex directory_mutex_;  // of who changes directory entries, or doubles it
  uint64_t recovered_operations_ = 0;
};

template <typename Content>
bool Core<Content>::matches(const HashSlot& slot, uint64_t value, const Key& key) const {
  if constexpr (Content::kOutOfPlace) {
    return value != 0 && records_.has_key(value, key.bytes);
  } else {
    return (void)slot, (void)value, (void)key, true;  // equal hashes are equal keys
  }
}

template <typename Content>
void Core<Content>::prefetch(const Segment& segment, uint64_t hash, uint32_t buckets) const {
  const uint32_t home = geometry_.home_of(hash);
  for (uint32_t i = 0; i < buckets; ++i) {
    pm::prefetch(&segment.buckets[geometry_.wrap(home + i)]);
  }
}

template <typename Content>
HashSlot* Core<Content>::find(Segment& segment, const Key& key, uint64_t& value) const {
  const uint32_t home = geometry_.home_of(key.hash);
  for (uint32_t i = 0; i < geometry_.probe; ++i) {
    Bucket& bucket = segment.buckets[geometry_.wrap(home + i)];
    uint32_t hits = 0;
    for (uint32_t s = 0; s < kBucketSlots; ++s) {
      hits |= uint32_t{pm::load_acquire(bucket.slots[s].hash) == key.hash} << s;
    }
    for (; hits != 0; hits &= hits - 1) {
      HashSlot& slot = bucket.slots[__builtin_ctz(hits)];
      value = pm::load_acquire(slot.value);
      if (matches(slot, value, key)) return &slot;
    }
  }
  return nullptr;
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const StripeLock& first = stripes_[stripe_of(key.hash, first_group(key.hash))];
  const StripeLock& second = stripes_[stripe_of(key.hash, last_group(key.hash))];
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    // Before the directory is read: what a split has moved since is sure to be noticed.
    const uint32_t first_stamp = first.begin_read();
    const uint32_t second_stamp = second.begin_read();
    const Entry entry = entry_of(key.hash);
    uint64_t value = 0;
    bool found = false;
    if (entry) {
      Segment& segment = segment_of(entry);
      prefetch(segment, key.hash, 2);
      found = find(segment, key, value) != nullptr;
    }
    if (!first.validate(first_stamp) || !second.validate(second_stamp)) continue;
    if (!found) return false;
    if constexpr (Content::kOutOfPlace) {
      use(records_.value(value));
    } else {
      use(value);
    }
    return true;
  }
}

// The buckets, as a lookup does; of byte strings the record, too.
template <typename Content>
bool Core<Content>::approach(const Key& key, Approach& at) const {
  if (at.segment == nullptr) {
    const Entry entry = entry_of(key.hash);
    if (!entry) return false;
    at.segment = &segment_of(entry);
    prefetch(*at.segment, key.hash, 2);
    return Content::kOutOfPlace;
  }
  const uint32_t home = geometry_.home_of(key.hash);
  for (uint32_t i = 0; i < 2; ++i) {
    for (const HashSlot& slot : at.segment->buckets[geometry_.wrap(home + i)].slots) {
      if (pm::load_acquire(slot.hash) == key.hash) records_.prefetch(pm::load_relaxed(slot.value));
    }
  }
  return false;
}

template <typename Content>
template <typename Visit>
void Core<Content>::for_each(Visit visit) const {
  std::vector<HashSlot> slots;
  uint64_t hash = 0;
  uint32_t depth = 0;
  // Segment by segment, in the order of the hash, which no split changes.
  do {
    const pm::EpochManager::Guard guard(epochs_);
    copy_segment(hash, slots, depth);
    for (const HashSlot& slot : slots) {
      if constexpr (Content::kOutOfPlace) {
        visit(records_.key(slot.value), records_.value(slot.value));
      } else {
        visit(slot.hash, slot.value);
      }
    }
    hash = (hash >> (64 - depth) << (64 - depth)) + (uint64_t{1} << (64 - depth));
  } while (hash != 0);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_CCEH_INSTANTIATE(prefix)   \
  prefix template class Core<HashedWords>; \
  prefix template class Core<HashedBytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_CCEH_INSTANTIATE(extern)

}  // namespace perdure::index::cceh
