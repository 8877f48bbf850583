// Looking at a whole tree: verification, blocks, statistics.
#include <fmt/core.h>

#include "index/bztree/core.h"
#include "index/structure.h"

namespace perdure::index::bztree {

// Between which keys those of a node are: [low, high), where there are bounds.
template <typename Content>
struct Core<Content>::Bounds {
  std::optional<Text> low;
  std::optional<Text> high;
  bool hold(Text key) const { return (!low || *low <= key) && (!high || key < *high); }
};

// Calls visit(node, offset, depth) of all nodes, parents first. Needs a guard.
template <typename Content>
template <typename Visit>
void Core<Content>::walk(uint64_t offset, const Node& node, Visit visit) const {
  visit(node, offset);
  if (node.level == 0) return;
  for (uint32_t i = 0; i < node.count; ++i) {
    const uint64_t child = mwcas_.read(node.words()[i]);
    walk(child, *node_at(child, node.level - 1), visit);
  }
}

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.descriptors, pm::Mwcas::bytes_for(static_cast<uint32_t>(root_.descriptor_count)));
  const uint64_t top = mwcas_.read(root_.root);
  walk(top, *top_node(top), [&](const Node& node, uint64_t offset) {
    meet(offset, bytes_of(node));
    if constexpr (Content::kOutOfPlace) {
      if (node.level > 0) return;
      const LeafStatus status = status_of(node);
      for (uint32_t slot = 0; slot < status.slots(); ++slot) {
        const Meta meta{mwcas_.read(node.words()[slot])};
        if (!meta.visible() || !meta.out() || !is_record(meta)) continue;
        const uint64_t record = record_at(node, meta);
        meet(record, records_.bytes(record));
      }
    }
  });
}

template <typename Content>
void Core<Content>::check_leaf(const Node& leaf, const Bounds& bounds, const Report& fail) const {
  const auto say = [&](const char* what) {
    fail(fmt::format("'{}', leaf at {}: {}", name_, pool_.offset_of(&leaf), what));
  };
  const LeafStatus status{mwcas_.read(leaf.status)};
  if (status.frozen()) say("it is frozen, but in the tree");
  if (!is_status(leaf, status)) return say("its status makes no sense");
  if (status.garbage_bytes() > status.taken_bytes()) say("more is garbage than was ever there");
  const uint32_t records_from = node_bytes_ - status.used_bytes();
  for (uint32_t slot = 0; slot < status.slots(); ++slot) {
    const Meta meta{mwcas_.read(leaf.words()[slot])};
    if (meta.word == 0) continue;
    if (!is_record(meta) || meta.offset() < records_from) {
      return say("a record is outside of the space of records");
    }
    if (meta.visible() && meta.out() && !records_.intact(record_at(leaf, meta))) {
      return say("a record's block is not there");
    }
    if constexpr (Content::kOutOfPlace) {
      if (meta.visible() && !meta.out() && !Codec::is_intact(leaf.bytes() + meta.offset(), meta)) {
        return say("a record's checksum does not hold");
      }
    }
  }
  std::vector<Item> items;
  collect(leaf, status, items);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!bounds.hold(items[i].key)) say("a key belongs into another leaf");
    if (i == 0 || items[i - 1].key < items[i].key) continue;
    say(items[i - 1].key == items[i].key ? "a key is there twice" : "its records are not sorted");
  }
}

template <typename Content>
void Core<Content>::check_node(uint64_t offset, uint32_t level, const Bounds& bounds,
                               const Report& fail) const {
  const auto say = [&](const char* what) {
    fail(fmt::format("'{}', node at {}: {}", name_, offset, what));
  };
  if (offset % pm::kLineBytes != 0 || !pool_.leads_inside(offset, node_bytes_)) {
    return say("it is outside of the pool");
  }
  const Node& node = *pool_.at<Node>(offset);
  if (node.level != level) return say("it is of another level than its place");
  if (level == 0) {
    if (!pool_.heap().is_allocated(offset, node_bytes_)) return say("it is not allocated");
    return check_leaf(node, bounds, fail);
  }
  if (!is_inner(node)) return say("its count makes no sense");
  for (uint32_t i = 0; i + 1 < node.count; ++i) {
    if (!is_separator(node, i)) return say("a separator is outside of it");
  }
  if (!pool_.heap().is_allocated(offset, bytes_of(node))) {
    return say("it is not allocated");
  }
  if ((mwcas_.read(node.status) & kFrozen) != 0) say("it is frozen, but in the tree");
  Bounds below = bounds;
  for (uint32_t i = 0; i < node.count; ++i) {
    below.high = bounds.high;
    if (i + 1 < node.count) {
      below.high = separator_at<Content>(node, i);
      if (!bounds.hold(*below.high)) say("a separator is outside of its node's bounds");
      if (below.low && !(*below.low < *below.high)) say("its separators are not sorted");
    }
    check_node(mwcas_.read(node.words()[i]), level - 1, below, fail);
    below.low = below.high;
  }
}

template <typename Content>
uint64_t Core<Content>::check(const Report& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t top = mwcas_.read(root_.root);
  check_node(top, top_node(top)->level, {}, fail);
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t leaves = 0;
  uint64_t inner = 0;
  uint64_t live_bytes = 0;
  const uint64_t top = mwcas_.read(root_.root);
  walk(top, *top_node(top), [&](const Node& node, uint64_t) {
    (node.level == 0 ? leaves : inner) += 1;
    if (node.level > 0) return;
    const LeafStatus status = status_of(node);
    live_bytes += status.live_bytes();
    for (uint32_t slot = 0; slot < status.slots(); ++slot) {
      records += Meta{mwcas_.read(node.words()[slot])}.visible() ? 1 : 0;
    }
  });
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", mwcas_.dram_bytes() + pm::EpochManager::kDramBytes, "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", records, "records");
  list.add("depth", top_node(top)->level + uint64_t{1}, "");
  list.add("leaves", leaves, "nodes");
  list.add("inner_nodes", inner, "nodes");
  list.add("helped_operations", mwcas_.helped(), "operations");
  list.add_ratio("leaf_fill", live_bytes, leaves * room_of(node_bytes_), "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_BZTREE_INSTANTIATE)

}  // namespace perdure::index::bztree
