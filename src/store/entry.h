// The store's lines in the catalogue.
#pragma once

#include "index/presets.h"

namespace perdure::store {

index::EntryWithPresets entry();
// The same with an ordered index.
index::EntryWithPresets ordered_entry();
// The same with an index in PM.
index::EntryWithPresets pm_entry();

}  // namespace perdure::store
