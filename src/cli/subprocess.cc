#include "cli/subprocess.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "perdure/error.h"

namespace perdure::cli {
namespace {

constexpr int kExecFailed = 127;

// In the child: connects the pipe and becomes the program. No bars and colours from it.
[[noreturn]] void become(const std::vector<char*>& arguments, int pipe_end, int connected_fd,
                         int error_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nowhere = open("/dev/null", O_WRONLY);
  // Out of the way of the number that the pipe shall have.
  const int source = fcntl(pipe_end, F_DUPFD, connected_fd + 1);
  if (error_fd >= 0) dup2(error_fd, STDERR_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  dup2(source, connected_fd);
  close(source);
  setenv("TERM", "dumb", 1);
  std::signal(SIGPIPE, SIG_DFL);
  execvp(arguments[0], arguments.data());
  _exit(kExecFailed);
}

}  // namespace

Subprocess::Subprocess(const std::vector<std::string>& arguments, int connected_fd, int pipe_bytes,
                       int error_fd) {
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));  // execvp writes to none of them
  }
  pointers.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  if (pipe_bytes > 0) fcntl(ends[1], F_SETPIPE_SZ, pipe_bytes);
  child_ = fork();
  if (child_ == 0) become(pointers, ends[1], connected_fd, error_fd);
  const int error = errno;
  close(ends[1]);
  pipe_ = ends[0];
  if (child_ < 0) {
    close(pipe_);
    throw Error(ErrorCode::kIo,
                fmt::format("cannot start {}: {}", arguments[0], std::strerror(error)));
  }
}

Subprocess::~Subprocess() {
  if (child_ > 0) {
    kill_now();
    wait();
  }
  close(pipe_);
}

bool Subprocess::read_lines(const std::function<bool(std::string_view line)>& visit) {
  std::array<char, size_t{64} << 10> buffer;
  for (;;) {
    size_t begin = 0;
    for (size_t newline; (newline = pending_.find('\n', begin)) != std::string::npos;) {
      const bool go_on = visit(std::string_view(pending_).substr(begin, newline - begin));
      begin = newline + 1;
      if (go_on) continue;
      pending_.erase(0, begin);
      return false;
    }
    pending_.erase(0, begin);
    const ssize_t got = read(pipe_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    pending_.append(buffer.data(), static_cast<size_t>(got));
  }
}

void Subprocess::kill_now() {
  if (child_ > 0) kill(child_, SIGKILL);
}

int Subprocess::wait() {
  if (child_ > 0) {
    pid_t ended = -1;
    do {
      ended = waitpid(child_, &status_, 0);
    } while (ended < 0 && errno == EINTR);
    child_ = -1;
  }
  return WIFSIGNALED(status_) ? -WTERMSIG(status_) : WEXITSTATUS(status_);
}

}  // namespace perdure::cli
