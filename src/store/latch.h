// The latch of a partition: one thread at a time, for about a microsecond.
//
// Mostly one and the same thread takes it again and again. An atomic exchange for each call would order its loads
// behind those of the call before, so that their misses never overlap: on a store that does not fit into the caches
// that is a sixth of a lookup. So the latch is biased towards a thread that has taken it often in a row: that one
// stores that it is inside, and looks whether the bias still stands; no exchange, no fence.
//
// Why that excludes: whoever else comes takes the lock behind, withdraws the bias, and has a memory barrier executed
// by every thread of the process (membarrier(2)). In the owner's order of instructions the barrier comes after its
// store, which the other one then sees, and waits until it has left; or before its look at the bias, which then is
// gone, so that it steps back, and goes the way of the others. Who takes the lock later waits for it, too, without a
// barrier: the store of an owner that has come in was visible before the lock was released after the barrier.
//
// A withdrawal costs some microseconds. Each one doubles how often in a row a thread must come before there is a bias
// again. Where the system has no such barrier there is none.
// Source: Dice, Moir and Scherer, "Quickly Reacquirable Locks", 2006; Kawachiya et al., "Lock Reservation", OOPSLA
// 2002.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "pm/lock.h"
#include "pm/pause.h"

namespace perdure::store {

class Latch {
 public:
  void lock() {
    if (enter_biased()) return;
    lock_.lock();
    withdraw();
    for (int spins = 0; inside_.load(std::memory_order_acquire); ++spins) {
      if (spins < 64) {
        _mm_pause();
      } else {
        std::this_thread::yield();
      }
    }
    note_holder();
  }
  // Does not wait for anybody.
  bool try_lock() {
    if (enter_biased()) return true;
    if (!lock_.try_lock()) return false;
    withdraw();
    if (inside_.load(std::memory_order_acquire)) {
      lock_.unlock();
      return false;
    }
    note_holder();
    return true;
  }
  // By whichever thread, of which there is one at a time.
  void unlock() {
    if (is_biased_hold_) {
      pm::publish(inside_, false);
    } else {
      lock_.unlock();
    }
  }

 private:
  static constexpr uint32_t kOftenMin = 64;
  static constexpr uint32_t kOftenMax = 1 << 20;

  // No two threads that live have the same one.
  static uintptr_t me() { return reinterpret_cast<uintptr_t>(__builtin_thread_pointer()); }

  bool enter_biased() {
    if (owner_.load(std::memory_order_relaxed) != me()) return false;
    // A thread may have the name of one that has ended: it sees what that one did.
    if (inside_.load(std::memory_order_acquire)) [[unlikely]]
      return false;
    inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(
        std::memory_order_seq_cst);  // the processor's order is the barrier's matter
    pm::may_pause();
    if (owner_.load(std::memory_order_acquire) != me()) [[unlikely]] {
      inside_.store(false, std::memory_order_release);
      return false;
    }
    is_biased_hold_ = true;
    return true;
  }
  // With the lock.
  void withdraw() {
    if (owner_.load(std::memory_order_relaxed) == 0) [[likely]]
      return;
    owner_.store(0, std::memory_order_relaxed);
    barrier_of_all_threads();
    often_ = often_ >= kOftenMax ? kOftenMax : 2 * often_;
  }
  // With the lock, and nobody inside.
  void note_holder() {
    is_biased_hold_ = false;
    const uintptr_t holder = me();
    in_a_row_ = last_holder_ == holder ? in_a_row_ + 1 : 0;
    last_holder_ = holder;
    if (in_a_row_ < often_ || !has_barrier()) [[likely]]
      return;
    in_a_row_ = 0;
    owner_.store(holder, std::memory_order_relaxed);  // from its next time on
  }

  static bool has_barrier();
  static void barrier_of_all_threads();

  pm::SpinLock lock_;
  std::atomic<bool> inside_{false};  // the owner is
  bool is_biased_hold_ = false;      // of who holds it
  uint32_t in_a_row_ = 0;
  uint32_t often_ = kOftenMin;
  uintptr_t last_holder_ = 0;
  std::atomic<uintptr_t> owner_{0};  // towards whom there is a bias
};

}  // namespace perdure::store
