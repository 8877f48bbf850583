// Worker threads, each of which alone works on the partitions that it owns.
//
//   Runtime runtime({.workers = 2, .partitions = 64}, client);
//   Get get(partition);       // a Request in this frame
//   runtime.call(get);        // runs on the partition's worker; returns when it is complete
//
// Workers share nothing but bounded queues of messages. A worker takes what has arrived together,
// runs it, ends the batch (RuntimeClient::end_of_batch, where a store makes its writes durable) and
// only then completes it: nobody learns the result of a request before the batch that it was part
// of has ended.
//
// Who calls while a worker sleeps does not wake it, but takes its turn, and serves what has come
// for it in its place: flat combining (Hendler et al., SPAA 2010). One thread at a time is a
// worker, and for whom that is makes no difference to the client. So a call to an idle worker costs
// no wake-up; and where there are more threads than processors, those that run serve each other,
// and none waits for a worker to get a processor. Tasks run in the worker's own thread alone.
//
// A task that calls another runtime makes its thread wait. Its worker's turn is free meanwhile: so
// workers of several runtimes may wait for each other, in a circle, too. One of them that finds a
// turn taken tries again until it has its answer, and does not rely on being woken: whoever has
// that turn may be about to wait for it. Only a task's end needs the worker's own thread.
//
// Order. The requests of one call for one partition run in the order of the call, unless the
// partition leaves its worker and comes back to it during the call. The requests of the tasks of
// one worker for one partition run in the order in which they were submitted, unless the partition
// moves meanwhile. There is no order between partitions. Who needs more waits for one request
// before it sends the next.
#pragma once

#include <coroutine>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/runtime/request.h"
#include "store/runtime/task.h"

namespace perdure::store {

// What a runtime works for: called by its workers, whoever has a worker's turn.
class RuntimeClient {
 public:
  virtual ~RuntimeClient() = default;
  // The worker begins or ceases to own the partition. Between the two only it runs the partition's
  // requests, and release happens before the next adopt, whoever calls it.
  virtual void adopt(uint32_t /*partition*/, uint32_t /*worker*/) noexcept {}
  virtual void release(uint32_t /*partition*/, uint32_t /*worker*/) noexcept {}
  // All requests of a batch have run, and none is complete.
  virtual void end_of_batch(uint32_t /*worker*/) noexcept {}
  // There is nothing to do. Does a little in the background, of its own durability; returns whether
  // there may be more. Messages wait for as long as it takes.
  virtual bool idle(uint32_t /*worker*/) noexcept { return false; }
};

struct RuntimeOptions {
  uint32_t workers = 1;
  uint32_t partitions = 64;    // partition p begins at worker p % workers
  uint32_t ring_size = 256;    // messages from one thread to one worker; a power of two
  uint32_t batch = 64;         // messages that a worker takes before it ends its batch, about
  uint32_t client_slots = 64;  // threads with rings of their own; more share one
  // How long workers and callers spin before they sleep. They do not while other threads want their
  // processor. 0: they sleep at once.
  uint32_t spin_ns = 20'000;
  bool pin = false;  // worker i to the i-th processor that the process may use
  // Workers with too much work give partitions away (see balancer.h).
  bool balance = false;
  uint32_t balance_interval_ms = 10;
  uint32_t balance_tolerance_percent = 25;  // above the mean
};

// Since the runtime began.
struct WorkerStatistics {
  uint64_t requests = 0;   // run
  uint64_t batches = 0;    // that had requests
  uint64_t forwarded = 0;  // requests for partitions that had gone
  uint64_t resumed = 0;    // continuations of tasks
  uint64_t sleeps = 0;
  uint64_t adopted = 0;            // partitions that came from other workers
  uint64_t served_by_callers = 0;  // batches that callers ran while it slept
  uint64_t busy_ns = 0;            // in rounds that found something to do
};
struct PartitionStatistics {
  uint32_t worker = 0;
  uint64_t requests = 0;
  uint64_t busy_ns = 0;  // estimated: of short requests one in seven is timed
};
struct RuntimeStatistics {
  std::vector<WorkerStatistics> workers;
  std::vector<PartitionStatistics> partitions;
};

struct RuntimeState;
class Worker;

class Runtime {
 public:
  static constexpr uint32_t kAnyWorker = ~uint32_t{0};

  // Starts the workers; each adopts its partitions before its first request. Throws
  // kInvalidArgument for options out of range. The client outlives the runtime.
  Runtime(const RuntimeOptions& options, RuntimeClient& client);
  // Waits for spawned tasks and for partitions on their way; then the workers release their
  // partitions and end. No thread may be in another method, or begin one.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // From any thread that is no worker of this runtime. Runs the request on the worker of its
  // partition, returns when it is complete, rethrows its error. A full queue makes the caller wait.
  // Costs one message and no allocation, but for the queues of a thread's first call.
  void call(Request& request);
  // The same for several: sends all, then waits for all; a worker is woken once. Errors stay in the
  // requests. A request may be sent again when it is complete.
  void call(std::span<Request* const> requests);

  class Submission;
  // From a task: `co_await runtime.submit(request)` runs the request on the worker of its partition
  // and resumes the task on its own worker when it is complete; rethrows its error.
  //
  // If both workers are the same there is no message, and the request runs at once, or, if it can
  // look ahead (Request::ahead) and other tasks are ready, with theirs. If it ran at once, it is
  // complete at once if it wrote nothing (Request::wrote) and nothing else that was written on this
  // worker awaits the end of the batch: what a task has seen is durable, and may be told to others.
  // Otherwise the task is suspended until the end of the batch.
  Submission submit(Request& request) noexcept;

  // As long as it lives, others may serve the worker whose task the calling thread runs, if that is
  // one of another runtime; else it does nothing. Who is away may wait for threads that wait for
  // this worker. What the worker has run is complete before, and durable: the fence is this
  // thread's.
  class Away {
   public:
    // From whom the thread wants something; null: from nobody's workers.
    explicit Away(const Runtime* asked) noexcept;
    ~Away();
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;

   private:
    Worker* worker_;
  };

  class YieldAwaiter;
  // From a task: `co_await runtime.yield()` lets the worker take messages and run other tasks.
  YieldAwaiter yield() noexcept;

  // From any thread that is no worker of this runtime: runs the task on a worker, waits for its
  // end, returns its result or rethrows what it threw.
  template <typename T>
  T run(Task<T> task, uint32_t worker = kAnyWorker) {
    Waiter waiter(1);
    start(drive(task, waiter), worker);
    wait(waiter);
    return task.take_result();
  }
  // From any thread: runs the task on a worker (in a task: on its own), while the caller goes on.
  // The destructor waits for its end. An exception that leaves it terminates the process.
  void spawn(Task<void> task, uint32_t worker = kAnyWorker);
  // Waits until all spawned tasks have ended. Not from a worker of this runtime.
  void wait_for_spawned() const noexcept;

  // From any thread that is no worker of this runtime: moves a partition to another worker, while
  // requests for it come in. Returns when that worker has adopted it. If the partition is moved by
  // others at the same time, where it ends is open.
  void move(uint32_t partition, uint32_t worker);

  // From any thread. Counters of running workers are a little old, and of different moments.
  RuntimeStatistics statistics() const;
  uint32_t workers() const noexcept;
  uint32_t partitions() const noexcept;
  // The calling thread's number among the workers of its runtime, or kAnyWorker.
  static uint32_t current_worker() noexcept;
  // Whether the calling thread is a worker of this runtime.
  bool is_worker() const noexcept;

 private:
  // Runs a task for someone who is no coroutine: a coroutine that awaits it.
  class Driver;
  template <typename T>
  static Driver drive(Task<T>& task, Waiter& waiter);
  static Driver drive_spawned(Task<void> task, Runtime& runtime);

  void start(Driver driver, uint32_t worker);
  void wait(Waiter& waiter) noexcept;
  void serve_until(Waiter& waiter, uint32_t left_max, uint64_t workers) noexcept;
  void end_spawned() noexcept;
  void send_from_client(Request& request, uint32_t worker);
  bool run_here(Request& request) noexcept;
  void send_from_task(Request& request) noexcept;
  static void make_ready(Request& resumption) noexcept;

  std::unique_ptr<RuntimeState> state_;
};

class Runtime::Submission {
 public:
  Submission(Runtime& runtime, Request& request) noexcept : runtime_(runtime), request_(request) {}

  bool await_ready() noexcept { return runtime_.run_here(request_); }
  void await_suspend(std::coroutine_handle<> task) noexcept {
    request_.waiting_ = task;
    runtime_.send_from_task(request_);
  }
  void await_resume() const { request_.rethrow_error(); }

 private:
  Runtime& runtime_;
  Request& request_;
};

class Runtime::YieldAwaiter {
 public:
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> task) noexcept {
    resumption_.kind_ = Request::Kind::kResume;
    resumption_.waiting_ = task;
    make_ready(resumption_);
  }
  void await_resume() const noexcept {}

 private:
  Request resumption_{0, nullptr};
};

inline Runtime::Submission Runtime::submit(Request& request) noexcept { return {*this, request}; }
inline Runtime::YieldAwaiter Runtime::yield() noexcept { return {}; }

class Runtime::Driver {
 public:
  struct promise_type {  // NOLINT(readability-identifier-naming): the language's name
    // The frame goes first, and with it a spawned task; then the others learn of the end.
    struct FinalAwaiter {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> driver) const noexcept {
        Waiter* const to_wake = driver.promise().waiter;
        Runtime* const to_tell = driver.promise().runtime;
        driver.destroy();
        if (to_wake != nullptr && to_wake->complete(1)) futex_wake(to_wake);
        if (to_tell != nullptr) to_tell->end_spawned();
      }
      void await_resume() const noexcept {}
    };

    template <typename T>
    promise_type(Task<T>& /*task*/, Waiter& to_wake) : waiter(&to_wake) {}
    promise_type(Task<void>& /*task*/, Runtime& to_tell) : runtime(&to_tell) {}

    Driver get_return_object() noexcept {
      return Driver(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    FinalAwaiter final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }

    Waiter* waiter = nullptr;    // who waits for it,
    Runtime* runtime = nullptr;  // or who counts it
    Request start{0, nullptr};   // the message that resumes it for the first time
  };

  explicit Driver(std::coroutine_handle<promise_type> coroutine) noexcept : handle(coroutine) {}

  std::coroutine_handle<promise_type> handle;
};

template <typename T>
Runtime::Driver Runtime::drive(Task<T>& task, Waiter& /*waiter*/) {
  co_await task.end();
}

}  // namespace perdure::store
