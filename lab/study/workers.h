// Jobs carried out by processes of their own, several at a time.
//
//   run_jobs(jobs, 2, {.ended = keep, .failed = note, .progress = show}, stop);
//
// This process stays single-threaded, because its workers are forks of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "perdure/error.h"

namespace perdure::lab::study {

struct Job {
  std::string name;
  uint64_t steps = 0;  // that it takes; for progress alone
  // Runs in the worker. Says now and then how many steps are done, returns early when `stop` is
  // set, and gives null if it could not finish. What it throws is reported as a failure.
  std::function<nlohmann::json(const std::function<void(uint64_t steps)>& tell,
                               const std::atomic<bool>& stop)>
      work;
};

// Called in this process, one at a time.
struct JobEvents {
  std::function<void(const Job&, const nlohmann::json& result)> ended;
  std::function<void(const Job&, const Error& error)> failed;
  // How many steps of all jobs are done, and what is running.
  std::function<void(uint64_t steps, const std::vector<const Job*>& running)> progress;
};

// Returns when all have ended. When `stop` is set, which a signal handler does in the workers too,
// they are asked to end and no more are begun. An exception of an event ends the workers.
void run_jobs(const std::vector<Job>& jobs, unsigned at_once, const JobEvents& events,
              const std::atomic<bool>& stop);

}  // namespace perdure::lab::study
