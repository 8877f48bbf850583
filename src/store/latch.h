// The latch of a partition: one thread at a time, for about a microsecond.
//
// Mostly one and the same thread takes it again and again. An atomic exchange for each call would
// order its loads behind those of the call before, so that their misses never overlap: on a store
// that does not fit into the caches that is a sixth of a lookup. So the latch is biased towards a
// thread that has taken it often in a row: that one stores that it is inside, and looks whether the
// bias still stands; no exchange, no fence.
//
// Why that excludes: whoever else comes takes the lock behind, withdraws the bias, and has a memory
// barrier executed by every thread of the process (membarrier(2)). In the owner's order of
// instructions the barrier comes after its store, which the other one then sees, and waits until it
// has left; or before its look at the bias, which then is gone, so that it steps back, and goes the
// way of the others. Who takes the lock later waits for it, too, without a barrier: the store of an
// owner that has come in was visible before the lock was released after the barrier. An owner may
// be stopped before its store, and go on long after, when there is a bias towards another thread.
// So each has a seat of its own as long as it lives: what it stores, and takes back, is never the
// next owner's. Nor does it take a later bias for the one that it saw: only the thread itself makes
// one towards its seat. It does so as it releases the lock, so that there is no bias while the lock
// is held: who holds the latch, and tries it again, is not let in. A thread that has ended is
// stopped nowhere: who sees that it has ended sees all that it stored, and may have its seat. No
// other thread ever has its name.
//
// A withdrawal costs some microseconds. Each one doubles how often in a row a thread must come
// before there is a bias again. Where the system has no such barrier there is none, nor for a fifth
// thread, nor while 1,024 others have names.
//
// Who is about to take many latches calls off their biases first (call_off()), and has one barrier
// for all of them: each latch remembers which barrier the withdrawal waits for, they are numbered
// over the whole process, and who takes the lock before it has been sees to one. Nobody holds
// anything meanwhile, so latches are still taken in their order.
// Source: Dice, Moir and Scherer, "Quickly Reacquirable Locks", 2006; Kawachiya et al., "Lock
// Reservation", OOPSLA 2002.
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
// Of the barriers of all threads, numbered: the first that has not begun, and the last that has
// ended, and all before.
uint64_t next_barrier();
uint64_t ended_barrier();

// Which thread it is.
class ThreadName {
 public:
  static constexpr uint64_t kNone = 0;
  // The caller's, of no other thread that there is or was; kNone if it has not asked for one, or
  // ends.
  static uint64_t mine() { return mine_; }
  // Gives it one; kNone if there are as many others as have one at a time, or it ends. Who was
  // refused gets one when one of those has ended.
  static uint64_t take();
  static bool is_alive(uint64_t name);

 private:
  struct Leaving;
  // NOLINTNEXTLINE(readability-identifier-naming): a member, though a variable of a thread
  [[gnu::tls_model("initial-exec")]] static constinit inline thread_local uint64_t mine_ = kNone;
};

// Where a test stops an owner.
struct NoStops {
  static void before_store() {}
};

template <typename Stops = NoStops>
class BiasedLatch {
 public:
  [[gnu::always_inline]] void lock() {
    if (!enter_biased()) lock_unbiased();
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
  [[gnu::always_inline]] void unlock() {
    if (seat_held_ == kNone) return unlock_unbiased();
    pm::publish(inside_[seat_held_], false);
  }
  // Ends a bias towards another thread, but for the barrier. Returns whether there was one: then
  // lock() is faster after a barrier_of_all_threads(). Of who holds no latch, or only such as come
  // before this one.
  bool call_off() {
    const uint32_t seat = owner_.load(std::memory_order_relaxed);
    if (seat == kNone || seats_[seat].load(std::memory_order_relaxed) == ThreadName::mine()) {
      return false;
    }
    const std::lock_guard held(lock_);
    return end_bias();
  }

 private:
  static constexpr uint32_t kOftenMin = 64;
  static constexpr uint32_t kOftenMax = 1 << 20;

  [[gnu::noinline]] void lock_unbiased() {
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
  [[gnu::noinline]] void unlock_unbiased() {
    if (in_a_row_ >= often_ && last_holder_ == ThreadName::mine()) [[unlikely]]
      make_bias();
    lock_.unlock();
  }
  [[gnu::always_inline]] bool enter_biased() {
    const uint32_t seat = owner_.load(std::memory_order_acquire);
    // Towards nobody's name there is never a bias.
    if (seat == kNone || seats_[seat].load(std::memory_order_relaxed) != ThreadName::mine()) {
      return false;
    }
    // Another thread may have left for it: it sees what that one did.
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
    end_bias();
    if (barrier_ > ended_barrier()) [[unlikely]]
      barrier_of_all_threads();
  }
  // With the lock. The barrier that is still to come is one that begins after the bias has gone:
  // its number is read after that has been stored, with nothing between that would let them change
  // places for who carries the barrier out.
  bool end_bias() {
    if (owner_.load(std::memory_order_relaxed) == kNone) [[likely]]
      return false;
    owner_.exchange(kNone);
    barrier_ = next_barrier();
    often_ = often_ >= kOftenMax ? kOftenMax : 2 * often_;
    return true;
  }
  // With the lock, and nobody inside.
  void note_holder() {
    seat_held_ = kNone;
    uint64_t holder = ThreadName::mine();
    if (holder == ThreadName::kNone) [[unlikely]]
      holder = ThreadName::take();
    in_a_row_ = last_holder_ == holder ? in_a_row_ + 1 : 0;
    last_holder_ = holder;
  }
  // With the lock, which is about to be released: a bias that stood while it is held would let its
  // holder in once more. Towards the caller alone, which has taken the lock itself.
  void make_bias() {
    const uint64_t holder = ThreadName::mine();
    if (holder == ThreadName::kNone || !has_barrier()) return;
    in_a_row_ = 0;
    uint32_t seat = 0;
    while (seat < kSeats && seats_[seat].load(std::memory_order_relaxed) != holder) ++seat;
    // Else one that is nobody's, be it any more.
    for (uint32_t i = 0; i < kSeats && seat == kSeats; ++i) {
      if (!ThreadName::is_alive(seats_[i].load(std::memory_order_relaxed))) seat = i;
    }
    if (seat == kSeats) return;
    seats_[seat].store(holder, std::memory_order_relaxed);
    owner_.store(seat, std::memory_order_release);  // from its next time on
  }

  static constexpr uint32_t kSeats = 4;
  static constexpr uint32_t kNone = kSeats;

  pm::SpinLock lock_;
  std::atomic<uint32_t> owner_{kNone};                 // the seat towards which there is a bias
  std::array<std::atomic<uint64_t>, kSeats> seats_{};  // whose they are: names
  std::array<std::atomic<bool>, kSeats> inside_{};     // by way of the bias
  uint32_t seat_held_ = kNone;                         // of who holds it
  uint32_t in_a_row_ = 0;
  uint32_t often_ = kOftenMin;
  uint64_t last_holder_ = ThreadName::kNone;
  uint64_t barrier_ = 0;  // that the end of the last bias needs
};

using Latch = BiasedLatch<>;

}  // namespace perdure::store
