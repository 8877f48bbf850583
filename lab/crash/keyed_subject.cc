#include "lab/crash/keyed_subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lab/crash/mapping.h"
#include "lab/crash/recorder.h"
#include "lab/seam/runtime.h"
#include "lab/seam/schedule.h"
#include "perdure/lab.h"

namespace perdure::lab::crash {
namespace {

using Contents = KeyedProgram::Contents;

std::string text_of(const Step& step) {
  if (step.verb == Verb::kRemove || step.verb == Verb::kLookup) {
    return fmt::format("{}({})", to_string(step.verb), step.key);
  }
  return fmt::format("{}({}, {})", to_string(step.verb), step.key, step.value);
}

std::string text_of(const Contents& contents) {
  std::string text;
  for (const auto& [key, value] : contents) text += fmt::format("{} {}\n", key, value);
  return text;
}

Contents parsed(const std::string& text) {
  Contents contents;
  for (const char* at = text.c_str(); *at != 0; ++at) {
    char* end = nullptr;
    const auto key = static_cast<uint32_t>(std::strtoul(at, &end, 10));
    contents[key] = static_cast<uint32_t>(std::strtoul(end, &end, 10));
    at = end;
  }
  return contents;
}

// What happened to the oracle, so that it can be brought to any moment again.
struct Moment {
  uint32_t event;
  uint16_t thread;
  bool begins;
  Step step;
  Answer answer;
  std::set<Oracle::Held> others;  // found: what a crash may bring instead
};

Oracle oracle_at(const std::vector<Moment>& moments, uint32_t event) {
  Oracle oracle;
  for (const Moment& moment : moments) {
    if (moment.event >= event) break;
    if (!moment.others.empty()) {
      const auto held = moment.step.verb == Verb::kRemove ? Oracle::Held() : moment.step.value;
      oracle.found_unsettled(moment.step.key, held, moment.others);
    } else if (moment.begins) {
      oracle.begin(moment.thread, moment.step);
    } else {
      oracle.end(moment.thread, moment.answer);
    }
  }
  return oracle;
}

// Records operations of several threads, of which one runs at a time.
class KeyedRecording {
 public:
  KeyedRecording(KeyedProgram& program, const Mapping& memory, const std::string& name, Run& run)
      : program_(program), memory_(memory), run_(run) {
    run_.expectations.push_back({0, oracle_.digests()});
    install(&recorder_);
    perdure_lab_region(memory_.base(), memory_.bytes(), name.c_str());
  }
  ~KeyedRecording() {
    install(nullptr);
    perdure_lab_region_end(memory_.base());
  }
  KeyedRecording(const KeyedRecording&) = delete;
  KeyedRecording& operator=(const KeyedRecording&) = delete;

  uint32_t position() const { return recorder_.position(); }

  // A record that was there when the recording began.
  void found(const Step& step) {
    oracle_.begin(current_thread(), step);
    oracle_.end(current_thread(), {});
    moments_.push_back({0, current_thread(), true, step, {}, {}});
    moments_.push_back({0, current_thread(), false, step, {}, {}});
    run_.expectations.front() = {0, oracle_.digests()};
  }
  void found_unsettled(uint32_t key, const Oracle::Held& held,
                       const std::set<Oracle::Held>& values) {
    oracle_.found_unsettled(key, held, values);
    const Verb verb = held ? Verb::kUpsert : Verb::kRemove;
    moments_.push_back({0, 0, true, {verb, key, held.value_or(0)}, {}, values});
    run_.expectations.front() = {0, oracle_.digests()};
  }

  void operate(const Step& step) {
    const uint16_t thread = current_thread();
    if (run_.operations.size() <= thread) run_.operations.resize(thread + 1U, {""});
    run_.operations[thread].push_back(text_of(step));
    oracle_.begin(thread, step);
    note({recorder_.position(), thread, true, step, {}, {}});
    begin_operation(operation_type(to_string(step.verb)), 0);
    const Answer answer = program_.perform(memory_.base(), step);
    end_operation();
    oracle_.end(thread, answer);
    note({recorder_.position() - 1, thread, false, step, answer, {}});
    if (run_.problem.empty()) run_.problem = oracle_.contradiction();
  }

  void finish() {
    install(nullptr);
    run_.trace = recorder_.finish();
    run_.explain = [moments = moments_](uint32_t event, const std::string& contents) {
      return oracle_at(moments, event).difference(parsed(contents), 4);
    };
    run_.unsettled = [moments = moments_](uint32_t event) {
      return oracle_at(moments, event).unsettled();
    };
  }

 private:
  void note(const Moment& moment) {
    run_.expectations.push_back({moment.event, oracle_.digests()});
    moments_.push_back(moment);
  }

  KeyedProgram& program_;
  const Mapping& memory_;
  Run& run_;
  Recorder recorder_;
  Oracle oracle_;
  std::vector<Moment> moments_;
};

}  // namespace

KeyedSubject::KeyedSubject(std::string name, KeyedProgramFactory factory, uint64_t schedule,
                           Domain domain)
    : name_(std::move(name)), factory_(std::move(factory)), schedule_(schedule), domain_(domain) {}

uint32_t KeyedSubject::operation_count() const {
  uint32_t count = 0;
  for (const auto& own : factory_()->steps()) count += static_cast<uint32_t>(own.size());
  return count;
}

// Operations are numbered thread by thread.
Run KeyedSubject::record(const std::vector<uint32_t>& only) {
  const auto program = factory_();
  const Mapping memory(program->region_bytes());
  program->create(memory.base());
  Run run;
  KeyedRecording recording(*program, memory, name_, run);
  std::vector<std::function<void()>> threads;
  uint32_t number = 0;
  for (const auto& own : program->steps()) {
    std::vector<Step> steps;
    for (const Step& step : own) {
      const bool wanted = only.empty() || std::find(only.begin(), only.end(), number) != only.end();
      if (wanted) steps.push_back(step);
      ++number;
    }
    threads.emplace_back([&recording, steps] {
      for (const Step& step : steps) {
        Schedule::make_way();
        recording.operate(step);
      }
    });
  }
  Schedule(schedule_, 2).run(threads);
  recording.finish();
  return run;
}

Run KeyedSubject::record_recovery(const std::string& path, const Work& work) {
  const auto program = factory_();
  const std::vector<Step> steps = program->work_steps(work.crashes);
  Run run;
  if (steps.empty()) return run;
  const Mapping memory(path);
  KeyedRecording recording(*program, memory, name_, run);
  const Contents contents = program->recover(memory.base());
  note_found(recording, contents, work.unsettled);
  run.recovered_at = recording.position();
  for (const Step& step : steps) recording.operate(step);
  recording.finish();
  return run;
}

Observation KeyedSubject::observe(const std::string& path, bool with_contents) {
  const Mapping memory(path);
  const Contents contents = factory_()->recover(memory.base());
  Observation seen;
  for (const auto& [key, value] : contents) seen.digest ^= record_digest(key, value);
  if (with_contents) seen.contents = text_of(contents);
  return seen;
}

}  // namespace perdure::lab::crash
