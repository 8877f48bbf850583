// What every write to an open structure passes, so that transactions can keep writers of their keys
// out.
//
//   gate.write(key, [&] { return table.upsert(key, value); });   // each writer
//   gate.latch_writers();                                        // a transaction, before it takes latches
//
// As long as no transaction has used the structure, writers only announce themselves: a plain store
// to a word of their own thread, a load of a flag that nobody changes, and a store when they leave
// (EpochManager, with the barrier on the other side). The first transaction sets the flag, makes
// latches, and waits until all writers have left that may not have seen it. From then on each
// writer takes the latch of its key.
//
// A gate has kLatches latches for all keys: words in DRAM, by the hash of the key. Order: a thread
// that wants several takes them in the order of their addresses; writers have one at a time and
// wait for nothing while they have it, so there are no cycles. Locks of the structure are taken
// under latches, and never the other way round.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "pm/checksum.h"
#include "pm/epoch.h"

namespace perdure::pm {

class PoolImpl;

// One thread at a time; sleeps while it waits, since who holds it may wait for a medium.
class Latch {
 public:
  void lock() {
    uint32_t seen = kFree;
    if (word_.compare_exchange_strong(seen, kHeld, std::memory_order_acquire)) return;
    while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      word_.wait(kAwaited, std::memory_order_relaxed);
    }
  }
  void unlock() {
    if (word_.exchange(kFree, std::memory_order_release) == kAwaited) word_.notify_one();
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kAwaited = 2;
  std::atomic<uint32_t> word_{kFree};
};

class WriteGate {
 public:
  static constexpr uint64_t kLatches = 1024;

  // For the structure of this name, which is open.
  WriteGate(PoolImpl& pool, std::string_view name);
  WriteGate(const WriteGate&) = delete;
  WriteGate& operator=(const WriteGate&) = delete;

  // Returns what `write_it()` does, a write to this key, a word or a byte string. Throws kPoolFull
  // if the structure is blocked. `write_it` should capture by value: what has an address goes
  // through memory, where the next operation waits for the stores of this one, and they for its
  // flushes.
  template <typename Key, typename Write>
  [[gnu::always_inline]] auto write(Key key, Write write_it) {
    // Acquires what latch_writers() has made.
    if (!latched_.load(std::memory_order_acquire)) [[likely]] {
      const EpochManager::Guard guard(writers_);
      if (!latched_.load(std::memory_order_acquire)) [[likely]]
        return write_it();
    }
    return write_latched(hash_of(key), write_it);
  }
  // The same for writes to many keys; false, and nothing is done, if each must take its latch.
  template <typename Write>
  bool write_unlatched(Write write_it) {
    if (latched_.load(std::memory_order_acquire)) return false;
    const EpochManager::Guard guard(writers_);
    if (latched_.load(std::memory_order_acquire)) return false;
    write_it();
    return true;
  }

  // For transactions. From the first call on writers take latches; waits for those that have not
  // seen it. Throws bad_alloc, kInvalidArgument (too many threads).
  void latch_writers();
  // After latch_writers().
  Latch& latch_of(uint64_t hash) { return latches_[hash % kLatches]; }
  static uint64_t hash_of(uint64_t word) { return word * 0x9e3779b97f4a7c15 >> 32; }
  static uint64_t hash_of(std::string_view bytes) { return checksum64(bytes.data(), bytes.size()); }

  // A committed transaction could not be applied for want of room: until the structure is opened
  // again nobody writes.
  void block() { blocked_.store(true, std::memory_order_release); }
  // Throws kPoolFull if it is blocked.
  void require_open() const {
    if (blocked_.load(std::memory_order_acquire)) [[unlikely]]
      throw_blocked();
  }

  // While one lives, its thread passes all gates of the pool: it holds the latches of the keys that
  // it writes.
  class Pass {
   public:
    explicit Pass(const PoolImpl& pool) : outer_(passes) { passes = &pool; }
    ~Pass() { passes = outer_; }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    const PoolImpl* outer_;  // an observer of one pool may write to another
  };

  PoolImpl& pool() const { return pool_; }
  uint64_t root() const {
    return root_;
  }  // offset of the structure's root block, which names it in records
  const std::string& name() const { return name_; }
  const std::string& type() const { return type_; }

 private:
  template <typename Write>
  [[gnu::noinline]] auto write_latched(uint64_t hash, Write write_it) {
    if (passes == &pool_) return write_it();
    const std::lock_guard lock(latch_of(hash));
    require_open();
    return write_it();
  }
  [[noreturn]] void throw_blocked() const;

  static constinit inline thread_local const PoolImpl* passes = nullptr;

  std::atomic<bool> latched_{false};
  std::atomic<bool> blocked_{false};
  std::atomic<bool> ready_{false};  // all writers take latches
  EpochManager& writers_;
  std::unique_ptr<Latch[]> latches_;
  std::mutex mutex_;
  PoolImpl& pool_;
  uint64_t root_;
  std::string name_;
  std::string type_;
};

}  // namespace perdure::pm
