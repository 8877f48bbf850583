// Threads of observed code that run one at a time, in an order that follows from a seed.
//
//   lab::Schedule schedule(seed);
//   schedule.run({[&] { writer(); }, [&] { reader(); }});
//
// The running thread may have to make way at each of its atomic operations, where it yields, and
// where it would block on a mutex. So what two threads do to each other is the same in every run
// with the same seed, and another seed tries another order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace perdure::lab {

namespace seam {
void make_way(bool always);
}

class Schedule {
 public:
  // At one in `steps_mean` of its atomic operations a thread makes way.
  explicit Schedule(uint64_t seed, unsigned steps_mean = 12);
  ~Schedule();
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // Runs the functions, each in a thread, to their ends. What one of them throws is thrown again,
  // after all have ended.
  void run(const std::vector<std::function<void()>>& threads);

  // Lets others run, if the calling thread is of a schedule.
  static void make_way();

 private:
  friend void seam::make_way(bool always);
  class Turns;
  std::unique_ptr<Turns> turns_;
};

}  // namespace perdure::lab
