// P-Masstree: a trie of B+-trees, each over eight bytes of the keys.
//
// The idea. The entries of a node are unsorted. One word, the permutation, says which slots count
// and in which order; a record is written to a free slot, and the store of the permutation commits
// it. A key is cut into slices of eight bytes. A tree, called a layer, orders the slices at one
// place of the keys; where two keys share a slice and go on behind it, the value of the slice is
// another layer.
//
// The persist points; F is a fence
//   insert        words: slice and value: F; permutation: F. Byte strings: record, slice and the heap's intent: F;
//                 permutation and bitmap: F; the intent's end: F. The length of the slice is in the line of the
//                 permutation, and stored before it. The intent goes by the slot's bit of the permutation.
//   update        words: the value: F. Byte strings: record and intents: F; value and bitmap: F; end: F.
//   remove        words: permutation: F. Byte strings: intent: F; permutation and bitmap: F; end: F.
//   new layer     layer, its first node (with the record that was here) and the intents: F; the value, which leads
//                 to the layer, and bitmap: F; end: F.
//   layer's end   an empty layer's blocks go with its slot's bit of the permutation above, as a record does.
//   split         the right node, the entry in a free slot of the parent, intents, redo records: F; the redo
//                 records are certain: F; both permutations and the left node's `next` change together, and
//                 bitmap: F; end: F. Without a parent: a new top instead, which the layer's word leads to.
//   merge         the right node's entries in free slots of the left one, intents, redo records; then as a split.
// A crash before the store that commits, or before the redo records are certain, leaves slots that
// do not count and blocks that the intents free; after it, the change is whole. No step is left to
// be taken by others.
//
// Recovery: nothing; the heap's intents and redo records only.
//
// Concurrency. Stripe locks (index/stripes.h) in DRAM, by node; of p-masstree, the reference, lock
// words in the nodes and layers (index/node_lock.h), as published. Readers take none: they note the
// version of a node, and look at that of its parent again before they rely on it; they wait while a
// writer stores and fences, so that what they return is durable. A writer holds the lock of one
// border node, or, to change the shape, of all nodes and layers that change: two or three, in the
// order of where the locks are, and looks at them again when he has them. So splits go on side by
// side, and beside a merge; merges take a mutex before.
//
// Sources: Mao et al., "Cache Craftiness for Fast Multicore Key-Value Storage", EuroSys 2012; Lee
// et al., "RECIPE", SOSP 2019. docs/structures/p-masstree.md says where this differs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/instantiate.h"
#include "index/masstree/layout.h"
#include "index/node_lock.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/stripes.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::masstree {

struct Options {};

// Policy: kName, kMagic, and where the locks are.
struct PMasstree {
  static constexpr char kName[] = "p-masstree";
  static constexpr uint64_t kMagic = 0x31304c53414d4450;  // "PDMASL01"
  static constexpr bool kLocksInNodes = true;
};
struct PMasstreeVl {
  static constexpr char kName[] = "p-masstree+vl";
  static constexpr uint64_t kMagic = 0x31305353414d4450;  // "PDMASS01"
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
  static constexpr bool kWords = !Content::kOutOfPlace;
  static constexpr uint32_t kStripeBits = 14;
  static constexpr bool kLocksInNodes = Policy::kLocksInNodes;
  using Lock = std::conditional_t<kLocksInNodes, LockInNode, LockInDram>;
  static constexpr uint32_t kFullEnough = kSlots * 3 / 4;  // of a node that a merge makes

  // The locks of up to three nodes or layers, which live as long as the caller's guard. They are
  // taken in the order of where they are, and their holder takes no others, so that no threads wait
  // for each other in a circle. Between the caller's look at the places and here they may have
  // changed.
  class Held {
   public:
    // Throws kIo once the medium has failed: what another thread could not make durable may be
    // there.
    template <typename... Places>
    explicit Held(const Core& core, const Places&... places) {
      (add(core.lock_of(places)), ...);
      for (uint32_t i = 0; i < count_; ++i) locks_[i].lock();
      if (core.pool_.failed()) [[unlikely]] {
        release();
        core.pool_.require_writable();
      }
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { release(); }
    void release() {
      while (count_ > 0) locks_[--count_].unlock();
    }

   private:
    void add(Lock lock) {
      for (uint32_t i = 0; i < count_; ++i) {
        if (locks_[i] == lock) return;
        if (lock < locks_[i]) std::swap(lock, locks_[i]);
      }
      locks_[count_++] = lock;
    }
    std::array<Lock, 3> locks_{};
    uint32_t count_ = 0;
  };

  // A version that was noted.
  struct Seen {
    Lock lock;
    typename Lock::Stamp stamp = 0;
    bool holds() const { return lock == Lock() || lock.validate(stamp); }
  };
  struct Position {
    uint32_t rank = 0;  // of the first entry that is not below
    uint32_t slot = 0;
    bool found = false;
  };
  // The border node where a key is, or would be.
  struct Border {
    Layer* layer = nullptr;
    uint32_t depth = 0;
    Node* node = nullptr;
    Seen seen;
    bool found = false;
    uint64_t value = 0;  // if found, under the version; of a longer key perhaps another key's
  };
  struct Entry {
    Slice slice;
    uint64_t value;
  };
  struct Entries {
    std::array<Entry, kSlots> list;
    uint32_t count = 0;
    const Entry* begin() const { return list.data(); }
    const Entry* end() const { return list.data() + count; }
    const Entry& operator[](size_t i) const { return list[i]; }
  };
  // From a layer's top to the border node.
  struct Path {
    std::array<Node*, kLevelsMax + 2> nodes;
    uint32_t count = 0;
    void push_back(Node& node) { nodes[count++] = &node; }
    Node& operator[](uint32_t i) const { return *nodes[i]; }
    Node& border() const { return *nodes[count - 1]; }
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // ---- addresses
  Node& node_at(uint64_t offset) const { return *pool_.follow<Node>(offset); }
  Layer& layer_at(uint64_t value) const { return *pool_.follow<Layer>(value & ~kLayerTag); }
  static bool is_layer(uint64_t value) { return !kWords && (value & kLayerTag) != 0; }
  Node& require_child(const Node& parent, Node& child) const {
    if (child.level + 1U != parent.level) [[unlikely]]
      throw_damaged(child);
    return child;
  }
  [[noreturn]] void throw_damaged(const Node& node) const;
  template <typename Place>
  Lock lock_of(const Place& place) const {
    const uint64_t offset = pool_.offset_of(&place);
    if constexpr (kLocksInNodes) {
      return Lock(pool_.at<Place>(offset)->lock, pool_.generation());
    } else {
      return Lock(stripes_.of<kStripeBits>(offset / pm::kLineBytes));
    }
  }
  template <typename Place>
  void begin_change(const Place& place) const {
    lock_of(place).begin_change();
  }
  template <typename Place>
  Seen see(const Place& place) const {
    const Lock lock = lock_of(place);
    return {lock, lock.begin_read()};
  }
  template <typename Place>
  bool is_obsolete(const Place& place) const {
    return pm::load_acquire(place.obsolete) == obsolete_mark_;
  }
  static Permutation permutation_of(const Node& node) {
    return Permutation(pm::load_acquire(node.permutation));
  }
  static void prefetch(const Node& node) {
    for (uint64_t at = 0; at < sizeof(Node); at += pm::kLineBytes) {
      pm::prefetch(reinterpret_cast<const char*>(&node) + at);
    }
  }

  // ---- keys
  using Text = std::conditional_t<kWords, uint64_t, std::string_view>;
  static Text text_of(const Key& key) {
    if constexpr (kWords) {
      return key;
    } else {
      return key.bytes;
    }
  }
  // What is left of a key in a layer of this depth.
  static Text rest_of(Text text, uint32_t depth) {
    if constexpr (kWords) {
      return (void)depth, text;
    } else {
      const size_t begin = size_t{depth} * kSliceBytes;
      return begin < text.size() ? text.substr(begin) : Text();
    }
  }
  static Slice slice_of(Text rest) {
    if constexpr (kWords) {
      return {rest, kSliceBytes};
    } else {
      return {tree::prefix_of(rest),
              static_cast<uint8_t>(std::min<size_t>(rest.size(), size_t{kLonger}))};
    }
  }
  static Slice slice_in(const Node& node, uint32_t slot) {
    return {pm::load_relaxed(node.words[slot]),
            kWords ? static_cast<uint8_t>(kSliceBytes) : pm::load_relaxed(node.lengths[slot])};
  }
  static Position find(const Node& node, Permutation permutation, Slice slice);
  // Children of an interior node by number: 0 is the leftmost one, the others are of the entries in
  // their order. Without a branch by the number, which nobody can guess.
  static uint64_t child(const Node& node, Permutation permutation, uint32_t number) {
    const uint64_t* last = &node.values[permutation.slot((number - 1) % kSlots)];
    return pm::load_acquire(*(number == 0 ? &node.leftmost : last));
  }
  static uint32_t child_number_for(const Node& node, Permutation permutation, Slice slice) {
    const Position at = find(node, permutation, slice);
    return at.rank + (at.found ? 1 : 0);
  }
  static uint64_t child_for(const Node& node, Permutation permutation, Slice slice) {
    return child(node, permutation, child_number_for(node, permutation, slice));
  }

  // Before a change that relies on it.
  Permutation sound_permutation_of(const Node& node) const {
    const Permutation permutation = permutation_of(node);
    if (!permutation.sound()) [[unlikely]]
      throw_damaged(node);
    return permutation;
  }

  // ---- the way down without locks; the caller has a guard. False: begin again
  bool try_reach(Layer& layer, Slice slice, Seen above, Node*& node, Seen& seen) const {
    return try_reach_by(
        layer, above,
        [&](const Node& at, const Seen&) { return child_for(at, permutation_of(at), slice); }, node,
        seen);
  }
  template <typename Choose>
  bool try_reach_by(Layer& layer, Seen above, Choose choose, Node*& node, Seen& seen) const;
  bool try_locate(Text text, Border& border, std::vector<Layer*>* layers) const;
  // `layers`: is to have all layers on the way. Null: it does not matter.
  Border locate(Text text, std::vector<Layer*>* layers = nullptr) const {
    Border border;
    for (uint32_t attempts = 0; !try_locate(text, border, layers); ++attempts) {
      if (attempts > kAttemptsMax) [[unlikely]]
        throw_damaged(node_at(root_.first.top));
    }
    return border;
  }
  // Which border nodes a scan comes to next, by the two interior nodes above. Hints: what these
  // have is of no one moment. The caller has a guard.
  class Ahead {
   public:
    explicit Ahead(const Core& core) : core_(&core) {}
    // On the way down: the scan goes by this child.
    void pass(const Node& node, uint32_t number) {
      if (node.level == 1 || node.level == 2) at_[node.level - 1] = {&node, number};
    }
    // Asks memory for one more border node, and the interior node that is needed after this one.
    void fetch();

   private:
    struct Place {
      const Node* node = nullptr;
      uint32_t number = 0;
    };
    const Node* next_in(Place& place) const;
    const Core* core_;
    std::array<Place, 2> at_;  // of level 1, of level 2
    const Node* next_parent_ = nullptr;
  };
  static constexpr uint32_t kFetchAhead = 3;  // border nodes
  // A border node of a layer. Null if the layer has gone.
  Node* reach(Layer& layer, Slice slice, Ahead& ahead) const;
  // Of byte strings: asks memory for what an entry of a border node leads to.
  void prefetch_entry(uint64_t value) const {
    if constexpr (!kWords) records_.prefetch(value & ~kLayerTag);
  }
  template <typename Visit>
  bool scan_layer(Layer& layer, uint32_t depth, Text from, uint64_t& limit, Visit& visit) const;

  // ---- scan_back.h
  // What a scan downwards has still to come to in a layer.
  struct Under {
    enum class Kind : uint8_t { kAll, kUpTo, kBelow };
    Kind kind = Kind::kAll;
    Slice slice;
    bool admits(Slice other) const {
      return kind == Kind::kAll || other < slice || (other == slice && kind == Kind::kUpTo);
    }
  };
  // The entries of a border node that are under something, in order, and the least slice that
  // belongs to the node.
  struct Part {
    std::array<Entry, kSlots> entries;
    uint32_t count = 0;
    bool lowest = true;  // there is none: it is the first node
    Slice low;
    // The node above, as it was seen, and how many of its slices are up to `low`. 0: it cannot tell
    // the node before.
    const Node* parent = nullptr;
    Seen parent_seen;
    uint32_t parent_rank = 0;
  };
  bool copy_under(const Node& node, const Seen& seen, const Under& under, Part& part) const;
  bool try_read_before(const Under& under, Part& part) const;
  bool try_read_under(Layer& layer, const Under& under, Part& part) const;
  bool read_under(Layer& layer, const Under& under, Part& part) const;
  template <typename Visit>
  bool scan_layer_back(Layer& layer, uint32_t depth, const Text* from, uint64_t& limit,
                       Visit& visit) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  void put(Node& node, const Position& position, Slice slice, const Key& key, const Value& value);
  void replace(Node& node, uint32_t slot, const Key& key, const Value& value);
  void take_out(Node& node, const Position& position);
  void settle(Node& node) const;
  void deepen(Node& node, uint32_t slot, uint32_t depth);
  // Whether the entry of the key's slice, which is no layer, is the key's.
  bool is_of(uint64_t value, const Key& key) const {
    if constexpr (kWords) {
      return (void)value, (void)key, true;
    } else {
      // No checksum of the record, which need not be the key's: keys share slices all the time.
      return records_.key(value) == key.bytes;
    }
  }

  // ---- shape.cc; under the mutex of merges, but for what splits
  bool path_to(Layer& layer, Slice slice, Path& path) const;
  bool is_child_for(const Node& parent, Slice slice, const Node& child) const;
  void make_room(Layer& layer, Slice slice);
  bool split(Layer& layer, const Path& path, uint32_t at, Slice slice);
  void shrink(const Key& key, bool empty);
  void tidy(Layer& layer, Slice slice);
  bool merge(Node& parent, const Node& child);
  bool join(Node& parent, const Seen& seen, uint32_t rank);
  bool collapse(Layer& layer);
  bool remove_layer(Layer& above, Slice slice, Layer& layer);
  void cut_off(Node& upper, Slice slice, Layer& layer, Node& border);
  static Entries entries_of(const Node& node);
  static void fill(Node& image, const Entry* begin, const Entry* end);
  void place(Node& node, uint32_t slot, const Entry& entry) const;
  static void redo_head(pm::Heap::Txn& txn, Node& node, Permutation permutation, uint64_t next);
  template <typename Place>
  void make_obsolete(Place& place) {
    pm::store_release(place.obsolete, obsolete_mark_);  // readers begin again
    retired_.add(pool_.offset_of(&place), sizeof(Place));
  }

  // ---- inspect.cc
  class Checker;
  template <typename OnLayer, typename OnNode>
  void visit_layer(const Layer& layer, uint32_t depth, uint64_t& nodes_left, OnLayer& on_layer,
                   OnNode& on_node) const;
  template <typename OnLayer, typename OnNode>
  void visit_all(OnLayer on_layer, OnNode on_node) const {
    uint64_t nodes_left = pool_.capacity_bytes() / sizeof(Node);
    visit_layer(root_.first, 0, nodes_left, on_layer, on_node);
  }

  static constexpr uint32_t kAttemptsMax = 1 << 20;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  uint32_t obsolete_mark_;
  mutable pm::EpochManager epochs_;
  Records records_;
  RetiredBlocks retired_;
  Stripes stripes_;         // unless the nodes have their locks
  std::mutex merge_mutex_;  // before any lock of a node
};

template <typename Policy, typename Content>
typename Core<Policy, Content>::Position Core<Policy, Content>::find(const Node& node,
                                                                     Permutation permutation,
                                                                     Slice slice) {
  auto [below, equal] = compare_words(node, permutation.used(), slice.word);
  Position position;
  if constexpr (kWords) {
    position.found = equal != 0;
    if (position.found) position.slot = static_cast<uint32_t>(std::countr_zero(equal));
  } else {
    for (; equal != 0; equal &= equal - 1) {
      const auto slot = static_cast<uint32_t>(std::countr_zero(equal));
      const uint8_t length = pm::load_relaxed(node.lengths[slot]);
      if (length < slice.length) ++below;
      if (length != slice.length) continue;
      position.found = true;
      position.slot = slot;
    }
  }
  position.rank = below;
  return position;
}

template <typename Policy, typename Content>
template <typename Choose>
bool Core<Policy, Content>::try_reach_by(Layer& layer, Seen above, Choose choose, Node*& node,
                                         Seen& seen) const {
  Seen parent = see(layer);
  if (!above.holds() || is_obsolete(layer)) return false;
  Node* at = &node_at(pm::load_acquire(layer.top));
  for (uint32_t levels = 0;; ++levels) {
    prefetch(*at);
    const Seen here = see(*at);
    if (!parent.holds()) return false;
    if (at->level == 0) {
      node = at;
      seen = here;
      return true;
    }
    if (levels > kLevelsMax) throw_damaged(*at);
    const uint64_t child = choose(*at, here);
    if (!here.holds()) return false;
    Node& next = node_at(child);
    prefetch(next);
    at = &require_child(*at, next);
    parent = here;
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::try_locate(Text text, Border& border,
                                       std::vector<Layer*>* layers) const {
  border.layer = &root_.first;
  Seen above;
  if (layers != nullptr) layers->clear();
  for (border.depth = 0; border.depth <= kDepthMax; ++border.depth) {
    if (layers != nullptr) layers->push_back(border.layer);
    const Slice slice = slice_of(rest_of(text, border.depth));
    if (!try_reach(*border.layer, slice, above, border.node, border.seen)) return false;
    const Position at = find(*border.node, permutation_of(*border.node), slice);
    border.found = at.found;
    if (at.found) border.value = pm::load_acquire(border.node->values[at.slot]);
    if (!border.seen.holds()) return false;
    if (!at.found || !is_layer(border.value)) return true;
    border.layer = &layer_at(border.value);
    above = border.seen;
  }
  throw_damaged(*border.node);
}

template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  const Border border = locate(text_of(key));
  if (!border.found || !is_of(border.value, key)) return false;
  if constexpr (kWords) {
    use(border.value);
  } else {
    use(records_.value(border.value));
  }
  return true;
}

template <typename Policy, typename Content>
const Node* Core<Policy, Content>::Ahead::next_in(Place& place) const {
  if (place.node == nullptr) return nullptr;
  const Permutation permutation = permutation_of(*place.node);
  if (place.number >= permutation.count()) return nullptr;
  const uint64_t offset = child(*place.node, permutation, ++place.number);
  const bool sound = offset % sizeof(Node) == 0 && core_->pool_.leads_inside(offset, sizeof(Node));
  return sound ? core_->pool_.template at<Node>(offset) : nullptr;
}

template <typename Policy, typename Content>
void Core<Policy, Content>::Ahead::fetch() {
  if (next_parent_ == nullptr) {
    next_parent_ = next_in(at_[1]);
    if (next_parent_ != nullptr) prefetch(*next_parent_);
  }
  const Node* border = next_in(at_[0]);
  if (border == nullptr && next_parent_ != nullptr) {
    const Node& parent = *std::exchange(next_parent_, nullptr);
    at_[0] = {&parent, 0};
    const uint64_t first = pm::load_acquire(parent.leftmost);
    if (core_->pool_.leads_inside(first, sizeof(Node)))
      border = core_->pool_.template at<Node>(first);
  }
  if (border != nullptr) prefetch(*border);
}

template <typename Policy, typename Content>
Node* Core<Policy, Content>::reach(Layer& layer, Slice slice, Ahead& ahead) const {
  const auto choose = [&](const Node& at, const Seen&) {
    const Permutation permutation = permutation_of(at);
    const uint32_t number = child_number_for(at, permutation, slice);
    ahead.pass(at, number);
    return child(at, permutation, number);
  };
  Node* node = nullptr;
  Seen seen;
  for (uint32_t attempts = 0;; ++attempts) {
    ahead = Ahead(*this);
    if (try_reach_by(layer, {}, choose, node, seen)) return node;
    if (is_obsolete(layer)) return nullptr;  // it was empty
    if (attempts > kAttemptsMax) throw_damaged(node_at(layer.top));
  }
}

template <typename Policy, typename Content>
struct Core<Policy, Content>::Approach {
  const Node* node = nullptr;
  uint32_t above = kLevelsMax + 1;  // the level of the one before
  Seen parent;                      // what leads to the node, as it did for the key
};

template <typename Policy, typename Content>
template <typename Use>
bool Core<Policy, Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  if constexpr (kWords) {
    const Node& node = *at.node;
    const Seen here = see(node);
    if (at.parent.holds() && node.level == 0) {
      const Position position = find(node, permutation_of(node), slice_of(key));
      const uint64_t value = pm::load_acquire(node.values[position.slot]);
      if (here.holds()) {
        if (position.found) use(value);
        return position.found;
      }
    }
  }
  return lookup(key, use);
}

// The nodes of the first layer; of byte strings what the key's slice leads to.
template <typename Policy, typename Content>
bool Core<Policy, Content>::approach(const Key& key, Approach& at) const {
  if (at.node == nullptr) {
    at.parent = see(root_.first);
    at.node = &node_at(pm::load_acquire(root_.first.top));
    prefetch(*at.node);
    return at.parent.holds();
  }
  const Node& node = *at.node;
  if (node.level >= at.above) return false;
  at.above = node.level;
  const Slice slice = slice_of(rest_of(text_of(key), 0));
  const Seen seen = see(node);
  if (node.level == 0) {
    if constexpr (!kWords) {
      const Position position = find(node, permutation_of(node), slice);
      if (position.found)
        records_.prefetch(pm::load_relaxed(node.values[position.slot]) & ~kLayerTag);
    }
    return false;
  }
  const uint64_t child = child_for(node, permutation_of(node), slice);
  if (!at.parent.holds() || !seen.holds()) return false;
  at.parent = seen;
  at.node = &node_at(child);
  prefetch(*at.node);
  return !kWords || node.level > 1;
}

// Whether the scan goes on behind the layer. A node's entries are those of one moment.
template <typename Policy, typename Content>
template <typename Visit>
bool Core<Policy, Content>::scan_layer(Layer& layer, uint32_t depth, Text from, uint64_t& limit,
                                       Visit& visit) const {
  if (depth > kDepthMax) throw_damaged(node_at(layer.top));
  Slice after = slice_of(from);
  bool told = false;  // `after` itself has been
  std::array<Entry, kSlots> entries;
  bool from_left =
      false;  // by way of the neighbour that has `after`, so all slices here are above it
  uint32_t idle = 0;
  Ahead ahead(*this);
  uint64_t fetched = 0;  // border nodes
  for (Node* node = reach(layer, after, ahead); node != nullptr;) {
    // Nodes are at least half full, as a rule.
    const uint64_t wanted = std::min<uint64_t>(kFetchAhead, limit / (kSlots / 2));
    for (; fetched < wanted; ++fetched) ahead.fetch();
    const Seen seen = see(*node);
    if (is_obsolete(*node)) {
      node = reach(layer, after, ahead);
      fetched = 0;
      from_left = false;
      continue;
    }
    const Permutation permutation = permutation_of(*node);
    const uint32_t end = permutation.count();
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < end; ++rank) {
      const uint32_t slot = permutation.slot(rank);
      const Slice slice = slice_in(*node, slot);
      if (slice < after || (slice == after && told)) continue;
      entries[count++] = {slice, pm::load_acquire(node->values[slot])};
    }
    const uint64_t next = pm::load_acquire(node->next);
    if (!seen.holds()) continue;
    if (!permutation.sound()) [[unlikely]]
      throw_damaged(*node);
    // So no way through the layer is endless.
    idle = count == 0 ? idle + 1 : 0;
    if (node->level != 0 || (from_left && count < end) || idle > kAttemptsMax) [[unlikely]]
      throw_damaged(*node);
    Node* right = next == 0 ? nullptr : &node_at(next);
    if (right != nullptr) prefetch(*right);
    for (uint32_t i = 0; i < count; ++i) prefetch_entry(entries[i].value);
    for (uint32_t i = 0; i < count; ++i) {
      const auto& [slice, value] = entries[i];
      const bool on_path = !told && slice == after;
      after = slice;
      told = true;
      if constexpr (kWords) {
        (void)on_path;
        if (limit == 0) return false;
        --limit;
        if (!visit(slice.word, value)) return false;
      } else {
        if (is_layer(value)) {
          const Text below = on_path ? rest_of(from, 1) : Text();
          if (!scan_layer(layer_at(value), depth + 1, below, limit, visit)) return false;
          continue;
        }
        const std::string_view key = records_.key(value);
        if (on_path && rest_of(key, depth) < from) continue;
        if (limit == 0) return false;
        --limit;
        if (!visit(key, records_.value(value))) return false;
      }
    }
    if (limit == 0) return false;
    node = right;
    if (fetched > 0) --fetched;
    from_left = count > 0;
  }
  return true;
}

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  const pm::EpochManager::Guard guard(epochs_);
  scan_layer(root_.first, 0, text_of(from), limit, visit);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_MASSTREE_INSTANTIATE(prefix)            \
  prefix template class Core<PMasstree, tree::Words>;   \
  prefix template class Core<PMasstree, tree::Bytes>;   \
  prefix template class Core<PMasstreeVl, tree::Words>; \
  prefix template class Core<PMasstreeVl, tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_MASSTREE_INSTANTIATE(extern)

}  // namespace perdure::index::masstree

#include "index/masstree/scan_back.h"
