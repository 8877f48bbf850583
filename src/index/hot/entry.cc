// The height-optimised trie in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/hot/core.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct Hot {
  template <typename Content>
  using Core = hot::Core<Policy, Content>;

  static hot::Options parse(OptionMap options) {
    hot::Options parsed;
    take_option(options, "node_entries", parsed.node_entries);
    require_empty(options, Policy::kName);
    return parsed;
  }
  static EntryWithPresets entry() {
    EntryWithPresets entry = CoreEntry<tree::Tries, Core, parse>::make(
        Policy::kName, "Binna et al., SIGMOD 2018; Lee et al., SOSP 2019");
    entry.options = {{"node_entries", "32", "entries of a node, 3 to 32; few are for tests"}};
    entry.small_options = {{"node_entries", "6"}};
    entry.tiny_options = {{"node_entries", "3"}};
    return entry;
  }
};

}  // namespace

EntryWithPresets p_hot_entry() { return Hot<hot::PHot>::entry(); }
EntryWithPresets p_hot_vl_entry() { return Hot<hot::PHotVl>::entry(); }

}  // namespace perdure::index
