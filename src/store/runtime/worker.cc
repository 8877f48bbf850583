#include "store/runtime/worker.h"

#include <x86intrin.h>

#include <algorithm>
#include <array>

#include "pm/memory.h"
#include "pm/pause.h"

namespace perdure::store {

Worker::Worker(RuntimeState& state, uint32_t index)
    : state_(state),
      index_(index),
      owned_(state.options.partitions),
      pending_(state.options.workers),
      balancer_(state, index) {
  from_workers_.reserve(state.options.workers);
  for (uint32_t i = 0; i < state.options.workers; ++i) {
    from_workers_.emplace_back(state.options.ring_size);
  }
  departures_.reserve(state.options.partitions);
}

void Worker::loop() noexcept {
  take_turn();
  begin();
  for (;;) {
    const uint64_t start = __rdtsc();
    // Both, in each round: neither keeps the other waiting.
    bool worked = take_messages();
    worked = resume_tasks() || worked;
    finish_round();
    if (worked) {
      account(start);
      if (sleepers_count_ != 0) {
        give_turn(nullptr);
        take_turn();
      }
      continue;
    }
    // Nobody says when a full ring has room again: this worker looks, and does not sleep for long.
    if (pending_count_ != 0) {
      const auto can_go_on = [&] { return push_pending() || has_message(); };
      if (!spin_until(can_go_on, state_.options.spin_ns)) pause_briefly();
      continue;
    }
    if (state_.stopping.load(std::memory_order_seq_cst) &&
        state_.transfers.load(std::memory_order_seq_cst) == 0 && !has_message()) {
      break;
    }
    if (!state_.client.idle(index_)) sleep_until_message();
  }
  for (uint32_t p = 0; p < owned_.size(); ++p) {
    if (owned_[p] != 0) state_.client.release(p, index_);
  }
  give_turn(nullptr);
}

void Worker::take_turn() noexcept {
  turn_.take(state_.options.spin_ns);
  current = this;
}

void Worker::give_turn(Worker* before) noexcept {
  // Mostly there are none: all of the array would be half a kilobyte to copy at each call.
  std::array<const void*, kSleepers> sleepers;
  const uint32_t count = std::exchange(sleepers_count_, 0);
  std::copy_n(sleepers_.begin(), count, sleepers.begin());
  current = before;
  turn_.give();
  for (uint32_t i = 0; i < count; ++i) futex_wake(sleepers[i]);
}

bool Worker::serve_if_free() noexcept {
  if (!turn_.try_take()) return false;
  Worker* const before = std::exchange(current, this);
  begin();
  const uint64_t start = __rdtsc();
  const bool worked = take_messages();
  finish_round();
  if (worked) {
    served_by_callers_.add(1);
    account(start);
  }
  // What waits for this worker's own thread: tasks, and rings that are full.
  const bool wanted = !ready_.empty() || pending_count_ != 0;
  give_turn(before);
  if (wanted) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_if_asleep();
  }
  return true;
}

// All latches that the batch has go with its end: others may want them.
bool Worker::leave_task() noexcept {
  if (!std::exchange(in_task_, false)) return false;
  finish_batch();
  state_.ring_doorbells(std::exchange(to_wake_, 0));
  give_turn(this);
  return true;
}

void Worker::come_back_to_task() noexcept {
  take_turn();
  in_task_ = true;
}

// Before the first message, whoever serves it.
void Worker::begin() noexcept {
  if (has_begun_) return;
  has_begun_ = true;
  for (uint32_t p = index_; p < owned_.size(); p += state_.options.workers) {
    state_.client.adopt(p, index_);
    owned_[p] = 1;
  }
}

void Worker::finish_round() noexcept {
  finish_batch();
  for (const Departure& departure : departures_) hand_over(departure);
  departures_.clear();
  if (pending_count_ != 0) push_pending();
  state_.ring_doorbells(std::exchange(to_wake_, 0));
}

void Worker::account(uint64_t start_ticks) noexcept {
  const uint64_t end = __rdtsc();
  busy_ticks_.add(end - start_ticks);
  balancer_.consider(*this, end);
}

// Two workers that send each other more than fits into their rings cannot stop each other: neither
// ever waits for room. What does not fit goes into pending_, a list of requests that lie in other
// frames, and the worker goes on to take from its own rings, which is what the other one needs. The
// list is bounded: with a ring's worth pending, a worker takes no more from the rings of clients,
// who then find them full and wait. It still takes from workers', so that these always drain; what
// comes from there to be forwarded has been a client's or is a task's, of which each has one at a
// time.
bool Worker::take_messages() noexcept {
  uint32_t budget = state_.options.batch;
  const uint32_t others = state_.options.workers;
  const uint32_t clients = pending_count_ < state_.options.ring_size ? state_.clients->used() : 0;
  const uint32_t rings = others + clients;
  if (++first_ring_ >= rings) first_ring_ = 0;
  for (uint32_t i = 0; i < rings && budget != 0; ++i) {
    uint32_t ring = first_ring_ + i;
    if (ring >= rings) ring -= rings;
    budget -= take_from(
        ring < others ? from_workers_[ring] : state_.clients->at(ring - others).ring_to(index_),
        budget);
  }
  return budget != state_.options.batch;
}

uint32_t Worker::take_from(Ring<Request>& ring, uint32_t limit) noexcept {
  std::array<Request*, kPopped> popped;
  const uint32_t count = ring.pop({popped.data(), std::min(limit, kPopped)});
  for (uint32_t i = 1; i < count; ++i) pm::prefetch(popped[i]);
  dispatch({popped.data(), count});
  return count;
}

// Those that came together: first the cache is asked for what all of them read.
void Worker::dispatch(std::span<Request* const> requests) noexcept {
  for (int step = 0; requests.size() > 1 && step < Request::kAheadSteps; ++step) {
    for (Request* const request : requests) {
      if (request->ahead != nullptr && request->kind_ == Request::Kind::kRun &&
          owns(request->partition)) {
        request->ahead(*request, step);
      }
    }
  }
  for (Request* const request : requests) dispatch(*request);
}

void Worker::dispatch(Request& request) noexcept {
  const uint32_t partition = request.partition;
  switch (request.kind_) {
    case Request::Kind::kRun: {
      if (owns(partition)) {
        run(request);
        batch_.push(request);
        return;
      }
      forwarded_.add(1);
      route(request);
      return;
    }
    case Request::Kind::kResume:
      ready_.push(request);
      return;
    case Request::Kind::kAdopt:
      adopt(partition);
      return;
  }
}

void Worker::route(Request& request) noexcept {
  PartitionState& state = state_.partitions[request.partition];
  const uint32_t owner = pm::acquire(state.owner);
  if (owner == index_) {  // the partition is on its way here, and the sender knew
    state.early.push(request);
  } else {
    send(request, owner);
  }
}

void Worker::run(Request& request) noexcept {
  PartitionState& partition = state_.partitions[request.partition];
  if (until_timed_-- == 0) {
    const uint64_t begin = __rdtsc();
    request.run(request);
    const uint64_t ticks = __rdtsc() - begin;
    // It stands for those that were not timed before it.
    partition.busy_ticks.add(ticks * timed_stride_);
    timed_stride_ = ticks < kCheapTicks ? kTimedStride : 1;
    until_timed_ = timed_stride_ - 1;
  } else {
    request.run(request);
  }
  partition.requests.add(1);
  requests_.add(1);
  wrote_ |= request.wrote;
}

bool Worker::run_for_task(Request& request) noexcept {
  in_task_ = false;
  run(request);
  in_task_ = true;
  return !wrote_;
}

void Worker::adopt(uint32_t partition) noexcept {
  PartitionState& state = state_.partitions[partition];
  pm::come_to_place("store: adopts");
  state_.client.adopt(partition, index_);
  owned_[partition] = 1;
  adopted_.add(1);
  state_.transfers.fetch_sub(1, std::memory_order_release);
  while (!state.early.empty()) {
    Request& request = state.early.pop();
    run(request);
    batch_.push(request);
  }
}

bool Worker::resume_tasks() noexcept {
  // Those that get ready meanwhile come after the next messages.
  RequestList ready = std::exchange(ready_, {});
  if (ready.empty()) return false;
  while (!ready.empty()) {
    resumed_.add(1);
    Request& resumption = ready.pop();
    gathers_ = !ready.empty() || !gathered_.empty();
    in_task_ = true;
    resumption.waiting_.resume();
    in_task_ = false;
  }
  gathers_ = false;
  std::array<Request*, kPopped> group;
  while (!gathered_.empty()) {
    uint32_t count = 0;
    while (count < kPopped && !gathered_.empty()) group[count++] = &gathered_.pop();
    dispatch({group.data(), count});
  }
  return true;
}

// Completes what has run. The last access to a request is the one that completes it: its frame may
// go.
bool Worker::finish_batch() noexcept {
  if (batch_.empty()) return false;
  state_.client.end_of_batch(index_);
  batches_.add(1);
  wrote_ = false;
  Waiter* waiter = nullptr;
  uint32_t count = 0;
  while (!batch_.empty()) {
    Request& request = batch_.pop();
    if (request.waiter_ != nullptr) {
      // What one caller sent together is completed with one write to its frame.
      if (request.waiter_ != waiter) {
        if (count != 0) complete(*waiter, count);
        waiter = request.waiter_;
        count = 0;
      }
      ++count;
    } else {
      request.kind_ = Request::Kind::kResume;
      if (request.home_ == index_) {
        ready_.push(request);
      } else {
        send(request, request.home_);
      }
    }
  }
  if (count != 0) complete(*waiter, count);
  return true;
}

void Worker::send(Request& request, uint32_t worker) noexcept {
  to_wake_ |= uint64_t{1} << (worker % 64);
  RequestList& pending = pending_[worker];
  if (pending.empty() && state_.workers[worker]->from_workers_[index_].push(request)) return;
  pending.push(request);  // behind those that wait already: the order stays
  ++pending_count_;
}

bool Worker::push_pending() noexcept {
  const uint32_t before = pending_count_;
  for (uint32_t worker = 0; worker < pending_.size(); ++worker) {
    RequestList& pending = pending_[worker];
    while (!pending.empty()) {
      // Once pushed it is the other's, and so is its link.
      RequestList rest = pending;
      Request& request = rest.pop();
      if (!state_.workers[worker]->from_workers_[index_].push(request)) break;
      pending = rest;
      --pending_count_;
      to_wake_ |= uint64_t{1} << (worker % 64);
    }
  }
  return pending_count_ != before;
}

void Worker::hand_over(const Departure& departure) noexcept {
  const auto [partition, target] = departure;
  if (!owns(partition) || target == index_) return;
  PartitionState& state = state_.partitions[partition];
  // A worker ends when it sees `stopping` and then no transfer; this one counts and then looks
  // whether it may begin one. In the single order of these four operations one of the two is late,
  // and sees it.
  state_.transfers.fetch_add(1, std::memory_order_seq_cst);
  if (state_.stopping.load(std::memory_order_seq_cst)) {
    state_.transfers.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  state_.client.release(partition, index_);
  owned_[partition] = 0;
  // A sender that reads the new owner sees the first change of the version. One that has seen the
  // first change and still reads the old owner will see the second.
  pm::before_change("store: hand-over");
  state_.map_version.fetch_add(1, std::memory_order_acq_rel);
  pm::publish(state.owner, target);
  state_.map_version.fetch_add(1, std::memory_order_acq_rel);
  pm::come_to_place("store: hand-over");
  // Requests that are forwarded from now on come after it, in the same ring.
  state.transfer.partition = partition;
  state.transfer.kind_ = Request::Kind::kAdopt;
  send(state.transfer, target);
}

bool Worker::has_message() const noexcept {
  for (const Ring<Request>& ring : from_workers_) {
    if (!ring.empty()) return true;
  }
  const uint32_t clients = state_.clients->used();
  for (uint32_t i = 0; i < clients; ++i) {
    if (!state_.clients->at(i).ring_to(index_).empty()) return true;
  }
  return false;
}

// No wake-up is lost. The worker writes asleep_ and then reads the rings; a sender writes a ring
// and then reads asleep_; both have a sequentially consistent fence between. One of the two fences
// is first, and the thread with the other sees what was written before it: the worker sees the
// message (or the slot of a new client, or `stopping`), or the sender sees that it must wake. If
// both, the wake-up is in vain. The kernel puts the worker to sleep only while asleep_ is still 1,
// which who wakes it clears.
//
// It spins with its turn, which nobody could use better, and gives it away before it yields or
// sleeps: callers then serve themselves, and each other. A caller whose message another one's round
// has missed tries again until it goes to sleep, and wakes the worker before it does; so each
// message has somebody who is awake and sees to it.
void Worker::sleep_until_message() noexcept {
  const auto awake = [&] {
    return !ready_.empty() || has_message() || state_.stopping.load(std::memory_order_acquire);
  };
  if (spin_alone(awake, state_.options.spin_ns)) return;
  asleep_.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  pm::may_pause();
  if (awake()) {
    asleep_.store(0, std::memory_order_relaxed);
    return;
  }
  give_turn(nullptr);
  const auto woken = [&] { return asleep_.load(std::memory_order_acquire) == 0; };
  if (state_.options.spin_ns == 0 || !yield_until(woken)) {
    sleeps_.add(1);
    while (!woken()) futex_wait(asleep_, 1);
  }
  take_turn();
}

WorkerStatistics Worker::statistics() const {
  return {
      .requests = requests_.get(),
      .batches = batches_.get(),
      .forwarded = forwarded_.get(),
      .resumed = resumed_.get(),
      .sleeps = sleeps_.get(),
      .adopted = adopted_.get(),
      .served_by_callers = served_by_callers_.get(),
      .busy_ns = static_cast<uint64_t>(static_cast<double>(busy_ticks()) * state_.ns_per_tick())};
}

}  // namespace perdure::store
