// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "index/sheaf/core.h"
#include "index/structure.h"
#include "pm/checksum.h"

namespace perdure::index::sheaf {

void Core::visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  meet(pool_.offset_of(&root_), sizeof(Root));
  meet(root_.log, Log::kTableBytes);
  log_.visit_chunks([&](uint64_t chunk) { meet(chunk, log_.chunk_bytes()); });
  const pm::EpochManager::Guard guard(epochs_);
  for (uint64_t at = root_.directory; at != 0;
       at = pm::load_acquire(pool_.at<Directory>(at)->next)) {
    meet(at, root_.directory_bytes);
  }
  for (const Child& child : inner_.children()) {
    const Ref& ref = *child.ref;
    Lock lock(const_cast<StripeLock&>(ref.lock));
    if (ref.dead == 0) meet(ref.offset, ref.block_bytes);
  }
}

void Core::check_leaf(const Child& child, const Child* next,
                      const std::function<void(const std::string&)>& fail) const {
  const Ref& ref = *child.ref;
  const auto where = [&] { return fmt::format("'{}', leaf {:#x}", name_, ref.offset); };
  if (*ref.slot != ref.offset) return fail(where() + ": its slot leads elsewhere");
  const Leaf& leaf = leaf_of(ref);
  if (leaf.header_checksum != leaf.header_checksum_at(ref.offset) || leaf.low != child.low ||
      leaf.count != ref.records || leaf.bytes != ref.block_bytes ||
      leaf.count > Leaf::room_of(leaf.bytes)) {
    return fail(where() + ": its header is damaged");
  }
  if (leaf.content_checksum !=
      pm::checksum32(leaf.records(), leaf.count * sizeof(Slot), ref.offset)) {
    fail(where() + ": the checksum of its records does not hold");
  }
  const auto outside = [&](uint64_t key) {
    return key < child.low || (next != nullptr && key >= next->low);
  };
  const uint64_t scale = scale_of(leaf.first, leaf.last);
  for (uint32_t i = 0; i < leaf.count; ++i) {
    const uint64_t key = leaf.records()[i].key;
    if (outside(key)) fail(where() + ": a key is outside of the leaf's range");
    if (i > 0 && leaf.records()[i - 1].key >= key) fail(where() + ": its keys are not in order");
    const uint32_t part = part_of(leaf.first, scale, key);
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
  std::unordered_set<uint64_t> met;
  for (uint32_t i = 0; i < ref.buffered; ++i) {
    const uint64_t key = ref.buffer()[i].key;
    if (outside(key)) fail(where() + ": a buffered key is outside of the leaf's range");
    if (!met.insert(key).second) fail(where() + ": a key is buffered twice");
  }
}

uint64_t Core::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  {
    const pm::EpochManager::Guard guard(epochs_);
    const std::vector<Child> children = inner_.children();
    if (children.front().low != 0) fail(fmt::format("'{}': the least keys have no leaf", name_));
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

std::vector<Statistic> Core::statistics() const {
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t in_leaves = 0;
  uint64_t buffered = 0;
  uint64_t room = 0;
  uint64_t leaves = 0;
  {
    const pm::EpochManager::Guard guard(epochs_);
    for (const Child& child : inner_.children()) {
      Lock lock(child.ref->lock);
      if (child.ref->dead != 0) continue;
      ++leaves;
      in_leaves += child.ref->records;
      buffered += child.ref->buffered;
      room += Leaf::room_of(child.ref->block_bytes);
    }
  }
  uint64_t records = 0;
  scan(0, ~uint64_t{0}, [&](Key, Value) { return ++records, true; });
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add(
      "dram_bytes",
      refs_.dram_bytes() + inner_.dram_bytes() + Log::kDramBytes + pm::EpochManager::kDramBytes,
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

}  // namespace perdure::index::sheaf
