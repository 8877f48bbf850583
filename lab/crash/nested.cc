#include "lab/crash/nested.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "lab/crash/sites.h"
#include "lab/crash/worker.h"

namespace perdure::lab::crash {
namespace {

// In the worker: what `contents` carries back to the asker.
constexpr char kFieldEnd = '\x1e';

std::string told_of(const Run& run, const Finding& finding) {
  std::string where = "then a crash during recovery";
  if (finding.operation > 0) {
    where = fmt::format("then, after recovery, a crash {} {}", finding.in_flight ? "in" : "after",
                        run.operations.at(finding.thread).at(finding.operation));
  }
  const SiteNames names(run.trace);
  const auto& events = run.trace.events;
  if (finding.event < events.size() && events[finding.event].kind != EventKind::kBegin &&
      events[finding.event].kind != EventKind::kEnd) {
    where += fmt::format(", before {}", names.of(events[finding.event].pc));
  }
  std::string text = fmt::format("{}: {}", where, finding.what);
  for (const LostStore& lost : finding.lost) {
    text += fmt::format("\n  lost: the store at {}", names.of(events[lost.event].pc));
  }
  return text;
}

// How the recovery of an image and work on it are explored: a sample that ends in a known time.
ExploreOptions options_of_next(const ExploreOptions& options) {
  ExploreOptions next = options;
  next.round = options.round + 1;
  next.states_max = 2 * options.nested_states;
  next.points_max = options.nested_states * 3 / 4;
  next.nested_max = next.round < options.crashes ? 2 : 0;
  next.nested_only = false;
  next.findings_max = 1;
  next.begin = 0;
  next.end = ~uint32_t{0};
  next.progress = {};
  next.stop = {};
  next.limits.complete_max = std::min<uint64_t>(options.limits.complete_max, 16);
  next.limits.pairs_max = 8;
  next.limits.random = 8;
  return next;
}

Observation record_and_explore(Subject& subject, const ImageFile& image, uint64_t digest,
                               const ExploreOptions& options) {
  Observation told;
  // Files are private here: the image stays.
  const Run run = subject.record_recovery(
      image.path(), {.crashes = options.round, .operations = options.work, .seed = options.seed});
  if (run.trace.events.empty()) return told;
  told.digest = 1;
  if (!run.expectations.empty() && run.expectations.front().digests.front() != digest) {
    told.contents = fmt::format("0{}{}two recoveries of one image give different contents",
                                kFieldEnd, kFieldEnd);
    return told;
  }
  Verdicts verdicts;
  Exploration result = explore(run, subject, options_of_next(options), verdicts);
  for (const auto& [site, count] : persist_sites(run)) result.nested_sites[site] += count;
  told.contents = fmt::format("{}{}", result.states + result.nested_states, kFieldEnd);
  for (const auto& [site, count] : result.nested_sites) {
    told.contents += fmt::format("{} {} {} ", site.pc, site.fence ? 1 : 0, count);
  }
  for (const Finding& finding : result.findings) {
    told.contents += fmt::format("{}{}", kFieldEnd, told_of(run, finding));
  }
  return told;
}

PersistSites parse_sites(const std::string& text) {
  PersistSites sites;
  std::istringstream in(text);
  uint64_t pc = 0;
  int fence = 0;
  uint64_t count = 0;
  while (in >> pc >> fence >> count) sites[{pc, fence != 0}] = count;
  return sites;
}

}  // namespace

NestedResult explore_nested(Subject& subject, const ImageFile& image, uint64_t digest,
                            const ExploreOptions& options) {
  WorkerLimits limits = options.worker;
  limits.seconds *= 10;
  Worker worker([&](bool) { return record_and_explore(subject, image, digest, options); }, limits);
  const Observation told = worker.ask(true);
  NestedResult result;
  result.offered = told.digest == 1 || !told.problem.empty();
  if (!told.problem.empty()) {
    result.findings.push_back("a recovery that is recorded fails: " + told.problem);
    return result;
  }
  std::vector<std::string> fields;
  for (size_t begin = 0; begin <= told.contents.size();) {
    const size_t end = std::min(told.contents.find(kFieldEnd, begin), told.contents.size());
    fields.push_back(told.contents.substr(begin, end - begin));
    begin = end + 1;
  }
  if (told.contents.empty()) return result;
  result.states = std::strtoull(fields[0].c_str(), nullptr, 10);
  result.sites = parse_sites(fields.at(1));
  result.findings.assign(fields.begin() + 2, fields.end());
  return result;
}

}  // namespace perdure::lab::crash
