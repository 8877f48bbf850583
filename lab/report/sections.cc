#include "lab/report/sections.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/units.h"
#include "lab/html/bars.h"
#include "lab/html/lines.h"
#include "lab/html/page.h"
#include "lab/report/statistics.h"

namespace perdure::lab::report {
namespace {

using html::Unit;

std::string title_of(const std::string& operation) {
  return operation == "load" ? "load (inserts)" : operation;
}

std::string interval_text(const Estimate& estimate) {
  if (!estimate.low) return "-";
  return fmt::format("{} to {}", html::number_text(*estimate.low),
                     html::number_text(*estimate.high));
}

std::vector<TextRow> throughput_table(const std::vector<SeriesRow>& rows) {
  std::vector<TextRow> table = {{"structure", "threads", "M ops/s", "least", "largest",
                                 "95 % interval of the mean", "repeats", "ns/op", "failed"}};
  for (const SeriesRow& series : rows) {
    const BenchRow& row = *series.row;
    if (row.mops.empty()) continue;
    const Estimate mops = estimate(row.mops);
    table.push_back({series.label, std::to_string(row.threads), fmt::format("{:.3f}", mops.value),
                     fmt::format("{:.3f}", *std::ranges::min_element(row.mops)),
                     fmt::format("{:.3f}", *std::ranges::max_element(row.mops)),
                     interval_text(mops), std::to_string(row.mops.size()),
                     fmt::format("{:.1f}", row.ns_per_op), format_count(row.failed)});
  }
  return table;
}

// Curves over the numbers of threads.
std::string throughput_lines(const std::string& operation, const std::vector<SeriesRow>& rows,
                             bool logarithmic) {
  html::LineChart chart{.title = title_of(operation),
                        .x_label = logarithmic ? "threads (log scale)" : "threads",
                        .y_label = "M ops/s",
                        .x_logarithmic = logarithmic};
  for (const SeriesRow& series : rows) {
    if (series.row->mops.empty()) continue;
    auto curve = std::ranges::find(chart.curves, series.series, &html::Curve::series);
    if (curve == chart.curves.end()) {
      curve = chart.curves.insert(curve, {series.label, series.series, {}});
    }
    const Estimate mops = estimate(series.row->mops);
    curve->points.push_back(
        {static_cast<double>(series.row->threads), mops.value, mops.low, mops.high});
  }
  for (html::Curve& curve : chart.curves) std::ranges::sort(curve.points, {}, &html::Point::x);
  return html::draw(chart);
}

std::string throughput_bars(const std::string& operation, const std::vector<SeriesRow>& rows) {
  html::BarChart chart{.title = title_of(operation), .label = "M ops/s", .series = {"M ops/s"}};
  for (const SeriesRow& series : rows) {
    chart.groups.push_back({series.label, {estimate(series.row->mops).value}});
  }
  return html::draw(chart);
}

std::string threads_text(unsigned threads) { return format_counted(threads, "thread"); }

std::vector<TextRow> latency_table(const std::vector<SeriesRow>& rows) {
  std::vector<TextRow> table = {{"structure", "operation"}};
  for (const std::string& name : percentile_names()) table[0].push_back(name);
  const auto add = [&](const std::string& label, const std::string& type,
                       const Percentiles& percentiles) {
    TextRow& row = table.emplace_back(TextRow{label, type});
    for (const double value : percentiles) row.push_back(or_dash(value, Unit::kNanoseconds));
  };
  for (const SeriesRow& series : rows) {
    if (series.row->percentiles) add(series.label, "all", *series.row->percentiles);
    if (series.row->by_operation.size() < 2) continue;
    for (const auto& [type, percentiles] : series.row->by_operation) {
      add(series.label, type, percentiles);
    }
  }
  return table;
}

std::string latency_plot(const std::string& operation, unsigned threads,
                         const std::vector<SeriesRow>& rows) {
  html::LineChart chart{.title = fmt::format("{}, {}", title_of(operation), threads_text(threads)),
                        .x_label = "percentile",
                        .y_label = "latency of one operation (log scale)",
                        .y_unit = Unit::kNanoseconds,
                        .y_logarithmic = true,
                        .x_names = percentile_names()};
  for (const SeriesRow& series : rows) {
    if (!series.row->percentiles) continue;
    html::Curve& curve = chart.curves.emplace_back(html::Curve{series.label, series.series, {}});
    for (size_t i = 0; i < series.row->percentiles->size(); ++i) {
      curve.points.push_back({static_cast<double>(i), (*series.row->percentiles)[i]});
    }
  }
  return html::figure(html::draw(chart), latency_table(rows), 2);
}

size_t percentile_place(std::string_view name) {
  const auto& names = percentile_names();
  return static_cast<size_t>(std::ranges::find(names, name) - names.begin());
}

// One percentile over the rates that were offered.
std::string rates_plot(const std::string& workload, const std::string& percentile,
                       const std::vector<SeriesRow>& rows) {
  html::LineChart chart{.title = fmt::format("{}, {}", workload, percentile),
                        .x_label = "requests in a second that were offered",
                        .y_label = "latency from when a request was due (log scale)",
                        .y_unit = Unit::kNanoseconds,
                        .y_logarithmic = true};
  std::vector<TextRow> table = {
      {"server", "offered /s", "answered /s", percentile, "CPU an operation"}};
  for (const SeriesRow& series : rows) {
    const BenchRow& row = *series.row;
    if (row.offered_per_s <= 0 || !row.percentiles || row.mops.empty()) continue;
    auto curve = std::ranges::find(chart.curves, series.series, &html::Curve::series);
    if (curve == chart.curves.end()) {
      curve = chart.curves.insert(curve, {series.label, series.series, {}});
    }
    const double latency = (*row.percentiles)[percentile_place(percentile)];
    curve->points.push_back({row.offered_per_s, latency});
    table.push_back({series.label, html::number_text(row.offered_per_s),
                     html::number_text(estimate(row.mops).value * 1e6),
                     or_dash(latency, Unit::kNanoseconds),
                     or_dash(row.server_us_per_op * 1e3, Unit::kNanoseconds)});
  }
  for (html::Curve& curve : chart.curves) std::ranges::sort(curve.points, {}, &html::Point::x);
  return html::figure(html::draw(chart), table, 1);
}

// The repeat whose throughput is nearest the median.
size_t typical_repeat(const BenchRow& row) {
  const double median = estimate(row.mops).value;
  size_t best = 0;
  for (size_t i = 1; i < std::min(row.windows.size(), row.mops.size()); ++i) {
    if (std::fabs(row.mops[i] - median) < std::fabs(row.mops[best] - median)) best = i;
  }
  return best;
}

std::string windows_plot(const std::string& operation, unsigned threads,
                         const std::vector<SeriesRow>& rows) {
  html::LineChart chart{.title = fmt::format("{}, {}", title_of(operation), threads_text(threads)),
                        .x_label = "seconds from the start of the phase",
                        .y_label = "M ops/s in each window"};
  size_t longest = 0;
  for (const SeriesRow& series : rows) {
    if (series.row->windows.empty()) continue;
    html::Curve& curve = chart.curves.emplace_back(html::Curve{series.label, series.series, {}});
    const std::vector<double>& windows = series.row->windows[typical_repeat(*series.row)];
    for (size_t i = 0; i < windows.size(); ++i) {
      curve.points.push_back({static_cast<double>(i + 1) * series.row->window_s, windows[i]});
    }
    longest = std::max(longest, windows.size());
  }
  chart.markers = longest <= 12;
  // A line for each series, a column for each window: many columns scroll.
  std::vector<TextRow> table = {{"structure", "window"}};
  for (size_t i = 0; i < longest; ++i) table[0].push_back(std::to_string(i + 1));
  for (const SeriesRow& series : rows) {
    if (series.row->windows.empty()) continue;
    TextRow& row = table.emplace_back(
        TextRow{series.label, html::number_text(series.row->window_s * 1e9, Unit::kNanoseconds)});
    for (const double mops : series.row->windows[typical_repeat(*series.row)]) {
      row.push_back(fmt::format("{:.3f}", mops));
    }
  }
  return html::figure(html::draw(chart), table, 2);
}

// A plot for each operation and number of threads; those between the least and the largest are
// folded.
std::string for_each_phase(const SeriesList& list,
                           std::string (&plot)(const std::string& operation, unsigned threads,
                                               const std::vector<SeriesRow>& rows)) {
  std::string content;
  for (const std::string& operation : list.operations()) {
    std::string between;
    for (const unsigned threads : list.threads()) {
      const bool outermost = threads == list.threads().front() || threads == list.threads().back();
      (outermost ? content : between) +=
          plot(operation, threads, list.of_operation(operation, threads));
    }
    if (between.empty()) continue;
    content += html::folded(title_of(operation) + ", other numbers of threads", between);
  }
  return content;
}

double per_record(double bytes, const BenchRow& row) {
  return row.records == 0 ? kNone : bytes / static_cast<double>(row.records);
}

double median_or_none(const std::vector<double>& values) {
  return values.empty() ? kNone : estimate(values).value;
}

// Workloads and what they are divided by, in the order in which they first come.
std::vector<std::pair<std::string, std::string>> workloads_of(const ResultFile& file) {
  std::vector<std::pair<std::string, std::string>> workloads;
  for (const WriteRow& row : file.writes) {
    const std::pair workload(row.workload, row.operation);
    if (std::ranges::find(workloads, workload) == workloads.end()) workloads.push_back(workload);
  }
  return workloads;
}

std::string writes_plot(const ResultFile& file, const std::string& workload,
                        const std::string& operation, bool named) {
  html::BarChart chart{.title = fmt::format("{}{}: writes per {}", workload,
                                            named ? " (" + file.label + ")" : "", operation),
                       .label = "64-byte writes per " + operation,
                       .series = {"WPQ inserts", "media writes"}};
  std::vector<TextRow> table = {{"structure", "WPQ inserts per " + operation,
                                 "media writes per " + operation, "media per WPQ insert"}};
  for (const WriteRow& row : file.writes) {
    if (row.workload != workload || row.operation != operation) continue;
    chart.groups.push_back({row.structure, {row.wpq_inserts, row.media_writes}});
    table.push_back({row.structure, or_dash(row.wpq_inserts), or_dash(row.media_writes),
                     or_dash(row.media_per_wpq_insert)});
  }
  const std::string drawing = html::draw(chart);
  return drawing.empty() ? html::table(table, 1) : html::figure(drawing, table, 1);
}

}  // namespace

std::string section(const std::string& anchor, const std::string& title,
                    const std::string& explanation, const std::string& content) {
  if (content.empty()) return "";
  return fmt::format("<section id=\"{}\"><h2>{}</h2>\n<p>{}</p>\n{}</section>\n", anchor,
                     html::escape(title), html::escape(explanation), content);
}

std::string or_dash(double value, html::Unit unit) {
  return std::isfinite(value) ? html::number_text(value, unit) : "-";
}

std::string throughput_section(const SeriesList& list) {
  std::string content;
  for (const std::string& operation : list.operations()) {
    const std::vector<SeriesRow> rows = list.of_operation(operation);
    const bool logarithmic = list.threads().back() >= 8 * list.threads().front();
    const std::string drawing = list.threads().size() > 1
                                    ? throughput_lines(operation, rows, logarithmic)
                                    : throughput_bars(operation, rows);
    content += html::figure(drawing, throughput_table(rows), 1);
  }
  return section("throughput", "Throughput",
                 "Millions of operations in a second, the median of the repeats. Whiskers are the "
                 "95 % confidence interval of the mean (Student's t over the repeats).",
                 content);
}

std::string latency_section(const SeriesList& list) {
  const std::string content = for_each_phase(list, latency_plot);
  return section("latency", "Latency",
                 "Latencies of single operations that were timed one by one; each percentile is "
                 "the median of the repeats, the minimum and maximum those of all.",
                 content);
}

std::string rates_section(const SeriesList& list) {
  std::vector<std::string> workloads;
  for (const SeriesRow& series : list.rows()) {
    const std::string& workload = series.row->workload;
    if (series.row->offered_per_s <= 0) continue;
    if (std::ranges::find(workloads, workload) == workloads.end()) workloads.push_back(workload);
  }
  std::string content;
  for (const std::string& workload : workloads) {
    std::vector<SeriesRow> rows;
    std::ranges::copy_if(list.rows(), std::back_inserter(rows),
                         [&](const SeriesRow& series) { return series.row->workload == workload; });
    content += rates_plot(workload, "p99.9", rows) +
               html::folded(workload + ", other percentiles",
                            rates_plot(workload, "p50", rows) + rates_plot(workload, "p99", rows));
  }
  return section("rates", "Latency against rate",
                 "Requests came by the clock, whatever the server did: one that had to wait for "
                 "its turn counts "
                 "with its waiting. Medians of the repeats.",
                 content);
}

std::string windows_section(const SeriesList& list) {
  const std::string content = for_each_phase(list, windows_plot);
  return section("time", "Over time",
                 "Throughput in successive windows of the repeat that is nearest the median: dips "
                 "are resizes, splits, compactions, or the machine.",
                 content);
}

std::string memory_section(const SeriesList& list) {
  html::BarChart bytes{.title = "Memory for each record",
                       .label = "bytes per record",
                       .unit = Unit::kBytes,
                       .series = {"persistent memory", "DRAM"},
                       .mark_name = "the record itself"};
  html::BarChart amplification{.title = "Space amplification",
                               .label = "persistent memory / bytes of keys and values",
                               .series = {"space amplification"}};
  std::vector<TextRow> table = {{"structure", "records", "persistent memory", "PM B/record", "DRAM",
                                 "DRAM B/record", "raw data", "space amplification"}};
  for (const SeriesRow& series : list.loads()) {
    const BenchRow& row = *series.row;
    bytes.groups.push_back(
        {series.label, {per_record(row.pool_bytes, row), per_record(row.dram_bytes, row)}});
    if (row.records > 0) bytes.groups.back().mark = per_record(row.raw_bytes, row);
    amplification.groups.push_back({series.label, {row.space_amplification.value_or(kNone)}});
    const auto size = [](double b) { return format_bytes(static_cast<uint64_t>(b)); };
    table.push_back({series.label, format_count(row.records), size(row.pool_bytes),
                     or_dash(per_record(row.pool_bytes, row)), size(row.dram_bytes),
                     or_dash(per_record(row.dram_bytes, row)), size(row.raw_bytes),
                     or_dash(row.space_amplification.value_or(kNone))});
  }
  return section("memory", "Memory",
                 "What the structure takes when the load has ended: on its medium, and in DRAM.",
                 html::figure(html::draw(bytes), table, 1) +
                     html::figure(html::draw(amplification), table, 1));
}

std::string recovery_section(const SeriesList& list) {
  html::BarChart chart{.title = "Time to open",
                       .label = "time until the first operation can run",
                       .unit = Unit::kNanoseconds,
                       .series = {"after a clean close", "after a kill"}};
  std::vector<TextRow> table = {{"structure", "records", "after a clean close", "after a kill"}};
  bool any_killed = false;
  for (const SeriesRow& series : list.loads()) {
    const double clean = median_or_none(series.row->open_clean_ms) * 1e6;
    const double killed = median_or_none(series.row->open_killed_ms) * 1e6;
    if (std::isnan(clean) && std::isnan(killed)) continue;
    any_killed = any_killed || std::isfinite(killed);
    chart.groups.push_back({series.label, {clean, killed}});
    table.push_back({series.label, format_count(series.row->records),
                     or_dash(clean, Unit::kNanoseconds), or_dash(killed, Unit::kNanoseconds)});
  }
  if (!any_killed) {
    chart.series.pop_back();
    for (html::BarGroup& group : chart.groups) group.values.pop_back();
    for (TextRow& row : table) row.pop_back();
  }
  return section("recovery", "Recovery",
                 any_killed
                     ? "Medians of the repeats. The kill is SIGKILL, when the load has ended."
                     : "Medians of the repeats.",
                 html::figure(html::draw(chart), table, 1));
}

std::string writes_section(const std::vector<ResultFile>& files) {
  const auto with_writes =
      std::ranges::count_if(files, [](const ResultFile& file) { return !file.writes.empty(); });
  std::string content;
  for (const ResultFile& file : files) {
    for (const auto& [workload, operation] : workloads_of(file)) {
      content += writes_plot(file, workload, operation, with_writes > 1);
    }
  }
  return section("writes", "Write amplification",
                 "Counted on a model of the memory. WPQ inserts are the 64-byte writes that reach "
                 "the memory controller; media writes, in the same unit, are what the medium then "
                 "writes in blocks of its own size.",
                 content);
}

}  // namespace perdure::lab::report
