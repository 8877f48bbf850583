// Level hashing.
//
// The idea. Two levels of nodes, the top twice as large as the bottom; two hash functions, so a
// record has four nodes to live in. If all four are full, one of the records there moves to another
// of its own nodes. If none can, the table grows: a new top level of twice the size, into which the
// records of the bottom level alone are moved; the old top is the new bottom.
//
// The persist points, and what a crash leaves
//   insert         `level`: the slot, flush, fence; the token's bit, flush, fence. `level+rb`: value,
//                  hash and token in one line, durable in the order of their stores; flush, fence.
//                  Without the bit the slot is as empty as before.
//   update         one 8-byte store to the value. remove: one to the token. Flush, fence.
//   byte strings   index/records.h: the store to the slot's value decides.
//   move           of a record to another node: a redo record (pm/heap.h) of the slot there and of
//                  both tokens, so that the record is in one place, at every moment and after every
//                  crash.
//   begin to grow  the new level, empty, and the intent, fence; root.next and the heap's bitmap,
//                  fence; the intent's end, fence.
//   migrate        as a move, of the records of up to four nodes together.
//   grow further   where they fit nowhere: the new level, empty, the intent and a redo record, fence;
//                  root.top, bottom, next and extras by that record, the heap's bitmap, fence; the
//                  intent's end, fence. Before it is armed the level is free, afterwards it is next.
//   end            when the old levels are empty: root.top, bottom, next and extras by one redo
//                  record, with the intents that free what was migrated, which happens exactly once:
//                  recovery asks these very words.
//
// Recovery: none. If the crash came while the table grew, it goes on growing, from the first node;
// those that are empty cost a look.
//
// Concurrency. Stripe locks (index/stripes.h) in DRAM, by the leading bits of a node's number,
// which are the same in all levels: a writer takes the two of its hash, in order; for a move it
// tries a third, and never waits for it. Lookups take none, and read again if a version has
// changed. The levels that count are one pointer in DRAM, which is read after the locks or
// versions.
//
// Source: Zuo et al., "Write-Optimized and High-Performance Hashing Index Scheme for Persistent
// Memory", OSDI 2018; the variants: Woo et al., IEEE Access 2021. docs/structures/level.md says
// where this differs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "index/content.h"
#include "index/hash_table.h"
#include "index/instantiate.h"
#include "index/level/layout.h"
#include "index/stripes.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::level {

// 0: choose from the pool's capacity.
struct Options {
  uint32_t initial_bits = 0;
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
  bool lookup(const Key& key, Use use) const;
  // For batches (index/batch.h).
  struct Approach {
    bool begun = false;
  };
  bool approach(const Key& key, Approach& at) const;
  pm::EpochManager& epochs() const { return epochs_; }
  template <typename Visit>
  void for_each(Visit visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  using Node = typename Policy::Node;
  static constexpr uint64_t kMigrateTogether = 4;  // nodes

  struct Level {
    uint64_t offset = 0;
    Node* nodes = nullptr;
    uint32_t bits = 0;
    uint64_t size() const { return uint64_t{1} << bits; }
    Node& of(uint64_t hash, uint32_t side) const {
      return nodes[side_of(hash, side) >> (64 - bits)];
    }
  };

  // Which levels there are, in the order in which they are searched. Replaced as a whole.
  //   at rest: top, bottom, extras. While it grows: next, top; then those that are migrated.
  struct State {
    std::array<Level, kLevels> levels;
    uint32_t count = 0;
    bool growing = false;
    mutable std::atomic<uint64_t> begun{0};  // of migrating: nodes that somebody has begun with
    mutable std::atomic<uint64_t> done{0};
    mutable std::atomic<uint64_t> inserts{0};  // that wanted a place while it was growing
    // A thread failed to migrate its part, which is left for the next opening.
    mutable std::atomic<bool> stuck{false};

    std::span<const Level> all() const { return {levels.data(), count}; }
    std::span<const Level> targets() const { return {levels.data(), growing ? 2 : count}; }
    std::span<const Level> sources() const {
      return growing ? std::span(levels.data() + 2, count - 2) : std::span<const Level>();
    }
    uint64_t source_nodes() const {
      uint64_t nodes = 0;
      for (const Level& level : sources()) nodes += level.size();
      return nodes;
    }
    bool is_migrated() const { return done.load(std::memory_order_acquire) >= source_nodes(); }
  };

  struct Place {
    Node* node = nullptr;  // null: there is none
    uint32_t slot = 0;
  };
  enum class Outcome : uint8_t { kDone, kNot, kNoRoom, kAhead, kRetry };

  // The stripes of a hash's two sides, held by a writer, and of a third node, if it got that.
  class Held {
   public:
    // Throws kIo once the medium has failed.
    Held(const Core& core, uint64_t hash);
    ~Held() { release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    void begin_change() const;
    // Whether the stripe is held now.
    bool try_also(StripeLock& lock);

   private:
    void release();
    std::array<StripeLock*, 3> locks_ = {};
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  static uint64_t bytes_for(uint32_t bits) { return sizeof(LevelHeader) + (sizeof(Node) << bits); }
  Level level_at(uint64_t offset) const;
  StripeLock& stripe_of(uint64_t hash, uint32_t side) const {
    return stripes_[side_of(hash, side) >> (64 - stripe_bits_)];
  }
  const State& state() const { return *pm::acquire(state_); }

  // ---- search
  static bool is_live(const Node& node, uint32_t slot) {
    if constexpr (Content::kOutOfPlace) {
      return pm::load_relaxed(node.slots[slot].value) != 0;
    } else {
      return (pm::load_acquire(node.token) >> slot & 1) != 0;
    }
  }
  static uint32_t live_slots(const Node& node) {
    uint32_t count = 0;
    for (uint32_t s = 0; s < kSlots; ++s) count += is_live(node, s) ? 1 : 0;
    return count;
  }
  bool find_in(Node& node, const Key& key, Place& place, uint64_t& value) const;
  bool find(const State& state, const Key& key, Place& place, uint64_t& value) const;
  static void prefetch(const State& state, uint64_t hash);
  static Place find_empty(std::span<const Level> levels, uint64_t hash);

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  Outcome try_write(const Condition& condition, const Key& key, const Value& value,
                    const State*& seen);
  void settle(const State& state, uint64_t hash) const;
  void put(const Held& held, const Place& place, const Key& key, const Value& value);
  void replace(const Held& held, const Place& place, const Key& key, const Value& value);
  void wait_for_movement() const;

  // ---- move.cc
  class Mover;
  Outcome displace(Held& held, const State& state, uint64_t hash, Place& place);
  Outcome displace_now(Held& held, const State& state, uint64_t hash, Place& place);
  void migrate_some(const State* state);
  void migrate_chunk(const State& state, uint64_t first);
  void migrate_nodes(const State& state, const Level& level, uint64_t first, uint64_t count);
  bool migrate_slowly(const State& state, const Level& level, uint64_t number);

  // ---- grow.cc
  void make_room(const State* seen);
  static bool is_ahead(const State& state);
  void help_to_migrate(const State* seen);
  uint32_t larger(const State& state) const;
  void begin_growing(const State* seen);
  void grow_further(const State* seen);
  void new_level(uint32_t bits, uint64_t& link);
  static void format_level(const pm::PoolImpl& pool, char* block, uint32_t bits);
  bool end_growing(const State* state);
  void read_state(State& state) const;
  void publish(std::unique_ptr<State> state);

  // ---- inspect.cc
  void collect(std::vector<HashSlot>& out) const;
  void check_node(const State& state, const Level& level, uint64_t number,
                  const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  mutable pm::EpochManager epochs_;
  Records records_;
  std::atomic<const State*> state_;
  uint32_t stripe_bits_;
  Stripes stripes_;
  std::mutex growing_mutex_;
  // Shared by who moves records from node to node, so that a walk over all sees each once. Taken
  // before stripes, or tried.
  mutable std::shared_mutex movement_mutex_;
  std::mutex left_mutex_;
  std::vector<std::pair<const Level*, uint64_t>> left_;  // nodes that could not be migrated
  uint64_t recovered_operations_ = 0;
};

template <typename Policy, typename Content>
bool Core<Policy, Content>::find_in(Node& node, const Key& key, Place& place,
                                    uint64_t& value) const {
  for (uint32_t s = 0; s < kSlots; ++s) {
    if (pm::load_acquire(node.slots[s].hash) != key.hash || !is_live(node, s)) continue;
    value = pm::load_acquire(node.slots[s].value);
    if constexpr (Content::kOutOfPlace) {
      if (value == 0 || !records_.has_key(value, key.bytes)) continue;
    }
    place = {&node, s};
    return true;
  }
  return false;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::find(const State& state, const Key& key, Place& place,
                                 uint64_t& value) const {
  for (const Level& level : state.all()) {
    if (find_in(level.of(key.hash, 0), key, place, value)) return true;
    if (find_in(level.of(key.hash, 1), key, place, value)) return true;
  }
  return false;
}

template <typename Policy, typename Content>
void Core<Policy, Content>::prefetch(const State& state, uint64_t hash) {
  for (const Level& level : state.all()) {
    for (uint32_t side = 0; side < 2; ++side) {
      const auto* node = reinterpret_cast<const char*>(&level.of(hash, side));
      pm::prefetch(node);
      if constexpr (!Policy::kOneLine) pm::prefetch(node + sizeof(Node) - 1);
    }
  }
}

template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup(const Key& key, Use use) const {
  const StripeLock& first = stripe_of(key.hash, 0);
  const StripeLock& second = stripe_of(key.hash, 1);
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const uint32_t first_stamp = first.begin_read();
    const uint32_t second_stamp = second.begin_read();
    const State& now = state();
    prefetch(now, key.hash);
    Place place;
    uint64_t value = 0;
    const bool found = find(now, key, place, value);
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

// The nodes of all levels, as a lookup does; of byte strings the record, too.
template <typename Policy, typename Content>
bool Core<Policy, Content>::approach(const Key& key, Approach& at) const {
  const State& now = state();
  if (!at.begun) {
    at.begun = true;
    prefetch(now, key.hash);
    return Content::kOutOfPlace;
  }
  for (const Level& level : now.all()) {
    for (uint32_t side = 0; side < 2; ++side) {
      for (const HashSlot& slot : level.of(key.hash, side).slots) {
        if (pm::load_acquire(slot.hash) == key.hash)
          records_.prefetch(pm::load_relaxed(slot.value));
      }
    }
  }
  return false;
}

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::for_each(Visit visit) const {
  const pm::EpochManager::Guard guard(epochs_);
  std::vector<HashSlot> slots;
  collect(slots);
  for (const HashSlot& slot : slots) {
    if constexpr (Content::kOutOfPlace) {
      visit(records_.key(slot.value), records_.value(slot.value));
    } else {
      visit(slot.hash, slot.value);
    }
  }
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_LEVEL_INSTANTIATE(prefix)             \
  prefix template class Core<Reference, HashedWords>; \
  prefix template class Core<Reference, HashedBytes>; \
  prefix template class Core<Trimmed, HashedWords>;   \
  prefix template class Core<Trimmed, HashedBytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_LEVEL_INSTANTIATE(extern)

}  // namespace perdure::index::level
