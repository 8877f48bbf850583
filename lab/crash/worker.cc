#include "lab/crash/worker.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "lab/seam/private_files.h"
#include "lab/seam/runtime.h"
#include "perdure/error.h"

namespace perdure::lab::crash {
namespace {

bool send_all(int socket, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

enum class Received { kAll, kEnd, kTimeout };

Received receive_all(int socket, void* data, size_t bytes, unsigned seconds) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    pollfd ready{.fd = socket, .events = POLLIN, .revents = 0};
    const int count = poll(&ready, 1, seconds == 0 ? -1 : static_cast<int>(seconds * 1000));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) return Received::kTimeout;
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Received::kEnd;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return Received::kAll;
}

struct ReplyHead {
  uint64_t digest;
  uint64_t problem_bytes;
  uint64_t contents_bytes;
};

}  // namespace

Worker::Worker(Task task, const WorkerLimits& limits) : task_(std::move(task)), limits_(limits) {}

Worker::~Worker() { stop(); }

void Worker::stop() {
  if (process_ > 0) {
    close(socket_);
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  if (words_ >= 0) close(words_);
  process_ = -1;
  socket_ = -1;
  words_ = -1;
}

void Worker::start() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("socketpair: {}", std::strerror(errno)));
  }
  words_ = memfd_create("perdure-crash-words", MFD_CLOEXEC);
  process_ = fork();
  if (process_ < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot fork: {}", std::strerror(errno)));
  }
  if (process_ == 0) {
    close(sockets[0]);
    serve(sockets[1]);
  }
  close(sockets[1]);
  socket_ = sockets[0];
  served_ = 0;
}

void Worker::serve(int socket) const {
  install(nullptr);
  make_files_private();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) {
    std::signal(signal, SIG_DFL);
  }
  const rlimit no_core{};
  setrlimit(RLIMIT_CORE, &no_core);
  const rlimit memory{.rlim_cur = limits_.memory_bytes, .rlim_max = limits_.memory_bytes};
  setrlimit(RLIMIT_DATA, &memory);
  dup2(words_, STDERR_FILENO);
  dup2(words_, STDOUT_FILENO);
  char request = 0;
  while (receive_all(socket, &request, 1, 0) == Received::kAll) {
    Observation seen;
    forget_private_files();
    try {
      seen = task_(request == 'c');
    } catch (const std::bad_alloc&) {
      seen.problem = "recovery takes more memory than it may";
    } catch (const std::exception& error) {
      seen.problem = error.what();
    } catch (...) {
      seen.problem = "recovery threw something that is no exception";
    }
    const ReplyHead head{seen.digest, seen.problem.size(), seen.contents.size()};
    if (!send_all(socket, &head, sizeof head) ||
        !send_all(socket, seen.problem.data(), seen.problem.size()) ||
        !send_all(socket, seen.contents.data(), seen.contents.size())) {
      break;
    }
  }
  _exit(0);
}

Observation Worker::died(const std::string& how) {
  Observation seen;
  seen.problem = how;
  std::array<char, 512> words{};
  const ssize_t bytes = pread(words_, words.data(), words.size() - 1, 0);
  if (bytes > 0) {
    std::string text(words.data(), static_cast<size_t>(bytes));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    seen.problem += ": " + text;
  }
  stop();
  return seen;
}

Observation Worker::ask(bool with_contents) {
  if (process_ > 0 && served_ >= limits_.images) stop();
  if (process_ < 0) start();
  ++served_;
  const char request = with_contents ? 'c' : 'd';
  ReplyHead head{};
  Received received = Received::kEnd;
  if (send_all(socket_, &request, 1)) {
    received = receive_all(socket_, &head, sizeof head, limits_.seconds);
  }
  if (received == Received::kTimeout) {
    kill(process_, SIGKILL);
    return died(fmt::format("recovery hangs: no end after {} s", limits_.seconds));
  }
  if (received == Received::kEnd) {
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
    process_ = -1;
    close(socket_);
    return died(WIFSIGNALED(status)
                    ? fmt::format("recovery dies of {}", strsignal(WTERMSIG(status)))
                    : fmt::format("recovery exits with {}", WEXITSTATUS(status)));
  }
  Observation seen;
  seen.digest = head.digest;
  seen.problem.resize(head.problem_bytes);
  seen.contents.resize(head.contents_bytes);
  if (receive_all(socket_, seen.problem.data(), head.problem_bytes, limits_.seconds) !=
          Received::kAll ||
      receive_all(socket_, seen.contents.data(), head.contents_bytes, limits_.seconds) !=
          Received::kAll) {
    return died("recovery ended while it reported its result");
  }
  return seen;
}

}  // namespace perdure::lab::crash
