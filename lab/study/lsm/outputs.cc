// The study for people: on the terminal, and as a page.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "common/units.h"
#include "lab/html/lines.h"
#include "lab/html/page.h"
#include "lab/report/sections.h"
#include "lab/study/lsm/restart.h"
#include "lab/text_table.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

// Of the repeats that have the figure; none if less than half of them do.
std::optional<double> median(const json& study, const std::string& cache, const char* figure) {
  std::vector<double> values;
  size_t runs = 0;
  for (const json& each : study.at("results")) {
    if (each.at("cache") != cache) continue;
    ++runs;
    if (each.at(figure).is_number()) values.push_back(each.at(figure).get<double>());
  }
  if (values.empty() || values.size() * 2 < runs) return std::nullopt;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::vector<std::string> caches_of(const json& study) {
  std::vector<std::string> names;
  for (const json& each : study.at("results")) {
    const auto name = each.at("cache").get<std::string>();
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.2f} s", *seconds) : "not reached";
}

std::vector<TextRow> restart_rows(const json& study) {
  std::vector<TextRow> rows = {{"cache", "DRAM", "persistent memory", "peak", "SSD reads/op",
                                "first", "opening", "to 95 % of the peak", "SSD reads within 5 %"}};
  for (const std::string& cache : caches_of(study)) {
    const auto of = [&](const char* figure) { return median(study, cache, figure); };
    const auto bytes = [&](const char* figure) {
      return format_bytes(static_cast<uint64_t>(of(figure).value_or(0)));
    };
    rows.push_back(
        {cache, bytes("dram_bytes"), bytes("pm_bytes"), format_rate(of("peak_per_s").value_or(0)),
         fmt::format("{:.3f}", of("medium_reads_per_operation").value_or(0)),
         format_rate(of("first_per_s").value_or(0)), seconds_text(of("opening_s")),
         seconds_text(of("to_95_percent_s")), seconds_text(of("to_105_percent_of_reads_s"))});
  }
  return rows;
}

// How many times sooner the second cache is there than the first.
std::vector<std::string> remarks_of(const json& study) {
  std::vector<std::string> remarks;
  const std::vector<std::string> caches = caches_of(study);
  const auto compare = [&](const char* figure, const char* what, const char* published) {
    const auto one = median(study, caches[0], figure);
    const auto other = median(study, caches[1], figure);
    if (one && other && *other > 0) {
      remarks.push_back(fmt::format("{}: {:.1f} times sooner with persistent memory{}", what,
                                    *one / *other, published));
    } else if (!one && other) {
      remarks.push_back(
          fmt::format("{}: not reached with DRAM alone; give --after more time", what));
    }
  };
  if (caches.size() == 2) {
    compare("to_95_percent_s", "95 % of the peak", "; published 18.7 times (280 s, 15 s)");
    compare("to_105_percent_of_reads_s", "Reads of the SSD within 5 % of those at the peak", "");
  }
  if (study.at("interrupted").get<bool>()) remarks.emplace_back("The study was interrupted.");
  return remarks;
}

std::vector<TextRow> condition_rows(const json& study) {
  const json& has = study.at("parameters");
  const json& published = study.at("published");
  const json& machine = study.at("machine");
  std::string latency = "-";
  for (const json& each : study.at("results"))
    latency = format_nanoseconds(each.at("medium_read_ns").get<double>());
  return {
      {"machine", fmt::format("{}, {} processors", machine.at("cpu").get<std::string>(),
                              machine.at("processors").get<unsigned>())},
      {"records",
       fmt::format("{} of {} + {} bytes, {}", format_count(has.at("records").get<uint64_t>()),
                   has.at("key_bytes").get<uint64_t>(), has.at("value_bytes").get<uint64_t>(),
                   format_bytes(has.at("raw_bytes").get<uint64_t>()))},
      {"SSD",
       fmt::format("emulated: each read from a file takes {} us at least, {} on average here",
                   has.at("latency_us").get<double>(), latency)},
      {"persistent memory",
       fmt::format("a pool in {}, as fast as that is{}", has.at("folder").get<std::string>(),
                   has.at("in_dram").get<bool>() ? "" : "; what DRAM has is not kept in it")},
      {"reads", fmt::format("{} of the records get {} of the reads, by groups of 32{}; {}",
                            has.at("skew").get<double>(), 1 - has.at("skew").get<double>(),
                            has.at("self_similar").get<bool>() ? ", and so on within" : "",
                            format_counted(has.at("threads").get<uint64_t>(), "thread"))},
      {"peak", fmt::format("of the last quarter of {} s before the restart; it is reached when the "
                           "mean of {} s is at 95 %; medians of {}",
                           has.at("before_s").get<double>(), has.at("sustained_s").get<double>(),
                           format_counted(has.at("repeats").get<uint64_t>(), "run"))},
      {"published", fmt::format("{}: {}", published.at("source").get<std::string>(),
                                published.at("conditions").get<std::string>())}};
}

html::LineChart chart_of(const json& study) {
  html::LineChart chart{.title = "Reads in a second, over the time since the restart",
                        .x_label = "seconds; before 0 the end of the time before",
                        .y_label = "reads/s",
                        .markers = false};
  size_t series = 0;
  for (const std::string& cache : caches_of(study)) {
    html::Curve curve{.name = cache, .series = series++, .points = {}};
    for (const json& each : study.at("results")) {
      if (each.at("cache") != cache || each.at("repeat") != 0) continue;
      const json& before = each.at("before");
      const double end = study.at("parameters").at("before_s").get<double>();
      for (size_t i = before.size() - before.size() / 4; i < before.size(); ++i) {
        curve.points.push_back(
            {before[i].at("begin_s").get<double>() - end, before[i].at("per_s").get<double>()});
      }
      for (const json& window : each.at("after"))
        curve.points.push_back(
            {window.at("begin_s").get<double>(), window.at("per_s").get<double>()});
    }
    chart.curves.push_back(std::move(curve));
  }
  return chart;
}

}  // namespace

std::string lsm_table(const json& study) {
  std::string text;
  for (const TextRow& row : condition_rows(study)) text += wrap_fact(row);
  text += "\n" + align_columns(restart_rows(study), 1);
  for (const std::string& remark : remarks_of(study)) text += "\n" + remark + "\n";
  return text;
}

std::string lsm_html(const json& study) {
  std::string remarks;
  for (const std::string& remark : remarks_of(study))
    remarks += fmt::format("<p>{}</p>\n", html::escape(remark));
  const std::string body =
      report::section("restart", "From a restart to the peak",
                      "RocksDB on files that answer like an SSD, its caches in DRAM and in a pool.",
                      html::table(restart_rows(study), 1) + remarks +
                          html::figure(html::draw(chart_of(study)))) +
      report::section("conditions", "Conditions", "What the figures were made with.",
                      html::facts(condition_rows(study)));
  return html::page("LSM trees on persistent memory", body);
}

}  // namespace perdure::lab::study
