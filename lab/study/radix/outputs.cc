// The evaluation for people: on the terminal, and as a page.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "lab/html/lines.h"
#include "lab/html/page.h"
#include "lab/report/report.h"
#include "lab/report/sections.h"
#include "lab/study/radix/figures.h"
#include "lab/study/radix/published.h"
#include "lab/study/radix/radix_trees.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr char kRadixExplanation[] =
    "Its figures are of other machines, and its trees are other implementations, for one thread; "
    "what is said of "
    "their order is set beside the order here, of the least number of threads.";

std::string radix_overview(const RadixFigures& figures) {
  std::string content;
  for (const html::LineChart& chart : figures.charts()) {
    content += html::figure(html::draw(chart));
  }
  content += all_of(figures.inserts(), as_html) + as_html(figures.flushes()) +
             all_of(figures.searches(), as_html) + all_of(figures.ranges(), as_html) +
             as_html(figures.memory());
  return report::section("overview", "Overview",
                         "Every structure with every distribution of keys and write latency. All "
                         "percentiles and intervals are below.",
                         content);
}

std::string source_words() {
  return fmt::format("{}: {}. {}", kRadixSource, kRadixConditions, kRadixExplanation);
}

}  // namespace

std::string radix_table(const json& study) {
  const RadixFigures figures(study);
  std::string text;
  for (const auto& [name, value] : figures.results().conditions) text += wrap_fact({name, value});
  text += all_of(figures.inserts(), as_text) + as_text(figures.flushes()) +
          all_of(figures.searches(), as_text) + all_of(figures.ranges(), as_text) +
          as_text(figures.memory());
  const std::string published = as_text(figures.published());
  if (!published.empty()) text += "\n" + wrap_fact({"published", source_words()}) + published;
  for (const std::string& remark : figures.results().remarks) text += "\n" + remark + "\n";
  return text;
}

std::string radix_html(const json& study) {
  const RadixFigures figures(study);
  report::ReportOptions options;
  options.title = "Radix trees and B+trees for persistent memory, compared";
  options.front = radix_overview(figures);
  const std::string published = as_html(figures.published());
  if (!published.empty()) {
    options.front += report::section("published", "What was published", source_words(), published);
  }
  return report::to_html({figures.results()}, options);
}

}  // namespace perdure::lab::study
