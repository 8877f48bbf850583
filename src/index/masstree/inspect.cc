// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include <unordered_set>

#include "index/masstree/core.h"
#include "index/structure.h"

namespace perdure::index::masstree {

// Calls on_layer(layer, depth) and on_node(node, depth) for all from a layer on, of which there are
// so many nodes at most.
template <typename Policy, typename Content>
template <typename OnLayer, typename OnNode>
void Core<Policy, Content>::visit_layer(const Layer& layer, uint32_t depth, uint64_t& nodes_left,
                                        OnLayer& on_layer, OnNode& on_node) const {
  if (depth > kDepthMax) throw_damaged(node_at(layer.top));
  on_layer(layer, depth);
  std::vector<const Node*> open = {&node_at(pm::load_acquire(layer.top))};
  while (!open.empty()) {
    const Node& node = *open.back();
    open.pop_back();
    if (nodes_left-- == 0) throw_damaged(node);  // a way leads back
    on_node(node, depth);
    if (node.level > 0) open.push_back(&require_child(node, node_at(node.leftmost)));
    for (const Entry& entry : entries_of(node)) {
      if (node.level > 0) {
        open.push_back(&require_child(node, node_at(entry.value)));
      } else if (is_layer(entry.value)) {
        visit_layer(layer_at(entry.value), depth + 1, nodes_left, on_layer, on_node);
      }
    }
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  const auto on_layer = [&](const Layer& layer, uint32_t) {
    if (&layer != &root_.first) meet(pool_.offset_of(&layer), sizeof(Layer));
  };
  const auto on_node = [&](const Node& node, uint32_t) {
    meet(pool_.offset_of(&node), sizeof(Node));
    if (kWords || node.level > 0) return;
    for (const Entry& entry : entries_of(node)) {
      if (!is_layer(entry.value)) meet(entry.value, records_.bytes(entry.value));
    }
  };
  visit_all(on_layer, on_node);
}

// Follows nothing that it has not judged.
template <typename Policy, typename Content>
class Core<Policy, Content>::Checker {
 public:
  Checker(const Core& core, const std::function<void(const std::string&)>& report)
      : core_(core), report_(report) {}

  uint64_t check() {
    check_layer(core_.root_.first, 0, {});
    return found_;
  }

 private:
  struct Range {
    bool has_low = false;
    bool has_high = false;
    Slice low;
    Slice high;
    bool covers(Slice slice) const {
      return (!has_low || slice >= low) && (!has_high || slice < high);
    }
  };

  void fail(const char* text, uint64_t offset) {
    report_(fmt::format("'{}': what is at {} {}", core_.name_, offset, text));
    ++found_;
  }
  bool sound_block(uint64_t offset, uint64_t bytes) {
    return core_.pool_.leads_inside(offset, bytes) &&
           core_.pool_.heap().is_allocated(offset, bytes) && met_.insert(offset).second;
  }

  void check_layer(const Layer& layer, uint32_t depth, const std::string& prefix) {
    if (depth > kDepthMax) return fail("is a layer too deep", core_.pool_.offset_of(&layer));
    if (core_.is_obsolete(layer))
      fail("was taken away, but is in use", core_.pool_.offset_of(&layer));
    std::vector<const Node*> borders;
    if (!core_.pool_.leads_inside(layer.top, sizeof(Node)))
      return fail("is a layer without a top", core_.pool_.offset_of(&layer));
    const auto level = core_.pool_.template at<Node>(layer.top)->level;
    if (level >= kLevelsMax) return fail("is a top too high", layer.top);
    check_node(layer.top, level, {}, depth, prefix, borders);
    if (found_ > 0) return;
    for (size_t i = 0; i < borders.size(); ++i) {
      const uint64_t next = i + 1 < borders.size() ? core_.pool_.offset_of(borders[i + 1]) : 0;
      if (borders[i]->next != next)
        fail("leads to another neighbour than its own", core_.pool_.offset_of(borders[i]));
    }
  }

  void check_node(uint64_t offset, uint32_t level, const Range& range, uint32_t depth,
                  const std::string& prefix, std::vector<const Node*>& borders) {
    if (!sound_block(offset, sizeof(Node)))
      return fail("is no node, or one with two parents", offset);
    const Node& node = *core_.pool_.template at<Node>(offset);
    const Permutation permutation = permutation_of(node);
    if (node.level != level)
      return fail("is a node of another level than its place is for", offset);
    if (!permutation.sound()) return fail("is a node with a damaged permutation", offset);
    if (core_.is_obsolete(node)) return fail("was taken away, but is in use", offset);
    const Entries entries = entries_of(node);
    for (size_t i = 0; i < entries.count; ++i) {
      const Slice slice = entries[i].slice;
      if (slice.length > kLonger || !range.covers(slice))
        return fail("has a slice out of place", offset);
      if (i > 0 && entries[i - 1].slice >= slice) return fail("has slices out of order", offset);
    }
    if (level == 0) {
      borders.push_back(&node);
      for (const Entry& entry : entries) check_entry(entry, depth, prefix);
      return;
    }
    Range below = range;
    uint64_t child = node.leftmost;
    for (const Entry& entry : entries) {
      below.has_high = true;
      below.high = entry.slice;
      check_node(child, level - 1, below, depth, prefix, borders);
      if (found_ > 0) return;
      below.has_low = true;
      below.low = entry.slice;
      child = entry.value;
    }
    below.has_high = range.has_high;
    below.high = range.high;
    check_node(child, level - 1, below, depth, prefix, borders);
  }

  void check_entry(const Entry& entry, uint32_t depth, const std::string& prefix) {
    if constexpr (!kWords) {
      if (is_layer(entry.value)) {
        const uint64_t offset = entry.value & ~kLayerTag;
        if (entry.slice.length != kLonger || !sound_block(offset, sizeof(Layer)))
          return fail("is no layer, but a slice leads there", offset);
        const uint64_t word = __builtin_bswap64(entry.slice.word);
        check_layer(*core_.pool_.template at<Layer>(offset), depth + 1,
                    prefix + std::string(reinterpret_cast<const char*>(&word), sizeof word));
        return;
      }
      if (!core_.records_.intact(entry.value))
        return fail("is no record, or one whose checksum does not hold", entry.value);
      const std::string_view key = core_.records_.key(entry.value);
      if (!key.starts_with(prefix) || slice_of(rest_of(key, depth)) != entry.slice)
        fail("has another key than its place is for", entry.value);
    }
  }

  const Core& core_;
  const std::function<void(const std::string&)>& report_;
  std::unordered_set<uint64_t> met_;
  uint64_t found_ = 0;
};

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::check(const std::function<void(const std::string&)>& report) const {
  const pm::EpochManager::Guard guard(epochs_);
  uint64_t found = Checker(*this, report).check();
  if (found > 0) return found;
  check_owners(*this, pool_, name_, [&](const std::string& text) { report(text), ++found; });
  return found;
}

template <typename Policy, typename Content>
std::vector<Statistic> Core<Policy, Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t layers = 0;
  uint64_t depth = 0;
  uint64_t borders = 0;
  uint64_t interior = 0;
  uint64_t records = 0;
  const auto on_layer = [&](const Layer&, uint32_t at) {
    ++layers;
    depth = std::max<uint64_t>(depth, at + 1);
  };
  const auto on_node = [&](const Node& node, uint32_t) {
    if (node.level > 0) {
      ++interior;
      return;
    }
    ++borders;
    for (const Entry& entry : entries_of(node)) records += is_layer(entry.value) ? 0 : 1;
  };
  visit_all(on_layer, on_node);
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", stripes_.dram_bytes() + pm::EpochManager::kDramBytes, "bytes");
  list.add("recovered_operations", 0, "operations");  // there is nothing to recover
  list.add("records", records, "records");
  list.add("layers", layers, "layers");
  list.add("layers_deep", depth, "layers");
  list.add("border_nodes", borders, "nodes");
  list.add("interior_nodes", interior, "nodes");
  list.add("node_entries_max", kSlots, "entries");
  list.add_ratio("fill", records + layers - 1, borders * kSlots, "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_MASSTREE_INSTANTIATE)

}  // namespace perdure::index::masstree
