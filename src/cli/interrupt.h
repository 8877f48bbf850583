// Ctrl-C as a flag to look at, so that long work can end in order.
#pragma once

#include <atomic>

namespace perdure::cli {

// While one exists, SIGINT, SIGTERM and SIGHUP set its flag instead of ending the process. A second
// signal ends it at once.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  const std::atomic<bool>& raised() const;
};

}  // namespace perdure::cli
