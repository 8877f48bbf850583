// What an operation of BzTree flushes, within what the comparison of range trees counted for it:
// 15, 10 and 7 for insert, update and remove.
#include <gtest/gtest.h>

#include "seam/flush_counts.h"

namespace seam_test {
namespace {

// A record; and of its operation the descriptor, two words, the status, two words again.
TEST(BzTreeFlushes, OfOneOperationOfTwoWords) {
  const FlushCounts counts = flush_counts("bztree");
  EXPECT_EQ(counts.insert.lines, 7U);
  EXPECT_EQ(counts.update.lines, 7U);
  EXPECT_EQ(counts.remove.lines, 6U);
  EXPECT_EQ(counts.insert.fences, 4U);
  EXPECT_EQ(counts.update.fences, 4U);
  EXPECT_EQ(counts.remove.fences, 4U);
}

}  // namespace
}  // namespace seam_test
