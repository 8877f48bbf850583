#include "lab/study/range/figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/units.h"
#include "lab/report/statistics.h"
#include "lab/study/range/published.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;
using report::BenchRow;

std::string title_of(RangePart part) {
  switch (part) {
    case RangePart::kUniform:
      return "8-byte keys and values, uniform";
    case RangePart::kSelfSimilar:
      return "8-byte keys and values, self-similar 0.2";
    case RangePart::kLongKeys:
      return "keys of 20 and values of 100 bytes, uniform";
    case RangePart::kLoad:
      break;
  }
  return "loads";
}

double mops_of(const BenchRow& row) { return report::estimate(row.mops).value; }

std::string show_mops(const BenchRow& row) {
  return row.mops.empty() ? "-" : fmt::format("{:.3f}", mops_of(row));
}

std::string show_p99(const BenchRow& row) {
  const auto& names = report::percentile_names();
  const auto at = static_cast<size_t>(std::ranges::find(names, "p99") - names.begin());
  return row.percentiles ? format_nanoseconds(row.percentiles->at(at)) : "-";
}

std::string show_ms(const std::vector<double>& ms) {
  return ms.empty() ? "-" : format_nanoseconds(report::estimate(ms).value * 1e6);
}

std::string per_record(double bytes, const BenchRow& row) {
  if (row.records == 0) return "-";
  return fmt::format("{:.1f}", bytes / static_cast<double>(row.records));
}

// How many times as long the second takes; "-" if one is not known.
std::string growth(const std::vector<double>& half, const std::vector<double>& full) {
  if (half.empty() || full.empty() || report::estimate(half).value <= 0) return "-";
  return fmt::format("x {:.2f}", report::estimate(full).value / report::estimate(half).value);
}

template <class Value>
void add_once(std::vector<Value>& all, const Value& value) {
  if (std::ranges::find(all, value) == all.end()) all.push_back(value);
}

}  // namespace

RangeFigures::RangeFigures(const json& study) : results_(report::to_result(study, "study")) {
  json of_half = study;
  of_half["results"] = study.at("results_of_half");
  half_ = report::to_result(of_half, "study");
  for (const json& each : study.at("experiments")) {
    columns_.push_back({.experiment = each.at("name"),
                        .name = each.at("column"),
                        .part = parse_range_part(each.at("part").get<std::string>())});
  }
  for (const BenchRow& row : results_.bench) {
    add_once(structures_, row.structure);
    add_once(threads_, row.threads);
  }
  std::ranges::sort(threads_);
}

const BenchRow* RangeFigures::find(const std::string& experiment, const std::string& structure,
                                   unsigned threads) const {
  const auto found = std::ranges::find_if(results_.bench, [&](const BenchRow& row) {
    return row.operation == experiment && row.structure == structure && row.threads == threads;
  });
  return found == results_.bench.end() ? nullptr : &*found;
}

std::vector<TitledRows> RangeFigures::matrices(const std::string& quantity,
                                               std::string (&show)(const BenchRow&)) const {
  std::vector<TitledRows> all;
  for (const RangePart part : kRangeParts) {
    if (part == RangePart::kLoad) continue;
    for (const unsigned threads : threads_) {
      TitledRows table{.title = fmt::format("{}: {}, {}", quantity, title_of(part),
                                            format_counted(threads, "thread")),
                       .rows = {{"structure"}}};
      for (const Column& column : columns_) {
        if (column.part == part) table.rows[0].push_back(column.name);
      }
      for (const std::string& structure : structures_) {
        TextRow row = {structure};
        bool any = false;
        for (const Column& column : columns_) {
          if (column.part != part) continue;
          const BenchRow* found = find(column.experiment, structure, threads);
          any = any || found != nullptr;
          row.push_back(found == nullptr ? "-" : show(*found));
        }
        if (any) table.rows.push_back(std::move(row));
      }
      if (table.rows.size() > 1) all.push_back(std::move(table));
    }
  }
  return all;
}

std::vector<TitledRows> RangeFigures::throughputs() const {
  return matrices("Throughput in M ops/s", show_mops);
}

std::vector<TitledRows> RangeFigures::latencies() const {
  return matrices("99th percentile of latency", show_p99);
}

std::vector<TitledRows> RangeFigures::loads() const {
  std::vector<TitledRows> all;
  for (const Column& column : columns_) {
    if (column.part != RangePart::kLoad) continue;
    TitledRows table{.title = column.experiment, .rows = {{"structure"}}};
    TextRow& header = table.rows[0];
    for (const unsigned threads : threads_) {
      header.push_back(fmt::format("M ops/s, {}", format_counted(threads, "thread")));
    }
    for (const char* name :
         {"PM B/record", "x raw", "DRAM B/record", "open, closed", "open, killed"}) {
      header.emplace_back(name);
    }
    for (const std::string& structure : structures_) {
      TextRow row = {structure};
      const BenchRow* first = nullptr;
      for (const unsigned threads : threads_) {
        const BenchRow* found = find(column.experiment, structure, threads);
        row.push_back(found == nullptr ? "-" : show_mops(*found));
        if (first == nullptr) first = found;
      }
      if (first == nullptr) continue;
      row.push_back(per_record(first->pool_bytes, *first));
      row.push_back(first->space_amplification ? fmt::format("{:.2f}", *first->space_amplification)
                                               : "-");
      row.push_back(per_record(first->dram_bytes, *first));
      row.push_back(show_ms(first->open_clean_ms));
      row.push_back(show_ms(first->open_killed_ms));
      table.rows.push_back(std::move(row));
    }
    if (table.rows.size() > 1) all.push_back(std::move(table));
  }
  return all;
}

// Those that the published comparison had, from the fastest.
std::vector<const BenchRow*> RangeFigures::of_compared(std::string_view experiment) const {
  std::vector<const BenchRow*> rows;
  for (const BenchRow& row : results_.bench) {
    if (row.operation == experiment && row.threads == threads_.front() && !row.mops.empty() &&
        was_compared(row.structure)) {
      rows.push_back(&row);
    }
  }
  std::ranges::sort(rows, std::greater<>(), [](const BenchRow* row) { return mops_of(*row); });
  return rows;
}

TitledRows RangeFigures::orders() const {
  TitledRows table{.title = "Orders of these structures", .text_columns = 5};
  for (const PublishedOrder& order : published_orders()) {
    const auto rows = of_compared(order.experiment);
    const auto is_it = [&](const BenchRow* row) { return row->structure == order.structure; };
    if (rows.size() < 2 || std::ranges::none_of(rows, is_it)) continue;
    if (table.rows.empty()) {
      table.rows.push_back({"published", "so", "experiment", "here, in M ops/s", "agrees"});
    }
    std::string here;
    for (const BenchRow* row : rows) {
      here += fmt::format("{}{} {:.3f}", here.empty() ? "" : ", ", row->structure, mops_of(*row));
    }
    const bool agrees = is_it(order.is_fastest ? rows.front() : rows.back());
    table.rows.push_back(
        {std::string(order.statement),
         fmt::format("{} is the {}", order.structure, order.is_fastest ? "fastest" : "slowest"),
         std::string(order.experiment), here, agrees ? "yes" : "no"});
  }
  return table;
}

TitledRows RangeFigures::recovery() const {
  TitledRows table{.title = "Opening after a crash, and its growth when the records double"};
  for (const BenchRow& full : results_.bench) {
    if (full.operation != "load" || full.threads != threads_.front()) continue;
    const auto half = std::ranges::find_if(half_.bench, [&](const BenchRow& row) {
      return row.structure == full.structure && row.threads == full.threads;
    });
    if (full.open_killed_ms.empty()) continue;
    const auto half_ms = half == half_.bench.end() ? std::vector<double>() : half->open_killed_ms;
    if (table.rows.empty()) {
      table.rows.push_back({"structure", "published: 50 M", "100 M", "growth",
                            fmt::format("here: {}", format_count(full.records / 2)),
                            format_count(full.records), "growth"});
    }
    const auto known =
        std::ranges::find(published_recovery(), full.structure, &PublishedRecovery::structure);
    TextRow row = {full.structure};
    if (known == published_recovery().end()) {
      row.insert(row.end(), {"-", "-", "-"});
    } else {
      row.insert(row.end(),
                 {format_nanoseconds(known->half_s * 1e9), format_nanoseconds(known->full_s * 1e9),
                  growth({known->half_s}, {known->full_s})});
    }
    row.insert(row.end(), {show_ms(half_ms), show_ms(full.open_killed_ms),
                           growth(half_ms, full.open_killed_ms)});
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace perdure::lab::study
