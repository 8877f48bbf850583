#include "lab/report/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "lab/html/page.h"
#include "lab/report/sections.h"
#include "perdure/error.h"

namespace perdure::lab::report {
namespace {

std::string conditions_of(const ResultFile& file, bool named) {
  std::vector<TextRow> rows;
  if (named) rows.push_back({"file", file.path});
  for (const auto& [name, value] : file.conditions) rows.push_back({name, value});
  std::string content = html::facts(rows);
  for (const std::string& remark : file.remarks) {
    content += fmt::format("<p><strong>{}</strong></p>\n", html::escape(remark));
  }
  return content;
}

std::string conditions_section(const std::vector<ResultFile>& files) {
  std::string content;
  for (const ResultFile& file : files) content += conditions_of(file, files.size() > 1);
  // What an acknowledged operation survives, where peers promise something else.
  std::vector<TextRow> rows = {{"structure", "what an operation that returned survives"}};
  for (const ResultFile& file : files) {
    for (const BenchRow& row : file.bench) {
      const TextRow line = {row.structure, row.durability};
      if (std::ranges::find(rows, line) == rows.end()) rows.push_back(line);
    }
  }
  if (rows.size() > 1) content += html::table(rows, 2);
  return section("conditions", "Conditions", "What the figures depend on.", content);
}

// Links to the sections that there are.
std::string contents(const std::string& body) {
  constexpr std::pair<const char*, const char*> kSections[] = {{"overview", "Overview"},
                                                               {"published", "What was published"},
                                                               {"comparison", "Comparison"},
                                                               {"throughput", "Throughput"},
                                                               {"rates", "Latency against rate"},
                                                               {"latency", "Latency"},
                                                               {"time", "Over time"},
                                                               {"memory", "Memory"},
                                                               {"recovery", "Recovery"},
                                                               {"writes", "Write amplification"},
                                                               {"conditions", "Conditions"}};
  std::string links;
  for (const auto& [anchor, title] : kSections) {
    if (body.find(fmt::format("<section id=\"{}\">", anchor)) == std::string::npos) continue;
    links += fmt::format("<a href=\"#{}\">{}</a>\n", anchor, title);
  }
  return "<nav>\n" + links + "</nav>\n";
}

std::string comparison(const std::vector<ResultFile>& files) {
  std::vector<const ResultFile*> measured;
  for (const ResultFile& file : files) {
    if (file.is_measured()) measured.push_back(&file);
  }
  if (measured.size() != 2) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a comparison needs two results of perdure bench, or of perdure study "
                            "range-indexes, radix-trees or serving, the first of which is "
                            "the one to compare with; there {} {}",
                            measured.size() == 1 ? "is" : "are", measured.size()));
  }
  return comparison_section(*measured[0], *measured[1]);
}

}  // namespace

std::string to_html(const std::vector<ResultFile>& files, const ReportOptions& options) {
  const SeriesList list(files);
  std::string body = options.front + (options.compare ? comparison(files) : "");
  body += throughput_section(list) + rates_section(list) + latency_section(list) +
          windows_section(list) + memory_section(list) + recovery_section(list) +
          writes_section(files) + conditions_section(files);
  return html::page(options.title, contents(body) + body);
}

}  // namespace perdure::lab::report
