// Looking at a whole tree: verification, statistics.
#include <fmt/core.h>

#include <optional>

#include "index/structure.h"
#include "index/wbtree/core.h"

namespace perdure::index::wbtree {

// Parents before their children. Each node is a copy whose version held.
template <typename Content>
void Core<Content>::visit_nodes(
    const std::function<void(const Node& node, uint64_t offset, uint32_t level)>& visit) const {
  const auto visit_below = [&](auto&& self, uint64_t at, uint32_t level) -> void {
    const Node& node = node_at(at, level);
    const StripeLock& lock = lock_of(node, level);
    Node copy;
    uint32_t stamp = 0;
    do {
      stamp = lock.begin_read();
      copy.bitmap = pm::load_acquire(node.bitmap);
      copy.separator = pm::load_relaxed(node.separator);
      Order order;
      load_order(node, order);
      store_order(copy, order);
      for (uint64_t rest = copy.bitmap & shape(level).cells(); rest != 0; rest &= rest - 1) {
        const auto cell = static_cast<uint32_t>(std::countr_zero(rest));
        copy.cell(cell) = load_cell(node, cell);
      }
    } while (!lock.validate(stamp));
    visit(copy, at, level);
    if (level == 0) return;
    for (uint64_t rest = copy.bitmap & inner_.cells(); rest != 0; rest &= rest - 1) {
      self(self, copy.cell(static_cast<uint32_t>(std::countr_zero(rest))).value, level - 1);
    }
  };
  const Top top = this->top();
  visit_below(visit_below, top.node, top.depth);
}

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  visit_nodes([&](const Node& node, uint64_t offset, uint32_t level) {
    meet(offset, shape(level).bytes());
    if constexpr (Content::kOutOfPlace) {
      if (node.separator != 0) meet(node.separator, records_.bytes(node.separator));
      if (level > 0) return;
      for (uint64_t rest = node.bitmap & leaf_.cells(); rest != 0; rest &= rest - 1) {
        const uint64_t record = node.cell(static_cast<uint32_t>(std::countr_zero(rest))).value;
        meet(record, records_.bytes(record));
      }
    }
  });
}

// ---- check

// What a node is for: keys from `low`, and below `high`.
template <typename Content>
struct Core<Content>::Range {
  std::optional<Key> low;
  std::optional<Key> high;

  static std::strong_ordering compare(const Key& a, const Key& b) {
    if constexpr (Content::kOutOfPlace) {
      return a.bytes <=> b.bytes;
    } else {
      return a <=> b;
    }
  }
  bool holds(const Key& key) const {
    return (!low || compare(*low, key) <= 0) && (!high || compare(key, *high) < 0);
  }
};

// Where the child of a record begins.
template <typename Content>
typename Core<Content>::Key Core<Content>::own_key(const Slot& above) const {
  if constexpr (Content::kOutOfPlace) {
    return Key(separator_of(*pool_.at<Node>(above.value)));  // which check_cells() has judged
  } else {
    return pool_.at<Node>(above.value)->separator;
  }
}

// Bitmap and slot array against each other, and what the records lead to. Returns whether the
// records can be read.
template <typename Content>
bool Core<Content>::check_cells(const Node& node, uint32_t level, Order& order,
                                const std::function<void(const std::string&)>& fail) const {
  if ((node.bitmap & ~(shape(level).cells() | kOrderValid)) != 0) {
    return fail("its bitmap has bits of no record"), false;
  }
  for (uint64_t rest = live_cells(node); rest != 0; rest &= rest - 1) {
    const Slot& slot = node.cell(static_cast<uint32_t>(std::countr_zero(rest)));
    if (level > 0 && (slot.value % pm::kLineBytes != 0 ||
                      !pool_.heap().is_allocated(slot.value, shape(level - 1).bytes()))) {
      return fail("a record leads to no node"), false;
    }
    if (!Content::kOutOfPlace) continue;
    if (level > 0) {
      const uint64_t separator = node_at(slot.value, level - 1).separator;
      if (separator == 0 || records_.intact(separator)) continue;
      return fail("a child's separator leads to no block"), false;
    }
    if (!records_.intact(slot.value)) return fail("a record leads to no block"), false;
    if (tree::prefix_of(records_.key(slot.value)) != slot.key) {
      fail("a record has another key than its cell says");
    }
  }
  if ((node.bitmap & kOrderValid) == 0) {
    if (level > 0) return fail("the slot array of an inner node is not valid"), false;
    sort_cells(node, order);
    return true;
  }
  load_live_order(node, node.bitmap, order);
  uint64_t listed = 0;
  for (uint32_t i = 0; i < order.count(); ++i) listed |= bit(order[i]);
  if (listed != live_cells(node) || order.count() != live_count(node)) {
    return fail("its slot array does not list each record once"), false;
  }
  return true;
}

template <typename Content>
void Core<Content>::check_node(uint64_t at, uint32_t level, const Range& range,
                               const std::function<void(const std::string&)>& fail) const {
  const Node& node = node_at(at, level);
  const auto tell = [&](const std::string& what) {
    fail(fmt::format("'{}', level {}, node {}: {}", name_, level, at, what));
  };
  Order order;
  if (!check_cells(node, level, order, tell)) return;
  if (level > 0 && order.count() == 0) return tell("it has no child");
  std::optional<Key> last;
  for (uint32_t i = 0; i < order.count(); ++i) {
    const Slot& slot = node.cell(order[i]);
    if (level == 0) {
      const Key key = key_of(slot);
      if (!range.holds(key)) tell("a key belongs elsewhere");
      if (last && Range::compare(*last, key) >= 0) tell("its keys do not ascend");
      last.emplace(key);
      continue;
    }
    Range below{i == 0 ? range.low : std::optional<Key>(own_key(slot)), range.high};
    if (i + 1 < order.count()) below.high = own_key(node.cell(order[i + 1]));
    if (i > 0 && Content::word_of(*below.low) != slot.key) {
      tell("a child's separator is not what its record says");
    }
    if (i > 0 && !range.holds(*below.low)) tell("a separator belongs elsewhere");
    if (below.low && below.high && Range::compare(*below.low, *below.high) >= 0) {
      return tell("its separators do not ascend");
    }
    check_node(slot.value, level - 1, below, fail);
  }
}

template <typename Content>
uint64_t Core<Content>::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  const Top top = this->top();
  // What nobody above it has judged.
  if (!pool_.heap().is_allocated(top.node, shape(top.depth).bytes())) {
    fail(fmt::format("'{}': the topmost node is not an allocated block", name_));
    return found;
  }
  const uint64_t separator = node_at(top.node, top.depth).separator;
  if (Content::kOutOfPlace && separator != 0 && !records_.intact(separator)) {
    fail(fmt::format("'{}': the separator of the topmost node leads to no block", name_));
    return found;
  }
  check_node(top.node, top.depth, {}, fail);
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

// ---- statistics

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t leaves = 0;
  uint64_t inner_nodes = 0;
  uint64_t invalid = 0;
  visit_nodes([&](const Node& node, uint64_t, uint32_t level) {
    if (level > 0) {
      ++inner_nodes;
      return;
    }
    ++leaves;
    records += live_count(node);
    if ((node.bitmap & kOrderValid) == 0) ++invalid;
  });
  const uint64_t rebuilt = rebuilt_.load(std::memory_order_relaxed);
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes",
           leaf_locks_.dram_bytes() + inner_locks_.dram_bytes() + pm::EpochManager::kDramBytes,
           "bytes");
  list.add("recovered_operations", rebuilt, "operations");
  list.add("records", records, "records");
  list.add("leaves", leaves, "nodes");
  list.add("inner_nodes", inner_nodes, "nodes");
  list.add("depth", top().depth, "");
  list.add_ratio("leaf_fill", records, leaves * leaf_.records, "");
  list.add("invalid_slot_arrays", invalid, "leaves");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_WBTREE_INSTANTIATE)

}  // namespace perdure::index::wbtree
