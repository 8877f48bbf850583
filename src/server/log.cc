#include "server/log.h"

#include <unistd.h>

#include <chrono>
#include <ctime>

#include "perdure/error.h"

namespace perdure::server {

const char* to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

LogLevel parse_log_level(std::string_view text) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (text == to_string(level)) return level;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("log-level \"{}\": it is debug, info, warning or error", text));
}

void Log::print(LogLevel level, const std::string& text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char time[32];
  const size_t bytes = ::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &parts);
  const std::string line = fmt::format("{}.{:03}Z {:<7} {}\n", std::string_view(time, bytes),
                                       now.tv_nsec / 1'000'000, to_string(level), text);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace perdure::server
