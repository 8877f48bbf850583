#include "lab/crash/nested.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "lab/crash/sites.h"
#include "lab/crash/worker.h"

namespace perdure::lab::crash {
namespace {

// In the worker: what `contents` carries back to the asker.
constexpr char kFieldEnd = '\x1e';

std::string told_of(const Run& run, const Finding& finding) {
  std::string where = "a crash during recovery";
  if (finding.operation > 0) {
    where = fmt::format("after recovery, a crash {} {}", finding.in_flight ? "in" : "after",
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

Observation record_and_explore(Subject& subject, const ImageFile& image, uint64_t digest,
                               const ExploreOptions& options) {
  // Recovery gets a copy to write to; the image itself must stay.
  ImageFile copy(image.size());
  const std::vector<unsigned char> zeros(kImagePageBytes);
  for (uint64_t at = 0; at < image.size(); at += kImagePageBytes) {
    const uint64_t bytes = std::min(kImagePageBytes, image.size() - at);
    if (std::memcmp(image.bytes() + at, zeros.data(), bytes) == 0) continue;
    std::memcpy(copy.bytes() + at, image.bytes() + at, bytes);
  }
  Observation told;
  const Run run = subject.record_recovery(copy.path());
  if (run.trace.events.empty()) return told;
  told.digest = 1;
  if (!run.expectations.empty() && run.expectations.front().digests.front() != digest) {
    told.contents =
        fmt::format("0{}two recoveries of one image give different contents", kFieldEnd);
    return told;
  }
  ExploreOptions inner = options;
  inner.nested_max = 0;
  inner.states_max = options.nested_states;
  inner.findings_max = 1;
  inner.drops = {};
  inner.begin = 0;
  inner.end = ~uint32_t{0};
  inner.progress = {};
  inner.limits.complete_max = std::min<uint64_t>(options.limits.complete_max, 16);
  inner.limits.pairs_max = 8;
  inner.limits.random = 8;
  Verdicts verdicts;
  const Exploration result = explore(run, subject, inner, verdicts);
  told.contents = std::to_string(result.states);
  for (const Finding& finding : result.findings) {
    told.contents += fmt::format("{}{}", kFieldEnd, told_of(run, finding));
  }
  return told;
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
  result.findings.assign(fields.begin() + 1, fields.end());
  return result;
}

}  // namespace perdure::lab::crash
