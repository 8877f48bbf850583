// What an operation of a hash table flushes, as the study of their write amplification has it.
#include <gtest/gtest.h>

#include "seam/flush_counts.h"

namespace seam_test {
namespace {

void expect_one_flush_each(const char* structure, const perdure::OptionMap& options = {}) {
  SCOPED_TRACE(structure);
  const FlushCounts counts = flush_counts(structure, options);
  EXPECT_EQ(counts.insert.calls, 1U);
  EXPECT_EQ(counts.update.calls, 1U);
  EXPECT_EQ(counts.remove.calls, 1U);
}

TEST(HashTableFlushes, OfOneLineBuckets) {
  expect_one_flush_each("cceh", {{"initial_depth", "1"}});  // segments are made by their first key
  expect_one_flush_each("p-clht+fc");
  expect_one_flush_each("level+rb");
}

// The references flush twice for an insert: value and key, or record and token.
TEST(HashTableFlushes, OfTheReferences) {
  for (const char* name : {"p-clht", "level"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(flush_counts(name).insert.calls, 2U);
  }
}

}  // namespace
}  // namespace seam_test
