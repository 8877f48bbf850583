// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include "index/fptree/core.h"
#include "index/structure.h"

namespace perdure::index::fptree {

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  {
    const std::lock_guard lock(spill_mutex_);  // the first change drops it
    if (root_.spill != 0) meet(root_.spill, spill().bytes);
  }
  for (const Group* group : space_.groups()) {
    meet(group->offset, geometry_.group_bytes());
  }
  if constexpr (Content::kOutOfPlace) {
    inner_.for_each_leaf([&](const LeafRef* ref, const Separator*, const Separator*) {
      for (uint64_t left = bitmap_of(*ref->leaf); left != 0; left &= left - 1) {
        const uint64_t record = geometry_.slots(*ref->leaf)[std::countr_zero(left)].value;
        meet(record, records_.bytes(record));
      }
    });
  }
}

template <typename Content>
void Core<Content>::check_leaf(const LeafRef& ref, const Separator* low, const Separator* high,
                               const std::function<void(const std::string&)>& fail) const {
  const Leaf& leaf = *ref.leaf;
  const auto complain = [&](const char* what) {
    fail(fmt::format("'{}', leaf at {}: {}", name_, pool_.offset_of(&leaf), what));
  };
  if ((leaf.bitmap & ~geometry_.full()) != 0) return complain("its bitmap has too many bits");
  std::vector<Slot> records;
  for (uint64_t left = leaf.bitmap; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    const Slot& slot = geometry_.slots(leaf)[i];
    if constexpr (Content::kOutOfPlace) {
      if (!records_.intact(slot.value)) {
        complain("a slot leads to no record");
        continue;
      }
    }
    const Key key = [&] {
      if constexpr (Content::kOutOfPlace) {
        return Key(records_.key(slot.value));
      } else {
        return slot.key;
      }
    }();
    if (Content::word_of(key) != slot.key) complain("a record has another key than its slot says");
    if (fingerprint_of(key) != Geometry::fingerprints(leaf)[i]) {
      complain("a fingerprint is not that of its key");
    }
    const auto against = [&](const Separator* bound) {
      return tree::compare<Content>(records_, slot, InnerNodes::key_of(*bound));
    };
    if ((low != nullptr && against(low) < 0) || (high != nullptr && against(high) >= 0)) {
      complain("a key is out of its range");
    }
    records.push_back(slot);
  }
  std::sort(records.begin(), records.end(),
            [&](const Slot& a, const Slot& b) { return before(a, b); });
  for (size_t i = 1; i < records.size(); ++i) {
    if (!before(records[i - 1], records[i])) complain("a key is there twice");
  }
}

// The groups as PM chains them, and which of their leaves are in use.
template <typename Content>
void Core<Content>::check_space(const std::function<void(const std::string&)>& fail) const {
  std::vector<const LeafRef*> used;
  inner_.for_each_leaf(
      [&](const LeafRef* leaf, const Separator*, const Separator*) { used.push_back(leaf); });
  std::sort(used.begin(), used.end());
  if (std::adjacent_find(used.begin(), used.end()) != used.end()) {
    fail(fmt::format("'{}': a leaf is in two places of the tree", name_));
  }
  uint64_t at = root_.groups;
  uint64_t free = 0;
  for (const Group* group : space_.groups()) {
    if (at != group->offset) {
      return fail(
          fmt::format("'{}': the chain of leaf groups is not as expected at {}", name_, at));
    }
    at = pool_.at<GroupHead>(at)->next;
    for (uint32_t i = 0; i < geometry_.group; ++i) {
      const LeafRef& leaf = group->leaves[i];
      const bool in_tree = std::binary_search(used.begin(), used.end(), &leaf);
      const bool is_free = (group->free >> i & 1) != 0;
      free += is_free ? 1 : 0;
      if (in_tree == is_free) {
        fail(fmt::format("'{}': leaf {} of the group at {} is {}", name_, i, group->offset,
                         in_tree ? "in the tree, and free" : "neither in the tree nor free"));
      }
      if (!in_tree && leaf.leaf->bitmap != 0) {
        fail(fmt::format("'{}': leaf {} of the group at {} has records, but is not in the tree",
                         name_, i, group->offset));
      }
    }
  }
  if (at != 0) fail(fmt::format("'{}': the chain of leaf groups goes on at {}", name_, at));
  if (free != space_.free_leaves()) {
    fail(
        fmt::format("'{}': {} leaves are free, {} are counted", name_, free, space_.free_leaves()));
  }
}

template <typename Content>
uint64_t Core<Content>::check(const std::function<void(const std::string&)>& report) const {
  const pm::EpochManager::Guard guard(epochs_);
  const std::lock_guard lock(inner_.mutex());
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  inner_.check([&](const std::string& text) { fail(fmt::format("'{}': {}", name_, text)); });
  if (found > 0) return found;
  check_space(fail);
  inner_.for_each_leaf([&](const LeafRef* leaf, const Separator* low, const Separator* high) {
    check_leaf(*leaf, low, high, fail);
  });
  if ((root_.spill != 0) != spilled_.load()) {
    fail(fmt::format("'{}': a spill is there that is not known of, or is gone", name_));
  }
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const std::lock_guard lock(inner_.mutex());
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t leaves = 0;
  inner_.for_each_leaf([&](const LeafRef* leaf, const Separator*, const Separator*) {
    records += static_cast<uint64_t>(std::popcount(pm::load_relaxed(leaf->leaf->bitmap)));
    ++leaves;
  });
  const auto size = inner_.size();
  const uint64_t dram_bytes = space_.dram_bytes() + size.bytes + pm::EpochManager::kDramBytes;
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", dram_bytes, "bytes");
  list.add("recovered_operations", recovered_leaves_, "leaves");
  list.add("records", records, "records");
  list.add("leaves", leaves, "leaves");
  list.add("leaf_groups", space_.group_count(), "groups");
  list.add_ratio("leaf_fill", records, leaves * geometry_.records, "");
  list.add("inner_nodes", size.nodes, "nodes");
  list.add("depth", inner_.depth(), "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_FPTREE_INSTANTIATE)

}  // namespace perdure::index::fptree
