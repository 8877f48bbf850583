// What writers have unlinked and readers may still look at: it goes in groups, when none can any
// more.
//
//   Retired<uint64_t> retired(epochs, [&heap](const auto& blocks) { ...release each... });
//   retired.add(block, bytes);   // after it was unlinked
//
// A group is one action of the epochs. `release` runs in whatever thread the epochs run it in, and
// when this object goes; it may be called after this object has gone, so what it refers to lives as
// long as the epochs do.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "pm/epoch.h"
#include "pm/heap.h"

namespace perdure::index {

template <typename What>
class Retired {
 public:
  using Group = std::vector<What>;
  using Release = std::function<void(const Group&)>;

  // A group has `together` members, or so many bytes: what is kept back from the other structures
  // of the pool is little. But each group interrupts all threads (EpochManager::collect()).
  static constexpr uint64_t kBytesTogether = 64 << 10;
  Retired(pm::EpochManager& epochs, Release release, size_t together = 64,
          uint64_t bytes_together = kBytesTogether)
      : epochs_(epochs),
        release_(std::move(release)),
        together_(together),
        bytes_together_(bytes_together) {}
  ~Retired() {
    try {
      if (!group_.empty()) release_(group_);
    } catch (const std::bad_alloc&) {  // blocks are free when the pool is opened again
    }
  }
  Retired(const Retired&) = delete;
  Retired& operator=(const Retired&) = delete;

  // Any thread.
  void add(What what, uint64_t bytes = 0) {
    Group together;
    {
      const std::lock_guard lock(mutex_);
      group_.push_back(std::move(what));
      bytes_ += bytes;
      if (group_.size() < together_ && bytes_ < bytes_together_) return;
      take(together);
    }
    hand_over(std::move(together));
  }

  // Hands over what there is, though it is no whole group. Any thread.
  void flush() {
    Group rest;
    {
      const std::lock_guard lock(mutex_);
      take(rest);
    }
    if (!rest.empty()) hand_over(std::move(rest));
  }

 private:
  void take(Group& out) {
    out.swap(group_);
    bytes_ = 0;
  }
  void hand_over(Group group) {
    epochs_.retire([release = release_, group = std::move(group)] { release(group); });
  }

  pm::EpochManager& epochs_;
  Release release_;
  size_t together_;
  uint64_t bytes_together_;
  std::mutex mutex_;
  Group group_;
  uint64_t bytes_ = 0;
};

// Blocks of a heap, by their offsets.
class RetiredBlocks : public Retired<uint64_t> {
 public:
  RetiredBlocks(pm::EpochManager& epochs, pm::Heap& heap)
      : Retired(epochs, [&heap](const Group& blocks) {
          for (const uint64_t block : blocks) heap.release(block);
        }) {}
};

}  // namespace perdure::index
