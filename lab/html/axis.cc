#include "lab/html/axis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace perdure::lab::html {
namespace {

struct Step {
  double from;  // values of this size and more
  double divisor;
  const char* suffix;
};

// Counts have four digits before they are shortened.
constexpr Step kNumbers[] = {{1e9, 1e9, " G"}, {1e6, 1e6, " M"}, {1e4, 1e3, " k"}, {0, 1, ""}};
constexpr Step kTimes[] = {
    {1e9, 1e9, " s"}, {1e6, 1e6, " ms"}, {1e3, 1e3, " \u00b5s"}, {0, 1, " ns"}};
constexpr Step kSizes[] = {{1 << 30, 1 << 30, " GiB"},
                           {1 << 20, 1 << 20, " MiB"},
                           {1 << 10, 1 << 10, " KiB"},
                           {0, 1, " B"}};

std::string significant(double value) {
  const double magnitude = value == 0 ? 0 : std::floor(std::log10(std::fabs(value)));
  std::string text =
      fmt::format("{:.{}f}", value, static_cast<int>(std::clamp(2 - magnitude, 0.0, 9.0)));
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

template <size_t N>
std::string scaled(double value, const Step (&steps)[N]) {
  // 999.9 ns is 1 us: what would be rounded up to the next unit is written in it.
  const Step* step = steps;
  while (step->from > std::fabs(value) * 1.0005) ++step;
  return significant(value / step->divisor) + step->suffix;
}

double tick_step(double span, unsigned parts) {
  const double least = span / parts;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * 0.9999) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::string number_text(double value, Unit unit) {
  switch (unit) {
    case Unit::kNanoseconds:
      return scaled(value, kTimes);
    case Unit::kBytes:
      return scaled(value, kSizes);
    default:
      return scaled(value, kNumbers);
  }
}

double Scale::at(double value) const {
  const double span = logarithmic ? std::log(to / from) : to - from;
  const double way = logarithmic ? std::log(value / from) : value - from;
  return start + (end - start) * (span == 0 ? 0 : way / span);
}

std::vector<double> linear_ticks(double from, double to, unsigned parts) {
  std::vector<double> ticks;
  if (!(to > from)) return {from};
  const double step = tick_step(to - from, parts);
  const double first = std::ceil(from / step - 1e-9) + 0.0;  // no -0
  for (double i = first; i * step <= to + step * 1e-6; ++i) ticks.push_back(i * step);
  return ticks;
}

std::vector<double> log_ticks(double from, double to) {
  std::vector<double> ticks;
  const bool is_short = to / from < 300;
  for (double power = std::pow(10, std::floor(std::log10(from))); power <= to * 1.0001;
       power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * power;
      if (factor > 1 && !is_short) continue;
      if (tick >= from * 0.9999 && tick <= to * 1.0001) ticks.push_back(tick);
    }
  }
  return ticks;
}

double round_up(double top, unsigned parts) {
  if (!(top > 0)) return 1;
  const double step = tick_step(top, parts);
  return std::ceil(top / step - 1e-9) * step;
}

}  // namespace perdure::lab::html
