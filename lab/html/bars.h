// Horizontal bars in groups, and estimates with their intervals: one row for each structure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/html/axis.h"

namespace perdure::lab::html {

struct BarGroup {
  std::string name;
  std::vector<double> values;  // one for each series; not finite: not measured
  // A mark across the group, of a figure to compare with.
  std::optional<double> mark = {};
};

struct BarChart {
  std::string title;
  std::string label;  // of the axis
  Unit unit = Unit::kNumber;
  std::vector<std::string> series = {};
  std::string mark_name = {};
  std::vector<BarGroup> groups = {};
};

// The caption, with a legend for several series or marks, and an inline SVG. Empty if there is
// nothing to show but zeros.
std::string draw(const BarChart& chart);

// An estimate and the interval that holds it with some confidence.
struct Interval {
  std::string name;
  double value;
  std::optional<double> low = {};
  std::optional<double> high = {};
};

// Those beyond the reference with their whole interval are coloured: green above, red below.
struct IntervalChart {
  std::string title;
  std::string label;
  double reference = 1;  // a line across all: no difference
  std::vector<Interval> rows = {};
};

// Empty if there are no rows.
std::string draw(const IntervalChart& chart);

}  // namespace perdure::lab::html
