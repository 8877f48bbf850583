#include "support/child.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>

namespace perdure::test {

namespace {

constexpr unsigned kChildLifetimeMax_s = 240;
constexpr char kDone = 'D';  // the last byte of a child that did not fail

[[noreturn]] void run_child(const std::function<void(int)>& body, int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(2);
  ::alarm(kChildLifetimeMax_s);
  int code = 0;
  try {
    body(out);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child process: %s\n", error.what());
    code = 1;
  }
  std::fflush(stderr);
  ::_exit(code);
}

std::string collect(Child& child) {
  std::string text = child.receive_rest();
  const int status = child.wait();
  if (text.empty() || text.back() != kDone) {
    return text + "the child ended early, with status " + std::to_string(status) + "\n";
  }
  text.pop_back();
  return text;
}

}  // namespace

Child::Child(const std::function<void(int)>& body) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    ::close(ends[0]);
    run_child(body, ends[1], parent);
  }
  ::close(ends[1]);
  in_ = ends[0];
}

Child::~Child() {
  kill();
  wait();
  ::close(in_);
}

bool Child::receive(void* target, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(in_, static_cast<char*>(target) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw std::system_error(errno, std::generic_category(), "read from a child");
    if (n == 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

std::string Child::receive_rest() {
  std::string text;
  char byte = 0;
  while (receive(&byte, 1)) text.push_back(byte);
  return text;
}

void Child::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int Child::wait() {
  if (pid_ <= 0) return 0;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void send(int out, const void* source, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::write(out, static_cast<const char*>(source) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::system_error(errno, std::generic_category(), "write to the parent");
    done += static_cast<size_t>(n);
  }
}

std::string in_crashing_child(const std::function<std::string()>& body) {
  Child child([&](int out) {
    const std::string text = body() + kDone;
    send(out, text.data(), text.size());
    ::kill(::getpid(), SIGKILL);
  });
  return collect(child);
}

std::string in_unprivileged_child(const std::function<std::string()>& body) {
  constexpr uid_t kNobody = 65534;
  return in_crashing_child([&]() -> std::string {
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return "cannot drop root's rights";
    return body();
  });
}

}  // namespace perdure::test
