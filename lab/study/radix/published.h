// What WORT's authors said of their comparison, to set beside ours: orders, for their figures are
// bars without numbers. They are here and nowhere else.
#pragma once

#include <string_view>

namespace perdure::lab::study {

extern const char* const kRadixSource;
extern const char* const kRadixConditions;

// Of whom they are said.
inline constexpr std::string_view kRadixOptimal[] = {"wort", "woart"};
inline constexpr std::string_view kRadixCompared[] = {"wbtree", "nv-tree", "fptree"};

extern const char* const kRadixInserts;   // of the first two against wB+Tree
extern const char* const kRadixLatency;   // of WORT and wB+Tree
extern const char* const kRadixFlushes;   // of the first two and the others
extern const char* const kRadixSearches;  // of WORT and the others

}  // namespace perdure::lab::study
