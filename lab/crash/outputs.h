// Output equivalence, for programs without a model: recovery of a crash image must give what
// recovery of the uncrashed memory gives just before or just after the operation in flight.
//
//   Outputs outputs(run.trace, subject, limits);
//   outputs.allowed(event);   // digests, after a crash before this event
//
// For one operation in flight at a time; what several threads do together counts as one. Stores
// between operations (what a program tidies up) are taken like an operation of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lab/crash/image_file.h"
#include "lab/crash/subject.h"
#include "lab/crash/worker.h"

namespace perdure::lab::crash {

class Outputs {
 public:
  // All must outlive it.
  Outputs(const Trace& trace, Subject& subject, const WorkerLimits& limits);

  // What recovery may give after a crash before `event`: of an operation in flight, both outputs;
  // of one that has returned, the later one only. Cheapest if events are asked for in order.
  const std::vector<uint64_t>& allowed(uint32_t event);

  // What is wrong with contents recovered from a crash before `event`, in words.
  std::string explain(uint32_t event, const std::string& contents);

 private:
  // Events [begin, end) of an operation, or between two.
  struct Stretch {
    uint32_t begin;
    uint32_t end;
    bool unfinished;  // the program ended within the operation
  };

  // The positions whose outputs are allowed: one or two.
  std::vector<uint32_t> positions(uint32_t event) const;
  // Recovers the memory as the program had it before the event at `position`.
  Observation observe_at(uint32_t position, bool with_contents);
  void load_base();

  const Trace& trace_;
  ImageFile image_;
  Worker worker_;
  std::vector<Stretch> stretches_;
  uint32_t position_ = 0;                 // events before it are in the image
  std::map<uint32_t, uint64_t> digests_;  // by position
  std::vector<uint64_t> allowed_;         // what allowed() gave last
};

}  // namespace perdure::lab::crash
