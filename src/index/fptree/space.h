// The leaves in PM, in groups: which are free, new groups, and groups that go back to the heap.
//
// Persist points. A new group: its empty leaves and the heap's intent, fence; root.groups, by one
// store, and the heap's bitmap, fence; the intent's end, fence. A group that goes: the same with
// the word that leads to it. So each group is allocated exactly if it is in the chain. Whether a
// leaf is in use is not written here at all: a free leaf is one without records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "index/fptree/layout.h"
#include "index/stripes.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::fptree {

struct Group;

// A leaf, as DRAM knows it. Lives as long as its group, and as readers that may have found it.
struct LeafRef {
  StripeLock lock;
  uint32_t number = 0;  // in the group
  Leaf* leaf = nullptr;
  Group* group = nullptr;
};

struct Group {
  uint64_t offset = 0;
  Group* before = nullptr;  // in the chain
  Group* after = nullptr;
  uint64_t free = 0;     // leaves, by bit
  uint32_t open_at = 0;  // where it stands in the list of groups with free leaves
  std::unique_ptr<LeafRef[]> leaves;
};

class LeafSpace {
 public:
  LeafSpace(pm::PoolImpl& pool, pm::EpochManager& epochs, Root& root)
      : pool_(pool),
        epochs_(epochs),
        root_(root),
        geometry_{static_cast<uint32_t>(root.leaf_records),
                  static_cast<uint32_t>(root.leaf_group)} {}
  ~LeafSpace();
  LeafSpace(const LeafSpace&) = delete;
  LeafSpace& operator=(const LeafSpace&) = delete;

  const Geometry& geometry() const { return geometry_; }

  // Writes the empty leaves of a group and flushes them.
  static void format(const pm::Memory& memory, const Geometry& geometry, char* block,
                     uint64_t next);

  // When opening: makes the groups known, along the chain or from a list of it. All their leaves
  // count as taken until give_quietly(). Returns false if what they find is no group.
  bool load_chain();
  bool load_list(std::span<const uint64_t> offsets);

  // A free leaf. Throws kPoolFull, kNoSpace.
  LeafRef* take();
  // A leaf that is in no inner node any more and has no records. Needs no room.
  void give(LeafRef* leaf);
  // The same, but no group goes: nothing is written.
  void give_quietly(LeafRef* leaf);

  // In the order of the chain. Those that others give back meanwhile stay as long as the caller has
  // a guard.
  std::vector<Group*> groups() const;
  uint64_t group_count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  uint64_t free_leaves() const {
    const std::lock_guard lock(mutex_);
    return free_;
  }
  uint64_t dram_bytes() const {
    return group_count() * (sizeof(Group) + geometry_.group * sizeof(LeafRef));
  }

 private:
  bool is_group(uint64_t offset) const;
  void note_free(LeafRef* leaf);
  std::unique_ptr<Group> make_group(uint64_t offset) const;
  Group* know(std::unique_ptr<Group> made, Group* before, Group* after);
  void add_group();
  void drop_group(Group* group);
  void reserve_open(uint64_t groups);
  void open(Group* group);
  void shut(Group* group);

  pm::PoolImpl& pool_;
  pm::EpochManager& epochs_;
  Root& root_;
  Geometry geometry_;
  mutable std::mutex mutex_;
  Group* first_ = nullptr;
  std::vector<Group*> open_;  // groups with free leaves
  uint64_t count_ = 0;
  uint64_t free_ = 0;  // leaves
};

}  // namespace perdure::index::fptree
