// How the results of one run of the benchmark differ from those of another.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "lab/html/bars.h"
#include "lab/html/page.h"
#include "lab/report/sections.h"
#include "lab/report/statistics.h"

namespace perdure::lab::report {
namespace {

using html::Unit;

struct Pair {
  const BenchRow* first;
  const BenchRow* second;
  std::optional<Estimate> throughput;  // the ratio, second to first
};

std::vector<Pair> pairs_of(const ResultFile& first, const ResultFile& second) {
  std::vector<Pair> pairs;
  for (const BenchRow& a : first.bench) {
    for (const BenchRow& b : second.bench) {
      if (a.structure == b.structure && a.operation == b.operation && a.threads == b.threads) {
        pairs.push_back({&a, &b, ratio(a.mops, b.mops)});
      }
    }
  }
  return pairs;
}

const char* verdict(const Estimate& ratio) {
  if (!ratio.low || !ratio.high) return "unclear";
  if (*ratio.low > 1) return "faster";
  if (*ratio.high < 1) return "slower";
  return "unclear";
}

std::string change(double first, double second, Unit unit) {
  if (!std::isfinite(first) || !std::isfinite(second)) return "-";
  std::string text =
      fmt::format("{} \u2192 {}", html::number_text(first, unit), html::number_text(second, unit));
  if (first > 0) text += fmt::format(" ({:+.1f} %)", (second / first - 1) * 100);
  return text;
}

double percentile(const BenchRow& row, const char* name) {
  if (!row.percentiles) return NAN;
  const auto& names = percentile_names();
  return (*row.percentiles)[static_cast<size_t>(std::ranges::find(names, name) - names.begin())];
}

std::string ratio_plot(const std::string& operation, const std::vector<Pair>& pairs) {
  html::IntervalChart chart{
      .title = operation + ": throughput, second / first",
      .label = "ratio of throughputs (1: no difference; right: second faster)"};
  std::vector<TextRow> table = {{"structure", "verdict", "threads", "first M ops/s",
                                 "second M ops/s", "ratio", "95 % interval", "median latency",
                                 "99th percentile", "PM bytes", "DRAM bytes"}};
  for (const Pair& pair : pairs) {
    const BenchRow& a = *pair.first;
    const BenchRow& b = *pair.second;
    if (a.operation != operation || !pair.throughput) continue;
    const Estimate& r = *pair.throughput;
    chart.rows.push_back(
        {fmt::format("{}, {} thread{}", a.structure, a.threads, a.threads == 1 ? "" : "s"), r.value,
         r.low, r.high});
    table.push_back({a.structure, verdict(r), std::to_string(a.threads),
                     fmt::format("{:.3f}", estimate(a.mops).value),
                     fmt::format("{:.3f}", estimate(b.mops).value), fmt::format("{:.3f}", r.value),
                     r.low ? fmt::format("{:.3f} to {:.3f}", *r.low, *r.high) : "-",
                     change(percentile(a, "p50"), percentile(b, "p50"), Unit::kNanoseconds),
                     change(percentile(a, "p99"), percentile(b, "p99"), Unit::kNanoseconds),
                     change(a.pool_bytes, b.pool_bytes, Unit::kBytes),
                     change(a.dram_bytes, b.dram_bytes, Unit::kBytes)});
  }
  const std::string drawing = html::draw(chart);
  return drawing.empty() ? "" : html::figure(drawing) + html::table(table, 2);
}

// Conditions that differ: what a difference of the results may come from.
std::string differences(const ResultFile& first, const ResultFile& second) {
  std::vector<TextRow> rows = {{"", "first: " + first.label, "second: " + second.label}};
  for (const auto& [name, value] : first.conditions) {
    const auto other =
        std::ranges::find(second.conditions, name, &std::pair<std::string, std::string>::first);
    const std::string words = other == second.conditions.end() ? "-" : other->second;
    if (words != value && name != "started") rows.push_back({name, value, words});
  }
  for (const auto& [name, value] : second.conditions) {
    if (std::ranges::find(first.conditions, name, &std::pair<std::string, std::string>::first) ==
        first.conditions.end()) {
      rows.push_back({name, "-", value});
    }
  }
  if (rows.size() == 1) return "<p>Both were measured under the same conditions.</p>\n";
  return "<p>Conditions that differ:</p>\n" + html::table(rows, 3);
}

// What only one of the files has.
std::string unmatched(const ResultFile& file, const ResultFile& other) {
  std::string names;
  for (const BenchRow& row : file.bench) {
    const bool there = std::ranges::any_of(other.bench, [&](const BenchRow& candidate) {
      return candidate.structure == row.structure && candidate.operation == row.operation &&
             candidate.threads == row.threads;
    });
    if (there) continue;
    names += fmt::format("{}{} {} \u00d7{}", names.empty() ? "" : ", ", row.structure,
                         row.operation, row.threads);
  }
  return names.empty() ? ""
                       : fmt::format("<p>Only in {}: {}.</p>\n", html::escape(file.label),
                                     html::escape(names));
}

}  // namespace

std::string comparison_section(const ResultFile& first, const ResultFile& second) {
  const std::vector<Pair> pairs = pairs_of(first, second);
  std::vector<std::string> operations;
  for (const Pair& pair : pairs) {
    if (std::ranges::find(operations, pair.first->operation) == operations.end()) {
      operations.push_back(pair.first->operation);
    }
  }
  std::string content = differences(first, second);
  for (const std::string& operation : operations) content += ratio_plot(operation, pairs);
  if (operations.empty()) content += "<p>The two have no measurement in common.</p>\n";
  content += unmatched(first, second) + unmatched(second, first);
  return section(
      "comparison", "Comparison",
      fmt::format(
          "{} (second) against {} (first): the ratio of the geometric means of the "
          "repeats. Intervals are 95 % confidence intervals by Welch's t test on the "
          "logarithms of the repeats; without at least two repeats on each side there are "
          "none. Green lies above 1 with its whole interval, red below; of the others it is "
          "unclear which is faster. Of twenty comparisons of equals one comes out coloured "
          "by chance. Intervals cover the spread between the repeats of a run, not what "
          "differs from run to run.",
          second.label, first.label),
      content);
}

}  // namespace perdure::lab::report
