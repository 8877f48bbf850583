#include "common/units.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "perdure/error.h"

namespace perdure {
namespace {

[[noreturn]] void refuse(std::string_view text, const char* what, const char* examples) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is not a {}: write it like {}", text, what, examples));
}

// The exponent of a unit letter: 1 for k, 2 for M, ...; 0 for none, -1 for an unknown letter.
int unit_exponent(std::string_view unit) {
  if (unit.empty()) return 0;
  switch (unit[0]) {
    case 'k':
    case 'K':
      return 1;
    case 'M':
      return 2;
    case 'G':
      return 3;
    case 'T':
      return 4;
    default:
      return -1;
  }
}

uint64_t parse_scaled(std::string_view text, double base, bool binary_suffix, const char* what,
                      const char* examples) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) refuse(text, what, examples);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const int exponent = unit_exponent(unit);
  const bool suffix_ok =
      unit.size() <= 1 || (binary_suffix && exponent > 0 && unit.substr(1) == "iB");
  if (exponent < 0 || !suffix_ok) refuse(text, what, examples);
  const double scaled = number * std::pow(base, exponent);
  if (scaled >= 0x1p63) refuse(text, what, examples);
  if (exponent > 0) return static_cast<uint64_t>(std::llround(scaled));
  // Without a unit, read the digits again: a double holds whole numbers up to 2^53 only.
  uint64_t whole = 0;
  const auto exact = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (exact.ec != std::errc() || exact.ptr != text.data() + text.size()) {
    refuse(text, what, examples);
  }
  return whole;
}

}  // namespace

uint64_t parse_bytes(std::string_view text) {
  return parse_scaled(text, 1024, true, "size", "4096, 64K, 512M, 1.5G or 2GiB");
}

uint64_t parse_count(std::string_view text) {
  return parse_scaled(text, 1000, false, "count", "1000, 10k, 1.5M or 2G");
}

double parse_duration_s(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "ms"              ? 1e-3
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                                                    : 0;
  if (error != std::errc() || factor == 0 || !(number > 0) || number > 1e9) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no time; give 250ms, 30s, 10m or 1h", text));
  }
  return number * factor;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double scaled = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (scaled >= 1023.95 && unit + 1 < std::size(kUnits)) scaled /= 1024, ++unit;
  return fmt::format("{:.1f} {}", scaled, kUnits[unit]);
}

std::string format_count(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string format_counted(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string format_nanoseconds(double nanoseconds) {
  constexpr const char* kUnits[] = {"ns", "us", "ms", "s"};
  size_t unit = 0;
  while (nanoseconds >= 999.5 && unit + 1 < std::size(kUnits)) nanoseconds /= 1000, ++unit;
  const int decimals = nanoseconds < 9.995 ? 2 : nanoseconds < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", nanoseconds, decimals, kUnits[unit]);
}

std::string format_rate(double per_second) {
  if (per_second >= 999.5e3) return fmt::format("{:.2f} M/s", per_second / 1e6);
  if (per_second >= 999.5) return fmt::format("{:.0f} k/s", per_second / 1e3);
  return fmt::format("{:.0f} /s", per_second);
}

std::string format_clock(double seconds) {
  const auto whole = static_cast<uint64_t>(std::llround(std::fmax(seconds, 0)));
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace perdure
