#include "lab/study/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "common/units.h"
#include "lab/model/time.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string show_published(const Published* known) {
  if (known == nullptr) return "-";
  return (known->about ? "about " : "") + show_figure(known->value);
}

// A column for our figure, and two for what was published of it, where that is known of any row.
struct QuantityColumns {
  Quantity quantity;
  std::string title;
  bool published = false;
};

std::vector<QuantityColumns> quantity_columns(const StudyReport& report,
                                              const std::vector<const AmpResult*>& cells) {
  const std::string per(counted_operation(*cells.front()));
  std::vector<QuantityColumns> columns = {{Quantity::kWpqInserts, "WPQ/" + per},
                                          {Quantity::kMediaWrites, "media/" + per},
                                          {Quantity::kMediaPerWpqInsert, "media/WPQ"}};
  for (QuantityColumns& column : columns) {
    column.published = report.is_comparable() && std::ranges::any_of(cells, [&](const auto* cell) {
                         return compare(*cell, column.quantity).published != nullptr;
                       });
  }
  return columns;
}

TextRow header_row(const StudyReport& report, const std::vector<QuantityColumns>& columns) {
  TextRow row = {"structure"};
  for (const QuantityColumns& column : columns) {
    row.push_back(column.title);
    if (column.published) row.insert(row.end(), {"published", "deviation"});
  }
  for (const uint64_t threads : report.options.threads) {
    row.push_back(format_counted(threads, "thread"));
  }
  return row;
}

}  // namespace

std::string show_figure(std::optional<double> value) {
  if (!value) return "-";
  if (*value == 0) return "0";
  if (std::abs(*value) < 0.0005) return "<0.001";
  const double size = std::abs(*value);
  return fmt::format("{:.{}f}", *value, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

std::string show_percent(std::optional<double> percent) {
  return percent ? fmt::format("{:+.1f} %", *percent) : "-";
}

std::vector<const AmpResult*> cells_of(const StudyReport& report, const std::string& workload) {
  std::vector<const AmpResult*> cells;
  for (const AmpResult& cell : report.cells) {
    if (cell.workload == workload) cells.push_back(&cell);
  }
  return cells;
}

std::string workload_title(const StudyReport& report, const AmpWorkload& workload) {
  const AmpOptions& options = report.options;
  if (workload.is_load) {
    return fmt::format("{}: {} into an empty structure", upper(workload.name),
                       format_counted(options.records, "insert"));
  }
  return fmt::format("{}: {} ({}) on {}", upper(workload.name),
                     format_counted(options.operations, "operation"), workload.mix.name(),
                     format_counted(options.records, "record"));
}

std::vector<TextRow> workload_rows(const StudyReport& report, const std::string& workload) {
  const auto cells = cells_of(report, workload);
  if (cells.empty()) return {};
  const auto columns = quantity_columns(report, cells);
  std::vector<TextRow> rows = {header_row(report, columns)};
  for (const AmpResult* cell : cells) {
    TextRow& row = rows.emplace_back();
    row.push_back(cell->structure);
    for (const QuantityColumns& column : columns) {
      const Compared compared = compare(*cell, column.quantity);
      row.push_back(show_figure(compared.value));
      if (!column.published) continue;
      row.push_back(show_published(compared.published));
      row.push_back(show_percent(compared.deviation_percent));
    }
    for (const uint64_t threads : report.options.threads) {
      const TimeEstimate time = estimate_time(cell->of_operations(), report.profile, {}, threads);
      row.push_back(format_rate(time.operations_per_s));
    }
  }
  return rows;
}

std::vector<TextRow> effect_rows(const StudyReport& report) {
  std::vector<TextRow> rows;
  const std::vector<Effect> all = effects(report.cells);
  const bool published =
      report.is_comparable() && std::ranges::any_of(all, [](const Effect& each) {
        return each.published_wpq_inserts_percent || each.published_media_writes_percent;
      });
  for (const Effect& effect : all) {
    if (rows.empty()) {
      rows.push_back({"optimisation", "of", "workload", "WPQ inserts"});
      if (published) rows.back().emplace_back("published");
      rows.back().emplace_back("media writes");
      if (published) rows.back().emplace_back("published");
    }
    TextRow& row = rows.emplace_back();
    row = {effect.optimisation, effect.base, upper(effect.workload),
           show_percent(effect.wpq_inserts_percent)};
    if (published) row.push_back(show_percent(effect.published_wpq_inserts_percent));
    row.push_back(show_percent(effect.media_writes_percent));
    if (published) row.push_back(show_percent(effect.published_media_writes_percent));
  }
  return rows;
}

std::vector<TextRow> condition_rows(const StudyReport& report) {
  const AmpOptions& options = report.options;
  const Machine& machine = report.machine;
  std::vector<TextRow> rows = {
      {"memory", fmt::format("{} (a model), domain {}; {}", report.profile.name,
                             report.profile.domain, scaling_statement(report.profile))},
      {"workload", fmt::format("keys uniform at random, u64; values u64; {}, {}; seed {}; pool "
                               "capacity {}",
                               format_counted(options.records, "record"),
                               format_counted(options.operations, "operation"), options.seed,
                               format_bytes(options.capacity_bytes))},
      {"figures",
       "counted; caches and buffers written back at the end of each workload; media "
       "writes in units of 64 bytes"},
      {"speed", "an estimate from the counts, without overlap of cache misses"},
      {"made by", fmt::format("perdure {} on {}, {}, {}", kVersion, machine.cpu, machine.kernel,
                              machine.compiler)}};
  if (report.is_comparable()) {
    rows.push_back({"published", fmt::format("{}: {}", kPublishedSource, kPublishedConditions)});
  }
  return rows;
}

std::vector<std::string> remarks(const StudyReport& report) {
  std::vector<std::string> lines;
  for (const StudyFailure& failure : report.failures) {
    lines.push_back(fmt::format("{}, {}: not counted: {}", failure.structure,
                                upper(failure.workload), failure.message));
  }
  if (report.failed() > 0) {
    lines.push_back(
        fmt::format("{} operations gave a wrong answer", format_count(report.failed())));
  }
  if (report.interrupted) {
    lines.push_back(fmt::format("interrupted: {} of {} cells were counted until then",
                                report.cells.size(), report.cells_asked()));
  }
  return lines;
}

std::string to_table(const StudyReport& report) {
  std::string text;
  for (const TextRow& row : condition_rows(report)) text += wrap_fact(row);
  for (const AmpWorkload& workload : report.options.workloads) {
    const auto rows = workload_rows(report, workload.name);
    if (rows.empty()) continue;
    text += "\n" + workload_title(report, workload) + "\n" + align_columns(rows, 1);
  }
  if (const auto rows = effect_rows(report); !rows.empty()) {
    text += "\nEffect of the optimisations\n" + align_columns(rows, kEffectTextColumns);
  }
  const std::vector<std::string> lines = remarks(report);
  if (!lines.empty()) text += "\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace perdure::lab::study
