// wB+Tree: write-atomic B+tree nodes, wholly in PM.
//
// The idea. A node's records are unsorted; a bitmap of 8 bytes, written by one store, says which of
// them count, and a slot array of one line gives their order, so that searches are binary and scans
// sort nothing. The bitmap's lowest bit says whether the slot array is valid. What changes more
// than one node goes through a micro-log.
//
// The persist points, and what a crash leaves
//   insert         the slot array declared invalid (bitmap), F; record and slot array, F; bitmap with
//                  the record's bit and the valid bit, F. Up to the last store the record does not
//                  count; a slot array that was not finished is not believed.
//   update         one 8-byte store to the value, F.
//   remove         the record's bit in the bitmap, F. The slot array still lists the cell, between
//                  its neighbours in order; readers pass over cells whose bit is clear, and the next
//                  insert, which is the first that could use the cell again, writes another array.
//   byte strings   the same, with a record out of place (index/records.h), which is allocated iff its
//                  bit is set (an insert, a removal) or its value leads to it (an update).
//   split, merge, dropping an empty leaf, a new or a needless top node: what nobody can see yet (new
//                  nodes, cells whose bit is clear) and the intents, F; then the bitmaps and slot
//                  arrays of all nodes concerned by one redo record of the heap's micro-log. Blocks
//                  count iff the parent's bit for the node is set.
// A change of the tree's shape touches one parent and its children; what must be done at several
// levels is done as several such changes, top first, and each leaves a whole tree.
//
// Recovery: the micro-log's, in the heap. Nothing is scanned. A leaf whose slot array is not valid
// is searched linearly until the next insert writes it.
//
// Concurrency (not in the paper). Version locks in DRAM (index/stripes.h), by node. Searches couple
// versions from node to node and lock nothing. A writer locks its leaf and then verifies that the
// parent has not changed since it was read; a change of shape locks the parent too, by trying, and
// begins again if it cannot. Readers wait from the first store of a change to its last fence, so
// that nobody sees what a power failure could still undo.
//
// Source: Chen and Jin, "Persistent B+-Trees in Non-Volatile Main Memory", PVLDB 8(7), 2015;
// docs/structures/wbtree.md says where this differs.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "index/instantiate.h"
#include "index/records.h"
#include "index/stripes.h"
#include "index/tree/back.h"
#include "index/tree/content.h"
#include "index/wbtree/layout.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::wbtree {

// 0: the default.
struct Options {
  uint32_t leaf_records = 0;
  uint32_t inner_records = 0;
};

// Locks that were had by trying, given back together. One that two nodes share is had once.
class LockSet {
 public:
  explicit LockSet(const pm::PoolImpl& pool) : pool_(pool) {}
  ~LockSet();
  LockSet(const LockSet&) = delete;
  LockSet& operator=(const LockSet&) = delete;
  // Throws kIo once the medium has failed: a redo record that another thread could not finish may
  // still make free cells count, so none of these may be written again.
  bool add(StripeLock& lock);
  // Readers of any of the nodes wait from here on, and begin again.
  void begin_change();

 private:
  const pm::PoolImpl& pool_;
  std::array<StripeLock*, kDepthMax + 4> locks_;
  uint32_t count_ = 0;
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
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  template <typename Use>
  bool lookup_at(const Approach& at, const Key& key, Use use) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Calls visit(key, value) from a key on, in ascending order; it returns whether to go on.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;

  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  static constexpr uint64_t kLeafStripes = 1 << 14;
  static constexpr uint64_t kInnerStripes = 1 << 10;

  enum class Outcome : uint8_t { kDone, kNot, kNoRoom, kAgain };

  // What a reader has seen: a version of a node. Without a lock: a writer, which holds it.
  struct Seen {
    const StripeLock* lock = nullptr;
    uint32_t stamp = 0;
    bool stale = false;  // it is no more: what was found means nothing

    bool validate() {
      if (lock != nullptr && !lock->validate(stamp)) stale = true;
      return !stale;
    }
  };
  struct Step {
    Node* node;
    uint32_t stamp;
  };
  // The way from the top to a leaf, by level. Each node was its parent's child for the key when its
  // stamp was taken.
  struct Path {
    std::array<Step, kDepthMax + 1> steps;
    uint32_t depth;
    uint32_t top_stamp;

    const Step& operator[](uint32_t level) const { return steps[level]; }
  };
  // Which node is the topmost, in one word.
  struct Top {
    uint64_t node;
    uint32_t depth;
  };
  // Where a scan goes on. Words: a key. Byte strings: a copy of one.
  struct Bound {
    bool end = false;
    std::conditional_t<Content::kOutOfPlace, std::string, uint64_t> key{};

    Key get() const { return Key(key); }
  };
  // The leaves of one parent, or the one leaf that has none.
  struct Family {
    Path path;
    Order order;
    uint32_t position;  // of the leaf for the key
  };
  using Leaf = std::array<Slot, kRecordsMax>;

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // ---- addresses and locks
  // Throws kCorrupt if no node of the level can be there. What leads to a node is to be validated
  // before.
  Node& node_at(uint64_t offset, uint32_t level) const {
    Node* node = pool_.follow<Node>(offset, shape(level).bytes());
    if (offset % pm::kLineBytes != 0) [[unlikely]]
      throw_damaged(offset, level, "is not where a node can be");
    return *node;
  }
  // A cell whose number comes from a slot array. Slot arrays never name others, not even while they
  // change, so that a reader need not know yet that the node is the same.
  const Slot& cell_of(const Node& node, uint32_t level, uint32_t number) const {
    if (number >= shape(level).records + kOtherCells) [[unlikely]]
      throw_damaged(offset_of(node), level, "lists a record that it has no room for");
    return node.cell(number);
  }
  [[noreturn]] void throw_damaged(uint64_t offset, uint32_t level, const char* what) const;
  uint64_t offset_of(const Node& node) const { return pool_.offset_of(&node); }
  const Shape& shape(uint32_t level) const { return level == 0 ? leaf_ : inner_; }
  StripeLock& lock_of(const Node& node, uint32_t level) const {
    return lock_at(offset_of(node), level);
  }
  StripeLock& lock_at(uint64_t offset, uint32_t level) const {
    const uint64_t line = offset / pm::kLineBytes;
    return level == 0 ? leaf_locks_.of<14>(line) : inner_locks_.of<10>(line);
  }
  // Of the node above a level of the path; of the word in the root for the topmost.
  StripeLock& lock_above(const Path& path, uint32_t level) const {
    return level == path.depth ? top_lock_ : lock_of(*path[level + 1].node, level + 1);
  }
  static uint32_t stamp_above(const Path& path, uint32_t level) {
    return level == path.depth ? path.top_stamp : path[level + 1].stamp;
  }
  bool path_holds(const Path& path, uint32_t from_level) const;
  bool is_full(const Node& node, uint32_t level) const {
    return live_count(node) >= shape(level).records;
  }
  static Top unpack(uint64_t word) {
    return {word & ~uint64_t{63}, static_cast<uint32_t>(word & 63)};
  }
  Top top() const { return unpack(pm::acquire(top_)); }
  // The topmost node in DRAM, whatever becomes of a change of it: also when a fence throws between
  // the change in PM and its end.
  class TopFollows {
   public:
    explicit TopFollows(Core* core) : core_(core) {}
    ~TopFollows() {
      if (core_ != nullptr) core_->load_top();
    }
    TopFollows(const TopFollows&) = delete;
    TopFollows& operator=(const TopFollows&) = delete;

   private:
    Core* core_;  // null: the topmost node stays
  };
  void load_top() { pm::publish(top_, root_.top | root_.depth, "wb+tree: top"); }

  // ---- search
  std::strong_ordering compare(const Node& node, uint32_t level, uint32_t cell, const Key& key,
                               Seen& seen) const;
  // The first position from `first` on whose key is not less than (kAfter: greater than) the key.
  enum class Side : uint8_t { kAt, kAfter };
  uint32_t search(const Node& node, uint32_t level, const Order& order, uint32_t first,
                  const Key& key, Side side, Seen& seen) const;
  uint32_t child_position(const Node& node, uint32_t level, const Order& order, const Key& key,
                          Seen& seen) const;
  uint64_t child_for(const Node& node, uint32_t level, const Key& key, Seen& seen) const;
  // Down to `level`, or to the topmost node if that is lower.
  void descend(const Key& key, uint32_t level, Path& path) const;
  // The same by what `choose(path, level, seen)` makes of each node: the child's offset.
  template <typename Choose>
  void descend_by(uint32_t level, Path& path, Choose choose) const;
  uint32_t find(const Node& leaf, const Key& key, Seen& seen) const;
  template <typename Use>
  Outcome lookup_in(const Step& step, const Key& key, Use use) const;
  std::string_view separator_of(const Node& node) const {
    const uint64_t separator = pm::load_acquire(node.separator);
    return separator == 0 ? std::string_view() : records_.key(separator);
  }

  // ---- scan.h
  bool read_bound(const Step& parent, uint32_t level, uint32_t cell, Bound& bound) const;
  bool bound_after_family(const Family& family, Bound& bound) const;
  void find_family(const Key& key, Family& family) const;
  bool copy_leaf(const Node& leaf, uint32_t stamp, Leaf& out, uint32_t& count) const;
  bool copy_next(const Family& family, Bound& after, Leaf& out, uint32_t& count) const;
  template <typename Visit>
  bool scan_family(Bound& from, uint64_t& left, Visit& visit) const;
  uint32_t position_under(const Node& node, uint32_t level, const Order& order,
                          const tree::Ceiling<Content>& ceiling, Seen& seen) const;
  void read_under(const tree::Ceiling<Content>& ceiling, tree::Floor<Content>& floor,
                  std::vector<Slot>& out) const;

  // ---- write.cc
  struct Place {
    uint32_t cell;      // of the key's record; 0: there is none
    uint32_t position;  // where it would be
  };
  Node& lock_leaf(const Key& key, StripeLock*& lock) const;
  Place locate(const Node& leaf, const Key& key, Order& order) const;
  void sort_cells(const Node& leaf, Order& order) const;
  void sorted_cells(const Node& node, uint32_t level, Order& order) const;
  void exact_cells(const Node& node, uint32_t level, Order& order) const;
  Key key_of(const Slot& slot) const;
  Outcome try_write(const Condition& condition, const Key& key, const Value& value);
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  void put(StripeLock& lock, Node& leaf, Order& order, uint32_t position, const Key& key,
           const Value& value);
  void fill_cell(Node& leaf, uint32_t cell, const Slot& slot, const Order& order) const;
  void replace(StripeLock& lock, Node& leaf, Slot& slot, const Key& key, const Value& value);
  void take_out(StripeLock& lock, Node& leaf, uint32_t cell);

  // ---- split.cc
  void make_room(const Key& key);
  void split(LockSet& held, Node* parent, Node& node, uint32_t level);
  uint64_t new_top(pm::Heap::Txn& txn, const Node& below);
  void fill_right(Node& right, uint64_t separator, const Node& node, const Order& order,
                  uint32_t from) const;
  // Where the right one of two nodes begins: the word for the parent's record, and the separator.
  Slot make_separator(pm::Heap::Txn& txn, const Node& node, uint32_t level, const Order& order,
                      uint32_t from) const;

  // ---- merge.cc
  void tidy(const Key& key);
  bool tidy_once(const Key& key);
  bool merge_with_sibling(LockSet& held, Node& parent, Node& node, uint32_t level);
  void merge(LockSet& held, Node& parent, uint32_t position, uint32_t level);
  void drop(LockSet& held, const Path& path);
  void collapse(const Path& path);
  bool is_sparse(uint32_t records, uint32_t level) const {
    return records * 2 <= shape(level).records;
  }
  bool may_merge(uint32_t left, uint32_t right, uint32_t level) const;
  void unlink_node(pm::Heap::Txn& txn, const Node& node, const uint64_t& bitmap,
                   uint32_t cell) const;
  void unlink_separator(pm::Heap::Txn& txn, uint64_t separator, const uint64_t& bitmap,
                        uint32_t cell) const;
  void retire_node(const Node& node);
  void retire_separator(uint64_t separator);
  void redo_node(pm::Heap::Txn& txn, Node& node, const Order& order, uint64_t live) const;
  void commit(pm::Heap::Txn& txn, LockSet& held);
  uint32_t position_of(const Order& order, const Node& parent, uint32_t level,
                       uint64_t child) const;
  uint32_t require_position(const Order& order, const Node& parent, uint32_t level,
                            const Node& child) const;

  // ---- inspect.cc
  struct Range;
  void visit_nodes(
      const std::function<void(const Node& node, uint64_t offset, uint32_t level)>& visit) const;
  void check_node(uint64_t at, uint32_t level, const Range& range,
                  const std::function<void(const std::string&)>& fail) const;
  Key own_key(const Slot& above) const;
  bool check_cells(const Node& node, uint32_t level, Order& order,
                   const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  mutable pm::EpochManager epochs_;
  Records records_;
  Shape leaf_;
  Shape inner_;
  Stripes leaf_locks_{kLeafStripes};
  Stripes inner_locks_{kInnerStripes};
  mutable StripeLock top_lock_;
  std::atomic<uint64_t> top_;  // offset of the topmost node | depth
  std::atomic<uint64_t> rebuilt_{0};
};

// Of byte strings with equal words the whole keys are read, but not before it is certain that the
// cell is what it seems: then epochs keep what it leads to.
template <typename Content>
std::strong_ordering Core<Content>::compare(const Node& node, uint32_t level, uint32_t cell,
                                            const Key& key, Seen& seen) const {
  const Slot& at = cell_of(node, level, cell);
  const uint64_t word = pm::load_relaxed(at.key);
  if constexpr (Content::kOutOfPlace) {
    if (word == Content::word_of(key)) {
      const uint64_t value = pm::load_relaxed(at.value);
      if (!seen.validate()) return std::strong_ordering::equal;
      return (level == 0 ? records_.key(value) : separator_of(node_at(value, level - 1))) <=>
             key.bytes;
    }
  }
  return (void)level, (void)seen, word <=> Content::word_of(key);
}

template <typename Content>
uint32_t Core<Content>::search(const Node& node, uint32_t level, const Order& order, uint32_t first,
                               const Key& key, Side side, Seen& seen) const {
  uint32_t last = order.count();
  while (first < last) {
    const uint32_t middle = (first + last) / 2;
    const std::strong_ordering is = compare(node, level, order[middle], key, seen);
    if (seen.stale) return first;
    if (is < 0 || (side == Side::kAfter && is == 0)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

template <typename Content>
uint32_t Core<Content>::child_position(const Node& node, uint32_t level, const Order& order,
                                       const Key& key, Seen& seen) const {
  return search(node, level, order, 1, key, Side::kAfter, seen) - 1;
}

// What it leads to may be nothing unless the node's version holds after the call.
template <typename Content>
uint64_t Core<Content>::child_for(const Node& node, uint32_t level, const Key& key,
                                  Seen& seen) const {
  Order order;
  load_order(node, order);
  const uint32_t position = child_position(node, level, order, key, seen);
  return pm::load_relaxed(cell_of(node, level, order[position]).value);
}

template <typename Content>
void Core<Content>::descend(const Key& key, uint32_t level, Path& path) const {
  descend_by(level, path, [&](const Path& so_far, uint32_t at, Seen& seen) {
    return child_for(*so_far[at].node, at, key, seen);
  });
}

template <typename Content>
template <typename Choose>
void Core<Content>::descend_by(uint32_t level, Path& path, Choose choose) const {
  for (Backoff backoff;; backoff.pause()) {
    path.top_stamp = top_lock_.begin_read();
    const Top top = this->top();
    path.depth = top.depth;
    const StripeLock* above = &top_lock_;
    uint32_t stamp_above = path.top_stamp;
    uint64_t offset = top.node;
    for (uint32_t at = top.depth;; --at) {
      const StripeLock& lock = lock_at(offset, at);
      Seen seen{&lock, lock.begin_read()};
      if (!above->validate(stamp_above)) break;  // it may not be a node at all
      Node* node = &node_at(offset, at);
      path.steps[at] = {node, seen.stamp};
      if (at <= level) return;
      offset = choose(path, at, seen);
      if (seen.stale) break;
      above = &lock;
      stamp_above = seen.stamp;
    }
  }
}

template <typename Content>
uint32_t Core<Content>::find(const Node& leaf, const Key& key, Seen& seen) const {
  const uint64_t bitmap = pm::load_acquire(leaf.bitmap);
  if ((bitmap & kOrderValid) != 0) [[likely]] {
    Order order;
    load_live_order(leaf, bitmap, order);
    const uint32_t position = search(leaf, 0, order, 0, key, Side::kAt, seen);
    if (position >= order.count() || seen.stale) return 0;
    return compare(leaf, 0, order[position], key, seen) == 0 ? order[position] : 0;
  }
  for (uint64_t rest = bitmap & leaf_.cells(); rest != 0; rest &= rest - 1) {
    const auto cell = static_cast<uint32_t>(std::countr_zero(rest));
    const bool equal = compare(leaf, 0, cell, key, seen) == 0;
    if (seen.stale) return 0;
    if (equal) return cell;
  }
  return 0;
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  for (Backoff backoff;; backoff.pause()) {
    Path path;
    descend(key, 0, path);
    const Outcome outcome = lookup_in(path[0], key, use);
    if (outcome != Outcome::kAgain) return outcome == Outcome::kDone;
  }
}

// In a leaf that was the key's when its stamp was taken: kAgain if it has changed since.
template <typename Content>
template <typename Use>
typename Core<Content>::Outcome Core<Content>::lookup_in(const Step& step, const Key& key,
                                                         Use use) const {
  const Node& leaf = *step.node;
  Seen seen{&lock_of(leaf, 0), step.stamp};
  const uint32_t cell = find(leaf, key, seen);
  const uint64_t value = pm::load_relaxed(leaf.cell(cell).value);
  if (!seen.validate()) return Outcome::kAgain;
  if (cell == 0) return Outcome::kNot;
  if constexpr (Content::kOutOfPlace) {
    use(records_.value(value));
  } else {
    use(value);
  }
  return Outcome::kDone;
}

template <typename Content>
struct Core<Content>::Approach {
  Step step{};  // to a node that was its parent's child for the key when its stamp was taken
  uint32_t level = 0;
  bool lost = false;  // the way was changing
};

// The nodes, whole; of byte strings the record.
template <typename Content>
bool Core<Content>::approach(const Key& key, Approach& at) const {
  if (at.step.node == nullptr) {
    const uint32_t top_stamp = top_lock_.begin_read();
    const Top top = this->top();
    at.level = top.depth;
    at.step = {&node_at(top.node, top.depth), lock_at(top.node, top.depth).begin_read()};
    at.lost = !top_lock_.validate(top_stamp);
  } else {
    const Node& node = *at.step.node;
    if (at.level == 0) {
      for (uint64_t left = live_cells(node) & leaf_.cells(); left != 0; left &= left - 1) {
        const Slot& slot = node.cell(static_cast<uint32_t>(std::countr_zero(left)));
        if (pm::load_relaxed(slot.key) == Content::word_of(key))
          records_.prefetch(pm::load_relaxed(slot.value));
      }
      return false;
    }
    Seen seen{&lock_of(node, at.level), at.step.stamp};
    const uint64_t child = child_for(node, at.level, key, seen);
    const uint32_t stamp = lock_at(child, at.level - 1).begin_read();
    at.lost = !seen.validate();
    if (at.lost) return false;
    --at.level;
    at.step = {&node_at(child, at.level), stamp};
  }
  if (at.lost) return false;
  const auto* node = reinterpret_cast<const char*>(at.step.node);
  for (uint64_t line = 0; line < shape(at.level).bytes(); line += pm::kLineBytes)
    pm::prefetch(node + line);
  return Content::kOutOfPlace || at.level > 0;
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  if (!at.lost && at.level == 0) {
    const Outcome outcome = lookup_in(at.step, key, use);
    if (outcome != Outcome::kAgain) return outcome == Outcome::kDone;
  }
  return lookup(key, use);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_WBTREE_INSTANTIATE(prefix) \
  prefix template class Core<tree::Words>; \
  prefix template class Core<tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_WBTREE_INSTANTIATE(extern)

}  // namespace perdure::index::wbtree

#include "index/wbtree/scan.h"
