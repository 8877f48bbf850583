// What an operation of FAST&FAIR flushes: the lines that a shift leaves, each once and in order.
#include <gtest/gtest.h>

#include "seam/flush_counts.h"

namespace seam_test {
namespace {

TEST(FastFairFlushes, AShiftFlushesEachLineOnce) {
  for (const char* name : {"fast-fair", "fast-fair+rb"}) {
    SCOPED_TRACE(name);
    const FlushCounts counts = flush_counts(name);
    for (const FlushCount& shift : {counts.insert, counts.remove}) {
      EXPECT_GE(shift.calls, 1U);
      EXPECT_LE(shift.calls, 8U);
      EXPECT_EQ(shift.lines, shift.calls);
      EXPECT_EQ(shift.fences, shift.calls);  // each line before the next, the last before it shows
    }
  }
}

TEST(FastFairFlushes, AnUpdateFlushesOneWord) {
  for (const char* name : {"fast-fair", "fast-fair+rb", "fast-fair+rb+xs"}) {
    SCOPED_TRACE(name);
    const FlushCounts counts = flush_counts(name);
    EXPECT_EQ(counts.update.calls, 1U);
    EXPECT_EQ(counts.update.lines, 1U);
    EXPECT_EQ(counts.update.fences, 1U);
  }
}

}  // namespace
}  // namespace seam_test
