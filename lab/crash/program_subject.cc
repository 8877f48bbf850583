#include "lab/crash/program_subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lab/crash/mapping.h"
#include "lab/crash/recorder.h"
#include "lab/seam/runtime.h"
#include "perdure/error.h"
#include "perdure/lab.h"

namespace perdure::lab::crash {
namespace {

uint64_t digest_of(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

// Records what is done to one region while it lives.
class ProgramRecording {
 public:
  ProgramRecording(const Mapping& memory, const std::string& name, Run& run)
      : memory_(memory), run_(run) {
    run_.operations.assign(1, {""});
    install(&recorder_);
    perdure_lab_region(memory_.base(), memory_.bytes(), name.c_str());
  }
  ~ProgramRecording() {
    install(nullptr);
    perdure_lab_region_end(memory_.base());
  }
  ProgramRecording(const ProgramRecording&) = delete;
  ProgramRecording& operator=(const ProgramRecording&) = delete;

  uint32_t position() const { return recorder_.position(); }

  void operate(Program& program, uint32_t number) {
    std::string text;
    uint64_t type = 0;
    {
      const Quiet quiet;
      text = program.operation_text(number);
      type = operation_type(text.substr(0, text.find('(')).c_str());
      run_.operations[0].push_back(text);
    }
    begin_operation(type, 0);
    program.operate(memory_.base(), number);
    end_operation();
  }

  void finish() {
    install(nullptr);
    run_.trace = recorder_.finish();
  }

 private:
  const Mapping& memory_;
  Run& run_;
  Recorder recorder_;
};

}  // namespace

std::string Program::operation_text(uint32_t number) const {
  return fmt::format("operation({})", number);
}

ProgramSubject::ProgramSubject(std::string name, ProgramFactory factory, Domain domain)
    : name_(std::move(name)), factory_(std::move(factory)), domain_(domain) {}

uint32_t ProgramSubject::operation_count() const { return factory_()->operation_count(); }

Run ProgramSubject::record(const std::vector<uint32_t>& only) {
  const auto program = factory_();
  const Mapping memory(program->region_bytes());
  program->create(memory.base());
  Run run;
  ProgramRecording recording(memory, name_, run);
  for (uint32_t i = 0; i < program->operation_count(); ++i) {
    if (!only.empty() && std::find(only.begin(), only.end(), i) == only.end()) continue;
    recording.operate(*program, i);
  }
  recording.finish();
  return run;
}

Observation ProgramSubject::observe(const std::string& path, bool with_contents) {
  const auto program = factory_();
  const Mapping memory(path);
  const std::string text = program->recover(memory.base());
  for (uint32_t i = 0; i < program->further_count(); ++i) {
    const uint32_t number = program->operation_count() + i;
    try {
      program->operate(memory.base(), number);
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kCorrupt, fmt::format("after recovery {} fails: {}",
                                                   program->operation_text(number), error.what()));
    }
  }
  return {.digest = digest_of(text), .problem = {}, .contents = with_contents ? text : ""};
}

Run ProgramSubject::record_recovery(const std::string& path, const Work& work) {
  const auto program = factory_();
  const Mapping memory(path);
  Run run;
  ProgramRecording recording(memory, name_, run);
  // Of the memory as it is: recovered in a copy, as if the program had stopped here.
  const auto output_now = [&] {
    const Quiet quiet;
    const Mapping copy(memory.bytes());
    std::memcpy(copy.base(), memory.base(), memory.bytes());
    return factory_()->recover(copy.base());
  };
  std::vector<std::pair<uint32_t, std::string>> outputs;  // from these events on
  const auto expect = [&](uint32_t event, const std::string& before, const std::string& after) {
    const Quiet quiet;
    run.expectations.push_back({event, {digest_of(before), digest_of(after)}});
    outputs.emplace_back(event, before == after ? before : before + "\" or \"" + after);
  };
  // However often recovery is interrupted, it ends where it would have ended at once.
  std::string before = program->recover(memory.base());
  expect(0, before, before);
  run.recovered_at = recording.position();
  const uint32_t further = program->operation_count();
  const uint32_t works = further + program->further_count();
  std::vector<uint32_t> numbers(program->further_count() + program->work_count());
  std::iota(numbers.begin(), numbers.end(), further);
  for (uint32_t& number : numbers) {
    if (number >= works) number += (work.crashes - 1) * program->work_count();
  }
  for (const uint32_t number : numbers) {
    const uint32_t begin = recording.position();
    recording.operate(*program, number);
    const std::string after = output_now();
    expect(begin, before, after);
    expect(recording.position() - 1, after, after);
    before = after;
  }
  recording.finish();
  run.explain = [outputs](uint32_t event, const std::string& contents) {
    auto last = outputs.rbegin();
    while (last->first >= event && std::next(last) != outputs.rend()) ++last;
    return fmt::format("recovery gives \"{}\", and must give \"{}\"", contents, last->second);
  };
  return run;
}

}  // namespace perdure::lab::crash
