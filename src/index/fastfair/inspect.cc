// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include <unordered_set>

#include "index/fastfair/core.h"
#include "index/structure.h"

namespace perdure::index::fastfair {

// The nodes of a level, found by going right.
template <typename Policy, typename Content>
struct Core<Policy, Content>::Level {
  std::unordered_set<const Node*> nodes;
};

// What counts, whatever a crash may have left beside it.
template <typename Policy, typename Content>
std::vector<Entry> Core<Policy, Content>::counting_entries(const Node& node) const {
  std::vector<Entry> entries;
  const StripeLock& lock = stripe_of(node);
  for (;;) {
    const uint32_t stamp = lock.begin_read();
    entries.clear();
    each_entry(node, [&](const Entry& entry) { return entries.push_back(entry), true; });
    const Node* sibling = sibling_of(node);
    while (sibling != nullptr && !entries.empty() &&
           !is_below(key_of(entries.back(), is_leaf(node)), *sibling, *this)) {
      entries.pop_back();
    }
    if (lock.validate(stamp)) return entries;
  }
}

template <typename Policy, typename Content>
Node& Core<Policy, Content>::first_of(uint32_t level) const {
  Node* node = &top();
  while (node->level > level) node = &require_child(*node, leftmost_of(*node));
  return *node;
}

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::visit_level(uint32_t level, Visit visit) const {
  for (Node* node = &first_of(level);;) {
    visit(*node);
    Node* next = sibling_of(*node);
    if (next == nullptr) return;
    node = &require_right(*node, *next);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  const uint32_t levels = top().level + 1U;
  for (uint32_t level = 0; level < levels; ++level) {
    visit_level(level, [&](const Node& node) {
      meet(pool_.offset_of(&node), node_bytes_);
      if constexpr (!kWords) {
        if (level > 0) return;
        if (node.low_key != 0) meet(node.low_key, records_.bytes(node.low_key));
        for (const Entry& entry : counting_entries(node)) {
          meet(entry.mark, records_.bytes(entry.mark));
        }
      }
    });
  }
}

// What a writer of this generation has made sure of, and kept.
template <typename Policy, typename Content>
void Core<Policy, Content>::check_wholeness(
    const Node& node, const std::function<void(const std::string&)>& fail) const {
  if (node.generation != generation_) return;
  const uint32_t count = count_entries(node);
  if (counting_entries(node).size() != count) fail("it holds entries that do not count");
  for (uint32_t i = count; i < slots_; ++i) {
    if (entries_of(node)[i].mark != 0) return fail("an entry stands behind its end");
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::check_node(const Node& node, const Level& below,
                                       const std::function<void(const std::string&)>& fail) const {
  const bool leaf = is_leaf(node);
  const bool first = &node == &first_of(node.level);
  if (is_obsolete(node)) fail("it was merged away, but is in use");
  if (first && (node.low != 0 || node.low_key != 0)) fail("the first node has a lowest key");
  if constexpr (kWords) {
    if (node.has_zero > (leaf && first ? 1 : 0)) fail("it claims to hold key 0");
  } else if (leaf) {
    if (!first && (!records_.intact(node.low_key) ||
                   tree::prefix_of(records_.key(node.low_key)) != node.low)) {
      return fail("its lowest key is damaged");
    }
    bool sound = true;
    each_entry(node, [&](const Entry& entry) {
      sound =
          records_.intact(entry.mark) && tree::prefix_of(records_.key(entry.mark)) == entry.other;
      return sound;
    });
    if (!sound) return fail("an entry does not lead to a record of its key");
  }
  const auto check_child = [&](uint64_t offset, uint64_t low) {
    const bool known =
        offset % kNodeBytesMin == 0 && below.nodes.contains(pool_.at<const Node>(offset));
    if (!known || node_at(offset).low != low) fail("an entry does not lead to its child");
    return known;
  };
  if (!leaf && check_child(node.leftmost, node.low) && leftmost_of(node).low_key != node.low_key) {
    fail("its lowest key is not that of its first child");
  }
  bool sound = true;
  if (!leaf) {
    each_entry(node,
               [&](const Entry& entry) { return sound = check_child(entry.mark, entry.other); });
  }
  if (!sound) return;
  const std::vector<Entry> entries = counting_entries(node);
  for (size_t i = 0; i + 1 < entries.size(); ++i) {
    if (compare(entries[i], leaf, key_of(entries[i + 1], leaf)) >= 0)
      fail("its keys do not ascend");
  }
  if (!first && !entries.empty()) {
    // An inner node's leftmost child already begins with its lowest key.
    const std::strong_ordering order = compare(entries[0], leaf, low_of(node));
    if (leaf ? order < 0 : order <= 0) fail("a key is too low for it");
  }
  check_wholeness(node, fail);
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::check(const std::function<void(const std::string&)>& report) const {
  const pm::EpochManager::Guard guard(epochs_);
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) {
    report(fmt::format("'{}': {}", name_, text)), ++found;
  };
  const auto sound = [&](uint64_t offset, uint32_t level) {
    if (offset % kNodeBytesMin != 0 || !pool_.heap().is_allocated(offset, node_bytes_))
      return false;
    const Node& one = node_at(offset);
    return one.level == level && (kWords || one.low_key == 0 || records_.intact(one.low_key));
  };
  const uint32_t levels = top().level + 1U;
  // The way to the first leaf, before anything relies on it.
  const Node* node = &top();
  for (uint32_t level = levels - 1; level > 0; --level, node = &leftmost_of(*node)) {
    if (!sound(node->leftmost, level - 1)) return fail("a first child is damaged"), found;
  }
  Level below;
  for (uint32_t level = 0; level < levels && found == 0; ++level) {
    Level here;
    for (const Node* one = &first_of(level); one != nullptr && found == 0; one = sibling_of(*one)) {
      const uint64_t next = sibling_offset(one->sibling);
      const auto tell = [&](const std::string& text) {
        fail(fmt::format("node {} of level {}: {}", pool_.offset_of(one), level, text));
      };
      if (!here.nodes.insert(one).second) tell("it is its own neighbour");
      if (toggle_of(one->sibling) == 0 || toggle_of(one->sibling) == kToggleMask)
        tell("it has no toggle bit");
      if (next != 0 && (!sound(next, level) || (!kWords && node_at(next).low_key == 0))) {
        tell("its sibling is damaged");
      } else if (next != 0 && one != &first_of(level) &&
                 !is_below(low_of(*one), node_at(next), *this)) {
        tell("its sibling is not to the right of it");
      } else {
        check_node(*one, below, tell);
      }
      if (found > 0) break;
    }
    below = std::move(here);
  }
  if (found > 0) return found;
  check_owners(*this, pool_, name_, [&](const std::string& text) { report(text), ++found; });
  return found;
}

template <typename Policy, typename Content>
std::vector<Statistic> Core<Policy, Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t leaves = 0;
  visit_level(0, [&](const Node& leaf) {
    records += counting_entries(leaf).size() + (kWords ? leaf.has_zero : 0);
    ++leaves;
  });
  uint64_t inner = 0;
  for (uint32_t level = 1; level <= top().level; ++level) {
    visit_level(level, [&](const Node&) { ++inner; });
  }
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", stripes_.dram_bytes() + pm::EpochManager::kDramBytes, "bytes");
  list.add("recovered_operations", recovered_operations_.load(std::memory_order_relaxed),
           "operations");
  list.add("records", records, "records");
  list.add("depth", top().level + 1U, "levels");
  list.add("leaves", leaves, "nodes");
  list.add("inner_nodes", inner, "nodes");
  list.add("node_entries_max", slots_, "entries");
  list.add_ratio("fill", records, leaves * slots_, "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_FASTFAIR_INSTANTIATE)

}  // namespace perdure::index::fastfair
