// A process forked from this one, to be killed.
//
// Fork only while this process has one thread and no pool open: a pool's lock would be shared with
// the child.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

namespace perdure::test {

class Child {
 public:
  // Runs `body` in a child; `out` is the write end of a pipe to this process. The child exits with
  // 0 when `body` returns and with 1, the message on stderr, when it throws. A child that runs for
  // minutes is ended by a signal, and so is one whose parent died.
  explicit Child(const std::function<void(int out)>& body);
  ~Child();  // Kills and waits.
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Reads exactly `bytes` bytes of what the child wrote. False at the end of the pipe, which comes
  // when the child is dead and everything it wrote before has been read.
  bool receive(void* target, size_t bytes);
  // All that comes until the end of the pipe.
  std::string receive_rest();

  void kill();
  // Waits for the end. Returns the exit code, or the negative number of the signal.
  int wait();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
};

// Writes all bytes, in one piece if there are at most PIPE_BUF. For the child's side.
void send(int out, const void* source, size_t bytes);

// Runs `body` in a child that dies by SIGKILL as soon as `body` has returned: what `body` opened
// with new and never deleted is not closed cleanly. Returns the text that `body` returned, and what
// went wrong with the child, if anything.
std::string in_crashing_child(const std::function<std::string()>& body);

// The same in a child without root's rights. Requires to be root.
std::string in_unprivileged_child(const std::function<std::string()>& body);

}  // namespace perdure::test
