// One worker of a load: a queue of records, and the thread that stores them in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/loader.h"
#include "perdure/index.h"

namespace perdure::cli {

struct LoadRecord {
  uint64_t line = 0;  // in the source, from 1
  Value key;
  Value value;
  // Earlier lines of the key: not stored, but done when this one is. If it is refused and left out,
  // the last of them that is not refused stands in for it.
  std::vector<LoadRecord> superseded;
};

class LoadLane {
 public:
  LoadLane(AnyIndex& index, const LoadOptions& options, const std::string& source_name,
           std::atomic<bool>& failed);
  ~LoadLane();
  LoadLane(const LoadLane&) = delete;
  LoadLane& operator=(const LoadLane&) = delete;

  // For the reading thread. Collects a record; full() tells that flush() is due.
  void collect(LoadRecord record);
  bool full() const;
  // Hands the collected records to the worker. False if the queue stayed full for a while: try
  // again. Drops them once a worker has failed.
  bool flush();
  // Ends the worker once its queue is empty, and waits for it.
  void finish();

  // The last line before which everything given to this lane is acknowledged, or `otherwise` if
  // all of it is.
  uint64_t lines_done(uint64_t otherwise) const;
  uint64_t acknowledged() const { return acknowledged_.load(std::memory_order_relaxed); }

  // After finish(): what went wrong.
  std::exception_ptr error() const { return error_; }
  uint64_t error_line() const { return error_line_; }
  const std::vector<std::string>& bad() const { return bad_; }  // with skip_bad

 private:
  void work();
  void store(const LoadRecord& record);
  bool put(const LoadRecord& record);
  void acknowledge(uint64_t line);

  AnyIndex& index_;
  const LoadOptions& options_;
  const std::string& source_name_;
  std::atomic<bool>& failed_;

  std::vector<LoadRecord> batch_;  // of the reading thread
  uint64_t batch_bytes_ = 0;
  uint64_t last_given_ = 0;  // the last line collected

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<LoadRecord>> queue_;
  bool closed_ = false;

  std::atomic<uint64_t> last_done_{0};  // the last line acknowledged
  std::atomic<uint64_t> acknowledged_{0};
  std::exception_ptr error_;
  uint64_t error_line_ = 0;
  std::vector<std::string> bad_;
  std::thread thread_;
};

}  // namespace perdure::cli
