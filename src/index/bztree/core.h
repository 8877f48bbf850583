// BzTree: a lock-free range tree in persistent memory over multi-word compare-and-swap.
//
// The idea. Every change, of a record or of the tree's shape, is one operation of pm::Mwcas, which
// is atomic for other threads and across a crash; the tree has no logic of its own for either. A
// leaf has records sorted by key, from when it was made, and a tail of those added since. Each
// record has a metadata word that says whether it is visible, and where in the leaf it is. A leaf
// that is full is replaced by one or two new ones; inner nodes are never changed but for their
// children's offsets.
//
// A writer reads the leaf's status, looks for the key, reserves space in the leaf by a CAS of the
// status, writes the record there, and makes it visible by an operation on the status and the
// metadata word. The status counts the commits: if another writer came in between, or the leaf is
// frozen, the operation fails, and the writer looks again. So no two records of one key are ever
// visible, and nobody waits for anybody.
//
//   insert   status (commits + 1), metadata 0 -> visible
//   update   status (commits + 1), metadata -> the new record's place; the record's old place is garbage
//   remove   status (commits + 1), metadata -> not visible
//   consolidation   leaf's status -> frozen; parent's status + 1, its child -> the new leaf
//   split    node's and parent's status -> frozen; grandparent's status + 1, its child -> the new
//            parent, which has the two new nodes. A parent without room is split first.
//   merge    the status of two siblings and of their parent -> frozen; grandparent as above
// At the top the root's word stands for parent or grandparent. Freezing and replacing are one
// operation, so that a node is frozen exactly if it has been replaced.
//
// The persist points, and what a crash leaves. New nodes and records are flushed, and durable with
// the operation's descriptor, before the first word changes. A crash before the operation is
// decided leaves the words and the heap as they were; after it, as they shall be: see pm/mwcas.h.
// New nodes, replaced ones, and blocks of long records belong to the operation until it is decided.
// Space that was reserved and not filled has a metadata word of 0, and is lost until the leaf is
// replaced. Reservations need not be durable themselves: the operation that uses one makes it so.
//
// Recovery: Mwcas::recover() over the descriptors, a fraction of a millisecond. Nothing is scanned.
//
// Concurrency. Lock-free, except that the heap and the reclamation of memory have locks of their
// own. Lookups and scans write nothing, unless they meet an operation in progress, which they help
// to finish, or a value not known to be durable, which they flush.
//
// Source: Arulraj et al., "BzTree: A High-Performance Latch-free Range Index for Non-Volatile
// Memory", PVLDB 11(5), 2018; docs/structures/bztree.md says where this differs.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "index/bztree/layout.h"
#include "index/instantiate.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/tree/back.h"
#include "pm/epoch.h"
#include "pm/mwcas.h"
#include "pm/pool_impl.h"

namespace perdure::index::bztree {

// 0: the default, or, of descriptors, chosen from the pool's capacity.
struct Options {
  uint32_t node_bytes = 0;
  uint32_t descriptors = 0;
};

template <typename Content>
class Core {
 public:
  using Key = typename Content::Key;
  using Value = typename Content::Value;
  using Condition = index::Condition<Value>;
  // Of the descriptors of the multi-word CAS there are so many, and none comes back while a thread
  // that may look at it has a guard: one that wrote on and on behind its own would wait for itself.
  static constexpr bool kGuardsHoldUpWriters = true;

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
  template <typename Use>
  bool lookup_at(const Approach& at, const Key& key, Use use) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Leaf by leaf: a leaf's records are copied as they were at one instant, then visited.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  using Codec = Of<Content>;
  using Text = typename Codec::Text;
  using Item = typename Codec::Item;
  using Report = std::function<void(const std::string&)>;

  static constexpr size_t kRetireTogether = 16;
  static constexpr uint64_t kBatchBytesMax = 256 << 10;  // that a scan copies at a time

  enum class Outcome : uint8_t {
    kDone,
    kNot,    // nothing to do
    kAgain,  // another thread was faster
    kFull,   // the leaf has no room
    kBusy,   // no descriptor is free
  };

  struct Step {
    Node* node = nullptr;
    uint64_t offset = 0;
    uint32_t index = 0;  // of the child that was taken
  };
  struct Path {
    std::array<Step, kLevelsMax> steps;
    uint32_t depth = 0;  // of the leaf
    Node& leaf() const { return *steps[depth].node; }
  };

  // A record of a leaf.
  struct Found {
    uint32_t slot = 0;
    Meta meta;
    explicit operator bool() const { return meta.word != 0; }
  };

  // An inner node taken apart.
  struct Parts {
    std::vector<uint64_t> children;
    std::vector<Text> separators;
  };

  // Records copied out of a leaf by a scan.
  struct Batch {
    std::vector<Item> items;
    std::string bytes;
    typename Codec::OwnedText next{};  // where the next batch begins
    bool more = false;
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);
  void require_sound() const;

  // ---- reading (core.cc)
  // The node at an offset, where one of this level must be; throws kCorrupt if it is not.
  Node* node_at(uint64_t offset, uint32_t level) const {
    Node* node = pool_.follow<Node>(offset, node_bytes_);
    if (node->level != level || (level > 0 && !is_inner(*node))) [[unlikely]]
      throw_damaged(offset, "is not the node that its place is for");
    return node;
  }
  Node* top_node(uint64_t offset) const;
  // Whether an inner node's children, and what leads to its separators, can be read.
  bool is_inner(const Node& node) const {
    if constexpr (!Content::kOutOfPlace) {
      return node.count - 1 < kNodeBytesMax / 16 && inner_bytes<Content>(node) <= node_bytes_;
    } else {
      return node.count - 1 < kNodeBytesMax / 8 &&
             pool_.leads_inside(pool_.offset_of(&node),
                                ends_offset(node.count) + (node.count - 1) * 4);
    }
  }
  // Whether a separator can be read.
  bool is_separator(const Node& node, uint32_t i) const;
  Text separator_of(const Node& node, uint32_t i) const {
    if (!is_separator(node, i)) [[unlikely]]
      throw_damaged(pool_.offset_of(&node), "has a separator outside of it");
    return separator_at<Content>(node, i);
  }
  [[noreturn]] void throw_damaged(uint64_t offset, const char* what) const;
  // The status of a leaf, read and judged: its metadata words are inside of it.
  LeafStatus status_of(const Node& leaf) const {
    const LeafStatus status{mwcas_.read(leaf.status)};
    if (!is_status(leaf, status)) [[unlikely]]
      throw_damaged(pool_.offset_of(&leaf), "has a status that makes no sense");
    return status;
  }
  bool is_status(const Node& leaf, LeafStatus status) const {
    return status.taken_bytes() <= room_of(node_bytes_) && leaf.count <= status.slots();
  }
  // Whether a record lies inside of a leaf.
  bool is_record(Meta meta) const {
    return meta.offset() >= sizeof(Node) && meta.offset() + meta.room() <= node_bytes_ &&
           meta.key_bytes() <= meta.bytes() &&
           (!Content::kOutOfPlace ? meta.bytes() == 16
            : meta.out()          ? meta.bytes() == 8
                                  : meta.bytes() >= meta.key_bytes() + sizeof(uint32_t));
  }
  uint32_t child_index(const Node& node, Text text) const;
  // The child that is right of all separators that `begins(separator)`.
  template <typename Begins>
  uint32_t child_by(const Node& node, Begins begins) const;
  // The path to the leaf where the key is or belongs. Needs a guard, as all that follows.
  void descend(Text text, Path& path) const;
  template <typename Choose>
  void descend_by(Path& path, Choose choose) const;
  Item item_of(const Node& leaf, Meta meta) const;
  // The same, for whoever uses more of it than the key to compare. Throws kCorrupt, if it is to be
  // verified, unless its checksum holds.
  Item intact_item_of(const Node& leaf, Meta meta, bool verifies) const;
  Text key_of(const Node& leaf, Meta meta) const;
  Found find(const Node& leaf, uint32_t slots, Text text) const;
  template <typename Use>
  bool lookup_in(const Node& leaf, Text text, Use use) const;
  // The visible records, sorted. They belong together if the status is still the same afterwards.
  void collect(const Node& leaf, LeafStatus status, std::vector<Item>& out) const;
  // The same, until they belong together.
  void collect_whole(const Node& leaf, std::vector<Item>& out) const;
  void copy_batch(Batch& batch, uint64_t limit) const;
  void copy_batch_back(Batch& batch, tree::Ceiling<Content>& ceiling, uint64_t limit) const;
  // As many as one batch holds. Returns whether that was all.
  bool take_into(Batch& batch, std::span<const Item> items) const;

  // ---- write.cc
  static constexpr uint32_t kAttemptsInGoodFaith = 64;
  static constexpr uint32_t kAttemptsMax =
      1 << 20;  // each of which another thread's success must have undone
  void require_live(Text text) const;
  void wait_for_descriptor();
  template <typename Attempt>
  bool persevere(Text text, uint32_t room, Attempt attempt);
  Outcome try_write(const Condition& condition, const Key& key, const Value& value, uint32_t room);
  Outcome put(const Condition& condition, const Key& key, const Value& value, Node& leaf,
              LeafStatus status, Found found, uint32_t room);
  Outcome commit(const Condition& condition, Text text, Node& leaf, LeafStatus status,
                 uint32_t slot, Meta fresh, Found found, pm::Heap::Txn* txn, uint64_t record);
  bool holds(const Condition& condition, const Node& leaf, Found found) const;
  Outcome try_remove(const Condition& condition, Text text, bool& sparse);
  bool has_room(LeafStatus status, uint32_t slots, uint32_t bytes) const;
  uint32_t room_for(const Key& key, const Value& value) const;
  bool goes_out(const Key& key, const Value& value) const;
  Meta write_record(Node& leaf, uint32_t offset, const Key& key, const Value& value,
                    uint64_t record) const;
  uint64_t record_at(const Node& leaf, Meta meta) const;
  // Whether the next slot, for which there is room, has something in it.
  bool has_leftover(const Node& leaf, LeafStatus status) const;

  // ---- shape.cc
  Outcome make_room(Text text, uint32_t bytes);
  Outcome consolidate(Path& path, LeafStatus status, std::span<const Item> items);
  Outcome split_leaf(Path& path, LeafStatus status, std::span<const Item> items);
  Outcome split_inner(Path& path, uint32_t depth);
  // Puts two nodes in the place of the one at `depth`, whose status has been `status`.
  Outcome replace_by_two(Path& path, uint32_t depth, uint64_t status, pm::Heap::Txn& txn,
                         uint64_t left, Text separator, uint64_t right);
  static constexpr uint32_t kShrinksMax = 4096;  // attempts after one removal
  void shrink(Text text);
  Outcome shrink_once(Text text);
  Outcome collapse_root(Path& path);
  bool is_sparse(const Node& node) const;
  bool fit_together(const Node& left, const Node& right) const;
  Outcome merge(Path& path, uint32_t depth, bool with_right);
  uint64_t merge_leaves(pm::Heap::Txn& txn, const Node& left, const Node& right,
                        const uint64_t* status) const;
  uint64_t merge_inner(pm::Heap::Txn& txn, const Node& left, Text between, const Node& right) const;
  bool relink(pm::Mwcas::Operation& operation, Path& path, uint32_t depth, uint64_t to);
  bool execute(pm::Mwcas::Operation& operation, std::span<const uint64_t> fresh,
               std::span<const Step> old);
  bool is_full(const Node& inner) const;
  Parts take_apart(const Node& inner) const;
  uint64_t write_leaf(pm::Heap::Txn& txn, std::span<const Item> items) const;
  uint64_t write_inner(pm::Heap::Txn& txn, uint32_t level, std::span<const uint64_t> children,
                       std::span<const Text> separators) const;
  uint64_t write_node(pm::Heap::Txn& txn, std::vector<char>& image) const;
  // Of a node's block. All but inner nodes with long separators have the same, so that whatever
  // one of them leaves behind is room for any other.
  uint64_t bytes_of(const Node& node) const {
    return node.level == 0 ? node_bytes_ : std::max(node_bytes_, inner_bytes<Content>(node));
  }
  using Blocks = std::vector<std::pair<uint64_t, uint64_t>>;  // offset, bytes
  void forget_and_release(const Blocks& blocks);
  void reclaim();

  // ---- inspect.cc
  struct Census;
  struct Bounds;
  void check_node(uint64_t offset, uint32_t level, const Bounds& bounds, const Report& fail) const;
  void check_leaf(const Node& leaf, const Bounds& bounds, const Report& fail) const;
  template <typename Visit>
  void walk(uint64_t offset, const Node& node, Visit visit) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  const uint32_t node_bytes_;
  // In this order: what epochs_ still has to do when it goes needs mwcas_.
  mutable pm::Mwcas mwcas_;
  mutable pm::EpochManager epochs_;
  Records records_;
  Retired<Blocks::value_type> retired_;
  uint64_t recovered_operations_ = 0;
};

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  const Text text = Codec::text_of(key);
  Path path;
  descend(text, path);
  return lookup_in(path.leaf(), text, use);
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup_in(const Node& leaf, Text text, Use use) const {
  const LeafStatus status = status_of(leaf);
  // A key that is there all the time is met: it keeps its slot as long as it is there.
  const Found found = find(leaf, status.slots(), text);
  if (!found) return false;
  use(intact_item_of(leaf, found.meta, pool_.verifies_payload()).value);
  return true;
}

template <typename Content>
struct Core<Content>::Approach {
  uint64_t node = 0;  // offset
  uint32_t level = kLevelsMax;
};

// A leaf that has been replaced meanwhile shows what was there when it was.
template <typename Content>
template <typename Use>
bool Core<Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  return lookup_in(*node_at(at.node, 0), Codec::text_of(key), use);
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  Batch batch;
  batch.next = typename Codec::OwnedText(Codec::text_of(from));
  do {
    copy_batch(batch, limit);
    for (const Item& item : batch.items) {
      if (!visit(item.key, item.value) || --limit == 0) return;
    }
  } while (batch.more);
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  Batch batch;
  tree::Ceiling<Content> ceiling(from);
  do {
    copy_batch_back(batch, ceiling, limit);
    for (const Item& item : batch.items) {
      if (!visit(item.key, item.value) || --limit == 0) return;
    }
  } while (batch.more);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_BZTREE_INSTANTIATE(prefix) \
  prefix template class Core<Words>;       \
  prefix template class Core<Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_BZTREE_INSTANTIATE(extern)

}  // namespace perdure::index::bztree
