// A campaign's report as text, JSON and HTML.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "lab/crash/campaign.h"
#include "lab/html/page.h"

namespace perdure::lab::crash {
namespace {

// Keys and values of a damaged image may be any bytes.
std::string printable(const std::string& text) {
  std::string safe = text;
  for (char& c : safe) {
    if ((c < ' ' && c != '\n') || c > 126) c = '?';
  }
  return safe;
}

std::string escape(const std::string& text) { return html::escape(printable(text)); }

std::string ended_by_limit(const Exploration& exploration) {
  if (exploration.finished) return {};
  return fmt::format("  (ended by a limit, at {:.0f} %)", 100 * exploration.part);
}

void append_finding(std::string& text, size_t number, const FindingReport& finding) {
  text += fmt::format("\nFinding {}: {}\n  crash      {}\n", number, printable(finding.what),
                      finding.crash);
  if (finding.times > 1) {
    text += fmt::format("  found      {} times, in operations of this type and with these stores\n",
                        finding.times);
  }
  for (const std::string& lost : finding.lost) text += fmt::format("  lost       {}\n", lost);
  for (const std::string& store : finding.last_stores) {
    text += fmt::format("  durable    {}\n", store);
  }
  for (const std::string& line : finding.lines) text += fmt::format("  line       {}\n", line);
  for (const std::string& operation : finding.workload) {
    text += fmt::format("  operation  {}\n", operation);
  }
  if (!finding.image.empty()) text += fmt::format("  image      {}\n", finding.image);
  if (!finding.command.empty()) text += fmt::format("  again      {}\n", finding.command);
}

void append_mutation(std::string& text, const MutationResult& mutation) {
  text += fmt::format("\nFlush mutation: {} of {} sites killed, in {:.1f} s\n", mutation.killed(),
                      mutation.sites.size(), mutation.seconds);
  for (const MutationSite& site : mutation.sites) {
    const char* outcome = site.killed ? "killed" : site.exhausted ? "SURVIVES" : "survives (limit)";
    text +=
        fmt::format("  {:<16} {}  {:<52} {:>7} times, {:>7} in recoveries, {:>5} held back  {}\n",
                    outcome, to_string(site.kind), site.place, site.executions, site.recoveries,
                    site.held_back, printable(site.how.substr(0, 70)));
  }
}

nlohmann::ordered_json json_of(const FindingReport& finding) {
  return {{"what", printable(finding.what)},    {"crash", finding.crash},
          {"lost_stores", finding.lost},        {"lines", finding.lines},
          {"last_stores", finding.last_stores}, {"times", finding.times},
          {"operations", finding.workload},     {"image", finding.image},
          {"command", finding.command}};
}

nlohmann::ordered_json json_of(const RunReport& run) {
  const Exploration& exploration = run.exploration;
  return {{"title", run.title},
          {"operations", run.operations},
          {"events", run.events},
          {"crash_points", exploration.points},
          {"crash_points_complete", exploration.points_complete},
          {"states_visited", exploration.visited},
          {"states", exploration.states},
          {"recoveries_explored", exploration.nested_runs},
          {"states_of_recoveries", exploration.nested_states},
          {"deaths_explored", exploration.deaths},
          {"states_of_deaths", exploration.death_states},
          {"seconds", exploration.seconds},
          {"part_explored", exploration.part},
          {"explored_little", run.explored_little()},
          {"finished", exploration.finished}};
}

nlohmann::ordered_json json_of(const CampaignReport& report) {
  nlohmann::ordered_json json = {{"structure", report.structure},
                                 {"domain", report.domain},
                                 {"states", report.states()},
                                 {"seconds", report.seconds},
                                 {"sites_reached", report.reached},
                                 {"sites_not_reached", report.unreached},
                                 {"not_mutated", report.unmutated},
                                 {"findings", nlohmann::ordered_json::array()},
                                 {"runs", nlohmann::ordered_json::array()}};
  for (const RunReport& run : report.runs) {
    json["runs"].push_back(json_of(run));
    for (const FindingReport& finding : run.findings) json["findings"].push_back(json_of(finding));
  }
  if (!report.mutated) return json;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MutationSite& site : report.mutation.sites) {
    list.push_back({{"place", site.place},
                    {"kind", to_string(site.kind)},
                    {"executions", site.executions},
                    {"executions_of_recoveries", site.recoveries},
                    {"states_held_back", site.held_back},
                    {"killed", site.killed},
                    {"exhausted", site.exhausted},
                    {"how", printable(site.how)}});
  }
  json["mutation"] = {{"sites", report.mutation.sites.size()},
                      {"killed", report.mutation.killed()},
                      {"seconds", report.mutation.seconds},
                      {"list", std::move(list)}};
  return json;
}

constexpr char kPageHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Crash exploration</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8885; --good: #1a7f37; --bad: #cf222e;
  --little: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #ff7b72;
  --little: #d29922; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); border-radius: 4px; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
.little { color: var(--little); font-weight: 600; }
section.finding { border-left: 4px solid var(--bad); padding-left: 1rem; margin: 1.5rem 0; }
</style></head><body>
<h1>Crash exploration</h1>
<p>At each persistence event of a recorded run, the memory images that a crash may leave were
recovered and compared with what had been promised.</p>
)";

std::string page_section(const FindingReport& finding, size_t number) {
  std::string html =
      fmt::format("<section class=\"finding\"><h3>Finding {}: {}</h3><p>Crash {}.</p>", number,
                  escape(finding.what), escape(finding.crash));
  const auto list = [&html](const char* title, const std::vector<std::string>& items) {
    if (items.empty()) return;
    html += fmt::format("<h4>{}</h4><pre>", title);
    for (const std::string& item : items) html += escape(item) + "\n";
    html += "</pre>";
  };
  if (finding.times > 1) {
    html += fmt::format("<p>Found {} times, in operations of this type and with these stores.</p>",
                        finding.times);
  }
  list("Stores that were lost", finding.lost);
  list("Nothing was lost; the last stores, all durable", finding.last_stores);
  list("Lines: as the crash left them, and as they were written", finding.lines);
  list("Operations", finding.workload);
  if (!finding.image.empty()) list("Image", {finding.image});
  if (!finding.command.empty()) list("Again", {finding.command});
  return html + "</section>\n";
}

std::string sentences(const char* title, const std::vector<std::string>& all) {
  if (all.empty()) return {};
  std::string html = fmt::format("<h3>{}</h3><ul>\n", title);
  for (const std::string& sentence : all) html += fmt::format("<li>{}</li>\n", escape(sentence));
  return html + "</ul>\n";
}

// Never good where next to nothing was explored.
const char* verdict_class(uint64_t findings, bool explored_little) {
  return findings > 0 ? "bad" : explored_little ? "little" : "good";
}

std::string totals(const CampaignReport& report) {
  std::string html = fmt::format(
      "<p class={}>{} images recovered in {:.1f} s, {} findings{}</p>\n",
      verdict_class(report.findings(), report.explored_little()), report.states(), report.seconds,
      report.findings(),
      report.explored_little() ? "; next to nothing was explored of at least one run" : "");
  if (report.reached > 0) {
    html +=
        fmt::format("<p>Flushes and fences of the structure's sources: {} reached, {} not.</p>\n",
                    report.reached, report.unreached.size());
  }
  return html;
}

std::string runs_table(const CampaignReport& report) {
  std::string html =
      "<table><thead><tr><th>run</th><th class=n>operations</th><th class=n>events</th>"
      "<th class=n>crash points</th><th class=n>of them complete</th><th class=n>images</th>"
      "<th class=n>crashes of recovery</th><th class=n>power failures after deaths</th>"
      "<th class=n>seconds</th><th class=n>findings</th></tr>"
      "</thead><tbody>\n";
  for (const RunReport& run : report.runs) {
    const Exploration& e = run.exploration;
    html += fmt::format(
        "<tr><td>{}{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{}</td>"
        "<td class=n>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{}</td>"
        "<td class=n>{:.1f}</td>"
        "<td class=\"n {}\">{}</td></tr>\n",
        escape(run.title), ended_by_limit(e), run.operations, run.events, e.points,
        e.points_complete, e.states, e.nested_states, e.death_states, e.seconds,
        verdict_class(run.findings.size(), run.explored_little()), run.findings.size());
  }
  return html + "</tbody></table>\n";
}

std::string mutation_table(const MutationResult& mutation) {
  std::string html = fmt::format(
      "<h3>Flush mutation: {} of {} sites killed</h3><table><thead><tr><th>site</th><th>kind</th>"
      "<th class=n>executions</th><th>outcome</th><th>noticed by</th></tr></thead><tbody>\n",
      mutation.killed(), mutation.sites.size());
  for (const MutationSite& site : mutation.sites) {
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class=n>{}</td><td class={}>{}</td><td>{}</td></tr>\n",
        escape(site.place), to_string(site.kind), site.executions, site.killed ? "good" : "bad",
        site.killed      ? "killed"
        : site.exhausted ? "survives"
                         : "survives (ended by a limit)",
        escape(site.how));
  }
  return html + "</tbody></table>\n";
}

}  // namespace

std::string to_text(const CampaignReport& report) {
  std::string text = fmt::format("{} (domain {})\n", report.structure, report.domain);
  text += fmt::format("  {:<38} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}\n", "run",
                      "ops", "events", "points", "complete", "images", "recovery", "deaths",
                      "seconds", "findings");
  for (const RunReport& run : report.runs) {
    const Exploration& e = run.exploration;
    text += fmt::format("  {:<38} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8.1f} {:>8}{}\n",
                        run.title, run.operations, run.events, e.points, e.points_complete,
                        e.states, e.nested_states, e.death_states, e.seconds, run.findings.size(),
                        ended_by_limit(e));
  }
  size_t number = 0;
  for (const RunReport& run : report.runs) {
    for (const FindingReport& finding : run.findings) append_finding(text, ++number, finding);
  }
  if (report.mutated) append_mutation(text, report.mutation);
  for (const std::string& sentence : report.unmutated) text += sentence + "\n";
  if (report.reached > 0) {
    text +=
        fmt::format("\nFlushes and fences of the structure's sources: {} reached, {} not{}\n",
                    report.reached, report.unreached.size(), report.unreached.empty() ? "" : ":");
  }
  for (const std::string& place : report.unreached)
    text += fmt::format("  not reached  {}\n", place);
  text += fmt::format("\n{}: {} images recovered in {:.1f} s, {} findings\n", report.structure,
                      report.states(), report.seconds, report.findings());
  return text;
}

std::string to_json(const std::vector<CampaignReport>& reports) {
  if (reports.size() == 1) return json_of(reports.front()).dump(2) + "\n";
  nlohmann::ordered_json json;
  json["results"] = nlohmann::ordered_json::array();
  for (const CampaignReport& report : reports) json["results"].push_back(json_of(report));
  return json.dump(2) + "\n";
}

std::string to_html(const std::vector<CampaignReport>& reports, const ReportOrigin& origin) {
  std::string html = kPageHead;
  uint64_t states = 0;
  uint64_t findings = 0;
  bool little = reports.empty();
  for (const CampaignReport& report : reports) {
    states += report.states();
    findings += report.findings();
    little = little || report.explored_little();
  }
  html += fmt::format(
      "<p class={}>{} subjects, {} images recovered, {} findings.</p><p>Seed {}. Command:</p>"
      "<pre>{}</pre>\n",
      verdict_class(findings, little), reports.size(), states, findings, origin.seed,
      escape(origin.command));
  for (const CampaignReport& report : reports) {
    html += fmt::format("<h2>{} <small>(domain {})</small></h2>\n", escape(report.structure),
                        report.domain);
    html += totals(report) + runs_table(report);
    size_t number = 0;
    for (const RunReport& run : report.runs) {
      for (const FindingReport& finding : run.findings) html += page_section(finding, ++number);
    }
    if (report.mutated) html += mutation_table(report.mutation);
    html += sentences("Runs that were not mutated", report.unmutated);
    html += sentences("Flushes and fences that no run reached", report.unreached);
  }
  return html + "</body></html>\n";
}

}  // namespace perdure::lab::crash
