// A database in a process of its own, which works on it until it is killed, and tells by shared
// memory how far it is.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/bench/emulated_medium.h"
#include "lab/study/buffer/database_store.h"
#include "lab/study/buffer/parts.h"
#include "lab/study/windows.h"

namespace perdure::lab::study::buffer_pool {

using Clock = std::chrono::steady_clock;

// What both processes see.
struct Gauge {
  static constexpr size_t kThreadsMax = 64;
  struct alignas(64) Count {
    std::atomic<uint64_t> operations{0};
  };
  std::array<Count, kThreadsMax> threads;
  std::atomic<bool> stop{false};
  std::atomic<bool> slow{true};            // whether the SSD is as slow as one
  std::atomic<uint32_t> filled{0};         // threads that have filled the pool
  std::atomic<uint32_t> read_percent{50};  // of the operations, for work that has some of both
  std::atomic<uint64_t> medium_reads{0};
  std::atomic<uint64_t> medium_ns{0};
  std::atomic<int64_t> opened_at{0};  // by the steady clock
  std::atomic<int64_t> first_at{0};   // the first operation's end
  // Of the database's RecoveryProgress.
  std::atomic<uint64_t> right{0};
  std::atomic<uint64_t> older{0};
  std::atomic<uint64_t> newer{0};
  std::atomic<uint64_t> corrupted{0};
  std::atomic<uint64_t> fetched{0};
  std::array<char, 512> error{};

  uint64_t operations() const;
  // Tells of an operation of this thread; `done` counts from 1.
  void count(unsigned thread, uint64_t done);
};

struct RunSetup {
  std::string path;
  DatabaseOptions database;
  unsigned tables = 1;
  uint64_t capacity_bytes = 0;
  bool mend_first = false;  // all pages, before the first operation
  unsigned threads = 1;
};

class DatabaseRun {
 public:
  // What each thread does, until gauge.stop.
  using Work = std::function<void(DatabaseStore& store, unsigned thread, Gauge& gauge)>;

  DatabaseRun(const BufferStudyOptions& options, const RunSetup& setup, const Work& work);
  ~DatabaseRun();  // kills it
  DatabaseRun(const DatabaseRun&) = delete;
  DatabaseRun& operator=(const DatabaseRun&) = delete;

  Gauge& gauge() const { return *gauge_; }
  Clock::time_point begun() const { return begun_; }
  // Seconds from the beginning to a moment of the gauge; nothing if it has not come.
  std::optional<double> seconds_to(const std::atomic<int64_t>& moment) const;

  // Throughput in each window, from the process's begin or from now on, for so long. Throws Error
  // if it has ended.
  enum class From : uint8_t { kBegin, kNow };
  std::vector<Window> watch(const Course& course, double seconds, From from);
  // Throws Error if the process has ended.
  void wait_until(const Course& course, const std::function<bool(const Gauge&)>& holds);
  void kill();
  // Lets it close the database. Throws Error if it fails.
  void close();

 private:
  [[noreturn]] void work_in_child(const BufferStudyOptions& options, const RunSetup& setup,
                                  const Work& work, EmulatedMedium* medium);
  void require_alive();
  [[noreturn]] void fail() const;

  Gauge* gauge_;
  Clock::time_point begun_;
  pid_t pid_ = -1;
};

// Calls `work` in a process that ends then, and gives what it returned. Throws what it throws.
json in_a_process(const Course& course, const std::function<json()>& work);

}  // namespace perdure::lab::study::buffer_pool
