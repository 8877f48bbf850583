// What the threads of a runtime share, and the loop of one worker. Private to the runtime.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "store/runtime/balancer.h"
#include "store/runtime/clients.h"
#include "store/runtime/request.h"
#include "store/runtime/ring.h"
#include "store/runtime/runtime.h"

namespace perdure::store {

// A counter with one writer at a time, which any thread may read.
class Counter {
 public:
  void add(uint64_t amount) noexcept { value_.store(get() + amount, std::memory_order_relaxed); }
  uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct alignas(64) PartitionState {
  // To whom requests are sent. Its worker has the partition, or will when `transfer` arrives.
  std::atomic<uint32_t> owner{0};
  Request transfer{0, nullptr};
  // The rest is the owner's.
  RequestList early;  // what arrived before the partition did
  Counter requests;
  Counter busy_ticks;
};

class Worker;

struct RuntimeState {
  RuntimeState(const RuntimeOptions& runtime_options, RuntimeClient& runtime_client);
  ~RuntimeState();

  double ns_per_tick() const;
  // Wakes the workers of a set (bit: number modulo 64) to which the caller has pushed.
  void ring_doorbells(uint64_t workers) noexcept;

  const RuntimeOptions options;
  RuntimeClient& client;
  const WaitClock::time_point start_time = WaitClock::now();
  const uint64_t start_ticks;
  std::unique_ptr<PartitionState[]> partitions;
  std::shared_ptr<ClientTable> clients;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  // Odd and even changes around each change of an owner.
  alignas(64) std::atomic<uint64_t> map_version{0};
  std::atomic<bool> stopping{false};
  alignas(64) std::atomic<uint32_t> tasks{0};  // spawned and not at their end
  std::atomic<uint32_t> transfers{0};          // partitions on their way
  std::atomic<uint32_t> next_worker{0};        // for tasks
};

// Methods without another note are for who has the worker's turn: its own thread, which gives it
// away to sleep and to wake others, or a thread that calls meanwhile, and serves the messages in
// its place. Tasks run in the worker's own thread alone.
class alignas(64) Worker {
 public:
  Worker(RuntimeState& state, uint32_t index);

  // The worker whose turn the calling thread has, or null.
  static Worker* here() noexcept { return current; }
  bool belongs_to(const RuntimeState& state) const noexcept { return &state_ == &state; }
  uint32_t index() const noexcept { return index_; }
  RuntimeState& state() noexcept { return state_; }

  void loop() noexcept;  // the worker's own thread
  // A thread that waits for what it has sent, and has no turn of this runtime: if nobody has this
  // one, takes it and serves what has come. Returns whether it was free.
  bool serve_if_free() noexcept;
  // The worker's own thread, of which others do the work until it comes back. Returns whether it
  // runs a task; else nothing happens: what it runs may be half done.
  bool leave_task() noexcept;
  void come_back_to_task() noexcept;
  // Any thread, after it pushed and executed a sequentially consistent fence.
  void wake_if_asleep() noexcept {
    if (asleep_.load(std::memory_order_relaxed) != 0 &&
        asleep_.exchange(0, std::memory_order_acq_rel) != 0) {
      futex_wake(&asleep_);
    }
  }

  bool owns(uint32_t partition) const noexcept { return owned_[partition] != 0; }
  // Runs a request of an own partition for a task. True if it may go on at once; otherwise it is
  // resumed after the end of the batch.
  bool run_for_task(Request& request) noexcept;
  void complete_with_batch(Request& request) noexcept { batch_.push(request); }
  // Whether other tasks are to go on in this round, or have: then a request of an own partition is
  // gathered, and run with theirs behind the last of them, so that their misses overlap.
  bool gathers() const noexcept { return gathers_; }
  void gather(Request& request) noexcept { gathered_.push(request); }
  void send(Request& request, uint32_t worker) noexcept;
  // Sends a request to where its partition is, or is going; keeps it if that is here.
  void route(Request& request) noexcept;
  void make_ready(Request& resumption) noexcept { ready_.push(resumption); }
  // After this batch. Nothing happens if the partition is not here by then.
  void depart(uint32_t partition, uint32_t target) { departures_.push_back({partition, target}); }

  WorkerStatistics statistics() const;                                // any thread
  uint64_t busy_ticks() const noexcept { return busy_ticks_.get(); }  // any thread

 private:
  struct Departure {
    uint32_t partition;
    uint32_t target;
  };
  static constinit inline thread_local Worker* current = nullptr;
  // Reading the clock costs as much as a small request: of such, one in seven is timed, for a cycle
  // of requests seldom has seven.
  static constexpr uint32_t kTimedStride = 7;
  static constexpr uint64_t kCheapTicks = 2048;
  static constexpr uint32_t kSleepers = 64;  // about as many as a batch completes
  static constexpr uint32_t kPopped = 64;    // pointers taken from a ring at once, to prefetch

  void begin() noexcept;
  void finish_round() noexcept;
  void complete(Waiter& waiter, uint32_t count) noexcept {
    if (!waiter.complete(count)) return;
    if (sleepers_count_ == kSleepers) return futex_wake(&waiter);
    sleepers_[sleepers_count_++] = &waiter;
  }
  void take_turn() noexcept;  // the worker's own thread
  // The thread then has the turn that it had before, if any.
  void give_turn(Worker* before) noexcept;
  void account(uint64_t start_ticks) noexcept;
  bool take_messages() noexcept;
  uint32_t take_from(Ring<Request>& ring, uint32_t limit) noexcept;
  void dispatch(std::span<Request* const> requests) noexcept;
  void dispatch(Request& request) noexcept;
  void run(Request& request) noexcept;
  void adopt(uint32_t partition) noexcept;
  bool resume_tasks() noexcept;
  bool finish_batch() noexcept;
  void hand_over(const Departure& departure) noexcept;
  bool push_pending() noexcept;  // whether some went out
  void sleep_until_message() noexcept;
  bool has_message() const noexcept;

  RuntimeState& state_;
  const uint32_t index_;
  std::vector<Ring<Request>> from_workers_;
  std::vector<uint8_t> owned_;        // by partition
  RequestList batch_;                 // run, and to be completed
  RequestList ready_;                 // coroutines to resume
  RequestList gathered_;              // of tasks of this round, to be run
  std::vector<RequestList> pending_;  // by worker: what did not fit into its ring
  uint32_t pending_count_ = 0;
  uint64_t to_wake_ = 0;    // workers pushed to since doorbells were rung
  bool has_begun_ = false;  // has its first partitions
  bool wrote_ = false;      // in this batch
  bool gathers_ = false;
  bool in_task_ = false;      // its own thread is in a task, and not in a request of it
  uint32_t first_ring_ = 0;   // in the next round
  uint32_t until_timed_ = 0;  // requests, until one is timed
  uint32_t timed_stride_ = 1;
  std::vector<Departure> departures_;
  // Callers to wake once others may have the turn. A thread that is woken asks again, mostly at
  // once: while this one still had the turn it would fall asleep again, and so would all.
  std::array<const void*, kSleepers> sleepers_;
  uint32_t sleepers_count_ = 0;
  Balancer balancer_;

  Counter requests_, batches_, forwarded_, resumed_, sleeps_, adopted_, served_by_callers_,
      busy_ticks_;
  alignas(64) std::atomic<uint32_t> asleep_{0};
  Turn turn_;
};

}  // namespace perdure::store
