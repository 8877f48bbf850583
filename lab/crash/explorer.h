// Takes a recorded run through its crashes: builds every crash image that the hardware allows (or a
// covering sample), has each recovered in a worker process, and compares with what was promised.
//
//   Run run = subject.record({});
//   Exploration result = explore(run, subject, {});
//   for (const Finding& finding : result.findings) ...
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "lab/crash/states.h"
#include "lab/crash/subject.h"
#include "lab/crash/worker.h"

namespace perdure::lab::crash {

struct ExploreProgress {
  const char* phase;
  uint64_t states;
  uint64_t findings;
  double fraction;  // of the trace
};

struct ExploreOptions {
  StateLimits limits;
  WorkerLimits worker;
  uint64_t seed = 1;
  uint64_t states_max = ~uint64_t{0};  // images recovered
  double seconds_max = 1e9;
  uint64_t findings_max = 8;  // different ones; then it stops
  std::string image_folder;   // an image of each finding is left there; empty: none

  // Crashes again: of some images the recovery is recorded, with work after it, and that is
  // explored in turn. Half of them are images of any kind, spread over the run. The others are
  // those in which most of what a fence orders is apart, taken in turn from the places that fence.
  uint32_t crashes = 3;            // in a row, at most
  uint64_t nested_max = 16;        // recoveries of this run from which on it is explored
  uint64_t nested_states = 300;    // images of each
  uint32_t work = 300;             // operations after each recovery: a pass of every ring
  uint64_t states_per_nested = 8;  // recoveries between two of them
  bool nested_only = false;        // no other images than those that are crashed again
  // Deaths: the process ends, the power does not. The next one finds all that was stored, also what
  // is in the caches only, recovers and works on; then the power fails, and what nobody has flushed
  // since it was stored, by whichever process, may be lost. They count as a crash in a row. The
  // moments are those just after a store, taken in turn from the places that store.
  uint64_t deaths_max = 0;  // of this run
  // As many as other recoveries are explored.
  static constexpr uint64_t kDeathsAsRecoveries = ~uint64_t{0};
  // If given, all of these images are taken just before such fences, and the process dies there.
  std::function<bool(const TraceEvent& event)> crashes_again_at;
  uint32_t round = 1;  // the crash to come is the how manieth

  uint32_t begin = 0;  // explore crashes before these events only
  uint32_t end = ~uint32_t{0};
  uint64_t points_max = ~uint64_t{0};  // moments that are looked at, beyond it a sample
  // Flushes and fences to be taken for nothing, also in recoveries.
  std::function<bool(const TraceEvent& event)> drops;
  // With `drops`: no other images than those of a power failure after a death, and of these only
  // such that lack what the dead process stored and what is dropped would have made durable since.
  bool only_held_back = false;
  std::function<void(const ExploreProgress&)> progress;
  std::function<bool()> stop;  // ends early with what there is; may be empty
};

// A place that flushes or fences, as events have it.
struct PersistSite {
  uint64_t pc;
  bool fence;
  auto operator<=>(const PersistSite&) const = default;
};
using PersistSites = std::map<PersistSite, uint64_t>;  // how often each was reached

enum class LostState : uint8_t { kUnflushed, kUnfenced, kStreamUnfenced };

// A store that had not reached memory, and would have made a difference.
struct LostStore {
  uint32_t event;
  LostState state;
  uint32_t flush_event;  // kUnfenced: which flush is waiting for its fence
  bool torn = false;     // some of its words had arrived
};

// The bytes of a line: as recovery found them, and as the program had left them.
struct LineBytes {
  uint64_t offset;
  std::vector<unsigned char> crashed;
  std::vector<unsigned char> complete;
};

struct Finding {
  uint32_t event;      // the crash was before this one
  uint32_t operation;  // in flight, or the last that returned; of `thread`
  uint16_t thread;
  bool in_flight;
  std::string what;  // in words
  std::vector<LostStore> lost;
  std::vector<uint32_t>
      last_stores;  // if nothing was lost: the events that stored last, all durable
  std::vector<LineBytes> lines;
  uint64_t image_hash;
  bool nested = false;  // found in a crash of a recovery; `what` says all there is
  bool death = false;   // nested: at the event the process died, and no power failed
  uint64_t times =
      1;  // as often was it found: in operations of the type, with stores lost of these places
  std::string image;  // the file of the image; of a nested finding that of its first crash
};

struct Exploration {
  uint64_t points = 0;           // moments looked at
  uint64_t points_complete = 0;  // where all combinations of pending lines were taken
  uint64_t visited = 0;          // states, with those known already
  uint64_t states = 0;           // distinct images recovered
  uint64_t nested_runs = 0;
  uint64_t nested_states = 0;  // of them, from which on the power failed
  uint64_t deaths = 0;         // moments at which the process died
  uint64_t death_states = 0;   // images that a power failure after a death left
  PersistSites nested_sites;   // reached by recoveries and by the work after them
  double seconds = 0;
  double part = 1;       // of the events to be explored
  bool finished = true;  // else a limit ended it
  std::vector<Finding> findings;
};

// Of a run: as many as `options` say.
uint64_t deaths_of(const ExploreOptions& options);

// The operation of a finding, in words; empty if there is none.
std::string operation_of(const Run& run, const Finding& finding);

// What is known of images, by hash. Shared between explorations of one run, as mutations are.
struct Verdict {
  uint64_t digest;
  std::string problem;
};
using Verdicts = std::unordered_map<uint64_t, Verdict>;

// The places at which the explored part of a run flushes and fences.
PersistSites persist_sites(const Run& run);
// And those at which it writes past the caches.
std::set<uint64_t> stream_sites(const Run& run);

Exploration explore(const Run& run, Subject& subject, const ExploreOptions& options,
                    Verdicts& verdicts);

}  // namespace perdure::lab::crash
