// The evaluation's figures as rows of text, for the terminal and for pages.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/html/lines.h"
#include "lab/report/result_file.h"
#include "lab/study/measured/titled_rows.h"
#include "lab/study/radix/radix_trees.h"

namespace perdure::lab::study {

class RadixFigures {
 public:
  // Throws Error(kInvalidArgument) if it is no such study.
  explicit RadixFigures(const nlohmann::json& study);

  const report::ResultFile& results() const { return results_; }

  // Nanoseconds for each insert: for each distribution of keys and number of threads a column for
  // each latency.
  std::vector<TitledRows> inserts() const;
  // Lines that were flushed and fences, for each insert, by the distribution of keys.
  TitledRows flushes() const;
  // Nanoseconds for each search and for each record of a range query: for each number of threads.
  std::vector<TitledRows> searches() const;
  std::vector<TitledRows> ranges() const;
  // Bytes of persistent memory and of DRAM for each record.
  TitledRows memory() const;
  // What was said of the structures, and whether it holds here; no rows if nothing can be compared.
  TitledRows published() const;

  // inserts() over the latency.
  std::vector<html::LineChart> charts() const;

 private:
  std::vector<const RadixExperiment*> of(RadixOperation operation, RadixKeys keys) const;
  const report::BenchRow* find(const RadixExperiment& experiment, const std::string& structure,
                               unsigned threads) const;
  // NaN if it was not measured.
  double ns_of(const RadixExperiment& experiment, std::string_view structure) const;
  double lines_of(RadixKeys keys, std::string_view structure) const;
  const report::BenchRow* counted(RadixKeys keys, const std::string& structure) const;
  // Those of the names that were measured.
  std::vector<std::string> among(const std::vector<std::string_view>& names) const;
  std::vector<TitledRows> by_columns(RadixOperation operation) const;
  void add_statements(RadixKeys keys, TitledRows& table) const;

  report::ResultFile results_;
  std::vector<RadixExperiment> experiments_;
  std::vector<RadixKeys> keys_;
  std::vector<std::string> structures_;  // that something was measured of
  std::vector<unsigned> threads_;
};

}  // namespace perdure::lab::study
