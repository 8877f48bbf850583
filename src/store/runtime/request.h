// A request: what one thread asks of the worker that owns a partition.
//
//   struct Get : Request {
//     explicit Get(uint32_t number) : Request(number, &execute) {}
//     static void execute(Request& request) noexcept { auto& get = static_cast<Get&>(request); ... }
//   };
//
// It lives in the frame of who waits for it, a thread's or a coroutine's, and is linked into lists
// by itself: to send, forward and complete it allocates nothing.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>

#include "pm/pause.h"
#include "store/runtime/wait.h"

namespace perdure::store {

// How many requests a thread still waits for.
class Waiter {
 public:
  explicit Waiter(uint32_t count) : word_(count) {}

  uint32_t left() const noexcept { return pm::acquire(word_) & kLeft; }
  // Of another thread. Whether the thread that waits sleeps, and is to be woken by futex_wake()
  // with the waiter's address. The waiter may be gone on return.
  [[nodiscard]] bool complete(uint32_t count) noexcept {
    pm::may_pause();
    const uint32_t before = word_.fetch_sub(count, std::memory_order_acq_rel);
    pm::may_pause();
    const bool last = (before & kLeft) == count;
    return (before & (last ? kSleeps | kSleepsForAny : kSleepsForAny)) != 0;
  }
  // Of the thread that waits: until at most `limit` are left.
  void wait(uint32_t limit, uint32_t spin_ns) noexcept {
    if (spin_until([&] { return left() <= limit; }, spin_ns)) return;
    const uint32_t flag = limit == 0 ? kSleeps : kSleepsForAny;
    // Count and flag are one word: who completes the last one either sees the flag, or the kernel
    // sees that the word has changed.
    uint32_t seen = word_.fetch_or(flag, std::memory_order_acq_rel) | flag;
    while ((seen & kLeft) > limit) {
      futex_wait(word_, seen);
      seen = pm::acquire(word_);
    }
    if (limit != 0) word_.fetch_and(kLeft, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kSleeps = 1U << 31;        // wake at zero
  static constexpr uint32_t kSleepsForAny = 1U << 30;  // wake at every step
  static constexpr uint32_t kLeft = kSleepsForAny - 1;

  std::atomic<uint32_t> word_;  // the first member: see complete()
};

class Request {
 public:
  // Runs on the worker that owns the partition, to its end: it neither blocks nor waits. What it
  // wants to throw goes into `error`.
  using Run = void (*)(Request&) noexcept;
  // Asks the cache for what run() will read, in steps from 0 to kAheadSteps, each taken for all
  // requests that came together before the next one, so that their misses overlap. Then they are
  // run; there may be none of it.
  using Ahead = void (*)(Request&, int step) noexcept;
  static constexpr int kAheadSteps = 5;

  Request(uint32_t partition_number, Run function) : run(function), partition(partition_number) {}
  // It is in a list while it is on its way.
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  void rethrow_error() const {
    if (error) std::rethrow_exception(error);
  }

  Run run;
  Ahead ahead = nullptr;
  uint32_t partition;
  // A request that changed nothing clears this; see Runtime::submit for what it gains.
  bool wrote = true;
  std::exception_ptr error;

 private:
  friend class Worker;
  friend class Runtime;
  friend class RequestList;

  enum class Kind : uint8_t {
    kRun,     // run it, if the partition is here
    kResume,  // continue the coroutine
    kAdopt,   // the partition comes with this message
  };

  Kind kind_ = Kind::kRun;
  bool gathered_ = false;            // it has not run, though its partition is the task's worker's
  uint32_t home_ = 0;                // the coroutine's worker
  Request* next_ = nullptr;          // in a RequestList
  Waiter* waiter_ = nullptr;         // the thread that waits, or null, and then
  std::coroutine_handle<> waiting_;  // the coroutine that does
};

// A queue of requests, of one thread.
class RequestList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  Request* first() const noexcept { return first_; }
  void push(Request& request) noexcept {
    request.next_ = nullptr;
    (first_ == nullptr ? first_ : last_->next_) = &request;
    last_ = &request;
  }
  Request& pop() noexcept {
    Request& request = *first_;
    first_ = request.next_;
    return request;
  }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
};

}  // namespace perdure::store
