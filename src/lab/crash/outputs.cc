#include "lab/crash/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace perdure::lab::crash {

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
    if (trace.events[i].kind == EventKind::kBegin && in_flight++ == 0) {
      if (i > began) stretches_.push_back({began, i, false});
      began = i;
    }
    if (trace.events[i].kind == EventKind::kEnd && in_flight > 0 && --in_flight == 0) {
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
  const auto told = [&](uint32_t position) {
    const Observation seen = observe_at(position, true);
    return seen.problem.empty() ? fmt::format("\"{}\"", seen.contents) : seen.problem;
  };
  const std::vector<uint32_t> expected = positions(event);
  std::string text =
      fmt::format("recovery gives \"{}\", and must give {}", contents, told(expected.front()));
  if (expected.size() > 1) text += fmt::format(" or {}", told(expected.back()));
  return text;
}

}  // namespace perdure::lab::crash
