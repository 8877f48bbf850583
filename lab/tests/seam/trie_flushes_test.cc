// What an operation of the radix trees flushes: one store commits, the rest is the leaf's and the
// heap's.
#include <gtest/gtest.h>

#include "seam/flush_counts.h"

namespace seam_test {
namespace {

TEST(TrieFlushes, AnUpdateFlushesOneWord) {
  for (const char* name : {"p-art+vl", "p-art", "wort", "woart", "art-cow"}) {
    SCOPED_TRACE(name);
    const FlushCounts counts = flush_counts(name);
    EXPECT_EQ(counts.update.calls, 1U);
    EXPECT_EQ(counts.update.lines, 1U);
    EXPECT_EQ(counts.update.fences, 1U);
  }
}

// Intent, slot, the heap's bitmap, the intent's end; a node of one line may give way to its last
// child.
TEST(TrieFlushes, ARemovalFlushesFourLines) {
  for (const char* name : {"p-art+vl", "p-art", "wort", "woart", "art-cow"}) {
    SCOPED_TRACE(name);
    const FlushCounts counts = flush_counts(name);
    EXPECT_GE(counts.remove.lines, 4U);
    EXPECT_LE(counts.remove.lines, 8U);
    EXPECT_GE(counts.remove.fences, 3U);
    EXPECT_LE(counts.remove.fences, 6U);
  }
}

}  // namespace
}  // namespace seam_test
