#include "lab/report/series.h"

#include <algorithm>

namespace perdure::lab::report {

SeriesList::SeriesList(const std::vector<ResultFile>& files) {
  const auto with_results =
      std::ranges::count_if(files, [](const ResultFile& file) { return !file.bench.empty(); });
  std::vector<std::string> labels;
  for (const ResultFile& file : files) {
    for (const BenchRow& row : file.bench) {
      const std::string label =
          with_results > 1 ? row.structure + " (" + file.label + ")" : row.structure;
      auto found = std::ranges::find(labels, label);
      if (found == labels.end()) found = labels.insert(labels.end(), label);
      rows_.push_back({&row, label, static_cast<size_t>(found - labels.begin())});
      if (std::ranges::find(operations_, row.operation) == operations_.end()) {
        operations_.push_back(row.operation);
      }
      if (std::ranges::find(threads_, row.threads) == threads_.end()) {
        threads_.push_back(row.threads);
      }
    }
  }
  std::ranges::sort(threads_);
}

std::vector<SeriesRow> SeriesList::of_operation(const std::string& operation) const {
  std::vector<SeriesRow> found;
  std::ranges::copy_if(rows_, std::back_inserter(found),
                       [&](const SeriesRow& series) { return series.row->operation == operation; });
  return found;
}

std::vector<SeriesRow> SeriesList::of_operation(const std::string& operation,
                                                unsigned threads) const {
  std::vector<SeriesRow> found = of_operation(operation);
  std::erase_if(found, [&](const SeriesRow& series) { return series.row->threads != threads; });
  return found;
}

std::vector<SeriesRow> SeriesList::loads() const {
  std::vector<SeriesRow> found;
  for (const SeriesRow& series : rows_) {
    if (!series.row->is_load || series.row->pool_bytes + series.row->dram_bytes <= 0) continue;
    const auto same = std::ranges::find(found, series.series, &SeriesRow::series);
    if (same == found.end()) {
      found.push_back(series);
    } else if (series.row->threads < same->row->threads) {
      *same = series;
    }
  }
  // What several files have of the same structure stands together.
  std::vector<SeriesRow> together;
  for (const SeriesRow& first : found) {
    const auto same = [&](const SeriesRow& other) {
      return other.row->structure == first.row->structure;
    };
    if (std::ranges::any_of(together, same)) continue;
    std::ranges::copy_if(found, std::back_inserter(together), same);
  }
  return together;
}

}  // namespace perdure::lab::report
