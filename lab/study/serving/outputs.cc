// The study for people: on the terminal, and as a page.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/units.h"
#include "lab/html/page.h"
#include "lab/report/report.h"
#include "lab/report/sections.h"
#include "lab/report/statistics.h"
#include "lab/study/range/figures.h"
#include "lab/study/serving/published.h"
#include "lab/study/serving/serving.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;
using report::BenchRow;

// A row for each server, a column for each operation of these; empty if there is nothing.
TitledRows matrix_of(const report::ResultFile& results, const std::string& title,
                     const std::function<std::string(const BenchRow&)>& column,
                     const std::function<std::string(const BenchRow&)>& show) {
  std::vector<std::string> servers;
  std::vector<std::string> columns;
  const auto place = [](std::vector<std::string>& all, const std::string& name) {
    const auto found = std::ranges::find(all, name);
    if (found != all.end()) return static_cast<size_t>(found - all.begin());
    all.push_back(name);
    return all.size() - 1;
  };
  for (const BenchRow& row : results.bench) {
    if (row.is_load || column(row).empty()) continue;
    place(servers, row.structure);
    place(columns, column(row));
  }
  TitledRows table{.title = title};
  if (servers.empty()) return table;
  table.rows.assign(servers.size() + 1, TextRow(columns.size() + 1, "-"));
  table.rows[0][0] = "server";
  for (size_t i = 0; i < columns.size(); ++i) table.rows[0][i + 1] = columns[i];
  for (size_t i = 0; i < servers.size(); ++i) table.rows[i + 1][0] = servers[i];
  for (const BenchRow& row : results.bench) {
    if (row.is_load || column(row).empty()) continue;
    table.rows[place(servers, row.structure) + 1][place(columns, column(row)) + 1] = show(row);
  }
  return table;
}

std::string rate_text(const BenchRow& row) {
  return row.mops.empty() ? "-" : format_rate(report::estimate(row.mops).value * 1e6);
}

std::string tail_text(const BenchRow& row) {
  const auto& names = report::percentile_names();
  const auto at = static_cast<size_t>(std::ranges::find(names, "p99.9") - names.begin());
  return row.percentiles ? format_nanoseconds(row.percentiles->at(at)) : "-";
}

TitledRows costs_of(const json& study) {
  TitledRows table{.title = fmt::format(
                       "Memory after the load, and its price: {:.2f} for a GiB of DRAM, {:.2f} of "
                       "persistent memory",
                       study.at("prices").at("dram_gib").get<double>(),
                       study.at("prices").at("pm_gib").get<double>()),
                   .rows = {{"server", "values", "raw data", "DRAM", "DRAM B/record", "pool",
                             "pool B/record", "price of a GiB of raw data"}}};
  for (const json& cost : study.at("costs")) {
    const auto bytes = [&](const char* name) { return cost.at(name).get<double>(); };
    const auto records = std::max(cost.at("records").get<double>(), 1.0);
    const double raw_gib = bytes("raw_bytes") / (1 << 30);
    table.rows.push_back({cost.at("structure").get<std::string>(),
                          fmt::format("{} bytes", cost.at("value_bytes").get<uint64_t>()),
                          format_bytes(static_cast<uint64_t>(bytes("raw_bytes"))),
                          format_bytes(static_cast<uint64_t>(bytes("dram_bytes"))),
                          fmt::format("{:.1f}", bytes("dram_bytes") / records),
                          format_bytes(static_cast<uint64_t>(bytes("pm_bytes"))),
                          fmt::format("{:.1f}", bytes("pm_bytes") / records),
                          raw_gib > 0 ? fmt::format("{:.2f}", bytes("cost") / raw_gib) : "-"});
  }
  if (table.rows.size() == 1) table.rows.clear();
  return table;
}

TitledRows published_of() {
  TitledRows table{.title = "Published: price of the memory that each system took",
                   .rows = {{"system", "values of 100 bytes", "values of 1000 bytes"}}};
  for (const PublishedCost& each : published_costs()) {
    table.rows.push_back({std::string(each.system), fmt::format("$ {:.0f}", each.small_dollars),
                          fmt::format("$ {:.0f}", each.large_dollars)});
  }
  return table;
}

std::vector<TitledRows> serving_tables(const json& study, const report::ResultFile& results) {
  const auto closed = [](const BenchRow& row) { return row.offered_per_s > 0 ? "" : row.workload; };
  const auto open = [](const BenchRow& row) { return row.offered_per_s > 0 ? row.operation : ""; };
  return {matrix_of(results, "Operations in a second, closed loop", closed, rate_text),
          matrix_of(results, "p99.9 from when a request was due, open loop", open, tail_text),
          matrix_of(results, "p99.9 in the closed loop", closed, tail_text), costs_of(study)};
}

}  // namespace

std::string serving_table(const json& study) {
  const report::ResultFile results = report::to_result(study, "study");
  std::string text;
  for (const auto& [name, value] : results.conditions) text += wrap_fact({name, value});
  for (const TitledRows& table : serving_tables(study, results)) {
    if (table.rows.empty()) continue;
    text += "\n" + table.title + "\n" + align_columns(table.rows, table.text_columns);
  }
  const TitledRows published = published_of();
  text += "\n" +
          wrap_fact({"published", fmt::format("{}: {}", kServingSource, kServingConditions)}) +
          published.title + "\n" + align_columns(published.rows, published.text_columns);
  for (const std::string& remark : results.remarks) text += "\n" + remark + "\n";
  return text;
}

std::string serving_html(const json& study) {
  const report::ResultFile results = report::to_result(study, "study");
  const auto as_page = [](const TitledRows& table) {
    return table.rows.empty() ? ""
                              : fmt::format("<h3>{}</h3>\n{}", html::escape(table.title),
                                            html::table(table.rows, table.text_columns));
  };
  std::string content;
  for (const TitledRows& table : serving_tables(study, results)) content += as_page(table);
  report::ReportOptions options;
  options.title = "Key-value servers, compared";
  options.front =
      report::section("overview", "Overview", "Every server under every mix. Plots are below.",
                      content) +
      report::section(
          "published", "What was published",
          "Prices of another machine's memory with other records: what compares is their order.",
          fmt::format("<p>{}: {}.</p>\n", html::escape(kServingSource),
                      html::escape(kServingConditions)) +
              as_page(published_of()));
  return report::to_html({results}, options);
}

}  // namespace perdure::lab::study
