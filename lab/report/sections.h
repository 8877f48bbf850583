// The sections of a report, as HTML: plots, each with its data as a table. Empty without data.
#pragma once

#include <string>
#include <vector>

#include "lab/html/axis.h"
#include "lab/report/result_file.h"
#include "lab/report/series.h"

namespace perdure::lab::report {

std::string throughput_section(const SeriesList& list);
// Of servers: latencies over the rates that they were offered.
std::string rates_section(const SeriesList& list);
std::string latency_section(const SeriesList& list);
std::string windows_section(const SeriesList& list);
std::string memory_section(const SeriesList& list);
std::string recovery_section(const SeriesList& list);
std::string writes_section(const std::vector<ResultFile>& files);
// Of two results of the benchmark: the second against the first.
std::string comparison_section(const ResultFile& first, const ResultFile& second);

// A section with an anchor for the page's table of contents; empty if `content` is.
std::string section(const std::string& anchor, const std::string& title,
                    const std::string& explanation, const std::string& content);

// "-" for what was not measured.
std::string or_dash(double value, html::Unit unit = html::Unit::kNumber);

}  // namespace perdure::lab::report
