#include <fmt/core.h>

#include "lab/html/bars.h"
#include "lab/html/page.h"
#include "lab/study/table.h"
#include "lab/study/write_amplification.h"

namespace perdure::lab::study {
namespace {

constexpr char kIntroduction[] =
    "<p>What each structure writes to persistent memory, counted on a model of it. <b>WPQ "
    "inserts</b> are the 64-byte writes that reach the memory controller, by flushes, non-temporal "
    "stores and evictions. <b>Media writes</b>, in units of 64 bytes, are what the medium writes "
    "then, in blocks of its own size: their ratio is 1 where neighbours combine to whole blocks of "
    "256 bytes, and 4 where each write is alone in its block.</p>\n";

html::BarChart writes_chart(const std::vector<const AmpResult*>& cells,
                            const std::string& workload) {
  const std::string per(counted_operation(*cells.front()));
  html::BarChart chart{.title = fmt::format("{}: writes per {}", workload, per),
                       .label = "per " + per,
                       .series = {"WPQ inserts", "media writes (64 B)"}};
  for (const AmpResult* cell : cells) {
    chart.groups.push_back({cell->structure,
                            {value_of(*cell, Quantity::kWpqInserts).value_or(0),
                             value_of(*cell, Quantity::kMediaWrites).value_or(0)},
                            {}});
  }
  return chart;
}

html::BarChart ratio_chart(const StudyReport& report, const std::vector<const AmpResult*>& cells,
                           const std::string& workload) {
  html::BarChart chart{.title = workload + ": media writes per WPQ insert",
                       .label = "per WPQ insert",
                       .series = {"media writes per WPQ insert"},
                       .mark_name = "published"};
  for (const AmpResult* cell : cells) {
    const Compared compared = compare(*cell, Quantity::kMediaPerWpqInsert);
    html::BarGroup& group = chart.groups.emplace_back();
    group.name = cell->structure;
    group.values = {compared.value.value_or(0)};
    if (compared.published != nullptr && report.is_comparable()) {
      group.mark = compared.published->value;
    }
  }
  return chart;
}

std::string workload_section(const StudyReport& report, const AmpWorkload& workload) {
  const auto cells = cells_of(report, workload.name);
  if (cells.empty()) return "";
  const std::string title = workload_title(report, workload);
  const std::string name = title.substr(0, title.find(':'));
  const std::string figures = html::figure(html::draw(writes_chart(cells, name))) +
                              html::figure(html::draw(ratio_chart(report, cells, name)));
  return fmt::format("<section><h2>{}</h2>\n{}{}</section>\n", html::escape(title),
                     figures.empty() ? "<p>No structure wrote anything.</p>\n" : figures,
                     html::table(workload_rows(report, workload.name), 1));
}

}  // namespace

std::string to_html(const StudyReport& report) {
  std::string body = kIntroduction + html::facts(condition_rows(report));
  for (const std::string& line : remarks(report)) {
    body += fmt::format("<p><strong>{}</strong></p>\n", html::escape(line));
  }
  for (const AmpWorkload& workload : report.options.workloads) {
    body += workload_section(report, workload);
  }
  if (const auto rows = effect_rows(report); !rows.empty()) {
    body +=
        "<section><h2>Effect of the optimisations</h2>\n"
        "<p>Change against the same structure without them.</p>\n" +
        html::table(rows, kEffectTextColumns) + "</section>\n";
  }
  std::vector<TextRow> parameters;
  for (const auto& [name, value] : describe(report.profile)) parameters.push_back({name, value});
  body += "<section><h2>The modelled memory</h2>\n" + html::facts(parameters) + "</section>\n";
  return html::page("Write amplification of persistent indexes", body);
}

}  // namespace perdure::lab::study
