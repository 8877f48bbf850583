// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include "index/nvtree/core.h"
#include "index/structure.h"

namespace perdure::index::nvtree {

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  {
    const std::lock_guard lock(image_mutex_);  // the first replacement drops it
    if (has_image_) meet(root_.image, sizeof(Image) + image().bytes);
  }
  Slot slots[kLeafRecords];
  uint64_t leaves = 0;
  for (uint64_t leaf = pm::load_acquire(root_.head); leaf != 0;) {
    if (++leaves > leaves_max()) throw_damaged("the list of leaves");
    meet(leaf, leaf_bytes(leaf_records_));
    const uint32_t count = snapshot(leaf, slots, leaf);
    if constexpr (Content::kOutOfPlace) {
      for (uint32_t i = 0; i < count; ++i) {
        meet(slots[i].value, records_.bytes(slots[i].value));
      }
    } else {
      (void)count;
    }
  }
}

template <typename Content>
void Core<Content>::check_leaf(const Child& child, const Child* next,
                               const std::function<void(const std::string&)>& fail) const {
  const auto where = [&] { return fmt::format("'{}', leaf {}", name_, child.leaf); };
  const auto key_of = [](const Child& of) {
    if constexpr (Content::kOutOfPlace) {
      return Key(std::string_view(*of.text));
    } else {
      return of.word;
    }
  };
  const Leaf& leaf = leaf_at(child.leaf);
  const auto count = static_cast<uint32_t>(leaf.count);
  uint64_t superseded = 0;
  for (uint32_t entry = 0; entry < count; ++entry) {
    const Tag tag = leaf.tag(entry);
    const uint64_t own = tag.superseded();
    if (own >> entry != 0) {
      fail(where() + ": an entry supersedes one that is not older");
      continue;
    }
    if ((own & superseded) != 0) fail(where() + ": an entry is superseded twice");
    superseded |= own;
    if (own != 0 &&
        leaf.slot(static_cast<uint32_t>(std::countr_zero(own))).key != leaf.slot(entry).key) {
      fail(where() + ": an entry supersedes one of another key");
    }
  }
  Slot slots[kLeafRecords];
  const uint32_t live = live_slots(leaf, count, slots);
  for (uint32_t i = 0; i < live; ++i) {
    if constexpr (Content::kOutOfPlace) {
      if (!records_.intact(slots[i].value)) return fail(where() + ": an entry leads to no record");
      if (tree::prefix_of(records_.key(slots[i].value)) != slots[i].key) {
        fail(where() + ": a record has another key than its entry says");
      }
    }
    if (tree::compare<Content>(records_, slots[i], key_of(child)) < 0 ||
        (next != nullptr && tree::compare<Content>(records_, slots[i], key_of(*next)) >= 0)) {
      fail(where() + ": a key is outside of the leaf's range");
    }
  }
  std::sort(slots, slots + live, [this](const Slot& a, const Slot& b) { return before(a, b); });
  for (uint32_t i = 1; i < live; ++i) {
    if (!before(slots[i - 1], slots[i])) fail(where() + ": a key is there twice");
  }
}

template <typename Content>
uint64_t Core<Content>::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  const pm::EpochManager::Guard guard(epochs_);
  const std::vector<Child> children = inner_.children();
  uint64_t at = root_.head;
  for (size_t i = 0; i < children.size(); ++i) {
    if (children[i].leaf != at) {
      fail(fmt::format("'{}': leaf {} of the list is not the one that the inner part has", name_,
                       i));
      return found;
    }
    if (!is_leaf(at)) {
      fail(fmt::format("'{}': leaf {} of the list is no allocated leaf", name_, i));
      return found;
    }
    check_leaf(children[i], i + 1 < children.size() ? &children[i + 1] : nullptr, fail);
    at = leaf_at(at).next;
  }
  if (at != 0) fail(fmt::format("'{}': the list of leaves goes on where it should end", name_));
  if (has_image_) {
    const ChildList image = read_image();
    bool same = image.size() == children.size();
    for (size_t i = 0; same && i < image.size(); ++i) {
      same = image[i].word == children[i].word && image[i].leaf == children[i].leaf;
    }
    if (!same) fail(fmt::format("'{}': the spilled inner part is not the one in use", name_));
  }
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  uint64_t entries = 0;
  uint64_t leaves = 0;
  for (uint64_t at = pm::load_acquire(root_.head); at != 0; ++leaves) {
    if (leaves > leaves_max()) throw_damaged("the list of leaves");
    const Leaf& leaf = leaf_behind(at);
    const uint32_t count = count_of(leaf);
    entries += count;
    records += static_cast<uint64_t>(std::popcount(live_mask(leaf, count)));
    at = pm::load_acquire(leaf.next);
  }
  const auto inner = inner_.size();
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", inner.dram_bytes + stripes_.dram_bytes() + pm::EpochManager::kDramBytes,
           "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", records, "records");
  list.add("leaves", leaves, "leaves");
  list.add("leaf_parents", inner.parents, "nodes");
  list.add("groups", inner.groups, "nodes");
  list.add_ratio("leaf_fill", records, leaves * leaf_records_, "");
  list.add_ratio("log_fill", entries, leaves * leaf_records_, "");
  list.add("replacements", replacements_.load(std::memory_order_relaxed), "");
  list.add("group_rebuilds", inner_.rebuilds(), "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_NVTREE_INSTANTIATE)

}  // namespace perdure::index::nvtree
