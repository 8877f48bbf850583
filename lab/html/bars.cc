#include "lab/html/bars.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "lab/html/lines.h"
#include "lab/html/page.h"

namespace perdure::lab::html {
namespace {

// Where things are in a drawing, in its own units.
constexpr double kValues = 80;  // right of the longest bar
constexpr double kBar = 14;
constexpr double kBetweenBars = 2;
constexpr double kBetweenGroups = 12;
constexpr double kAxisHeight = 42;

// How wide the names are, left of the axis. Longer ones are cut.
constexpr double kLetter = 6.6;
constexpr size_t kLettersMax = 48;

template <typename Rows>
double width_of_names(const Rows& rows) {
  size_t longest = 14;
  for (const auto& row : rows) longest = std::max(longest, row.name.size());
  return 24 + kLetter * static_cast<double>(std::min(longest, kLettersMax));
}

double largest(const BarChart& chart) {
  double top = 0;
  for (const BarGroup& group : chart.groups) {
    for (const double value : group.values) {
      if (std::isfinite(value)) top = std::max(top, value);
    }
    top = std::max(top, group.mark.value_or(0));
  }
  return top;
}

// Bars with square feet on the axis and rounded ends.
std::string bar(double x, double y, double length, size_t series, const std::string& hint) {
  const double radius = std::min(3.0, length);
  return fmt::format(
      "<path class=\"bar {}\" d=\"M{:.1f} {:.1f}h{:.1f}a{r:.1f} {r:.1f} 0 0 1 {r:.1f} {r:.1f}"
      "v{:.1f}a{r:.1f} {r:.1f} 0 0 1 -{r:.1f} {r:.1f}h-{:.1f}z\"><title>{}</title></path>\n",
      series_class(series), x, y, length - radius, kBar - 2 * radius, length - radius, hint,
      fmt::arg("r", radius));
}

std::string row_name(const std::string& name, double x, double y) {
  const bool is_cut = name.size() > kLettersMax;
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" "
      "dominant-baseline=\"central\">{}{}</text>\n",
      x - 10, y, escape(is_cut ? name.substr(0, kLettersMax - 1) + "\u2026" : name),
      is_cut ? "<title>" + escape(name) + "</title>" : "");
}

std::string mark_line(const BarChart& chart, const BarGroup& group, double y, double height,
                      const Scale& scale) {
  return fmt::format(
      "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"><title>{3}"
      "</title></line>\n",
      scale.at(*group.mark), y - 3, y + height + 3,
      escape(fmt::format("{}, {}: {}", group.name, chart.mark_name,
                         number_text(*group.mark, chart.unit))));
}

std::string draw_group(const BarChart& chart, const BarGroup& group, double y, const Scale& scale) {
  const auto bars = static_cast<double>(group.values.size());
  const double height = bars * kBar + (bars - 1) * kBetweenBars;
  std::string svg = row_name(group.name, scale.start, y + height / 2);
  for (size_t i = 0; i < group.values.size(); ++i) {
    const double at = y + static_cast<double>(i) * (kBar + kBetweenBars);
    const bool measured = std::isfinite(group.values[i]);
    const double length = measured ? scale.at(group.values[i]) - scale.start : 0;
    const std::string text = measured ? number_text(group.values[i], chart.unit) : "not measured";
    if (length > 0) {
      svg += bar(scale.start, at, length, i,
                 escape(fmt::format("{}, {}: {}", group.name, chart.series.at(i), text)));
    }
    // Beyond the mark too, if it would lie under the text.
    const double mark = group.mark ? scale.at(*group.mark) - scale.start : 0;
    const double from = mark > length - 2 && mark < length + 60 ? mark : length;
    svg += fmt::format(
        "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" dominant-baseline=\"central\">{}</text>\n",
        scale.start + from + 6, at + kBar / 2, text);
  }
  return group.mark ? svg + mark_line(chart, group, y, height, scale) : svg;
}

// Ticks from the left edge, grid lines, and what the axis means.
std::string draw_axis(const Scale& scale, Unit unit, const std::string& label, double height) {
  std::string svg;
  double last_text = -INFINITY;
  for (const double tick : linear_ticks(scale.from, scale.to, kAxisParts)) {
    const double x = scale.at(tick);
    svg +=
        fmt::format("<line class=\"{}\" x1=\"{x:.1f}\" x2=\"{x:.1f}\" y1=\"0\" y2=\"{:.1f}\"/>\n",
                    tick == 0 ? "axis" : "grid", height, fmt::arg("x", x));
    if (x - last_text < 50) continue;
    last_text = x;
    svg += fmt::format(
        "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x,
        height + 15, number_text(tick, unit));
  }
  return svg + fmt::format(
                   "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}"
                   "</text>\n",
                   (scale.start + scale.end) / 2, height + 34, escape(label));
}

std::string keys_of(const BarChart& chart) {
  std::string keys;
  for (size_t i = 0; chart.series.size() > 1 && i < chart.series.size(); ++i) {
    keys += fmt::format(
        "<span class=\"key\"><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\"><rect class=\"bar {}\""
        " x=\"7\" width=\"12\" height=\"12\" rx=\"2\"/></svg>{}</span>",
        series_class(i), escape(chart.series[i]));
  }
  const bool marked = std::ranges::any_of(
      chart.groups, [](const BarGroup& group) { return group.mark.has_value(); });
  if (marked) {
    keys += fmt::format(
        "<span class=\"key\"><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\"><line class=\"mark\" "
        "x1=\"13\" x2=\"13\" y1=\"0\" y2=\"12\"/></svg>{}</span>",
        escape(chart.mark_name));
  }
  return keys;
}

std::string svg_of(const std::string& title, double height, const std::string& content) {
  return fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     kDrawingWidth, height, escape(title), content);
}

// Whether the reference lies outside the interval, and on which side.
const char* interval_class(const Interval& row, double reference) {
  if (row.low && *row.low > reference) return "above";
  if (row.high && *row.high < reference) return "below";
  return "level";
}

std::string draw_interval(const Interval& row, double reference, const Scale& scale, double y) {
  const double x = scale.at(row.value);
  std::string hint = fmt::format("{}: {}", row.name, number_text(row.value));
  std::string svg = row_name(row.name, scale.start, y);
  svg += fmt::format("<g class=\"{}\">", interval_class(row, reference));
  if (row.low && row.high) {
    hint += fmt::format(" ({} to {})", number_text(*row.low), number_text(*row.high));
    svg += fmt::format("<path class=\"whisker\" d=\"M{:.1f} {:.1f}v10m0 -5H{:.1f}m0 -5v10\"/>\n",
                       scale.at(*row.low), y - 5, scale.at(*row.high));
  }
  svg += marker(0, x, y, 4.5);
  return svg + fmt::format(
                   "<circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"9\"><title>{}</title>"
                   "</circle></g><text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" "
                   "dominant-baseline=\"central\">{}</text>\n",
                   x, y, escape(hint), kDrawingWidth - kValues + 12, y,
                   fmt::format("{:.3f}", row.value));
}

}  // namespace

std::string draw(const BarChart& chart) {
  const double top = round_up(largest(chart), kAxisParts);
  if (largest(chart) <= 0) return "";
  const Scale scale{
      .from = 0, .to = top, .start = width_of_names(chart.groups), .end = kDrawingWidth - kValues};
  const auto bars = static_cast<double>(chart.series.size());
  const double pitch = bars * kBar + (bars - 1) * kBetweenBars + kBetweenGroups;
  const double height = pitch * static_cast<double>(chart.groups.size());
  std::string svg = draw_axis(scale, chart.unit, chart.label, height);
  double y = kBetweenGroups / 2;
  for (const BarGroup& group : chart.groups) {
    svg += draw_group(chart, group, y, scale);
    y += pitch;
  }
  return caption(chart.title, keys_of(chart)) + svg_of(chart.title, height + kAxisHeight, svg);
}

std::string draw(const IntervalChart& chart) {
  if (chart.rows.empty()) return "";
  constexpr double kPitch = 24;
  double low = chart.reference;
  double high = chart.reference;
  for (const Interval& row : chart.rows) {
    low = std::min(low, row.low.value_or(row.value));
    high = std::max(high, row.high.value_or(row.value));
  }
  const double margin = std::max(0.02, (high - low) * 0.08);
  const Scale scale{.from = low - margin,
                    .to = high + margin,
                    .start = width_of_names(chart.rows),
                    .end = kDrawingWidth - kValues};
  const double height = kPitch * static_cast<double>(chart.rows.size());
  std::string svg = draw_axis(scale, Unit::kNumber, chart.label, height);
  svg += fmt::format(
      "<line class=\"reference\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1:.1f}\"/>\n",
      scale.at(chart.reference), height);
  double y = kPitch / 2;
  for (const Interval& row : chart.rows) {
    svg += draw_interval(row, chart.reference, scale, y);
    y += kPitch;
  }
  return caption(chart.title, "") + svg_of(chart.title, height + kAxisHeight, svg);
}

}  // namespace perdure::lab::html
