// P-CLHT: the cache-line hash table, made persistent by RECIPE's conversion.
//
// The idea. The leading bits of the hash select a bucket of one cache line: a lock, three keys,
// three values, and a link to an overflow bucket. An insert writes one line; a lookup usually reads
// one, takes no lock and writes nothing. A table begins with an overflow bucket for each eight main
// buckets, and gets extents of more when they are used up. When there are as many as `grow_at` says
// (in the reference, as main buckets), a larger table is begun (of four times the size in the
// reference, else of twice; where it does not fit, there are more extents); bucket by bucket the
// records move there, by whoever comes to write to one and by everybody who inserts.
//
// The persist points, and what a crash leaves
//   insert         `p-clht`: value, flush, fence; hash, flush, fence. `+fc`: value and hash in one
//                  line, durable in the order of their stores; flush, fence. Without the hash the
//                  slot is as empty as before.
//   update         one 8-byte store to the value. remove: one to the hash. Flush, fence.
//   byte strings   index/records.h: the store to the slot's value decides.
//   lock           its release dirties the line. `p-clht` leaves that to the cache, as measured;
//                  `+ve` flushes the line again at once. A lock word bears the pool's generation:
//                  whatever of it reaches PM, it is free when the pool is opened again.
//   chain          the overflow bucket, claimed and filled, fence; the link to it, fence. A claimed
//                  bucket to which no chain leads is free after a crash.
//   extent         its buckets, unclaimed, and the intent, fence; the root's word for it and the
//                  heap's bitmap, fence; the intent's end, fence.
//   unchain        the link past an empty bucket, fence; only then may others claim it.
//   begin to grow  the new table's header and overflow buckets and the intent, fence; root.next and
//                  the heap's bitmap, fence; the intent's end, fence.
//   move a bucket  its new main buckets, whole, and what they chain, fence; `moved` in the old
//                  bucket's link, fence. Before that mark nothing in the new buckets counts, and
//                  the next attempt writes them again, whole; after it nothing in the old one does.
//                  The lock of the old bucket is held meanwhile.
//   end            when all have moved: root.table = root.next, root.next and the extents = 0 by a
//                  redo record, with the intents that free the old table and its extents, which
//                  happens exactly once: recovery asks these very words.
//
//   first lock     of a bucket after a crash: its chain, as a process that died may have left it in
//                  the caches, fence; before anything is changed that rests on it.
//
// Recovery: none. If the crash came while the table grew, it goes on growing; buckets that have
// moved are skipped. Overflow buckets are looked at one by one when one is needed.
//
// Concurrency. A version lock in each main bucket, for its chain. Nobody who holds one waits for
// another in the same table; who moves a bucket holds the old one's and takes the new ones'.
// Readers validate the version. Tables are reclaimed by epochs.
//
// Source: Lee et al., "RECIPE", SOSP 2019, after David et al., ASPLOS 2015; the variants: Woo et
// al., IEEE Access 2021. docs/structures/p-clht.md says where this differs.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "index/clht/layout.h"
#include "index/clht/table.h"
#include "index/content.h"
#include "index/hash_table.h"
#include "index/instantiate.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::clht {

// 0: choose from the pool's capacity.
struct Options {
  uint32_t initial_bits = 0;
  uint32_t grow_at = 0;
};

template <typename Policy, typename Content>
class Core {
 public:
  using Key = typename Content::Key;
  using Value = typename Content::Value;
  using Condition = index::Condition<Value>;

  static std::unique_ptr<Core> create(pm::PoolImpl& pool, const std::string& name, Kind key,
                                      Kind value, const Options& options);
  static std::unique_ptr<Core> open(pm::PoolImpl& pool, const std::string& name, Kind key,
                                    Kind value, const Options& options);
  ~Core();

  bool write(const Condition& condition, const Key& key, const Value& value);
  bool remove(const Key& key, const Condition& condition = Verb::kUpdate);
  template <typename Use>
  [[gnu::always_inline]] inline bool lookup(const Key& key, Use use) const;
  // For batches (index/batch.h).
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  pm::EpochManager& epochs() const { return epochs_; }
  template <typename Visit>
  void for_each(Visit visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  using Bucket = typename Policy::Bucket;
  using Table = clht::Table<Bucket>;
  static constexpr uint32_t kSlots = Bucket::kSlots;
  static constexpr uint64_t kMoveTogether = Table::kChunk;

  // Which tables there are. Replaced as a whole.
  struct State {
    Table* table;
    Table* next;  // that records move to; null if the table does not grow
    // Of a table that grows: a thread failed to move its part, which is left for the next opening.
    mutable std::atomic<bool> stuck{false};
    State(Table* now, Table* later) : table(now), next(later) {}
  };
  // The table to look at first.
  static Table* newest_for(const State& state, uint64_t hash) {
    const bool moved = state.next != nullptr && state.table->has_moved(state.table->home_of(hash));
    return moved ? state.next : state.table;
  }
  enum class Outcome : uint8_t { kDone, kNot, kNoRoom };

  // A slot, and the chain that it is in.
  struct Place {
    Bucket* bucket = nullptr;  // null: there is none
    Bucket* before = nullptr;  // leads to `bucket`; null if that is the main bucket
    uint32_t slot = 0;
  };

  // The locks of some adjacent main buckets, taken one after the other and given back together,
  // also when a fence throws.
  class Locks {
   public:
    explicit Locks(const Core& core) : core_(core) {}
    ~Locks() { release(); }
    Locks(const Locks&) = delete;
    Locks& operator=(const Locks&) = delete;
    // Throws kIo once the medium has failed: what another thread could not finish is not built
    // upon.
    void take(const Table& table, uint64_t home) {
      table.lock_of(home).lock();
      if (count_++ == 0) table_ = &table, first_ = home;
      if (core_.pool_.failed()) [[unlikely]]
        core_.pool_.require_writable();
    }
    void release() {
      for (; count_ > 0; --count_) core_.unlock(*table_, first_ + count_ - 1);
    }

   private:
    const Core& core_;
    const Table* table_ = nullptr;
    uint64_t first_ = 0;
    uint64_t count_ = 0;
  };

  // The main bucket of a hash, in the table where its records are now; held by a writer.
  class Held {
   public:
    Held(Core& core, uint64_t hash);
    const State* state;
    Table* table;
    uint64_t home;

   private:
    Locks lock_;
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);
  void unlock(const Table& table, uint64_t home) const;

  // ---- search
  [[gnu::always_inline]] inline bool matches(uint64_t value, const Key& key) const;
  static bool is_live(const Table& table, Bucket& bucket, uint32_t slot, uint64_t home);
  // The slot of a key in one bucket, or kSlots.
  [[gnu::always_inline]] inline uint32_t find_in(Bucket& bucket, const Key& key,
                                                 uint64_t& value) const;
  // The same in the `kCount` slots from `first` on, but not beyond `last`.
  template <uint32_t kCount>
  [[gnu::always_inline]] inline uint32_t find_among(Bucket& bucket, uint32_t first, uint32_t last,
                                                    const Key& key, uint64_t& value) const;
  bool find(const Table& table, uint64_t home, const Key& key, Place& place, uint64_t& value,
            const Seen& seen = {}) const;
  // For who found a bucket marked as moved, and no table that it could have moved to, in a state
  // that he had read before: it must be another one by now. Throws kCorrupt if it is not.
  void require_replaced(const State* state) const {
    if (state_.load(std::memory_order_acquire) == state) [[unlikely]]
      state->table->throw_damaged("a bucket is marked as moved, but has not moved");
  }
  template <typename Use>
  bool lookup_slowly(Key key, Use use) const;
  static void prefetch(const Bucket& bucket) {
    for (uint64_t line = 0; line < sizeof(Bucket); line += pm::kLineBytes) {
      pm::prefetch(reinterpret_cast<const char*>(&bucket) + line);
    }
  }
  Place find_empty(const Held& held, uint64_t hash, Bucket*& last) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  Outcome try_write(const Condition& condition, const Key& key, const Value& value,
                    const State*& seen, const Table*& full);
  void put(const Place& place, const Key& key, const Value& value);
  bool put_in_chain(const Held& held, Bucket& last, const Key& key, const Value& value);
  void replace(const Place& place, const Key& key, const Value& value);
  void unchain(const Held& held, const Place& place);

  // ---- grow.cc
  void make_room(const State* seen, const Table* full);
  void begin_growing(const State* seen);
  void begin_table(Table& table, uint32_t bits);
  void add_extent(Table& table);
  void link_block(pm::Heap::Txn& txn, uint64_t block, uint64_t& link);
  void move_some(const State* state);
  void move_chunk(const State& state, uint64_t first);
  void move_one(const State& state, uint64_t home);
  void copy_bucket(const State& state, uint64_t home);
  void mark_moved(Bucket& bucket);
  void fill_chain(Table& to, Table* from, uint64_t home, const HashSlot* slots, uint64_t count,
                  Bucket& image);
  void end_growing(const State* state);
  void publish(std::unique_ptr<const State> state);

  // ---- inspect.cc
  void collect_chain(Table& table, uint64_t home, std::vector<HashSlot>& out,
                     const Seen& seen = {}) const;
  // The live slots of one bucket, from `hash` on; returns the first hash after it, 0 at the end.
  uint64_t collect_at(uint64_t hash, std::vector<HashSlot>& out) const;
  void check_chain(Table& table, uint64_t home, std::vector<bool>& linked,
                   const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  mutable pm::EpochManager epochs_;
  Records records_;
  std::atomic<const State*> state_;
  std::mutex growing_mutex_;
  uint64_t recovered_operations_ = 0;
};

template <typename Policy, typename Content>
bool Core<Policy, Content>::matches(uint64_t value, const Key& key) const {
  if constexpr (Content::kOutOfPlace) {
    return value != 0 && records_.has_key(value, key.bytes);
  } else {
    return (void)value, (void)key, true;  // equal hashes are equal keys
  }
}

template <typename Policy, typename Content>
template <uint32_t kCount>
uint32_t Core<Policy, Content>::find_among(Bucket& bucket, uint32_t first, uint32_t last,
                                           const Key& key, uint64_t& value) const {
  // All are compared, without branches: which one it is cannot be foreseen.
  uint32_t hits = 0;
#pragma GCC unroll 15
  for (uint32_t s = 0; s < kCount; ++s) {
    const uint32_t slot = std::min(first + s, last);
    hits |= uint32_t{pm::load_acquire(bucket.hash(slot)) == key.hash} << s;
  }
  for (; hits != 0; hits &= hits - 1) {
    const uint32_t slot = first + static_cast<uint32_t>(__builtin_ctz(hits));
    value = pm::load_acquire(bucket.value(slot));
    if (matches(value, key)) return slot;
  }
  return kSlots;
}

template <typename Policy, typename Content>
uint32_t Core<Policy, Content>::find_in(Bucket& bucket, const Key& key, uint64_t& value) const {
  if constexpr (Bucket::kLines > 1) {
    const uint32_t slot = find_among<Bucket::kLineSlots>(bucket, Bucket::first_slot(key.hash),
                                                         Bucket::last_slot(key.hash), key, value);
    if (slot != kSlots) [[likely]]
      return slot;
  }
  return find_among<kSlots>(bucket, 0, kSlots - 1, key, value);
}

// Finds a key in the chain of a bucket, whose lock is held or whose version will be validated.
template <typename Policy, typename Content>
bool Core<Policy, Content>::find(const Table& table, uint64_t home, const Key& key, Place& place,
                                 uint64_t& value, const Seen& seen) const {
  Bucket* before = nullptr;
  uint64_t steps = 0;
  for (Bucket* bucket = &table.main(home); bucket != nullptr;) {
    if (const uint32_t slot = find_in(*bucket, key, value); slot != kSlots) {
      place = {bucket, before, slot};
      return true;
    }
    before = bucket;
    bucket = table.next_of(*bucket);
    if (bucket != nullptr && !table.count_step(steps, seen)) break;
  }
  return false;
}

// The common case, a main bucket in which nothing goes on, takes few instructions: so the processor
// has several lookups under way at once.
template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  const State* state = pm::acquire(state_);
  const Table& table = *state->table;
  const uint64_t home = table.home_of(key.hash);
  Bucket& bucket = table.main(home);
  const pm::GenerationLock lock = table.lock_of(home);
  uint64_t stamp = 0;
  const bool quiet = state->next == nullptr && lock.try_begin_read(stamp);
  const uint64_t next = pm::load_acquire(bucket.next);
  if (!quiet || (next & kMoved) != 0) [[unlikely]]
    return lookup_slowly(key, use);
  uint64_t value = 0;
  const bool found = find_in(bucket, key, value) != kSlots;
  if (!lock.validate(stamp) || (!found && next != 0)) return lookup_slowly(key, use);
  if (!found) return false;
  if constexpr (Content::kOutOfPlace) {
    use(records_.value(value));
  } else {
    use(value);
  }
  return true;
}

template <typename Policy, typename Content>
template <typename Use>
[[gnu::noinline]] bool Core<Policy, Content>::lookup_slowly(const Key key, Use use) const {
  const State* state = pm::acquire(state_);
  for (Table* table = newest_for(*state, key.hash);;) {
    const uint64_t home = table->home_of(key.hash);
    if constexpr (Bucket::kLines > 1) prefetch(table->main(home));
    const pm::GenerationLock lock = table->lock_of(home);
    const uint64_t stamp = lock.begin_read();
    if ((pm::load_acquire(table->main(home).next) & kMoved) != 0) [[unlikely]] {
      if (table == state->next || state->next == nullptr) {
        require_replaced(state);
        state = pm::acquire(state_);
        table = newest_for(*state, key.hash);
      } else {
        table = state->next;
      }
      continue;
    }
    Place place;
    uint64_t value = 0;
    const bool found = find(*table, home, key, place, value, {&lock, stamp});
    if (!lock.validate(stamp)) continue;
    if (!found) return false;
    if constexpr (Content::kOutOfPlace) {
      use(records_.value(value));
    } else {
      use(value);
    }
    return true;
  }
}

template <typename Policy, typename Content>
struct Core<Policy, Content>::Approach {
  const Table* table = nullptr;
  Bucket* bucket = nullptr;
  uint32_t buckets_left = 3;  // of a chain: it may be in a loop, as it changes or is damaged
};

// Bucket by bucket of the chain; of byte strings the record, too.
template <typename Policy, typename Content>
bool Core<Policy, Content>::approach(const Key& key, Approach& at) const {
  if (at.bucket == nullptr) {
    at.table = newest_for(*pm::acquire(state_), key.hash);
    at.bucket = &at.table->main(at.table->home_of(key.hash));
  } else {
    Bucket& bucket = *at.bucket;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (pm::load_acquire(bucket.hash(slot)) != key.hash) continue;
      if constexpr (Content::kOutOfPlace) records_.prefetch(pm::load_relaxed(bucket.value(slot)));
      return false;
    }
    const uint64_t next = pm::load_acquire(bucket.next);
    if ((next & ~kMoved) == 0 || !at.table->is_link(next)) return false;
    at.bucket = &at.table->overflow((next & ~kMoved) - 1);
  }
  prefetch(*at.bucket);
  return --at.buckets_left > 0;
}

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::for_each(Visit visit) const {
  std::vector<HashSlot> slots;
  uint64_t hash = 0;
  // Bucket by bucket, in the order of the hash, which growing does not change.
  do {
    const pm::EpochManager::Guard guard(epochs_);
    hash = collect_at(hash, slots);
    for (const HashSlot& slot : slots) {
      if constexpr (Content::kOutOfPlace) {
        visit(records_.key(slot.value), records_.value(slot.value));
      } else {
        visit(slot.hash, slot.value);
      }
    }
  } while (hash != 0);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_CLHT_INSTANTIATE(prefix)              \
  prefix template class Core<Reference, HashedWords>; \
  prefix template class Core<Reference, HashedBytes>; \
  prefix template class Core<Coalesced, HashedWords>; \
  prefix template class Core<Coalesced, HashedBytes>; \
  prefix template class Core<Evicted, HashedWords>;   \
  prefix template class Core<Evicted, HashedBytes>;   \
  prefix template class Core<Sized, HashedWords>;     \
  prefix template class Core<Sized, HashedBytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_CLHT_INSTANTIATE(extern)

}  // namespace perdure::index::clht
