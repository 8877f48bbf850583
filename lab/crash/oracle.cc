#include "lab/crash/oracle.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "lab/crash/pending.h"

namespace perdure::lab::crash {
namespace {

// Combinations beyond this are not told apart; one key in flight for each thread stays far below.
constexpr size_t kDigestsMax = 4096;

bool agrees(const Answer& would, const Answer& did) {
  return would.yes == did.yes && would.value == did.value;
}

std::string in_words(const Oracle::Held& held) {
  return held ? fmt::format("value {}", *held) : "nothing";
}

}  // namespace

// Carries out an operation on one key.
Answer Oracle::apply(const Step& step, Config& config) {
  Held& held = config.held;
  const bool present = held.has_value();
  const bool writes =
      step.verb == Verb::kUpsert ||
      (step.verb == Verb::kInsert ? !present : step.verb != Verb::kLookup && present);
  if (step.verb == Verb::kBulk) {
    config.behind.insert(held);
  } else if (writes) {
    config.behind.clear();
  }
  Answer answer;
  switch (step.verb) {
    case Verb::kInsert:
      answer.yes = !present;
      if (!present) held = step.value;
      break;
    case Verb::kUpdate:
      answer.yes = present;
      if (present) held = step.value;
      break;
    case Verb::kUpsert:
    case Verb::kBulk:
      held = step.value;
      break;
    case Verb::kRemove:
      answer.yes = present;
      held.reset();
      break;
    case Verb::kLookup:
      answer.yes = present;
      answer.value = present ? *held : 0;
      break;
    case Verb::kCheckpoint:
      break;
  }
  return answer;
}

const char* to_string(Verb verb) {
  static constexpr const char* kNames[] = {"insert", "update", "upsert",    "remove",
                                           "lookup", "bulk",   "checkpoint"};
  return kNames[static_cast<size_t>(verb)];
}

uint64_t record_digest(uint32_t key, uint32_t value) { return word_hash(key + 1U, value + 1U); }

void Oracle::begin(uint32_t thread, const Step& step, uint32_t after) {
  ++now_;
  if (step.verb == Verb::kCheckpoint) {
    checkpoints_[thread] = now_;
    return;
  }
  auto [found, fresh] = keys_.try_emplace(step.key);
  Key& key = found->second;
  if (fresh) {
    if (const auto settled = settled_.find(step.key); settled != settled_.end()) {
      key.configs[0].held = settled->second;
      settled_digest_ ^= record_digest(step.key, settled->second);
      settled_.erase(settled);
    }
  }
  if (step.verb == Verb::kBulk) key.last_bulk = now_;
  key.pending.push_back({thread, step, after});
  key_of_thread_[thread] = step.key;
}

// All configurations that carrying out operations in flight leads to, with those it starts from.
std::vector<Oracle::Config> Oracle::closure(const Key& key) {
  std::vector<Config> all = key.configs;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const Pending& pending : key.pending) {
      if (all[i].done.contains(pending.thread)) continue;
      const bool waits = std::ranges::any_of(key.pending, [&](const Pending& earlier) {
        return earlier.thread == pending.after && !all[i].done.contains(earlier.thread);
      });
      if (waits) continue;
      Config next = all[i];
      next.done[pending.thread] = apply(pending.step, next);
      const bool known = std::any_of(all.begin(), all.end(), [&](const Config& config) {
        return config.held == next.held && config.behind == next.behind &&
               std::equal(config.done.begin(), config.done.end(), next.done.begin(),
                          next.done.end(), [](const auto& a, const auto& b) {
                            return a.first == b.first && agrees(a.second, b.second);
                          });
      });
      if (!known) all.push_back(std::move(next));
    }
  }
  return all;
}

void Oracle::found_unsettled(uint32_t key, const Held& held, const std::set<Held>& others) {
  Key& fresh = keys_[key];
  fresh.configs.front().held = held;
  fresh.configs.front().behind = others;
  fresh.configs.front().behind.erase(held);
  fresh.last_bulk = ~uint64_t{0};  // no checkpoint flushes what others left in the caches
  settle(key, fresh);
}

// What had returned before it began is durable, and nothing else can be told.
void Oracle::end_checkpoint(uint64_t begun) {
  for (auto next = keys_.begin(); next != keys_.end();) {
    auto& [number, key] = *next++;  // settling may erase it
    if (key.last_bulk > begun) continue;
    for (Config& config : key.configs) config.behind.clear();
    settle(number, key);
  }
}

void Oracle::end(uint32_t thread, const Answer& answer) {
  ++now_;
  if (const auto checkpoint = checkpoints_.find(thread); checkpoint != checkpoints_.end()) {
    if (!answer.full) end_checkpoint(checkpoint->second);
    checkpoints_.erase(checkpoint);
    return;
  }
  const uint32_t number = key_of_thread_.at(thread);
  Key& key = keys_.at(number);
  const auto pending = std::find_if(key.pending.begin(), key.pending.end(),
                                    [&](const Pending& p) { return p.thread == thread; });
  if (!answer.full) {
    std::vector<Config> explained;
    for (Config& config : closure(key)) {
      const auto done = config.done.find(thread);
      if (done == config.done.end() || !agrees(done->second, answer)) continue;
      config.done.erase(done);
      explained.push_back(std::move(config));
    }
    if (explained.empty() && contradiction_.empty()) {
      contradiction_ = fmt::format(
          "{}({}) answered {}{}, which no order of the operations explains",
          to_string(pending->step.verb), number, answer.yes ? "yes" : "no",
          pending->step.verb == Verb::kLookup ? fmt::format(" ({})", answer.value) : "");
    }
    if (!explained.empty()) key.configs = std::move(explained);
  } else {
    // It did nothing: explanations in which it did something, for another's answer, are none.
    std::erase_if(key.configs,
                  [thread](const Config& config) { return config.done.contains(thread); });
    if (key.configs.empty()) {
      key.configs.emplace_back();
      if (contradiction_.empty()) {
        contradiction_ =
            fmt::format("{}({}) found no room, and yet another operation saw its effect",
                        to_string(pending->step.verb), number);
      }
    }
  }
  for (Config& config : key.configs) config.done.erase(thread);
  if (pending->step.verb == Verb::kBulk) key.last_bulk = now_;
  key.pending.erase(pending);
  settle(number, key);
}

void Oracle::settle(uint32_t number, Key& key) {
  if (!key.pending.empty()) return;
  for (const Config& config : key.configs) {
    if (config.held != key.configs.front().held || !config.behind.empty()) return;
  }
  if (const Held held = key.configs.front().held) {
    settled_[number] = *held;
    settled_digest_ ^= record_digest(number, *held);
  }
  keys_.erase(number);
}

std::set<Oracle::Held> Oracle::finals(const Key& key) {
  std::set<Held> values;
  for (const Config& config : closure(key)) {
    values.insert(config.held);
    values.insert(config.behind.begin(), config.behind.end());
  }
  return values;
}

std::map<uint32_t, std::set<Oracle::Held>> Oracle::allowed() const {
  std::map<uint32_t, std::set<Held>> all;
  for (const auto& [number, value] : settled_) all[number] = {value};
  for (const auto& [number, key] : keys_) all[number] = finals(key);
  return all;
}

std::map<uint32_t, std::set<Oracle::Held>> Oracle::unsettled() const {
  std::map<uint32_t, std::set<Held>> all;
  for (const auto& [number, key] : keys_) {
    auto values = finals(key);
    if (values.size() > 1) all.emplace(number, std::move(values));
  }
  return all;
}

std::vector<uint64_t> Oracle::digests() const {
  std::vector<uint64_t> all = {settled_digest_};
  for (const auto& [number, key] : keys_) {
    std::vector<uint64_t> next;
    for (const Held& held : finals(key)) {
      const uint64_t part = held ? record_digest(number, *held) : 0;
      for (const uint64_t digest : all) {
        if (next.size() < kDigestsMax) next.push_back(digest ^ part);
      }
    }
    all = std::move(next);
  }
  return all;
}

std::string Oracle::difference(const std::map<uint32_t, uint32_t>& contents, size_t max) const {
  const auto may = allowed();
  std::string text;
  size_t count = 0;
  const auto tell = [&](uint32_t key, const Held& is, const std::set<Held>& expected) {
    if (++count > max) return;
    if (!text.empty()) text += "; ";
    text += fmt::format("key {} holds {}, and must hold ", key, in_words(is));
    bool first = true;
    for (const Held& held : expected) {
      text += (first ? "" : " or ") + in_words(held);
      first = false;
    }
  };
  for (const auto& [key, expected] : may) {
    const auto is = contents.find(key);
    const Held held = is == contents.end() ? Held() : Held(is->second);
    if (!expected.contains(held)) tell(key, held, expected);
  }
  for (const auto& [key, value] : contents) {
    if (!may.contains(key)) tell(key, value, {Held()});
  }
  if (count > max) text += fmt::format("; and {} more differences", count - max);
  return text;
}

}  // namespace perdure::lab::crash
