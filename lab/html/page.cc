#include "lab/html/page.h"

#include <fmt/core.h>

namespace perdure::lab::html {
namespace {

// The colours keep apart under the common colour-vision deficiencies, three to one against the page
// in both schemes; series also differ in marker and dash, so that none depends on colour alone.
constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e;
  --line: #e1e0d9; --axis: #a9a89e; --good: #1a7f37; --bad: #b42318;
  --c0: #2a6fc9; --c1: #d1520f; --c2: #0b8a63; --c3: #b0569a; --c4: #a77b00; --c5: #1f9ac4;
  --c6: #6b4fc0; --c7: #6f6e69; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --ink: #f4f4f2; --soft: #c3c2b7;
  --line: #31312e; --axis: #66655f; --good: #4cc26b; --bad: #ff8a7a;
  --c0: #5ea2f2; --c1: #f07a3c; --c2: #2fbf93; --c3: #dd8bc9; --c4: #e0b53a; --c5: #6ccbf0;
  --c6: #a58cf0; --c7: #a8a79f; } }
.s0 { --series: var(--c0); } .s1 { --series: var(--c1); } .s2 { --series: var(--c2); }
.s3 { --series: var(--c3); } .s4 { --series: var(--c4); } .s5 { --series: var(--c5); }
.s6 { --series: var(--c6); } .s7 { --series: var(--c7); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
  padding: 0 1rem; background: var(--page); color: var(--ink); }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { margin: 2.6rem 0 .5rem; font-size: 1.25rem; }
h3 { margin: 1.8rem 0 .3rem; font-size: 1.05rem; }
p { max-width: 50rem; } a { color: var(--c0); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 1rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0 1rem; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: left; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:first-child { white-space: nowrap; }
table.facts td:first-child { color: var(--soft); vertical-align: top; }
figure { margin: 1.2rem 0 .2rem; } figcaption { font-size: .9rem; }
figcaption b { display: block; }
.key { display: inline-flex; align-items: center; gap: .35em; margin-right: 1.1em;
  color: var(--soft); }
.key svg { width: 26px; height: 12px; max-width: none; display: inline-block; }
details { margin: 0 0 1.4rem; } summary { color: var(--soft); cursor: pointer; font-size: .9rem; }
svg { width: 100%; max-width: 1000px; height: auto; display: block;
  font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--axis); }
svg .mark { stroke: var(--ink); stroke-width: 2.5; }
svg .curve { stroke: var(--series); stroke-width: 2; fill: none; stroke-linejoin: round; }
svg .dot { fill: var(--series); stroke: var(--page); stroke-width: 1; }
svg .whisker { stroke: var(--series); stroke-width: 1.5; fill: none; }
svg .hit { fill: transparent; stroke: none; } svg .bar { fill: var(--series); }
svg .reference { stroke: var(--soft); stroke-dasharray: 4 3; }
svg .level { --series: var(--soft); } svg .above { --series: var(--good); }
svg .below { --series: var(--bad); }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
)";

}  // namespace

std::string escape(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        // Bytes from 0x80 belong to UTF-8.
        safe += static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return safe;
}

std::string page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<style>{1}</style></head><body>\n<h1>{0}</h1>\n{2}</body></html>\n",
      escape(title), kStyle, body);
}

std::string table(const std::vector<TextRow>& rows, size_t text_columns) {
  std::string html = "<div class=\"scroll\"><table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    const char* tag = r == 0 ? "th" : "td";
    html += r == 0 ? "<thead><tr>" : "<tr>";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      html += fmt::format("<{0}{1}>{2}</{0}>", tag, c < text_columns ? "" : " class=\"n\"",
                          escape(rows[r][c]));
    }
    html += r == 0 ? "</tr></thead><tbody>\n" : "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string facts(const std::vector<TextRow>& rows) {
  std::string html = "<table class=\"facts\"><tbody>\n";
  for (const TextRow& row : rows) {
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape(row.at(0)), escape(row.at(1)));
  }
  return html + "</tbody></table>\n";
}

std::string folded(std::string_view summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape(summary), content);
}

std::string figure(const std::string& drawing) {
  return drawing.empty() ? "" : "<figure>\n" + drawing + "</figure>\n";
}

std::string figure(const std::string& drawing, const std::vector<TextRow>& data,
                   size_t text_columns) {
  if (drawing.empty()) return "";
  return figure(drawing) + folded("Data", table(data, text_columns));
}

std::string series_class(size_t series) { return fmt::format("s{}", series % kColours); }

}  // namespace perdure::lab::html
