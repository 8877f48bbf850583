// FPTree in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/fptree/core.h"

namespace perdure::index {

namespace {

fptree::Options parse(OptionMap options) {
  fptree::Options parsed;
  take_option(options, "leaf_records", parsed.leaf_records);
  take_option(options, "leaf_group", parsed.leaf_group);
  take_option(options, "inner_records", parsed.inner_records);
  take_option(options, "recovery_threads", parsed.recovery_threads);
  require_empty(options, "fptree");
  return parsed;
}

}  // namespace

EntryWithPresets fptree_entry() {
  EntryWithPresets entry =
      CoreEntry<tree::RangeTrees, fptree::Core, parse>::make("fptree", "Oukid et al., SIGMOD 2016");
  entry.traits.dram = DramUse::kGrowing;
  entry.traits.key_bytes_max = Records::kPartBytesMax;  // separators are in DRAM
  entry.options = {
      {"leaf_records", "64", "records of a leaf, 4 to 64"},
      {"leaf_group", "14", "leaves that are allocated together, 1 to 64; 14 fill 16 KiB"},
      {"inner_records", "128", "children of an inner node, 4 to 1024"},
      {"recovery_threads", "processors, at most 8", "threads that read the leaves after a crash"}};
  entry.small_options = {{"leaf_records", "8"}, {"leaf_group", "5"}, {"inner_records", "8"}};
  entry.tiny_options = {{"leaf_records", "4"}, {"leaf_group", "2"}, {"inner_records", "4"}};
  return entry;
}

}  // namespace perdure::index
