#include "lab/crash/check_server.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "lab/seam/check_protocol.h"
#include "lab/seam/runtime.h"
#include "perdure/error.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStartMilliseconds = 5000;
// Between two looks at how much a child has printed.
constexpr int64_t kLookMilliseconds = 50;

// libperdure-lab, which the program may not be linked with.
std::string runtime_path() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<const void*>(&perdure_lab_fence), &info) != 0;
  return found && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string preloads() {
  const char* others = std::getenv("LD_PRELOAD");
  const std::string path = runtime_path();
  return others == nullptr || *others == 0 ? path : path + ":" + others;
}

// A file in memory whose writers begin at its end, also after it was made empty.
int output_file(const char* name) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  fcntl(file, F_SETFL, O_APPEND);
  return file;
}

// Without the C library: the runtime lets files of worker processes keep their size.
void make_empty(int file) { syscall(SYS_ftruncate, file, 0); }

uint64_t size_of(int file) {
  struct stat status{};
  return fstat(file, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

std::string content_of(int file, uint64_t bytes_max) {
  std::string text(std::min(size_of(file), bytes_max), '\0');
  const auto got = syscall(SYS_pread64, file, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<decltype(got)>(got, 0)));
  return text;
}

bool several_threads(pid_t process) {
  std::error_code failed;
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", process), failed);
  return failed || std::distance(begin(tasks), end(tasks)) != 1;
}

bool receive(int socket, CheckReply& reply) {
  ssize_t got = 0;
  do {
    got = recv(socket, &reply, sizeof reply, 0);
  } while (got < 0 && errno == EINTR);
  return got == sizeof reply;
}

// Whether there is something to receive within a time.
bool await(int socket, int64_t milliseconds) {
  pollfd ready{.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&ready, 1, static_cast<int>(std::max<int64_t>(milliseconds, 0))) > 0;
}

}  // namespace

std::unique_ptr<CheckServer> CheckServer::start(
    const std::vector<std::string>& words,
    const std::vector<std::pair<std::string, std::string>>& variables) {
  std::unique_ptr<CheckServer> server(new CheckServer);
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) return nullptr;
  server->socket_ = sockets[0];
  server->output_ = output_file("perdure-check-output");
  server->errors_ = output_file("perdure-check-errors");
  auto all = variables;
  all.emplace_back(kCheckServerVariable, std::to_string(sockets[1]));
  all.emplace_back("LD_PRELOAD", preloads());
  server->owner_ = getpid();
  server->process_ = start_command(words, all, server->output_, server->errors_, sockets[1]);
  close(sockets[1]);
  return server->await_start() ? std::move(server) : nullptr;
}

CheckServer::~CheckServer() {
  for (const int file : {socket_, output_, errors_}) {
    if (file >= 0) close(file);
  }
  if (process_ <= 0 || owner_ != getpid()) return;
  kill(-process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
}

bool CheckServer::await_start() const {
  CheckReply reply{};
  if (process_ <= 0 || !await(socket_, kStartMilliseconds) || !receive(socket_, reply))
    return false;
  return !several_threads(process_);
}

void CheckServer::await_end(pid_t child, const CommandLimits& limits, CommandResult& result) {
  const auto deadline = Clock::now() + std::chrono::seconds(limits.seconds);
  CheckReply end{};
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (await(socket_, std::min<int64_t>(left, kLookMilliseconds))) break;
    if (left <= 0) result.problem = fmt::format("hangs: no end after {} s", limits.seconds);
    if (size_of(output_) > limits.output_bytes) result.problem = "prints without end";
    if (!result.problem.empty()) {
      kill(-child, SIGKILL);
      break;
    }
  }
  if (!receive(socket_, end)) throw Error(ErrorCode::kIo, "the check's server has ended");
  if (!result.problem.empty()) return;
  if (WIFSIGNALED(end.status)) {
    result.problem = fmt::format("dies of {}", strsignal(WTERMSIG(end.status)));
  } else {
    result.status = WEXITSTATUS(end.status);
  }
}

CommandResult CheckServer::check(bool record, const CommandLimits& limits) {
  make_empty(output_);
  make_empty(errors_);
  const CheckRequest request{record ? 1U : 0U};
  CheckReply born{};
  if (send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
      !receive(socket_, born)) {
    throw Error(ErrorCode::kIo, "the check's server has ended");
  }
  CommandResult result;
  await_end(born.process, limits, result);
  result.output = content_of(output_, limits.output_bytes);
  result.errors = content_of(errors_, kCommandErrorBytes);
  while (!result.errors.empty() && result.errors.back() == '\n') result.errors.pop_back();
  return result;
}

}  // namespace perdure::lab::crash
