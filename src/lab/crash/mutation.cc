#include "lab/crash/mutation.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;

bool is_skipped(const Run& run, uint32_t event) {
  return std::any_of(run.skipped.begin(), run.skipped.end(), [event](const auto& stretch) {
    return event >= stretch.first && event < stretch.second;
  });
}

using SiteKey = std::pair<std::string, SiteKind>;
struct Site {
  uint64_t executions = 0;
  std::vector<bool> dropped;  // by event
};

// The sites of the explored part whose place contains `part`, in the order of the source.
std::map<SiteKey, Site> find_sites(const Run& run, const std::string& part) {
  const SiteNames names(run.trace);
  std::map<SiteKey, Site> sites;
  const auto& events = run.trace.events;
  for (uint32_t i = 0; i < events.size(); ++i) {
    const bool flush = events[i].kind == EventKind::kFlush || events[i].kind == EventKind::kSync;
    if ((!flush && events[i].kind != EventKind::kFence) || is_skipped(run, i)) continue;
    const std::string place = names.of(events[i].pc);
    if (place.find(part) == std::string::npos) continue;
    Site& site = sites[{place, flush ? SiteKind::kFlush : SiteKind::kFence}];
    ++site.executions;
    if (site.dropped.empty()) site.dropped.resize(events.size());
    site.dropped[i] = true;
  }
  return sites;
}

}  // namespace

const char* to_string(SiteKind kind) { return kind == SiteKind::kFlush ? "flush" : "fence"; }

uint64_t MutationResult::killed() const {
  return static_cast<uint64_t>(std::count_if(sites.begin(), sites.end(),
                                             [](const MutationSite& site) { return site.killed; }));
}

void Mutations::add(const Run& run, Subject& subject, const ExploreOptions& options,
                    Verdicts& verdicts, const Progress& progress) {
  const auto begin = Clock::now();
  const auto sites = find_sites(run, part_);
  size_t done = 0;
  for (const auto& [key, site] : sites) {
    MutationSite& result = sites_[key];
    result.place = key.first;
    result.kind = key.second;
    result.executions += site.executions;
    if (!result.killed) {
      ExploreOptions mutant = options;
      mutant.findings_max = 1;
      mutant.nested_max = 0;
      mutant.progress = {};
      mutant.drops = [&site](uint32_t event) { return site.dropped[event]; };
      // Nothing differs before the first event that is dropped.
      const auto first = std::find(site.dropped.begin(), site.dropped.end(), true);
      mutant.begin = static_cast<uint32_t>(first - site.dropped.begin());
      const Exploration exploration = explore(run, subject, mutant, verdicts);
      result.killed = !exploration.findings.empty();
      if (result.killed) result.how = exploration.findings.front().what;
      result.states += exploration.states;
      result.exhausted = result.exhausted && exploration.finished;
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
