// The comparison's figures as rows of text, for the terminal and for pages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/report/result_file.h"
#include "lab/study/measured/titled_rows.h"
#include "lab/study/range/range_indexes.h"

namespace perdure::lab::study {

class RangeFigures {
 public:
  // Throws Error(kInvalidArgument) if it is no such study.
  explicit RangeFigures(const nlohmann::json& study);

  const report::ResultFile& results() const { return results_; }

  // For each part and number of threads: a row for each structure, a column for each experiment.
  std::vector<TitledRows> throughputs() const;
  // The same of the 99th percentiles of latency.
  std::vector<TitledRows> latencies() const;
  // Throughput, memory and opening of the loads.
  std::vector<TitledRows> loads() const;
  // Orders of structures, as published and here; no rows if none can be compared.
  TitledRows orders() const;
  // Opening after a crash, and how it grows when the records double.
  TitledRows recovery() const;

 private:
  struct Column {
    std::string experiment;
    std::string name;
    RangePart part;
  };

  const report::BenchRow* find(const std::string& experiment, const std::string& structure,
                               unsigned threads) const;
  std::vector<TitledRows> matrices(const std::string& quantity,
                                   std::string (&show)(const report::BenchRow&)) const;
  std::vector<const report::BenchRow*> of_compared(std::string_view experiment) const;

  report::ResultFile results_;
  report::ResultFile half_;
  std::vector<Column> columns_;
  std::vector<std::string> structures_;  // that something was measured of
  std::vector<unsigned> threads_;
};

}  // namespace perdure::lab::study
