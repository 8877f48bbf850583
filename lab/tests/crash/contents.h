// What subjects have in common that keep names and contents in a pool, with a map as their model.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/crash/recorder.h"
#include "lab/crash/subject.h"
#include "lab/seam/runtime.h"
#include "perdure/error.h"
#include "perdure/pool.h"
#include "pm/checksum.h"

namespace perdure::lab::crash {

using Contents = std::map<std::string, std::string>;

inline std::string text_of(const Contents& contents) {
  std::string text;
  for (const auto& [name, content] : contents) {
    text += fmt::format("{} {} {:x}\n", name, content.size(),
                        pm::checksum64(content.data(), content.size()));
  }
  return text;
}

inline uint64_t digest_of(const Contents& contents) {
  const std::string text = text_of(contents);
  return pm::checksum64(text.data(), text.size());
}

// A pool of which every state is to be looked at.
inline PoolOptions explored_pool(uint64_t capacity_bytes) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = Domain::kLine;
  options.seal_on_close = false;
  return options;
}

[[noreturn]] inline void damaged(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, what);
}

// Names that a dead process was changing one by one: each holds any of these until it is changed
// again.
using OpenNames = std::map<std::string, std::set<std::optional<std::string>>>;

// Of all that a crash may bring.
inline std::vector<uint64_t> digests_of(const Contents& model, const OpenNames& open) {
  std::vector<Contents> all = {model};
  for (const auto& [name, values] : open) {
    std::vector<Contents> next;
    for (Contents& contents : all) {
      for (const auto& value : values) {
        contents.erase(name);
        if (value) contents[name] = *value;
        next.push_back(contents);
      }
    }
    all = std::move(next);
  }
  std::vector<uint64_t> digests;
  for (const Contents& contents : all) digests.push_back(digest_of(contents));
  return digests;
}

// Records operations of one thread on names, each with what is to be there after it.
class ModelRecording {
 public:
  ModelRecording() {
    run_.operations.assign(current_thread() + 1U, {""});
    install(&recorder_);
  }
  ~ModelRecording() { install(nullptr); }
  ModelRecording(const ModelRecording&) = delete;
  ModelRecording& operator=(const ModelRecording&) = delete;

  // What there was then, and what else a crash may bring of it after the death of a process.
  void begin(Contents model, const Work& work = {}) {
    model_ = std::move(model);
    for (const auto& [number, values] : work.unsettled) {
      for (const auto& value : values) {
        open_[words().at(number)].insert(value ? std::optional(words().at(*value)) : std::nullopt);
      }
    }
    note({0, open_, model_, model_}, digests_of(model_, open_));
  }
  void recovered() { run_.recovered_at = recorder_.position(); }
  void skip_to_here() { run_.skipped.emplace_back(0, recorder_.position()); }
  void skip_the_rest() {
    run_.skipped.emplace_back(recorder_.position(), recorder_.position() + 1'000'000);
  }

  const Contents& model() const { return model_; }
  // By name each change comes alone; else all of them together. `open_after`: what stays open when
  // it has returned. The action tells whether it was done at all.
  enum class Comes : uint8_t { kByName, kTogether };
  template <typename Action>
  void perform(const std::string& text, const Contents& next, OpenNames open_after, Comes comes,
               Action action) {
    run_.operations.back().push_back(text);
    std::vector<uint64_t> digests = digests_of(model_, open_);
    std::ranges::copy(digests_of(next, open_after), std::back_inserter(digests));
    OpenNames during = open_;
    if (comes == Comes::kByName) {
      for (const std::string& name : changed(next)) {
        during[name].insert({held(model_, name), held(next, name)});
      }
    }
    note({recorder_.position(), during, model_, next}, std::move(digests));
    begin_operation(operation_type(text.c_str()), 0);
    const bool done = action();
    end_operation();
    if (done) {
      model_ = next;
      open_ = std::move(open_after);
    }
    note({recorder_.position() - 1, open_, model_, model_}, digests_of(model_, open_));
  }
  // Without the names that are changed by what leads to `next`.
  OpenNames open_without_changes(const Contents& next) const {
    OpenNames open = open_;
    for (const std::string& name : changed(next)) open.erase(name);
    return open;
  }
  const OpenNames& open() const { return open_; }

  Run finish() {
    install(nullptr);
    run_.trace = recorder_.finish();
    run_.unsettled = [moments = moments_](uint32_t event) {
      Unsettled unsettled;
      for (const auto& [name, values] : at(moments, event).open) {
        for (const auto& value : values) {
          unsettled[number_of(name)].insert(value ? std::optional(number_of(*value))
                                                  : std::nullopt);
        }
      }
      return unsettled;
    };
    run_.explain = [moments = moments_](uint32_t event, const std::string& contents) {
      const Moment& moment = at(moments, event);
      const std::set<std::string> there = lines_of(contents);
      const std::set<std::string> before = lines_of(text_of(moment.before));
      const std::set<std::string> after = lines_of(text_of(moment.after));
      std::string wrong = "neither the state before nor after:";
      for (const std::string& line : there) {
        if (!before.contains(line) && !after.contains(line)) wrong += "\n  has " + line;
      }
      for (const std::string& line : before) {
        if (!there.contains(line)) wrong += "\n  has no " + line + " of before";
      }
      for (const std::string& line : after) {
        if (!there.contains(line)) wrong += "\n  has no " + line + " of after";
      }
      return wrong;
    };
    return std::move(run_);
  }

 private:
  // From an event on.
  struct Moment {
    uint32_t event;
    OpenNames open;
    Contents before;
    Contents after;  // the operation in flight
  };

  static const Moment& at(const std::vector<Moment>& moments, uint32_t event) {
    const Moment* last = &moments.front();
    for (const Moment& moment : moments) {
      if (moment.event < event) last = &moment;
    }
    return *last;
  }
  static std::set<std::string> lines_of(const std::string& text) {
    std::set<std::string> lines;
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      lines.insert(text.substr(begin, end - begin));
    }
    return lines;
  }

  // Names and values by number, for Work: whoever recovers is forked from who recorded.
  static std::vector<std::string>& words() {
    static std::vector<std::string> all;
    return all;
  }
  static uint32_t number_of(const std::string& word) {
    const auto found = std::ranges::find(words(), word);
    const auto number = static_cast<uint32_t>(found - words().begin());
    if (found == words().end()) words().push_back(word);
    return number;
  }
  static std::optional<std::string> held(const Contents& contents, const std::string& name) {
    const auto found = contents.find(name);
    return found == contents.end() ? std::nullopt : std::optional(found->second);
  }
  std::set<std::string> changed(const Contents& next) const {
    std::set<std::string> names;
    for (const Contents* contents : {&model_, &next}) {
      for (const auto& [name, value] : *contents) {
        if (held(model_, name) != held(next, name)) names.insert(name);
      }
    }
    return names;
  }
  void note(Moment moment, std::vector<uint64_t> digests) {
    run_.expectations.push_back({moment.event, std::move(digests)});
    moments_.push_back(std::move(moment));
  }

  Run run_;
  Recorder recorder_;
  Contents model_;
  OpenNames open_;
  std::vector<Moment> moments_;
};

// The i-th of the numbers that a seed names.
inline uint64_t drawn(uint64_t seed, uint64_t i) { return pm::checksum64(&i, sizeof i, seed); }

}  // namespace perdure::lab::crash
