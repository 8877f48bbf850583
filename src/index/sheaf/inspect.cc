// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "index/sheaf/core.h"
#include "index/structure.h"
#include "pm/checksum.h"

namespace perdure::index::sheaf {

template <typename Content>
void Core<Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.log, Log<Content>::kTableBytes);
  log_.visit_chunks([&](uint64_t chunk) { meet(chunk, log_.chunk_bytes()); });
  const pm::EpochManager::Guard guard(epochs_);
  for (uint64_t at = root_.directory; at != 0;
       at = pm::load_acquire(pool_.at<Directory>(at)->next)) {
    meet(at, root_.directory_bytes);
  }
  for (const Child& child : inner_.children()) {
    const Ref& ref = *child.ref;
    Lock lock(const_cast<StripeLock&>(ref.lock));
    if (ref.obsolete != 0) continue;
    meet(ref.offset, ref.block_bytes);
    if constexpr (kBytes) {
      if (!has_external_.load(std::memory_order_relaxed)) continue;
      Items records;
      collect(ref, records);
      for (const Item& record : records) {
        if (record.value.external) meet(record.value.block(), records_.bytes(record.value.block()));
      }
    }
  }
}

template <typename Content>
void Core<Content>::check_leaf(const Child& child, const Child* next,
                               const std::function<void(const std::string&)>& fail) const {
  const Ref& ref = *child.ref;
  const auto where = [&] { return fmt::format("'{}', leaf {:#x}", name_, ref.offset); };
  if (*ref.slot != ref.offset) return fail(where() + ": its slot leads elsewhere");
  const Leaf& leaf = leaf_of(ref);
  if (!is_leaf(ref.offset) || low_of(ref) != child.low || leaf.count != ref.records ||
      leaf.bytes != ref.block_bytes || used(ref) > ref.room) {
    return fail(where() + ": its header is damaged");
  }
  const uint64_t bytes = kBytes ? leaf.content_bytes : leaf.count * sizeof(Slot);
  if (leaf.content_checksum != pm::checksum32(leaf.records(), bytes, ref.offset)) {
    fail(where() + ": the checksum of its records does not hold");
  }
  const uint64_t scale = scale_of(leaf.first, leaf.last);
  for (uint32_t i = 0; i < leaf.count; ++i) {
    const uint32_t part = part_of(leaf.first, scale, leaf.records()[i].key);
    if (i / kLineRecords < leaf.lines[part] ||
        (part + 1 < kLookupLines && i / kLineRecords > leaf.lines[part + 1])) {
      fail(where() + ": its table does not lead to a key");
    }
  }
  if (leaf.count > 0 &&
      (leaf.first != leaf.records()[0].key || leaf.last != leaf.records()[leaf.count - 1].key)) {
    fail(where() + ": its first or last key is another one");
  }
  if (ref.number < leaf.merged) fail(where() + ": its numbers go back");
  check_records(ref, child, next, [&](const std::string& what) { fail(where() + what); });
}

template <>
void Core<tree::Words>::check_records(const Ref& ref, const Child& child, const Child* next,
                                      const std::function<void(const std::string&)>& fail) const {
  const Leaf& leaf = leaf_of(ref);
  const auto outside = [&](uint64_t key) {
    return key < child.low || (next != nullptr && key >= next->low);
  };
  for (uint32_t i = 0; i < leaf.count; ++i) {
    const uint64_t key = leaf.records()[i].key;
    if (outside(key)) fail(": a key is outside of the leaf's range");
    if (i > 0 && leaf.records()[i - 1].key >= key) fail(": its keys are not in order");
  }
  std::unordered_set<uint64_t> met;
  for (uint32_t i = 0; i < ref.buffered; ++i) {
    const uint64_t key = ref.buffer()[i].key;
    if (outside(key)) fail(": a buffered key is outside of the leaf's range");
    if (!met.insert(key).second) fail(": a key is buffered twice");
  }
}

template <typename Content>
uint64_t Core<Content>::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  {
    const pm::EpochManager::Guard guard(epochs_);
    const std::vector<Child> children = inner_.children();
    if (children.front().low != Low{})
      fail(fmt::format("'{}': the least keys have no leaf", name_));
    std::unordered_set<const uint64_t*> slots;
    for (size_t i = 0; i < children.size(); ++i) {
      const Child* next = i + 1 < children.size() ? &children[i + 1] : nullptr;
      if (next != nullptr && next->low <= children[i].low) {
        fail(fmt::format("'{}': leaf {} of {} is out of order", name_, i, children.size()));
      }
      if (!slots.insert(children[i].ref->slot).second) {
        fail(fmt::format("'{}': two leaves have one slot", name_));
      }
      check_leaf(children[i], next, fail);
    }
    if (root_.slot != 0 && !slots.contains(&root_.slot)) {
      fail(fmt::format("'{}': the first slot leads to a leaf that nobody knows", name_));
    }
    for (uint64_t at = root_.directory; at != 0; at = pool_.at<Directory>(at)->next) {
      const uint64_t* directory = pool_.at<Directory>(at)->slots();
      for (uint64_t i = 0; i < Directory::count(root_.directory_bytes); ++i) {
        if (directory[i] != 0 && !slots.contains(directory + i)) {
          fail(
              fmt::format("'{}': a slot leads to a leaf that the inner part does not have", name_));
        }
      }
    }
  }
  if (found > 0) return found;
  BlockOwners owners(pool_, name_, fail);
  visit_blocks([&](uint64_t offset, uint64_t bytes) { owners.meet(offset, bytes); });
  return found;
}

template <typename Content>
std::vector<Statistic> Core<Content>::statistics() const {
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t in_leaves = 0;
  uint64_t buffered = 0;
  uint64_t room = 0;
  uint64_t leaves = 0;
  {
    const pm::EpochManager::Guard guard(epochs_);
    for (const Child& child : inner_.children()) {
      Lock lock(child.ref->lock);
      if (child.ref->obsolete != 0) continue;
      ++leaves;
      in_leaves += used(*child.ref);
      buffered += child.ref->buffered;
      room += child.ref->room;
    }
  }
  uint64_t records = 0;
  scan(Content::lowest_key(), ~uint64_t{0},
       [&](const auto&, const auto&) { return ++records, true; });
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes",
           refs_.dram_bytes() + inner_.dram_bytes() + Log<Content>::kDramBytes +
               pm::EpochManager::kDramBytes,
           "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", records, "records");
  list.add("leaves", leaves, "leaves");
  list.add("buffered_records", buffered, "records");
  list.add("log_bytes", log_.chunk_count() * log_.chunk_bytes(), "bytes");
  list.add_ratio("leaf_fill", in_leaves, room, "");
  list.add("merges", merges_.load(std::memory_order_relaxed), "");
  list.add("splits", splits_.load(std::memory_order_relaxed), "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_SHEAF_INSTANTIATE)

}  // namespace perdure::index::sheaf
