// What an operation of an FPTree flushes: as its paper counts it.
#include <gtest/gtest.h>

#include "seam/flush_counts.h"

namespace seam_test {
namespace {

// Insert and update: record, fingerprint, bitmap. Remove: bitmap.
TEST(FPTreeFlushes, ThreeThreeAndOne) {
  const FlushCounts counts = flush_counts("fptree");
  EXPECT_EQ(counts.insert.calls, 3U);
  EXPECT_EQ(counts.update.calls, 3U);
  EXPECT_EQ(counts.remove.calls, 1U);
}

TEST(FPTreeFlushes, RecordAndFingerprintShareAFence) {
  const FlushCounts counts = flush_counts("fptree");
  EXPECT_EQ(counts.insert.fences, 2U);
  EXPECT_EQ(counts.update.fences, 2U);
  EXPECT_EQ(counts.remove.fences, 1U);
}

}  // namespace
}  // namespace seam_test
