// A check program that serves: started once by the crash explorer, it waits just before main() and
// forks for each image. What is between exec and main() (loading, linking, constructors) is done
// once.
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lab/seam/check_protocol.h"
#include "lab/seam/runtime.h"
#include "lab/seam/startup.h"

namespace perdure::lab {
namespace {

using Main = int (*)(int, char**, char**);
constinit Main program_main = nullptr;
constinit int server_socket = -1;

bool tell_explorer(const CheckReply& reply) {
  return send(server_socket, &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply;
}

bool next_request(CheckRequest& request) {
  ssize_t got = 0;
  do {
    got = recv(server_socket, &request, sizeof request, 0);
  } while (got < 0 && errno == EINTR);
  return got == sizeof request;
}

// The program, and what it starts in its turn, get the environment that they would have had.
void restore_environment() {
  unsetenv(kCheckServerVariable);
  const char* preloaded = std::getenv("LD_PRELOAD");
  if (preloaded == nullptr) return;
  const char* rest = std::strchr(preloaded, ':');
  if (rest == nullptr) {
    unsetenv("LD_PRELOAD");
  } else {
    setenv("LD_PRELOAD", rest + 1, 1);
  }
}

void become_child(const CheckRequest& request) {
  close(server_socket);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  if (request.record != 0) start_recording();
}

// Returns in children only.
void serve() {
  const Quiet quiet;
  // What constructors have printed is printed once.
  std::fflush(nullptr);
  restore_environment();
  if (!tell_explorer({0, 0})) _exit(0);
  for (CheckRequest request{}; next_request(request);) {
    const pid_t child = fork();
    if (child == 0) return become_child(request);
    if (child < 0) break;
    setpgid(child, child);  // whoever comes first
    int status = 0;
    const bool told = tell_explorer({child, 0});
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (!told || !tell_explorer({child, status})) break;
  }
  syscall(SYS_exit_group, 0);
}

int served_main(int count, char** arguments, char** /*environment*/) {
  serve();
  return program_main(count, arguments, environ);
}

}  // namespace
}  // namespace perdure::lab

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the C library's names.

// What the start of every program calls.
extern "C" int __libc_start_main(perdure::lab::Main main, int count, char** arguments,
                                 void (*init)(), void (*fini)(), void (*rtld_fini)(),
                                 void* stack_end) {
  using namespace perdure::lab;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto real = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  if (const char* socket = std::getenv(kCheckServerVariable); socket != nullptr) {
    server_socket = std::atoi(socket);
    program_main = main;
    main = served_main;
  }
  return real(main, count, arguments, init, fini, rtld_fini, stack_end);
}

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
