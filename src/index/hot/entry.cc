// The height-optimised trie in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/hot/core.h"

namespace perdure::index {

namespace {

hot::Options parse_hot(OptionMap options) {
  hot::Options parsed;
  take_option(options, "node_entries", parsed.node_entries);
  require_empty(options, hot::kName);
  return parsed;
}

}  // namespace

EntryWithPresets p_hot_vl_entry() {
  EntryWithPresets entry = CoreEntry<tree::Tries, hot::Core, parse_hot>::make(
      hot::kName, "Binna et al., SIGMOD 2018; Lee et al., SOSP 2019");
  entry.options = {{"node_entries", "32", "entries of a node, 3 to 32; few are for tests"}};
  entry.small_options = {{"node_entries", "6"}};
  entry.tiny_options = {{"node_entries", "3"}};
  return entry;
}

}  // namespace perdure::index
