#include "lab/crash/external_subject.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "lab/crash/mapping.h"
#include "perdure/error.h"
#include "pm/checksum.h"

namespace perdure::lab::crash {
namespace {

constexpr char kHole[] = "{}";
constexpr uint64_t kChunkBytes = 64 * kImagePageBytes;

class File {
 public:
  File(const std::string& path, int flags) : path_(path), file_(open(path.c_str(), flags, 0600)) {
    if (file_ < 0) throw_system_error(path);
  }
  ~File() { close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const {
    struct stat status{};
    if (fstat(file_, &status) != 0) throw_system_error(path_);
    return static_cast<uint64_t>(status.st_size);
  }
  // Without the C library: the runtime lets files of worker processes keep their size.
  void resize(uint64_t bytes) const {
    if (syscall(SYS_ftruncate, file_, bytes) != 0) throw_system_error(path_);
  }
  // Where data begin at or behind `offset`, or `end`.
  uint64_t next_data(uint64_t offset, uint64_t end) const {
    const off_t found = lseek(file_, static_cast<off_t>(offset), SEEK_DATA);
    if (found >= 0) return std::min(static_cast<uint64_t>(found), end);
    return errno == ENXIO ? end : offset;  // file systems that cannot tell
  }
  void read(void* to, uint64_t bytes, uint64_t offset) const {
    if (pread(file_, to, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes)) {
      throw_system_error(path_);
    }
  }
  void write(const void* from, uint64_t bytes, uint64_t offset) const {
    if (pwrite(file_, from, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes)) {
      throw_system_error(path_);
    }
  }

 private:
  std::string path_;
  int file_;
};

std::vector<std::string> filled(std::vector<std::string> words, const std::string& path) {
  for (std::string& word : words) {
    for (size_t at = 0; (at = word.find(kHole, at)) != std::string::npos; at += path.size()) {
      word.replace(at, 2, path);
    }
  }
  return words;
}

bool has_hole(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return word.find(kHole) != std::string::npos; });
}

uint64_t digest_of(const CommandResult& result) {
  uint64_t digest = 0xcbf29ce484222325 ^ static_cast<uint64_t>(result.status);
  for (const char c : result.output) {
    digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return digest;
}

// How a command failed, in words; empty if it did not.
std::string failure_of(const CommandResult& result) {
  std::string text = result.problem;
  if (text.empty() && result.status != 0) text = fmt::format("exits with {}", result.status);
  if (!text.empty() && !result.errors.empty()) text += ": " + result.errors;
  return text;
}

// Of all bytes of a file that are data, and where they are.
uint64_t digest_of_content(const std::string& path) {
  const File file(path, O_RDONLY | O_CLOEXEC);
  const uint64_t bytes = file.size();
  std::vector<unsigned char> chunk(kChunkBytes);
  uint64_t digest = bytes;
  for (uint64_t at = 0; at < bytes;) {
    at = file.next_data(at, bytes) / kImagePageBytes * kImagePageBytes;
    const uint64_t count = std::min(kChunkBytes, bytes - at);
    if (count == 0) break;
    file.read(chunk.data(), count, at);
    digest = pm::checksum64(chunk.data(), count, digest + at);
    at += count;
  }
  return digest;
}

// "insert #3", by thread and number.
std::vector<std::vector<std::string>> operations_of(const Trace& trace) {
  std::vector<std::vector<std::string>> operations(1, {""});
  for (const TraceEvent& event : trace.events) {
    if (event.kind != EventKind::kBegin) continue;
    if (event.thread >= operations.size()) operations.resize(event.thread + 1U, {""});
    auto& own = operations[event.thread];
    own.push_back(fmt::format("{} #{}", trace.operation_types.at(event.data), own.size()));
  }
  return operations;
}

}  // namespace

void update_copy(const std::string& from, const std::string& to) {
  const File source(from, O_RDONLY | O_CLOEXEC);
  const File target(to, O_RDWR | O_CREAT | O_CLOEXEC);
  const uint64_t bytes = source.size();
  if (target.size() != bytes) target.resize(bytes);
  std::vector<unsigned char> wanted(kChunkBytes);
  std::vector<unsigned char> present(kChunkBytes);
  for (uint64_t at = 0; at < bytes;) {
    at = std::min(source.next_data(at, bytes), target.next_data(at, bytes));
    at = at / kImagePageBytes * kImagePageBytes;
    const uint64_t count = std::min(kChunkBytes, bytes - at);
    if (count == 0) break;
    source.read(wanted.data(), count, at);
    target.read(present.data(), count, at);
    for (uint64_t i = 0; i < count; i += kImagePageBytes) {
      const uint64_t page = std::min(kImagePageBytes, count - i);
      if (std::memcmp(wanted.data() + i, present.data() + i, page) == 0) continue;
      target.write(wanted.data() + i, page, at + i);
    }
    at += count;
  }
}

ExternalSubject::ExternalSubject(ExternalProgram program) : program_(std::move(program)) {
  if (program_.run.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "no program was given to be recorded");
  }
  if (!has_hole(program_.check)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the check command must name the image: give {} where its path belongs");
  }
}

Run ExternalSubject::record(const std::vector<uint32_t>& /*only*/) {
  const std::string pool = folder_.file("pool");
  const std::string trace = folder_.file("trace");
  std::error_code ignored;
  std::filesystem::remove(pool, ignored);
  std::filesystem::remove(trace, ignored);
  const CommandResult ran = run_command(filled(program_.run, pool),
                                        {{"PERDURE_LAB", "crash"}, {"PERDURE_LAB_TRACE", trace}},
                                        {.seconds = program_.run_seconds});
  if (const std::string failure = failure_of(ran); !failure.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", name(), failure));
  }
  if (!std::filesystem::exists(trace, ignored)) {
    constexpr std::string_view kSaid = "perdure: PERDURE_LAB: ";
    if (const size_t at = ran.errors.find(kSaid); at != std::string::npos) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} cannot be recorded: {}", name(),
                                                           ran.errors.substr(at + kSaid.size())));
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} left no trace: build it with perdure-c++ and name its persistent "
                            "memory with perdure_lab_region(){}{}",
                            name(), ran.errors.empty() ? "" : ": ", ran.errors));
  }
  Run run;
  run.trace = Trace::load(trace);
  run.operations = operations_of(run.trace);
  operations_ = 0;
  for (const auto& own : run.operations) operations_ += static_cast<uint32_t>(own.size() - 1);
  return run;
}

std::string ExternalSubject::copy_file() const {
  return folder_.file(fmt::format("image-{}", getpid()));
}

std::string ExternalSubject::trace_file() const {
  return folder_.file(fmt::format("recovery-{}", getpid()));
}

CommandResult ExternalSubject::start_check(bool record) const {
  return run_command(
      filled(program_.check, copy_file()),
      {{"PERDURE_LAB", record ? "crash" : ""}, {"PERDURE_LAB_TRACE", record ? trace_file() : ""}},
      {.seconds = program_.check_seconds});
}

void ExternalSubject::start_server() {
  if (serving_in_ == getpid()) return;
  serving_in_ = getpid();
  server_.reset();
  // A shell would be what forks, and not the program.
  if (!program_.serve || program_.check.front() == "/bin/sh") serving_ = Serving::kImpossible;
  if (serving_ == Serving::kImpossible) return;
  server_ = CheckServer::start(filled(program_.check, copy_file()),
                               {{"PERDURE_LAB", ""}, {"PERDURE_LAB_TRACE", trace_file()}});
  if (server_ == nullptr) serving_ = Serving::kImpossible;
}

CommandResult ExternalSubject::run_check(bool record) {
  if (server_ == nullptr) return start_check(record);
  try {
    return server_->check(record, {.seconds = program_.check_seconds});
  } catch (const Error&) {  // gone, whatever killed it
    server_.reset();
    return start_check(record);
  }
}

uint64_t ExternalSubject::digest_of_recovered() {
  const uint64_t content = digest_of_content(copy_file());
  if (const auto known = recovered_.find(content); known != recovered_.end()) return known->second;
  return recovered_[content] = digest_of(run_check(false));
}

Observation ExternalSubject::observe(const std::string& path, bool with_contents) {
  start_server();
  update_copy(path, copy_file());
  CommandResult result = run_check(false);
  if (server_ != nullptr && serving_ == Serving::kUntried) {
    // Once, to know that a child of the server does what the command does.
    update_copy(path, copy_file());
    const CommandResult alone = start_check(false);
    serving_ = Serving::kTrusted;
    if (digest_of(alone) != digest_of(result) || failure_of(alone) != failure_of(result)) {
      serving_ = Serving::kImpossible;
      server_.reset();
      result = alone;
    }
  }
  Observation seen{.digest = digest_of(result), .problem = failure_of(result), .contents = {}};
  if (!seen.problem.empty()) seen.problem = "the check " + seen.problem;
  if (seen.problem.empty() && digest_of_recovered() != seen.digest) {
    seen.problem = "the check, run again on the file that it recovered, prints something else";
  }
  if (with_contents) seen.contents = result.output;
  return seen;
}

Run ExternalSubject::record_recovery(const std::string& path, const Work& /*work*/) {
  Run run;
  if (!program_.recoveries) return run;
  start_server();
  update_copy(path, copy_file());
  const CommandResult result = run_check(true);
  std::error_code ignored;
  if (!std::filesystem::exists(trace_file(), ignored)) return run;  // not an observed program
  run.trace = Trace::load(trace_file());
  std::filesystem::remove(trace_file(), ignored);
  run.operations = operations_of(run.trace);
  // However often it is interrupted, it prints what it would have printed at once.
  run.expectations.push_back({0, {digest_of(result)}});
  return run;
}

}  // namespace perdure::lab::crash
