// Making, opening, and writing single records.
#include <fmt/core.h>

#include <bit>
#include <cstring>

#include "index/fastfair/core.h"

namespace perdure::index::fastfair {

template <typename Policy, typename Content>
Core<Policy, Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      generation_(pool.generation()),
      obsolete_mark_(obsolete_mark(pool.generation())),
      node_bytes_(root.node_bytes),
      slots_(static_cast<uint32_t>((root.node_bytes - Policy::kHeaderBytes) / sizeof(Entry))),
      records_(pool, epochs_),
      stripes_(uint64_t{1} << kStripeBits) {}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::create(pm::PoolImpl& pool,
                                                                     const std::string& name,
                                                                     Kind key, Kind value,
                                                                     const Options& options) {
  require_range("node_bytes", options.node_bytes, kNodeBytesMin, kNodeBytesMax);
  const uint64_t node_bytes = options.node_bytes != 0 ? options.node_bytes : Policy::kNodeBytes;
  if (!std::has_single_bit(node_bytes)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("node_bytes is {}; it must be a power of two", node_bytes));
  }
  Root image{};
  image.seal.magic = kRootMagic;
  image.node_bytes = node_bytes;
  const auto fill = [&](char* block) {
    std::memset(block, 0, node_bytes);
    auto* leaf = reinterpret_cast<Node*>(block);
    leaf->sibling = kFirstTurn;
    leaf->generation = pool.generation();
    pool.memory().flush(block, node_bytes);
  };
  const NewBlock leaf[1] = {{node_bytes, offsetof(Root, top), fill}};
  const uint64_t root = make_structure(pool, name, Policy::kName, key, value, &image, sizeof image,
                                       kSealedBytes, leaf);
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::open(pm::PoolImpl& pool,
                                                                   const std::string& name,
                                                                   Kind key, Kind value,
                                                                   const Options& options) {
  require_range("node_bytes", options.node_bytes, kNodeBytesMin, kNodeBytesMax);
  const uint64_t at =
      find_structure(pool, name, Policy::kName, key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  if (root.node_bytes < kNodeBytesMin || root.node_bytes > kNodeBytesMax ||
      !std::has_single_bit(root.node_bytes) || root.top % kNodeBytesMin != 0 ||
      !pool.heap().is_allocated(root.top, root.node_bytes) ||
      pool.at<Node>(root.top)->level >= kLevelsMax) {
    throw pool.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the top node of '{}' is damaged; restore the file from a backup",
                          pool.mapping().path(), name)));
  }
  require_same(pool, name, "node_bytes", options.node_bytes, root.node_bytes);
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::throw_damaged(const Node& node) const {
  pool_.throw_corrupt(fmt::format("'{}': the node at {} is not the one that its place is for",
                                  name_, pool_.offset_of(&node)));
}

// ---- locks

// The node of a level that covers the key: locked, whole, and alive. Nodes on the way are made
// whole, and those that were found by going right get their entry in the parent. Holds no lock on
// the way.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Locked Core<Policy, Content>::lock_node(const Key& key,
                                                                        uint32_t level) {
  const auto pass = [&](Node& node) {
    if (pm::load_relaxed(node.generation) == generation_) [[likely]]
      return;
    const Held held(*this, node);
    if (!is_obsolete(node)) make_whole(node);
  };
  for (uint32_t attempts = 0;;) {
    Node* node = descend(key, level, pass, [&](Node& right) { adopt(right); });
    while (node != nullptr) {
      Held held(*this, *node);
      if (is_obsolete(*node)) break;
      make_whole(*node);
      const Position found = position(*node, key);
      Node* right = found.found || found.at < found.count ? nullptr : right_of(*node, key);
      if (right == nullptr) return {std::move(held), node, found};
      held.release();
      adopt(require_right(*node, *right));
      node = right;
    }
    if (node == nullptr) return {};
    begin_again(attempts, *node);
  }
}

// ---- records in a locked leaf

// The value, or the offset of the record.
template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::stored(Node& leaf, const Position& position) const {
  const Entry& entry = entries_of(leaf)[position.at];
  return pm::load_relaxed(kWords ? entry.other : entry.mark);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::put(Node& leaf, const Position& position, const Key& key,
                                const Value& value) {
  if constexpr (kWords) {
    begin_change(leaf);
    insert_entry(leaf, position, {key, value});
    memory_.fence();  // before anybody can see it
  } else {
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t record = records_.make(txn, key.bytes, value);
    // The word of the final store: nowhere else in the node, and not there before it.
    txn.will_link(record, &entries_of(leaf)[position.at].mark, pm::Link::kOffset);
    // The record and the intent, before the entry leads to it.
    txn.commit([&] {
      begin_change(leaf);
      insert_entry(leaf, position, {record, key.prefix});
    });
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::replace(Node& leaf, const Position& position, const Key& key,
                                    const Value& value) {
  Entry& entry = entries_of(leaf)[position.at];
  if constexpr (kWords) {
    (void)key;
    begin_change(leaf);
    pm::store_release(entry.other, value);
    memory_.persist(&entry.other, sizeof entry.other);  // before anybody can see it
  } else {
    records_.relink(entry.mark, key.bytes, value, [&] { begin_change(leaf); });
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::take_out(Node& leaf, const Position& position) {
  if constexpr (kWords) {
    begin_change(leaf);
    remove_entry(leaf, position.at, position.count);
    memory_.fence();  // before anybody can miss it
  } else {
    uint64_t& mark = entries_of(leaf)[position.at].mark;
    const uint64_t record = pm::load_relaxed(mark);
    pm::Heap::Txn txn(pool_.heap(), true);
    // The first store of the shift gives this word another mark, and it keeps that.
    txn.will_unlink(record, &mark, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
    // The intent, before the entry is gone.
    txn.commit([&] {
      begin_change(leaf);
      remove_entry(leaf, position.at, position.count);
    });
    records_.retire(record);
  }
}

// ---- the record with key 0, in the header of the first leaf: value and has_zero in one line

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_zero(const Condition& condition, Node& leaf, const Value& value) {
  if constexpr (kWords) {
    const bool found = leaf.has_zero != 0;
    const bool goes_on =
        found ? condition.holds_for(records_, leaf.leftmost) : condition.holds_if_absent();
    if (!goes_on) return false;
    begin_change(leaf);
    pm::store_release(leaf.leftmost, value);
    if (!found) pm::store_release(leaf.has_zero, uint16_t{1});  // commits
    memory_.persist(&leaf, sizeof leaf);                        // before anybody can see it
  }
  return true;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::remove_zero(Node& leaf, const Condition& condition) {
  if (leaf.has_zero == 0 || !condition.holds_for(records_, leaf.leftmost)) return false;
  begin_change(leaf);
  pm::store_release(leaf.has_zero, uint16_t{0});
  memory_.persist(&leaf.has_zero, sizeof leaf.has_zero);  // before anybody can miss it
  return true;
}

// ---- single records

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_once(const Condition& condition, const Key& key,
                                       const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    Locked leaf = lock_node(key, 0);
    if constexpr (kWords) {
      if (key == 0) return write_zero(condition, *leaf.node, value);
    }
    if (leaf.position.found) {
      if (!condition.holds_for(records_, stored(*leaf.node, leaf.position))) return false;
      replace(*leaf.node, leaf.position, key, value);
      return true;
    }
    if (!condition.holds_if_absent()) return false;
    if (leaf.position.count < slots_) {
      put(*leaf.node, leaf.position, key, value);
      return true;
    }
    Node& right = split(*leaf.node, leaf.position.count);
    leaf.held.release();
    adopt(right);
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (!kWords) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  return records_.with_reclaim([&] { return write_once(condition, key, value); });
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const pm::EpochManager::Guard guard(epochs_);
  uint32_t left = 0;
  {
    const Locked leaf = lock_node(key, 0);
    if constexpr (kWords) {
      if (key == 0) return remove_zero(*leaf.node, condition);
    }
    if (!leaf.position.found) return false;
    if (!condition.holds_for(records_, stored(*leaf.node, leaf.position))) return false;
    take_out(*leaf.node, leaf.position);
    left = leaf.position.count - 1;
  }
  if (is_sparse(left)) shrink(key, left == 0);
  return true;
}

PERDURE_FASTFAIR_INSTANTIATE()

}  // namespace perdure::index::fastfair
