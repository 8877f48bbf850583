// Instruments for programs that are not ours: what the environment asks for is installed before
// main, and what it found is written when the program ends.
//
//   PERDURE_LAB=amp           count on the memory model
//   PERDURE_LAB_PROFILE       name or file of its profile (default: optane-100)
//   PERDURE_LAB_RECORDS       scale the modelled cache for so many records (default: do not)
//   PERDURE_LAB_OUTPUT        the file that the report is written to, as JSON
//
//   PERDURE_LAB=crash         record the first region of persistent memory, for the crash explorer
//   PERDURE_LAB_TRACE         the file that the trace is written to
//
// And the C interface to the counters.
#include "lab/seam/startup.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "lab/crash/recorder.h"
#include "lab/seam/dispatch.h"
#include "lab/seam/model_sink.h"
#include "lab/seam/runtime.h"
#include "perdure/lab.h"

namespace perdure::lab {
namespace {

constexpr int kFailure = 4;

// Never destroyed: the program's own destructors may run after ours.
ModelSink* started = nullptr;
crash::Recorder* recording = nullptr;
pid_t started_in = 0;

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != 0 ? text : nullptr;
}

void start_model() {
  const char* name = variable("PERDURE_LAB_PROFILE");
  Profile profile = load_profile(name != nullptr ? name : "optane-100");
  if (const char* records = variable("PERDURE_LAB_RECORDS")) {
    scale_cache(profile, std::strtoull(records, nullptr, 10));
  }
  started = new ModelSink(profile);
  install(started);
}

__attribute__((constructor)) void start() {
  const char* instrument = variable("PERDURE_LAB");
  if (instrument == nullptr) return;
  const Quiet quiet;
  started_in = getpid();
  try {
    if (std::strcmp(instrument, "amp") == 0) start_model();
    if (std::strcmp(instrument, "crash") == 0) start_recording();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perdure: PERDURE_LAB=%s: %s\n", instrument, error.what());
    _exit(kFailure);
  }
}

bool write_report(const char* path, const std::string& text) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

void finish_model() {
  const char* path = variable("PERDURE_LAB_OUTPUT");
  if (path == nullptr) return;
  started->model().drain();
  if (write_report(path, started->report().dump())) return;
  std::fprintf(stderr, "perdure: PERDURE_LAB_OUTPUT: cannot write %s\n", path);
}

void finish_recorder() {
  const char* path = variable("PERDURE_LAB_TRACE");
  if (path == nullptr) return;
  recording->finish().save(path);
}

__attribute__((destructor)) void finish() { finish_instruments(); }

ModelSink* running_model() { return dynamic_cast<ModelSink*>(seam::installed_sink.load()); }

// The sum over all types, of one type, or none if there is no such type.
const Counters* find_counters(const MemoryModel& model, const char* type, Counters& total) {
  if (type == nullptr || *type == 0) {
    total = model.total();
    return &total;
  }
  for (uint16_t number = 0; number < MemoryModel::kOperations; ++number) {
    const bool is_named = number == 0 || operation_name(number) != operation_name(0);
    if (is_named && operation_name(number) == type) return &model.counters(number);
  }
  return nullptr;
}

}  // namespace

void start_recording() {
  const Quiet quiet;
  started_in = getpid();
  recording = new crash::Recorder;
  install(recording);
  for (const Region& region : regions()) {
    recording->on_region(reinterpret_cast<void*>(region.base), region.bytes, region.name.c_str());
  }
}

void finish_instruments() {
  // A child that the program forked counts on a copy of its own.
  if ((started == nullptr && recording == nullptr) || getpid() != started_in) return;
  started_in = 0;
  const Quiet quiet;
  install(nullptr);
  try {
    if (started != nullptr) finish_model();
    if (recording != nullptr) finish_recorder();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perdure: PERDURE_LAB: %s\n", error.what());
  }
}
}  // namespace perdure::lab

extern "C" {

int perdure_lab_counter(const char* type, const char* counter, double* value) {
  using namespace perdure::lab;
  const Quiet quiet;
  ModelSink* sink = running_model();
  if (sink == nullptr || counter == nullptr || value == nullptr) return -1;
  Counters total;
  const Counters* counters = find_counters(sink->model(), type, total);
  if (counters == nullptr) return -1;
  const nlohmann::json object = to_json(*counters);
  const auto found = object.find(counter);
  if (found == object.end()) return -1;
  *value = found->get<double>();
  return 0;
}

void perdure_lab_reset(void) {
  using namespace perdure::lab;
  const Quiet quiet;
  ModelSink* sink = running_model();
  if (sink == nullptr) return;
  // What has been written so far reaches the media uncounted, and is not charged to what follows.
  sink->model().drain();
  sink->model().reset_counters();
}

}  // extern "C"
