#include "lab/crash/command.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "perdure/error.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kShellCharacters = "|&;<>()*?[";
// Between two looks at a command that has ended its output and not itself yet: the first and the
// longest.
constexpr std::chrono::microseconds kPauseMin(20);
constexpr std::chrono::microseconds kPauseMax(5000);

class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kIo, fmt::format("pipe: {}", std::strerror(errno)));
    }
    from = ends[0];
    to = ends[1];
  }
  ~Pipe() {
    close_from();
    close_to();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_from() {
    if (from >= 0) close(from);
    from = -1;
  }
  void close_to() {
    if (to >= 0) close(to);
    to = -1;
  }
  int from;
  int to;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

// Between fork and exec: only what is safe there, so everything is made before.
struct Prepared {
  Prepared(const std::vector<std::string>& command, const Variables& variables) : words(command) {
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string_view entry(*at);
      const auto replaced = [entry](const auto& variable) {
        return entry.starts_with(fmt::format("{}=", variable.first));
      };
      if (std::none_of(variables.begin(), variables.end(), replaced)) settings.emplace_back(entry);
    }
    for (const auto& [name, value] : variables) {
      if (!value.empty()) settings.push_back(fmt::format("{}={}", name, value));
    }
    for (std::string& word : words) arguments.push_back(word.data());
    for (std::string& setting : settings) environment.push_back(setting.data());
    arguments.push_back(nullptr);
    environment.push_back(nullptr);
  }
  std::vector<std::string> words;
  std::vector<std::string> settings;
  std::vector<char*> arguments;
  std::vector<char*> environment;
};

// Returns only if it fails.
void become(Prepared& prepared, int output, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  execvpe(prepared.arguments[0], prepared.arguments.data(), prepared.environment.data());
}

// Takes what there is. Whether the end has been reached.
bool drain(int from, std::string& text) {
  std::array<char, 65536> bytes;
  const ssize_t got = read(from, bytes.data(), bytes.size());
  if (got < 0 && errno == EINTR) return false;
  if (got <= 0) return true;
  text.append(bytes.data(), static_cast<size_t>(got));
  return false;
}

class Child {
 public:
  Child(pid_t process, const CommandLimits& limits)
      : process_(process),
        limits_(limits),
        deadline_(Clock::now() + std::chrono::seconds(limits.seconds)) {}

  void read_all(Pipe& output, Pipe& errors, CommandResult& result) {
    while ((output.from >= 0 || errors.from >= 0) && result.problem.empty()) {
      // Descriptors below zero are left out by poll.
      std::array<pollfd, 2> ready = {{{output.from, POLLIN, 0}, {errors.from, POLLIN, 0}}};
      const int count = poll(ready.data(), ready.size(), milliseconds_left());
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) result.problem = fmt::format("hangs: no end after {} s", limits_.seconds);
      if (ready[0].revents != 0 && drain(output.from, result.output)) output.close_from();
      if (ready[1].revents != 0 && drain(errors.from, result.errors)) errors.close_from();
      if (result.errors.size() > kCommandErrorBytes) result.errors.resize(kCommandErrorBytes);
      if (result.output.size() > limits_.output_bytes) result.problem = "prints without end";
    }
  }

  void wait(CommandResult& result) {
    int status = 0;
    auto pause = kPauseMin;
    for (;;) {
      if (!result.problem.empty()) kill(-process_, SIGKILL);
      const pid_t done = waitpid(process_, &status, result.problem.empty() ? WNOHANG : 0);
      if (done == process_) break;
      if (done < 0 && errno != EINTR) return;
      if (done == 0 && milliseconds_left() == 0) {
        result.problem = fmt::format("hangs: no end after {} s", limits_.seconds);
      } else if (done == 0) {
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kPauseMax);
      }
    }
    if (!result.problem.empty()) return;
    if (WIFSIGNALED(status)) {
      result.problem = fmt::format("dies of {}", strsignal(WTERMSIG(status)));
    } else {
      result.status = WEXITSTATUS(status);
    }
  }

 private:
  int milliseconds_left() const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
  }

  pid_t process_;
  CommandLimits limits_;
  Clock::time_point deadline_;
};

// Whether a character means more than itself, a quote or a space.
bool needs_shell(char c, char quote, bool in_word, bool first_word) {
  if (quote == '\'') return false;
  if (c == '$' || c == '`') return true;
  if (quote != 0) return false;
  if (kShellCharacters.find(c) != std::string_view::npos) return true;
  return in_word ? c == '=' && first_word : c == '~' || c == '#';
}

}  // namespace

std::vector<std::string> command_words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (needs_shell(c, quote, in_word, words.empty())) return {"/bin/sh", "-c", line};
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
      continue;
    }
    in_word = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      word += line[++i];
    } else {
      word += c;
    }
  }
  if (in_word) words.push_back(std::move(word));
  if (words.empty() || quote != 0) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is not a command", line));
  }
  return words;
}

CommandResult run_command(const std::vector<std::string>& words, const Variables& variables,
                          const CommandLimits& limits) {
  Prepared prepared(words, variables);
  Pipe output;
  Pipe errors;
  Pipe failure;
  const pid_t process = fork();
  if (process < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot fork: {}", std::strerror(errno)));
  }
  if (process == 0) {
    become(prepared, output.to, errors.to);
    const int reason = errno;
    if (write(failure.to, &reason, sizeof reason) < 0) _exit(126);
    _exit(127);
  }
  setpgid(process, process);  // whoever comes first
  output.close_to();
  errors.close_to();
  failure.close_to();
  CommandResult result;
  Child child(process, limits);
  child.read_all(output, errors, result);
  child.wait(result);
  int reason = 0;
  if (read(failure.from, &reason, sizeof reason) == sizeof reason) {
    throw Error(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("{}: cannot be run: {}", words.front(), std::strerror(reason)));
  }
  while (!result.errors.empty() && result.errors.back() == '\n') result.errors.pop_back();
  return result;
}

pid_t start_command(const std::vector<std::string>& words, const Variables& variables, int output,
                    int errors, int inherited) {
  Prepared prepared(words, variables);
  const pid_t process = fork();
  if (process == 0) {
    fcntl(inherited, F_SETFD, 0);
    become(prepared, output, errors);
    _exit(127);
  }
  if (process > 0) setpgid(process, process);  // whoever comes first
  return process;
}

}  // namespace perdure::lab::crash
