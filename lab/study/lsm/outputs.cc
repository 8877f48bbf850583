// The study for people: on the terminal, and as a page.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "common/units.h"
#include "lab/html/lines.h"
#include "lab/html/page.h"
#include "lab/report/sections.h"
#include "lab/study/lsm/lsm.h"
#include "lab/text_table.h"

namespace perdure::lab::study {
namespace lsm {
namespace {

using nlohmann::json;

// The part's results; none if it was not measured.
const json& part_of(const json& study, const char* part) {
  static const json none = json::array();
  const auto results = study.find("results");
  if (results == study.end() || !results->contains(part)) return none;
  return results->at(part);
}

// Of the repeats of a cache in a part that have the figure; none if less than half of them do.
std::optional<double> median_of(const json& rows, const json& like, const char* figure) {
  std::vector<double> values;
  size_t runs = 0;
  for (const json& each : rows) {
    bool is_like = true;
    for (const auto& [member, value] : like.items()) is_like &= each.at(member) == value;
    if (!is_like) continue;
    ++runs;
    if (each.at(figure).is_number()) values.push_back(each.at(figure).get<double>());
  }
  if (values.empty() || values.size() * 2 < runs) return std::nullopt;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::optional<double> median(const json& study, const std::string& cache, const char* figure) {
  return median_of(part_of(study, "restart"), {{"cache", cache}}, figure);
}

// In the order in which they come.
std::vector<json> values_of(const json& rows, const char* member) {
  std::vector<json> values;
  for (const json& each : rows) {
    if (std::ranges::find(values, each.at(member)) == values.end())
      values.push_back(each.at(member));
  }
  return values;
}

std::vector<std::string> caches_of(const json& study) {
  std::vector<std::string> names;
  for (const json& name : values_of(part_of(study, "restart"), "cache"))
    names.push_back(name.get<std::string>());
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
  return remarks;
}

std::vector<TextRow> condition_rows(const json& study) {
  const json& has = study.at("parameters");
  const json& published = study.at("published");
  const json& machine = study.at("machine");
  std::string latency = "-";
  for (const json& each : part_of(study, "restart"))
    latency = format_nanoseconds(each.at("medium_read_ns").get<double>());
  return {
      {"machine", fmt::format("{}, {} processors", machine.at("cpu").get<std::string>(),
                              machine.at("processors").get<unsigned>())},
      {"records",
       fmt::format("{} of {} + {} bytes, {}", format_count(has.at("records").get<uint64_t>()),
                   has.at("key_bytes").get<uint64_t>(), has.at("value_bytes").get<uint64_t>(),
                   format_bytes(has.at("raw_bytes").get<uint64_t>()))},
      {"LevelDB",
       fmt::format(
           "{} records of 16 + {} bytes; a line of the pool takes so many times {} ns: a "
           "block that is searched in place 8 of them, a copy 16, a sync one; files on disk "
           "in {}",
           format_count(has.at("level_records").get<uint64_t>()),
           has.at("value_bytes").get<uint64_t>(), has.at("dram_ns").get<double>(),
           has.at("disk_folder").get<std::string>())},
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
    for (const json& each : part_of(study, "restart")) {
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

struct Section {
  std::string anchor;
  std::string title;
  std::string explanation;
  std::vector<TextRow> rows;
  size_t text_columns = 1;
  std::vector<std::string> remarks = {};
  std::string drawing = {};
};

Section restart_section(const json& study) {
  return {
      .anchor = "restart",
      .title = "From a restart to the peak",
      .explanation = "RocksDB on files that answer like an SSD, its caches in DRAM and in a pool.",
      .rows = restart_rows(study),
      .remarks = remarks_of(study),
      .drawing = html::draw(chart_of(study))};
}

Section groups_section(const json& study) {
  const json& rows = part_of(study, "groups");
  Section section{.anchor = "groups",
                  .title = "Synced writes, in groups",
                  .explanation =
                      "LevelDB. A record's latency is from when it was put into its group until "
                      "the group was durable.",
                  .rows = {{"files", "group", "records/s", "latency, mean", "deviation"}}};
  html::LineChart chart{.title = "Records in a second, by the size of the group",
                        .x_label = "records in a group",
                        .y_label = "records/s",
                        .x_logarithmic = true,
                        .y_logarithmic = true};
  for (const json& each : rows) {
    const auto medium = each.at("medium").get<std::string>();
    const auto per_s = each.at("per_s").get<double>();
    section.rows.push_back(
        {medium, format_count(each.at("group").get<uint64_t>()), format_rate(per_s),
         format_nanoseconds(1000 * each.at("latency_us_mean").get<double>()),
         format_nanoseconds(1000 * each.at("latency_us_deviation").get<double>())});
    if (chart.curves.empty() || chart.curves.back().name != medium)
      chart.curves.push_back({.name = medium, .series = chart.curves.size(), .points = {}});
    chart.curves.back().points.push_back({each.at("group").get<double>(), per_s});
  }
  section.drawing = html::draw(chart);
  return section;
}

// What is in DRAM against everything else, in operations in a second.
Section placement_section(const json& study, const char* part, const char* column,
                          std::string title, std::string explanation) {
  const json& rows = part_of(study, part);
  Section section{.anchor = part,
                  .title = std::move(title),
                  .explanation = std::move(explanation),
                  .rows = {{"in DRAM"}}};
  const std::vector<json> kinds = values_of(rows, column);
  const std::vector<json> latencies = values_of(rows, "pm_times");
  html::LineChart chart{.title = "Operations in a second, by what is in DRAM",
                        .x_label = "",
                        .y_label = "per second"};
  for (const json& kind : kinds) {
    for (const json& times : latencies) {
      const std::string name =
          fmt::format("{}, {:g}x",
                      kind.is_string() ? kind.get<std::string>() : fmt::format("{} %", kind.dump()),
                      times.get<double>());
      section.rows[0].push_back(name);
      chart.curves.push_back({.name = name, .series = chart.curves.size(), .points = {}});
    }
  }
  for (const json& step : values_of(rows, "in_dram")) {
    TextRow row = {step.get<std::string>()};
    size_t curve = 0;
    for (const json& kind : kinds) {
      for (const json& times : latencies) {
        const double per_s =
            median_of(rows, {{"in_dram", step}, {column, kind}, {"pm_times", times}}, "per_s")
                .value_or(0);
        row.push_back(format_rate(per_s));
        chart.curves[curve++].points.push_back({static_cast<double>(chart.x_names.size()), per_s});
      }
    }
    chart.x_names.push_back(step.get<std::string>());
    section.rows.push_back(std::move(row));
  }
  section.drawing = html::draw(chart);
  return section;
}

Section cost_section(const json& study) {
  const json& rows = part_of(study, "cost");
  Section section{
      .anchor = "cost",
      .title = "Caches of one price",
      .explanation = "RocksDB on files that answer like an SSD, when its caches are full.",
      .rows = {{"cache", "threads", "DRAM", "persistent memory", "reads/s", "SSD reads/op"}}};
  for (const json& threads : values_of(rows, "threads")) {
    for (const json& cache : values_of(rows, "cache")) {
      const auto of = [&](const char* figure) {
        return median_of(rows, {{"cache", cache}, {"threads", threads}}, figure).value_or(0);
      };
      section.rows.push_back({cache.get<std::string>(), threads.dump(),
                              format_bytes(static_cast<uint64_t>(of("dram_bytes"))),
                              format_bytes(static_cast<uint64_t>(of("pm_bytes"))),
                              format_rate(of("peak_per_s")),
                              fmt::format("{:.3f}", of("medium_reads_per_operation"))});
    }
  }
  return section;
}

std::vector<Section> sections_of(const json& study) {
  std::vector<Section> sections;
  const auto add = [&](const char* part, const auto& make) {
    if (!part_of(study, part).empty()) sections.push_back(make());
  };
  add("groups", [&] { return groups_section(study); });
  add("reads", [&] {
    return placement_section(study, "reads", "reads", "What is worth DRAM: reads",
                             "LevelDB in a pool, reads in a second; persistent memory's latency in "
                             "times of DRAM's.");
  });
  add("mixes", [&] {
    return placement_section(
        study, "mixes", "updates_percent", "What is worth DRAM: mixes",
        "The same with updates, 80/20; each row has what those above it have.");
  });
  add("cost", [&] { return cost_section(study); });
  add("restart", [&] { return restart_section(study); });
  return sections;
}

}  // namespace
}  // namespace lsm

std::string lsm_table(const nlohmann::json& study) {
  std::string text;
  for (const TextRow& row : lsm::condition_rows(study)) text += wrap_fact(row);
  for (const lsm::Section& section : lsm::sections_of(study)) {
    text += "\n" + section.title + "\n" + align_columns(section.rows, section.text_columns);
    for (const std::string& remark : section.remarks) text += "\n" + remark + "\n";
  }
  if (study.at("interrupted").get<bool>()) text += "\nThe study was interrupted.\n";
  return text;
}

std::string lsm_html(const nlohmann::json& study) {
  std::string body;
  for (const lsm::Section& section : lsm::sections_of(study)) {
    std::string content = html::table(section.rows, section.text_columns);
    for (const std::string& remark : section.remarks)
      content += fmt::format("<p>{}</p>\n", html::escape(remark));
    if (!section.drawing.empty()) content += html::figure(section.drawing);
    body += report::section(section.anchor, section.title, section.explanation, content);
  }
  body += report::section("conditions", "Conditions", "What the figures were made with.",
                          html::facts(lsm::condition_rows(study)));
  return html::page("LSM trees on persistent memory", body);
}

}  // namespace perdure::lab::study
