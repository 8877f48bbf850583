// Which pages in PM are worth a frame in DRAM.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "lsm/two_queue.h"

namespace perdure::buffer {

class Placement {
 public:
  virtual ~Placement() = default;
  // A page was asked for, and is in PM. True: it is to move to DRAM. Thread-safe,
  // and throws nothing.
  virtual bool wants(uint64_t page) = 0;
};

// 2Q: pages that are asked for a second time within a while. DRAM is its AM, where frames go by
// second chance in place of LRU; here is its A1. A page is told to it for one in `kEvery` uses, so
// that hits stay cheap.
class TwoQueuePlacement final : public Placement {
 public:
  explicit TwoQueuePlacement(uint64_t references_max) : queue_(0, references_max) {}

  bool wants(uint64_t page) override {
    thread_local uint32_t uses = 0;
    if (++uses % kEvery != 0) return false;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    try {
      return lock.owns_lock() && queue_.wants(page, 1);
    } catch (const std::bad_alloc&) {
      return false;  // it stays where it is
    }
  }

 private:
  static constexpr uint32_t kEvery = 4;
  std::mutex mutex_;
  lsm::TwoQueueShard<uint64_t, uint32_t> queue_;
};

}  // namespace perdure::buffer
