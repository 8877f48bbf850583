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

struct Site {
  MutationSite result;
  std::vector<bool> dropped;  // by event
};

// The sites of the explored part, in the order of the source.
std::vector<Site> find_sites(const Run& run) {
  const SiteNames names(run.trace);
  std::map<std::pair<std::string, SiteKind>, Site> sites;
  const auto& events = run.trace.events;
  for (uint32_t i = 0; i < events.size(); ++i) {
    const bool flush = events[i].kind == EventKind::kFlush || events[i].kind == EventKind::kSync;
    if ((!flush && events[i].kind != EventKind::kFence) || is_skipped(run, i)) continue;
    const SiteKind kind = flush ? SiteKind::kFlush : SiteKind::kFence;
    std::string place = names.of(events[i].pc);
    Site& site = sites[{place, kind}];
    site.result.kind = kind;
    site.result.place = std::move(place);
    ++site.result.executions;
    if (site.dropped.empty()) site.dropped.resize(events.size());
    site.dropped[i] = true;
  }
  std::vector<Site> all;
  for (auto& [key, site] : sites) all.push_back(std::move(site));
  return all;
}

}  // namespace

const char* to_string(SiteKind kind) {
  return kind == SiteKind::kFlush ? "flush" : "fence";
}

MutationResult mutate(
    const Run& run, Subject& subject, const ExploreOptions& options, Verdicts& verdicts,
    const std::function<void(const MutationSite&, size_t, size_t)>& progress) {
  const auto begin = Clock::now();
  MutationResult result;
  std::vector<Site> sites = find_sites(run);
  for (Site& site : sites) {
    ExploreOptions mutant = options;
    mutant.findings_max = 1;
    mutant.nested_max = 0;
    mutant.progress = {};
    mutant.drops = [&site](uint32_t event) { return site.dropped[event]; };
    // Nothing differs before the first event that is dropped.
    const auto first = std::find(site.dropped.begin(), site.dropped.end(), true);
    mutant.begin = static_cast<uint32_t>(first - site.dropped.begin());
    const Exploration exploration = explore(run, subject, mutant, verdicts);
    site.result.killed = !exploration.findings.empty();
    if (site.result.killed) site.result.how = exploration.findings.front().what;
    site.result.states = exploration.states;
    site.result.exhausted = exploration.finished;
    result.killed += site.result.killed ? 1 : 0;
    result.sites.push_back(site.result);
    if (progress) progress(site.result, result.sites.size(), sites.size());
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace perdure::lab::crash
