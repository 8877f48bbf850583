// The store's line in the catalogue.
#pragma once

#include "index/presets.h"

namespace perdure::store {

index::EntryWithPresets entry();

}  // namespace perdure::store
