// Jobs in processes of their own: results, failures, and the end before the end.
#include "lab/study/workers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace perdure::lab::study {
namespace {

using nlohmann::json;

struct Outcome {
  std::map<std::string, json> results;
  std::map<std::string, std::string> failures;
  uint64_t steps = 0;
  size_t running_max = 0;
};

Outcome carry_out(const std::vector<Job>& jobs, unsigned at_once, const std::atomic<bool>& stop) {
  Outcome outcome;
  run_jobs(
      jobs, at_once,
      {.ended = [&](const Job& job, const json& result) { outcome.results[job.name] = result; },
       .failed = [&](const Job& job,
                     const Error& error) { outcome.failures[job.name] = error.what(); },
       .progress =
           [&](uint64_t steps, const std::vector<const Job*>& running) {
             outcome.steps = std::max(outcome.steps, steps);
             outcome.running_max = std::max(outcome.running_max, running.size());
           }},
      stop);
  return outcome;
}

Job job(const std::string& name, std::function<json()> work) {
  return {
      .name = name, .steps = 10, .work = [work = std::move(work)](const auto& tell, const auto&) {
        tell(5);
        return work();
      }};
}

TEST(StudyWorkers, GiveTheResultsOfAll) {
  const std::atomic<bool> stop{false};
  std::vector<Job> jobs;
  for (int i = 0; i < 7; ++i) {
    jobs.push_back(job(std::to_string(i), [i] { return json{{"i", i}, {"pid", getpid()}}; }));
  }
  const Outcome outcome = carry_out(jobs, 3, stop);
  ASSERT_EQ(outcome.results.size(), 7U);
  std::set<int> processes;
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(outcome.results.at(std::to_string(i))["i"], i);
    processes.insert(outcome.results.at(std::to_string(i))["pid"].get<int>());
  }
  EXPECT_EQ(processes.size(), 7U);
  EXPECT_EQ(processes.count(getpid()), 0U);
  EXPECT_EQ(outcome.steps, 70U);
  EXPECT_LE(outcome.running_max, 3U);
  EXPECT_TRUE(outcome.failures.empty());
}

TEST(StudyWorkers, ReportWhatFailsAndGoOn) {
  const std::atomic<bool> stop{false};
  const std::vector<Job> jobs = {
      job("full", []() -> json { throw Error(ErrorCode::kPoolFull, "the pool\nis full"); }),
      job("killed",
          []() -> json {
            raise(SIGKILL);
            return nullptr;
          }),
      job("good", [] { return json(1); })};
  const Outcome outcome = carry_out(jobs, 1, stop);
  EXPECT_EQ(outcome.failures.at("full"), "the pool is full");
  EXPECT_NE(outcome.failures.at("killed").find("Killed"), std::string::npos);
  EXPECT_EQ(outcome.results.at("good"), 1);
}

TEST(StudyWorkers, PassOnLongResults) {
  const std::atomic<bool> stop{false};
  const std::string text(1 << 20, 'x');
  const Outcome outcome = carry_out({job("long", [&] { return json(text); })}, 2, stop);
  EXPECT_EQ(outcome.results.at("long"), text);
}

TEST(StudyWorkers, EndWhenTheyAreAskedTo) {
  std::atomic<bool> stop{false};
  std::vector<Job> jobs = {job("first", [] { return json(1); }),
                           {.name = "endless",
                            .steps = 10,
                            .work = [](const auto& tell, const auto&) -> json {
                              tell(1);
                              for (;;) pause();  // SIGTERM ends it
                            }},
                           job("never begun", [] { return json(1); })};
  Outcome outcome;
  run_jobs(
      jobs, 1,
      {.ended = [&](const Job& done, const json& result) { outcome.results[done.name] = result; },
       .failed = [&](const Job& done,
                     const Error& error) { outcome.failures[done.name] = error.what(); },
       .progress =
           [&](uint64_t steps, const auto&) {
             if (steps > 10) stop = true;
           }},
      stop);
  EXPECT_EQ(outcome.results.size(), 1U);
  EXPECT_TRUE(outcome.failures.empty());
}

}  // namespace
}  // namespace perdure::lab::study
