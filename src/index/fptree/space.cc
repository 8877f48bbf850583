#include "index/fptree/space.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace perdure::index::fptree {

LeafSpace::~LeafSpace() {
  for (Group* group = first_; group != nullptr;) delete std::exchange(group, group->after);
}

void LeafSpace::format(const pm::Memory& memory, const Geometry& geometry, char* block,
                       uint64_t next) {
  auto* head = reinterpret_cast<GroupHead*>(block);
  *head = GroupHead{};
  head->next = next;
  memory.flush(head, sizeof *head);
  for (uint32_t i = 0; i < geometry.group; ++i) {
    auto* leaf = reinterpret_cast<Leaf*>(block + sizeof(GroupHead) + i * geometry.leaf_bytes());
    *leaf = Leaf{};
    memory.flush(leaf, sizeof *leaf);
  }
}

// ---- opening

bool LeafSpace::is_group(uint64_t offset) const {
  return offset % pm::kLineBytes == 0 && offset < pool_.end_offset() &&
         pool_.heap().is_allocated(offset, geometry_.group_bytes());
}

bool LeafSpace::load_chain() {
  Group* last = nullptr;
  // A damaged chain may have a loop, but never more groups than fit the pool.
  const uint64_t most = pool_.end_offset() / geometry_.group_bytes();
  for (uint64_t at = root_.groups; at != 0; at = pool_.at<GroupHead>(at)->next) {
    if (!is_group(at) || count_ >= most) return false;
    last = know(make_group(at), last, nullptr);
  }
  reserve_open(count_);
  return count_ > 0;
}

bool LeafSpace::load_list(std::span<const uint64_t> offsets) {
  std::vector<uint64_t> sorted(offsets.begin(), offsets.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
  Group* last = nullptr;
  for (const uint64_t offset : offsets) {
    if (!is_group(offset)) return false;
    last = know(make_group(offset), last, nullptr);
  }
  reserve_open(count_);
  return count_ > 0 && first_->offset == root_.groups;
}

std::unique_ptr<Group> LeafSpace::make_group(uint64_t offset) const {
  auto group = std::make_unique<Group>();
  group->offset = offset;
  group->leaves = std::make_unique<LeafRef[]>(geometry_.group);
  char* block = pool_.at<char>(offset) + sizeof(GroupHead);
  for (uint32_t i = 0; i < geometry_.group; ++i) {
    LeafRef& leaf = group->leaves[i];
    leaf.number = i;
    leaf.leaf = reinterpret_cast<Leaf*>(block + i * geometry_.leaf_bytes());
    leaf.group = group.get();
  }
  return group;
}

Group* LeafSpace::know(std::unique_ptr<Group> made, Group* before, Group* after) {
  Group* group = made.release();
  group->before = before;
  group->after = after;
  (before != nullptr ? before->after : first_) = group;
  if (after != nullptr) after->before = group;
  ++count_;
  return group;
}

void LeafSpace::give_quietly(LeafRef* leaf) {
  const std::lock_guard lock(mutex_);
  note_free(leaf);
}

void LeafSpace::note_free(LeafRef* leaf) {
  Group* group = leaf->group;
  if (group->free == 0) open(group);
  group->free |= uint64_t{1} << leaf->number;
  ++free_;
}

// ---- taking and giving

// So that no leaf that is given back needs memory: it would be lost until the pool is opened again.
void LeafSpace::reserve_open(uint64_t groups) {
  if (open_.capacity() < groups) open_.reserve(std::max<size_t>(groups, 2 * open_.capacity()));
}

void LeafSpace::open(Group* group) {
  group->open_at = static_cast<uint32_t>(open_.size());
  open_.push_back(group);
}

void LeafSpace::shut(Group* group) {
  open_.back()->open_at = group->open_at;
  open_[group->open_at] = open_.back();
  open_.pop_back();
}

LeafRef* LeafSpace::take() {
  const std::lock_guard lock(mutex_);
  if (open_.empty()) add_group();
  Group* group = open_.back();
  const int number = std::countr_zero(group->free);
  group->free &= group->free - 1;
  --free_;
  if (group->free == 0) shut(group);
  return &group->leaves[number];
}

void LeafSpace::give(LeafRef* leaf) {
  const std::lock_guard lock(mutex_);
  Group* group = leaf->group;
  note_free(leaf);
  // One group's worth of free leaves stays, so that the next split finds one.
  if (group->free == geometry_.all_leaves() && free_ >= 2 * uint64_t{geometry_.group}) {
    drop_group(group);
  }
}

void LeafSpace::add_group() {
  const pm::Memory& memory = pool_.memory();
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(geometry_.group_bytes());
  // All that may lack memory, before the link: a group that nobody here knows would be lost.
  std::unique_ptr<Group> made = make_group(at);
  reserve_open(count_ + 1);
  format(memory, geometry_, pool_.at<char>(at), root_.groups);
  // The empty leaves and the intent, before the chain leads to them.
  txn.publish(at, root_.groups);
  Group* group = know(std::move(made), nullptr, first_);
  group->free = geometry_.all_leaves();
  free_ += geometry_.group;
  open(group);
}

void LeafSpace::drop_group(Group* group) {
  uint64_t& link =
      group->before != nullptr ? pool_.at<GroupHead>(group->before->offset)->next : root_.groups;
  const uint64_t next = group->after != nullptr ? group->after->offset : 0;
  {
    pm::Heap::Txn txn(pool_.heap(), true);
    // The intent, before the chain leads past the group.
    txn.retire(group->offset, link, next, pm::Heap::Txn::Release::kLater);
  }
  shut(group);
  free_ -= geometry_.group;
  --count_;
  (group->before != nullptr ? group->before->after : first_) = group->after;
  if (group->after != nullptr) group->after->before = group->before;
  // Readers and writers that found a leaf of it before may still look at it, and at its lock.
  epochs_.retire([&pool = pool_, group] {
    pool.heap().release(group->offset);
    delete group;
  });
}

std::vector<Group*> LeafSpace::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<Group*> all;
  for (Group* group = first_; group != nullptr; group = group->after) all.push_back(group);
  return all;
}

}  // namespace perdure::index::fptree
