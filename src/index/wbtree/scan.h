// Scans: leaf by leaf, each copied and its version validated before it is handed out. No lock is
// held, and of the tree's shape nothing is relied on but the key where the next leaf begins: what
// splits and merges do in between neither hides nor repeats a record.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "index/wbtree/core.h"

namespace perdure::index::wbtree {

template <typename Content>
bool Core<Content>::path_holds(const Path& path, uint32_t from_level) const {
  for (uint32_t level = from_level; level <= path.depth; ++level) {
    if (!lock_of(*path[level].node, level).validate(path[level].stamp)) return false;
  }
  return top_lock_.validate(path.top_stamp);
}

// The key of a parent's record. Returns whether it is what the step's version says.
template <typename Content>
bool Core<Content>::read_bound(const Step& parent, uint32_t level, uint32_t cell,
                               Bound& bound) const {
  Seen seen{&lock_of(*parent.node, level), parent.stamp};
  const Slot slot{pm::load_relaxed(cell_of(*parent.node, level, cell).key),
                  pm::load_relaxed(cell_of(*parent.node, level, cell).value)};
  if (!seen.validate()) return false;
  bound.end = false;
  if constexpr (Content::kOutOfPlace) {
    bound.key = separator_of(node_at(slot.value, level - 1));
  } else {
    bound.key = slot.key;
  }
  return seen.validate();
}

// Where the leaf after the family's last one begins: the next record of the lowest node above that
// has one.
template <typename Content>
bool Core<Content>::bound_after_family(const Family& family, Bound& bound) const {
  const Path& path = family.path;
  for (uint32_t level = 2; level <= path.depth; ++level) {
    Seen seen{&lock_of(*path[level].node, level), path[level].stamp};
    Order order;
    load_order(*path[level].node, order);
    const uint32_t position =
        position_of(order, *path[level].node, level, offset_of(*path[level - 1].node));
    if (!seen.validate()) return false;
    if (position == order.count()) {
      throw_damaged(offset_of(*path[level].node), level, "does not list its child");
    }
    if (position + 1 < order.count()) {
      return read_bound(path[level], level, order[position + 1], bound);
    }
  }
  bound.end = true;
  return true;
}

template <typename Content>
void Core<Content>::find_family(const Key& key, Family& family) const {
  for (Backoff backoff;; backoff.pause()) {
    descend(key, 1, family.path);
    family.position = 0;
    if (family.path.depth == 0) return;
    const Step& parent = family.path[1];
    Seen seen{&lock_of(*parent.node, 1), parent.stamp};
    load_order(*parent.node, family.order);
    family.position = child_position(*parent.node, 1, family.order, key, seen);
    if (seen.validate()) return;
  }
}

// Copies a leaf's records in order. Returns whether the leaf's version held.
template <typename Content>
bool Core<Content>::copy_leaf(const Node& leaf, uint32_t stamp, Leaf& out, uint32_t& count) const {
  const uint64_t bitmap = pm::load_acquire(leaf.bitmap);
  const bool sorted = (bitmap & kOrderValid) != 0;
  count = 0;
  if (sorted) [[likely]] {
    Order order;
    load_live_order(leaf, bitmap, order);
    for (uint32_t i = 0; i < std::min(order.count(), kRecordsMax); ++i) {
      cell_of(leaf, 0, order[i]);
      out[count++] = load_cell(leaf, order[i]);
    }
  } else {
    for (uint64_t rest = bitmap & leaf_.cells(); rest != 0; rest &= rest - 1) {
      out[count++] = load_cell(leaf, static_cast<uint32_t>(std::countr_zero(rest)));
    }
  }
  if (!lock_of(leaf, 0).validate(stamp)) return false;
  if (!sorted) {
    std::sort(out.begin(), out.begin() + count, [&](const Slot& a, const Slot& b) {
      return tree::compare<Content>(records_, a, key_of(b)) < 0;
    });
  }
  return true;
}

// Copies the leaf at the family's position, and says where the next one begins. Returns false if
// the tree has changed meanwhile.
template <typename Content>
bool Core<Content>::copy_next(const Family& family, Bound& after, Leaf& out,
                              uint32_t& count) const {
  const Path& path = family.path;
  if (path.depth == 0) {
    after.end = true;
    return copy_leaf(*path[0].node, path[0].stamp, out, count);
  }
  const bool last = family.position + 1 >= family.order.count();
  if (last) {
    if (!bound_after_family(family, after)) return false;
  } else if (!read_bound(path[1], 1, family.order[family.position + 1], after)) {
    return false;
  }
  const uint64_t at =
      pm::load_relaxed(cell_of(*path[1].node, 1, family.order[family.position]).value);
  const uint32_t stamp = lock_at(at, 0).begin_read();
  // The bound is true at the instant of the leaf's stamp, so that no record of the copy lies behind
  // it.
  if (last ? !path_holds(path, 1) : !lock_of(*path[1].node, 1).validate(path[1].stamp)) {
    return false;
  }
  return copy_leaf(node_at(at, 0), stamp, out, count);
}

// Visits records from `from` on, as long as one parent's leaves go and nothing but leaves changes;
// `from` is then where to go on. Returns whether to go on.
template <typename Content>
template <typename Visit>
bool Core<Content>::scan_family(Bound& from, uint64_t& left, Visit& visit) const {
  Family family;
  find_family(from.get(), family);
  Leaf records;
  uint32_t count = 0;
  Bound after;
  for (bool first = true;; first = false, ++family.position) {
    if (!copy_next(family, after, records, count)) return true;
    const auto begin = records.begin();
    const auto end = begin + count;
    const auto skipped =
        first ? std::partition_point(begin, end,
                                     [key = from.get(), this](const Slot& slot) {
                                       return tree::compare<Content>(records_, slot, key) < 0;
                                     })
              : begin;
    for (const Slot& slot : std::span(skipped, end)) {
      bool go_on = true;
      if constexpr (Content::kOutOfPlace) {
        const std::string_view key = records_.key(slot.value);
        // Another record, or a separator, is not the one that belongs here, intact as it may be.
        if (tree::prefix_of(key) != slot.key) [[unlikely]]
          pool_.throw_corrupt(fmt::format("'{}': a record has another key than its cell", name_));
        go_on = visit(key, records_.value(slot.value));
      } else {
        go_on = visit(slot.key, slot.value);
      }
      if (!go_on || --left == 0) return false;
    }
    if (after.end) return false;
    if (!(from.key < after.key)) {
      throw_damaged(offset_of(*family.path[1].node), 1, "leads to leaves that do not ascend");
    }
    std::swap(from, after);
    if (family.position + 1 >= family.order.count()) return true;
  }
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan(const Key& key, uint64_t limit, Visit visit) const {
  if (limit == 0) return;
  Bound from;
  if constexpr (Content::kOutOfPlace) {
    from.key = key.bytes;
  } else {
    from.key = key;
  }
  for (bool go_on = true; go_on;) {
    const pm::EpochManager::Guard guard(epochs_);
    go_on = scan_family(from, limit, visit);
  }
}

// The last child that may have keys under the ceiling.
template <typename Content>
uint32_t Core<Content>::position_under(const Node& node, uint32_t level, const Order& order,
                                       const tree::Ceiling<Content>& ceiling, Seen& seen) const {
  uint32_t first = 1;
  uint32_t last = order.count();
  while (first < last) {
    const uint32_t middle = (first + last) / 2;
    const bool under = ceiling.admits(
        [&](const Key& key) { return compare(node, level, order[middle], key, seen); });
    if (seen.stale) return 0;
    if (under) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first - 1;
}

template <typename Content>
void Core<Content>::read_under(const tree::Ceiling<Content>& ceiling, tree::Floor<Content>& floor,
                               std::vector<Slot>& out) const {
  Path path;
  Bound low;
  Leaf records;
  uint32_t count = 0;
  for (Backoff backoff;; backoff.pause()) {
    low.end = true;
    descend_by(0, path, [&](const Path& so_far, uint32_t level, Seen& seen) {
      const Node& node = *so_far[level].node;
      if (level == so_far.depth) low.end = true;
      Order order;
      load_order(node, order);
      const uint32_t position = position_under(node, level, order, ceiling, seen);
      // The lowest node that has something before its child says where that begins.
      if (position > 0 && !read_bound(so_far[level], level, order[position], low))
        seen.stale = true;
      return pm::load_relaxed(cell_of(node, level, order[position]).value);
    });
    // The bound is true at the instant of the leaf's stamp, so that no record of the copy lies
    // before it.
    if (path_holds(path, 1) && copy_leaf(*path[0].node, path[0].stamp, records, count)) break;
  }
  out.assign(records.begin(), records.begin() + count);
  if (low.end) {
    floor.set_lowest();
  } else {
    floor.set(low.get());
  }
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  tree::scan_back<Content>(
      {epochs_, records_, pool_, name_}, from, limit,
      [&](const auto& ceiling, auto& floor, std::vector<Slot>& out) {
        read_under(ceiling, floor, out);
      },
      visit);
}

}  // namespace perdure::index::wbtree
