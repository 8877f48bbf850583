#include "lab/study/workers.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr int kPollMilliseconds = 100;

// Lines from a worker: what it is, a space, and the rest.
constexpr char kProgressLine = 'P';  // steps
constexpr char kResultLine = 'R';    // JSON
constexpr char kErrorLine = 'E';     // code, a space, and the message

void tell(int pipe, char kind, std::string text) {
  for (char& c : text) c = c == '\n' ? ' ' : c;
  const std::string line = fmt::format("{} {}\n", kind, text);
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = write(pipe, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR) _exit(1);
    if (written > 0) done += static_cast<size_t>(written);
  }
}

[[noreturn]] void be_worker(const Job& job, int pipe, const std::atomic<bool>& stop) {
  // The handler of the one that started us, by which the job ends and cleans up.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  try {
    const json result = job.work(
        [pipe](uint64_t steps) { tell(pipe, kProgressLine, std::to_string(steps)); }, stop);
    if (!result.is_null()) tell(pipe, kResultLine, result.dump());
  } catch (const Error& error) {
    tell(pipe, kErrorLine, fmt::format("{} {}", static_cast<int>(error.code()), error.what()));
  } catch (const std::exception& error) {
    tell(pipe, kErrorLine, fmt::format("{} {}", static_cast<int>(ErrorCode::kIo), error.what()));
  }
  _exit(0);
}

// A job that runs, seen from the process that started it.
class Worker {
 public:
  Worker(const Job& job, const std::atomic<bool>& stop);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Job& job() const { return job_; }
  int pipe() const { return pipe_; }
  uint64_t steps() const { return steps_; }
  void ask_to_end() const { kill(pid_, SIGTERM); }

  // Takes in what is there; returns false at the end.
  bool read_some();
  // After the end.
  void report(const JobEvents& events, bool stopped);

 private:
  void take(std::string_view line);
  int wait();

  const Job& job_;
  int pipe_ = -1;
  pid_t pid_ = -1;
  std::string text_;  // not yet a line
  uint64_t steps_ = 0;
  json result_;
  std::unique_ptr<Error> error_;
};

Worker::Worker(const Job& job, const std::atomic<bool>& stop) : job_(job) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  pid_ = fork();
  if (pid_ < 0) throw Error(ErrorCode::kIo, fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid_ == 0) {
    close(ends[0]);
    be_worker(job, ends[1], stop);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

Worker::~Worker() {
  close(pipe_);
  if (pid_ < 0) return;
  ask_to_end();
  wait();
}

int Worker::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  return status;
}

bool Worker::read_some() {
  std::array<char, 65536> buffer{};
  const ssize_t length = read(pipe_, buffer.data(), buffer.size());
  if (length < 0) return errno == EINTR;
  if (length == 0) return false;
  text_.append(buffer.data(), static_cast<size_t>(length));
  size_t from = 0;
  for (size_t end = 0; (end = text_.find('\n', from)) != std::string::npos; from = end + 1) {
    take(std::string_view(text_).substr(from, end - from));
  }
  text_.erase(0, from);
  return true;
}

void Worker::take(std::string_view line) {
  const std::string_view text = line.substr(2);
  const char* const begin = text.begin();
  const char* const end = text.end();
  if (line.front() == kProgressLine) {
    std::from_chars(begin, end, steps_);
  } else if (line.front() == kResultLine) {
    result_ = json::parse(text);
  } else {
    int code = 0;
    const char* message = std::from_chars(begin, end, code).ptr + 1;
    error_ = std::make_unique<Error>(static_cast<ErrorCode>(code), std::string(message, end));
  }
}

void Worker::report(const JobEvents& events, bool stopped) {
  const int status = wait();
  if (!result_.is_null()) {
    events.ended(job_, result_);
  } else if (!stopped) {
    const std::string how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no result";
    events.failed(job_, error_ ? *error_
                               : Error(ErrorCode::kCorrupt,
                                       fmt::format("{}: the process ended: {}", job_.name, how)));
  }
}

class Workers {
 public:
  Workers(const std::vector<Job>& jobs, unsigned at_once, const JobEvents& events,
          const std::atomic<bool>& stop)
      : jobs_(jobs), at_once_(at_once), events_(events), stop_(stop) {}

  void run() {
    for (;;) {
      while (!stop_ && next_ < jobs_.size() && running_.size() < at_once_) {
        running_.push_back(std::make_unique<Worker>(jobs_[next_++], stop_));
      }
      if (running_.empty()) return;
      if (stop_ && !asked_) {
        for (const auto& worker : running_) worker->ask_to_end();
        asked_ = true;
      }
      wait_for_news();
      tell_progress();
    }
  }

 private:
  void wait_for_news();
  void tell_progress() const;

  const std::vector<Job>& jobs_;
  unsigned at_once_;
  const JobEvents& events_;
  const std::atomic<bool>& stop_;
  std::vector<std::unique_ptr<Worker>> running_;
  size_t next_ = 0;
  uint64_t steps_ended_ = 0;
  bool asked_ = false;
};

void Workers::wait_for_news() {
  std::vector<pollfd> pipes;
  for (const auto& worker : running_) pipes.push_back({worker->pipe(), POLLIN, 0});
  if (poll(pipes.data(), pipes.size(), kPollMilliseconds) <= 0) return;
  for (size_t i = pipes.size(); i-- > 0;) {
    if (pipes[i].revents == 0 || running_[i]->read_some()) continue;
    const std::unique_ptr<Worker> ended = std::move(running_[i]);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    steps_ended_ += ended->job().steps;
    ended->report(events_, stop_);
  }
}

void Workers::tell_progress() const {
  uint64_t steps = steps_ended_;
  std::vector<const Job*> names;
  for (const auto& worker : running_) {
    steps += worker->steps();
    names.push_back(&worker->job());
  }
  events_.progress(steps, names);
}

}  // namespace

void run_jobs(const std::vector<Job>& jobs, unsigned at_once, const JobEvents& events,
              const std::atomic<bool>& stop) {
  Workers(jobs, at_once, events, stop).run();
}

}  // namespace perdure::lab::study
