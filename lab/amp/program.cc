// Programs that are not ours, on the memory model.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/ticks.h"
#include "lab/amp/amp.h"
#include "lab/amp/collect.h"
#include "perdure/error.h"

extern char** environ;

namespace perdure::lab {
namespace {

// A file for the report, removed at the end.
class ReportFile {
 public:
  ReportFile() : path_("/tmp/perdure-amp-XXXXXX") {
    const int file = mkstemp(path_.data());
    if (file < 0) throw Error(ErrorCode::kIo, "cannot make a file in /tmp");
    close(file);
  }
  ~ReportFile() { unlink(path_.c_str()); }
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs the command with these variables besides the environment's; returns how it ended.
int run_to_end(const std::vector<std::string>& command, const std::vector<std::string>& variables) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (const std::string& variable : variables) {
    environment.push_back(const_cast<char*>(variable.c_str()));
  }
  for (char** at = environ; *at != nullptr; ++at) {
    if (std::strncmp(*at, "PERDURE_LAB", std::strlen("PERDURE_LAB")) != 0) {
      environment.push_back(*at);
    }
  }
  environment.push_back(nullptr);
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environment.data());
  if (error != 0) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: cannot be run: {}", command[0], std::strerror(error)));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

nlohmann::json read_report(const std::string& program, const std::string& path, int status) {
  if (WIFSIGNALED(status)) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: ended by signal {} ({}), so there is no report", program,
                            WTERMSIG(status), strsignal(WTERMSIG(status))));
  }
  std::ifstream file(path);
  if (file.peek() != std::ifstream::traits_type::eof()) return nlohmann::json::parse(file);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: ended with exit code {} and left no report. Was it built with "
                          "perdure-cc or perdure-c++, and did it end by exit() or by returning "
                          "from main()?",
                          program, WEXITSTATUS(status)));
}

}  // namespace

AmpReport run_amp_program(const std::vector<std::string>& command, const std::string& profile,
                          uint64_t records, const std::vector<uint64_t>& threads) {
  AmpReport report;
  report.ours = false;
  report.options.threads = threads;
  report.profile = load_profile(profile);
  if (records > 0) scale_cache(report.profile, records);
  report.program = fmt::format("{}", fmt::join(command, " "));
  const ReportFile file;
  const double began_s = steady_seconds();
  std::vector<std::string> variables = {"PERDURE_LAB=amp", "PERDURE_LAB_PROFILE=" + profile,
                                        "PERDURE_LAB_OUTPUT=" + file.path()};
  if (records > 0) variables.push_back(fmt::format("PERDURE_LAB_RECORDS={}", records));
  const int status = run_to_end(command, variables);
  AmpResult& result = report.results.emplace_back();
  result.structure = command[0].substr(command[0].rfind('/') + 1);
  result.workload = "program";
  result.records = records;
  result.seconds = steady_seconds() - began_s;
  collect(read_report(command[0], file.path(), status), result, Code::kForeign);
  result.operations = result.total().operations;
  report.program_code = WEXITSTATUS(status);
  return report;
}

}  // namespace perdure::lab
