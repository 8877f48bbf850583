// What a few repeats say: against figures from tables and by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "lab/report/statistics.h"

namespace perdure::lab::report {
namespace {

TEST(ReportStatistics, QuantilesOfStudentsTAreThoseOfTheTables) {
  EXPECT_NEAR(t_quantile(1), 12.706, 1e-3);
  EXPECT_NEAR(t_quantile(4), 2.776, 1e-3);
  EXPECT_NEAR(t_quantile(14), 2.145, 2e-3);
  EXPECT_NEAR(t_quantile(25), 2.060, 2e-3);
  EXPECT_NEAR(t_quantile(1000), 1.962, 2e-3);
  // Between whole degrees of freedom it falls steadily.
  for (double degrees = 1; degrees < 200; degrees += 0.25) {
    EXPECT_GT(t_quantile(degrees), t_quantile(degrees + 0.25)) << degrees;
  }
}

TEST(ReportStatistics, AnEstimateIsTheMedianWithTheIntervalOfTheMean) {
  const Estimate e = estimate({4, 1, 2, 3, 5});
  EXPECT_DOUBLE_EQ(e.value, 3);
  // 3 +- 2.776 * sqrt(2.5 / 5)
  EXPECT_NEAR(*e.low, 1.037, 1e-3);
  EXPECT_NEAR(*e.high, 4.963, 1e-3);
  EXPECT_FALSE(estimate({7}).low.has_value());
  EXPECT_EQ(estimate({}).value, 0);
}

// Of two repeats far apart the interval is wide, and yet no speed is below zero.
TEST(ReportStatistics, AnIntervalOfASpeedDoesNotReachBelowZero) {
  const Estimate e = estimate({1, 3});
  EXPECT_EQ(*e.low, 0);
  EXPECT_GT(*e.high, 10);
}

TEST(ReportStatistics, TheRatioIsThatOfGeometricMeans) {
  const auto r = ratio({1, 2, 4}, {2, 4, 8});
  ASSERT_TRUE(r.has_value());
  EXPECT_NEAR(r->value, 2, 1e-12);
  // Equal variances of ln(2)^2 on both sides: 4 degrees of freedom.
  const double reach = 2.7764 * std::sqrt(2 * std::log(2.0) * std::log(2.0) / 3);
  EXPECT_NEAR(std::log(*r->high / 2), reach, 1e-3);
  EXPECT_NEAR(std::log(2 / *r->low), reach, 1e-3);
}

TEST(ReportStatistics, TheRatioOfOneRepeatHasNoInterval) {
  EXPECT_FALSE(ratio({2}, {3, 3})->low.has_value());
  EXPECT_FALSE(ratio({}, {1}).has_value());
  EXPECT_FALSE(ratio({0}, {1}).has_value());
  const auto equal = ratio({2, 2}, {2, 2});
  EXPECT_DOUBLE_EQ(*equal->low, 1);
  EXPECT_DOUBLE_EQ(*equal->high, 1);
}

}  // namespace
}  // namespace perdure::lab::report
