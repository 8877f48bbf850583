// Level hashing and its variant in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/level/core.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct LevelHashing {
  template <typename Content>
  using Core = level::Core<Policy, Content>;

  static level::Options parse(OptionMap options) {
    level::Options parsed;
    take_option(options, "initial_bits", parsed.initial_bits);
    require_empty(options, Policy::kName);
    return parsed;
  }

  static EntryWithPresets entry(const char* paper) {
    EntryWithPresets entry = CoreEntry<HashTables, Core, parse>::make(Policy::kName, paper);
    entry.options = {{"initial_bits", "a sixty-fourth of the capacity, 16 MiB at most",
                      "log2 of the nodes of the top level it begins with, 5 to 24"}};
    entry.small_options = {{"initial_bits", "5"}};
    return entry;
  }
};

}  // namespace

EntryWithPresets level_entry() {
  return LevelHashing<level::Reference>::entry("Zuo et al., OSDI 2018");
}
EntryWithPresets level_rb_entry() {
  return LevelHashing<level::Trimmed>::entry("Woo et al., IEEE Access 2021");
}

}  // namespace perdure::index
