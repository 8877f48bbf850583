// A process that recovers crash images for the explorer. It is asked again and again, and replaced
// when it dies, hangs, or has served for a while.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "lab/crash/subject.h"

namespace perdure::lab::crash {

struct WorkerLimits {
  unsigned seconds = 20;                      // of one recovery; longer is a hang
  uint64_t memory_bytes = uint64_t{2} << 30;  // of a worker's private data
  unsigned images = 256;                      // before it is replaced
};

class Worker {
 public:
  using Task = std::function<Observation(bool with_contents)>;

  // `task` runs in the worker process, which is forked when first needed.
  Worker(Task task, const WorkerLimits& limits);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Has the task carried out on the image as it is now. Death and hang come back as a problem.
  Observation ask(bool with_contents);

 private:
  void start();
  void stop();
  [[noreturn]] void serve(int socket) const;
  Observation died(const std::string& how);

  Task task_;
  WorkerLimits limits_;
  pid_t process_ = -1;
  int socket_ = -1;
  int words_ = -1;  // what the worker writes to its standard error
  unsigned served_ = 0;
};

}  // namespace perdure::lab::crash
