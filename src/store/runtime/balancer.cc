#include "store/runtime/balancer.h"

#include <algorithm>
#include <numeric>

#include "store/runtime/worker.h"

namespace perdure::store {

Balancer::Balancer(RuntimeState& state, uint32_t worker)
    : state_(state),
      index_(worker),
      enabled_(state.options.balance && state.options.workers > 1),
      workers_before_(state.options.workers),
      workers_busy_(state.options.workers),
      partitions_before_(state.options.partitions),
      partitions_busy_(state.options.partitions) {}

void Balancer::check(Worker& worker, uint64_t now_ticks) {
  checked_ticks_ = now_ticks;
  const auto window_ticks = static_cast<double>(now_ticks - window_begin_ticks_);
  if (window_ticks * state_.ns_per_tick() < 1e6 * state_.options.balance_interval_ms) return;
  window_begin_ticks_ = now_ticks;
  for (uint32_t i = 0; i < workers_before_.size(); ++i) {
    const uint64_t busy = state_.workers[i]->busy_ticks();
    workers_busy_[i] = busy - std::exchange(workers_before_[i], busy);
  }
  for (uint32_t i = 0; i < partitions_before_.size(); ++i) {
    const uint64_t busy = state_.partitions[i].busy_ticks.get();
    partitions_busy_[i] = busy - std::exchange(partitions_before_[i], busy);
  }
  const uint64_t mine = workers_busy_[index_];
  const auto idlest = std::ranges::min_element(workers_busy_);
  const auto mean = static_cast<double>(
                        std::accumulate(workers_busy_.begin(), workers_busy_.end(), uint64_t{0})) /
                    static_cast<double>(workers_busy_.size());
  const auto load = static_cast<double>(mine);
  const bool overloaded = load > mean * (1 + state_.options.balance_tolerance_percent / 100.0) &&
                          load > window_ticks / 4;  // an idle store is left as it is
  if (overloaded_windows_ < 0) {
    ++overloaded_windows_;
  } else {
    overloaded_windows_ = overloaded ? overloaded_windows_ + 1 : 0;
  }
  if (overloaded_windows_ < 2) return;
  give_away(worker, (mine - *idlest) / 2, static_cast<uint32_t>(idlest - workers_busy_.begin()));
  overloaded_windows_ = -2;
}

void Balancer::give_away(Worker& worker, uint64_t amount_ticks, uint32_t target) {
  for (uint32_t moved = 0; moved < kMovesAtOnce; ++moved) {
    uint32_t best = 0;
    uint64_t best_busy = 0;
    for (uint32_t i = 0; i < partitions_busy_.size(); ++i) {
      const uint64_t busy = partitions_busy_[i];
      if (worker.owns(i) && busy > best_busy && busy <= amount_ticks) {
        best = i;
        best_busy = busy;
      }
    }
    if (best_busy == 0) return;
    amount_ticks -= best_busy;
    partitions_busy_[best] = 0;
    worker.depart(best, target);
  }
}

}  // namespace perdure::store
