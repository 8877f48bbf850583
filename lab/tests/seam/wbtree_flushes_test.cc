// What an operation of the wB+Tree flushes, as the comparison of range indexes counts it.
#include <gtest/gtest.h>

#include "seam/flush_counts.h"

namespace seam_test {
namespace {

TEST(WbtreeFlushes, AreFourOneAndOneAsOfInsertUpdateAndRemove) {
  const FlushCounts counts = flush_counts("wbtree");
  EXPECT_EQ(counts.insert.calls, 4U);
  EXPECT_EQ(counts.insert.fences, 3U) << "record and slot array share one";
  EXPECT_EQ(counts.update.calls, 1U) << "8-byte values are replaced in place";
  EXPECT_EQ(counts.remove.calls, 1U);
  EXPECT_EQ(counts.remove.fences, 1U);
}

}  // namespace
}  // namespace seam_test
