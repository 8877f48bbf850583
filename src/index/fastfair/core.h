// FAST&FAIR: a B+-tree whose sorted nodes are changed in place.
//
// The idea. FAST: an insert shifts the entries to its right by one place, word by word, in an order
// in which every single store leaves a legal node: at most one entry stands there twice, side by
// side, and readers know which of the two counts. Stores to one cache line become durable in order,
// so a line is flushed when the shift leaves it, and nothing is logged. FAIR: nodes of a level are
// linked. A split links the new node to the right, then cuts the old one, then tells the parent;
// who misses the parent's entry finds the node by going right. So each step alone is a legal tree,
// and any thread that comes by may take the next step of an interrupted one.
//
// The persist points, and what a crash leaves
//   insert         the words of a shift, from right to left, a flush and a fence at each line they
//                  leave; the store to the mark of the new entry commits; flush, fence. Before it: a
//                  node with at most one entry twice.
//   remove         the first store of a shift to the left commits: the entry is twice there and the
//                  wrong one no longer counts. Then word by word, as above.
//   update         one 8-byte store. Flush, fence.
//   byte strings   the record and the heap's intent, fence; the shift, whose commit decides for the
//                  intent, too, and the heap's bitmap, fence; the intent's end, fence.
//   split          the right node and the intents, fence; the sibling word, fence; the cut and the
//                  bitmap, fence; the intents' end, fence. Before the sibling word: nothing. Before
//                  the cut: the upper half is there twice, and what is not below the sibling's `low`
//                  does not count.
//   parent         an insert of the right node's entry. Before it, the node is found by going right.
//   new top        the node and the intent, fence; root.top and the bitmap, fence; intent's end, fence.
//   merge          the parent's entry of the right node is removed (as above). Its entries are copied
//                  to the left node's end, where they do not count, not being below the sibling's
//                  `low`; with the intents, fence. The left node's sibling word leads past the right
//                  node: from this store on the copies count. With the bitmap, fence; intents' end.
//
// Recovery: nothing at opening. A writer that comes to a node which nobody has made sure of since
// the pool was opened (Node::generation) locks it, closes a gap, and cuts what does not count.
// Writers do so for each node they pass, so a node is never changed while its left neighbour still
// holds copies of what was moved there: until then, readers find the same record in either.
//
// Concurrency. Stripe locks (index/stripes.h) in DRAM, by node. A writer holds the lock of one
// node. Who merges also holds those of a parent and two children, one such thread at a time; nobody
// else waits for a lock while holding one. Lookups and scans take none; they note a node's version,
// read, and read again if it has changed, waiting only while a writer stores and fences.
//
// Source: Hwang et al., "Endurable Transient Inconsistency in Byte-Addressable Persistent B+-Tree",
// FAST 2018; the variants: Woo et al., IEEE Access 2021. docs/structures/fast-fair.md says where
// this differs.
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "index/fastfair/layout.h"
#include "index/instantiate.h"
#include "index/records.h"
#include "index/stripes.h"
#include "index/tree/back.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::fastfair {

// 0: what the variant says.
struct Options {
  uint32_t node_bytes = 0;
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
  // For batches (index/batch.h).
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  template <typename Use>
  bool lookup_at(const Approach& at, const Key& key, Use use) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Calls visit(key, value) in ascending order from `from` on, `limit` times at most, until it says
  // no.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  static constexpr uint32_t kStripeBits = 14;
  static constexpr bool kWords = !Content::kOutOfPlace;

  // The lock of one node, which lives as long as the caller's guard.
  class Held {
   public:
    Held() = default;
    // Throws kIo once the medium has failed: a node in which another thread could not finish a
    // shift is not whole.
    Held(const Core& core, const Node& node) : lock_(&core.stripe_of(node)) {
      lock_->lock();
      if (core.pool_.failed()) [[unlikely]] {
        release();
        core.pool_.require_writable();
      }
    }
    Held(Held&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Held& operator=(Held&&) = delete;
    ~Held() { release(); }
    void release() {
      if (lock_ != nullptr) std::exchange(lock_, nullptr)->unlock();
    }

   private:
    StripeLock* lock_ = nullptr;
  };

  // The locks of several nodes, some of which may be the same.
  class HeldAlso;

  // Where a key is in a whole node, or would be.
  struct Position {
    uint32_t at = 0;     // of the first entry that is not below it
    uint32_t count = 0;  // of the node's entries
    bool found = false;  // the entry's key is equal
  };
  struct Locked {
    Held held;
    Node* node = nullptr;  // null: the tree has no such level
    Position position;
  };
  enum class Found : uint8_t { kHere, kNot, kPast };  // kPast: all entries are below the key
  enum class Merged : uint8_t { kDone, kNot, kAlone };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // ---- addresses
  // Throws kCorrupt if the offset leads outside the pool. Words that lead to nodes are changed by
  // one store, so a reader may judge one before he knows that it still counts.
  Node& node_at(uint64_t offset) const { return *pool_.follow<Node>(offset, node_bytes_); }
  // That a node is where its neighbour or parent leads: of the right level, and a sibling to the
  // right. So no way through the tree is endless. Throws kCorrupt.
  Node& require_child(const Node& parent, Node& child) const {
    if (child.level + 1U != parent.level) [[unlikely]]
      throw_damaged(child);
    return child;
  }
  Node& require_right(const Node& node, Node& sibling) const {
    if (sibling.level != node.level || !is_right(node, sibling)) [[unlikely]]
      throw_damaged(sibling);
    return sibling;
  }
  bool is_right(const Node& node, const Node& sibling) const {
    if constexpr (!kWords) {
      if (sibling.low == node.low) {
        return node.low_key == 0 || low_of(node).bytes < low_of(sibling).bytes;
      }
    }
    return sibling.low > node.low;
  }
  [[noreturn]] void throw_damaged(const Node& node) const;
  // For who comes to a node that was merged away and begins again: each time others have merged
  // another.
  static constexpr uint32_t kAttemptsMax = 1 << 14;
  void begin_again(uint32_t& attempts, const Node& obsolete) const {
    if (++attempts > kAttemptsMax) [[unlikely]]
      throw_damaged(obsolete);
  }
  Node& top() const { return node_at(pm::load_acquire(root_.top)); }
  StripeLock& stripe_of(const Node& node) const {
    return stripes_.of<kStripeBits>(pool_.offset_of(&node) / kNodeBytesMin);
  }
  // By a holder of the lock, before the first store that readers could see.
  void begin_change(const Node& node) const { stripe_of(node).begin_change(); }
  static Entry* entries_of(Node& node) {
    return reinterpret_cast<Entry*>(reinterpret_cast<char*>(&node) + Policy::kHeaderBytes);
  }
  static const Entry* entries_of(const Node& node) { return entries_of(const_cast<Node&>(node)); }
  // Null: there is none.
  Node* sibling_of(const Node& node) const {
    const uint64_t offset = sibling_offset(pm::load_acquire(node.sibling));
    return offset == 0 ? nullptr : &node_at(offset);
  }
  Node& leftmost_of(const Node& node) const { return node_at(pm::load_acquire(node.leftmost)); }
  static bool is_leaf(const Node& node) { return node.level == 0; }
  bool is_obsolete(const Node& node) const {
    return pm::load_acquire(node.obsolete) == obsolete_mark_;
  }
  void read_under(const tree::Ceiling<Content>& ceiling, tree::Floor<Content>& floor,
                  std::vector<tree::Slot>& out) const;
  void prefetch(const Node& node) const {
    for (uint64_t at = 0; at < node_bytes_; at += pm::kLineBytes) {
      pm::prefetch(reinterpret_cast<const char*>(&node) + at);
    }
  }

  // ---- keys; the caller has a guard
  std::string_view bytes_of(const Entry& entry, bool leaf) const {
    return records_.key(leaf ? entry.mark : pm::load_relaxed(node_at(entry.mark).low_key));
  }
  std::strong_ordering compare(const Entry& entry, bool leaf, const Key& key) const {
    if constexpr (kWords) {
      return (leaf ? entry.mark : entry.other) <=> key;
    } else {
      if (entry.other != key.prefix) return entry.other <=> key.prefix;
      return bytes_of(entry, leaf) <=> key.bytes;
    }
  }
  // Of a node that is somebody's sibling, hence not where the keys begin.
  Key low_of(const Node& node) const {
    if constexpr (kWords) {
      return pm::load_relaxed(node.low);
    } else {
      return Key(records_.key(pm::load_relaxed(node.low_key)));
    }
  }
  Key key_of(const Entry& entry, bool leaf) const {
    if constexpr (kWords) {
      return leaf ? entry.mark : entry.other;
    } else {
      return Key(bytes_of(entry, leaf));
    }
  }
  static bool is_below(const Key& key, const Node& sibling, const Core& core) {
    return core.compare({core.pool_.offset_of(&sibling), pm::load_relaxed(sibling.low)}, false,
                        key) > 0;
  }
  // The sibling, if it and not the node covers the key (or one further right does).
  Node* right_of(const Node& node, const Key& key) const {
    Node* sibling = sibling_of(node);
    return sibling == nullptr || is_below(key, *sibling, *this) ? nullptr : sibling;
  }

  // ---- search; of nodes that may be changing, or not whole since a crash
  // Calls visit(entry) for each that counts by its mark, until it says no. Whether it never did.
  template <typename Visit>
  bool each_entry(const Node& node, Visit visit) const;
  Found find_in(const Node& node, const Key& key, Entry& found) const;
  template <typename Use>
  bool lookup_from(Node* leaf, const Key& key, Use use) const;
  // The node's child, or its sibling, of those that `begins(entry)` the last one: an entry is a
  // node and its `low`.
  template <typename Begins>
  Node& step_from(const Node& node, Begins begins, bool& right) const;
  // The sibling, if it begins.
  template <typename Begins>
  Node* right_by(const Node& node, Begins begins) const {
    Node* sibling = sibling_of(node);
    if (sibling == nullptr) return nullptr;
    const Entry entry{pool_.offset_of(sibling), pm::load_relaxed(sibling->low)};
    return begins(entry) ? sibling : nullptr;
  }
  // From the top to the node of a level that covers the key, or one left of it. Calls pass(node)
  // before a node is read, moved(node) after going right to it. Null if the tree has no such level.
  template <typename Pass, typename Moved>
  Node* descend(const Key& key, uint32_t level, Pass pass, Moved moved) const {
    return descend_by([&](const Entry& entry) { return compare(entry, false, key) <= 0; }, level,
                      pass, moved);
  }
  template <typename Begins, typename Pass, typename Moved>
  Node* descend_by(Begins begins, uint32_t level, Pass pass, Moved moved) const;
  Node* leaf_for(const Key& key) const {
    return descend(key, 0, [](Node&) {}, [](Node&) {});
  }

  class LeavesAhead;

  // ---- node.cc: changes of one locked node
  Position position(const Node& node, const Key& key) const;
  uint32_t count_entries(const Node& node) const;
  void insert_entry(Node& node, const Position& position, Entry entry) const;
  void remove_entry(Node& node, uint32_t at, uint32_t count) const;
  void clear_from(Node& node, uint32_t at) const;
  void make_whole(Node& node);
  bool close_gap(Node& node);
  bool cut(Node& node);

  // ---- write.cc
  Locked lock_node(const Key& key, uint32_t level);
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  bool write_zero(const Condition& condition, Node& leaf, const Value& value);
  bool remove_zero(Node& leaf, const Condition& condition);
  uint64_t stored(Node& leaf, const Position& position) const;
  void put(Node& leaf, const Position& position, const Key& key, const Value& value);
  void replace(Node& leaf, const Position& position, const Key& key, const Value& value);
  void take_out(Node& leaf, const Position& position);

  // ---- split.cc
  Node& split(Node& node, uint32_t count);
  void adopt(Node& child);
  bool try_adopt(Node& child, const Node*& settled);
  // Throws kCorrupt unless its sibling word has one of the toggle bits that the heap's intents go
  // by.
  void require_toggle(const Node& node) const {
    const uint64_t toggle = toggle_of(node.sibling);
    if (toggle == 0 || toggle == kToggleMask) throw_damaged(node);
  }
  void grow(uint32_t level);

  // ---- merge.cc
  bool is_sparse(uint32_t count) const { return count * 2 < slots_; }
  void shrink(const Key& key, bool empty);
  Merged merge(const Key& key, uint32_t level, bool& sparse_parent);
  bool join(Node& parent, uint32_t at, uint32_t count);
  bool fit_together(const Node& left, const Node& right) const;
  void append_entries(Node& left, const Node& right) const;
  void will_unlink_right(pm::Heap::Txn& txn, const Node& left, const Node& right) const;
  void collapse();
  void retire(Node& node);

  // ---- inspect.cc
  struct Level;
  std::vector<Entry> counting_entries(const Node& node) const;
  template <typename Visit>
  void visit_level(uint32_t level, Visit visit) const;
  Node& first_of(uint32_t level) const;
  void check_node(const Node& node, const Level& below,
                  const std::function<void(const std::string&)>& fail) const;
  void check_wholeness(const Node& node, const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  uint64_t generation_;
  uint32_t obsolete_mark_;
  uint64_t node_bytes_;
  uint32_t slots_;
  mutable pm::EpochManager epochs_;
  Records records_;
  Stripes stripes_;
  std::mutex merge_mutex_;
  // Of who changes the top, until the change is durable and the heap knows: the intent of a new top
  // is decided by root.top, which must not go on to lead elsewhere before. After the merge mutex,
  // and before any lock of a node.
  std::mutex top_mutex_;
  std::atomic<uint64_t> recovered_operations_{0};
};

template <typename Policy, typename Content>
template <typename Visit>
bool Core<Policy, Content>::each_entry(const Node& node, Visit visit) const {
  const Entry* entries = entries_of(node);
  uint64_t mark = pm::load_acquire(entries[0].mark);
  for (uint32_t i = 0; i < slots_ && mark != 0; ++i) {
    // Before the next mark: if a shift to the right has changed this word, it will be seen there.
    const uint64_t other = pm::load_acquire(entries[i].other);
    const uint64_t next = i + 1 < slots_ ? pm::load_acquire(entries[i + 1].mark) : 0;
    if (mark != next && !visit(Entry{mark, other})) return false;
    mark = next;
  }
  return true;
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Found Core<Policy, Content>::find_in(const Node& node,
                                                                     const Key& key,
                                                                     Entry& found) const {
  std::strong_ordering order = std::strong_ordering::less;
  each_entry(node, [&](const Entry& entry) {
    order = compare(entry, true, key);
    if (order == 0) found = entry;
    return order < 0;
  });
  return order < 0 ? Found::kPast : order == 0 ? Found::kHere : Found::kNot;
}

template <typename Policy, typename Content>
template <typename Begins>
Node& Core<Policy, Content>::step_from(const Node& node, Begins begins, bool& right) const {
  uint64_t child = pm::load_acquire(node.leftmost);
  const bool past = each_entry(node, [&](const Entry& entry) {
    if (!begins(entry)) return false;
    child = entry.mark;
    return true;
  });
  Node* sibling = past ? right_by(node, begins) : nullptr;
  right = sibling != nullptr;
  return right ? *sibling : node_at(child);
}

template <typename Policy, typename Content>
template <typename Begins, typename Pass, typename Moved>
Node* Core<Policy, Content>::descend_by(Begins begins, uint32_t level, Pass pass,
                                        Moved moved) const {
  uint32_t attempts = 0;
  for (Node* node = &top();;) {
    if (node->level <= level) return node->level < level ? nullptr : node;
    pass(*node);
    const StripeLock& lock = stripe_of(*node);
    const uint32_t stamp = lock.begin_read();
    if (is_obsolete(*node)) {
      begin_again(attempts, *node);
      node = &top();
      continue;
    }
    bool right = false;
    Node& next = step_from(*node, begins, right);
    if (!lock.validate(stamp)) continue;
    prefetch(next);
    node = right ? &require_right(*node, next) : &require_child(*node, next);
    if (right) moved(next);
  }
}

template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  return lookup_from(leaf_for(key), key, use);
}

// From the key's leaf on, or one left of it.
template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup_from(Node* leaf, const Key& key, Use use) const {
  for (uint32_t attempts = 0;;) {
    const StripeLock& lock = stripe_of(*leaf);
    const uint32_t stamp = lock.begin_read();
    if (is_obsolete(*leaf)) {
      begin_again(attempts, *leaf);
      leaf = leaf_for(key);
      continue;
    }
    Entry entry{};
    Found found = find_in(*leaf, key, entry);
    Node* right = found == Found::kPast ? right_of(*leaf, key) : nullptr;
    if constexpr (kWords) {
      if (key == 0 && pm::load_acquire(leaf->has_zero) != 0) {
        found = Found::kHere;
        entry = {0, pm::load_acquire(leaf->leftmost)};
      }
    }
    if (!lock.validate(stamp)) continue;
    if (right != nullptr) {
      leaf = &require_right(*leaf, *right);
      continue;
    }
    if (found != Found::kHere) return false;
    if constexpr (kWords) {
      use(entry.other);
    } else {
      use(records_.value(entry.mark));
    }
    return true;
  }
}

template <typename Policy, typename Content>
struct Core<Policy, Content>::Approach {
  Node* node = nullptr;
  uint32_t above = kLevelsMax;  // the level of the one before
};

// A leaf that was the key's covers it still, or what is right of it does, unless it was merged
// away.
template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  return lookup_from(is_leaf(*at.node) ? at.node : leaf_for(key), key, use);
}

// The nodes, whole; of byte strings the record.
template <typename Policy, typename Content>
bool Core<Policy, Content>::approach(const Key& key, Approach& at) const {
  if (at.node == nullptr) {
    at.node = &top();
    prefetch(*at.node);
    return true;
  }
  const Node& node = *at.node;
  if (node.level >= at.above) return false;
  at.above = node.level;
  if (is_leaf(node)) {
    if constexpr (!kWords) {
      each_entry(node, [&](const Entry& entry) {
        if (entry.other == key.prefix) records_.prefetch(entry.mark);
        return entry.other < key.prefix;
      });
    }
    return false;
  }
  const StripeLock& lock = stripe_of(node);
  const uint32_t stamp = lock.begin_read();
  if (is_obsolete(node)) return false;
  bool right = false;
  const auto begins = [&](const Entry& entry) { return compare(entry, false, key) <= 0; };
  Node& next = step_from(node, begins, right);
  if (right || !lock.validate(stamp)) return false;
  prefetch(next);
  at.node = &next;
  return !kWords || node.level > 1;
}

// Asks memory for the leaves that a scan is about to come to, which lead to each other one by one:
// their parents know many at once. What has changed meanwhile costs a miss.
template <typename Policy, typename Content>
class Core<Policy, Content>::LeavesAhead {
 public:
  LeavesAhead(const Core& core, const Node* parent, const Node& leaf, const Key& from,
              uint64_t records)
      : core_(core), last_(core.pool_.offset_of(&leaf)), parent_(parent) {
    if (records <= core.slots_ / 2) parent_ = nullptr;  // one leaf, or two
    if (parent_ != nullptr) {
      fetch(records, [&](const Entry& entry) { return core.compare(entry, false, from) > 0; });
    }
  }
  void come_to(const Node& leaf, uint64_t records) {
    if (parent_ == nullptr || core_.pool_.offset_of(&leaf) != last_) return;
    parent_ = core_.sibling_of(*parent_);
    if (parent_ == nullptr) return;
    const Node& leftmost = core_.leftmost_of(*parent_);
    last_ = core_.pool_.offset_of(&leftmost);
    core_.prefetch(leftmost);
    fetch(records, [](const Entry&) { return true; });
  }

 private:
  // Those of the parent's children, but the leftmost, that the scan comes to.
  template <typename Counts>
  void fetch(uint64_t records, Counts counts) {
    uint64_t leaves = records / (core_.slots_ / 2) + 1;
    core_.each_entry(*parent_, [&](const Entry& entry) {
      if (!counts(entry)) return true;
      last_ = entry.mark;
      if (leaves > 0) core_.prefetch(core_.node_at(entry.mark));
      leaves -= leaves > 0 ? 1 : 0;
      return true;
    });
    if (const Node* next = core_.sibling_of(*parent_)) core_.prefetch(*next);
  }

  const Core& core_;
  uint64_t last_;       // of the parent's children
  const Node* parent_;  // null: there is none
};

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  const pm::EpochManager::Guard guard(epochs_);
  std::vector<Entry> copy;
  Key after = from;
  bool told = false;  // `after` itself has been
  uint32_t attempts = 0;
  const Node* parent = nullptr;
  Node* leaf = descend(from, 0, [&](Node& above) { parent = &above; }, [](Node&) {});
  LeavesAhead ahead(*this, parent, *leaf, from, limit);
  while (leaf != nullptr) {
    ahead.come_to(*leaf, limit);
    const StripeLock& lock = stripe_of(*leaf);
    const uint32_t stamp = lock.begin_read();
    if (is_obsolete(*leaf)) {
      begin_again(attempts, *leaf);
      leaf = leaf_for(after);
      continue;
    }
    copy.clear();
    if constexpr (kWords) {
      if (after == 0 && !told && pm::load_acquire(leaf->has_zero) != 0) {
        copy.push_back({0, pm::load_acquire(leaf->leftmost)});
      }
    }
    each_entry(*leaf, [&](const Entry& entry) {
      const std::strong_ordering order = compare(entry, true, after);
      if (order > 0 || (order == 0 && !told)) copy.push_back(entry);
      return copy.size() < limit;
    });
    Node* next = sibling_of(*leaf);
    if (!lock.validate(stamp)) continue;
    if (next != nullptr) prefetch(require_right(*leaf, *next));
    for (const Entry& entry : copy) {
      if (limit-- == 0) return;
      after = key_of(entry, true);
      told = true;
      if constexpr (kWords) {
        if (!visit(entry.mark, entry.other)) return;
      } else {
        if (!visit(after.bytes, records_.value(entry.mark))) return;
      }
    }
    if (limit == 0) return;
    leaf = next;
  }
}

// A node's `low` never changes, and merges make nodes grow to the right only: while a leaf that was
// not taken away is read, all keys from its `low` to that of its sibling are its own.
template <typename Policy, typename Content>
void Core<Policy, Content>::read_under(const tree::Ceiling<Content>& ceiling,
                                       tree::Floor<Content>& floor,
                                       std::vector<tree::Slot>& out) const {
  const auto begins = [&](const Entry& entry) {
    return ceiling.admits([&](const Key& key) { return compare(entry, false, key); });
  };
  const auto find_leaf = [&] { return descend_by(begins, 0, [](Node&) {}, [](Node&) {}); };
  uint32_t attempts = 0;
  for (Node* leaf = find_leaf();;) {
    const StripeLock& lock = stripe_of(*leaf);
    const uint32_t stamp = lock.begin_read();
    if (is_obsolete(*leaf)) {
      begin_again(attempts, *leaf);
      leaf = find_leaf();
      continue;
    }
    out.clear();
    if constexpr (kWords) {
      if (pm::load_acquire(leaf->has_zero) != 0)
        out.push_back({0, pm::load_acquire(leaf->leftmost)});
    }
    each_entry(*leaf, [&](const Entry& entry) {
      if constexpr (kWords) {
        out.push_back({entry.mark, entry.other});
      } else {
        out.push_back({entry.other, entry.mark});
      }
      return true;
    });
    Node* right = right_by(*leaf, begins);
    const bool lowest = pm::load_relaxed(kWords ? leaf->low : leaf->low_key) == 0;
    if (!lock.validate(stamp)) continue;
    if (right != nullptr) {
      leaf = &require_right(*leaf, *right);
      continue;
    }
    if (lowest) {
      floor.set_lowest();
    } else {
      floor.set(low_of(*leaf));
    }
    return;
  }
}

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  tree::scan_back<Content>(
      {epochs_, records_, pool_, name_}, from, limit,
      [&](const auto& ceiling, auto& floor, std::vector<tree::Slot>& out) {
        read_under(ceiling, floor, out);
      },
      visit);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_FASTFAIR_INSTANTIATE(prefix)          \
  prefix template class Core<Reference, tree::Words>; \
  prefix template class Core<Reference, tree::Bytes>; \
  prefix template class Core<Trimmed, tree::Words>;   \
  prefix template class Core<Trimmed, tree::Bytes>;   \
  prefix template class Core<Sized, tree::Words>;     \
  prefix template class Core<Sized, tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_FASTFAIR_INSTANTIATE(extern)

}  // namespace perdure::index::fastfair
