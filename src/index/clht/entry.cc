// P-CLHT and its variants in the catalogue.
#include "index/clht/core.h"
#include "index/core_entry.h"
#include "index/entries.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct Clht {
  template <typename Content>
  using Core = clht::Core<Policy, Content>;

  static clht::Options parse(OptionMap options) {
    clht::Options parsed;
    take_option(options, "initial_bits", parsed.initial_bits);
    take_option(options, "grow_at", parsed.grow_at);
    require_empty(options, Policy::kName);
    return parsed;
  }

  static EntryWithPresets entry(const char* paper) {
    EntryWithPresets entry = CoreEntry<HashTables, Core, parse>::make(Policy::kName, paper);
    entry.options = {
        {"initial_bits", "a sixty-fourth of the capacity, 16 MiB at most",
         "log2 of the buckets it begins with, 4 to 24"},
        {"grow_at", std::to_string(Policy::kGrowAt),
         "chained buckets for each 100 main ones when the table grows, 1 to 100: by four "
         "at 100, by two below"}};
    entry.small_options = {{"initial_bits", "4"}};
    entry.published_options = {{"grow_at", std::to_string(clht::kPublishedGrowAt)}};
    return entry;
  }
};

}  // namespace

EntryWithPresets clht_entry() { return Clht<clht::Reference>::entry("Lee et al., SOSP 2019"); }
EntryWithPresets clht_fc_entry() {
  return Clht<clht::Coalesced>::entry("Woo et al., IEEE Access 2021");
}
EntryWithPresets clht_fc_ve_entry() {
  return Clht<clht::Evicted>::entry("Woo et al., IEEE Access 2021");
}
EntryWithPresets clht_fc_ve_xs_entry() {
  return Clht<clht::Sized>::entry("Woo et al., IEEE Access 2021");
}

}  // namespace perdure::index
