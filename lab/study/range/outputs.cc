// The comparison for people: on the terminal, and as a page.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "lab/html/page.h"
#include "lab/report/report.h"
#include "lab/report/sections.h"
#include "lab/study/range/figures.h"
#include "lab/study/range/published.h"
#include "lab/study/range/range_indexes.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr char kPublishedExplanation[] =
    "What the comparison measured stands here to compare orders and growth, not times: its memory, "
    "its processor and its number of records were others.";

std::string overview_section(const RangeFigures& figures) {
  std::string content = all_of(figures.throughputs(), as_html);
  const std::string latencies = all_of(figures.latencies(), as_html);
  if (!latencies.empty()) content += html::folded("99th percentiles of latency", latencies);
  content += all_of(figures.loads(), as_html);
  return report::section("overview", "Overview",
                         "Every structure under every experiment. Plots, all percentiles and "
                         "intervals are below.",
                         content);
}

std::string published_section(const RangeFigures& figures) {
  const std::string tables = as_html(figures.orders()) + as_html(figures.recovery());
  if (tables.empty()) return "";
  const std::string source =
      fmt::format("<p>{}: {}.</p>\n", html::escape(kRangeSource), html::escape(kRangeConditions));
  return report::section("published", "What was published", kPublishedExplanation, source + tables);
}

}  // namespace

std::string range_table(const json& study) {
  const RangeFigures figures(study);
  std::string text;
  for (const auto& [name, value] : figures.results().conditions) text += wrap_fact({name, value});
  text += all_of(figures.throughputs(), as_text) + all_of(figures.latencies(), as_text) +
          all_of(figures.loads(), as_text);
  const std::string published = as_text(figures.orders()) + as_text(figures.recovery());
  if (!published.empty()) {
    text += "\n" +
            wrap_fact({"published", fmt::format("{}: {}. {}", kRangeSource, kRangeConditions,
                                                kPublishedExplanation)}) +
            published;
  }
  for (const std::string& remark : figures.results().remarks) text += "\n" + remark + "\n";
  return text;
}

std::string range_html(const json& study) {
  const RangeFigures figures(study);
  report::ReportOptions options;
  options.title = "Range indexes for persistent memory, compared";
  options.front = overview_section(figures) + published_section(figures);
  return report::to_html({figures.results()}, options);
}

}  // namespace perdure::lab::study
