#include "lab/amp/trial.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "common/ticks.h"
#include "lab/bench/client.h"
#include "lab/seam/model_sink.h"
#include "lab/seam/own_thread.h"
#include "lab/seam/runtime.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

// How often a run looks at the clock, in operations, and tells how far it is, in seconds.
constexpr uint64_t kChunk = 4096;
constexpr double kTellSeconds = 0.1;

// Lines from the child: what it is, a space, and the rest.
constexpr char kProgressLine = 'P';  // items and total
constexpr char kLoadLine = 'L';      // an AmpPhase
constexpr char kRunLine = 'R';
constexpr char kErrorLine = 'E';  // code and message

// What the child does.
class Child {
 public:
  Child(const AmpOptions& options, const std::string& structure, const AmpWorkload* workload,
        const std::string& folder, int pipe)
      : options_(options),
        structure_(structure),
        workload_(workload),
        path_(folder + "/pool"),
        pipe_(pipe) {}

  void run();

 private:
  OptionMap structure_options() const;
  uint64_t payload_bytes(OperationType type) const;
  void phase(const OperationPlan& plan, char line);
  void tell_progress(uint64_t done, uint64_t of);
  void tell(char kind, std::string_view text) const;

  const AmpOptions& options_;
  const std::string& structure_;
  const AmpWorkload* workload_;
  std::string path_;
  int pipe_;
  std::optional<Pool> pool_;
  std::unique_ptr<AnyIndex> index_;
  std::unique_ptr<ModelSink> sink_;
  double told_s_ = 0;
};

void Child::run() {
  const OperationPlan load(Mix::parse("insert"), 0, options_.records, options_.seed,
                           KeyOrder::kMixed);
  sink_ = std::make_unique<ModelSink>(options_.profile);
  install(sink_.get());
  PoolOptions pool_options;
  pool_options.capacity_bytes = options_.capacity_bytes;
  pool_options.force_domain = true;
  pool_options.domain = parse_domain(options_.profile.domain);
  pool_.emplace(Pool::create(path_, pool_options));
  index_ = create_index(*pool_, "amp", structure_, options_.key_kind, options_.value_kind,
                        structure_options());
  phase(load, kLoadLine);
  if (workload_ == nullptr) return;
  // Made only now: what it allocates and frees decides what the structure is given from then on,
  // and a load must count the same whatever is run after it.
  const uint64_t operations = options_.operations == 0 ? options_.records : options_.operations;
  const OperationPlan run(workload_->mix, options_.records, operations, options_.seed,
                          KeyOrder::kMixed);
  phase(run, kRunLine);
}

// Those asked for; and one thread for what making a structure does with several, whose turns no run
// repeats.
OptionMap Child::structure_options() const {
  OptionMap chosen = options_.structure_options;
  for (const OptionInfo& option : catalog_entry(structure_).options) {
    if (option.name == "recovery_threads") chosen.try_emplace(option.name, "1");
  }
  return chosen;
}

uint64_t Child::payload_bytes(OperationType type) const {
  const uint64_t key = options_.key_kind == Kind::kU64 ? 8 : options_.key_bytes;
  const uint64_t value = options_.value_kind == Kind::kU64 ? 8 : options_.value_bytes;
  if (type == OperationType::kLookup) return 0;
  return type == OperationType::kRemove ? key : key + value;
}

void Child::phase(const OperationPlan& plan, char line) {
  std::array<uint64_t, kOperationTypes> types{};
  std::array<uint64_t, kOperationTypes> payload{};
  for (size_t i = 0; i < kOperationTypes; ++i) {
    const auto type = static_cast<OperationType>(i);
    if (plan.count_of(type) == 0) continue;
    types[i] = operation_type(to_string(type));
    payload[i] = payload_bytes(type);
  }
  // What came before reaches the media now, and is not counted.
  sink_->model().drain();
  sink_->model().reset_counters();
  BenchClient client(*index_, plan,
                     {.key_bytes = options_.key_bytes, .value_bytes = options_.value_bytes});
  const double began_s = steady_seconds();
  uint64_t failed = 0;
  for (uint64_t place = 0; place < plan.operations(); ++place) {
    if (place % kChunk == 0) tell_progress(place, plan.operations());
    const Operation operation = plan.at(place);
    const uint64_t word = plan.key_of(operation.record);
    const BenchClient::Prepared prepared = client.prepare(operation, word);
    const auto type = static_cast<size_t>(operation.type);
    begin_operation(types[type], payload[type]);
    const bool succeeded = client.carry_out(prepared, word);
    end_operation();
    failed += succeeded ? 0 : 1;
  }
  const double ended_s = steady_seconds();
  sink_->model().drain();
  const Quiet quiet;
  const json object = {{"report", sink_->report()},
                       {"operations", plan.operations()},
                       {"failed", failed},
                       {"pool_bytes", pool_->info().size_bytes},
                       {"seconds", ended_s - began_s}};
  tell(line, object.dump());
}

// Allocates nothing: when it is called hangs on the clock, and what the structure is given by the
// allocator must not.
void Child::tell_progress(uint64_t done, uint64_t of) {
  const Quiet quiet;
  const double now_s = steady_seconds();
  if (done != 0 && now_s - told_s_ < kTellSeconds) return;
  told_s_ = now_s;
  std::array<char, 64> text{};
  const int length =
      std::snprintf(text.data(), text.size(), "%c %llu %llu\n", kProgressLine,
                    static_cast<unsigned long long>(done), static_cast<unsigned long long>(of));
  if (write(pipe_, text.data(), static_cast<size_t>(length)) < 0) _exit(1);
}

void Child::tell(char kind, std::string_view text) const {
  std::string line = fmt::format("{} {}\n", kind, text);
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = write(pipe_, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR) _exit(1);
    if (written > 0) done += static_cast<size_t>(written);
  }
}

[[noreturn]] void be_child(Child& child, int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  const auto tell_error = [pipe](ErrorCode code, const char* message) {
    dprintf(pipe, "%c %d %s\n", kErrorLine, static_cast<int>(code), message);
  };
  try {
    run_in_own_thread([&child] { child.run(); });
  } catch (const Error& error) {
    tell_error(error.code(), error.what());
  } catch (const std::exception& error) {
    tell_error(ErrorCode::kIo, error.what());
  }
  // The pool is thrown away: nothing need be closed.
  _exit(0);
}

AmpPhase parse_phase(std::string_view text) {
  json object = json::parse(text);
  return {.report = std::move(object.at("report")),
          .operations = object.at("operations"),
          .failed = object.at("failed"),
          .pool_bytes = object.at("pool_bytes"),
          .seconds = object.at("seconds")};
}

// What the parent makes of the child's lines.
class Reader {
 public:
  Reader(std::string name, const ProgressSink& progress)
      : name_(std::move(name)), progress_(progress) {}

  // Until the pipe ends; ends the child when `stop` is set.
  void read(int pipe, pid_t child, const std::atomic<bool>& stop);
  AmpTrial& trial() { return trial_; }

 private:
  void take(std::string_view line);

  std::string name_;
  const ProgressSink& progress_;
  AmpTrial trial_;
};

void Reader::read(int pipe, pid_t child, const std::atomic<bool>& stop) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(pipe, "r"), std::fclose);
  char* line = nullptr;
  size_t room = 0;
  const std::unique_ptr<char*, void (*)(char**)> owner(&line,
                                                       [](char** text) { std::free(*text); });
  for (;;) {
    const ssize_t length = getline(&line, &room, file.get());
    if (stop) kill(child, SIGKILL);
    if (length > 0) take(std::string_view(line, static_cast<size_t>(length)));
    if (length < 0 && errno == EINTR && !std::feof(file.get())) {
      std::clearerr(file.get());
      continue;
    }
    if (length < 0) return;
  }
}

void Reader::take(std::string_view line) {
  const char kind = line.front();
  const std::string_view text = line.substr(2, line.size() - 3);
  switch (kind) {
    case kProgressLine: {
      uint64_t done = 0;
      uint64_t of = 1;
      const auto first = std::from_chars(text.data(), text.data() + text.size(), done);
      std::from_chars(first.ptr + 1, text.data() + text.size(), of);
      const std::string phase = name_ + (trial_.load ? " run" : " load");
      if (progress_) {
        progress_({phase, done, static_cast<double>(done) / static_cast<double>(of)});
      }
      return;
    }
    case kLoadLine:
      trial_.load = parse_phase(text);
      return;
    case kRunLine:
      trial_.run = parse_phase(text);
      return;
    default: {
      int code = 0;
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), code);
      throw Error(static_cast<ErrorCode>(code), fmt::format("{}: {}", name_, parsed.ptr + 1));
    }
  }
}

}  // namespace

AmpTrial run_amp_trial(const AmpOptions& options, const std::string& structure,
                       const AmpWorkload* workload, const std::string& folder,
                       const ProgressSink& progress, const std::atomic<bool>& stop) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  const std::string name = workload == nullptr ? structure : structure + " " + workload->name;
  const pid_t pid = fork();
  if (pid < 0) throw Error(ErrorCode::kIo, fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid == 0) {
    close(ends[0]);
    Child child(options, structure, workload, folder, ends[1]);
    be_child(child, ends[1]);
  }
  close(ends[1]);
  Reader reader(name, progress);
  const auto wait = [pid] {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
  };
  try {
    reader.read(ends[0], pid, stop);
  } catch (...) {
    wait();
    throw;
  }
  const int status = wait();
  if (WIFSIGNALED(status) && !stop) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: the run ended by signal {} ({})", name,
                                                 WTERMSIG(status), strsignal(WTERMSIG(status))));
  }
  return std::move(reader.trial());
}

}  // namespace perdure::lab
