// The Masstree in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/masstree/core.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct Masstree {
  template <typename Content>
  using Core = masstree::Core<Policy, Content>;

  static masstree::Options parse(const OptionMap& options) {
    require_empty(options, Policy::kName);
    return {};
  }
  static EntryWithPresets entry() {
    return CoreEntry<tree::Tries, Core, parse>::make(
        Policy::kName, "Mao et al., EuroSys 2012; Lee et al., SOSP 2019");
  }
};

}  // namespace

EntryWithPresets p_masstree_entry() { return Masstree<masstree::PMasstree>::entry(); }
EntryWithPresets p_masstree_vl_entry() { return Masstree<masstree::PMasstreeVl>::entry(); }

}  // namespace perdure::index
