// The Bw-tree in the catalogue.
#include "index/bwtree/core.h"
#include "index/core_entry.h"
#include "index/entries.h"

namespace perdure::index {

namespace {

bwtree::Options parse_bwtree(OptionMap options) {
  bwtree::Options parsed;
  take_option(options, "node_keys", parsed.node_keys);
  take_option(options, "chain", parsed.chain);
  require_empty(options, bwtree::kName);
  return parsed;
}

}  // namespace

EntryWithPresets p_bwtree_entry() {
  EntryWithPresets entry = CoreEntry<tree::RangeTrees, bwtree::Core, parse_bwtree>::make(
      bwtree::kName,
      "Levandoski et al., ICDE 2013; Wang et al., SIGMOD 2018; Lee et al., SOSP 2019");
  entry.options = {
      {"node_keys", "128", "keys of a node, 4 to 512; few are for tests"},
      {"chain", "8", "changes that stand before a leaf until it is consolidated, 1 to 24"}};
  entry.small_options = {{"node_keys", "16"}, {"chain", "4"}};
  entry.tiny_options = {{"node_keys", "4"}, {"chain", "2"}};
  return entry;
}

}  // namespace perdure::index
