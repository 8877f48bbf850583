// Epoch-based reclamation: what readers may still look at is not reused.
//
//   EpochManager::Guard guard(epochs);           // reader: pinned until the guard goes
//   epochs.retire([=] { free_list.add(chunk); }) // writer, after the chunk was unlinked
//
// A retired action runs once every guard that existed at retire() has gone. Guards nest. Wait-free
// for readers: a plain store to pin, where the kernel has membarrier(2), which then orders it from
// the collector's side; else a sequentially consistent one. Retired actions run in retire() and
// collect(), in the caller's thread; collect() never waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace perdure::pm {

class EpochManager {
  static constexpr uint64_t kIdle = ~uint64_t{0};
  struct alignas(64) Slot {
    std::atomic<uint64_t> epoch{kIdle};
    uint32_t depth = 0;  // of the owning thread's guards
  };

 public:
  static constexpr uint32_t kMaxThreads = 1024;  // living threads that have ever had a guard
  static constexpr uint64_t kDramBytes = kMaxThreads * sizeof(Slot);

  class Guard {
   public:
    [[gnu::always_inline]] explicit Guard(EpochManager& manager) : slot_(manager.own_slot()) {
      if (slot_.depth++ == 0) {
        // Ordered before every load that follows: a writer that does not see it has not yet
        // unlinked what this reader could find.
        const uint64_t epoch = manager.epoch_.load(std::memory_order_acquire);
        if (manager.asymmetric_) [[likely]] {
          slot_.epoch.store(epoch, std::memory_order_relaxed);
          std::atomic_signal_fence(std::memory_order_seq_cst);  // collect() does the rest
        } else {
          slot_.epoch.store(epoch, std::memory_order_seq_cst);
        }
      }
    }
    ~Guard() {
      if (--slot_.depth == 0) slot_.epoch.store(kIdle, std::memory_order_release);
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Slot& slot_;
  };

  EpochManager();
  ~EpochManager();  // runs what is left
  EpochManager(const EpochManager&) = delete;
  EpochManager& operator=(const EpochManager&) = delete;

  void retire(std::function<void()> action);
  // Runs the actions that no reader can mind any more. Returns how many are left.
  size_t collect();

 private:
  struct Retired {
    uint64_t epoch;
    std::function<void()> action;
  };

  static constexpr uint32_t kNoNumber = ~uint32_t{0};

  Slot& own_slot() {
    if (thread_number == kNoNumber) [[unlikely]]
      take_thread_number();
    return slots_[thread_number];
  }
  static void take_thread_number();
  uint64_t oldest_pinned() const;

  // The calling thread's place in slots_, the same in every manager.
  static constinit inline thread_local uint32_t thread_number = kNoNumber;

  std::atomic<uint64_t> epoch_{1};
  const bool asymmetric_;  // the kernel makes every thread of the process execute a barrier
  std::unique_ptr<Slot[]> slots_;
  std::mutex mutex_;
  std::vector<Retired> retired_;
};

}  // namespace perdure::pm
