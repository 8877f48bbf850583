// What a few repeats say of a mean, and of the ratio of two.
#pragma once

#include <optional>
#include <vector>

namespace perdure::lab::report {

struct Estimate {
  double value = 0;
  // The 95 % confidence interval; none of fewer than two repeats.
  std::optional<double> low = {};
  std::optional<double> high = {};
};

// The median, and the interval of the mean by Student's t.
Estimate estimate(const std::vector<double>& repeats);

// By how much the second is above the first: the ratio of their geometric means, with the interval
// by Welch's t test on the logarithms of the repeats, which allows for different spreads. None if a
// side has no repeats or one that is not positive; no interval of fewer than two on a side.
std::optional<Estimate> ratio(const std::vector<double>& first, const std::vector<double>& second);

// The 97.5 % quantile of Student's t; `degrees` of freedom need not be whole, and are 1 at least.
double t_quantile(double degrees);

}  // namespace perdure::lab::report
