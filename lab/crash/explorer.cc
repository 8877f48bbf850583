#include "lab/crash/explorer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lab/crash/image_file.h"
#include "lab/crash/nested.h"
#include "lab/crash/outputs.h"
#include "lab/crash/pending.h"
#include "perdure/error.h"
#include "pm/memory.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;
using pm::kLineBytes;

constexpr uint64_t kRepeatsMax = 32;  // findings looked at, for each different one that is wanted
constexpr size_t kLastStores = 4;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

uint64_t next_seed(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

bool lies_in(const std::vector<std::pair<uint32_t, uint32_t>>& stretches, uint32_t event) {
  return std::ranges::any_of(stretches, [event](const auto& stretch) {
    return event >= stretch.first && event < stretch.second;
  });
}

class Explorer {
 public:
  Explorer(const Run& run, Subject& subject, const ExploreOptions& options, Verdicts& verdicts)
      : run_(run),
        subject_(subject),
        options_(options),
        verdicts_(verdicts),
        image_(run.trace.region_bytes),
        memory_(run.trace, subject.domain(), image_.bytes(), options.drops, run.inherited),
        worker_([this](bool contents) { return subject_.observe(image_.path(), contents); },
                options.worker),
        begin_(Clock::now()) {
    if (run.expectations.empty()) outputs_.emplace(run.trace, subject, options.worker);
    if (options.only_held_back && run.inherited.events > 0) {
      whole_image_.emplace(run.trace.region_bytes);
      whole_.emplace(run.trace, subject.domain(), whole_image_->bytes(), PendingMemory::Drops(),
                     run.inherited);
    }
    choose_points();
    choose_splits();
    choose_deaths();
  }

  Exploration run();

 private:
  void choose_points();
  void choose_splits();
  void choose_deaths();
  void explore_point();
  void explore_sample();
  void explore_apart();
  void explore_held_back();
  RecentFrom recent_from() const;
  bool take_state(const CrashState& state);
  void take_apart(const CrashState& state, uint64_t draw = 0);
  Verdict verdict_of(const CrashState& state);
  bool is_expected(const CrashState& state, uint64_t digest);
  const std::vector<uint64_t>& allowed();
  Finding finding_here() const;
  std::string kind_of(const Finding& finding) const;
  void add(Finding finding);
  std::string keep_image(const CrashState& state) const;
  void report(const CrashState& state, const Verdict& verdict);
  CrashState minimised(const CrashState& state);
  void fill_lost(const CrashState& state, Finding& finding) const;
  void explore_recovery(const CrashState& state, uint64_t digest, uint64_t draw = 0,
                        const Death* death = nullptr);
  void explore_death();
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
  // The same with every flush and fence in its place: where what is held back is looked for.
  std::optional<ImageFile> whole_image_;
  std::optional<PendingMemory> whole_;
  std::map<uint64_t, uint32_t> held_;  // by line: the first store that is held back
  uint32_t looks_held_ = 0;            // at moments since that changed
  static constexpr uint32_t kLooksMax = 48;
  static constexpr uint32_t kLaterOneIn = 16;
  Worker worker_;
  Clock::time_point begin_;
  Clock::time_point told_;
  Exploration result_;
  std::set<uint64_t> seen_here_;  // images of this crash point
  std::vector<uint32_t> boundaries_;
  std::vector<bool> chosen_;  // by event, if not all moments are looked at
  // Moments at which the run is taken apart and crashed again, each with the event whose loss is to
  // be seen; kNone: none in particular.
  std::map<uint32_t, uint32_t> splits_;
  std::set<uint32_t> deaths_;  // moments at which the process dies
  uint64_t draws_per_death_ = 1;
  std::map<std::string, size_t> kinds_;  // of findings, and where the first of each is
  uint64_t findings_seen_ = 0;
  uint64_t draws_per_split_ = 1;
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint64_t states_since_nested_ = 0;
  uint64_t spread_runs_ = 0;  // crashed again without a split
  uint64_t events_explored_ = 0;
  uint64_t events_to_explore_ = 0;  // those that are not skipped
  std::optional<Outputs> outputs_;  // of runs without expectations
  bool stop_ = false;
};

bool Explorer::over_limit() {
  if (stop_) return true;
  // Of one kind there may be any number; to report them takes recoveries of its own.
  const bool enough = result_.findings.size() >= options_.findings_max ||
                      findings_seen_ >= kRepeatsMax * options_.findings_max;
  if (enough || result_.states >= options_.states_max ||
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
    add(std::move(finding));
  }
  events_to_explore_ = events.size();
  for (const auto& [begin, end] : run_.skipped) events_to_explore_ -= end - begin;
  while (!over_limit()) {
    const uint32_t at = memory_.position();
    const bool last = at == events.size();
    if (at >= options_.begin && !is_skipped(at) && (last || is_worth_a_look(at))) {
      if (whole_) {
        explore_held_back();
      } else if (!options_.nested_only) {
        explore_point();
      } else if (nested_is_due()) {
        const uint64_t nested = result_.nested_runs;
        take_apart(state_apart(memory_, next_seed(options_.seed ^ at)));
        spread_runs_ += result_.nested_runs - nested;
      }
      if (splits_.contains(at)) explore_apart();
    }
    if (deaths_.contains(at) && !over_limit()) explore_death();
    if (last || at >= options_.end) break;
    if (!is_skipped(at)) ++events_explored_;
    memory_.step();
    if (whole_) whole_->step();
  }
  result_.seconds = seconds_since(begin_);
  if (!result_.finished && events_to_explore_ > 0) {
    result_.part = static_cast<double>(events_explored_) / static_cast<double>(events_to_explore_);
  }
  tell_progress(true);
  return result_;
}

bool Explorer::is_skipped(uint32_t event) const { return lies_in(run_.skipped, event); }

// If there are too many moments: half of the sample are ends of operations, at which everything
// must be there and what an earlier crash left is found behind it; an eighth are from the recovery,
// if this is one, and three eighths after a death.
void Explorer::choose_points() {
  const auto& events = run_.trace.events;
  std::vector<uint32_t> recovery;
  std::vector<uint32_t> ends;
  std::vector<uint32_t> others;
  const auto end = std::min<size_t>(events.size(), size_t{options_.end} + 1);
  for (uint32_t i = options_.begin; i < end; ++i) {
    if (is_skipped(i)) continue;
    const EventKind kind = events[i].kind;
    const bool counts = kind == EventKind::kFlush || kind == EventKind::kFence ||
                        kind == EventKind::kStream || kind == EventKind::kSync;
    if (kind == EventKind::kEnd) ends.push_back(i);
    if (counts) (i < run_.recovered_at ? recovery : others).push_back(i);
  }
  if (recovery.size() + ends.size() + others.size() <= options_.points_max) return;
  chosen_.resize(events.size() + 1);
  uint64_t random = options_.seed;
  const auto choose = [&](std::vector<uint32_t>& from, uint64_t count) {
    count = std::min<uint64_t>(count, from.size());
    for (uint64_t i = 0; i < count; ++i) {
      random = next_seed(random);
      std::swap(from[i], from[i + random % (from.size() - i)]);
      chosen_[from[i]] = true;
    }
    return count;
  };
  uint64_t left = options_.points_max;
  // What a dead process left in the caches recovery is the first to rest on.
  const bool death = run_.inherited.events > 0;
  left -= choose(recovery, options_.points_max * (death ? 3 : 1) / 8);
  left -= choose(ends, options_.points_max * (death ? 3 : 5) / 8);
  choose(others, left);
}

// How many lines a fence brings together: those that its thread stored to since the fence before.
uint32_t lines_since(const PendingMemory& memory, uint16_t thread, uint32_t event) {
  const auto is_new = [&](const auto& line) {
    const PendingStore& last = line.second.stores.back();
    return last.thread == thread && last.event > event;
  };
  return static_cast<uint32_t>(std::ranges::count_if(memory.pending(), is_new));
}

// Until so many are chosen: one moment of each place in turn, in an order that the seed draws.
template <typename Moment, typename Chosen>
void take_in_turn(std::map<uint64_t, std::vector<Moment>> by_place, uint64_t random,
                  uint64_t wanted, Chosen& chosen) {
  const auto shuffle = [&random](auto& all) {
    for (size_t i = 0; i < all.size(); ++i) {
      random = next_seed(random);
      std::swap(all[i], all[i + random % (all.size() - i)]);
    }
  };
  std::vector<std::vector<Moment>> places;
  for (auto& [pc, moments] : by_place) {
    shuffle(moments);
    if (!moments.empty()) places.push_back(std::move(moments));
  }
  shuffle(places);
  bool more = true;
  for (size_t turn = 0; more; ++turn) {
    more = false;
    for (const auto& moments : places) {
      if (turn >= moments.size() || chosen.size() >= wanted) continue;
      more = true;
      chosen.insert(moments[turn]);
    }
  }
}

// From the places that fence, in turn, so that rare ones have their share, if they order several
// lines; of mutated code the moments just before the fence after one that is dropped, at which most
// of what it orders can be lost.
void Explorer::choose_splits() {
  if (options_.crashes <= options_.round || options_.nested_max == 0) return;
  const auto& events = run_.trace.events;
  std::map<uint64_t, std::vector<std::pair<uint32_t, uint32_t>>> by_place;
  std::map<uint16_t, uint32_t> dropped;  // by thread: the first since its last fence
  bool any_dropped = false;
  std::map<uint16_t, uint32_t> fenced;  // by thread: its last fence
  ImageFile scratch(run_.trace.region_bytes);
  PendingMemory memory(run_.trace, subject_.domain(), scratch.bytes(), options_.drops,
                       run_.inherited);
  for (uint32_t i = 0; i < std::min<size_t>(events.size(), size_t{options_.end} + 1); ++i) {
    const TraceEvent& event = events[i];
    while (memory.position() < i) memory.step();
    if (options_.drops && options_.drops(event)) {
      any_dropped = true;
      dropped.emplace(event.thread, i);
      continue;
    }
    const bool fence = is_fence(event.kind) || event.kind == EventKind::kSync;
    const auto before = dropped.find(event.thread);
    const uint32_t split = before == dropped.end() ? kNone : before->second;
    if (fence && before != dropped.end()) dropped.erase(before);
    const bool named = event.kind == EventKind::kFence || event.kind == EventKind::kSync;
    const uint32_t last_fence = fence ? std::exchange(fenced[event.thread], i) : 0;
    if (!fence || i < options_.begin || is_skipped(i)) continue;
    if (split == kNone && (!named || lines_since(memory, event.thread, last_fence) < 2)) continue;
    if (options_.crashes_again_at && !options_.crashes_again_at(event)) continue;
    by_place[event.pc].emplace_back(i, split);
  }
  if (any_dropped) {
    for (auto& [pc, moments] : by_place)
      std::erase_if(moments, [](const auto& m) { return m.second == kNone; });
  }
  // What was closed in order is opened again, too.
  if (!any_dropped && !options_.crashes_again_at && options_.end >= events.size()) {
    splits_.emplace(static_cast<uint32_t>(events.size()), kNone);
  }
  const bool all = any_dropped || options_.crashes_again_at;
  const uint64_t wanted = all ? options_.nested_max : (options_.nested_max + 1) / 2;
  take_in_turn(std::move(by_place), next_seed(options_.seed), wanted, splits_);
  // Of few moments several images each.
  if (!splits_.empty()) draws_per_split_ = std::max<uint64_t>(wanted / splits_.size(), 1);
}

// Just after stores, from the places that store in turn; or where the caller says.
void Explorer::choose_deaths() {
  const uint64_t wanted = deaths_of(options_);
  // In domain `byte` no store is in the caches only.
  if (options_.crashes <= options_.round || wanted == 0 || subject_.domain() == Domain::kByte)
    return;
  const auto& events = run_.trace.events;
  std::map<uint64_t, std::vector<uint32_t>> by_place;
  const size_t end = std::min<size_t>(events.size(), size_t{options_.end} + 1);
  for (uint32_t i = std::max(options_.begin, run_.inherited.events + 1); i < end; ++i) {
    if (is_skipped(i)) continue;
    const TraceEvent& stored = events[i - 1];
    const bool here = options_.crashes_again_at ? options_.crashes_again_at(events[i])
                                                : is_store(stored.kind) || options_.begin == i;
    if (here) by_place[options_.crashes_again_at ? events[i].pc : stored.pc].push_back(i);
  }
  take_in_turn(std::move(by_place), next_seed(~options_.seed), wanted, deaths_);
  if (!deaths_.empty()) draws_per_death_ = std::max<uint64_t>(wanted / deaths_.size(), 1);
}

// Amid many flushes under one fence the states at each are nearly those at the next, and all of
// them are among those at the fence: only some are looked at.
bool Explorer::is_worth_a_look(uint32_t event) const {
  constexpr size_t kPendingMany = 32;
  constexpr uint32_t kOneIn = 16;
  if (splits_.contains(event)) return true;
  if (!chosen_.empty()) return chosen_[event];
  if (!memory_.next_is_crash_point()) return false;
  const EventKind kind = run_.trace.events[event].kind;
  const bool amid = kind == EventKind::kFlush || kind == EventKind::kStream;
  return !amid || memory_.pending().size() < kPendingMany || event % kOneIn == 0;
}

void Explorer::explore_point() {
  ++result_.points;
  seen_here_.clear();
  if (!chosen_.empty()) return explore_sample();
  const bool complete =
      for_each_state(memory_, options_.limits, recent_from(), options_.seed ^ memory_.position(),
                     [this](const CrashState& state) { return take_state(state); });
  if (complete) ++result_.points_complete;
}

// Stores of the last two operations, and of those in flight, are taken apart; see for_each_state().
RecentFrom Explorer::recent_from() const {
  const uint32_t at = memory_.position();
  const auto next = std::lower_bound(boundaries_.begin(), boundaries_.end(), at);
  const auto behind = next - boundaries_.begin();
  const uint32_t last_two = behind < 2 ? 0 : boundaries_[static_cast<size_t>(behind - 2)];
  RecentFrom recent;
  for (const uint32_t begun : memory_.in_flight()) recent.push_back(std::min(last_two, begun));
  return recent;
}

// Where moments are many, a few states of each.
void Explorer::explore_sample() {
  const uint32_t at = memory_.position();
  const uint64_t kind = next_seed(options_.seed ^ at) % 8;
  if (run_.inherited.events == 0) {
    // Nothing arrived that need not, or everything.
    if (!take_state(state_apart_at(memory_, kind % 4 != 0 ? kNone : 0))) return;
  } else {
    // After a death: nothing that need not, all lines stored to since and no others, or any lines.
    const CrashState state = kind < 4    ? state_apart_at(memory_, kNone)
                             : kind == 4 ? state_apart_at(memory_, run_.inherited.events)
                                         : state_mixed(memory_, next_seed(~options_.seed ^ at));
    if (!take_state(state)) return;
  }
  const auto& events = run_.trace.events;
  const bool ends = at < events.size() && events[at].kind == EventKind::kEnd;
  const uint64_t draws = ends ? 0 : at < run_.recovered_at ? 3 : 1;
  for (uint64_t i = 0; i < draws; ++i) {
    if (!take_state(state_apart(memory_, next_seed(options_.seed ^ at) + i))) return;
  }
}

// First what is farthest from the program's order: of mutated code all that was stored since what
// is dropped, and none of it; else, if there are several images of a moment, the line stored to
// last, and none before it.
void Explorer::explore_apart() {
  const uint32_t at = memory_.position();
  const uint32_t split = splits_.at(at);
  if (split != kNone) {
    take_apart(state_apart_at(memory_, split));
  } else if (draws_per_split_ > 1) {
    take_apart(state_newest(memory_));
  }
  const uint64_t draws = std::max<uint64_t>(draws_per_split_, 2) - 1;
  for (uint64_t draw = 0; draw < draws && !over_limit(); ++draw) {
    take_apart(state_apart(memory_, next_seed(options_.seed ^ at) + draw), draw);
  }
}

// Of each line that holds a store of the dead process back: the first one that would be durable if
// nothing were dropped. All of these lines are lost and no others, or any of the others, or one
// line alone.
void Explorer::explore_held_back() {
  const auto& events = run_.trace.events;
  const uint32_t at = memory_.position();
  const EventKind kind = at < events.size() ? events[at].kind : EventKind::kEnd;
  if (kind == EventKind::kFlush || kind == EventKind::kStream) return;  // see the fence
  std::map<uint64_t, uint32_t> held;
  for (const auto& [number, line] : memory_.pending()) {
    const auto whole = whole_->pending().find(number);
    for (const PendingStore& store : line.stores) {
      if (store.event >= run_.inherited.events) break;
      const bool waits = whole != whole_->pending().end() &&
                         std::ranges::any_of(whole->second.stores, [&](const PendingStore& other) {
                           return other.event == store.event;
                         });
      if (waits) continue;
      held.emplace(number, store.event);
      break;
    }
  }
  looks_held_ = held == held_ ? looks_held_ + 1 : 0;
  held_ = held;
  const bool in_turn = looks_held_ < kLooksMax || looks_held_ % kLaterOneIn == 0;
  if (held.empty() || !in_turn) return;
  ++result_.points;
  seen_here_.clear();
  const uint64_t drawn = next_seed(options_.seed ^ at);
  if (!take_state(state_without(memory_, held)) || !take_state(state_without(memory_, held, drawn)))
    return;
  if (held.size() < 2) return;
  const auto one = std::next(held.begin(), static_cast<ptrdiff_t>(drawn % held.size()));
  take_state(state_without(memory_, {*one}));
}

void Explorer::take_apart(const CrashState& state, uint64_t draw) {
  seen_here_.erase(state.hash);
  const uint64_t findings = findings_seen_;
  const uint64_t nested = result_.nested_runs;
  if (!take_state(state) && findings_seen_ > findings) return;
  if (result_.nested_runs == nested) explore_recovery(state, verdict_of(state).digest, draw);
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
    const uint64_t nested = result_.nested_runs;
    explore_recovery(state, verdict.digest);
    spread_runs_ += result_.nested_runs - nested;  // unless there was nothing to recover
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
  const uint64_t wanted = options_.nested_max - std::min(options_.nested_max, splits_.size());
  return options_.round < options_.crashes && spread_runs_ < wanted &&
         spread_runs_ * events_to_explore_ <= events_explored_ * wanted;
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
      entry.torn = std::any_of(store.words.begin(), store.words.end(), [&](const Word& word) {
        return value_in_state(word.offset) == word.value && memory_.word(word.offset) != word.value;
      });
      for (uint32_t i = store.event; !store.stream && i < memory_.position(); ++i) {
        const bool dropped = options_.drops && options_.drops(events[i]);
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
  if (!finding.lost.empty()) return;
  for (uint32_t i = memory_.position(); i-- > 0 && finding.last_stores.size() < kLastStores;) {
    if (is_store(events[i].kind)) finding.last_stores.push_back(i);
  }
}

// Findings of one kind have, nearly always, one cause.
std::string Explorer::kind_of(const Finding& finding) const {
  std::string kind = finding.death ? "death " : finding.nested ? "nested " : "";
  const auto& events = run_.trace.events;
  for (uint32_t i = std::min<uint32_t>(finding.event, static_cast<uint32_t>(events.size()));
       i-- > 0;) {
    if (events[i].kind != EventKind::kBegin || events[i].thread != finding.thread) continue;
    kind += fmt::format("{} {}", events[i].data, finding.in_flight);
    break;
  }
  // Between two stores a crash has one meaning, whichever flush or fence it comes before.
  for (uint32_t i = std::min<uint32_t>(finding.event, static_cast<uint32_t>(events.size()));
       i-- > 0;) {
    if (!is_store(events[i].kind)) continue;
    kind += fmt::format(" after {:x}", events[i].pc);
    break;
  }
  std::set<uint64_t> places;
  for (const LostStore& lost : finding.lost) places.insert(events[lost.event].pc);
  for (const uint64_t place : places) kind += fmt::format(" {:x}", place);
  // Of crashes of recoveries, and where nothing was lost, the words tell, but for the numbers in
  // them.
  if (!finding.nested && !places.empty()) return kind;
  for (const char c : finding.what) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) kind += c;
  }
  return kind;
}

void Explorer::add(Finding finding) {
  ++findings_seen_;
  const auto [known, fresh] = kinds_.try_emplace(kind_of(finding), result_.findings.size());
  if (fresh) {
    result_.findings.push_back(std::move(finding));
  } else {
    ++result_.findings[known->second].times;
  }
}

// The path of the file.
std::string Explorer::keep_image(const CrashState& state) const {
  const std::string path = fmt::format("{}/{:016x}.image", options_.image_folder, state.hash);
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(image_.bytes()),
            static_cast<std::streamsize>(image_.size()));
  out.close();
  if (!out) throw Error(ErrorCode::kIo, fmt::format("{}: cannot write the image", path));
  return path;
}

Finding Explorer::finding_here() const {
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
  return finding;
}

void Explorer::report(const CrashState& state, const Verdict& verdict) {
  Finding finding = finding_here();
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
  if (!options_.image_folder.empty() && !kinds_.contains(kind_of(finding))) {
    const Applied applied(image_, smallest);
    finding.image = keep_image(smallest);
  }
  add(std::move(finding));
}

// All that was stored is seen by the next process; what is pending stays pending.
void Explorer::explore_death() {
  if (options_.only_held_back && memory_.pending().empty()) return;
  seen_here_.clear();
  const CrashState seen = state_apart_at(memory_, 0);
  if (!take_state(seen)) return;
  const uint32_t at = memory_.position();
  Death death{.durable = {},
              .inherited = {.events = 0, .lines = memory_.pending()},
              .trace = &run_.trace,
              .unsettled = {},
              .digests = allowed(),
              .explain = {}};
  if (run_.unsettled) death.unsettled = run_.unsettled(at);
  if (run_.explain_decides) {
    death.explain = [this, at](const std::string& contents) { return run_.explain(at, contents); };
  }
  for (const Word& word : seen.words)
    death.durable.push_back({word.offset, memory_.word(word.offset)});
  const uint64_t digest = verdict_of(seen).digest;
  for (uint64_t draw = 0; draw < draws_per_death_ && !over_limit(); ++draw) {
    explore_recovery(seen, digest, draw, &death);
  }
}

// Images of one state are worked on in another way with each draw.
void Explorer::explore_recovery(const CrashState& state, uint64_t digest, uint64_t draw,
                                const Death* death) {
  if (death == nullptr) states_since_nested_ = 0;
  const Applied applied(image_, state);
  ExploreOptions options = options_;
  options.seed = next_seed(options_.seed ^ state.hash) + draw;
  options.seconds_max = options_.seconds_max - seconds_since(begin_);
  const NestedResult nested = explore_nested(subject_, image_, digest, options, death);
  if (!nested.offered) return;  // nothing to recover in this image, or the subject has no such run
  ++(death == nullptr ? result_.nested_runs : result_.deaths);
  result_.nested_states += nested.states;
  result_.death_states += nested.death_states;
  for (const auto& [site, count] : nested.sites) result_.nested_sites[site] += count;
  for (const std::string& what : nested.findings) {
    Finding finding = finding_here();
    finding.what = what;
    finding.image_hash = state.hash;
    finding.nested = true;
    finding.death = death != nullptr;
    if (!finding.death) fill_lost(state, finding);
    if (!options_.image_folder.empty()) finding.image = keep_image(state);
    add(std::move(finding));
  }
}

}  // namespace

uint64_t deaths_of(const ExploreOptions& options) {
  return options.deaths_max == ExploreOptions::kDeathsAsRecoveries ? options.nested_max
                                                                   : options.deaths_max;
}

std::string operation_of(const Run& run, const Finding& finding) {
  if (finding.thread >= run.operations.size()) return {};
  const auto& operations = run.operations[finding.thread];
  return finding.operation < operations.size() ? operations[finding.operation] : "";
}

PersistSites persist_sites(const Run& run) {
  PersistSites sites;
  const auto& events = run.trace.events;
  for (uint32_t i = 0; i < events.size(); ++i) {
    const bool fence = events[i].kind == EventKind::kFence;
    const bool flush = events[i].kind == EventKind::kFlush || events[i].kind == EventKind::kSync;
    if ((fence || flush) && !lies_in(run.skipped, i)) ++sites[{events[i].pc, fence}];
  }
  return sites;
}

std::set<uint64_t> stream_sites(const Run& run) {
  std::set<uint64_t> sites;
  const auto& events = run.trace.events;
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == EventKind::kStream && !lies_in(run.skipped, i))
      sites.insert(events[i].pc);
  }
  return sites;
}

Exploration explore(const Run& run, Subject& subject, const ExploreOptions& options,
                    Verdicts& verdicts) {
  return Explorer(run, subject, options, verdicts).run();
}

}  // namespace perdure::lab::crash
