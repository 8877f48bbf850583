// The rows of all files as series of one page: the same structure has the same colour in every
// plot.
#pragma once

#include <string>
#include <vector>

#include "lab/report/result_file.h"

namespace perdure::lab::report {

struct SeriesRow {
  const BenchRow* row;
  std::string label;  // the structure, with its file if there are several
  size_t series;
};

class SeriesList {
 public:
  explicit SeriesList(const std::vector<ResultFile>& files);

  const std::vector<SeriesRow>& rows() const { return rows_; }
  // In the order in which they first come.
  const std::vector<std::string>& operations() const { return operations_; }
  const std::vector<unsigned>& threads() const { return threads_; }

  std::vector<SeriesRow> of_operation(const std::string& operation) const;
  std::vector<SeriesRow> of_operation(const std::string& operation, unsigned threads) const;
  // The loads, of the least number of threads that each series was loaded with, without those of no
  // bytes: what memory and opening are shown for.
  std::vector<SeriesRow> loads() const;

 private:
  std::vector<SeriesRow> rows_;
  std::vector<std::string> operations_;
  std::vector<unsigned> threads_;
};

}  // namespace perdure::lab::report
