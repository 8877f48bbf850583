// The evaluation of WORT: its experiments, and what it makes of figures.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lab/study/radix/figures.h"
#include "lab/study/radix/published.h"
#include "lab/tests/measured_document.h"
#include "support/errors.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

json radix_row(const std::string& structure, const std::string& operation, double ns,
               double lines = 0) {
  json object = {{"structure", structure},
                 {"kind", "structure"},
                 {"durability", "nothing"},
                 {"phase", operation.starts_with("insert") ? "load" : "run"},
                 {"operation", operation},
                 {"threads", 1},
                 {"records", 1000},
                 {"operations", 1000},
                 {"failed", 0},
                 {"mops", {1000 / ns}},
                 {"ns_per_op_median", ns},
                 {"pool_bytes", 64000},
                 {"dram_bytes", 500},
                 {"raw_bytes", 16000}};
  if (lines > 0) {
    object["lines_per_operation"] = lines;
    object["fences_per_operation"] = lines + 1;
  }
  return object;
}

json radix_study_of(json results) {
  json experiments = json::array();
  RadixStudyOptions options;
  options.keys = {RadixKeys::kDense};
  options.write_latencies_ns = {0, 300};
  options.lengths = {100};
  for (const RadixExperiment& each : radix_experiments(options)) {
    const bool inserts = each.operation == RadixOperation::kInsert;
    const bool searches = each.operation == RadixOperation::kSearch;
    json experiment = {{"name", each.name},
                       {"keys", to_string(each.keys)},
                       {"operation", inserts    ? "insert"
                                     : searches ? "lookup"
                                                : "scan"}};
    if (inserts) experiment["write_latency_ns"] = each.write_latency_ns;
    if (!inserts && !searches) experiment["length"] = each.length;
    experiments.push_back(experiment);
  }
  return measured_document("perdure-study-radix-trees-1", json::array({"dense"}), experiments,
                           std::move(results));
}

TEST(RadixStudy, ExperimentsHaveNamesOfTheirOwn) {
  const RadixStudyOptions options;
  std::set<std::string> names;
  for (const RadixExperiment& each : radix_experiments(options)) names.insert(each.name);
  EXPECT_EQ(names.size(), 3U * (4 + 1 + 3));
  for (const RadixKeys keys : kRadixKeys) EXPECT_EQ(parse_radix_keys(to_string(keys)), keys);
}

TEST(RadixStudy, TablesHaveAColumnForEachExperimentAndADashForWhatIsMissing) {
  const RadixFigures figures(
      radix_study_of({radix_row("wort", "insert, dense keys, 0 ns", 500),
                      radix_row("wort", "insert, dense keys, 300 ns", 1700, 4),
                      radix_row("fptree", "search, dense keys", 250),
                      radix_row("wort", "range of 100, dense keys", 800)}));
  const auto inserts = figures.inserts();
  ASSERT_EQ(inserts.size(), 1U);
  EXPECT_EQ(inserts[0].rows[0], (TextRow{"structure", "as it is", "+300 ns"}));
  EXPECT_EQ(inserts[0].rows[1], (TextRow{"wort", "500", "1700"}));
  EXPECT_EQ(inserts[0].rows[2], (TextRow{"fptree", "-", "-"}));
  EXPECT_EQ(figures.flushes().rows, (std::vector<TextRow>{{"structure", "lines, dense", "fences"},
                                                          {"wort", "4.00", "5.00"}}));
  EXPECT_EQ(figures.searches()[0].rows[2], (TextRow{"fptree", "250"}));
  EXPECT_EQ(figures.ranges()[0].rows[1], (TextRow{"wort", "8.0"}));
  EXPECT_EQ(figures.memory().rows[1], (TextRow{"wort", "64.0", "0.5"}));
  ASSERT_EQ(figures.charts().size(), 1U);
  EXPECT_EQ(figures.charts()[0].curves.size(), 1U);
  EXPECT_TRUE(figures.published().rows.empty());
}

TEST(RadixStudy, WhatWasSaidIsSetBesideWhatWasMeasured) {
  const RadixFigures figures(
      radix_study_of({radix_row("wort", "insert, dense keys, 0 ns", 500),
                      radix_row("wbtree", "insert, dense keys, 0 ns", 450),
                      radix_row("wort", "insert, dense keys, 300 ns", 1700, 4),
                      radix_row("wbtree", "insert, dense keys, 300 ns", 2450, 6.5),
                      radix_row("fptree", "insert, dense keys, 300 ns", 1200, 3),
                      radix_row("wort", "search, dense keys", 200),
                      radix_row("wbtree", "search, dense keys", 300)}));
  const TitledRows table = figures.published();
  ASSERT_EQ(table.rows.size(), 1U + 4);  // nothing of a search in FPTree
  EXPECT_EQ(table.rows[1], (TextRow{kRadixInserts, "insert, dense keys, 0 ns, in ns",
                                    "wort 500, wbtree 450", "no"}));
  EXPECT_EQ(table.rows[2].back(), "yes");
  EXPECT_EQ(table.rows[3],
            (TextRow{kRadixLatency, "insert, dense keys, in ns", "from -50 to 750", "yes"}));
  EXPECT_EQ(table.rows[4], (TextRow{kRadixFlushes, "dense keys, in lines",
                                    "wort 4.00, wbtree 6.50, fptree 3.00", "no"}));
}

}  // namespace
}  // namespace perdure::lab::study
