// Several runs of one subject explored one after the other, and what they show together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/crash/explorer.h"
#include "lab/crash/mutation.h"
#include "lab/crash/subject.h"

namespace perdure::lab::crash {

// One of the runs.
struct CampaignRun {
  std::string title;    // "u64 keys, u64 values, 1 thread"
  std::string command;  // that repeats it
  std::unique_ptr<Subject> subject;
  std::vector<uint32_t> only;  // operations; empty: all
  std::string keep_trace;      // the file to keep the run's trace in; empty: none
  std::string replay;          // the file of a trace to explore instead of recording; empty: none
};

struct CampaignOptions {
  ExploreOptions explore;
  double seconds = 60;  // for all runs together, without mutations
  bool mutate = false;
  std::string mutants;         // only of places that contain this
  std::string again_at;        // crash again at fences whose place contains this; empty: any
  double mutant_seconds = 20;  // for one mutant in one run
  double shrink_seconds = 20;  // for the first finding of a run
  std::function<void(const std::string& phase, uint64_t states, double fraction)> progress;
  std::function<bool()> stop;  // ends early with what there is
};

// A finding, ready to be shown.
struct FindingReport {
  std::string what;
  std::string crash;                     // "after insert(17, 42) had returned (before event 1234)"
  std::vector<std::string> lost;         // the stores, their places, and why they were lost
  std::vector<std::string> last_stores;  // if none was lost: the last ones, which were durable
  std::vector<std::string> lines;        // before and after, one text each, in hexadecimal
  std::vector<std::string> workload;     // the operations of the shortest run that shows it
  std::string command;                   // that repeats it
  uint64_t times = 1;                    // findings of its kind
  std::string image;                     // a file of it, if images are kept
};

struct RunReport {
  std::string title;
  uint64_t operations = 0;
  uint64_t events = 0;
  Exploration exploration;
  std::vector<FindingReport> findings;

  bool explored_little() const;  // so little that no finding means nothing
};

struct CampaignReport {
  std::string structure;
  std::string domain;
  std::vector<RunReport> runs;
  bool mutated = false;
  MutationResult mutation;
  // Places of the structure's sources that flush or fence, and how many of them no run reached.
  uint64_t reached = 0;
  std::vector<std::string> unreached;
  std::vector<std::string> unmutated;  // runs whose mutations would show nothing, and why
  double seconds = 0;

  uint64_t states() const;  // images recovered, those of later crashes included
  uint64_t findings() const;
  bool explored_little() const;  // any of its runs
};

// What a page says of how its report came about.
struct ReportOrigin {
  std::string command;
  uint64_t seed = 1;
};

CampaignReport run_campaign(std::vector<CampaignRun> runs, const CampaignOptions& options);

// For people, for programs, and as a page of its own.
std::string to_text(const CampaignReport& report);
std::string to_json(const std::vector<CampaignReport>& reports);
std::string to_html(const std::vector<CampaignReport>& reports, const ReportOrigin& origin);

}  // namespace perdure::lab::crash
