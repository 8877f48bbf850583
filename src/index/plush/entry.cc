// Plush in the catalogue.
#include <optional>

#include "index/core_entry.h"
#include "index/entries.h"
#include "index/plush/payload_log.h"
#include "perdure/plush.h"
#include "pm/pool_impl.h"

namespace perdure::index {

namespace {

template <typename T>
void take_optional(OptionMap& options, const std::string& name, std::optional<T>& out) {
  if (options.contains(name)) take_option(options, name, out.emplace());
}

template <PlushOrder order>
PlushOptions parse(OptionMap options) {
  PlushOptions parsed;
  parsed.order = order;
  take_optional(options, "preallocated_levels", parsed.preallocated_levels);
  if constexpr (order == PlushOrder::kRange) {
    take_optional(options, "key_min", parsed.key_min);
    take_optional(options, "key_max", parsed.key_max);
  }
  take_option(options, "directory_bits", parsed.directory_bits);
  take_option(options, "directory_bits_max", parsed.directory_bits_max);
  take_option(options, "fanout", parsed.fanout);
  take_option(options, "partitions", parsed.partitions);
  take_option(options, "log_percent", parsed.log_percent);
  take_option(options, "filter_levels", parsed.filter_levels);
  take_option(options, "garbage_percent", parsed.garbage_percent);
  take_option(options, "recovery_threads", parsed.recovery_threads);
  require_empty(options, order == PlushOrder::kRange ? "plush+range" : "plush");
  return parsed;
}

// Plush has typed facades of its own, which are part of the public headers.
template <PlushOrder order>
struct Opening {
  template <typename T>
  static T make(Pool& pool, const std::string& name, Kind, Kind, const OptionMap& options) {
    return T::create(pool, name, parse<order>(options));
  }
  template <typename T>
  static T open(Pool& pool, const std::string& name, Kind, Kind, const OptionMap& options) {
    return T::open(pool, name, parse<order>(options));
  }
};

template <PlushOrder order>
using PlushEntry = FacadeEntry<Plush, Opening<order>>;

}  // namespace

EntryWithPresets plush_entry() {
  EntryWithPresets entry = PlushEntry<PlushOrder::kHash>::make("plush", "hash table",
                                                               "Vogel et al., PVLDB 15(11), 2022");
  entry.traits.dram = DramUse::kGrowing;
  entry.traits.key_bytes_max = plush::PayloadLog::kPartBytesMax;
  entry.traits.value_bytes_max = plush::PayloadLog::kPartBytesMax;
  entry.options = {
      {"directory_bits", "7; for words 10 from a capacity of 6 GiB",
       "log2 of the rows in DRAM, and of the entries of the first level, when the table is made: 1 "
       "to 24; DRAM use is 288 bytes for each row"},
      {"directory_bits_max", "20, or directory_bits if that is given",
       "log2 of the rows that the table may grow to, by `fanout` at a time; directory_bits itself: "
       "it does not grow"},
      {"fanout", "8", "entries of the next level that one entry is spread over: 2, 4, 8 or 16"},
      {"partitions", "64, for words 256 for capacities from 6 GiB, fewer for small ones",
       "independent locks and recovery logs, a power of two; by default at most one for each MiB"},
      {"log_percent", "300", "recovery-log bytes per byte that all rows can log; 300 to 10000"},
      {"filter_levels", "2",
       "levels in PM whose directories have copies with fingerprints in DRAM: 0 to 3"},
      {"garbage_percent", "50",
       "superseded records of an entry of the last level, in percent of those that count, from "
       "which on it is rewritten: 10 to 10000"},
      {"recovery_threads", "processors, at most 8", "threads that replay the log when opening"},
      {"preallocated_levels", "0",
       "PM levels, 0 to 2, whose buckets are allocated at creation: 3 KiB for each row, and 3.25 "
       "KiB * fanout for each of level 2"}};
  entry.small_options = {{"directory_bits", "3"},
                         {"directory_bits_max", "7"},
                         {"fanout", "2"},
                         {"partitions", "4"},
                         {"log_percent", "300"}};
  entry.tiny_options = {{"directory_bits", "1"},
                        {"directory_bits_max", "4"},
                        {"fanout", "2"},
                        {"partitions", "2"},
                        {"log_percent", "300"}};
  return entry;
}

EntryWithPresets plush_range_entry() {
  EntryWithPresets entry = plush_entry();
  entry.name = "plush+range";
  entry.family = "range table";
  entry.traits.ordered = true;
  entry.traits.kinds = {{Kind::kU64, Kind::kU64}, {Kind::kU64, Kind::kBytes}};
  entry.options.push_back({"key_min", "0", "the least key; keys should be spread over the range"});
  entry.options.push_back({"key_max", "18446744073709551615", "the largest key"});
  entry.create = PlushEntry<PlushOrder::kRange>::create;
  entry.open = PlushEntry<PlushOrder::kRange>::open;
  return entry;
}

}  // namespace perdure::index
