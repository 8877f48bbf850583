// The comparison of range indexes: its experiments, and what it makes of figures.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lab/study/range/figures.h"
#include "lab/study/range/published.h"
#include "lab/tests/measured_document.h"
#include "support/errors.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

json row(const std::string& structure, const std::string& operation, double mops) {
  json object = {{"structure", structure},
                 {"kind", "structure"},
                 {"durability", "nothing"},
                 {"phase", operation.starts_with("load") ? "load" : "run"},
                 {"operation", operation},
                 {"threads", 1},
                 {"records", 1000},
                 {"operations", 1000},
                 {"failed", 0},
                 {"mops", {mops}},
                 {"ns_per_op_median", 1000 / mops},
                 {"percentiles", {{"p99", 5000 / mops}}},
                 {"by_operation", json::object()},
                 {"windows", nullptr},
                 {"pool_bytes", 64000},
                 {"dram_bytes", 500},
                 {"raw_bytes", 16000},
                 {"space_amplification", 4.0}};
  return object;
}

json load(const std::string& structure, const std::string& operation, double open_ms) {
  json object = row(structure, operation, 1);
  object["open_killed_ms"] = {open_ms};
  return object;
}

json study_of(json results, const json& half = json::array()) {
  json experiments = json::array();
  for (const RangeExperiment& each :
       range_experiments({std::begin(kRangeParts), std::end(kRangeParts)})) {
    experiments.push_back(
        {{"name", each.name}, {"column", each.column}, {"part", to_string(each.part)}});
  }
  json study =
      measured_document("perdure-study-range-indexes-1", "mixed", experiments, std::move(results));
  study["results_of_half"] = json::parse(half.dump());
  return study;
}

TEST(RangeStudy, ExperimentsHaveNamesOfTheirOwn) {
  const auto all = range_experiments({std::begin(kRangeParts), std::end(kRangeParts)});
  std::set<std::string> names;
  for (const RangeExperiment& each : all) names.insert(each.name);
  EXPECT_EQ(names.size(), all.size());
  EXPECT_EQ(all.size(), 3U + 8 + 6 + 5);
  EXPECT_EQ(range_experiments({RangePart::kSelfSimilar}).front().workload.distribution.name(),
            "selfsimilar=0.2");
  for (const RangePart part : kRangeParts) EXPECT_EQ(parse_range_part(to_string(part)), part);
  EXPECT_TRUE(
      test::fails_with(ErrorCode::kInvalidArgument, "skewed", [] { parse_range_part("skewed"); }));
}

TEST(RangeStudy, OrdersAreAmongThoseThatWereCompared) {
  // FAST&FAIR is the fastest here, but the comparison had it not.
  const RangeFigures figures(study_of({row("fptree", "lookup", 3), row("wbtree", "lookup", 2),
                                       row("fast-fair", "lookup", 9), row("wbtree", "scan", 1),
                                       row("fptree", "scan", 2), row("bztree", "insert", 5)}));
  const TitledRows orders = figures.orders();
  ASSERT_EQ(orders.rows.size(), 3U);  // nothing to compare of inserts
  EXPECT_EQ(orders.rows[1][3], "fptree 3.000, wbtree 2.000");
  EXPECT_EQ(orders.rows[1].back(), "yes");
  EXPECT_EQ(orders.rows[2][3], "fptree 2.000, wbtree 1.000");
  EXPECT_EQ(orders.rows[2].back(), "no");
}

TEST(RangeStudy, GrowthOfRecoveryStandsBesideThePublishedOne) {
  const RangeFigures figures(
      study_of({load("fptree", "load", 30), load("fast-fair", "load", 5)},
               {load("fptree", "load of half", 10), load("fast-fair", "load of half", 5)}));
  const TitledRows recovery = figures.recovery();
  ASSERT_EQ(recovery.rows.size(), 3U);
  EXPECT_EQ(recovery.rows[1],
            (TextRow{"fptree", "1.77 s", "3.56 s", "x 2.01", "10.0 ms", "30.0 ms", "x 3.00"}));
  EXPECT_EQ(recovery.rows[2],
            (TextRow{"fast-fair", "-", "-", "-", "5.00 ms", "5.00 ms", "x 1.00"}));
}

TEST(RangeStudy, WhatIsMissingIsADash) {
  const RangeFigures figures(study_of({row("fptree", "lookup", 2), row("wbtree", "scan", 1)}));
  const auto tables = figures.throughputs();
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_EQ(tables[0].rows[0], (TextRow{"structure", "insert", "lookup", "update", "remove", "scan",
                                        "90/10", "50/50", "10/90"}));
  EXPECT_EQ(tables[0].rows[1], (TextRow{"fptree", "-", "2.000", "-", "-", "-", "-", "-", "-"}));
  EXPECT_EQ(figures.latencies()[0].rows[2][5], "5.00 us");
  EXPECT_TRUE(figures.loads().empty());
  EXPECT_TRUE(figures.recovery().rows.empty());
}

}  // namespace
}  // namespace perdure::lab::study
