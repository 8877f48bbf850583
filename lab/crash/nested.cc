#include "lab/crash/nested.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "lab/crash/sites.h"
#include "lab/crash/worker.h"

namespace perdure::lab::crash {
namespace {

// In the worker: what `contents` carries back to the asker.
constexpr char kFieldEnd = '\x1e';

std::string told_of(const Run& run, const Finding& finding, bool after_death) {
  std::string where = after_death ? "then a power failure during the next one's recovery"
                                  : "then a crash during recovery";
  if (finding.operation > 0) {
    where = fmt::format("then, after {}, a {} {} {}",
                        after_death ? "the next one's recovery" : "recovery",
                        finding.death ? "death"
                        : after_death ? "power failure"
                                      : "crash",
                        finding.in_flight ? "in" : "after", operation_of(run, finding));
  }
  if (after_death) where = "then the process died and its stores lived on in the caches; " + where;
  const SiteNames names(run.trace);
  const auto& events = run.trace.events;
  if (finding.event < events.size() && events[finding.event].kind != EventKind::kBegin &&
      events[finding.event].kind != EventKind::kEnd) {
    where += fmt::format(", before {}", names.of(events[finding.event].pc));
  }
  std::string text = fmt::format("{}: {}", where, finding.what);
  for (const LostStore& lost : finding.lost) {
    text += fmt::format("\n  lost: the store{} at {}",
                        lost.event < run.inherited.events ? " of the process that died" : "",
                        names.of(events[lost.event].pc));
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
  next.deaths_max = next.round < options.crashes ? 1 : 0;
  return next;
}

// Puts what the dead process stored before what was recorded: in memory it was not.
void begin_with_death(Run& run, const Death& death) {
  Trace& trace = run.trace;
  for (const Word& word : death.durable) {
    auto& page = trace.base[word.offset / kImagePageBytes];
    page.resize(kImagePageBytes);
    std::memcpy(page.data() + word.offset % kImagePageBytes, &word.value, sizeof word.value);
  }
  run.inherited = death.inherited;
  std::vector<TraceEvent> events;
  for (auto& [number, line] : run.inherited.lines) {
    for (PendingStore& store : line.stores) {
      const TraceEvent& stored = death.trace->events[store.event];
      events.push_back({.offset = store.words.front().offset,
                        .pc = stored.pc,
                        .data = 0,
                        .bytes = store.words.size() * sizeof(uint64_t),
                        .operation = 0,
                        .thread = 0,
                        .kind = EventKind::kStore,
                        .flush = {}});
      store.event = static_cast<uint32_t>(events.size() - 1);
      store.thread = 0;
      store.stream = false;
    }
  }
  const auto behind = static_cast<uint32_t>(events.size());
  run.inherited.events = behind;
  trace.events.insert(trace.events.begin(), events.begin(), events.end());
  run.recovered_at += behind;
  for (auto& [begin, end] : run.skipped) {
    begin += behind;
    end += behind;
  }
  for (Expectation& expectation : run.expectations) expectation.event += behind;
  if (run.explain) {
    run.explain = [behind, recovered_at = run.recovered_at, explain = run.explain,
                   at_death = death.explain](uint32_t event, const std::string& contents) {
      const std::string wrong = explain(event - behind, contents);
      const bool outcome = event <= recovered_at && at_death && at_death(contents).empty();
      return outcome ? "" : wrong;
    };
  }
  if (run.unsettled) {
    run.unsettled = [behind, unsettled = run.unsettled](uint32_t event) {
      return unsettled(event - behind);
    };
  }
  auto& during_recovery = run.expectations.front().digests;
  during_recovery.insert(during_recovery.end(), death.digests.begin(), death.digests.end());
}

// A death is explored at fewer moments than another crash, for more deaths in the same time, and
// every other time only with what is done first after it.
Work work_after_death(Work work, const Death& death) {
  constexpr uint32_t kWorkShort = 24;
  work.after_death = true;
  work.unsettled = death.unsettled;
  work.digests = death.digests;
  if (work.seed % 2 == 0) work.operations = std::min(work.operations, kWorkShort);
  return work;
}

Observation record_and_explore(Subject& subject, const ImageFile& image, uint64_t digest,
                               const ExploreOptions& options, const Death* death) {
  Observation told;
  Work work{.crashes = options.round, .operations = options.work, .seed = options.seed};
  if (death != nullptr) work = work_after_death(std::move(work), *death);
  // Files are private here: the image stays.
  Run run = subject.record_recovery(image.path(), work);
  if (run.trace.events.empty()) return told;
  // Of what only outputs tell nobody knows what recovery might have seen instead.
  if (death != nullptr && run.expectations.empty()) return told;
  told.digest = 1;
  if (!run.expectations.empty() && std::ranges::find(run.expectations.front().digests, digest) ==
                                       run.expectations.front().digests.end()) {
    told.contents = fmt::format("0 0{}{}two recoveries of one image give different contents",
                                kFieldEnd, kFieldEnd);
    return told;
  }
  ExploreOptions next = options_of_next(options);
  if (death != nullptr) {
    begin_with_death(run, *death);
    next.begin = run.inherited.events;
    next.points_max = std::max<uint64_t>(options.nested_states / 10, 1);
    next.nested_max = options.seed % 4 == 0 ? std::min<uint64_t>(next.nested_max, 1) : 0;
    next.deaths_max = options.seed % 4 == 1 ? next.deaths_max : 0;
    if (options.only_held_back) {
      next.points_max = ~uint64_t{0};
      next.nested_max = next.deaths_max = 0;
    }
  }
  Verdicts verdicts;
  Exploration result = explore(run, subject, next, verdicts);
  for (const auto& [site, count] : persist_sites(run)) result.nested_sites[site] += count;
  uint64_t states = result.states + result.nested_states;
  uint64_t death_states = result.death_states;
  if (death != nullptr) death_states += std::exchange(states, 0);
  told.contents = fmt::format("{} {}{}", states, death_states, kFieldEnd);
  for (const auto& [site, count] : result.nested_sites) {
    told.contents += fmt::format("{} {} {} ", site.pc, site.fence ? 1 : 0, count);
  }
  for (const Finding& finding : result.findings) {
    told.contents += fmt::format("{}{}", kFieldEnd, told_of(run, finding, death != nullptr));
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
                            const ExploreOptions& options, const Death* death) {
  WorkerLimits limits = options.worker;
  limits.seconds *= 10;
  Worker worker([&](bool) { return record_and_explore(subject, image, digest, options, death); },
                limits);
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
  char* end = nullptr;
  result.states = std::strtoull(fields[0].c_str(), &end, 10);
  result.death_states = std::strtoull(end, nullptr, 10);
  result.sites = parse_sites(fields.at(1));
  result.findings.assign(fields.begin() + 2, fields.end());
  return result;
}

}  // namespace perdure::lab::crash
