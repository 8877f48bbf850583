// What the study calculates from counts, on counts that were made up.
#include "lab/study/figures.h"

#include <gtest/gtest.h>

namespace perdure::lab::study {
namespace {

// So many operations that caused so many WPQ inserts and media writes, in 64-byte units.
Counters counters(uint64_t operations, uint64_t wpq, uint64_t media) {
  Counters made;
  made.operations = operations;
  made.wpq_flush = wpq;
  made.media_write_twelfths = media * kTwelfths;
  return made;
}

AmpResult cell(const std::string& structure, const std::string& workload, const Counters& inserts) {
  AmpResult made;
  made.structure = structure;
  made.workload = workload;
  made.by_type = {{"insert", inserts}};
  return made;
}

TEST(StudyFigures, AreOfEverythingThatWasWrittenPerInsert) {
  AmpResult mixed = cell("p-clht", "a", counters(100, 250, 600));
  mixed.by_type.emplace_back("lookup", counters(100, 30, 100));
  mixed.by_type.emplace_back("outside operations", counters(0, 20, 50));
  EXPECT_EQ(counted_operation(mixed), "insert");
  EXPECT_DOUBLE_EQ(value_of(mixed, Quantity::kWpqInserts).value(), 3.0);
  EXPECT_DOUBLE_EQ(value_of(mixed, Quantity::kMediaWrites).value(), 7.5);
  EXPECT_DOUBLE_EQ(value_of(mixed, Quantity::kMediaPerWpqInsert).value(), 2.5);
}

TEST(StudyFigures, ArePerLookupWhereThereIsNoInsert) {
  AmpResult lookups = cell("level", "c", counters(0, 0, 0));
  lookups.by_type.emplace_back("lookup", counters(200, 20, 80));
  EXPECT_EQ(counted_operation(lookups), "lookup");
  EXPECT_DOUBLE_EQ(value_of(lookups, Quantity::kMediaWrites).value(), 0.4);
  AmpResult silent = cell("level", "c", counters(0, 0, 0));
  silent.by_type.emplace_back("lookup", counters(200, 0, 0));
  EXPECT_EQ(value_of(silent, Quantity::kMediaWrites), 0.0);
  EXPECT_EQ(value_of(silent, Quantity::kMediaPerWpqInsert), std::nullopt);
  EXPECT_EQ(value_of(AmpResult{}, Quantity::kWpqInserts), std::nullopt);
}

TEST(StudyFigures, DeviationsAreInPercentOfTheReference) {
  EXPECT_DOUBLE_EQ(percent_change(11, 10).value(), 10);
  EXPECT_DOUBLE_EQ(percent_change(7, 10).value(), -30);
  EXPECT_DOUBLE_EQ(percent_change(10, 10).value(), 0);
  EXPECT_EQ(percent_change(1, 0), std::nullopt);
}

TEST(StudyFigures, AreComparedWithWhatWasPublishedOfTheSameCell) {
  const AmpResult ours = cell("p-clht", "load", counters(100, 400, 1096));  // 2.74 against 2.49
  const Compared ratio = compare(ours, Quantity::kMediaPerWpqInsert);
  ASSERT_NE(ratio.published, nullptr);
  EXPECT_NEAR(ratio.deviation_percent.value(), 10.04, 0.01);
  EXPECT_EQ(compare(ours, Quantity::kMediaWrites).published, nullptr);
  EXPECT_EQ(compare(ours, Quantity::kMediaWrites).deviation_percent, std::nullopt);
  const AmpResult other = cell("p-clht+fc", "load", counters(100, 400, 1096));
  EXPECT_EQ(compare(other, Quantity::kMediaPerWpqInsert).published, nullptr);
}

TEST(StudyFigures, PublishedOnesAreThereOnceEach) {
  for (const Published& each : published()) {
    EXPECT_EQ(find_published(each.structure, each.workload, each.quantity), &each)
        << each.structure << " " << each.workload;
  }
  for (const PublishedChange& each : published_changes()) {
    EXPECT_EQ(find_published_change(each.structure, each.base, each.workload, each.quantity),
              &each);
  }
}

TEST(StudyEffects, AreAgainstTheStructureWithoutTheOptimisation) {
  const std::vector<AmpResult> cells = {
      cell("p-clht", "a", counters(100, 300, 800)),
      cell("p-clht+fc", "a", counters(100, 200, 820)),
      cell("p-clht+fc+ve", "a", counters(100, 210, 410)),
      cell("p-clht+fc", "b", counters(100, 200, 820)),  // its base was not measured
      cell("level+rb", "a", counters(100, 200, 400)),   // nor here
  };
  const std::vector<Effect> found = effects(cells);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].optimisation, "+fc");
  EXPECT_EQ(found[0].base, "p-clht");
  EXPECT_NEAR(found[0].wpq_inserts_percent.value(), -33.33, 0.01);
  EXPECT_NEAR(found[0].media_writes_percent.value(), 2.5, 0.01);
  EXPECT_EQ(found[0].published_wpq_inserts_percent, -30.8);
  EXPECT_EQ(found[0].published_media_writes_percent, std::nullopt);
  EXPECT_EQ(found[1].optimisation, "+ve");
  EXPECT_EQ(found[1].base, "p-clht+fc");
  EXPECT_NEAR(found[1].media_writes_percent.value(), -50, 0.01);
  EXPECT_EQ(found[2].optimisation, "+fc+ve");
  EXPECT_EQ(found[2].base, "p-clht");
  EXPECT_NEAR(found[2].wpq_inserts_percent.value(), -30, 0.01);
}

TEST(StudyEffects, AreNotToldOfWorkloadsThatWriteNothing) {
  AmpResult base = cell("level", "c", counters(0, 0, 0));
  base.by_type.emplace_back("lookup", counters(100, 0, 0));
  AmpResult variant = base;
  variant.structure = "level+rb";
  EXPECT_TRUE(effects({base, variant}).empty());
}

}  // namespace
}  // namespace perdure::lab::study
