#include "lab/crash/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

namespace perdure::lab::crash {
namespace {

// Contents of several lines are told by those in which they differ.
constexpr size_t kLinesToldMax = 4;

std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The lines of one that are not in the other, in words; empty if there are none.
std::string lines_only_in(const std::multiset<std::string>& one,
                          const std::multiset<std::string>& other, const char* how) {
  std::vector<std::string> lines;
  std::set_difference(one.begin(), one.end(), other.begin(), other.end(),
                      std::back_inserter(lines));
  if (lines.empty()) return {};
  const size_t more = lines.size() - std::min(lines.size(), kLinesToldMax);
  lines.resize(lines.size() - more);
  std::string text = fmt::format("{} \"{}\"", how, fmt::join(lines, "\", \""));
  if (more > 0) text += fmt::format(" and {} more lines", more);
  return text;
}

// Completes "recovery ...".
std::string difference(const std::string& contents, const std::string& expected) {
  const auto is = lines_of(contents);
  const auto wanted = lines_of(expected);
  std::string text = lines_only_in(wanted, is, "misses");
  const std::string extra = lines_only_in(is, wanted, "adds");
  if (!text.empty() && !extra.empty()) text += " and ";
  text += extra;
  return text.empty() ? "gives the same lines in another order" : text;
}

}  // namespace

Outputs::Outputs(const Trace& trace, Subject& subject, const WorkerLimits& limits)
    : trace_(trace),
      image_(trace.region_bytes),
      worker_([this, &subject](bool contents) { return subject.observe(image_.path(), contents); },
              limits) {
  load_base();
  const auto count = static_cast<uint32_t>(trace.events.size());
  uint32_t began = 0;
  uint32_t in_flight = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (trace.events[i].kind == EventKind::kBegin) {
      if (in_flight == 0 && i > began) stretches_.push_back({began, i, false});
      if (in_flight == 0) began = i;
      ++in_flight;
    }
    if (trace.events[i].kind == EventKind::kEnd && in_flight > 0) {
      --in_flight;
      if (in_flight > 0) continue;
      stretches_.push_back({began, i + 1, false});
      began = i + 1;
    }
  }
  stretches_.push_back({began, count, in_flight > 0});
}

void Outputs::load_base() {
  for (const auto& [number, page] : trace_.base) {
    std::memcpy(image_.bytes() + number * kImagePageBytes, page.data(), page.size());
  }
}

std::vector<uint32_t> Outputs::positions(uint32_t event) const {
  const auto next =
      std::upper_bound(stretches_.begin(), stretches_.end(), event,
                       [](uint32_t at, const Stretch& stretch) { return at < stretch.begin; });
  const Stretch& stretch = *std::prev(next);
  // Before the stretch's first event nothing of it has happened, whatever it may do later.
  if (event == stretch.begin) return {event};
  if (event >= stretch.end && !stretch.unfinished) return {stretch.end};
  return {stretch.begin, stretch.end};
}

Observation Outputs::observe_at(uint32_t position, bool with_contents) {
  if (position < position_) {
    std::memset(image_.bytes(), 0, image_.size());
    load_base();
    position_ = 0;
  }
  for (; position_ < position; ++position_) {
    const TraceEvent& event = trace_.events[position_];
    if (!is_store(event.kind)) continue;
    std::memcpy(image_.bytes() + event.offset, trace_.stored(event), event.bytes);
  }
  return worker_.ask(with_contents);
}

const std::vector<uint64_t>& Outputs::allowed(uint32_t event) {
  allowed_.clear();
  for (const uint32_t position : positions(event)) {
    auto known = digests_.find(position);
    if (known == digests_.end()) {
      known = digests_.emplace(position, observe_at(position, false).digest).first;
    }
    allowed_.push_back(known->second);
  }
  return allowed_;
}

std::string Outputs::explain(uint32_t event, const std::string& contents) {
  const std::vector<uint32_t> expected = positions(event);
  const Observation before = observe_at(expected.front(), true);
  const Observation after = expected.size() > 1 ? observe_at(expected.back(), true) : before;
  const bool has_lines =
      contents.find('\n') != std::string::npos || before.contents.find('\n') != std::string::npos;
  if (has_lines && before.problem.empty() && after.problem.empty()) {
    std::string text = difference(contents, after.contents);
    if (expected.size() == 1) return "of what must be there, recovery " + text;
    return fmt::format(
        "of what was there before the operation, recovery {}; of what is there after "
        "it, recovery {}",
        difference(contents, before.contents), text);
  }
  const auto told = [](const Observation& seen) {
    return seen.problem.empty() ? fmt::format("\"{}\"", seen.contents) : seen.problem;
  };
  std::string text = fmt::format("recovery gives \"{}\", and must give {}", contents, told(before));
  if (expected.size() > 1) text += " or " + told(after);
  return text;
}

}  // namespace perdure::lab::crash
