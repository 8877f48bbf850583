// Axes of charts: where values lie, where the ticks are, and how numbers are written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace perdure::lab::html {

// How wide every drawing is, in its own units, and into how many parts its ticks divide an axis.
inline constexpr double kDrawingWidth = 860;
inline constexpr unsigned kAxisParts = 6;

enum class Unit : uint8_t {
  kNumber,       // 1.25, 12 k, 3.4 M
  kNanoseconds,  // 87 ns, 1.2 µs, 45 ms
  kBytes,        // 512 B, 64 MiB
};

// Up to three significant digits, without zeros at the end: "1.25", "12 k", "87 ns".
std::string number_text(double value, Unit unit = Unit::kNumber);

// Maps the values from..to of an axis to the positions start..end of a drawing.
struct Scale {
  double from = 0;
  double to = 1;
  double start = 0;
  double end = 1;
  bool logarithmic = false;  // `from` and all values are positive

  double at(double value) const;
};

// Multiples of 1, 2 or 5 times a power of ten, of which up to `parts` + 1 cover from..to.
std::vector<double> linear_ticks(double from, double to, unsigned parts);
// Powers of ten, and 2 and 5 times these where the axis is short.
std::vector<double> log_ticks(double from, double to);

// The last tick at or above the values, so that an axis ends with a number.
double round_up(double top, unsigned parts);

}  // namespace perdure::lab::html
