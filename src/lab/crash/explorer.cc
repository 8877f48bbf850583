#include "lab/crash/explorer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lab/crash/image_file.h"
#include "lab/crash/nested.h"
#include "lab/crash/outputs.h"
#include "lab/crash/pending.h"
#include "pm/memory.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;
using pm::kLineBytes;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Explorer {
 public:
  Explorer(const Run& run, Subject& subject, const ExploreOptions& options, Verdicts& verdicts)
      : run_(run),
        subject_(subject),
        options_(options),
        verdicts_(verdicts),
        image_(run.trace.region_bytes),
        memory_(run.trace, subject.domain(), image_.bytes(), options.drops),
        worker_([this](bool contents) { return subject_.observe(image_.path(), contents); },
                options.worker),
        begin_(Clock::now()) {
    if (run.expectations.empty()) outputs_.emplace(run.trace, subject, options.worker);
  }

  Exploration run();

 private:
  void explore_point();
  bool take_state(const CrashState& state);
  Verdict verdict_of(const CrashState& state);
  bool is_expected(const CrashState& state, uint64_t digest);
  const std::vector<uint64_t>& allowed();
  void report(const CrashState& state, const Verdict& verdict);
  CrashState minimised(const CrashState& state);
  void fill_lost(const CrashState& state, Finding& finding) const;
  void explore_recovery(const CrashState& state, uint64_t digest);
  bool over_limit();
  bool nested_is_due() const;
  bool is_skipped(uint32_t event) const;
  bool is_worth_a_look(uint32_t event) const;
  void tell_progress(bool at_once);

  // Puts a state into the image for as long as it lives.
  class Applied {
   public:
    Applied(ImageFile& image, const CrashState& state) : image_(image), state_(state) {
      for (const Word& word : state.words) {
        uint64_t old = 0;
        std::memcpy(&old, image.bytes() + word.offset, sizeof old);
        old_.push_back(old);
        std::memcpy(image.bytes() + word.offset, &word.value, sizeof word.value);
      }
    }
    ~Applied() {
      for (size_t i = state_.words.size(); i-- > 0;) {
        std::memcpy(image_.bytes() + state_.words[i].offset, &old_[i], sizeof old_[i]);
      }
    }
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;

   private:
    ImageFile& image_;
    const CrashState& state_;
    std::vector<uint64_t> old_;
  };

  const Run& run_;
  Subject& subject_;
  const ExploreOptions& options_;
  Verdicts& verdicts_;
  std::unordered_map<uint64_t, std::string> contents_;  // by digest, where explain() decides
  ImageFile image_;
  PendingMemory memory_;
  Worker worker_;
  Clock::time_point begin_;
  Clock::time_point told_;
  Exploration result_;
  std::set<uint64_t> seen_here_;  // images of this crash point
  std::vector<uint32_t> boundaries_;
  uint64_t states_since_nested_ = 0;
  uint64_t events_explored_ = 0;
  uint64_t events_to_explore_ = 0;  // those that are not skipped
  std::optional<Outputs> outputs_;  // of runs without expectations
  bool stop_ = false;
};

bool Explorer::over_limit() {
  if (stop_) return true;
  if (result_.findings.size() >= options_.findings_max || result_.states >= options_.states_max ||
      seconds_since(begin_) > options_.seconds_max || (options_.stop && options_.stop())) {
    stop_ = true;
    result_.finished = false;
  }
  return stop_;
}

void Explorer::tell_progress(bool at_once) {
  if (!options_.progress) return;
  const auto now = Clock::now();
  if (!at_once && now - told_ < std::chrono::milliseconds(100)) return;
  told_ = now;
  options_.progress({"exploring", result_.states, result_.findings.size(),
                     static_cast<double>(memory_.position()) /
                         static_cast<double>(std::max<size_t>(run_.trace.events.size(), 1))});
}

Exploration Explorer::run() {
  const auto& events = run_.trace.events;
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == EventKind::kBegin) boundaries_.push_back(i);
  }
  if (!run_.problem.empty()) {
    Finding finding{};
    finding.what = run_.problem;
    result_.findings.push_back(std::move(finding));
  }
  events_to_explore_ = events.size();
  for (const auto& [begin, end] : run_.skipped) events_to_explore_ -= end - begin;
  while (!over_limit()) {
    const uint32_t at = memory_.position();
    const bool last = at == events.size();
    if (at >= options_.begin && !is_skipped(at) && (last || is_worth_a_look(at))) {
      explore_point();
    }
    if (last || at >= options_.end) break;
    if (!is_skipped(at)) ++events_explored_;
    memory_.step();
  }
  result_.seconds = seconds_since(begin_);
  tell_progress(true);
  return result_;
}

bool Explorer::is_skipped(uint32_t event) const {
  return std::any_of(run_.skipped.begin(), run_.skipped.end(), [event](const auto& stretch) {
    return event >= stretch.first && event < stretch.second;
  });
}

// Amid many flushes under one fence the states at each are nearly those at the next, and all of them
// are among those at the fence: only some are looked at.
bool Explorer::is_worth_a_look(uint32_t event) const {
  constexpr size_t kPendingMany = 32;
  constexpr uint32_t kOneIn = 16;
  if (!memory_.next_is_crash_point()) return false;
  const EventKind kind = run_.trace.events[event].kind;
  const bool amid = kind == EventKind::kFlush || kind == EventKind::kStream;
  return !amid || memory_.pending().size() < kPendingMany || event % kOneIn == 0;
}

void Explorer::explore_point() {
  ++result_.points;
  seen_here_.clear();
  const uint32_t at = memory_.position();
  // Stores of this operation and the one before it are taken apart; see for_each_state().
  const auto next = std::lower_bound(boundaries_.begin(), boundaries_.end(), at);
  const auto behind = next - boundaries_.begin();
  const uint32_t recent_from = behind < 2 ? 0 : boundaries_[static_cast<size_t>(behind - 2)];
  const bool complete =
      for_each_state(memory_, options_.limits, recent_from, options_.seed ^ at,
                     [this](const CrashState& state) { return take_state(state); });
  if (complete) ++result_.points_complete;
}

bool Explorer::take_state(const CrashState& state) {
  ++result_.visited;
  tell_progress(false);
  if (!seen_here_.insert(state.hash).second) return true;
  const uint64_t states_before = result_.states;
  const Verdict verdict = verdict_of(state);
  if (!verdict.problem.empty() || !is_expected(state, verdict.digest)) {
    report(state, verdict);
    // One finding for each moment: the others at it are nearly always the same.
    return false;
  }
  if (result_.states > states_before && ++states_since_nested_ >= options_.states_per_nested &&
      nested_is_due()) {
    explore_recovery(state, verdict.digest);
  }
  return !over_limit();
}

Verdict Explorer::verdict_of(const CrashState& state) {
  const auto known = verdicts_.find(state.hash);
  if (known != verdicts_.end()) return known->second;
  const Applied applied(image_, state);
  const Observation seen = worker_.ask(false);
  ++result_.states;
  return verdicts_.emplace(state.hash, Verdict{seen.digest, seen.problem}).first->second;
}

// They are spread over the run.
bool Explorer::nested_is_due() const {
  return result_.nested_runs < options_.nested_max &&
         result_.nested_runs * events_to_explore_ <= events_explored_ * options_.nested_max;
}

const std::vector<uint64_t>& Explorer::allowed() {
  const uint32_t at = memory_.position();
  if (outputs_) return outputs_->allowed(at);
  // What holds before event `at` is what was said up to the event before it.
  const auto after = std::lower_bound(
      run_.expectations.begin(), run_.expectations.end(), at,
      [](const Expectation& expectation, uint32_t event) { return expectation.event < event; });
  return (after == run_.expectations.begin() ? after : std::prev(after))->digests;
}

bool Explorer::is_expected(const CrashState& state, uint64_t digest) {
  const auto& digests = allowed();
  if (std::find(digests.begin(), digests.end(), digest) != digests.end()) return true;
  if (!run_.explain_decides) return false;
  auto [known, fresh] = contents_.try_emplace(digest);
  if (fresh) {
    const Applied applied(image_, state);
    known->second = worker_.ask(true).contents;
  }
  return run_.explain(memory_.position(), known->second).empty();
}

// The same failure with as few stores lost as will do: line by line the complete content is put in,
// and left there if the image still fails.
CrashState Explorer::minimised(const CrashState& state) {
  std::set<uint64_t> touched;
  CrashState smallest = state;
  for (const auto& [number, line] : memory_.pending()) {
    const LineOption complete = memory_.complete(line);
    if (complete.words.empty()) continue;
    CrashState trial = smallest;
    for (const Word& word : complete.words) {
      const auto known = std::find_if(trial.words.begin(), trial.words.end(),
                                      [&](const Word& w) { return w.offset == word.offset; });
      const uint64_t before = known == trial.words.end() ? memory_.word(word.offset) : known->value;
      trial.hash ^= word_hash(word.offset, before) ^ word_hash(word.offset, word.value);
      if (known == trial.words.end()) {
        trial.words.push_back(word);
      } else {
        known->value = word.value;
      }
    }
    if (trial.hash == smallest.hash) continue;
    const Verdict verdict = verdict_of(trial);
    if (!verdict.problem.empty() || !is_expected(trial, verdict.digest)) {
      smallest = std::move(trial);
    }
  }
  return smallest;
}

void Explorer::fill_lost(const CrashState& state, Finding& finding) const {
  const auto& events = run_.trace.events;
  const auto value_in_state = [&](uint64_t offset) {
    for (const Word& word : state.words) {
      if (word.offset == offset) return word.value;
    }
    return memory_.word(offset);
  };
  for (const auto& [number, line] : memory_.pending()) {
    const LineOption complete = memory_.complete(line);
    const bool differs =
        std::any_of(complete.words.begin(), complete.words.end(),
                    [&](const Word& word) { return value_in_state(word.offset) != word.value; });
    if (!differs) continue;
    for (const PendingStore& store : line.stores) {
      const bool lost = std::any_of(store.words.begin(), store.words.end(), [&](const Word& word) {
        return value_in_state(word.offset) != word.value;
      });
      if (!lost) continue;
      LostStore entry{.event = store.event,
                      .state = store.stream ? LostState::kStreamUnfenced : LostState::kUnflushed,
                      .flush_event = 0};
      for (uint32_t i = store.event; !store.stream && i < memory_.position(); ++i) {
        const bool dropped = options_.drops && options_.drops(i);
        if (events[i].kind != EventKind::kFlush || dropped) continue;
        const uint64_t first = events[i].offset / kLineBytes;
        const uint64_t last =
            (events[i].offset + std::max<uint64_t>(events[i].bytes, 1) - 1) / kLineBytes;
        if (number >= first && number <= last) {
          entry.state = LostState::kUnfenced;
          entry.flush_event = i;
        }
      }
      finding.lost.push_back(entry);
    }
    if (finding.lines.size() < 8) {
      const uint64_t begin = complete.words.front().offset / kLineBytes * kLineBytes;
      LineBytes bytes{.offset = begin, .crashed = {}, .complete = {}};
      for (uint64_t offset = begin; offset < begin + kLineBytes; offset += 8) {
        uint64_t crashed = value_in_state(offset);
        uint64_t whole = memory_.word(offset);
        for (const Word& word : complete.words) {
          if (word.offset == offset) whole = word.value;
        }
        const auto* c = reinterpret_cast<const unsigned char*>(&crashed);
        const auto* w = reinterpret_cast<const unsigned char*>(&whole);
        bytes.crashed.insert(bytes.crashed.end(), c, c + 8);
        bytes.complete.insert(bytes.complete.end(), w, w + 8);
      }
      finding.lines.push_back(std::move(bytes));
    }
  }
}

void Explorer::report(const CrashState& state, const Verdict& verdict) {
  Finding finding{};
  finding.event = memory_.position();
  const auto& events = run_.trace.events;
  for (uint32_t i = memory_.position(); i-- > 0;) {
    if (events[i].kind != EventKind::kBegin && events[i].kind != EventKind::kEnd) continue;
    finding.thread = events[i].thread;
    finding.operation = events[i].operation;
    finding.in_flight = events[i].kind == EventKind::kBegin;
    break;
  }
  const CrashState smallest = minimised(state);
  finding.image_hash = smallest.hash;
  const Verdict of_smallest = verdict_of(smallest);
  finding.what = of_smallest.problem.empty() ? verdict.problem : of_smallest.problem;
  if (of_smallest.problem.empty()) {
    const Applied applied(image_, smallest);
    const Observation seen = worker_.ask(true);
    const uint32_t at = memory_.position();
    if (run_.explain) finding.what = run_.explain(at, seen.contents);
    if (outputs_) finding.what = outputs_->explain(at, seen.contents);
    if (finding.what.empty())
      finding.what = "what recovery gives is neither the state before nor after";
  }
  fill_lost(smallest, finding);
  result_.findings.push_back(std::move(finding));
}

void Explorer::explore_recovery(const CrashState& state, uint64_t digest) {
  states_since_nested_ = 0;
  const Applied applied(image_, state);
  const NestedResult nested = explore_nested(subject_, image_, digest, options_);
  if (!nested.offered) return;  // nothing to recover in this image, or the subject has no such run
  ++result_.nested_runs;
  result_.nested_states += nested.states;
  for (const std::string& what : nested.findings) {
    Finding finding{};
    finding.event = memory_.position();
    finding.what = what;
    finding.image_hash = state.hash;
    finding.nested = true;
    fill_lost(state, finding);
    result_.findings.push_back(std::move(finding));
  }
}

}  // namespace

Exploration explore(const Run& run, Subject& subject, const ExploreOptions& options,
                    Verdicts& verdicts) {
  return Explorer(run, subject, options, verdicts).run();
}

}  // namespace perdure::lab::crash
