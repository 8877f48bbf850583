// Throughput over time: what the studies of restarts measure.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace perdure::lab::study {

struct Window {
  double begin_s;
  double per_s;
  double medium_reads;  // for each operation
};

inline double mean_of(const std::vector<Window>& windows, size_t from, size_t to,
                      double Window::* figure) {
  double sum = 0;
  for (size_t i = from; i < to; ++i) sum += windows[i].*figure;
  return to > from ? sum / static_cast<double>(to - from) : 0;
}

// The first moment from which on a stretch of windows is good enough on average.
inline std::optional<double> first_time(const std::vector<Window>& windows, size_t stretch,
                                        double Window::* figure, double bound, bool at_least) {
  for (size_t i = 0; i + stretch <= windows.size(); ++i) {
    const double mean = mean_of(windows, i, i + stretch, figure);
    if (at_least ? mean >= bound : mean <= bound) return windows[i].begin_s;
  }
  return std::nullopt;
}

inline nlohmann::json windows_json(const std::vector<Window>& windows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Window& each : windows) {
    all.push_back({{"begin_s", each.begin_s},
                   {"per_s", each.per_s},
                   {"medium_reads_per_operation", each.medium_reads}});
  }
  return all;
}

inline nlohmann::json or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace perdure::lab::study
