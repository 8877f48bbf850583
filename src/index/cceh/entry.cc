// CCEH in the catalogue.
#include "index/cceh/core.h"
#include "index/core_entry.h"
#include "index/entries.h"

namespace perdure::index {

namespace {

cceh::Options parse(OptionMap options) {
  cceh::Options parsed;
  take_option(options, "initial_depth", parsed.initial_depth);
  take_option(options, "segment_buckets", parsed.segment_buckets);
  require_empty(options, "cceh");
  return parsed;
}

}  // namespace

CatalogEntry cceh_entry() {
  CatalogEntry entry =
      CoreEntry<HashTables, cceh::Core, parse>::make("cceh", "Nam et al., FAST 2019");
  entry.options = {{"initial_depth", "log2(capacity / 4 MiB), 1 to 12",
                    "log2 of the segments it begins with, of 16 KiB each; a segment is made when "
                    "its first key comes"},
                   {"segment_buckets", "256",
                    "cache lines of a segment, a power of two from 16; few are for tests"}};
  entry.small_options = {{"initial_depth", "1"}, {"segment_buckets", "64"}};
  return entry;
}

}  // namespace perdure::index
