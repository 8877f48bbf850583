#include "lab/crash/states.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace perdure::lab::crash {
namespace {

constexpr size_t kDurable = ~size_t{0};  // the choice that leaves a line as it is
// With more lines than this no enumeration is complete, and the states of most need not be known.
constexpr size_t kLinesInFullMax = 24;

uint64_t next_random(uint64_t& state) {
  state += 0x9e3779b97f4a7c15U;
  uint64_t x = state;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// The last store to each pending line, the newest first.
std::vector<uint32_t> last_stores(const PendingMemory& memory) {
  std::vector<uint32_t> events;
  for (const auto& [number, line] : memory.pending()) events.push_back(line.stores.back().event);
  std::ranges::sort(events, std::greater<>());
  return events;
}

class Enumeration {
 public:
  Enumeration(const PendingMemory& memory, const StateLimits& limits, const RecentFrom& recent_from,
              uint64_t seed, const std::function<bool(const CrashState&)>& visit)
      : memory_(memory), limits_(limits), random_(seed), visit_(visit) {
    for (const auto& [number, line] : memory.pending()) {
      LineOption whole = memory.complete(line);
      const bool old = std::ranges::all_of(line.stores, [&](const PendingStore& store) {
        return store.thread < recent_from.size() && store.event < recent_from[store.thread];
      });
      if (old) {
        stale_.words.insert(stale_.words.end(), whole.words.begin(), whole.words.end());
        stale_.hash_delta ^= whole.hash_delta;
        continue;
      }
      sources_.push_back(&line);
      lines_.push_back({std::move(whole)});
    }
    in_full_.assign(lines_.size(), false);
    choice_.assign(lines_.size(), kDurable);
    if (lines_.size() > kLinesInFullMax) return;
    for (size_t i = 0; i < lines_.size(); ++i) know_in_full(i);
  }

  // Whether all combinations were visited.
  bool run() {
    uint64_t combinations = 1;
    for (const auto& options : lines_) {
      combinations *= options.size() + 1;
      if (combinations > limits_.complete_max) break;
    }
    const bool all = combinations <= limits_.complete_max;
    const bool complete = all && !cut_off_;
    with_stale_ = true;
    if (!(all ? visit_all() : visit_sample())) return complete;
    if (stale_.words.empty()) return complete;
    with_stale_ = false;
    if (all) {
      visit_all();
    } else {
      visit_extremes();
    }
    return complete;
  }

 private:
  bool emit() {
    CrashState state;
    state.hash = memory_.durable_hash();
    const auto take = [&state](const LineOption& option) {
      state.words.insert(state.words.end(), option.words.begin(), option.words.end());
      state.hash ^= option.hash_delta;
    };
    if (with_stale_) take(stale_);
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (choice_[i] != kDurable) take(lines_[i][choice_[i]]);
    }
    return visit_(state);
  }

  void know_in_full(size_t i) {
    if (in_full_[i]) return;
    in_full_[i] = true;
    auto options = memory_.options(*sources_[i], limits_.options_per_line_max);
    cut_off_ |= options.size() >= limits_.options_per_line_max;
    // A line whose stores all undo each other has the durable state only.
    if (!options.empty()) lines_[i] = std::move(options);
  }

  void set_all(size_t choice) { std::fill(choice_.begin(), choice_.end(), choice); }

  bool visit_all() {
    set_all(kDurable);
    for (;;) {
      if (!emit()) return false;
      size_t i = 0;
      for (; i < lines_.size(); ++i) {
        choice_[i] = choice_[i] == kDurable ? 0 : choice_[i] + 1;
        if (choice_[i] < lines_[i].size()) break;
        choice_[i] = kDurable;
      }
      if (i == lines_.size()) return true;
    }
  }

  // The first option of a line is the complete one.
  bool visit_extremes() {
    set_all(kDurable);
    if (!emit()) return false;
    set_all(0);
    return emit();
  }

  bool visit_sample() {
    return visit_extremes() && visit_in_order() && visit_apart() && visit_single() &&
           visit_pairs() && visit_random();
  }

  // As if lines had been written back in the order of the program until the crash.
  bool visit_in_order() {
    std::vector<uint32_t> events;
    for (const PendingLine* line : sources_) {
      for (const PendingStore& store : line->stores) events.push_back(store.event);
    }
    std::sort(events.begin(), events.end());
    for (uint64_t i = 1; i <= limits_.in_order; ++i) {
      const uint32_t until = events[events.size() * i / (limits_.in_order + 1)];
      CrashState state;
      state.hash = memory_.durable_hash() ^ stale_.hash_delta;
      state.words = stale_.words;
      for (const PendingLine* line : sources_) {
        const LineOption option = memory_.as_of(*line, until);
        state.words.insert(state.words.end(), option.words.begin(), option.words.end());
        state.hash ^= option.hash_delta;
      }
      if (!visit_(state)) return false;
    }
    return true;
  }

  // The reverse: as if lines had been written back from the last one stored to.
  bool visit_apart() {
    std::vector<uint32_t> events = last_stores(memory_);
    for (const size_t i : pick(events.size(), limits_.apart)) {
      if (!visit_(state_apart_at(memory_, events[i]))) return false;
    }
    return true;
  }

  // `count` numbers below `bound`: all of them if that many are wanted.
  std::vector<size_t> pick(size_t bound, size_t count) {
    std::vector<size_t> picked;
    if (bound <= count) {
      for (size_t i = 0; i < bound; ++i) picked.push_back(i);
    } else {
      for (size_t i = 0; i < count; ++i) picked.push_back(next_random(random_) % bound);
    }
    return picked;
  }

  bool visit_single() {
    for (const size_t i : pick(lines_.size(), limits_.lines_alone_max)) {
      know_in_full(i);
      // The complete state, and others spread over prefixes and torn ones.
      const size_t step =
          std::max<size_t>(lines_[i].size() / std::max<uint64_t>(limits_.options_alone_max, 1), 1);
      for (size_t option = 0; option < lines_[i].size(); option += step) {
        set_all(kDurable);
        choice_[i] = option;
        if (!emit()) return false;
        if (option == 0) continue;
        set_all(0);
        choice_[i] = option;
        if (!emit()) return false;
      }
      set_all(0);
      choice_[i] = kDurable;
      if (!emit()) return false;
    }
    return true;
  }

  bool visit_pairs() {
    const size_t count = lines_.size() * (lines_.size() - 1) / 2;
    for (const size_t pair : pick(count, limits_.pairs_max)) {
      size_t first = 0;
      size_t rest = pair;
      while (rest >= lines_.size() - 1 - first) rest -= lines_.size() - 1 - first++;
      const size_t second = first + 1 + rest;
      for (const bool present : {true, false}) {
        set_all(present ? kDurable : 0);
        choice_[first] = choice_[second] = present ? 0 : kDurable;
        if (!emit()) return false;
      }
    }
    return true;
  }

  bool visit_random() {
    for (uint64_t i = 0; i < limits_.random; ++i) {
      for (size_t line = 0; line < lines_.size(); ++line) {
        const uint64_t options = lines_[line].size() + 1;
        const uint64_t drawn = next_random(random_) % options;
        choice_[line] = drawn == 0 ? kDurable : drawn - 1;
      }
      if (!emit()) return false;
    }
    return true;
  }

  const PendingMemory& memory_;
  const StateLimits& limits_;
  uint64_t random_;
  const std::function<bool(const CrashState&)>& visit_;
  std::vector<const PendingLine*> sources_;
  std::vector<std::vector<LineOption>> lines_;  // the states of each, the complete one first
  std::vector<bool> in_full_;                   // else the complete one only
  bool cut_off_ = false;                        // a line may have more states than these
  LineOption stale_;
  bool with_stale_ = true;
  std::vector<size_t> choice_;
};

}  // namespace

bool for_each_state(const PendingMemory& memory, const StateLimits& limits,
                    const RecentFrom& recent_from, uint64_t seed,
                    const std::function<bool(const CrashState&)>& visit) {
  return Enumeration(memory, limits, recent_from, seed, visit).run();
}

CrashState state_apart_at(const PendingMemory& memory, uint32_t split) {
  CrashState state;
  state.hash = memory.durable_hash();
  for (const auto& [number, line] : memory.pending()) {
    if (line.stores.back().event < split) continue;
    const LineOption whole = memory.complete(line);
    state.words.insert(state.words.end(), whole.words.begin(), whole.words.end());
    state.hash ^= whole.hash_delta;
  }
  return state;
}

CrashState state_without(const PendingMemory& memory, const std::map<uint64_t, uint32_t>& lines,
                         uint64_t seed) {
  uint64_t random = seed;
  CrashState state;
  state.hash = memory.durable_hash();
  for (const auto& [number, line] : memory.pending()) {
    const auto held = lines.find(number);
    if (held == lines.end() && seed != 0 && next_random(random) % 2 == 0) continue;
    const LineOption option =
        held == lines.end() ? memory.complete(line) : memory.as_of(line, held->second);
    state.words.insert(state.words.end(), option.words.begin(), option.words.end());
    state.hash ^= option.hash_delta;
  }
  return state;
}

CrashState state_mixed(const PendingMemory& memory, uint64_t seed) {
  uint64_t random = seed;
  CrashState state;
  state.hash = memory.durable_hash();
  for (const auto& [number, line] : memory.pending()) {
    if (next_random(random) % 2 == 0) continue;
    const LineOption whole = memory.complete(line);
    state.words.insert(state.words.end(), whole.words.begin(), whole.words.end());
    state.hash ^= whole.hash_delta;
  }
  return state;
}

CrashState state_newest(const PendingMemory& memory) {
  const std::vector<uint32_t> events = last_stores(memory);
  return state_apart_at(memory, events.empty() ? 0 : events.front());
}

CrashState state_apart(const PendingMemory& memory, uint64_t seed) {
  uint64_t random = seed;
  const std::vector<uint32_t> events = last_stores(memory);
  if (events.empty()) return state_apart_at(memory, 0);
  const uint64_t kind = next_random(random) % 20;
  if (kind < 9) return state_apart_at(memory, events.front());
  if (kind < 14) return state_apart_at(memory, events[next_random(random) % events.size()]);
  const bool all_but_one = kind < 17;
  const uint64_t left_out = next_random(random) % events.size();
  CrashState state;
  state.hash = memory.durable_hash();
  uint64_t i = 0;
  for (const auto& [number, line] : memory.pending()) {
    LineOption option = memory.complete(line);
    if (all_but_one && i++ == left_out) continue;
    if (!all_but_one) {
      auto options = memory.options(line, 16);
      const uint64_t drawn = next_random(random) % (options.size() + 1);
      if (drawn == options.size()) continue;
      option = std::move(options[drawn]);
    }
    state.words.insert(state.words.end(), option.words.begin(), option.words.end());
    state.hash ^= option.hash_delta;
  }
  return state;
}

}  // namespace perdure::lab::crash
