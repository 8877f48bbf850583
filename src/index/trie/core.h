// Radix trees in PM: WORT, WOART, and ART with the node types that its PM versions share.
//
// The idea. A radix tree has no order to keep and no key in its nodes: a child is linked by one
// 8-byte store, so every change, of a record or of the tree's shape, is made beside the tree and
// committed by one store. Nothing is logged, and nothing is repaired. What differs is what a node
// looks like (Shape in index/trie/shapes.h). Path compression needs no second store either: see
// index/trie/layout.h.
//
// The persist points; F is a fence
//   insert        leaf, the heap's intent, and what leads to the slot (a key, an index entry): F; the slot,
//                 which commits, and the heap's bitmap: F; the intent's end: F. WOART: the slot first, then
//                 what leads to it, which commits (index/trie/woart.h).
//   branch        (where a leaf was, or inside of a compressed path) a node with the old child and the new
//                 leaf, intents: F; the word that led to the old child, bitmap: F; intents' end: F.
//   growth        a larger copy of the node with the new leaf, intents: F; the parent's word and bitmap: F;
//                 intents' end: F.
//   update        words: the value: F. Byte strings: record and intents: F; slot and bitmap: F; end: F.
//   remove        intent: F; the slot and bitmap: F; intent's end: F.
//   shrinking     of a node with one child, or too large a one: as growth, by its only child or a smaller copy.
// A crash before the commit leaves the tree as it was: the intents find that the word leads
// elsewhere, and free what is new. Keys and index entries may lead to slots that are 0: that is no
// child. A crash after it leaves the tree as it is to be; the intents free what went. A crash
// between a removal and the shrinking leaves a node with one child or none, which is legal, and so
// may two removals at once; a later removal below it takes it away.
//
// Recovery: nothing; the heap's intents only.
//
// Concurrency. Stripe locks (index/stripes.h) in DRAM, by node; of p-art, the reference, lock words
// in the nodes (index/node_lock.h), as published, and in the root block. A writer finds its way
// without locks, locks the node with the slot, and its parent if the node is to be replaced, both
// at once and in the order of the locks; then looks again. A replaced node is marked obsolete.
// Lookups take no lock: after each word they look whether the node changes, and if one did they go
// again, and wait at each, so that what they read is durable, and the leaf has the whole key. A
// replaced node stays as it was when it was replaced, which was after a reader in it began. Scans
// read some children of a node at a time, under its version, and read them again if that is another
// one when they come to the next child: meanwhile memory fetches what the children lead to.
//
// Sources: Lee et al., "WORT: Write Optimal Radix Tree for Persistent Memory Storage Systems", FAST
// 2017; Leis et al., "The Adaptive Radix Tree", ICDE 2013, and "The ART of Practical
// Synchronization", DaMoN 2016; Lee et al., "RECIPE", SOSP 2019. docs/structures/p-art.md says
// where this differs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/instantiate.h"
#include "index/node_lock.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/stripes.h"
#include "index/tree/content.h"
#include "index/trie/art_cow.h"
#include "index/trie/layout.h"
#include "index/trie/shapes.h"
#include "index/trie/symbols.h"
#include "index/trie/woart.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::trie {

struct Options {};

// Policy: kName, and the Shape of nodes.
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
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  [[gnu::always_inline]] bool lookup(const Key& key, Use use) const;
  // For batches (index/batch.h).
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  template <typename Use>
  bool lookup_at(const Approach& at, const Key& key, Use use) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Calls visit(key, value) in ascending order from `from` on, `limit` times at most, until it says
  // no.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const {
    walk<false>(&from, limit, visit);
  }
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const {
    walk<true>(from, limit, visit);
  }
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  using Shape = typename Policy::Shape;
  static constexpr bool kWords = !Content::kOutOfPlace;
  using Symbol = Symbols<kWords, Shape::kBits, Shape::kWindowBytes>;
  using Text = typename Symbol::Text;

  static constexpr uint32_t kStripeBits = 14;
  static constexpr bool kLocksInNodes = requires(Node& node) { Shape::lock_of(node); };
  using Lock = std::conditional_t<kLocksInNodes, LockInNode, LockInDram>;
  // What stands for `end` where a symbol is asked for, and where places in a node are counted:
  // `end` comes before all symbols.
  static constexpr uint32_t kEnd = ~uint32_t{0};
  static constexpr uint32_t symbol_of_position(uint32_t position) { return position - 1; }

  // A node and the word that leads to it; without a node the root block, whose one slot is `top`.
  struct Owner {
    Node* node = nullptr;
    uint64_t word = 0;
  };
  // A node without children, or on the way to one: what a crash may leave of a removal, or two
  // removals at once.
  struct Hollow {
    Owner parent;
    uint32_t symbol = 0;  // in the parent
    Owner node;
  };
  // Where a key is, or would be.
  struct Spot {
    Owner parent;
    uint32_t parent_symbol = 0;
    Owner node;  // has the slot
    uint32_t symbol = 0;
    uint64_t word = 0;     // in the slot: 0, or a leaf, or a node with other keys
    uint32_t differs = 0;  // the first symbol in which these are not the key
    uint32_t theirs = 0;   // which they have there
    bool same = false;     // the leaf is the key's
    bool hollow = false;   // `gap` is to be taken away first
    Hollow gap;
  };
  enum class Outcome : uint8_t { kDone, kNot, kAgain, kFull };

  // The locks of one or two nodes, which live as long as the caller's guard.
  class Held {
   public:
    // Throws kIo once the medium has failed: words that another thread could not make durable may
    // be in the tree.
    Held(const Core& core, const Owner& one) : first_(core.lock_of(one)) {
      first_.lock();
      require_good(core);
    }
    Held(const Core& core, const Owner& one, const Owner& other)
        : first_(core.lock_of(one)), second_(core.lock_of(other)) {
      if (first_ == second_) second_ = {};
      if (second_ != Lock() && second_ < first_) std::swap(first_, second_);
      first_.lock();
      if (second_ != Lock()) second_.lock();
      require_good(core);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { release(); }
    void release() {
      if (second_ != Lock()) std::exchange(second_, {}).unlock();
      if (first_ != Lock()) std::exchange(first_, {}).unlock();
    }

   private:
    void require_good(const Core& core) {
      if (!core.pool_.failed()) [[likely]]
        return;
      release();
      core.pool_.require_writable();
    }
    Lock first_;
    Lock second_;
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // ---- addresses
  // The node that a word leads to, where `depth` symbols have been decided. Throws kCorrupt unless
  // it is inside the pool and further down.
  Node& enter(uint64_t word, uint32_t depth) const {
    const uint64_t bytes = Shape::bytes_of(tag_of(word));
    if (bytes == 0 || branch_of(word) < depth) [[unlikely]]
      throw_damaged(word);
    return *pool_.follow<Node>(offset_of(word), bytes);
  }
  const Leaf& leaf_at(uint64_t word) const { return *pool_.follow<Leaf>(offset_of(word)); }
  [[noreturn]] void throw_damaged(uint64_t word) const;
  StripeLock& stripe_at(const Stripes& stripes, uint64_t offset) const {
    return stripes.of<kStripeBits>(offset);
  }
  Lock lock_of(const Owner& owner) const {
    if (owner.node != nullptr) return lock_of_node(owner);
    if constexpr (kLocksInNodes) {
      return Lock(root_.lock, pool_.generation());
    } else {
      return Lock(root_stripe_);
    }
  }
  Lock lock_of_node(const Owner& owner) const {
    if constexpr (kLocksInNodes) {
      return Lock(Shape::lock_of(*owner.node), pool_.generation());
    } else {
      return Lock(stripe_at(stripes_, offset_of(owner.word)));
    }
  }
  bool is_obsolete(const Owner& owner) const {
    return owner.node != nullptr && pm::load_acquire(owner.node->obsolete) == obsolete_mark_;
  }
  // The slot of a child that is there; `end` and `top` also if there is none.
  uint64_t* slot_of(const Owner& owner, uint32_t symbol) const {
    if (owner.node == nullptr) return &root_.top;
    if (symbol == kEnd) return &owner.node->end;
    return Shape::find(*owner.node, tag_of(owner.word), symbol);
  }
  // Under a lock: whether the slot leads there.
  bool leads_to(const Owner& owner, uint32_t symbol, uint64_t word) const {
    if (is_obsolete(owner)) return false;
    const uint64_t* slot = slot_of(owner, symbol);
    return (slot == nullptr ? 0 : pm::load_relaxed(*slot)) == word;
  }
  // The store that takes the child in the slot away. Under a lock.
  static Place removal(const Owner& owner, uint32_t symbol, uint64_t* slot) {
    if (owner.node == nullptr || symbol == kEnd) return {slot, 0};
    return Shape::removal(*owner.node, tag_of(owner.word), symbol, slot);
  }
  // The child at a symbol, consistent and durable. Without any lock.
  uint64_t child_at(const Owner& owner, uint32_t symbol) const;
  // The first child from a position on, in order, and its position; 0 if there is none. The same.
  uint64_t next_child(const Owner& owner, uint32_t& position) const;
  // The same, and the last child before a position, for who validates the node's version.
  static uint64_t child_from(const Owner& owner, uint32_t& position);
  static uint64_t child_before(const Owner& owner, uint32_t& position);

  // ---- keys; the caller has a guard
  static Text text_of(const Key& key) {
    if constexpr (kWords) {
      return key;
    } else {
      return key.bytes;
    }
  }
  Text text_of_leaf(uint64_t word) const {
    if constexpr (kWords) {
      return leaf_at(word).key;
    } else {
      return records_.key(offset_of(word));
    }
  }
  static uint32_t symbol_or_end(Text text, uint32_t i) {
    return i < Symbol::length(text) ? Symbol::at(text, i) : kEnd;
  }
  // The first leaf below a node. 0 if a crash left nothing, or others take it away: then `gap` is
  // to go.
  uint64_t first_leaf(const Hollow& from, Hollow& gap) const;

  struct Prefix {
    uint32_t differs = 0;  // the branch: nowhere
    uint32_t theirs = 0;
    bool hollow = false;
    Hollow gap;
  };
  // How a node's compressed path, from `depth` on, compares with a key.
  Prefix compare_prefix(const Hollow& at, uint32_t depth, Text text) const;
  Spot locate(Text text) const;

  template <typename Use>
  [[gnu::always_inline]] bool use_leaf(uint64_t word, const Key& key, Use& use) const;
  template <typename Use>
  [[gnu::cold, gnu::noinline]] bool lookup_waiting(const Key& key, Use& use) const;

  // ---- scan
  // A node on the way, and some of its children that come next, as they were at one moment.
  struct Frame {
    static constexpr uint32_t kRoom = 32;

    Frame(const Owner& node, uint32_t place) : owner(node), position(place) {}
    Owner owner;
    uint32_t position;  // of the next child; downwards: of the one before which the next one is
    uint32_t next = 0;
    uint32_t count = 0;
    typename Lock::Stamp stamp{};
    std::array<uint64_t, kRoom> words;
    std::array<uint16_t, kRoom> positions;  // what `position` is behind each
  };
  static constexpr uint32_t kBehindAll = Shape::kSymbols + 1;  // positions
  // How many children ahead a scan asks memory for one, and for what a small node leads to.
  static constexpr uint32_t kFetchAhead = 12;
  static constexpr uint32_t kPeekAhead = 4;
  void seek(Text from, std::vector<Frame>& frames, uint64_t& first) const;
  void seek_back(Text from, std::vector<Frame>& frames, uint64_t& first) const;
  template <bool kBack>
  void fill(Frame& frame, uint64_t limit) const;
  template <bool kBack>
  uint64_t take(Frame& frame, uint64_t limit) const;
  void fetch(uint64_t word) const;
  void fetch_below(uint64_t word) const;
  template <bool kBack, typename Visit>
  void walk(const Key* from, uint64_t limit, Visit& visit) const;
  uint32_t depth_below(const Owner& owner) const {
    return owner.node == nullptr ? 0 : branch_of(owner.word);
  }
  template <typename Visit>
  bool visit_leaf(uint64_t word, Visit& visit) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  Outcome try_write(const Condition& condition, const Spot& spot, const Key& key,
                    const Value& value);
  // The offset of a leaf in the making, flushed.
  uint64_t make_leaf(pm::Heap::Txn& txn, const Key& key, const Value& value) const;
  uint64_t leaf_bytes(uint64_t word) const;
  uint64_t stored(const Spot& spot) const;
  Outcome put(const Spot& spot, const Key& key, const Value& value);
  Outcome replace(const Condition& condition, const Spot& spot, const Key& key, const Value& value);
  Outcome take_out(const Condition& condition, const Spot& spot);
  void commit(pm::Heap::Txn& txn, const Owner& owner, const Place& place) const;

  // ---- shape.cc
  Outcome branch_off(const Spot& spot, const Key& key, const Value& value);
  Outcome grow(const Spot& spot, const Key& key, const Value& value);
  void copy(pm::Heap::Txn& txn, const Owner& parent, uint64_t* slot, const Owner& node,
            uint64_t tag, uint32_t symbol, uint64_t leaf) const;
  void tidy(const Hollow& at);
  void try_tidy(const Hollow& at) {
    try {
      tidy(at);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;  // it is right as it is
    }
  }
  uint32_t count_children(const Owner& node) const;
  void require_sound(const Owner& node) const;
  void retire_node(const Owner& node);
  void reclaim();

  // ---- inspect.cc
  class Checker;
  template <typename Visit>
  void visit_words(const Visit& visit) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  uint32_t obsolete_mark_;
  mutable pm::EpochManager epochs_;
  Records records_;
  Stripes stripes_;       // unless the nodes have their locks
  Stripes leaf_stripes_;  // of values that are changed in place; after the nodes' locks
  mutable StripeLock root_stripe_;
  RetiredBlocks retired_;
};

template <typename Policy, typename Content>
template <typename Use>
inline bool Core<Policy, Content>::use_leaf(uint64_t word, const Key& key, Use& use) const {
  if constexpr (kWords) {
    const Leaf& leaf = leaf_at(word);
    if (leaf.key != key) return false;
    const uint64_t value = pm::load_acquire(leaf.value);
    stripe_at(leaf_stripes_, offset_of(word)).begin_read();  // until the value is durable
    use(value);
  } else {
    if (!records_.has_key(offset_of(word), key.bytes)) return false;
    use(records_.value(offset_of(word)));
  }
  return true;
}

// How many lookups' misses a processor has under way at once goes by how few instructions a lookup
// has: so what is judged is judged by one comparison, and whether a node was changing is gathered
// on the way, and asked once. If one was, the way is gone again with waits.
template <typename Policy, typename Content>
template <typename Use>
inline bool Core<Policy, Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  const Text text = text_of(key);
  const uint32_t length = Symbol::length(text);
  const pm::PoolImpl::Inside inside = pool_.inside(kNodeBytesMax);
  uint64_t word = pm::load_acquire(root_.top);
  uint32_t seen = lock_of(Owner()).look();
  for (uint32_t left = length; !is_leaf(word);) {
    // Of the key, behind the symbol by which the node branches: less at each node, so that one
    // comparison finds what is not further down, `end`, and a key that is too short.
    const uint32_t rest = length - 1 - branch_of(word);
    if (!inside.has(offset_of(word)) || rest >= left) [[unlikely]] {
      if (word == 0 && !Lock::is_changing(seen)) return false;
      return lookup_waiting(key, use);
    }
    const Owner owner = {inside.at<Node>(offset_of(word)), word};
    word = Shape::child(*owner.node, tag_of(word), Symbol::at(text, branch_of(word)));
    seen |= lock_of_node(owner).look();
    left = rest;
  }
  if constexpr (kWords) {
    if (inside.has(offset_of(word))) [[likely]] {
      const Leaf& leaf = *inside.at<Leaf>(offset_of(word));
      const uint64_t value = pm::load_acquire(leaf.value);
      seen |= stripe_at(leaf_stripes_, offset_of(word)).look();
      if (!Lock::is_changing(seen)) [[likely]] {
        if (leaf.key != key) return false;
        use(value);
        return true;
      }
    }
  } else if (!Lock::is_changing(seen)) [[likely]] {
    return use_leaf(word, key, use);
  }
  return lookup_waiting(key, use);
}

// The same, which waits after each word until it is durable, and judges what is damaged. The caller
// has a guard.
template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup_waiting(const Key& key, Use& use) const {
  const Text text = text_of(key);
  const uint32_t length = Symbol::length(text);
  uint64_t word = pm::load_acquire(root_.top);
  lock_of(Owner()).begin_read();  // until what was read is durable
  for (uint32_t depth = 0; word != 0;) {
    if (is_leaf(word)) return use_leaf(word, key, use);
    const uint32_t branch = branch_of(word);
    if (branch > length) return false;
    const Owner owner = {&enter(word, depth), word};
    word = branch == length ? pm::load_acquire(owner.node->end)
                            : Shape::child(*owner.node, tag_of(word), Symbol::at(text, branch));
    lock_of_node(owner).begin_read();  // the same
    depth = branch + 1;
  }
  return false;
}

template <typename Policy, typename Content>
struct Core<Policy, Content>::Approach {
  Owner owner;
  uint32_t depth = 0;
  uint64_t word = 0;  // where the owner leads
};

// Which ends where the leaf is, or nothing that could be the key's.
template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  return is_leaf(at.word) && use_leaf(at.word, key, use);
}

// Of each node the header and where a search for the symbol begins; what the leaf begins with.
template <typename Policy, typename Content>
bool Core<Policy, Content>::approach(const Key& key, Approach& at) const {
  const Text text = text_of(key);
  const uint32_t length = Symbol::length(text);
  uint64_t& word = at.word;
  if (word == 0) {
    word = pm::load_acquire(root_.top);
  } else {
    const uint32_t branch = branch_of(word);
    Node& node = enter(word, at.depth);
    at.owner = {&node, word};
    at.depth = branch + 1;
    word = branch == length ? pm::load_acquire(node.end)
                            : Shape::child(node, tag_of(word), Symbol::at(text, branch));
  }
  lock_of(at.owner).begin_read();  // until what was read is durable
  if (word == 0) return false;
  const char* next = pool_.at<char>(offset_of(word));
  pm::prefetch(next);
  if (is_leaf(word) || branch_of(word) > length) return false;
  if (branch_of(word) < length)
    pm::prefetch(next + Shape::first_look(tag_of(word), Symbol::at(text, branch_of(word))));
  return true;
}

template <typename Policy, typename Content>
template <typename Visit>
bool Core<Policy, Content>::visit_leaf(uint64_t word, Visit& visit) const {
  if constexpr (kWords) {
    const Leaf& leaf = leaf_at(word);
    const uint64_t value = pm::load_acquire(leaf.value);
    stripe_at(leaf_stripes_, offset_of(word)).begin_read();  // until the value is durable
    return visit(leaf.key, value);
  } else {
    return visit(records_.key(offset_of(word)), records_.value(offset_of(word)));
  }
}

// Hints, which may be about a word of another moment.
template <typename Policy, typename Content>
void Core<Policy, Content>::fetch(uint64_t word) const {
  // Of a record the header with the key, and what may be behind it; of a larger node the processor
  // fetches the rest.
  const uint64_t bytes = is_leaf(word) ? (kWords ? sizeof(Leaf) : uint64_t{2} * pm::kLineBytes)
                                       : std::min<uint64_t>(Shape::bytes_of(tag_of(word)), 256);
  const char* const begin = pool_.at<char>(offset_of(word));
  for (uint64_t at = 0; at < bytes; at += pm::kLineBytes) pm::prefetch(begin + at);
}
template <typename Policy, typename Content>
void Core<Policy, Content>::fetch_below(uint64_t word) const {
  const uint64_t tag = tag_of(word);
  const uint64_t bytes = Shape::bytes_of(tag);  // of a leaf 0
  const uint32_t room = Shape::room_of(tag);
  if (bytes == 0 || room > 16 || !pool_.leads_inside(offset_of(word), bytes)) return;
  const uint64_t* slots = Shape::slots_of(*pool_.at<Node>(offset_of(word)), tag);
  for (uint32_t i = 0; i < room; ++i) {
    if (const uint64_t child = pm::load_relaxed(slots[i]); child != 0) fetch(child);
  }
}

template <typename Policy, typename Content>
template <bool kBack>
void Core<Policy, Content>::fill(Frame& frame, uint64_t limit) const {
  const auto most = static_cast<uint32_t>(std::clamp<uint64_t>(limit, 1, Frame::kRoom));
  const Lock lock = lock_of(frame.owner);
  do {
    frame.stamp = lock.begin_read();
    frame.next = frame.count = 0;
    for (uint32_t position = frame.position; frame.count < most;) {
      const uint64_t word =
          kBack ? child_before(frame.owner, position) : child_from(frame.owner, position);
      if (word == 0) break;
      if (!kBack) ++position;
      frame.words[frame.count] = word;
      frame.positions[frame.count++] = static_cast<uint16_t>(position);
    }
  } while (!lock.validate(frame.stamp));
  for (uint32_t i = 0; i < std::min(frame.count, kFetchAhead); ++i) fetch(frame.words[i]);
}

// The next child, consistent and durable; 0: there is none.
template <typename Policy, typename Content>
template <bool kBack>
uint64_t Core<Policy, Content>::take(Frame& frame, uint64_t limit) const {
  // The visitor may have changed the node, too.
  if (frame.next == frame.count || !lock_of(frame.owner).validate(frame.stamp))
    fill<kBack>(frame, limit);
  if (frame.count == 0) return 0;
  const uint32_t i = frame.next++;
  if (i + kFetchAhead < frame.count) fetch(frame.words[i + kFetchAhead]);
  if (i + kPeekAhead < frame.count) fetch_below(frame.words[i + kPeekAhead]);
  frame.position = frame.positions[i];
  return frame.words[i];
}

// Null: from the first, or last, key on.
template <typename Policy, typename Content>
template <bool kBack, typename Visit>
void Core<Policy, Content>::walk(const Key* from, uint64_t limit, Visit& visit) const {
  const pm::EpochManager::Guard guard(epochs_);
  std::vector<Frame> frames;
  frames.reserve(8);
  uint64_t word = 0;
  if (from == nullptr) {
    word = child_at({}, 0);
  } else if constexpr (kBack) {
    seek_back(text_of(*from), frames, word);
  } else {
    seek(text_of(*from), frames, word);
  }
  bool reached = from == nullptr;  // all leaves to come are on the right side of `from`
  for (;;) {
    if (word != 0 && !is_leaf(word)) {
      const uint32_t above = frames.empty() ? 0 : branch_of(frames.back().owner.word) + 1;
      frames.emplace_back(Owner{&enter(word, above), word}, kBack ? kBehindAll : 0);
    } else if (word != 0) {
      reached = reached || (kBack ? text_of_leaf(word) <= text_of(*from)
                                  : text_of_leaf(word) >= text_of(*from));
      if (reached) {
        if (limit == 0) return;
        --limit;
        if (!visit_leaf(word, visit) || limit == 0) return;
      }
    }
    word = 0;
    while (!frames.empty() && word == 0) {
      word = take<kBack>(frames.back(), limit);
      if (word == 0) frames.pop_back();
    }
    if (word == 0) return;
  }
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_TRIE_INSTANTIATE(prefix)              \
  prefix template class Core<PArt, tree::Words>;      \
  prefix template class Core<PArt, tree::Bytes>;      \
  prefix template class Core<PArtVl, tree::Words>;    \
  prefix template class Core<PArtVl, tree::Bytes>;    \
  prefix template class Core<WortTree, tree::Words>;  \
  prefix template class Core<WortTree, tree::Bytes>;  \
  prefix template class Core<WoartTree, tree::Words>; \
  prefix template class Core<WoartTree, tree::Bytes>; \
  prefix template class Core<CowTree, tree::Words>;   \
  prefix template class Core<CowTree, tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

struct PArt {
  static constexpr char kName[] = "p-art";
  static constexpr uint64_t kMagic = 0x31304c5241504450;  // "PDPARL01"
  using Shape = ArtWithLocks;
};
struct PArtVl {
  static constexpr char kName[] = "p-art+vl";
  static constexpr uint64_t kMagic = 0x3130545241504450;  // "PDPART01"
  using Shape = Art;
};
struct WortTree {
  static constexpr char kName[] = "wort";
  static constexpr uint64_t kMagic = 0x313054524f574450;  // "PDWORT01"
  using Shape = Wort;
};
struct WoartTree {
  static constexpr char kName[] = "woart";
  static constexpr uint64_t kMagic = 0x313052414f574450;  // "PDWOAR01"
  using Shape = Woart;
};
struct CowTree {
  static constexpr char kName[] = "art-cow";
  static constexpr uint64_t kMagic = 0x3130574f43415450;  // "PTACOW01"
  using Shape = ArtCow;
};

PERDURE_TRIE_INSTANTIATE(extern)

}  // namespace perdure::index::trie
