// A page of plots and tables from results that were measured before.
//
//   auto files = report::read_results({"monday.json", "tuesday.json"});
//   write(report::to_html(files, {.compare = true}));
#pragma once

#include <string>
#include <vector>

#include "lab/report/result_file.h"

namespace perdure::lab::report {

struct ReportOptions {
  std::string title = "Benchmark results";
  // Of exactly two results of the benchmark: how the second differs from the first.
  bool compare = false;
  std::string front;  // sections before those of the results, as HTML; see report::section()
};

// One page that loads nothing. Sections without data are left out. Throws Error(kInvalidArgument)
// if there are not the files to compare.
std::string to_html(const std::vector<ResultFile>& files, const ReportOptions& options);

}  // namespace perdure::lab::report
