#include "lab/crash/shrink.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;

class Shrinker {
 public:
  Shrinker(Subject& subject, const ExploreOptions& options, double seconds)
      : subject_(subject),
        options_(options),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {
    options_.findings_max = 1;
    options_.nested_max = 0;
    options_.deaths_max = 0;
    options_.progress = {};
    options_.drops = {};
    options_.begin = 0;
    options_.end = ~0U;
  }

  std::vector<uint32_t> run() {
    std::vector<uint32_t> kept(subject_.operation_count());
    std::iota(kept.begin(), kept.end(), 0U);
    if (!fails(kept)) return {};
    for (size_t part = std::max<size_t>(kept.size() / 2, 1);;
         part = std::max<size_t>(part / 2, 1)) {
      bool smaller = false;
      // From the end: what comes after the failure goes first.
      for (size_t end = kept.size(); end > 0 && !over();) {
        const size_t begin = end > part ? end - part : 0;
        std::vector<uint32_t> without(kept.begin(),
                                      kept.begin() + static_cast<std::ptrdiff_t>(begin));
        without.insert(without.end(), kept.begin() + static_cast<std::ptrdiff_t>(end), kept.end());
        if (!without.empty() && fails(without)) {
          kept = std::move(without);
          smaller = true;
        }
        end = begin;
      }
      if (over() || (part == 1 && !smaller)) return kept;
    }
  }

 private:
  bool over() const { return Clock::now() >= end_; }

  bool fails(const std::vector<uint32_t>& kept) {
    const double left = std::chrono::duration<double>(end_ - Clock::now()).count();
    options_.seconds_max = std::max(left / 2, 0.1);
    const Run run = subject_.record(kept);
    Verdicts verdicts;
    return !explore(run, subject_, options_, verdicts).findings.empty();
  }

  Subject& subject_;
  ExploreOptions options_;
  Clock::time_point end_;
};

}  // namespace

std::vector<uint32_t> shrink(Subject& subject, const ExploreOptions& options, double seconds) {
  return Shrinker(subject, options, seconds).run();
}

}  // namespace perdure::lab::crash
