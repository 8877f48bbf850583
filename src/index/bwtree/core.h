// P-BwTree: a Bw-tree in persistent memory.
//
// The idea. Nodes are known by number, and a mapping table says where each one is. A node is never
// changed: an insert, update or removal writes a delta, a note of what is different, and makes the
// node's entry in the mapping table lead to it by one compare-and-swap. A leaf with as many deltas
// as it has places for is consolidated: a new block holds what the old one and its deltas said, and
// the entry leads to that. Nobody waits for anybody.
//
// A delta's place is in the block of the leaf, so that it needs no allocation, and a leaf's deltas
// lie side by side. The entry holds the block's offset and the place of the newest delta in one
// word: the heap sees by it which block counts (pm::Link::kTagged), whatever deltas come.
//
// Persist points, F is a fence. An entry is dirty from the swap until it is known to be durable.
//   change of words   the delta, F, the entry (dirty), F, no longer dirty
//   byte strings      the same, and the record that the delta leads to with its heap intent before, and behind the
//                     entry's fence a bit of the block, by which the intent says that the record counts
//   consolidation     the new block and the intents, F, the heap's bitmap, F, the entry (dirty), F, the bitmap, F
//   split             the same, and the entry of the new node at the right, which is `unborn` until the left node's
//                     new block is durable
// Readers pass over a dirty entry's delta, as it was before; a dirty entry without deltas says what
// the one before it said. Writers make it durable, and complete it, before they build on it; and
// give birth to an unborn node before they write there, and before they replace the block that led
// to it first: no durable state depends on one that is not.
//
// Shape. Nodes of a level are linked to the right, and each knows the end of its range, so that a
// split is complete when the left node ends where the right one begins. That the node above learns
// of it is a matter of speed: who has to step to the right sees to it. The root keeps its number:
// it is replaced by a node over two new ones. A sparse node goes into its left neighbour: it is
// frozen (a tag, so that nobody changes it any more), the neighbour is replaced by a node with both
// contents, which anybody may do who wants to write to the frozen one; then the node above forgets
// it, and its number is free when no reader can have it any more. Only one node goes at a time, and
// meanwhile no inner node is split, which is put off: a mutex sees to that, for which nobody waits.
// Inner nodes have no deltas: their changes, one for each split of what is below, replace them.
//
// What a crash leaves, and recovery. The mapping table is read, 8 bytes for each node. A dirty
// entry counts, unless its delta leads to a record whose bit is not set, which the heap has freed:
// then it leads to what was before. An unborn node is born if the block at which it began is
// linked, and else free. A frozen node is thawed if its neighbour has not taken it in, and else it
// goes when the next one would, or before an inner node is split. Places of deltas that were taken
// and not linked are free: the count of places belongs to one generation of the pool.
//
// Sources: Levandoski et al., "The Bw-Tree", ICDE 2013; Wang et al., "Building a Bw-Tree Takes More
// Than Just Buzz Words", SIGMOD 2018 (deltas in the node's block); Lee et al., "RECIPE", SOSP 2019
// (the conversion); docs/structures/p-bwtree.md says where this differs.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/bwtree/image.h"
#include "index/bwtree/layout.h"
#include "index/instantiate.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/structure.h"
#include "index/tree/back.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::bwtree {

// 0: the default.
struct Options {
  uint32_t node_keys = 0;
  uint32_t chain = 0;
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
  ~Core();

  bool write(const Condition& condition, const Key& key, const Value& value);
  bool remove(const Key& key, const Condition& condition = Verb::kUpdate);
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  bool lookup(const Key& key, Use use) const;
  // For batches (index/batch.h).
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Leaf by leaf: a leaf's records are those of one instant.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  static constexpr bool kWords = !Content::kOutOfPlace;
  static constexpr ptrdiff_t kRecordsAhead = 8;  // that a scan of byte strings asks memory for
  // Each of which another thread's success must have undone.
  static constexpr uint32_t kAttemptsMax = 1 << 20;

  // For blocks that others have replaced, in a pool that is full.
  static constexpr std::chrono::seconds kWaitMax{5};

  enum class Outcome : uint8_t { kDone, kAgain, kFull };

  // A node as its entry said at one instant.
  struct Seen {
    uint64_t word = 0;
    uint32_t id = 0;
    uint32_t head = 0;  // the newest delta that counts
    const Node* node = nullptr;

    uint64_t block() const { return word & kBlockMask; }
    bool firm() const { return (word & (kDirty | kUnborn)) == 0; }
    bool frozen() const { return (word & kFrozen) != 0; }
  };
  // What a node holds. Of inner nodes the values are ids, and byte strings have texts.
  struct Parts {
    std::vector<Slot> items;
    std::vector<std::string_view> texts;
    std::vector<uint64_t> superseded;  // records

    void clear() { items.clear(), texts.clear(), superseded.clear(); }
    std::string_view text(size_t i) const { return texts.empty() ? std::string_view() : texts[i]; }
  };
  struct Found {
    bool present = false;
    uint64_t value = 0;  // or the record
  };
  // What a writer does besides finding its way: whatever others left unfinished; and telling the
  // nodes above.
  enum class Mode : uint8_t { kRead, kHelp, kWrite };

  Core(pm::PoolImpl& pool, Root& root, std::string name);
  void load_chunks();
  void recover();
  void free_orphan(uint32_t id);
  [[noreturn]] void throw_damaged(uint64_t at, const char* what) const;

  // ---- the mapping table (core.cc)
  static uint32_t chunk_of(uint32_t id) {
    return static_cast<uint32_t>(std::bit_width(id / kFirstChunkEntries + 1)) - 1;
  }
  static uint32_t first_of(uint32_t chunk) { return kFirstChunkEntries * ((1U << chunk) - 1); }
  bool has_entry(uint64_t id) const {
    return id != 0 && id < entries_.load(std::memory_order_acquire);
  }
  // Of an id that has one.
  uint64_t& entry(uint32_t id) const {
    const uint32_t chunk = chunk_of(id);
    return chunks_[chunk].load(std::memory_order_acquire)[id - first_of(chunk)];
  }
  uint64_t& entry_at(uint64_t id) const {
    if (!has_entry(id)) [[unlikely]]
      throw_damaged(id, "is no number of a node");
    return entry(static_cast<uint32_t>(id));
  }
  uint32_t claim_id();
  void add_chunk();
  // Ids that nobody else uses; what is not kept is given back.
  class Claims;

  static bool swap(uint64_t& word, uint64_t expected, uint64_t desired) {
    pm::may_pause();
    const bool done =
        std::atomic_ref(word).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
    pm::may_pause();
    return done;
  }

  // ---- reading (core.cc)
  const Node* node_at(uint64_t word, uint32_t id) const {
    const uint64_t offset = word & kBlockMask;
    const Node* node = pool_.follow<Node>(offset);
    if (!is_node(*node, offset, word, id)) [[unlikely]]
      throw_damaged(offset, "is not the node that its number is for");
    return node;
  }
  bool is_node(const Node& node, uint64_t offset, uint64_t word, uint32_t id) const {
    return node.id == id && node.bytes % pm::kLineBytes == 0 &&
           pool_.leads_inside(offset, node.bytes) && node.slots <= kChainMax &&
           (word & kHeadMask) <= node.slots && node.level < kLevelsMax &&
           uint64_t{node.count} * sizeof(Slot) + node.slots * sizeof(Delta) + sizeof(Node) <=
               node.bytes &&
           (node.level == 0 || node.count > 0);
  }
  // False if the node has gone. Needs a guard, as all that follows.
  bool see(uint32_t id, Seen& seen) const {
    seen.word = pm::load_acquire(entry_at(id));
    return see_what_it_says(id, seen);
  }
  // For who comes by the number, and not by a node that leads there. An unborn node may belong to a
  // split that another thread overtakes: its block is then given back at once, and no epoch keeps
  // it. When the pool has failed, unborn nodes stay, and so do their blocks.
  bool see_unless_unborn(uint32_t id, Seen& seen) const {
    const bool may_go = !pool_.failed();
    seen.word = pm::load_acquire(entry_at(id));
    return !(may_go && (seen.word & kUnborn) != 0) && see_what_it_says(id, seen);
  }
  bool see_what_it_says(uint32_t id, Seen& seen) const {
    if (seen.block() == 0) return false;
    seen.id = id;
    seen.node = node_at(seen.word, id);
    seen.head = static_cast<uint32_t>(seen.word & kHeadMask);
    // What may not be durable yet has not happened for readers; writers complete it first.
    if ((seen.word & kDirty) != 0 && seen.head != 0)
      seen.head = delta_of(*seen.node, seen.head).next;
    return true;
  }
  const Delta& delta_of(const Node& node, uint32_t place) const {
    const Delta& delta = node.delta(place);
    if (delta.next > node.slots || delta.length > node.slots) [[unlikely]]
      throw_damaged(pool_.offset_of(&node), "has a change that makes no sense");
    return delta;
  }
  // Calls visit(delta, place) from the newest on, until it returns false.
  template <typename Visit>
  void walk(const Node& node, uint32_t head, Visit visit) const;
  std::string_view text_in(const Node& node, Text text) const {
    if (uint64_t{text.offset()} + text.bytes() > node.bytes) [[unlikely]]
      throw_damaged(pool_.offset_of(&node), "has a key outside of it");
    return node.text(text);
  }
  std::strong_ordering order(const Node& node, uint64_t word, Text text, const Key& key) const {
    if constexpr (kWords) {
      return (void)node, (void)text, word <=> key;
    } else {
      return word != key.prefix ? word <=> key.prefix : text_in(node, text) <=> key.bytes;
    }
  }
  std::strong_ordering order(const Slot& a, const Slot& b) const {
    if constexpr (!kWords) {
      if (a.key == b.key) return records_.key(a.value) <=> records_.key(b.value);
    }
    return a.key <=> b.key;
  }
  // Whether a stored key is at or below the one that is sought.
  auto up_to(const Key& key) const {
    return [this, &key](const Node& node, uint64_t word, Text text) {
      return order(node, word, text, key) <= 0;
    };
  }
  Key key_of(const Bound& bound) const {
    if constexpr (kWords) {
      return bound.word;
    } else {
      const Key key(bound.text);
      if (key.prefix != bound.word) [[unlikely]]
        throw_damaged(bound.word, "begins another key than the one that is stored for it");
      return key;
    }
  }
  Bound low_of(const Node& node) const { return {node.low, text_in(node, node.low_text)}; }
  Range range_of(const Node& node) const;
  template <typename Below>
  uint32_t child_index(const Node& node, Below below) const;
  // The node of the level in whose range the sought key is; one of a lower level if the tree is
  // lower.
  template <typename Below>
  Seen descend(Below below, uint32_t level, Mode mode) const;
  template <typename Below>
  bool try_descend(Below below, uint32_t level, Mode mode, Seen& seen) const;
  Found find(const Seen& at, const Key& key) const;
  static constexpr uint64_t kFetchedLines = 2;  // of each node that a batch comes to: its header
  // What a leaf holds, in the order of the keys.
  void collect(const Seen& at, Parts& out) const;
  uint32_t live_of(const Seen& at) const {
    return at.head != 0 ? delta_of(*at.node, at.head).live : at.node->count;
  }

  // ---- what others left unfinished (core.cc)
  void complete(const Seen& seen) const;
  void complete_fresh(const Seen& at) const;

  // While one lives the thread is in a caller's function, and its guard keeps what it removes
  // meanwhile.
  class Visiting {
   public:
    explicit Visiting(const Core& core) : core_(core), outer_(innermost) { innermost = this; }
    ~Visiting() { innermost = outer_; }
    Visiting(const Visiting&) = delete;
    Visiting& operator=(const Visiting&) = delete;

    static bool is_in(const Core& core) {
      const Visiting* one = innermost;
      while (one != nullptr && &one->core_ != &core) one = one->outer_;
      return one != nullptr;
    }

   private:
    static constinit inline thread_local const Visiting* innermost = nullptr;

    const Core& core_;
    const Visiting* const outer_;
  };

  // What a scan reads of a leaf, asked for at once.
  void fetch_leaf(const Seen& leaf) const;
  // The same of a node that it comes to soon, of which it needs so many items. A hint: of an entry
  // of another moment.
  static constexpr uint64_t kItemsAhead = 64;
  void fetch_node(uint32_t id, uint64_t items) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  bool remove_once(const Condition& condition, const Key& key, bool& sparse);
  uint32_t reserve(const Seen& at) const;
  Outcome append(const Seen& at, DeltaKind kind, const Key& key, const Value& value, Found found);
  bool link(const Seen& at, uint32_t place) const;
  void require_going(uint32_t attempts) const;
  void reclaim();
  void release_retired();

  // ---- shape.cc
  void take_apart(const Seen& at, Parts& out) const;
  Bound separator(uint32_t level, const Parts& parts, size_t at) const;
  bool is_too_large(uint32_t level, const Parts& parts) const;
  enum class Splits : uint8_t { kNever, kIfLarge };
  bool replace(const Seen& at, const Parts& parts, const Range& range, Splits splits, bool reclaim,
               bool has_shape_lock);
  void consolidate(const Seen& at, bool reclaim);
  void post(const Bound& low, uint32_t id, uint32_t level, bool has_shape_lock) const;
  bool post_once(const Bound& low, uint32_t id, uint32_t level, bool has_shape_lock);
  bool absorber_of(const Seen& gone, Seen& absorber) const;
  void absorb(const Seen& gone);
  void shrink(const Key& key);
  void merge_at(const Key& key, uint32_t level);
  void let_in(const Seen& into, const Seen& gone);
  void finish_pending();
  void forget_child(const Seen& gone);
  void drop(const Seen& gone);
  void compact();

  // ---- inspect.cc
  using Report = std::function<void(const std::string&)>;
  void check_all(const Report& fail) const;
  void check_node(const Seen& at, const Report& fail) const;
  // Calls visit(seen) for all nodes, in the order of their numbers.
  template <typename Visit>
  void for_each_node(Visit visit) const;
  // Whether a frozen node holds nothing any more.
  bool is_absorbed(const Seen& at) const {
    Seen absorber;
    return at.frozen() && !absorber_of(at, absorber);
  }

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  const uint32_t node_keys_;
  const uint32_t chain_;
  std::array<std::atomic<uint64_t*>, kChunks> chunks_{};
  std::atomic<uint64_t> entries_{0};
  std::atomic<uint64_t> nodes_{0};  // ids in use
  std::atomic<uint32_t> cursor_{kRootId};
  std::mutex table_mutex_;               // the table grows
  std::mutex shape_mutex_;               // a node goes, or an inner node is split
  std::atomic<uint32_t> pending_{0};     // the frozen node
  std::atomic<bool> has_garbage_{true};  // leaves may hold superseded records
  mutable pm::EpochManager epochs_;
  Records records_;
  RetiredBlocks retired_;
  uint64_t recovered_operations_ = 0;
};

template <typename Content>
template <typename Visit>
void Core<Content>::walk(const Node& node, uint32_t head, Visit visit) const {
  uint32_t steps = 0;
  for (uint32_t place = head; place != 0;) {
    if (++steps > node.slots) [[unlikely]]
      throw_damaged(pool_.offset_of(&node), "has changes that lead in a circle");
    const Delta& delta = delta_of(node, place);
    if (!visit(delta, place)) return;
    place = delta.next;
  }
}

template <typename Content>
template <typename Below>
uint32_t Core<Content>::child_index(const Node& node, Below below) const {
  const Slot* items = node.items();
  uint32_t low = 0;  // counts as below, whatever its key
  for (uint32_t count = node.count; count > 1;) {
    const uint32_t half = count / 2;
    if (below(node, items[low + half].key, text_of(items[low + half]))) low += half;
    count -= half;
  }
  return low;
}

template <typename Content>
template <typename Below>
bool Core<Content>::try_descend(Below below, uint32_t level, Mode mode, Seen& seen) const {
  constexpr uint32_t kAny = ~uint32_t{0};
  uint32_t id = kRootId;
  uint32_t expected = kAny;  // level
  bool from_left = false;
  for (uint32_t moves = 0;; ++moves) {
    if (!see(id, seen)) return false;
    if (moves > kAttemptsMax) throw_damaged(id, "is on a way that does not end");
    if (mode != Mode::kRead && !seen.firm()) {
      pool_.require_writable();
      complete(seen);
      continue;
    }
    const Node& node = *seen.node;
    if ((expected != kAny && node.level != expected) || !below(node, node.low, node.low_text))
        [[unlikely]]
      throw_damaged(seen.block(), "is not the node that belongs there");
    if (seen.frozen()) {
      Seen absorber;
      if (!absorber_of(seen, absorber)) {
        id = pm::load_acquire(node.into);
        expected = kAny;
        from_left = false;
        continue;
      }
      if (mode != Mode::kRead) {
        const_cast<Core*>(this)->absorb(seen);
        return false;
      }
    }
    if (from_left && mode == Mode::kWrite) post(low_of(node), id, node.level + 1U, false);
    from_left = node.right != 0 && below(node, node.high, node.high_text);
    if (!from_left && node.level <= level) return true;
    expected = from_left ? node.level : node.level - 1U;
    id = from_left ? node.right : child_of(node.items()[child_index(node, below)]);
  }
}

template <typename Content>
template <typename Below>
typename Core<Content>::Seen Core<Content>::descend(Below below, uint32_t level, Mode mode) const {
  Seen seen;
  for (uint32_t attempts = 0; !try_descend(below, level, mode, seen); ++attempts) {
    if (mode != Mode::kRead) pool_.require_writable();
    if (attempts > kAttemptsMax) throw_damaged(kRootId, "leads to nodes that have gone");
  }
  return seen;
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  const Found found = find(descend(up_to(key), 0, Mode::kRead), key);
  if (!found.present) return false;
  const Visiting visiting(*this);
  if constexpr (kWords) {
    use(found.value);
  } else {
    use(records_.value(found.value));
  }
  return true;
}

template <typename Content>
struct Core<Content>::Approach {
  Seen seen{.id = kRootId};
  bool entered = false;  // the node's entry was read, and not yet the node
  uint32_t levels = 0;
};

// The entries and headers of the nodes; of the leaf where a search looks first.
template <typename Content>
bool Core<Content>::approach(const Key& key, Approach& at) const {
  Seen& seen = at.seen;
  at.entered = !at.entered;
  if (at.entered) {
    seen.word = pm::load_acquire(entry_at(seen.id));
    const char* block = pool_.at<char>(seen.block());
    for (uint64_t line = 0; line < kFetchedLines; ++line)
      pm::prefetch(block + line * pm::kLineBytes);
    return true;
  }
  if (!see_what_it_says(seen.id, seen) || ++at.levels == kLevelsMax) return false;
  const Node& node = *seen.node;
  if (node.right != 0 && up_to(key)(node, node.high, node.high_text)) return false;
  if (node.level == 0) {
    if (seen.head != 0) pm::prefetch(&node.delta(seen.head));
    for (uint32_t part = 1; part < 8; ++part)
      pm::prefetch(node.items() + uint64_t{node.count} * part / 8);
    return false;
  }
  seen.id = child_of(node.items()[child_index(node, up_to(key))]);
  pm::prefetch(&entry_at(seen.id));
  return true;
}

template <typename Content>
void Core<Content>::fetch_leaf(const Seen& leaf) const {
  const Node& node = *leaf.node;
  if (node.right != 0) pm::prefetch(&entry_at(node.right));
  // Places are taken in order, so the newest deltas stand side by side.
  for (uint32_t place = leaf.head; place > 0 && place + chain_ > leaf.head; --place)
    pm::prefetch(&node.delta(place));
  const char* const items = reinterpret_cast<const char*>(node.items());
  for (uint64_t at = 0; at < node.count * sizeof(Slot); at += pm::kLineBytes)
    pm::prefetch(items + at);
}

template <typename Content>
void Core<Content>::fetch_node(uint32_t id, uint64_t items) const {
  if (!has_entry(id)) return;
  const uint64_t block = pm::load_acquire(entry_at(id)) & kBlockMask;
  const uint64_t bytes = sizeof(Node) + std::min<uint64_t>(items, kItemsAhead) * sizeof(Slot);
  if (!pool_.leads_inside(block, bytes)) return;
  for (uint64_t at = 0; at < bytes; at += pm::kLineBytes) pm::prefetch(pool_.at<char>(block) + at);
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  tree::KeptKey<Content> at;
  at.keep(from);
  const Visiting visiting(*this);
  Parts parts;
  for (;;) {
    const pm::EpochManager::Guard guard(epochs_);
    const Seen leaf = descend(up_to(at.get()), 0, Mode::kRead);
    fetch_leaf(leaf);
    parts.clear();
    collect(leaf, parts);
    auto slot = std::partition_point(parts.items.begin(), parts.items.end(), [&](const Slot& one) {
      return tree::compare<Content>(records_, one, at.get()) < 0;
    });
    const auto here = static_cast<uint64_t>(parts.items.end() - slot);
    if (here < limit) fetch_node(leaf.node->right, limit - here);
    for (; slot != parts.items.end(); ++slot) {
      bool go_on = true;
      if constexpr (kWords) {
        go_on = visit(slot->key, slot->value);
      } else {
        // Memory fetches those that are visited soon.
        if (parts.items.end() - slot > kRecordsAhead) records_.prefetch(slot[kRecordsAhead].value);
        const std::string_view key = records_.key(slot->value);
        if (tree::prefix_of(key) != slot->key) [[unlikely]]
          throw_damaged(slot->value, "has another key than its place says");
        go_on = visit(key, records_.value(slot->value));
      }
      if (!go_on || --limit == 0) return;
    }
    if (leaf.node->right == 0) return;
    at.keep(key_of({leaf.node->high, text_in(*leaf.node, leaf.node->high_text)}));
  }
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  const Visiting visiting(*this);
  Parts parts;
  tree::scan_back<Content>(
      {epochs_, records_, pool_, name_}, from, limit,
      [&](const tree::Ceiling<Content>& ceiling, tree::Floor<Content>& floor,
          std::vector<Slot>& slots) {
        const auto below = [&](const Node& node, uint64_t word, Text text) {
          return ceiling.admits([&](const Key& key) { return order(node, word, text, key); });
        };
        const Seen leaf = descend(below, 0, Mode::kRead);
        parts.clear();
        collect(leaf, parts);
        slots = parts.items;
        const Key low = key_of(low_of(*leaf.node));
        if (tree::compare_keys(low, Content::lowest_key()) == 0) {
          floor.set_lowest();
        } else {
          floor.set(low);
        }
      },
      visit);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_BWTREE_INSTANTIATE(prefix) \
  prefix template class Core<Words>;       \
  prefix template class Core<Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_BWTREE_INSTANTIATE(extern)

}  // namespace perdure::index::bwtree
