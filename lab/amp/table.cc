#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <functional>

#include "common/units.h"
#include "lab/amp/report.h"
#include "lab/model/time.h"
#include "lab/text_table.h"

namespace perdure::lab {
namespace {

constexpr size_t kTextWidth = 100;

double divide(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Three digits that mean something, and no more than three after the point.
std::string figure(double value) {
  if (value == 0) return "0";
  if (value < 0.0005) return "<0.001";
  if (value >= 1000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  return fmt::format("{:.{}f}", value, value >= 10 ? 2 : 3);
}

// A line of a table: its title, and its figure for one column.
struct Line {
  const char* title;
  std::function<double(const Counters&)> figure;
};

std::function<double(const Counters&)> per_operation(uint64_t Counters::* member) {
  return [member](const Counters& counters) {
    return divide(static_cast<double>(counters.*member), static_cast<double>(counters.operations));
  };
}

const std::vector<Line>& lines() {
  static const std::vector<Line> all = {
      {"flushes", per_operation(&Counters::flushes)},
      {"  of lines that were clean (wasted)", per_operation(&Counters::flushes_clean)},
      {"fences", per_operation(&Counters::fences)},
      {"atomic read-modify-writes", per_operation(&Counters::locked)},
      {"PM lines read", per_operation(&Counters::pm_lines_read)},
      {"  that missed the cache", per_operation(&Counters::pm_read_misses)},
      {"PM lines written", per_operation(&Counters::pm_lines_written)},
      {"  that missed the cache", per_operation(&Counters::pm_write_misses)},
      {"WPQ inserts",
       [](const Counters& counters) {
         return divide(static_cast<double>(counters.wpq_inserts()),
                       static_cast<double>(counters.operations));
       }},
      {"  by flushes", per_operation(&Counters::wpq_flush)},
      {"  by non-temporal stores", per_operation(&Counters::wpq_nontemporal)},
      {"  by evictions", per_operation(&Counters::wpq_eviction)},
      {"media writes (64 B)",
       [](const Counters& counters) {
         return divide(counters.media_write_units(), static_cast<double>(counters.operations));
       }},
      {"  per WPQ insert", &Counters::media_writes_per_wpq_insert},
      {"media bytes written",
       [](const Counters& counters) {
         return divide(counters.media_write_bytes(), static_cast<double>(counters.operations));
       }},
      {"  per byte of payload (write amplification)", &Counters::write_amplification},
      {"media reads (64 B)", per_operation(&Counters::media_read_units)},
      {"media bytes read",
       [](const Counters& counters) {
         return divide(static_cast<double>(counters.media_read_bytes()),
                       static_cast<double>(counters.operations));
       }},
      {"allocations in PM", per_operation(&Counters::allocations)}};
  return all;
}

using Columns = std::vector<const AmpResult*>;

// Types of operations in any of the columns.
std::vector<std::string> types_of(const Columns& columns) {
  std::vector<std::string> types;
  for (const AmpResult* column : columns) {
    for (const auto& [name, counters] : column->by_type) {
      if (counters.operations > 0 && std::find(types.begin(), types.end(), name) == types.end()) {
        types.push_back(name);
      }
    }
  }
  return types;
}

TextRow header(const std::string& title, const Columns& columns) {
  TextRow row = {title};
  for (const AmpResult* column : columns) row.push_back(column->structure);
  return row;
}

void add_operation_rows(std::vector<TextRow>& rows, const std::string& type,
                        const Columns& columns) {
  rows.push_back(header("per " + type, columns));
  for (const Line& line : lines()) {
    TextRow row = {std::string("  ") + line.title};
    bool occurs = false;
    for (const AmpResult* column : columns) {
      const Counters* counters = column->find(type);
      const double value = counters != nullptr ? line.figure(*counters) : 0;
      row.push_back(counters != nullptr ? figure(value) : "-");
      occurs = occurs || value > 0;
    }
    // What is 0 for everybody is said once more only where its absence is news.
    if (occurs || line.title[0] != ' ') rows.push_back(std::move(row));
  }
}

// What was done between operations, by background work for instance.
void add_outside_row(std::vector<TextRow>& rows, const Columns& columns) {
  TextRow row = {"outside operations, media writes (64 B) in all"};
  bool occurs = false;
  for (const AmpResult* column : columns) {
    double writes = 0;
    for (const auto& [name, counters] : column->by_type) {
      if (counters.operations == 0) writes += counters.media_write_units();
    }
    occurs = occurs || writes > 0;
    row.push_back(figure(writes));
  }
  if (occurs) rows.push_back(std::move(row));
}

void add_time_rows(std::vector<TextRow>& rows, const AmpReport& report, const Columns& columns) {
  rows.push_back(header("modelled time (an estimate)", columns));
  for (const uint64_t threads : report.options.threads) {
    TextRow rate = {"  " + format_counted(threads, "thread")};
    TextRow limit = {"    limited by"};
    TextRow time = {"    time of one operation"};
    for (const AmpResult* column : columns) {
      const TimeEstimate estimate =
          estimate_time(column->of_operations(), report.profile, {}, threads);
      rate.push_back(format_rate(estimate.operations_per_s));
      time.push_back(format_nanoseconds(estimate.operation_ns));
      limit.push_back(estimate.bottleneck);
    }
    rows.insert(rows.end(), {rate, time, limit});
  }
}

std::string workload_title(const AmpReport& report, const AmpResult& first) {
  if (!report.ours) {
    return fmt::format("{}: {}\n", report.program, format_counted(first.operations, "operation"));
  }
  const auto& workloads = report.options.workloads;
  const auto workload =
      std::find_if(workloads.begin(), workloads.end(),
                   [&](const AmpWorkload& each) { return each.name == first.workload; });
  std::string name = first.workload;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (workload->is_load) {
    return fmt::format("{}: {} into an empty structure\n", name,
                       format_counted(first.operations, "insert"));
  }
  return fmt::format("{}: {} ({}) on {}\n", name, format_counted(first.operations, "operation"),
                     workload->mix.name(), format_counted(first.records, "record"));
}

// "a, b, c" over several lines.
std::string wrap(const std::vector<std::string>& words, const std::string& indent) {
  std::string text;
  std::string line = indent;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i] + (i + 1 < words.size() ? ", " : "");
    if (line.size() + word.size() > kTextWidth + 1 && line != indent) {
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
      line = indent;
    }
    line += word;
  }
  return text + line + "\n";
}

std::string conditions(const AmpReport& report) {
  const Profile& profile = report.profile;
  std::string text = fmt::format("memory    {} (a model), domain {}; {}\n", profile.name,
                                 profile.domain, scaling_statement(profile));
  std::vector<std::string> parameters;
  for (const auto& [name, value] : describe(profile)) {
    if (name != "name" && name != "domain") parameters.push_back(fmt::format("{} {}", name, value));
  }
  text += wrap(parameters, "          ");
  if (report.ours) {
    const AmpOptions& options = report.options;
    text += fmt::format(
        "workload  keys uniform at random, {}; values {}; seed {}; pool capacity {}\n",
        options.key_kind == Kind::kU64 ? "u64" : fmt::format("{} bytes", options.key_bytes),
        options.value_kind == Kind::kU64 ? "u64" : fmt::format("{} bytes", options.value_bytes),
        options.seed, format_bytes(options.capacity_bytes));
  }
  return text + "figures   counted, per operation; caches and buffers written back at the end\n";
}

bool writes_anything(const SiteCounters& counters) {
  return counters.flushes + counters.fences + counters.wpq_inserts() +
             counters.media_write_twelfths >
         0;
}

std::string sites_of(const AmpResult& result, size_t rows_max) {
  const auto operations = static_cast<double>(std::max<uint64_t>(result.operations, 1));
  uint64_t all_twelfths = 0;
  for (const AmpSite& site : result.sites) all_twelfths += site.counters.media_write_twelfths;
  std::vector<TextRow> rows = {{"site", "function", "flushes", "clean", "fences", "WPQ: flush",
                                "non-temporal", "eviction", "media writes", "share"}};
  size_t left_out = 0;
  for (const AmpSite& site : result.sites) {
    const SiteCounters& counters = site.counters;
    if (!writes_anything(counters)) continue;
    if (rows.size() > rows_max) {
      ++left_out;
      continue;
    }
    TextRow row = {site.place, site.function};
    for (const uint64_t count :
         {counters.flushes, counters.flushes_clean, counters.fences, counters.wpq_flush,
          counters.wpq_nontemporal, counters.wpq_eviction}) {
      row.push_back(figure(static_cast<double>(count) / operations));
    }
    row.push_back(figure(counters.media_write_units() / operations));
    row.push_back(
        fmt::format("{:.1f} %", 100 * divide(static_cast<double>(counters.media_write_twelfths),
                                             static_cast<double>(all_twelfths))));
    rows.push_back(std::move(row));
  }
  std::string text = align_columns(rows, 2);
  if (left_out > 0) {
    text += fmt::format("{} more; all are in --json\n", format_counted(left_out, "site"));
  }
  return text;
}

}  // namespace

std::string to_table(const AmpReport& report) {
  std::string text = conditions(report);
  std::vector<std::string> workloads;
  for (const AmpResult& result : report.results) {
    if (std::find(workloads.begin(), workloads.end(), result.workload) == workloads.end()) {
      workloads.push_back(result.workload);
    }
  }
  for (const std::string& workload : workloads) {
    Columns columns;
    for (const AmpResult& result : report.results) {
      if (result.workload == workload) columns.push_back(&result);
    }
    std::vector<TextRow> rows;
    for (const std::string& type : types_of(columns)) add_operation_rows(rows, type, columns);
    add_outside_row(rows, columns);
    add_time_rows(rows, report, columns);
    text += "\n" + workload_title(report, *columns.front()) + align_columns(rows, 1);
  }
  if (report.failed() > 0) {
    text += fmt::format("\n{} operations gave a wrong answer\n", format_count(report.failed()));
  }
  if (report.interrupted) text += "\ninterrupted: these are the figures of what ran until then\n";
  return text;
}

std::string sites_table(const AmpReport& report, size_t rows_max) {
  std::string text;
  for (const AmpResult& result : report.results) {
    text += fmt::format("\n{}, {}: call sites, per operation of any type\n{}", result.structure,
                        result.workload, sites_of(result, rows_max));
  }
  return text;
}

std::string profile_table(const Profile& profile) {
  std::vector<TextRow> rows;
  for (const auto& [name, value] : describe(profile)) rows.push_back({name, value});
  return align_columns(rows, 2);
}

}  // namespace perdure::lab
