// Epoch-based reclamation: what readers may still look at is not reused.
//
//   EpochManager::Guard guard(epochs);           // reader: pinned until the guard goes
//   epochs.retire([=] { free_list.add(chunk); }) // writer, after the chunk was unlinked
//
// A retired action runs once every guard that existed at retire() has gone. Guards nest, and go
// in the reverse order. Wait-free
// for readers: a plain store to pin, where the kernel has membarrier(2), which then orders it from
// the collector's side; else a sequentially consistent one. Retired actions run in retire() and
// collect(), in the caller's thread; collect() never waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "pm/pause.h"

namespace perdure::pm {

class EpochManager {
  static constexpr uint64_t kIdle = ~uint64_t{0};
  struct alignas(64) Slot {
    std::atomic<uint64_t> epoch{kIdle};
  };

 public:
  static constexpr uint32_t kThreadsPerTable = 1024;
  static constexpr uint32_t kTables = 256;
  // Living threads that have ever had a guard; one more gets kInvalidArgument.
  static constexpr uint32_t kMaxThreads = kThreadsPerTable * kTables;
  // Of up to 1,024 threads; as much again for each 1,024 more.
  static constexpr uint64_t kDramBytes = kThreadsPerTable * sizeof(Slot);

  class Guard {
   public:
    [[gnu::always_inline]] explicit Guard(EpochManager& manager)
        : slot_(manager.own_slot()),
          outermost_(slot_.epoch.load(std::memory_order_relaxed) == kIdle) {
      if (!outermost_) return;
      // Ordered before every load that follows: a writer that does not see it has not yet unlinked
      // what this reader could find.
      const uint64_t epoch = acquire(manager.epoch_);
      if (manager.asymmetric_) [[likely]] {
        slot_.epoch.store(epoch, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);  // collect() does the rest
      } else {
        slot_.epoch.store(epoch, std::memory_order_seq_cst);
      }
      may_pause();
    }
    ~Guard() {
      if (outermost_) publish(slot_.epoch, kIdle);
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Slot& slot_;
    const bool outermost_;  // of the thread's guards
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
    if (thread_number >= kThreadsPerTable) [[unlikely]]
      return find_slot();
    return slots_[thread_number];
  }
  Slot& find_slot();
  static void take_thread_number();
  uint64_t oldest_pinned() const;

  // The calling thread's place in slots_, the same in every manager.
  static constinit inline thread_local uint32_t thread_number = kNoNumber;

  std::atomic<uint64_t> epoch_{1};
  const bool asymmetric_;          // the kernel makes every thread of the process execute a barrier
  std::unique_ptr<Slot[]> slots_;  // of the first threads
  std::array<std::atomic<Slot*>, kTables>
      tables_{};  // slots_, then of further threads as they come
  std::mutex mutex_;
  std::vector<Retired> retired_;
};

}  // namespace perdure::pm
