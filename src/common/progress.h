// How long-running work tells how far it is. Who shows it, and whether, is the caller's affair.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace perdure {

struct Progress {
  std::string phase;     // "load plush", "kill and recover"
  uint64_t items = 0;    // records or operations done in this phase
  double fraction = -1;  // of the phase, 0..1; negative when the end is not known
  std::string detail;    // what is at work within the phase; changes without a new phase
};

// Called about ten times a second from one thread. May be empty.
using ProgressSink = std::function<void(const Progress&)>;

}  // namespace perdure
