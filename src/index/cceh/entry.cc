// CCEH in the catalogue.
#include "index/cceh/core.h"
#include "index/core_entry.h"
#include "index/entries.h"

namespace perdure::index {

namespace {

template <const cceh::Variant& variant>
cceh::Options parse(OptionMap options) {
  cceh::Options parsed{.variant = &variant};
  take_option(options, "initial_depth", parsed.initial_depth);
  take_option(options, "segment_buckets", parsed.segment_buckets);
  take_option(options, "probe_buckets", parsed.probe_buckets);
  require_empty(options, variant.name);
  return parsed;
}

template <const cceh::Variant& variant>
EntryWithPresets entry_of() {
  EntryWithPresets entry = CoreEntry<HashTables, cceh::Core, parse<variant>>::make(
      variant.name, "Nam et al., FAST 2019");
  entry.options = {
      {"initial_depth", "log2(capacity / 4 MiB), 1 to 10",
       "log2 of the segments it begins with, of 16 KiB each; a segment is made when "
       "its first key comes"},
      {"segment_buckets", "256",
       "cache lines of a segment, a power of two from 16; few are for tests"},
      {"probe_buckets", "4",
       "cache lines of a segment that a record may lie in: 2, 4, 8 or 16. With more of them "
       "a segment is fuller when it is split"}};
  entry.small_options = {{"initial_depth", "1"}, {"segment_buckets", "64"}};
  return entry;
}

}  // namespace

EntryWithPresets cceh_entry() { return entry_of<cceh::kReference>(); }
EntryWithPresets cceh_ip_entry() { return entry_of<cceh::kInPlace>(); }

}  // namespace perdure::index
