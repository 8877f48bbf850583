// Looking at a whole tree: verification, blocks, statistics.
#include <fmt/core.h>

#include "index/bwtree/core.h"

namespace perdure::index::bwtree {

template <typename Content>
template <typename Visit>
void Core<Content>::for_each_node(Visit visit) const {
  const uint64_t entries = entries_.load(std::memory_order_acquire);
  for (uint32_t id = kRootId; id < entries; ++id) {
    Seen seen;
    if (see_unless_unborn(id, seen)) visit(seen);
  }
}

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  for (uint32_t chunk = 0; chunk < kChunks && root_.chunks[chunk] != 0; ++chunk) {
    meet(root_.chunks[chunk], (first_of(chunk + 1) - first_of(chunk)) * sizeof(uint64_t));
  }
  for_each_node([&](const Seen& at) {
    meet(at.block(), at.node->bytes);
    if (kWords || at.node->level > 0) return;
    Parts parts;
    collect(at, parts);
    for (const uint64_t record : parts.superseded) meet(record, records_.bytes(record));
    if (is_absorbed(at)) return;
    for (const Slot& item : parts.items) meet(item.value, records_.bytes(item.value));
  });
}

template <typename Content>
void Core<Content>::check_node(const Seen& at, const Report& fail) const {
  const auto say = [&](const char* what) {
    fail(fmt::format("'{}', node {} at {}: {}", name_, at.id, at.block(), what));
  };
  const Node& node = *at.node;
  if (!pool_.heap().is_allocated(at.block(), node.bytes)) say("it is not allocated");
  if (checksum_of(node) != node.checksum) return say("its checksum does not hold");
  if (!at.firm() && pool_.failed() == false) say("it was left unfinished");
  if (at.frozen() && at.id != pending_.load(std::memory_order_relaxed)) say("it is frozen");
  Parts parts;
  take_apart(at, parts);
  if (node.level == 0 && live_of(at) != parts.items.size())
    say("it counts other records than it has");
  const Key low = key_of(low_of(node));
  const Key high = key_of(range_of(node).high);
  for (size_t i = 0; i < parts.items.size(); ++i) {
    const Slot& item = parts.items[i];
    Slot before{};
    if (i > 0) before = parts.items[i - 1];
    if (node.level > 0) {
      const Slot& stored = node.items()[i];
      const Key key = key_of({item.key, parts.text(i)});
      if (i == 0 ? order(node, stored.key, text_of(stored), low) != 0
                 : order(node, node.items()[i - 1].key, text_of(node.items()[i - 1]), key) >= 0) {
        say("its keys are not in order");
      }
      if (node.right != 0 && order(node, node.high, node.high_text, key) <= 0)
        say("a key is behind its range");
      Seen child;
      if (!see(child_of(stored), child)) {
        say("a child is not there");
      } else if (child.node->level + 1U != node.level ||
                 order(*child.node, child.node->low, child.node->low_text, key) != 0) {
        say("a child is not the one that belongs there");
      }
      continue;
    }
    if constexpr (!kWords) {
      if (!records_.intact(item.value)) {
        say("a record is not there, or damaged");
        continue;
      }
      if (tree::prefix_of(records_.key(item.value)) != item.key)
        say("a record has another key than its place says");
    }
    if (i > 0 && order(before, item) >= 0) say("its keys are not in order");
    if (tree::compare<Content>(records_, item, low) < 0 ||
        (node.right != 0 && tree::compare<Content>(records_, item, high) >= 0)) {
      say("a key is outside of its range");
    }
  }
}

// Level by level from the left to the right; then no node may be left.
template <typename Content>
void Core<Content>::check_all(const Report& fail) const {
  std::vector<bool> met(entries_.load(std::memory_order_acquire));
  Seen first;
  if (!see(kRootId, first)) throw_damaged(kRootId, "is no node");
  for (;;) {
    Seen at = first;
    for (;;) {
      if (met[at.id]) throw_damaged(at.id, "is met twice");
      met[at.id] = true;
      check_node(at, fail);
      if (at.node->right == 0) break;
      Seen next;
      if (!see(at.node->right, next)) throw_damaged(at.id, "leads to no node at its right");
      if (next.node->level != at.node->level ||
          order(*next.node, next.node->low, next.node->low_text, key_of(range_of(*at.node).high)) !=
              0) {
        throw_damaged(at.id, "leads to another node at its right than the one that belongs there");
      }
      at = next;
    }
    if (first.node->level == 0) break;
    const uint32_t child = child_of(first.node->items()[0]);
    if (!see(child, first)) throw_damaged(child, "is no node");
  }
  for_each_node([&](const Seen& at) {
    if (!met[at.id] && !is_absorbed(at)) throw_damaged(at.id, "is a node that nothing leads to");
  });
  check_owners(*this, pool_, name_, fail);
}

template <typename Content>
uint64_t Core<Content>::check(const Report& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  const pm::EpochManager::Guard guard(epochs_);
  try {
    check_all(fail);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    fail(error.what());
  }
  return found;
}

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t leaves = 0;
  uint64_t inner = 0;
  uint64_t deltas = 0;
  for_each_node([&](const Seen& at) {
    if (is_absorbed(at)) return;
    (at.node->level == 0 ? leaves : inner) += 1;
    if (at.node->level > 0) return;
    records += live_of(at);
    if (at.head != 0) deltas += delta_of(*at.node, at.head).length;
  });
  Seen top;
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", sizeof(*this) + pm::EpochManager::kDramBytes, "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", records, "records");
  list.add("depth", see(kRootId, top) ? top.node->level + uint64_t{1} : 0, "");
  list.add("leaves", leaves, "nodes");
  list.add("inner_nodes", inner, "nodes");
  list.add_ratio("chain", deltas, leaves, "deltas");
  list.add_ratio("leaf_fill", records, leaves * node_keys_, "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_BWTREE_INSTANTIATE)

}  // namespace perdure::index::bwtree
