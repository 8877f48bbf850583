// What single operations of a structure flush, on the path without splits: as the papers count it.
//
//   const FlushCounts counts = flush_counts("fptree");
//   EXPECT_EQ(counts.insert.calls, 3);
#pragma once

#include <string>

#include "perdure/index.h"

namespace seam_test {

// Medians over the operations of one kind.
struct FlushCount {
  uint64_t calls;   // of flush, each for one object
  uint64_t lines;   // that they cover
  uint64_t fences;  // that order them
};

struct FlushCounts {
  FlushCount insert;
  FlushCount update;
  FlushCount remove;
};

// Of a new structure with its default options and 8-byte records, few enough to stay in a leaf.
FlushCounts flush_counts(const std::string& structure, const perdure::OptionMap& options = {});

}  // namespace seam_test
