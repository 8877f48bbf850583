#include "cli/load_lane.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "perdure/error.h"
#include "pm/thread.h"

namespace perdure::cli {
namespace {

constexpr size_t kBatchRecords = 128;
constexpr uint64_t kBatchBytes = uint64_t{1} << 20;
constexpr size_t kQueueBatches = 8;
constexpr auto kPatience = std::chrono::milliseconds(100);

uint64_t bytes_of(const Value& value) {
  return value.kind() == Kind::kBytes ? value.bytes().size() : sizeof(uint64_t);
}

}  // namespace

LoadLane::LoadLane(AnyIndex& index, const LoadOptions& options, const std::string& source_name,
                   std::atomic<bool>& failed)
    : index_(index),
      options_(options),
      source_name_(source_name),
      failed_(failed),
      thread_(pm::start_thread("the load", [this] { work(); })) {}

LoadLane::~LoadLane() { finish(); }

void LoadLane::collect(LoadRecord record) {
  last_given_ = record.line;
  batch_bytes_ += bytes_of(record.key) + bytes_of(record.value);
  batch_.push_back(std::move(record));
}

bool LoadLane::full() const {
  return batch_.size() >= kBatchRecords || batch_bytes_ >= kBatchBytes;
}

bool LoadLane::flush() {
  if (batch_.empty()) return true;
  std::unique_lock lock(mutex_);
  const auto has_room = [this] { return queue_.size() < kQueueBatches || failed_.load(); };
  if (!changed_.wait_for(lock, kPatience, has_room)) return false;
  queue_.push_back(std::exchange(batch_, {}));
  batch_bytes_ = 0;
  changed_.notify_all();
  return true;
}

void LoadLane::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

uint64_t LoadLane::lines_done(uint64_t otherwise) const {
  const uint64_t done = last_done_.load(std::memory_order_acquire);
  return done == last_given_ ? otherwise : done;
}

void LoadLane::work() {
  for (;;) {
    std::vector<LoadRecord> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
      if (queue_.empty()) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();
    }
    for (const LoadRecord& record : batch) {
      // After a failure the queue is emptied without storing, so that the reader can go on to end.
      if (failed_.load(std::memory_order_relaxed)) break;
      try {
        store(record);
      } catch (...) {
        error_ = std::current_exception();
        error_line_ = record.line;
        failed_.store(true);
      }
    }
  }
}

void LoadLane::store(const LoadRecord& record) {
  const LoadRecord* stored = put(record) ? &record : nullptr;
  for (size_t i = record.superseded.size(); stored == nullptr && i > 0; --i) {
    if (put(record.superseded[i - 1])) stored = &record.superseded[i - 1];
  }
  for (const LoadRecord& earlier : record.superseded) {
    if (stored != nullptr && earlier.line < stored->line) acknowledge(earlier.line);
  }
  if (stored != nullptr) acknowledge(stored->line);
  last_done_.store(record.line, std::memory_order_release);
}

// Whether it was stored; false if it was refused and shall be left out.
bool LoadLane::put(const LoadRecord& record) {
  try {
    if (options_.bulk) {
      index_.bulk_upsert(record.key.datum(), record.value.datum());
    } else {
      index_.upsert(record.key.datum(), record.value.datum());
    }
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTooLarge || !options_.skip_bad) throw;
    bad_.push_back(fmt::format("{}, line {}: {}", source_name_, record.line, error.what()));
    return false;
  }
}

void LoadLane::acknowledge(uint64_t line) {
  acknowledged_.fetch_add(1, std::memory_order_relaxed);
  if (options_.acknowledge_fd < 0) return;
  const std::string text = std::to_string(line) + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = write(options_.acknowledge_fd, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      throw Error(ErrorCode::kIo, fmt::format("cannot acknowledge on file descriptor {}: {}",
                                              options_.acknowledge_fd, std::strerror(errno)));
    }
    at += static_cast<size_t>(wrote);
  }
}

}  // namespace perdure::cli
