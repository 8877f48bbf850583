// The study for people: on the terminal, and as a page.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "common/units.h"
#include "lab/html/lines.h"
#include "lab/html/page.h"
#include "lab/report/sections.h"
#include "lab/study/buffer/buffer_pool.h"
#include "lab/study/buffer/published.h"
#include "lab/text_table.h"

namespace perdure::lab::study {
namespace buffer_pool {
namespace {

using nlohmann::json;

// The part's results; null if it was not measured.
const json* part_of(const json& study, const char* part) {
  const auto results = study.find("results");
  if (results == study.end()) return nullptr;
  const auto found = results->find(part);
  return found == results->end() || found->empty() ? nullptr : &*found;
}

// Of the repeats that have the figure; none if less than half of them do.
std::optional<double> median_figure(const json& rows, const char* member, const json& of,
                                    const json::json_pointer& figure) {
  std::vector<double> values;
  size_t runs = 0;
  for (const json& each : rows) {
    if (each.at(member) != of) continue;
    ++runs;
    if (each.contains(figure) && each.at(figure).is_number()) {
      values.push_back(each.at(figure).get<double>());
    }
  }
  if (values.empty() || values.size() * 2 < runs) return std::nullopt;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::vector<json> names_in(const json& rows, const char* member) {
  std::vector<json> names;
  for (const json& each : rows) {
    if (std::ranges::find(names, each.at(member)) == names.end()) names.push_back(each.at(member));
  }
  return names;
}

std::string time_text(const std::optional<double>& seconds) {
  return seconds ? format_nanoseconds(*seconds * 1e9) : "not reached";
}

std::string times_text(double ratio) { return fmt::format("{:.2f}x", ratio); }

struct Section {
  std::string anchor = {};
  std::string title = {};
  std::string explanation = {};
  std::vector<TextRow> rows = {};
  size_t text_columns = 1;
  std::vector<std::string> remarks = {};
  std::string drawing = {};
};

Section updates_of(const json& study) {
  Section section{.anchor = "updates",
                  .title = "Updates of a page in persistent memory",
                  .explanation =
                      "ns for an update of a record, and how many times longer that is "
                      "than without a checksum: with checksums that are changed by what the "
                      "update changes, and computed of all of the changed parts.",
                  .rows = {{"page", "update", "no checksum", "copy to DRAM", "checksum",
                            "8 checksums", "32 checksums", "computed: checksum", "8", "32",
                            "published: copy", "checksum", "8"}}};
  const json* rows = part_of(study, "updates");
  if (rows == nullptr) return {};
  uint64_t unsound = 0;
  for (const PublishedUpdate& published : published_updates()) {
    TextRow row = {format_bytes(published.page_bytes), format_bytes(published.update_bytes)};
    std::optional<double> best;
    for (const json& each : *rows) {
      if (each.at("page_bytes") != published.page_bytes ||
          each.at("update_bytes") != published.update_bytes)
        continue;
      const auto variant = each.at("variant").get<std::string>();
      const auto ratio = each.at("ratio").get<double>();
      row.push_back(variant == "no checksum" ? format_nanoseconds(each.at("ns").get<double>())
                                             : times_text(ratio));
      unsound += each.at("unsound_pages").get<uint64_t>();
      if (variant.ends_with("checksums")) best = std::min(best.value_or(ratio), ratio);
    }
    if (row.size() == 2) continue;
    row.push_back(times_text(published.copy));
    row.push_back(times_text(published.checksum));
    row.push_back(times_text(published.partitioned));
    section.rows.push_back(std::move(row));
    const bool small = published.page_bytes == 4096;
    if (published.update_bytes == 8 && best && (small || published.page_bytes == 65536)) {
      section.remarks.push_back(fmt::format(
          "Target: 8 bytes of {} with parts at most {} of no checksum; here {}.",
          format_bytes(published.page_bytes), small ? "1.5x" : "5x", times_text(*best)));
    }
  }
  if (unsound > 0) section.remarks.push_back(fmt::format("{} pages are not sound!", unsound));
  return section;
}

html::LineChart restart_chart(const json& rows) {
  html::LineChart chart{.title = "Operations in a second, over the time since the restart",
                        .x_label = "seconds; before 0 the end of the time before the crash",
                        .y_label = "operations/s",
                        .markers = false};
  size_t series = 0;
  for (const json& name : names_in(rows, "restart")) {
    html::Curve curve{.name = name.get<std::string>(), .series = series++, .points = {}};
    for (const json& each : rows) {
      if (each.at("restart") != name || each.at("repeat") != 0) continue;
      for (const char* side : {"before", "after"}) {
        for (const json& window : each.at(side)) {
          curve.points.push_back(
              {window.at("begin_s").get<double>(), window.at("per_s").get<double>()});
        }
      }
    }
    chart.curves.push_back(std::move(curve));
  }
  return chart;
}

Section restart_of(const json& study) {
  const json* rows = part_of(study, "restart");
  if (rows == nullptr) return {};
  Section section{.anchor = "restart",
                  .title = "From a crash to the peak",
                  .explanation =
                      "The process is killed and the database opened again, with the "
                      "same memory for pages. Times are from the beginning of the "
                      "process that opens it.",
                  .rows = {{"restart", "DRAM", "PM", "peak", "SSD reads/op", "open",
                            "first transaction", "to 50 %", "to 95 % of the peak", "mended"}},
                  .drawing = html::draw(restart_chart(*rows))};
  const auto figure = [&](const json& name, const char* pointer) {
    return median_figure(*rows, "restart", name, json::json_pointer(pointer));
  };
  for (const json& name : names_in(*rows, "restart")) {
    const auto bytes = [&](const char* pointer) {
      return format_bytes(static_cast<uint64_t>(figure(name, pointer).value_or(0)));
    };
    double mended = 0;
    for (const char* what :
         {"/mended/older", "/mended/newer", "/mended/corrupted", "/mended/fetched"})
      mended += figure(name, what).value_or(0);
    section.rows.push_back(
        {name.get<std::string>(), bytes("/dram_bytes"), bytes("/pm_bytes"),
         format_rate(figure(name, "/peak_per_s").value_or(0)),
         fmt::format("{:.3f}", figure(name, "/medium_reads_per_operation").value_or(0)),
         time_text(figure(name, "/opening_s")), time_text(figure(name, "/first_transaction_s")),
         time_text(figure(name, "/to_50_percent_s")), time_text(figure(name, "/to_95_percent_s")),
         fmt::format("{:.0f} pages", mended)});
  }
  const auto ours = figure("persistent buffer pool", "/to_95_percent_s");
  const auto aries = figure("ARIES-like", "/to_95_percent_s");
  const auto first = figure("persistent buffer pool", "/first_transaction_s");
  if (first) {
    section.remarks.push_back(fmt::format(
        "Target: the first transaction within 100 ms of opening; here {}.", time_text(first)));
  }
  if (ours && aries) {
    section.remarks.push_back(fmt::format(
        "Target: 95 % of the peak at least 10x sooner than an ARIES-like restart; here {:.1f}x.",
        *aries / std::max(*ours, 1e-6)));
  } else if (ours) {
    section.remarks.emplace_back(
        "The ARIES-like restart did not reach 95 % of its peak; give --after more time.");
  }
  return section;
}

Section dram_of(const json& study) {
  const json* rows = part_of(study, "dram");
  if (rows == nullptr) return {};
  const json& has = study.at("parameters");
  Section section{
      .anchor = "dram",
      .title = "The share of DRAM",
      .explanation = fmt::format(
          "The same memory for pages, of DRAM at {:.2f} for a GiB and of persistent memory at "
          "{:.2f}. YCSB C has reads alone, B a twentieth of updates, A a half; then a crash.",
          has.at("dram_price_gib").get<double>(), has.at("pm_price_gib").get<double>()),
      .rows = {{"DRAM", "bytes", "PM", "price", "C", "B", "A", "A for the price of 1",
                "first transaction", "to 95 % of A"}}};
  html::LineChart chart{.title = "Operations in a second, by the share of DRAM",
                        .x_label = "percent of DRAM",
                        .y_label = "operations/s"};
  for (const char* mix : {"c", "b", "a"}) {
    chart.curves.push_back({.name = mix, .series = chart.curves.size(), .points = {}});
  }
  for (const json& percent : names_in(*rows, "dram_percent")) {
    const auto figure = [&](const char* pointer) {
      return median_figure(*rows, "dram_percent", percent, json::json_pointer(pointer));
    };
    const double cost = figure("/cost").value_or(0);
    const double updates = figure("/per_s/a").value_or(0);
    section.rows.push_back(
        {fmt::format("{} %", percent.get<double>()),
         format_bytes(static_cast<uint64_t>(figure("/dram_bytes").value_or(0))),
         format_bytes(static_cast<uint64_t>(figure("/pm_bytes").value_or(0))),
         fmt::format("{:.2f}", cost), format_rate(figure("/per_s/c").value_or(0)),
         format_rate(figure("/per_s/b").value_or(0)), format_rate(updates),
         format_rate(cost > 0 ? updates / cost : 0), time_text(figure("/first_transaction_s")),
         time_text(figure("/to_95_percent_s"))});
    chart.curves[0].points.push_back({percent.get<double>(), figure("/per_s/c").value_or(0)});
    chart.curves[1].points.push_back({percent.get<double>(), figure("/per_s/b").value_or(0)});
    chart.curves[2].points.push_back({percent.get<double>(), updates});
  }
  section.drawing = html::draw(chart);
  return section;
}

Section peers_of(const json& study) {
  const json* part = part_of(study, "peers");
  if (part == nullptr) return {};
  Section section{.anchor = "peers",
                  .title = "Beside other stores, on the same medium",
                  .explanation =
                      "Point reads; updates that are transactions of their own, synced; new-order "
                      "and payment of TPC-C, reduced (no tpmC).",
                  .rows = {{"store", "point reads", "", "updates", "", "TPC-C", ""}}};
  const json* ours = nullptr;
  for (const json& each : part->at("stores")) {
    if (ours == nullptr) ours = &each;
    TextRow row = {each.at("store").get<std::string>()};
    for (const char* what : {"reads_per_s", "updates_per_s", "tpcc_per_s"}) {
      const auto rate = each.at(what).get<double>();
      row.push_back(format_rate(rate));
      row.push_back(
          times_text(ours->at(what).get<double>() > 0 ? rate / ours->at(what).get<double>() : 0));
    }
    section.rows.push_back(std::move(row));
    if (each.at("problems") != 0) {
      section.remarks.push_back(fmt::format("{}: what TPC-C demands does not hold.",
                                            each.at("store").get<std::string>()));
    }
  }
  const auto compare = [&](const char* store, const char* what, const char* target) {
    for (const json& each : part->at("stores")) {
      if (each.at("store") != store) continue;
      section.remarks.push_back(fmt::format(
          "Target: {}; here {}.", target,
          times_text(ours->at(what).get<double>() / std::max(each.at(what).get<double>(), 1e-6))));
    }
  };
  compare("lmdb", "reads_per_s", "point reads at least LMDB's");
  compare("lmdb", "updates_per_s", "single updates at least 3x LMDB's, synced");
  compare("rocksdb", "tpcc_per_s", "TPC-C at least 2x RocksDB's transactions");
  for (const json& note : part->at("notes")) section.remarks.push_back(note.get<std::string>());
  return section;
}

Section kills_of(const json& study) {
  const json* part = part_of(study, "kills");
  if (part == nullptr) return {};
  const auto count = [&](const char* what) { return format_count(part->at(what).get<uint64_t>()); };
  Section section{.anchor = "kills",
                  .title = "TPC-C, killed",
                  .explanation =
                      "Each kill is followed by a check of all that TPC-C demands, and "
                      "of each commit that was acknowledged.",
                  .rows = {{"kills", "acknowledged", "violations", "pages right", "older", "newer",
                            "corrupted, repaired", "fetched"},
                           {count("kills"), count("acknowledged"),
                            std::to_string(part->at("problems").size()), count("right"),
                            count("older"), count("newer"), count("corrupted"), count("fetched")}},
                  .text_columns = 0};
  for (const json& each : part->at("problems")) section.remarks.push_back(each.get<std::string>());
  return section;
}

std::vector<Section> sections_of(const json& study) {
  std::vector<Section> sections;
  for (const auto& make : {updates_of, restart_of, dram_of, peers_of, kills_of}) {
    Section section = make(study);
    if (!section.rows.empty()) sections.push_back(std::move(section));
  }
  return sections;
}

std::vector<TextRow> facts_of(const json& study) {
  const json& has = study.at("parameters");
  const json& published = study.at("published");
  const json& machine = study.at("machine");
  const auto medium = has.at("medium").get<std::string>();
  std::vector<TextRow> rows = {
      {"machine", fmt::format("{}, {} processors", machine.at("cpu").get<std::string>(),
                              machine.at("processors").get<unsigned>())},
      {"records",
       fmt::format("{} of {} + {} bytes, {}, groups of 32; memory for {} % of the pages",
                   format_count(has.at("records").get<uint64_t>()),
                   has.at("key_bytes").get<uint64_t>(), has.at("value_bytes").get<uint64_t>(),
                   has.at("distribution").get<std::string>(),
                   has.at("pool_percent").get<double>())},
      {"SSD",
       fmt::format("emulated: a page read from the page file takes {} us at least, one "
                   "written and a sync {} us; any bandwidth",
                   has.at("latency_us").get<double>(), has.at("write_latency_us").get<double>())},
      {"PM",
       fmt::format("in {}; emulated of restart and dram: a page that is used takes {} ns longer "
                   "in it, {}",
                   has.at("folder").get<std::string>(), has.at("pm_ns").get<double>(),
                   medium.empty() ? std::string("flushes and fences as they are")
                                  : "flushes and fences as " + medium + "'s")},
      {"work", fmt::format("{}; YCSB {} of restart; medians of {}",
                           format_counted(has.at("threads").get<uint64_t>(), "thread"),
                           has.at("mix").get<std::string>(),
                           format_counted(has.at("repeats").get<uint64_t>(), "run"))},
      {"published", fmt::format("{}: {}", published.at("source").get<std::string>(),
                                published.at("conditions").get<std::string>())}};
  return rows;
}

}  // namespace
}  // namespace buffer_pool

std::string buffer_table(const nlohmann::json& study) {
  std::string text;
  for (const TextRow& row : buffer_pool::facts_of(study)) text += wrap_fact(row);
  for (const buffer_pool::Section& section : buffer_pool::sections_of(study)) {
    text += "\n" + section.title + "\n" + align_columns(section.rows, section.text_columns);
    for (const std::string& remark : section.remarks) text += remark + "\n";
  }
  if (study.at("interrupted").get<bool>()) text += "\nThe study was interrupted.\n";
  return text;
}

std::string buffer_html(const nlohmann::json& study) {
  std::string body;
  for (const buffer_pool::Section& section : buffer_pool::sections_of(study)) {
    std::string content = html::table(section.rows, section.text_columns);
    for (const std::string& remark : section.remarks)
      content += fmt::format("<p>{}</p>\n", html::escape(remark));
    if (!section.drawing.empty()) content += html::figure(section.drawing);
    body += report::section(section.anchor, section.title, section.explanation, content);
  }
  body += report::section("conditions", "Conditions", "What the figures were made with.",
                          html::facts(buffer_pool::facts_of(study)));
  return html::page("A database's buffer pool in persistent memory", body);
}

}  // namespace perdure::lab::study
