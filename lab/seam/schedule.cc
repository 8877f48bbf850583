#include "lab/seam/schedule.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <thread>

#include "lab/seam/dispatch.h"
#include "lab/seam/runtime.h"

namespace perdure::lab {

// Whose turn it is. Waiting is by futex: the runtime's own mutexes would come back to it.
class Schedule::Turns {
 public:
  Turns(uint64_t seed, unsigned steps_mean) : random_(seed), steps_mean_(steps_mean) {}

  void start(uint32_t threads) {
    alive_.assign(threads, true);
    left_ = threads;
    give(draw_next());
  }

  void wait_for(uint32_t thread) {
    for (;;) {
      const uint32_t turn = turn_.load(std::memory_order_acquire);
      if (turn == thread) return;
      syscall(SYS_futex, &turn_, FUTEX_WAIT_PRIVATE, turn, nullptr, nullptr, 0);
    }
  }

  bool draws_switch() { return next_random() % steps_mean_ == 0; }

  void pass_on(uint32_t thread) {
    const uint32_t next = draw_next();
    if (next == thread) return;
    if (Sink* sink = seam::installed_sink.load()) sink->on_pause();
    give(next);
    wait_for(thread);
  }

  void end(uint32_t thread) {
    if (Sink* sink = seam::installed_sink.load()) sink->on_pause();
    alive_[thread] = false;
    if (--left_ != 0) give(draw_next());
  }

 private:
  void give(uint32_t thread) {
    turn_.store(thread, std::memory_order_release);
    syscall(SYS_futex, &turn_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

  uint64_t next_random() {
    random_ += 0x9e3779b97f4a7c15U;
    uint64_t x = random_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }

  uint32_t draw_next() {
    uint64_t skip = next_random() % left_;
    for (uint32_t thread = 0;; ++thread) {
      if (alive_[thread] && skip-- == 0) return thread;
    }
  }

  std::atomic<uint32_t> turn_{~0U};
  uint64_t random_;
  unsigned steps_mean_;
  std::vector<bool> alive_;
  uint32_t left_ = 0;
};

namespace {

// The schedule that the calling thread belongs to, and its number there.
thread_local Schedule* own_schedule = nullptr;
thread_local uint32_t own_number = 0;

}  // namespace

Schedule::Schedule(uint64_t seed, unsigned steps_mean)
    : turns_(std::make_unique<Turns>(seed, steps_mean)) {}
Schedule::~Schedule() = default;

void Schedule::run(const std::vector<std::function<void()>>& threads) {
  std::vector<std::exception_ptr> thrown(threads.size());
  std::vector<std::thread> running;
  {
    const Quiet quiet;
    for (uint32_t number = 0; number < threads.size(); ++number) {
      running.emplace_back([&, number] {
        turns_->wait_for(number);
        own_schedule = this;
        own_number = number;
        seam::thread_state.scheduled = true;
        try {
          threads[number]();
        } catch (...) {
          thrown[number] = std::current_exception();
        }
        const Quiet ending;
        seam::thread_state.scheduled = false;
        turns_->end(number);
      });
    }
    turns_->start(static_cast<uint32_t>(threads.size()));
    for (std::thread& thread : running) thread.join();
  }
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

void Schedule::make_way() { seam::make_way(true); }

namespace seam {

void make_way(bool always) {
  if (!thread_state.scheduled || thread_state.quiet != 0) return;
  const Quiet quiet;
  Schedule::Turns& turns = *own_schedule->turns_;
  if (always || turns.draws_switch()) turns.pass_on(own_number);
}

}  // namespace seam

}  // namespace perdure::lab
