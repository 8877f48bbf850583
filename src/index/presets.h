// What a structure's entry has besides what the catalogue shows: options for the laboratory and the
// tests.
#pragma once

#include <string_view>

#include "perdure/catalog.h"

namespace perdure::index {

struct EntryWithPresets : CatalogEntry {
  // Options that make a structure so small that a few thousand operations reach every split,
  // migration and reuse: for the scenario tests.
  OptionMap small_options = {};
  // So small that a few hundred do: for crash exploration. Empty: small_options will do.
  OptionMap tiny_options = {};
  // What makes it what was published and measured, where a default of ours does better: for
  // studies.
  OptionMap published_options = {};
};

// The entry of this name. Throws Error(kInvalidArgument) that lists the names there are.
const EntryWithPresets& presets_of(std::string_view structure);

}  // namespace perdure::index
