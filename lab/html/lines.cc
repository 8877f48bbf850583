#include "lab/html/lines.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lab/html/page.h"

namespace perdure::lab::html {
namespace {

// Where things are in a drawing, in its own units.
constexpr double kHeight = 360;
constexpr double kLeft = 64;
constexpr double kRight = 844;
constexpr double kTop = 28;
constexpr double kBottom = 312;

struct Frame {
  Scale x;
  Scale y;
  std::vector<double> x_ticks;
  std::vector<double> y_ticks;
};

struct Range {
  double low = INFINITY;
  double high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool drawable(const LineChart& chart, const Point& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) &&
         (!chart.y_logarithmic || point.y > 0) && (!chart.x_logarithmic || point.x > 0);
}

Scale y_scale(const LineChart& chart, const Range& range) {
  Scale scale{.start = kBottom, .end = kTop, .logarithmic = chart.y_logarithmic};
  if (chart.y_logarithmic) {
    // Whole decades; half ones where the values are near each other.
    scale.from = std::pow(10, std::floor(std::log10(range.low)));
    scale.to = std::pow(10, std::ceil(std::log10(range.high) + 1e-9));
    if (range.low / scale.from >= 5) scale.from *= 5;
    if (scale.to / range.high >= 5) scale.to /= 5;
  } else {
    scale.from = 0;
    scale.to = round_up(range.high, kAxisParts);
  }
  return scale;
}

Frame make_frame(const LineChart& chart) {
  Range x;
  Range y;
  std::set<double> places;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) {
      if (!drawable(chart, point)) continue;
      x.add(point.x);
      places.insert(point.x);
      y.add(point.y);
      if (point.high) y.add(*point.high);
      if (point.low && (!chart.y_logarithmic || *point.low > 0)) y.add(*point.low);
    }
  }
  Frame frame;
  frame.y = y_scale(chart, y);
  frame.y_ticks = chart.y_logarithmic ? log_ticks(frame.y.from, frame.y.to)
                                      : linear_ticks(0, frame.y.to, kAxisParts);
  frame.x = {.from = x.low, .to = x.high, .start = kLeft, .end = kRight};
  if (!chart.x_names.empty()) {
    frame.x = {.from = -0.3,
               .to = static_cast<double>(chart.x_names.size()) - 0.7,
               .start = kLeft,
               .end = kRight};
    for (size_t i = 0; i < chart.x_names.size(); ++i) {
      frame.x_ticks.push_back(static_cast<double>(i));
    }
  } else if (places.size() <= 12) {
    // Few places, such as numbers of threads: a tick for each, and room beside the outermost.
    frame.x_ticks.assign(places.begin(), places.end());
    if (chart.x_logarithmic) {
      const double margin = x.high > x.low ? std::pow(x.high / x.low, 0.06) : 2;
      frame.x = {x.low / margin, x.high * margin, kLeft, kRight, true};
    } else {
      const double margin = x.high > x.low ? (x.high - x.low) * 0.06 : 1;
      frame.x = {x.low - margin, x.high + margin, kLeft, kRight};
    }
  } else {
    frame.x.from = std::min(0.0, x.low);
    frame.x_ticks = linear_ticks(frame.x.from, x.high, 8);
  }
  return frame;
}

std::string x_text(const LineChart& chart, double tick) {
  return chart.x_names.empty() ? number_text(tick, chart.x_unit)
                               : chart.x_names[static_cast<size_t>(tick)];
}

std::string axes(const LineChart& chart, const Frame& frame) {
  std::string svg;
  for (const double tick : frame.y_ticks) {
    const double y = frame.y.at(tick);
    svg += fmt::format(
        "<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"soft\" "
        "x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" dominant-baseline=\"central\">{}</text>\n",
        tick == frame.y_ticks.front() ? "axis" : "grid", kLeft, kRight, y, y, kLeft - 8, y,
        number_text(tick, chart.y_unit));
  }
  double last_text = -INFINITY;
  for (const double tick : frame.x_ticks) {
    const double x = frame.x.at(tick);
    svg +=
        fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n",
                    x, kBottom, kBottom + 5);
    if (x - last_text < 26) continue;  // where texts would touch
    last_text = x;
    svg +=
        fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    x, kBottom + 19, escape(x_text(chart, tick)));
  }
  svg +=
      fmt::format("<text class=\"soft\" x=\"{}\" y=\"12\">{}</text>\n", 4, escape(chart.y_label));
  return svg +
         fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kRight) / 2, kBottom + 40, escape(chart.x_label));
}

std::string whisker(const Frame& frame, const Point& point, double x) {
  if (!point.low || !point.high) return "";
  const double bottom =
      frame.y.logarithmic ? std::max(*point.low, frame.y.from) : std::max(*point.low, 0.0);
  return fmt::format("<path class=\"whisker\" d=\"M{:.1f} {:.1f}h8m-4 0V{:.1f}m-4 0h8\"/>\n", x - 4,
                     frame.y.at(bottom), frame.y.at(*point.high));
}

std::string hint(const LineChart& chart, const Curve& curve, const Point& point) {
  // A number with a unit of its own says what it is; another one by the label of its axis.
  const std::string unit = chart.y_unit == Unit::kNumber ? " " + chart.y_label : "";
  std::string text = fmt::format("{}, {} {}: {}{}", curve.name, chart.x_label,
                                 x_text(chart, point.x), number_text(point.y, chart.y_unit), unit);
  if (point.low && point.high) {
    text += fmt::format(" (interval {} to {})", number_text(*point.low, chart.y_unit),
                        number_text(*point.high, chart.y_unit));
  }
  return escape(text);
}

std::string draw_curve(const LineChart& chart, const Frame& frame, const Curve& curve) {
  std::string path;
  std::string marks;
  for (const Point& point : curve.points) {
    if (!drawable(chart, point)) continue;
    const double x = frame.x.at(point.x);
    const double y = frame.y.at(point.y);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    marks += whisker(frame, point, x);
    if (!chart.markers) continue;
    marks += marker(curve.series, x, y, 4.5);
    marks += fmt::format(
        "<circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"9\"><title>{}</title></circle>\n", x,
        y, hint(chart, curve, point));
  }
  if (path.empty()) return "";
  return fmt::format(
      "<g class=\"{}\"><path class=\"curve\"{} d=\"{}\"><title>{}</title></path>\n{}</g>\n",
      series_class(curve.series), dash(curve.series), path, escape(curve.name), marks);
}

}  // namespace

std::string marker(size_t series, double x, double y, double radius) {
  // One after the other, so that neighbours in colour differ in shape; others in the next round.
  switch ((series + series / kColours) % 5) {
    case 0:
      return fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"/>\n", x, y,
                         radius);
    case 1:
      return fmt::format(
          "<rect class=\"dot\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
          x - radius * 0.9, y - radius * 0.9, radius * 1.8, radius * 1.8);
    case 2:
      return fmt::format("<path class=\"dot\" d=\"M{:.1f} {:.1f}l{r:.1f} {d:.1f}h-{d:.1f}z\"/>\n",
                         x, y - radius * 1.15, fmt::arg("r", radius * 1.1),
                         fmt::arg("d", radius * 2.2 * 0.9));
    case 3:
      return fmt::format(
          "<path class=\"dot\" d=\"M{:.1f} {:.1f}l{r:.1f} {r:.1f}l-{r:.1f} {r:.1f}l-{r:.1f} "
          "-{r:.1f}z\"/>\n",
          x, y - radius * 1.2, fmt::arg("r", radius * 1.2));
    default:
      return fmt::format("<path class=\"dot\" d=\"M{:.1f} {:.1f}h{d:.1f}l-{r:.1f} {d:.1f}z\"/>\n",
                         x - radius * 1.1, y - radius * 0.9, fmt::arg("r", radius * 1.1),
                         fmt::arg("d", radius * 2.2));
  }
}

std::string dash(size_t series) {
  constexpr const char* kDashes[] = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 4\""};
  return kDashes[(series / kColours) % 3];
}

std::string line_key(const std::string& name, size_t series) {
  return fmt::format(
      "<span class=\"key {}\"><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\"><path class=\"curve\""
      "{} d=\"M1 6H25\"/>{}</svg>{}</span>",
      series_class(series), dash(series), marker(series, 13, 6, 4.5), escape(name));
}

std::string caption(const std::string& title, const std::string& keys) {
  return fmt::format("<figcaption><b>{}</b>{}</figcaption>\n", escape(title), keys);
}

std::string draw(const LineChart& chart) {
  const bool has_points = std::ranges::any_of(chart.curves, [&](const Curve& curve) {
    return std::ranges::any_of(curve.points,
                               [&](const Point& point) { return drawable(chart, point); });
  });
  if (!has_points) return "";
  const Frame frame = make_frame(chart);
  std::string keys;
  std::string svg = axes(chart, frame);
  for (const Curve& curve : chart.curves) {
    keys += line_key(curve.name, curve.series);
    svg += draw_curve(chart, frame, curve);
  }
  return caption(chart.title, keys) +
         fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     kDrawingWidth, kHeight, escape(chart.title), svg);
}

}  // namespace perdure::lab::html
