// BzTree in the catalogue.
#include "index/bztree/core.h"
#include "index/core_entry.h"
#include "index/entries.h"

namespace perdure::index {

namespace {

bztree::Options parse(OptionMap options) {
  bztree::Options parsed;
  take_option(options, "node_bytes", parsed.node_bytes);
  take_option(options, "descriptors", parsed.descriptors);
  require_empty(options, "bztree");
  return parsed;
}

}  // namespace

EntryWithPresets bztree_entry() {
  EntryWithPresets entry = CoreEntry<tree::RangeTrees, bztree::Core, parse>::make(
      "bztree", "Arulraj et al., PVLDB 11(5), 2018");
  entry.options = {
      {"node_bytes", "1024", "bytes of a leaf, 128 to 32768, a multiple of 64; few are for tests"},
      {"descriptors", "capacity / 16 KiB, 96 to 1024",
       "multi-word operations that may be under way or wait for reclamation, of 320 "
       "bytes each, 16 to 16384"}};
  entry.small_options = {{"node_bytes", "256"}, {"descriptors", "64"}};
  entry.tiny_options = {{"node_bytes", "128"}, {"descriptors", "16"}};
  return entry;
}

}  // namespace perdure::index
