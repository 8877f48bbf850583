// The parts of reports: numbers, scales, and drawings that show what they were given.
#include <gtest/gtest.h>

#include <cmath>

#include "lab/html/bars.h"
#include "lab/html/lines.h"
#include "lab/html/page.h"

namespace perdure::lab::html {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Whether every coordinate is a number.
bool is_finite(std::string svg) {
  for (size_t at = 0; (at = svg.find("dominant")) != std::string::npos;) svg.erase(at, 8);
  return svg.find("nan") == std::string::npos && svg.find("inf") == std::string::npos;
}

TEST(Html, EscapesWhatWouldBeMarkup) {
  EXPECT_EQ(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
  EXPECT_EQ(escape(std::string_view("\0\x1b", 2)), "??");
  EXPECT_EQ(table({{"<th>"}, {"<td>"}}, 1).find("<td></td>"), std::string::npos);
}

TEST(Html, WritesNumbersWithThreeDigitsAndAUnit) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(0.125), "0.125");
  EXPECT_EQ(number_text(1.2), "1.2");
  EXPECT_EQ(number_text(1234), "1234");
  EXPECT_EQ(number_text(12300), "12.3 k");
  EXPECT_EQ(number_text(2.5e6), "2.5 M");
  EXPECT_EQ(number_text(87, Unit::kNanoseconds), "87 ns");
  EXPECT_EQ(number_text(45.6e6, Unit::kNanoseconds), "45.6 ms");
  EXPECT_EQ(number_text(1536, Unit::kBytes), "1.5 KiB");
}

TEST(Html, TicksCoverTheAxis) {
  EXPECT_EQ(linear_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(log_ticks(100, 1e5).size(), 4U);
  EXPECT_EQ(log_ticks(100, 1000), (std::vector<double>{100, 200, 500, 1000}));
  EXPECT_DOUBLE_EQ(round_up(9.1, 5), 10);
  const Scale scale{.from = 1, .to = 100, .start = 0, .end = 10, .logarithmic = true};
  EXPECT_DOUBLE_EQ(scale.at(10), 5);
}

TEST(Html, ALineChartDrawsEveryCurveAndPoint) {
  LineChart chart{.title = "T", .x_label = "threads", .y_label = "M ops/s"};
  chart.curves = {{"a", 0, {{1, 2, 1.5, 2.5}, {2, 3}}}, {"b", 1, {{1, 1}, {2, NAN}}}};
  const std::string svg = draw(chart);
  EXPECT_EQ(count(svg, "<path class=\"curve\" d=\"M"), 4U);  // two of them in the legend
  EXPECT_EQ(count(svg, "class=\"whisker\""), 1U);
  EXPECT_EQ(count(svg, "<title>"), 5U);  // of two curves and three points
  EXPECT_TRUE(is_finite(svg)) << svg;
}

TEST(Html, ALineChartSaysWhatItsNumbersAreAndEndsWhiskersAtZero) {
  LineChart chart{.title = "T", .x_label = "threads", .y_label = "M ops/s"};
  chart.curves = {{"a", 0, {{1, 2, -1.5, 2.5}}}};
  const std::string svg = draw(chart);
  EXPECT_EQ(count(svg, "a, threads 1: 2 M ops/s (interval -1.5 to 2.5)"), 1U) << svg;
  chart.curves[0].points[0].low = 0;
  const std::string to_zero = draw(chart);
  const auto whisker = [](const std::string& text) {
    const size_t at = text.find("class=\"whisker\"");
    return text.substr(at, text.find("/>", at) - at);
  };
  EXPECT_EQ(whisker(svg), whisker(to_zero));
}

TEST(Html, ChartsOfOnePointOrEqualValuesHaveFiniteCoordinates) {
  for (const bool logarithmic : {false, true}) {
    LineChart chart{.title = "T", .y_logarithmic = logarithmic};
    chart.curves = {{"a", 0, {{1, 100}}}};
    const std::string svg = draw(chart);
    EXPECT_FALSE(svg.empty());
    EXPECT_TRUE(is_finite(svg)) << svg;
  }
}

TEST(Html, ChartsOfNothingAreEmpty) {
  EXPECT_EQ(draw(LineChart{.curves = {{"a", 0, {}}}}), "");
  EXPECT_EQ(draw(LineChart{.y_logarithmic = true, .curves = {{"a", 0, {{1, 0}}}}}), "");
  EXPECT_EQ(draw(BarChart{.series = {"a"}, .groups = {{"g", {0}}}}), "");
  EXPECT_EQ(draw(IntervalChart{}), "");
  EXPECT_EQ(figure("", {{"head"}}, 1), "");
}

TEST(Html, SeriesBeyondTheColoursDifferInMarkerAndDash) {
  EXPECT_EQ(series_class(1), series_class(1 + kColours));
  EXPECT_NE(dash(1), dash(1 + kColours));
  EXPECT_NE(marker(1, 0, 0, 4), marker(1 + kColours, 0, 0, 4));
}

TEST(Html, AMarkStandsInItsGroup) {
  const std::string svg = draw(BarChart{.title = "T",
                                        .series = {"a"},
                                        .mark_name = "published",
                                        .groups = {{"g", {1}, 2.5}, {"h", {3}}}});
  EXPECT_EQ(count(svg, "class=\"mark\""), 2U);  // one of them in the legend
  EXPECT_EQ(count(svg, "g, published: 2.5"), 1U);
}

TEST(Html, APageLoadsNothingAndFollowsTheReadersScheme) {
  const std::string html =
      page("A <title>", figure(draw(BarChart{.series = {"a"}, .groups = {{"g", {1}}}})));
  for (const char* text : {"http", "src=", "url(", "<script", "@import"}) {
    EXPECT_EQ(html.find(text), std::string::npos) << text;
  }
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(count(html, "<title>A &lt;title&gt;</title>"), 1U);
}

TEST(Html, BarsSayWhatWasNotMeasured) {
  const std::string svg =
      draw(BarChart{.title = "T", .series = {"a", "b"}, .groups = {{"g", {1, NAN}}}});
  EXPECT_EQ(count(svg, "<path class=\"bar"), 1U);
  EXPECT_NE(svg.find("not measured"), std::string::npos);
}

}  // namespace
}  // namespace perdure::lab::html
