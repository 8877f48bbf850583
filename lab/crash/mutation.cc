#include "lab/crash/mutation.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;

// For a site that survived: these take fewer images than others.
constexpr uint64_t kDeathsPerDeath = 8;

using SiteKey = std::pair<std::string, SiteKind>;
struct Site {
  uint64_t executions = 0;
  uint64_t recoveries = 0;
  std::set<uint64_t> pcs;
};

// The sites of the explored part whose place contains `part`, in the order of the source.
std::map<SiteKey, Site> find_sites(const Run& run, const Exploration& whole,
                                   const std::string& part) {
  const SiteNames names(run.trace);
  std::map<SiteKey, Site> sites;
  const auto add = [&](const PersistSites& reached, uint64_t Site::* counter) {
    for (const auto& [site, count] : reached) {
      const std::string place = names.of(site.pc);
      if (place.find(part) == std::string::npos) continue;
      Site& found = sites[{place, site.fence ? SiteKind::kFence : SiteKind::kFlush}];
      found.*counter += count;
      found.pcs.insert(site.pc);
    }
  };
  add(persist_sites(run), &Site::executions);
  add(whole.nested_sites, &Site::recoveries);
  return sites;
}

// Whether the moment of a finding is sound with all flushes and fences, so that the mutation is its
// cause.
bool passes_unmutated(const Run& run, Subject& subject, const ExploreOptions& options,
                      const Finding& finding, Verdicts& verdicts) {
  ExploreOptions whole = options;
  whole.drops = {};
  whole.begin = whole.end = finding.event;
  whole.nested_only = false;
  whole.only_held_back = false;
  whole.nested_max = finding.nested && !finding.death ? 2 : 0;
  whole.deaths_max = finding.death ? 2 : 0;
  return explore(run, subject, whole, verdicts).findings.empty();
}

}  // namespace

const char* to_string(SiteKind kind) { return kind == SiteKind::kFlush ? "flush" : "fence"; }

uint64_t MutationResult::killed() const {
  return static_cast<uint64_t>(std::count_if(sites.begin(), sites.end(),
                                             [](const MutationSite& site) { return site.killed; }));
}

void Mutations::add(const Run& run, Subject& subject, const ExploreOptions& options,
                    const Exploration& whole, Verdicts& verdicts, const Progress& progress) {
  const auto begin = Clock::now();
  const auto sites = find_sites(run, whole, part_);
  size_t done = 0;
  for (const auto& [key, site] : sites) {
    MutationSite& result = sites_[key];
    result.place = key.first;
    result.kind = key.second;
    result.executions += site.executions;
    result.recoveries += site.recoveries;
    const auto try_to_kill = [&](const ExploreOptions& mutant) {
      const Exploration exploration = explore(run, subject, mutant, verdicts);
      result.killed =
          !exploration.findings.empty() &&
          passes_unmutated(run, subject, mutant, exploration.findings.front(), verdicts);
      if (result.killed) result.how = exploration.findings.front().what;
      result.states += exploration.states + exploration.nested_states + exploration.death_states;
      result.exhausted = result.exhausted && exploration.finished;
      return exploration.death_states;
    };
    ExploreOptions mutant = options;
    mutant.findings_max = 1;
    mutant.progress = {};
    mutant.drops = [&site](const TraceEvent& event) { return site.pcs.contains(event.pc); };
    if (!result.killed) {
      // Nothing differs before the first event that is dropped; and of one that only recoveries
      // reach, nothing but those.
      const auto& events = run.trace.events;
      const auto first = std::find_if(events.begin(), events.end(), mutant.drops);
      mutant.nested_only = site.executions == 0;
      mutant.begin = mutant.nested_only ? 0 : static_cast<uint32_t>(first - events.begin());
      mutant.crashes_again_at = {};
      try_to_kill(mutant);
    }
    if (!result.killed && deaths_of(options) > 0) {
      mutant.begin = options.begin;
      mutant.nested_only = true;
      mutant.only_held_back = true;
      mutant.deaths_max = kDeathsPerDeath * deaths_of(options);
      mutant.nested_max = 0;
      mutant.crashes_again_at = options.crashes_again_at;
      result.held_back += try_to_kill(mutant);
    }
    if (progress) progress(result, ++done, sites.size());
  }
  seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

MutationResult Mutations::result() const {
  MutationResult result;
  result.seconds = seconds_;
  for (const auto& [key, site] : sites_) result.sites.push_back(site);
  return result;
}

}  // namespace perdure::lab::crash
