// The log for people that a store keeps beside its data, in a file in a pool.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <mutex>
#include <string>

#include "perdure/files.h"

namespace perdure::lsm {

// Lines with the time before them. What cannot be written, for want of room or because the medium
// has failed, is left out: a log is no reason to stop. Any thread may write.
class LogFile {
 public:
  explicit LogFile(FileWriter writer) : writer_(std::move(writer)) {}

  // `prefix` comes behind the time. Of a line the first 64 KiB are written.
  void write(const char* prefix, const char* format, std::va_list arguments) noexcept try {
    std::array<char, 64> time;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::time_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    const auto micros =
        std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1'000'000;
    std::tm local{};
    localtime_r(&seconds, &local);
    const size_t used = std::strftime(time.data(), time.size(), "%Y/%m/%d-%H:%M:%S", &local);
    std::snprintf(time.data() + used, time.size() - used, ".%06d ", static_cast<int>(micros));

    std::string line = std::string(time.data()) + prefix;
    const size_t head = line.size();
    line.resize(head + kUsualBytes);
    std::va_list again;
    va_copy(again, arguments);
    const int wanted = std::vsnprintf(line.data() + head, kUsualBytes, format, arguments);
    const size_t bytes = std::min(static_cast<size_t>(std::max(wanted, 0)), kBytesMax);
    if (bytes >= kUsualBytes) {
      line.resize(head + bytes + 1);
      std::vsnprintf(line.data() + head, bytes + 1, format, again);
    }
    va_end(again);
    line.resize(head + bytes);
    if (!line.ends_with('\n')) line += '\n';

    const std::lock_guard lock(mutex_);
    writer_.append(line);
    writer_.flush();
  } catch (const std::exception&) {
    return;
  }

  uint64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return writer_.size();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    writer_.close();
  }

 private:
  static constexpr size_t kUsualBytes = 512;
  static constexpr size_t kBytesMax = 64 << 10;

  mutable std::mutex mutex_;
  FileWriter writer_;
};

}  // namespace perdure::lsm
