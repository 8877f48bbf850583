// Sorting what a scan has copied of a leaf.
#pragma once

#include <cstdint>

#include "index/tree/content.h"

namespace perdure::index::tree {

// By their first words, up to 64 slots, in as many compares as there are pairs: few of them in
// vectors, and none a branch that cannot be foreseen. Equal words stay together, in any order.
void sort_words(Slot* slots, uint32_t count);

}  // namespace perdure::index::tree
