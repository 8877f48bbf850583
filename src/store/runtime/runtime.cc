#include "store/runtime/runtime.h"

#include <fmt/core.h>
#include <pthread.h>
#include <x86intrin.h>

#include <bit>
#include <cassert>

#include "perdure/error.h"
#include "pm/pause.h"
#include "pm/thread.h"
#include "store/runtime/worker.h"

namespace perdure::store {
namespace {

void require(bool holds, const char* option, uint64_t value, const char* legal) {
  if (holds) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("runtime option {} is {}; give {}", option, value, legal));
}

RuntimeOptions checked(const RuntimeOptions& options) {
  require(options.workers >= 1 && options.workers <= 1024, "workers", options.workers, "1 to 1024");
  require(options.partitions >= 1, "partitions", options.partitions, "1 or more");
  require(std::has_single_bit(options.ring_size), "ring_size", options.ring_size, "a power of two");
  require(options.batch >= 1, "batch", options.batch, "1 or more");
  return options;
}

void pin_to_nth_processor(std::thread& thread, uint32_t n) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  n %= static_cast<uint32_t>(CPU_COUNT(&allowed));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || n-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::pthread_setaffinity_np(thread.native_handle(), sizeof(one), &one);
    return;
  }
}

}  // namespace

RuntimeState::RuntimeState(const RuntimeOptions& runtime_options, RuntimeClient& runtime_client)
    : options(checked(runtime_options)),
      client(runtime_client),
      start_ticks(__rdtsc()),
      partitions(std::make_unique<PartitionState[]>(options.partitions)),
      clients(
          std::make_shared<ClientTable>(options.client_slots, options.workers, options.ring_size)) {
  for (uint32_t p = 0; p < options.partitions; ++p) {
    partitions[p].owner.store(p % options.workers, std::memory_order_relaxed);
  }
  for (uint32_t i = 0; i < options.workers; ++i) {
    workers.push_back(std::make_unique<Worker>(*this, i));
  }
  threads.reserve(options.workers);
}

RuntimeState::~RuntimeState() {
  stopping.store(true, std::memory_order_seq_cst);
  ring_doorbells(~uint64_t{0});
  for (std::thread& thread : threads) thread.join();
}

double RuntimeState::ns_per_tick() const {
  const std::chrono::duration<double, std::nano> elapsed = WaitClock::now() - start_time;
  return elapsed.count() / static_cast<double>(__rdtsc() - start_ticks);
}

void RuntimeState::ring_doorbells(uint64_t to_wake) noexcept {
  if (to_wake == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see Worker::sleep_until_message
  for (uint32_t i = 0; i < workers.size(); ++i) {
    if ((to_wake >> (i % 64) & 1) != 0) workers[i]->wake_if_asleep();
  }
}

Runtime::Runtime(const RuntimeOptions& options, RuntimeClient& client)
    : state_(std::make_unique<RuntimeState>(options, client)) {
  for (uint32_t i = 0; i < options.workers; ++i) {
    std::thread& thread = state_->threads.emplace_back(pm::start_thread(
        "a worker of the store", [worker = state_->workers[i].get()] { worker->loop(); }));
    if (options.pin) pin_to_nth_processor(thread, i);
  }
}

Runtime::~Runtime() { wait_for_spawned(); }

void Runtime::wait_for_spawned() const noexcept {
  while (const uint32_t left = state_->tasks.load(std::memory_order_acquire)) {
    state_->tasks.wait(left, std::memory_order_acquire);
  }
}

void Runtime::wait(Waiter& waiter) noexcept {
  const Away away(this);
  waiter.wait(0, state_->options.spin_ns);
}

Runtime::Away::Away(const Runtime* asked) noexcept : worker_(Worker::here()) {
  const bool is_other =
      worker_ != nullptr && (asked == nullptr || !worker_->belongs_to(*asked->state_));
  if (!is_other || !worker_->leave_task()) worker_ = nullptr;
}

Runtime::Away::~Away() {
  if (worker_ != nullptr) worker_->come_back_to_task();
}

void Runtime::call(Request& request) {
  Request* const one = &request;
  call(std::span(&one, 1));
  request.rethrow_error();
}

void Runtime::call(std::span<Request* const> requests) {
  assert(Worker::here() == nullptr || !Worker::here()->belongs_to(*state_));
  const Away away(this);
  Client& client = state_->clients->mine();
  const auto total = static_cast<uint32_t>(requests.size());
  Waiter waiter(total);
  uint64_t version = pm::acquire(state_->map_version);
  uint64_t asked = 0;  // workers, as a set (bit: number modulo 64)
  for (uint32_t sent = 0; sent < total;) {
    Request& request = *requests[sent];
    assert(request.partition < state_->options.partitions);
    request.kind_ = Request::Kind::kRun;
    request.waiter_ = &waiter;
    const uint32_t left = waiter.left();
    const uint32_t owner = pm::acquire(state_->partitions[request.partition].owner);
    const uint64_t version_now = pm::acquire(state_->map_version);
    if (version_now == version && client.push(request, owner)) {
      asked |= uint64_t{1} << (owner % 64);
      ++sent;
      continue;
    }
    const uint32_t unsent = total - sent;
    if (version_now != version) {
      // Partitions have moved. What was sent before goes a longer way, and must not be overtaken.
      version = version_now;
      serve_until(waiter, unsent, asked);
    } else if (left > unsent) {
      // The ring was full when some of our own were not complete: one will be, and there is room.
      serve_until(waiter, left - 1, asked);
    } else if (!state_->workers[owner]->serve_if_free()) {
      // It is full of what other threads have sent, or of spawned tasks.
      state_->ring_doorbells(asked | uint64_t{1} << (owner % 64));
      pause_briefly();
    }
  }
  serve_until(waiter, 0, asked);
}

// Waits until at most `left_max` are left of what was sent to a set of workers; serves what has
// come for them as long as they sleep.
void Runtime::serve_until(Waiter& waiter, uint32_t left_max, uint64_t workers) noexcept {
  const auto served = [&] {
    for (uint32_t i = 0; i < state_->workers.size() && waiter.left() > left_max; ++i) {
      if ((workers >> (i % 64) & 1) != 0) state_->workers[i]->serve_if_free();
    }
    return waiter.left() <= left_max;
  };
  if (spin_until(served, state_->options.spin_ns)) return;
  state_->ring_doorbells(workers);
  if (Worker::here() == nullptr) return waiter.wait(left_max, 0);
  // A worker of another runtime, for which who is to wake it may wait.
  while (!served()) pause_briefly();
}

void Runtime::send_from_client(Request& request, uint32_t worker) {
  const Away away(this);
  Client& client = state_->clients->mine();
  while (!client.push(request, worker)) {
    if (!state_->workers[worker]->serve_if_free()) pause_briefly();
  }
  state_->ring_doorbells(uint64_t{1} << (worker % 64));
}

bool Runtime::run_here(Request& request) noexcept {
  Worker* const worker = Worker::here();
  assert(worker != nullptr && worker->belongs_to(*state_));
  request.kind_ = Request::Kind::kRun;
  request.waiter_ = nullptr;
  request.home_ = worker->index();
  if (!worker->owns(request.partition)) return false;
  request.gathered_ = request.ahead != nullptr && worker->gathers();
  return !request.gathered_ && worker->run_for_task(request);
}

void Runtime::send_from_task(Request& request) noexcept {
  Worker& worker = *Worker::here();
  if (request.gathered_) {
    worker.gather(request);
  } else if (worker.owns(request.partition)) {  // it has run
    worker.complete_with_batch(request);
  } else {
    worker.route(request);
  }
}

void Runtime::make_ready(Request& resumption) noexcept { Worker::here()->make_ready(resumption); }

Runtime::Driver Runtime::drive_spawned(Task<void> task, Runtime& /*runtime*/) { co_await task; }

void Runtime::spawn(Task<void> task, uint32_t worker) {
  Driver driver = drive_spawned(std::move(task), *this);
  state_->tasks.fetch_add(1, std::memory_order_relaxed);
  start(driver, worker);
}

void Runtime::start(Driver driver, uint32_t worker) {
  Request& message = driver.handle.promise().start;
  message.kind_ = Request::Kind::kResume;
  message.waiting_ = driver.handle;
  Worker* const here = Worker::here();
  const bool inside = here != nullptr && here->belongs_to(*state_);
  if (worker == kAnyWorker) {
    worker = inside ? here->index()
                    : state_->next_worker.fetch_add(1, std::memory_order_relaxed) %
                          state_->options.workers;
  }
  if (!inside) {
    send_from_client(message, worker);
  } else if (worker == here->index()) {
    here->make_ready(message);
  } else {
    here->send(message, worker);
  }
}

void Runtime::end_spawned() noexcept {
  if (state_->tasks.fetch_sub(1, std::memory_order_acq_rel) == 1) state_->tasks.notify_all();
}

void Runtime::move(uint32_t partition, uint32_t worker) {
  struct Departure : Request {
    Departure(uint32_t number, uint32_t to) : Request(number, &leave), target(to) {}
    static void leave(Request& request) noexcept {
      Worker::here()->depart(request.partition, static_cast<Departure&>(request).target);
    }
    uint32_t target;
  };
  assert(worker < state_->options.workers);
  Departure departure(partition, worker);
  call(departure);
  Request arrival(partition, [](Request& /*request*/) noexcept {});
  call(arrival);
}

RuntimeStatistics Runtime::statistics() const {
  RuntimeStatistics statistics;
  for (const auto& worker : state_->workers) statistics.workers.push_back(worker->statistics());
  for (uint32_t p = 0; p < state_->options.partitions; ++p) {
    const PartitionState& partition = state_->partitions[p];
    statistics.partitions.push_back(
        {.worker = partition.owner.load(std::memory_order_relaxed),
         .requests = partition.requests.get(),
         .busy_ns = static_cast<uint64_t>(static_cast<double>(partition.busy_ticks.get()) *
                                          state_->ns_per_tick())});
  }
  return statistics;
}

uint32_t Runtime::workers() const noexcept { return state_->options.workers; }
uint32_t Runtime::partitions() const noexcept { return state_->options.partitions; }
bool Runtime::is_worker() const noexcept {
  const Worker* const worker = Worker::here();
  return worker != nullptr && worker->belongs_to(*state_);
}
uint32_t Runtime::current_worker() noexcept {
  const Worker* const worker = Worker::here();
  return worker == nullptr ? kAnyWorker : worker->index();
}

}  // namespace perdure::store
