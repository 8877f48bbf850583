// Running another program and reading what it writes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::cli {

// A program that runs with one of its file descriptors connected to us. It dies with this process.
class Subprocess {
 public:
  // Starts `arguments[0]`, found by PATH if it has no slash, with `connected_fd` (1: its standard
  // output, or any higher number) as a pipe to us of at most `pipe_bytes` (0: the usual size), and
  // its standard output to nowhere otherwise. Its standard error is `error_fd`, if that is not
  // negative, or ours. Throws Error(kIo).
  Subprocess(const std::vector<std::string>& arguments, int connected_fd, int pipe_bytes = 0,
             int error_fd = -1);
  // Kills it if it still runs.
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // Calls `visit` with each line that it writes, until the pipe ends or `visit` returns false.
  // Returns false in the latter case; what was read of further lines is kept for the next call.
  bool read_lines(const std::function<bool(std::string_view line)>& visit);

  // The pipe, for others to read in place of read_lines().
  int pipe() const { return pipe_; }

  void kill_now();
  // Waits for its end. Returns the exit code, or minus the signal that ended it.
  int wait();

 private:
  pid_t child_ = -1;
  int pipe_ = -1;
  std::string pending_;
  int status_ = 0;
};

}  // namespace perdure::cli
