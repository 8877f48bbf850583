// NV-Tree in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/nvtree/core.h"

namespace perdure::index {

namespace {

nvtree::Options parse(OptionMap options) {
  nvtree::Options parsed;
  take_option(options, "leaf_records", parsed.leaf_records);
  take_option(options, "inner_records", parsed.inner_records);
  take_option(options, "recovery_threads", parsed.recovery_threads);
  require_empty(options, "nv-tree");
  return parsed;
}

}  // namespace

EntryWithPresets nv_tree_entry() {
  EntryWithPresets entry =
      CoreEntry<tree::RangeTrees, nvtree::Core, parse>::make("nv-tree", "Yang et al., FAST 2015");
  entry.traits.dram = DramUse::kGrowing;
  entry.options = {
      {"leaf_records", "64", "entries in the log that a leaf is, 4 to 64"},
      {"inner_records", "128",
       "leaves of a leaf parent, and leaf parents of an inner node, 4 to 65536; both in DRAM"},
      {"recovery_threads", "processors, at most 8",
       "threads that read the leaves when opening after a crash"}};
  entry.small_options = {{"leaf_records", "8"}, {"inner_records", "4"}};
  entry.tiny_options = {{"leaf_records", "4"}, {"inner_records", "4"}};
  return entry;
}

}  // namespace perdure::index
