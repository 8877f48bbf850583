#include "lab/study/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace perdure::lab::study {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{0}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e;
  --line: #e1e0d9; --axis: #c3c2b7; --one: #2a78d6; --two: #eb6834; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #1a1a19; --ink: #ffffff; --soft: #c3c2b7;
  --line: #2c2c2a; --axis: #383835; --one: #3987e5; --two: #d95926; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  background: var(--page); color: var(--ink); }}
h2 {{ margin: 2.5rem 0 .5rem; font-size: 1.25rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: .9rem; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: left; }}
th {{ color: var(--soft); font-weight: 600; vertical-align: bottom; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
td:first-child {{ white-space: nowrap; }}
table.facts td:first-child {{ color: var(--soft); vertical-align: top; }}
figure {{ margin: 1.2rem 0; }}
figcaption {{ color: var(--soft); font-size: .9rem; }}
figcaption b {{ color: var(--ink); }}
.key {{ display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em; }}
.key.mark {{ width: 3px; height: 1em; vertical-align: -.1em; border-radius: 0; background: var(--ink); }}
svg {{ width: 100%; max-width: 860px; height: auto; display: block; font: 12px system-ui, sans-serif; }}
svg text {{ fill: var(--ink); }} svg .soft {{ fill: var(--soft); }}
svg .grid {{ stroke: var(--line); }} svg .axis {{ stroke: var(--axis); }}
svg .mark {{ stroke: var(--ink); stroke-width: 2.5; }}
.one {{ fill: var(--one); background: var(--one); }} .two {{ fill: var(--two); background: var(--two); }}
</style></head><body>
<h1>{0}</h1>
)";

// Where things are in a figure, in its own units.
constexpr double kWidth = 860;
constexpr double kLabels = 170;  // of the groups, left of the axis
constexpr double kValues = 70;   // of the longest bar, right of it
constexpr double kBar = 12;
constexpr double kBetweenBars = 2;
constexpr double kBetweenGroups = 10;
constexpr double kAxisHeight = 24;

constexpr const char* kSeriesClasses[] = {"one", "two"};

// The least of 1, 2 and 5 times a power of ten that divides `top` into six parts at most.
double tick_step(double top) {
  const double least = top / 6;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

double largest(const BarChart& chart) {
  double top = 0;
  for (const BarGroup& group : chart.groups) {
    for (const double value : group.values) top = std::max(top, value);
    top = std::max(top, group.mark.value_or(0));
  }
  return top;
}

// Bars with square feet on the axis and rounded ends.
std::string bar(double y, double length, const char* series, const std::string& hint) {
  const double radius = std::min(3.0, length);
  return fmt::format(
      "<path class=\"{}\" d=\"M{:.1f} {:.1f}h{:.1f}a{r:.1f} {r:.1f} 0 0 1 {r:.1f} {r:.1f}"
      "v{:.1f}a{r:.1f} {r:.1f} 0 0 1 -{r:.1f} {r:.1f}h-{:.1f}z\"><title>{}</title></path>\n",
      series, kLabels, y, length - radius, kBar - 2 * radius, length - radius, hint,
      fmt::arg("r", radius));
}

std::string group_svg(const BarChart& chart, const BarGroup& group, double y, double scale) {
  const auto bars = static_cast<double>(group.values.size());
  const double height = bars * kBar + (bars - 1) * kBetweenBars;
  std::string svg = fmt::format(
      "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" dominant-baseline=\"central\">{}</text>\n",
      kLabels - 10, y + height / 2, escape_html(group.name));
  for (size_t i = 0; i < group.values.size(); ++i) {
    const double at = y + static_cast<double>(i) * (kBar + kBetweenBars);
    const double length = group.values[i] * scale;
    const std::string hint =
        escape_html(fmt::format("{}, {}: {:.3f}", group.name, chart.series[i], group.values[i]));
    if (length > 0) svg += bar(at, length, kSeriesClasses[i], hint);
    // Beyond the mark too, if it would lie under the text.
    const double mark = group.mark ? *group.mark * scale : 0;
    const double text = mark > length - 2 && mark < length + 34 ? mark : length;
    svg += fmt::format(
        "<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\" dominant-baseline=\"central\">{:.2f}"
        "</text>\n",
        kLabels + text + 6, at + kBar / 2, group.values[i]);
  }
  if (group.mark) {
    const double x = kLabels + *group.mark * scale;
    svg += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" "
        "y2=\"{2:.1f}\"><title>{3}"
        "</title></line>\n",
        x, y - 3, y + height + 3,
        escape_html(fmt::format("{}, {}: {:.2f}", group.name, chart.mark_name, *group.mark)));
  }
  return svg;
}

std::string axis_svg(const BarChart& chart, double top, double scale, double height) {
  std::string svg;
  const double step = tick_step(top);
  for (double tick = 0; tick <= top * 1.0001; tick += step) {
    const double x = kLabels + tick * scale;
    svg += fmt::format(
        "<line class=\"{3}\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1:.1f}\"/>"
        "<text class=\"soft\" x=\"{0:.1f}\" y=\"{2:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        x, height, height + 15, tick == 0 ? "axis" : "grid", tick);
  }
  return svg + fmt::format(
                   "<text class=\"soft\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}"
                   "</text>\n",
                   kLabels - 10, height + 15, escape_html(chart.unit));
}

std::string caption(const BarChart& chart) {
  std::string html = fmt::format("<figcaption><b>{}</b>", escape_html(chart.title));
  for (size_t i = 0; chart.series.size() > 1 && i < chart.series.size(); ++i) {
    html += fmt::format("<span class=\"key {}\"></span>{}", kSeriesClasses[i],
                        escape_html(chart.series[i]));
  }
  const bool marked = std::ranges::any_of(
      chart.groups, [](const BarGroup& group) { return group.mark.has_value(); });
  if (marked) {
    html += fmt::format("<span class=\"key mark\"></span>{}", escape_html(chart.mark_name));
  }
  return html + "</figcaption>\n";
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string make_page(const std::string& title, const std::string& body) {
  return fmt::format(kHead, escape_html(title)) + body + "</body></html>\n";
}

std::string html_table(const std::vector<TextRow>& rows, size_t text_columns) {
  std::string html = "<div class=\"scroll\"><table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    const char* tag = r == 0 ? "th" : "td";
    html += r == 0 ? "<thead><tr>" : "<tr>";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      html += fmt::format("<{0}{1}>{2}</{0}>", tag, c < text_columns ? "" : " class=\"n\"",
                          escape_html(rows[r][c]));
    }
    html += r == 0 ? "</tr></thead><tbody>\n" : "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_bars(const BarChart& chart) {
  const double top = largest(chart);
  if (top <= 0) return "";
  const double scale = (kWidth - kLabels - kValues) / top;
  const auto bars = static_cast<double>(chart.series.size());
  const double pitch = bars * kBar + (bars - 1) * kBetweenBars + kBetweenGroups;
  const double height = pitch * static_cast<double>(chart.groups.size());
  std::string svg = axis_svg(chart, top, scale, height);
  double y = kBetweenGroups / 2;
  for (const BarGroup& group : chart.groups) {
    svg += group_svg(chart, group, y, scale);
    y += pitch;
  }
  return fmt::format(
      "<figure>\n{}<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n"
      "</figure>\n",
      caption(chart), kWidth, height + kAxisHeight, escape_html(chart.title), svg);
}

}  // namespace perdure::lab::study
