// The runtime that stands in for a sanitizer's: takes call-outs, knows the persistent regions, and
// gives events to the installed sink.
//
//   CountingSink sink;
//   lab::install(&sink);
//   ... run observed code ...
//   lab::install(nullptr);
//
// Observed code may run in several threads; events come one at a time. Without a sink a call-out
// costs about two nanoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/seam/event.h"

extern "C" {
// The persistence primitives of pm, for those who write to a region by other means.
void perdure_lab_flush(const void* address, size_t bytes, int kind);
void perdure_lab_fence();
}

namespace perdure::lab {

struct Region {
  uint32_t number;  // from 1, never used again
  uint64_t base;    // where the program sees it
  uint64_t bytes;
  std::string name;
};

// Installs a sink, or none; returns the one before. Not while observed code runs in other threads.
Sink* install(Sink* sink);

// The regions that are registered now.
std::vector<Region> regions();

// The number of the calling thread, as events carry it.
uint16_t current_thread();

// The name of an operation type, as events number it: from 1; 0 is "outside".
std::string operation_name(uint64_t type);

// While one lives, what the calling thread does makes no events.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

// Marks operations and allocations of the calling thread (the C interface does the same).
uint64_t operation_type(const char* name);
void begin_operation(uint64_t type, uint64_t payload_bytes);
void end_operation();

}  // namespace perdure::lab
