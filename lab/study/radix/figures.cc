#include "lab/study/radix/figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/units.h"
#include "lab/study/radix/published.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;
using report::BenchRow;
using report::kNone;

std::string show_ns(double ns) { return std::isnan(ns) ? "-" : fmt::format("{:.0f}", ns); }
std::string show_count(double count) {
  return std::isnan(count) ? "-" : fmt::format("{:.2f}", count);
}

template <class Value>
void add_if_new(std::vector<Value>& all, const Value& value) {
  if (std::ranges::find(all, value) == all.end()) all.push_back(value);
}

RadixOperation operation_of(const std::string& mix) {
  if (mix == "insert") return RadixOperation::kInsert;
  return mix == "lookup" ? RadixOperation::kSearch : RadixOperation::kRange;
}

// What the columns of an operation are of.
std::string column_of(const RadixExperiment& experiment) {
  switch (experiment.operation) {
    case RadixOperation::kInsert:
      return experiment.write_latency_ns == 0 ? "as it is"
                                              : fmt::format("+{} ns", experiment.write_latency_ns);
    case RadixOperation::kSearch:
      return to_string(experiment.keys);
    case RadixOperation::kRange:
      break;
  }
  return fmt::format("{}, {}", experiment.length, to_string(experiment.keys));
}

std::string with_thread(const std::string& title, unsigned threads) {
  return fmt::format("{}, {}", title, format_counted(threads, "thread"));
}

// "wort 612, wbtree 1304".
template <class Value>
std::string listed(const std::vector<std::string>& structures, Value value,
                   std::string (&show)(double)) {
  std::string text;
  for (const std::string& structure : structures) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", structure, show(value(structure)));
  }
  return text;
}

const char* yes_or_no(bool holds) { return holds ? "yes" : "no"; }

}  // namespace

RadixFigures::RadixFigures(const json& study) : results_(report::to_result(study, "study")) {
  for (const json& each : study.at("experiments")) {
    RadixExperiment experiment{.name = each.at("name"),
                               .keys = parse_radix_keys(each.at("keys").get<std::string>()),
                               .operation = operation_of(each.at("operation")),
                               .write_latency_ns = each.value("write_latency_ns", uint64_t{0}),
                               .length = each.value("length", uint32_t{0})};
    add_if_new(keys_, experiment.keys);
    experiments_.push_back(std::move(experiment));
  }
  for (const BenchRow& row : results_.bench) {
    add_if_new(structures_, row.structure);
    add_if_new(threads_, row.threads);
  }
  std::ranges::sort(threads_);
}

std::vector<const RadixExperiment*> RadixFigures::of(RadixOperation operation,
                                                     RadixKeys keys) const {
  std::vector<const RadixExperiment*> chosen;
  for (const RadixExperiment& each : experiments_) {
    if (each.operation == operation && each.keys == keys) chosen.push_back(&each);
  }
  return chosen;
}

const BenchRow* RadixFigures::find(const RadixExperiment& experiment, const std::string& structure,
                                   unsigned threads) const {
  const auto found = std::ranges::find_if(results_.bench, [&](const BenchRow& row) {
    return row.operation == experiment.name && row.structure == structure && row.threads == threads;
  });
  return found == results_.bench.end() ? nullptr : &*found;
}

double RadixFigures::ns_of(const RadixExperiment& experiment, std::string_view structure) const {
  const BenchRow* row = find(experiment, std::string(structure), threads_.front());
  return row == nullptr ? kNone : row->ns_per_op;
}

// Lines and fences do not hang on the latency: of the first insert they were counted in.
const BenchRow* RadixFigures::counted(RadixKeys keys, const std::string& structure) const {
  for (const RadixExperiment* each : of(RadixOperation::kInsert, keys)) {
    const BenchRow* row = find(*each, structure, threads_.front());
    if (row != nullptr && !std::isnan(row->lines_per_op)) return row;
  }
  return nullptr;
}

double RadixFigures::lines_of(RadixKeys keys, std::string_view structure) const {
  const BenchRow* row = counted(keys, std::string(structure));
  return row == nullptr ? kNone : row->lines_per_op;
}

std::vector<TitledRows> RadixFigures::inserts() const {
  std::vector<TitledRows> all;
  for (const RadixKeys keys : keys_) {
    const auto columns = of(RadixOperation::kInsert, keys);
    for (const unsigned threads : threads_) {
      TitledRows table{.title = with_thread(
                           fmt::format("Nanoseconds for each insert, {} keys, by what each line "
                                       "that is flushed takes more",
                                       to_string(keys)),
                           threads),
                       .rows = {{"structure"}}};
      for (const RadixExperiment* each : columns) table.rows[0].push_back(column_of(*each));
      for (const std::string& structure : structures_) {
        TextRow row = {structure};
        for (const RadixExperiment* each : columns) {
          const BenchRow* found = find(*each, structure, threads);
          row.push_back(found == nullptr ? "-" : show_ns(found->ns_per_op));
        }
        table.rows.push_back(std::move(row));
      }
      if (!columns.empty()) all.push_back(std::move(table));
    }
  }
  return all;
}

TitledRows RadixFigures::flushes() const {
  TitledRows table{.title = "Lines flushed, and fences, for each insert", .rows = {{"structure"}}};
  for (const RadixKeys keys : keys_) {
    table.rows[0].push_back(fmt::format("lines, {}", to_string(keys)));
    table.rows[0].emplace_back("fences");
  }
  for (const std::string& structure : structures_) {
    TextRow row = {structure};
    bool any = false;
    for (const RadixKeys keys : keys_) {
      const BenchRow* found = counted(keys, structure);
      any = any || found != nullptr;
      row.push_back(found == nullptr ? "-" : show_count(found->lines_per_op));
      row.push_back(found == nullptr ? "-" : show_count(found->fences_per_op));
    }
    if (any) table.rows.push_back(std::move(row));
  }
  if (table.rows.size() == 1) table.rows.clear();
  return table;
}

std::vector<TitledRows> RadixFigures::by_columns(RadixOperation operation) const {
  std::vector<TitledRows> all;
  const bool ranges = operation == RadixOperation::kRange;
  for (const unsigned threads : threads_) {
    TitledRows table{
        .title = with_thread(ranges ? "Nanoseconds for each record of a range query, by its length"
                                    : "Nanoseconds for each search",
                             threads),
        .rows = {{"structure"}}};
    for (const RadixExperiment& each : experiments_) {
      if (each.operation == operation) table.rows[0].push_back(column_of(each));
    }
    if (table.rows[0].size() == 1) continue;
    for (const std::string& structure : structures_) {
      TextRow row = {structure};
      for (const RadixExperiment& each : experiments_) {
        if (each.operation != operation) continue;
        const BenchRow* found = find(each, structure, threads);
        const double divisor = ranges ? each.length : 1;
        row.push_back(found == nullptr ? "-"
                      : ranges         ? fmt::format("{:.1f}", found->ns_per_op / divisor)
                                       : show_ns(found->ns_per_op));
      }
      table.rows.push_back(std::move(row));
    }
    all.push_back(std::move(table));
  }
  return all;
}

std::vector<TitledRows> RadixFigures::searches() const {
  return by_columns(RadixOperation::kSearch);
}

std::vector<TitledRows> RadixFigures::ranges() const { return by_columns(RadixOperation::kRange); }

TitledRows RadixFigures::memory() const {
  TitledRows table{.title = "Bytes of persistent memory, and of DRAM, for each record",
                   .rows = {{"structure"}}};
  for (const RadixKeys keys : keys_) {
    table.rows[0].push_back(fmt::format("PM, {}", to_string(keys)));
    table.rows[0].emplace_back("DRAM");
  }
  for (const std::string& structure : structures_) {
    TextRow row = {structure};
    for (const RadixKeys keys : keys_) {
      const auto inserts = of(RadixOperation::kInsert, keys);
      const BenchRow* found =
          inserts.empty() ? nullptr : find(*inserts.front(), structure, threads_.front());
      for (const auto bytes : {&BenchRow::pool_bytes, &BenchRow::dram_bytes}) {
        row.push_back(
            found == nullptr || found->records == 0
                ? "-"
                : fmt::format("{:.1f}", found->*bytes / static_cast<double>(found->records)));
      }
    }
    table.rows.push_back(std::move(row));
  }
  if (table.rows.size() == 1) table.rows.clear();
  return table;
}

std::vector<std::string> RadixFigures::among(const std::vector<std::string_view>& names) const {
  std::vector<std::string> found;
  for (const std::string_view name : names) {
    if (std::ranges::find(structures_, name) != structures_.end()) found.emplace_back(name);
  }
  return found;
}

void RadixFigures::add_statements(RadixKeys keys, TitledRows& table) const {
  // What is said of some against others, which holds if none of theirs reaches the others' least.
  const auto add = [&](const char* statement, const std::string& of_what, const auto& better,
                       const auto& others, const auto& value, std::string (&show)(double)) {
    std::vector<std::string> all = better;
    all.insert(all.end(), others.begin(), others.end());
    const bool known = std::ranges::none_of(
        all, [&](const std::string& structure) { return std::isnan(value(structure)); });
    if (better.empty() || others.empty() || !known) return;
    const bool holds = value(*std::ranges::max_element(better, {}, value)) <
                       value(*std::ranges::min_element(others, {}, value));
    table.rows.push_back({statement, of_what, listed(all, value, show), yes_or_no(holds)});
  };
  const auto optimal = among({std::begin(kRadixOptimal), std::end(kRadixOptimal)});
  const auto compared = among({std::begin(kRadixCompared), std::end(kRadixCompared)});
  const auto wort = among({kRadixOptimal[0]});
  const auto wbtree = among({kRadixCompared[0]});
  const auto inserts = of(RadixOperation::kInsert, keys);
  for (const RadixExperiment* each : inserts) {
    add(
        kRadixInserts, each->name + ", in ns", optimal, wbtree,
        [&](const std::string& structure) { return ns_of(*each, structure); }, show_ns);
  }
  if (inserts.size() > 1 && !wort.empty() && !wbtree.empty()) {
    const auto by_latency = [](const RadixExperiment* each) { return each->write_latency_ns; };
    const auto difference = [&](const RadixExperiment* each) {
      return ns_of(*each, wbtree[0]) - ns_of(*each, wort[0]);
    };
    const double least = difference(*std::ranges::min_element(inserts, {}, by_latency));
    const double most = difference(*std::ranges::max_element(inserts, {}, by_latency));
    if (!std::isnan(least) && !std::isnan(most)) {
      table.rows.push_back({kRadixLatency, fmt::format("insert, {} keys, in ns", to_string(keys)),
                            fmt::format("from {:.0f} to {:.0f}", least, most),
                            yes_or_no(most > least)});
    }
  }
  add(
      kRadixFlushes, fmt::format("{} keys, in lines", to_string(keys)), optimal, compared,
      [&](const std::string& structure) { return lines_of(keys, structure); }, show_count);
  for (const RadixExperiment* each : of(RadixOperation::kSearch, keys)) {
    add(
        kRadixSearches, each->name + ", in ns", wort, compared,
        [&](const std::string& structure) { return ns_of(*each, structure); }, show_ns);
  }
}

TitledRows RadixFigures::published() const {
  TitledRows table{.title = "What was said of these structures",
                   .rows = {{"published", "of", "here", "holds"}},
                   .text_columns = 4};
  if (!threads_.empty()) {
    for (const RadixKeys keys : keys_) add_statements(keys, table);
  }
  if (table.rows.size() == 1) table.rows.clear();
  return table;
}

std::vector<html::LineChart> RadixFigures::charts() const {
  std::vector<html::LineChart> all;
  for (const RadixKeys keys : keys_) {
    const auto columns = of(RadixOperation::kInsert, keys);
    if (columns.size() < 2) continue;
    for (const unsigned threads : threads_) {
      html::LineChart chart{
          .title = with_thread(fmt::format("Time of an insert, {} keys", to_string(keys)), threads),
          .x_label = "more for each line that is flushed",
          .y_label = "time of an insert",
          .x_unit = html::Unit::kNanoseconds,
          .y_unit = html::Unit::kNanoseconds};
      for (size_t series = 0; series < structures_.size(); ++series) {
        html::Curve curve{.name = structures_[series], .series = series, .points = {}};
        for (const RadixExperiment* each : columns) {
          const BenchRow* found = find(*each, structures_[series], threads);
          if (found == nullptr) continue;
          curve.points.push_back({static_cast<double>(each->write_latency_ns), found->ns_per_op});
        }
        std::ranges::sort(curve.points, {}, &html::Point::x);
        if (!curve.points.empty()) chart.curves.push_back(std::move(curve));
      }
      all.push_back(std::move(chart));
    }
  }
  return all;
}

}  // namespace perdure::lab::study
