// What the explorer explores: something that can be run under the recorder, and whose crashed
// images can be recovered and looked at.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/crash/pending.h"
#include "lab/crash/trace.h"
#include "perdure/pool.h"

namespace perdure::lab::crash {

// After this event (until the next expectation's), a recovered image must look like one of these.
struct Expectation {
  uint32_t event;
  std::vector<uint64_t> digests;
};

// What the keys of operations in flight may hold: by number, absent included.
using Unsettled = std::map<uint32_t, std::set<std::optional<uint32_t>>>;

// What is done with a recovered image until it crashes again.
struct Work {
  uint32_t crashes = 1;     // so far
  uint32_t operations = 0;  // besides the few that see whether it works at all
  uint64_t seed = 1;        // of these operations
  // The process before this one died, and the power did not fail: what operations in flight had
  // stored may be in the caches only. What had returned by then is durable, as ever.
  //
  // A subject with a model by key (`unsettled`, from Run::unsettled) promises: each of these keys
  // holds any of its values, whichever of them recovery saw, until an operation that changes it
  // has returned; from then on what that operation left. An operation that changes nothing (a
  // lookup, an insert that finds the key, a removal that does not) answers by what recovery saw,
  // and makes nothing durable. A subject without such a model is held to more: until its recovery
  // has ended, any of the outcomes at the death; from then on the one that recovery saw.
  bool after_death = false;
  Unsettled unsettled;
  std::vector<uint64_t> digests;  // what recovery might have seen at the death
};

// A recorded run.
struct Run {
  Trace trace;
  uint32_t recovered_at = 0;  // of a recovery: the event with which work begins
  Inherited inherited;        // from a process that died before the recording began
  // Ordered by event; empty: what recovery gives of the uncrashed images before and after the
  // operations in flight is what is expected (output equivalence).
  std::vector<Expectation> expectations;
  // Answers that no order of the operations explains, in words: wrong before any crash.
  std::string problem;
  // Stretches [begin, end) of events at which no crash is to be looked at.
  std::vector<std::pair<uint32_t, uint32_t>> skipped;
  // In words, by thread and number (from 1; [thread][0] is unused): "insert(17, 3)".
  std::vector<std::vector<std::string>> operations;
  // What is wrong with contents recovered from a crash before `event`, in words. May be empty.
  std::function<std::string(uint32_t event, const std::string& contents)> explain;
  // The expectations leave some combinations out: contents with which explain() finds nothing wrong
  // are expected as well.
  bool explain_decides = false;
  // Of a subject with a model by key: the keys that may hold more than one thing after a crash
  // before `event`. May be empty.
  std::function<Unsettled(uint32_t event)> unsettled;
};

// What a recovered image looks like.
struct Observation {
  uint64_t digest = 0;   // of everything a user can see in it
  std::string problem;   // an error, a broken invariant, a leak: a finding whatever the digest
  std::string contents;  // in words, if asked for
};

class Subject {
 public:
  virtual ~Subject() = default;

  virtual std::string name() const = 0;
  virtual Domain domain() const { return Domain::kLine; }

  // Sets up, then records the operations of its workload whose numbers are in `only` (empty: all).
  // The same arguments give the same run.
  virtual Run record(const std::vector<uint32_t>& only) = 0;
  virtual uint32_t operation_count() const = 0;
  // Whether record() heeds `only`, so that a workload can be shortened.
  virtual bool can_leave_out() const { return true; }

  // Recovers the image at `path` as after a crash, verifies it, and uses it a little. Called in a
  // worker process whose writes go to a private copy. May throw, fault, or hang: that is a finding.
  virtual Observation observe(const std::string& path, bool with_contents) = 0;

  // The same, recorded: recovery, then work. For crashes during and after recovery, in a process
  // whose files are private. Returns a run without events if the subject does not offer it.
  virtual Run record_recovery(const std::string& path, const Work& work) {
    static_cast<void>(path);
    static_cast<void>(work);
    return {};
  }
};

}  // namespace perdure::lab::crash
