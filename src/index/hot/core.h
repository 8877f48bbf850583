// P-HOT: the height-optimised trie.
//
// The idea. A binary Patricia trie has a node of two for each bit that decides between keys. Here
// up to 32 entries of it, records and subtries, are one node, laid out as a row: the positions of
// the bits that decide in it, and for each entry its partial key, the values of those that decide
// about it. The key's bits at these positions are gathered by one instruction and compared with all
// partial keys at once; the highest entry that asks for no bit which the key lacks is the one. So
// the fan-out is high whatever the keys look like. A node is not changed but replaced by a copy,
// and one 8-byte store puts that in its place. But a word's record that belongs among records alone
// is added to its node, in a spare slot beside the row, until those are used up: the next copy
// takes them into the row.
//
// The persist points; F is a fence
//   add a word    the value and then the key, which commits, into a spare slot of one line: F. A slot without a key
//                 is none, whatever its value is; stores of one line become durable in order.
//   insert        (record,) the copy of the node with one entry more, intents: F; the word that leads to the node,
//                 and bitmap: F; intents' end: F. So does each change of the shape: a full node becomes two, which
//                 its parent's copy leads to, or a node of two between; two records of a node that has subtries get
//                 a node of their own.
//   update        words: the value: F. Byte strings: record and intents: F; entry and bitmap: F; end: F.
//   remove        words: the node's state, or 0 for the key of a spare slot: F. Byte strings: intent: F; state and
//                 bitmap: F; end: F.
//   shrinking     of a node that is half empty: as an insert, by a copy, or by its parent's with what is left.
//                 One without entries, or with a subtrie alone: intent: F; the word above: F; end: F.
// A crash before the store that commits leaves the trie as it was: the intents find that the word,
// of whose two bits each store sets the other one, does not have theirs, and free what is new.
// After it the trie is as it is to be, and the intents free what went. A crash between a removal
// and the shrinking leaves a node with few entries or none, which is legal, and so may two removals
// at once; who writes below it takes an empty one away.
//
// Recovery: nothing; the heap's intents only.
//
// Concurrency. Stripe locks (index/stripes.h) in DRAM, by node; of p-hot, the reference, lock words
// in the nodes and the root (index/node_lock.h), as published. A writer finds its way without
// locks, locks the nodes that it replaces and the one with the word that commits, all at once and
// in the order of the locks, and looks whether they are still what he found: all of a node but the
// words in it never changes, so that what was true of its keys still is. Lookups take no lock and
// never begin again: after each word they wait while its node changes, so that what they read is
// durable. A replaced node stays as it was when it was replaced, which was after a reader in it
// began. Scans read each entry under its node's version.
//
// Sources: Binna et al., "HOT: A Height Optimized Trie Index for Main-Memory Database Systems",
// SIGMOD 2018; Lee et al., "RECIPE", SOSP 2019. docs/structures/p-hot.md says where this differs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/hot/layout.h"
#include "index/instantiate.h"
#include "index/node_lock.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/stripes.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::hot {

struct Options {
  uint32_t node_entries = 0;  // 0: the default, or what it was made with
};

// Policy: kName, kMagic, and where the locks are.
struct PHot {
  static constexpr char kName[] = "p-hot";
  static constexpr uint64_t kMagic = 0x31304c4f48504450;  // "PDPHOL01"
  static constexpr bool kLocksInNodes = true;
};
struct PHotVl {
  static constexpr char kName[] = "p-hot+vl";
  static constexpr uint64_t kMagic = 0x3130544f48504450;  // "PDPHOT01"
  static constexpr bool kLocksInNodes = false;
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

  bool write(const Condition& condition, const Key& key, const Value& value);
  bool remove(const Key& key, const Condition& condition = Verb::kUpdate);
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  bool lookup(const Key& key, Use use) const;
  // Batches of words, of which each key is looked up or written on its own.
  uint64_t multi_lookup(std::span<const Key> keys, std::span<Value> values,
                        std::span<bool> found) const
    requires(!Content::kOutOfPlace);
  // For the others (index/batch.h).
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Calls visit(key, value) in ascending order from `from` on, `limit` times at most, until it says
  // no.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const {
    const pm::EpochManager::Guard guard(epochs_);
    walk<false>(seek<false>(&from), &from, limit, visit);
  }
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const {
    const pm::EpochManager::Guard guard(epochs_);
    walk<true>(seek<true>(from), from, limit, visit);
  }
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  static constexpr bool kWords = !Content::kOutOfPlace;
  static constexpr bool kLocksInNodes = Policy::kLocksInNodes;
  using Form = hot::Form<kWords, kLocksInNodes>;
  using Lock = std::conditional_t<kLocksInNodes, LockInNode, LockInDram>;
  using Text = typename Form::Text;

  static constexpr uint32_t kStripeBits = 14;
  static constexpr int32_t kAboveAll = -1;  // position, of what has no node above
  static constexpr uint32_t kSplitsMax =
      4;  // nodes that one insert splits; then the trie grows in height
  // For who comes to a node that was replaced: each time another writer has done something.
  static constexpr uint32_t kAttemptsMax = 1 << 16;

  // A node on the way, and the entry that was taken.
  struct Step {
    Node* node = nullptr;
    uint64_t word = 0;   // that leads to the node
    uint32_t entry = 0;  // from the node's count on: a spare slot
    // What nearest() has looked at: the entries from `low` to `high`.
    uint16_t low = 0;
    uint16_t high = 0;
  };
  using Path = std::vector<Step>;
  // Where a key is, or would be.
  struct Spot {
    Path path;  // to a record whose key shares as many bits as any; empty: there is no record
    Item item;  // that record
    uint32_t differs = 0;  // the first bit in which it is not the key
    bool same = false;     // the record is the key's
    Path hollow;  // if not empty, leads to a node without entries, which is to be taken away first
  };
  enum class Outcome : uint8_t { kDone, kNot, kAgain, kNoRoom };

  // What goes and comes with one store of a word.
  struct Change {
    explicit Change(pm::Heap& heap, bool reclaim = false) : txn(heap, reclaim) {}
    pm::Heap::Txn txn;
    std::array<uint64_t, 2 * kSplitsMax + 4> fresh{};
    uint32_t count = 0;
    void add(uint64_t block) { fresh[count++] = block; }
  };

  // The locks of nodes `first` to `last` of a path, and of what leads to the first of them. Lives
  // as long as the caller's guard.
  class Held {
   public:
    // Throws kIo once the medium has failed: words that another thread could not make durable may
    // be in the trie.
    Held(const Core& core, const Path& path, size_t first, size_t last) {
      locks_[count_++] = core.lock_above(path, first);
      for (size_t i = first; i <= last; ++i) locks_[count_++] = core.lock_of(path[i].word);
      take(core);
    }
    Held(const Core& core, const Lock& one) {
      locks_[count_++] = one;
      take(core);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { release(); }

   private:
    void take(const Core& core) {
      const auto end = locks_.begin() + count_;
      std::sort(locks_.begin(), end);
      count_ = static_cast<uint32_t>(std::unique(locks_.begin(), end) - locks_.begin());
      for (uint32_t i = 0; i < count_; ++i) locks_[i].lock();
      if (!core.pool_.failed()) [[likely]]
        return;
      release();
      core.pool_.require_writable();
    }
    void release() {
      while (count_ > 0) locks_[--count_].unlock();
    }
    std::array<Lock, kSplitsMax + 4> locks_{};
    uint32_t count_ = 0;
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // ---- addresses
  // The node that a word leads to, whose positions are behind `above`: so no way through the trie
  // is endless. Throws kCorrupt unless it is one inside the pool.
  Node& enter(uint64_t word, int32_t above) const {
    const uint64_t bytes = bytes_of(word);
    Node& node = *pool_.follow<Node>(offset_of(word), std::max<uint64_t>(bytes, sizeof(Node)));
    if (!Form::fits(node, bytes) || first_position(node) <= above) [[unlikely]]
      throw_damaged(word);
    return node;
  }
  static int32_t first_position(const Node& node) {
    return static_cast<int32_t>(Form::first_position(node));
  }
  [[noreturn]] void throw_damaged(uint64_t word) const;
  // Of the node that a word leads to, which has been entered.
  Lock lock_of(uint64_t word) const {
    if constexpr (kLocksInNodes) {
      return Lock(Form::lock_in(*pool_.at<Node>(offset_of(word))), pool_.generation());
    } else {
      return Lock(stripes_.of<kStripeBits>(offset_of(word) / pm::kLineBytes));
    }
  }
  Lock root_lock() const {
    if constexpr (kLocksInNodes) {
      return Lock(root_.lock, pool_.generation());
    } else {
      return Lock(root_stripe_);
    }
  }
  Lock lock_above(const Path& path, size_t i) const {
    return i == 0 ? root_lock() : lock_of(path[i - 1].word);
  }
  uint64_t& slot_above(const Path& path, size_t i) const {
    return i == 0 ? root_.top : *Form::slot_in(*path[i - 1].node, path[i - 1].entry);
  }
  bool is_obsolete(const Node& node) const {
    return pm::load_acquire(node.obsolete) == obsolete_mark_;
  }
  static uint64_t state_of(const Node& node) { return pm::load_acquire(node.state); }
  static uint32_t live_count_of(const Node& node) { return live_count(state_of(node)); }
  // With what stands in spare slots. A guide, without the lock.
  static uint32_t live_count_of(const Step& step) {
    uint32_t live = live_count_of(*step.node);
    for_each_added(*step.node, step.word, [&](uint32_t, const Item&) { ++live; });
    return live;
  }
  // Calls visit(entry, item) for each record in a spare slot.
  template <typename Visit>
  static void for_each_added([[maybe_unused]] Node& node, [[maybe_unused]] uint64_t word,
                             [[maybe_unused]] Visit visit) {
    if constexpr (kWords) {
      const uint32_t spares = Form::spares_in(node, bytes_of(word));
      const uint64_t* slot = Form::slot_in(node, node.count);
      for (uint32_t i = 0; i < spares; ++i, slot += 2) {
        const uint64_t key = pm::load_acquire(slot[0]);
        if (key == 0) continue;
        visit(node.count + i, Item{key, pm::load_acquire(slot[1]), false, true});
      }
    }
  }
  // The record with this key in a spare slot; `any`: or another one there. Consistent and durable,
  // without any lock. False: there is none.
  bool find_added(Node& node, uint64_t word, uint64_t key, bool any, uint32_t& entry,
                  Item& item) const {
    if (Form::spares_in(node, bytes_of(word)) == 0) return false;
    const Lock lock = lock_of(word);
    for (;;) {
      const auto stamp = lock.begin_read();
      bool found = false;
      bool same = false;
      for_each_added(node, word, [&](uint32_t at, const Item& added) {
        if (same || (added.word != key && !any)) return;
        found = true;
        same = added.word == key;
        entry = at;
        item = added;
      });
      if (lock.validate(stamp)) return found;
    }
  }
  // Under the lock: whether a record is where it was found.
  bool holds(const Step& step, const Item& item) const {
    if (is_obsolete(*step.node) ||
        pm::load_relaxed(*Form::slot_in(*step.node, step.entry)) != item.word) {
      return false;
    }
    return step.entry >= step.node->count || is_live(state_of(*step.node), step.entry);
  }

  // All lines of a node, which are next to one another: which of them has the entry only the first
  // one tells.
  void prefetch(uint64_t word) const {
    const char* node = pool_.at<char>(offset_of(word));
    for (uint64_t at = 0; at < bytes_of(word); at += pm::kLineBytes) pm::prefetch(node + at);
  }

  // An entry, consistent and durable. Without any lock.
  Item read(Node& node, uint64_t word, uint32_t entry) const {
    const Lock lock = lock_of(word);
    for (;;) {
      const auto stamp = lock.begin_read();
      const uint64_t state = state_of(node);
      const uint64_t* slot = Form::slot_in(node, entry);
      Item item;
      item.word = pm::load_acquire(slot[0]);
      if constexpr (kWords) item.value = pm::load_acquire(slot[1]);
      item.child = is_child(state, entry);
      item.live = is_live(state, entry);
      if (lock.validate(stamp)) return item;
    }
  }
  uint64_t read_top() const {
    for (;;) {
      const auto stamp = root_lock().begin_read();
      const uint64_t word = pm::load_acquire(root_.top);
      if (root_lock().validate(stamp)) return word;
    }
  }

  // ---- keys; the caller has a guard
  static Text text_of(const Key& key) {
    if constexpr (kWords) {
      return key;
    } else {
      return key.bytes;
    }
  }
  Text text_of(const Item& item) const {
    if constexpr (kWords) {
      return item.word;
    } else {
      return records_.key(item.word);
    }
  }

  // ---- the way
  // Of a lookup: the node to enter, and the lock of what led there.
  struct Descent {
    uint64_t word = 0;
    int32_t above = kAboveAll;
    Lock lock;
  };
  enum class Way : uint8_t { kBelow, kFound, kAbsent };
  Descent top() const { return {pm::load_acquire(root_.top), kAboveAll, root_lock()}; }
  // Enters a node. Below: `at` is what comes next, and is on its way from memory. The caller has a
  // guard.
  template <typename Use>
  [[gnu::always_inline]] Way go_down(Descent& at, const Key& key, Use& use) const;
  // The same for batches, from the top if it has not begun. Whether it has not ended.
  template <typename Use>
  bool step(Descent& at, const Key& key, Use use) const;
  bool nearest(uint64_t top, Text text, Spot& spot) const;
  static bool next_nearest(Step& step);
  Spot locate(Text text) const;
  // The last node on the way to which a position belongs, and the entries there that share the bits
  // before it.
  static size_t node_for(const Path& path, uint32_t position);
  static std::pair<uint32_t, uint32_t> sharing(const Step& step, uint32_t position);
  // The position at which two entries differ.
  static uint32_t position_between(const Node& node, uint32_t a, uint32_t b);

  // ---- scan. The entry of a step is the next one, plus 1: downwards 0 is the end.
  template <bool kBack>
  Path seek(const Key* from) const;
  template <bool kBack, typename Visit>
  void walk(Path frames, const Key* from, uint64_t limit, Visit& visit) const;
  // The node below this one that a scan comes to next, if its next entry leads to one.
  void prefetch_next(const Step& step) const {
    if (step.entry == 0 || step.entry > step.node->count) return;
    if (!is_child(state_of(*step.node), step.entry - 1)) return;
    prefetch(pm::load_relaxed(*Form::slot_in(*step.node, step.entry - 1)));
  }
  // Of words: the records of a node without subtries, in order, consistent and durable, and the
  // stamp of the lock.
  struct Record {
    uint64_t key;
    uint64_t value;
  };
  struct Row {
    typename Lock::Stamp stamp;
    uint32_t count;
    std::array<Record, kEntriesMax> records;
  };
  void read_row(const Step& step, Row& row) const;
  // Visits them, from a key on. False: that was the last one that is asked for.
  template <bool kBack, typename Visit>
  bool walk_row(const Step& step, uint64_t from, uint64_t& limit, Visit& visit) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  Outcome replace(const Condition& condition, const Spot& spot, const Key& key, const Value& value);
  Outcome take_out(const Condition& condition, const Spot& spot);
  uint64_t stored(const Step& step) const {
    return pm::load_relaxed(Form::slot_in(*step.node, step.entry)[kWords ? 1 : 0]);
  }
  void reclaim() {
    retired_.flush();
    epochs_.collect();
  }

  // ---- shape.cc
  Image decode(const Step& step, uint32_t& entry) const;
  static bool is_sound(const Node& node);
  static uint32_t put_positions(const Image& image, char* node, uint32_t* bit_of_gap);
  uint64_t make_node(Change& change, const Image& image) const;
  Item make_item(Change& change, const Key& key, const Value& value) const;
  Item child_of(Change& change, const Image& image) const;
  bool still_there(const Path& path, size_t first, size_t last) const;
  void commit(Change& change, const Path& path, size_t first, size_t replaced, uint64_t word);
  // Whether the two parts of path[at] go into the node above, not into one of their own between: if
  // the trie would be higher for that. `lowest`: where the splits began. A node between is made to
  // be filled: the last split looks whether the node above has room, or each insert below a way of
  // full nodes would put one more there.
  bool grows_upwards(const Path& path, size_t at, size_t lowest) const {
    return at > 0 && path[at - 1].node->height <= path[at].node->height + 1U &&
           (lowest - at + 1 < kSplitsMax ||
            (lowest - at + 1 == kSplitsMax && live_count_of(path[at - 1]) < node_entries_));
  }
  // Whether a key that differs there from all below an entry belongs below it nevertheless.
  static bool belongs_below(const Step& step, uint32_t position, Text text) {
    const auto [low, high] = sharing(step, position);
    return low == high && Form::search(*step.node, text) == step.entry;
  }
  size_t highest_changed(const Path& path, size_t at) const;
  Outcome insert(const Spot& spot, const Key& key, const Value& value);
  static bool has_place(const Image& image, uint32_t entry, const Spot& spot, size_t at);
  void insert_beside(Change& change, Image& image, uint32_t entry, const Item& fresh,
                     uint32_t position, bool above) const;
  Outcome add(const Step& step, const Key& key, const Value& value);
  Outcome insert_first(const Key& key, const Value& value);
  // A node decides about something, unless it has the only record of the trie.
  static bool can_be_node(const Image& image, bool top) {
    return image.count > 1 || (image.count == 1 && top && !image.items[0].child);
  }
  void tidy(Path path);
  bool tidy_last(const Path& path);
  void take_away(const Path& path);
  void join(const Path& path);
  void shrink(const Path& path);
  void try_tidy(const Path& path) {
    try {
      tidy(path);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;  // it is right as it is
    }
  }
  void settle(const Step& step) const;
  void retire_node(const Step& step) {
    pm::store_release(step.node->obsolete, obsolete_mark_);  // writers begin again
    retired_.add(offset_of(step.word), bytes_of(step.word));
  }

  // ---- inspect.cc
  class Checker;
  template <typename OnNode, typename OnRecord>
  void visit_all(OnNode on_node, OnRecord on_record) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  uint32_t obsolete_mark_;
  uint32_t node_entries_;
  mutable pm::EpochManager epochs_;
  Records records_;
  Stripes stripes_;  // unless the nodes have their locks
  mutable StripeLock root_stripe_;
  RetiredBlocks retired_;
};

template <typename Policy, typename Content>
template <typename Use>
inline typename Core<Policy, Content>::Way Core<Policy, Content>::go_down(Descent& at,
                                                                          const Key& key,
                                                                          Use& use) const {
  at.lock.begin_read();  // until what was read is durable
  if (at.word == 0) return Way::kAbsent;
  Node& node = enter(at.word, at.above);
  const uint32_t entry = Form::search(node, text_of(key));
  const uint64_t* slot = Form::slot_in(node, entry);
  const uint64_t here = at.word;
  at.lock = lock_of(here);
  const uint64_t state = state_of(node);
  const uint64_t word = is_live(state, entry) ? pm::load_acquire(slot[0]) : 0;
  if (is_child(state, entry)) {
    prefetch(word);
    at.word = word;
    at.above = first_position(node);
    return Way::kBelow;
  }
  at.lock.begin_read();
  if constexpr (kWords) {
    if (!is_live(state, entry) || word != key) {
      uint32_t spare = 0;
      Item item;
      if (!find_added(node, here, key, false, spare, item)) return Way::kAbsent;
      use(item.value);
      return Way::kFound;
    }
    const uint64_t value = pm::load_acquire(slot[1]);
    at.lock.begin_read();
    use(value);
  } else {
    if (!is_live(state, entry)) return Way::kAbsent;
    if (!records_.has_key(word, key.bytes)) return Way::kAbsent;
    use(records_.value(word));
  }
  return Way::kFound;
}

template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  Descent at = top();
  for (;;) {
    const Way way = go_down(at, key, use);
    if (way != Way::kBelow) return way == Way::kFound;
  }
}

template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::step(Descent& at, const Key& key, Use use) const {
  if (at.lock == Lock()) at = top();
  return go_down(at, key, use) == Way::kBelow;
}

template <typename Policy, typename Content>
struct Core<Policy, Content>::Approach {
  Descent at;
};

template <typename Policy, typename Content>
bool Core<Policy, Content>::approach(const Key& key, Approach& at) const {
  return step(at.at, key, [](const Value&) {});
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::multi_lookup(std::span<const Key> keys, std::span<Value> values,
                                             std::span<bool> found) const
  requires(!Content::kOutOfPlace)
{
  uint64_t count = 0;
  std::fill_n(found.begin(), keys.size(), false);
  for (size_t begin = 0; begin < keys.size(); begin += kTogether) {
    const pm::EpochManager::Guard guard(epochs_);
    std::array<Descent, kTogether> at{};
    const size_t size = std::min(kTogether, keys.size() - begin);
    step_together(std::span(at).first(size), [&](uint32_t i, Descent& one) {
      return step(one, keys[begin + i], [&](Value value) {
        values[begin + i] = value;
        found[begin + i] = true;
        ++count;
      });
    });
  }
  return count;
}

// The nodes on the way, each with what comes next, of the keys from `from` on.
template <typename Policy, typename Content>
template <bool kBack>
typename Core<Policy, Content>::Path Core<Policy, Content>::seek(const Key* from) const {
  if (from == nullptr) {
    const uint64_t word = read_top();
    if (word == 0) return {};
    Node& node = enter(word, kAboveAll);
    return {{&node, word, node.count}};
  }
  const Text text = text_of(*from);
  Spot spot = locate(text);
  Path& frames = spot.path;
  if (frames.empty()) return {};
  if (!spot.same) frames.resize(node_for(frames, spot.differs) + 1);
  Step& last = frames.back();
  uint32_t first = last.entry;  // that is not below the key
  // Of a node without subtries walk() goes by the key.
  if (!spot.same && last.entry < last.node->count) {
    const auto [low, high] = sharing(last, spot.differs);
    first = Form::bit_at(text, spot.differs) ? high + 1 : low;
  }
  for (Step& step : frames) step.entry += kBack ? 0 : 2;  // past what was taken
  last.entry = first + (kBack && !spot.same ? 0 : 1);
  return std::move(frames);
}

template <typename Policy, typename Content>
template <bool kBack, typename Visit>
void Core<Policy, Content>::walk(Path frames, [[maybe_unused]] const Key* from, uint64_t limit,
                                 Visit& visit) const {
  while (!frames.empty()) {
    Step& step = frames.back();
    if constexpr (kWords) {
      if (Form::is_row(*step.node)) {
        const Step row = step;
        frames.pop_back();
        if (!frames.empty() && limit > row.node->count) prefetch_next(frames.back());
        const uint64_t bound = from != nullptr ? *from : ~uint64_t{0};
        if (!walk_row<kBack>(row, bound, limit, visit)) return;
        continue;
      }
    }
    if (step.entry == 0 || step.entry > step.node->count) {
      frames.pop_back();
      continue;
    }
    const Item item = read(*step.node, step.word, step.entry - 1);
    step.entry = kBack ? step.entry - 1 : step.entry + 1;
    if (!item.live) continue;
    if (item.child) {
      Node& node = enter(item.word, first_position(*step.node));
      frames.push_back({&node, item.word, kBack ? node.count : 1U});
      continue;
    }
    if (limit == 0) return;
    --limit;
    bool go_on = true;
    if constexpr (kWords) {
      go_on = visit(item.word, item.value);
    } else {
      go_on = visit(records_.key(item.word), records_.value(item.word));
    }
    if (!go_on || limit == 0) return;
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::read_row(const Step& step, Row& row) const {
  const Lock lock = lock_of(step.word);
  const uint64_t* slots = Form::slot_in(*step.node, 0);
  const uint64_t entries = (uint64_t{1} << step.node->count) - 1;
  do {
    row.stamp = lock.begin_read();
    row.count = 0;
    std::array<Record, kEntriesMax> added;
    uint32_t count = 0;
    for_each_added(*step.node, step.word, [&](uint32_t, const Item& item) {
      uint32_t at = count++;
      for (; at > 0 && added[at - 1].key > item.word; --at) added[at] = added[at - 1];
      added[at] = {item.word, item.value};
    });
    uint32_t next = 0;
    for (uint64_t left = state_of(*step.node) & entries; left != 0; left &= left - 1) {
      const uint64_t* slot = slots + ptrdiff_t{2} * std::countr_zero(left);
      const uint64_t key = pm::load_acquire(slot[0]);
      while (next < count && added[next].key < key) row.records[row.count++] = added[next++];
      row.records[row.count++] = {key, pm::load_acquire(slot[1])};
    }
    while (next < count) row.records[row.count++] = added[next++];
  } while (!lock.validate(row.stamp));
}

template <typename Policy, typename Content>
template <bool kBack, typename Visit>
bool Core<Policy, Content>::walk_row(const Step& step, uint64_t from, uint64_t& limit,
                                     Visit& visit) const {
  const Lock lock = lock_of(step.word);
  Row row;
  for (;;) {
    read_row(step, row);
    uint32_t visited = 0;
    for (; visited < row.count; ++visited) {
      const Record record = row.records[kBack ? row.count - 1 - visited : visited];
      if (kBack ? record.key > from : record.key < from) continue;
      if (limit == 0) return false;
      if (!lock.validate(row.stamp)) break;  // the visitor may have changed it, too
      --limit;
      if (!visit(record.key, record.value) || limit == 0) return false;
      if (record.key == (kBack ? 0 : ~uint64_t{0})) return false;  // there are no others
      from = kBack ? record.key - 1 : record.key + 1;
    }
    if (visited == row.count) return true;
  }
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_HOT_INSTANTIATE(prefix)            \
  prefix template class Core<PHot, tree::Words>;   \
  prefix template class Core<PHot, tree::Bytes>;   \
  prefix template class Core<PHotVl, tree::Words>; \
  prefix template class Core<PHotVl, tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_HOT_INSTANTIATE(extern)

}  // namespace perdure::index::hot
