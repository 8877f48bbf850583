// The wB+Tree in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/wbtree/core.h"

namespace perdure::index {

namespace {

wbtree::Options parse(OptionMap options) {
  wbtree::Options parsed;
  take_option(options, "leaf_records", parsed.leaf_records);
  take_option(options, "inner_records", parsed.inner_records);
  require_empty(options, "wbtree");
  return parsed;
}

}  // namespace

EntryWithPresets wbtree_entry() {
  EntryWithPresets entry =
      CoreEntry<tree::RangeTrees, wbtree::Core, parse>::make("wbtree", "Chen and Jin, PVLDB 2015");
  entry.options = {
      {"leaf_records", "59",
       "records of a leaf, 4 to 59; 59 take 1 KiB, with a bitmap of 8 bytes and a slot "
       "array of one cache line"},
      {"inner_records", "32", "children of an inner node, 4 to 59"}};
  entry.small_options = {{"leaf_records", "16"}, {"inner_records", "4"}};
  entry.tiny_options = {{"leaf_records", "10"}, {"inner_records", "4"}};
  return entry;
}

}  // namespace perdure::index
