// Sheaf in the catalogue.
#include "index/core_entry.h"
#include "index/entries.h"
#include "index/sheaf/core.h"

namespace perdure::index {

namespace {

sheaf::Options parse(OptionMap options) {
  sheaf::Options parsed;
  take_option(options, "leaf_bytes", parsed.leaf_bytes);
  take_option(options, "buffer_records", parsed.buffer_records);
  take_option(options, "log_bytes", parsed.log_bytes);
  take_option(options, "chunk_bytes", parsed.chunk_bytes);
  take_option(options, "recovery_threads", parsed.recovery_threads);
  require_empty(options, "sheaf");
  return parsed;
}

}  // namespace

EntryWithPresets sheaf_entry() {
  EntryWithPresets entry =
      CoreEntry<tree::RangeTrees, sheaf::Core, parse>::make("sheaf", "Perdure's own");
  entry.options = {
      {"leaf_bytes", "8192", "bytes of the largest leaf, 256 to 16384"},
      {"buffer_records", "48",
       "records of a leaf that wait in DRAM to be merged, 4 to 64: 16 bytes each, and 448 for each "
       "leaf"},
      {"log_bytes", "1/16 of the pool's capacity, at most 32 MiB; of byte strings 128 MiB",
       "the most that the log may have; nor has it more than a sixth of the leaves"},
      {"chunk_bytes", "by the pool's capacity",
       "bytes that the log grows by, 512 to 16384; of byte strings a power of two, 2048 to 65536"},
      {"recovery_threads", "processors, at most 8", "threads that replay the log when opening"}};
  entry.small_options = {{"leaf_bytes", "512"}, {"buffer_records", "8"}, {"chunk_bytes", "1024"}};
  entry.tiny_options = {{"leaf_bytes", "256"},
                        {"buffer_records", "4"},
                        {"chunk_bytes", "512"},
                        {"log_bytes", "2048"}};
  return entry;
}

}  // namespace perdure::index
