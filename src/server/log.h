// The server's log: lines with a time and a level on standard error.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace perdure::server {

enum class LogLevel : int { kDebug, kInfo, kWarning, kError };

// Throws Error(kInvalidArgument) unless it is debug, info, warning or error.
LogLevel parse_log_level(std::string_view text);
const char* to_string(LogLevel level) noexcept;

class Log {
 public:
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  LogLevel level() const { return level_.load(std::memory_order_relaxed); }

  // Any thread; one line, written whole.
  template <typename... Args>
  void write(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (level < this->level()) return;
    try {
      print(level, fmt::format(format, std::forward<Args>(args)...));
    } catch (const std::bad_alloc&) {
      // The line is lost: who has no memory often wants to say so.
    }
  }

 private:
  static void print(LogLevel level, const std::string& text);
  std::atomic<LogLevel> level_{LogLevel::kInfo};
};

}  // namespace perdure::server
