#include "lab/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace perdure::lab::report {
namespace {

struct Moments {
  double count;
  double mean;
  double variance;  // of the sample; 0 of one
};

Moments moments(const std::vector<double>& values) {
  Moments m = {static_cast<double>(values.size()), 0, 0};
  for (const double value : values) m.mean += value / m.count;
  if (values.size() < 2) return m;
  for (const double value : values) {
    m.variance += (value - m.mean) * (value - m.mean) / (m.count - 1);
  }
  return m;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

bool all_positive(const std::vector<double>& values) {
  return !values.empty() && std::ranges::all_of(values, [](double value) {
    return value > 0 && std::isfinite(value);
  });
}

std::vector<double> logarithms(const std::vector<double>& values) {
  std::vector<double> logs;
  logs.reserve(values.size());
  for (const double value : values) logs.push_back(std::log(value));
  return logs;
}

}  // namespace

double t_quantile(double degrees) {
  struct Row {
    double degrees;
    double quantile;
  };
  constexpr Row kTable[] = {{1, 12.7062}, {2, 4.3027},  {3, 3.1824},  {4, 2.7764},
                            {5, 2.5706},  {6, 2.4469},  {7, 2.3646},  {8, 2.3060},
                            {9, 2.2622},  {10, 2.2281}, {12, 2.1788}, {15, 2.1314},
                            {20, 2.0860}, {30, 2.0423}, {60, 2.0003}, {120, 1.9799}};
  constexpr double kNormal = 1.9600;
  if (degrees <= kTable[0].degrees) return kTable[0].quantile;
  // Nearly a straight line over the reciprocal.
  const auto at = [degrees](double d0, double q0, double reciprocal1, double q1) {
    const double way = (1 / d0 - 1 / degrees) / (1 / d0 - reciprocal1);
    return q0 + way * (q1 - q0);
  };
  for (size_t i = 1; i < std::size(kTable); ++i) {
    const Row& low = kTable[i - 1];
    const Row& high = kTable[i];
    if (degrees <= high.degrees) {
      return at(low.degrees, low.quantile, 1 / high.degrees, high.quantile);
    }
  }
  const Row& last = kTable[std::size(kTable) - 1];
  return at(last.degrees, last.quantile, 0, kNormal);
}

Estimate estimate(const std::vector<double>& repeats) {
  if (repeats.empty()) return {};
  Estimate result = {.value = median(repeats)};
  if (repeats.size() < 2) return result;
  const Moments m = moments(repeats);
  const double reach = t_quantile(m.count - 1) * std::sqrt(m.variance / m.count);
  result.low = std::max(m.mean - reach, 0.0);  // figures of speed and size are never below
  result.high = m.mean + reach;
  return result;
}

std::optional<Estimate> ratio(const std::vector<double>& first, const std::vector<double>& second) {
  if (!all_positive(first) || !all_positive(second)) return std::nullopt;
  const Moments a = moments(logarithms(first));
  const Moments b = moments(logarithms(second));
  const double difference = b.mean - a.mean;
  Estimate result = {.value = std::exp(difference)};
  if (first.size() < 2 || second.size() < 2) return result;
  const double va = a.variance / a.count;
  const double vb = b.variance / b.count;
  double reach = 0;
  if (va + vb > 0) {
    // Welch and Satterthwaite's degrees of freedom.
    const double degrees =
        (va + vb) * (va + vb) / (va * va / (a.count - 1) + vb * vb / (b.count - 1));
    reach = t_quantile(degrees) * std::sqrt(va + vb);
  }
  result.low = std::exp(difference - reach);
  result.high = std::exp(difference + reach);
  return result;
}

}  // namespace perdure::lab::report
