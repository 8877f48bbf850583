// Decides which partitions a worker gives away when it has more work than the others.
#pragma once

#include <cstdint>
#include <vector>

namespace perdure::store {

struct RuntimeState;
class Worker;

// Of one worker, in its thread. A worker that was busier than the mean by the tolerance, in two
// windows of time in a row, gives up to four partitions to the idlest worker: together at most half
// the difference, so that it cannot become the idler of the two. Then it rests for two windows. A
// partition that makes up more than that stays, and the others leave it.
class Balancer {
 public:
  Balancer(RuntimeState& state, uint32_t worker);

  // Call often; costs a comparison until a window is over.
  void consider(Worker& worker, uint64_t now_ticks) {
    if (enabled_ && now_ticks - checked_ticks_ >= kTicksBetweenChecks) check(worker, now_ticks);
  }

 private:
  static constexpr uint64_t kTicksBetweenChecks = 1 << 16;
  static constexpr uint32_t kMovesAtOnce = 4;

  void check(Worker& worker, uint64_t now_ticks);
  void give_away(Worker& worker, uint64_t amount_ticks, uint32_t target);

  RuntimeState& state_;
  const uint32_t index_;
  const bool enabled_;
  uint64_t checked_ticks_ = 0;
  uint64_t window_begin_ticks_ = 0;
  int overloaded_windows_ = 0;  // below zero: rests
  // Busy ticks: all so far at the end of the last window, and those of the last window.
  std::vector<uint64_t> workers_before_, workers_busy_;
  std::vector<uint64_t> partitions_before_, partitions_busy_;
};

}  // namespace perdure::store
