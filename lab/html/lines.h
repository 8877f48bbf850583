// Curves over a common axis: throughput over threads, latency over percentiles, a run over time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/html/axis.h"

namespace perdure::lab::html {

struct Point {
  double x;
  double y;
  std::optional<double> low = {};  // of the interval that y is known to, drawn as a whisker
  std::optional<double> high = {};
};

struct Curve {
  std::string name;
  size_t series;  // gives colour, marker and dash, the same in all charts of a page
  std::vector<Point> points;
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  Unit x_unit = Unit::kNumber;
  Unit y_unit = Unit::kNumber;
  bool x_logarithmic = false;
  bool y_logarithmic = false;  // without: from zero
  bool markers = true;         // off for curves of many points, which then tell no values
  // Where x has few values with names, such as percentiles: the points' x are places in this list.
  std::vector<std::string> x_names = {};
  std::vector<Curve> curves = {};
};

// The caption with a legend, and an inline SVG. Empty if there is no point to draw.
std::string draw(const LineChart& chart);

// Parts of the drawing that other charts have too.

// The shape of a series' marker around a place.
std::string marker(size_t series, double x, double y, double radius);
// The attribute that dashes the curves of series beyond the colours; empty for the first.
std::string dash(size_t series);
// A sample of the line and marker of a series, with its name.
std::string line_key(const std::string& name, size_t series);
std::string caption(const std::string& title, const std::string& keys);

}  // namespace perdure::lab::html
