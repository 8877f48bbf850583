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
// An owner may be stopped before its store, and go on long after, when there is a bias towards another thread. So
// each has a seat of its own, for good: what it stores, and takes back, is never the next owner's. Nor does it take
// a later bias for the one that it saw: only the thread itself makes one towards its seat. It does so as it releases the
// lock, so that there is no bias while the lock is held: who holds the latch, and tries it again, is not let in.
//
// A withdrawal costs some microseconds. Each one doubles how often in a row a thread must come before there is a bias
// again. Where the system has no such barrier there is none, nor for a fifth thread.
// Source: Dice, Moir and Scherer, "Quickly Reacquirable Locks", 2006; Kawachiya et al., "Lock Reservation", OOPSLA
// 2002.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "pm/lock.h"
#include "pm/pause.h"

namespace perdure::store {

// Whether the system has such a barrier; asks it once.
bool has_barrier();
// A full memory barrier in every thread of the process. Needs has_barrier().
void barrier_of_all_threads();

// Where a test stops an owner.
struct NoStops {
  static void before_store() {}
};

template <typename Stops = NoStops>
class BiasedLatch {
 public:
  void lock() {
    if (enter_biased()) return;
    lock_.lock();
    withdraw();
    for (int spins = 0; somebody_inside(); ++spins) {
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
    if (somebody_inside()) {
      lock_.unlock();
      return false;
    }
    note_holder();
    return true;
  }
  // By whichever thread, of which there is one at a time.
  void unlock() {
    if (seat_held_ != kNone) {
      pm::publish(inside_[seat_held_], false);
    } else {
      if (in_a_row_ >= often_ && last_holder_ == me()) [[unlikely]]
        make_bias();
      lock_.unlock();
    }
  }

 private:
  static constexpr uint32_t kOftenMin = 64;
  static constexpr uint32_t kOftenMax = 1 << 20;

  // No two threads that live have the same one.
  static uintptr_t me() { return reinterpret_cast<uintptr_t>(__builtin_thread_pointer()); }

  bool enter_biased() {
    const uint32_t seat = owner_.load(std::memory_order_acquire);
    if (seat == kNone || seats_[seat].load(std::memory_order_relaxed) != me()) return false;
    // A thread may have the name of one that has ended: it sees what that one did.
    if (inside_[seat].load(std::memory_order_acquire)) [[unlikely]]
      return false;
    pm::may_pause();
    Stops::before_store();
    inside_[seat].store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(
        std::memory_order_seq_cst);  // the processor's order is the barrier's matter
    pm::may_pause();
    if (owner_.load(std::memory_order_acquire) != seat) [[unlikely]] {
      inside_[seat].store(false, std::memory_order_release);
      return false;
    }
    seat_held_ = seat;
    return true;
  }
  bool somebody_inside() const {
    return std::ranges::any_of(inside_, [](const std::atomic<bool>& inside) {
      return inside.load(std::memory_order_acquire);
    });
  }
  // With the lock.
  void withdraw() {
    if (owner_.load(std::memory_order_relaxed) == kNone) [[likely]]
      return;
    owner_.store(kNone, std::memory_order_relaxed);
    barrier_of_all_threads();
    often_ = often_ >= kOftenMax ? kOftenMax : 2 * often_;
  }
  // With the lock, and nobody inside.
  void note_holder() {
    seat_held_ = kNone;
    const uintptr_t holder = me();
    in_a_row_ = last_holder_ == holder ? in_a_row_ + 1 : 0;
    last_holder_ = holder;
  }
  // With the lock, which is about to be released: a bias that stood while it is held would let its holder in once more.
  // Towards the caller alone, which has taken the lock itself.
  void make_bias() {
    if (!has_barrier()) return;
    const uintptr_t holder = me();
    in_a_row_ = 0;
    for (uint32_t seat = 0; seat < kSeats; ++seat) {
      const uintptr_t sits = seats_[seat].load(std::memory_order_relaxed);
      if (sits != holder && sits != 0) continue;
      seats_[seat].store(holder, std::memory_order_relaxed);
      owner_.store(seat, std::memory_order_release);  // from its next time on
      return;
    }
  }

  static constexpr uint32_t kSeats = 4;
  static constexpr uint32_t kNone = kSeats;

  pm::SpinLock lock_;
  std::atomic<uint32_t> owner_{kNone};                  // the seat towards which there is a bias
  std::array<std::atomic<uintptr_t>, kSeats> seats_{};  // whose they are
  std::array<std::atomic<bool>, kSeats> inside_{};      // by way of the bias
  uint32_t seat_held_ = kNone;                          // of who holds it
  uint32_t in_a_row_ = 0;
  uint32_t often_ = kOftenMin;
  uintptr_t last_holder_ = 0;
};

using Latch = BiasedLatch<>;

}  // namespace perdure::store
