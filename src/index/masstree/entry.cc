// The Masstree in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/masstree/core.h"

namespace perdure::index {

namespace {

masstree::Options parse_masstree(const OptionMap& options) {
  require_empty(options, masstree::kName);
  return {};
}

}  // namespace

EntryWithPresets p_masstree_vl_entry() {
  return CoreEntry<tree::Tries, masstree::Core, parse_masstree>::make(
      masstree::kName, "Mao et al., EuroSys 2012; Lee et al., SOSP 2019");
}

}  // namespace perdure::index
