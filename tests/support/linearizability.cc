#include "support/linearizability.h"

#include <algorithm>
#include <bitset>
#include <sstream>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "support/random.h"

namespace perdure::test {

namespace {

using State = std::optional<uint64_t>;
using EventSet = std::bitset<kEventsMax>;

// Whether `event` can happen in `state` with its result; if so, `state` becomes the state after it.
bool step(const Event& event, State& state) {
  switch (event.call) {
    case Call::kInsert:
      if (event.result == state.has_value()) return false;
      if (event.result) state = event.value;
      return true;
    case Call::kUpdate:
      if (event.result != state.has_value()) return false;
      if (event.result) state = event.value;
      return true;
    case Call::kUpsert:
      state = event.value;
      return true;
    case Call::kRemove:
      if (event.result != state.has_value()) return false;
      state.reset();
      return true;
    case Call::kLookup:
      if (event.result != state.has_value()) return false;
      return !event.result || *state == event.value;
    case Call::kExchange:
      if (event.result != (state == event.expected)) return false;
      if (event.result) state = event.value;
      return true;
    case Call::kRemoveIf:
      if (event.result != (state == event.expected)) return false;
      if (event.result) state.reset();
      return true;
  }
  return false;
}

// Events are by time of invocation.
class Search {
 public:
  explicit Search(std::vector<Event> history) : history_(std::move(history)) {}

  // Whether the events that are not done can be explained from `state` on. The first of them is
  // not before `first`.
  bool explain_rest(uint64_t first, const EventSet& done, State state) {
    while (first < history_.size() && done[first]) ++first;
    if (first == history_.size()) return true;
    if (!tried_.insert({done, state}).second) return false;
    // The next event is one that began before the first return of all that are left; and those
    // that begin after a return need not be looked at to find the first.
    uint64_t first_return = ~uint64_t{0};
    uint64_t end = first;
    for (; end < history_.size() && history_[end].invoked < first_return; ++end) {
      if (!done[end]) first_return = std::min(first_return, history_[end].returned);
    }
    for (uint64_t i = first; i < end; ++i) {
      State next = state;
      if (done[i] || !step(history_[i], next)) continue;
      EventSet with_it = done;
      with_it.set(i);
      if (explain_rest(first, with_it, next)) return true;
    }
    return false;
  }

 private:
  struct Configuration {
    EventSet done;
    State state;
    bool operator==(const Configuration&) const = default;
  };
  struct Hash {
    size_t operator()(const Configuration& c) const {
      return std::hash<EventSet>()(c.done) ^ mix(c.state ? *c.state : ~uint64_t{0});
    }
  };

  std::vector<Event> history_;
  std::unordered_set<Configuration, Hash> tried_;
};

std::vector<Event> by_invocation(std::vector<Event> history) {
  std::sort(history.begin(), history.end(),
            [](const Event& a, const Event& b) { return a.invoked < b.invoked; });
  return history;
}

}  // namespace

bool linearizable(std::optional<uint64_t> initial, const std::vector<Event>& history) {
  if (history.size() > kEventsMax) throw std::length_error("too many events on one key");
  return Search(by_invocation(history)).explain_rest(0, {}, initial);
}

std::string describe(std::optional<uint64_t> initial, const std::vector<Event>& history) {
  static const char* const kNames[] = {"insert", "update",   "upsert",   "remove",
                                       "lookup", "exchange", "remove_if"};
  std::ostringstream text;
  text << "first " << (initial ? std::to_string(*initial) : "absent") << '\n';
  for (const Event& event : by_invocation(history)) {
    text << event.invoked << " to " << event.returned << ": "
         << kNames[static_cast<int>(event.call)];
    if (event.call >= Call::kExchange) text << ' ' << event.expected << " ->";
    if (event.call != Call::kRemove) text << ' ' << event.value;
    text << (event.result ? " true" : " false") << '\n';
  }
  return text.str();
}

}  // namespace perdure::test
