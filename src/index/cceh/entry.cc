// CCEH in the catalogue.
#include "index/adapter.h"
#include "index/cceh/core.h"
#include "index/entries.h"

namespace perdure::index {

namespace {

template <typename K, typename V>
using CcehTable = Table<cceh::Core<ContentOf<K, V>>, K, V>;

cceh::Options parse(OptionMap options) {
  cceh::Options parsed;
  take_option(options, "initial_depth", parsed.initial_depth);
  take_option(options, "segment_buckets", parsed.segment_buckets);
  require_empty(options, "cceh");
  return parsed;
}

std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name, Kind key, Kind value,
                                 const OptionMap& options) {
  return with_kinds<CcehTable>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
    using Core = cceh::Core<ContentOf<typename T::key_type, typename T::value_type>>;
    return std::make_unique<Adapter<T>>(
        T(Core::create(pool.impl(), name, key, value, parse(options))));
  });
}

std::unique_ptr<AnyIndex> open(Pool& pool, const std::string& name, const OptionMap& options) {
  const pm::DirectoryEntry& entry = *pool.impl().find(name);
  const auto key = static_cast<Kind>(entry.key_kind);
  const auto value = static_cast<Kind>(entry.value_kind);
  return with_kinds<CcehTable>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
    using Core = cceh::Core<ContentOf<typename T::key_type, typename T::value_type>>;
    return std::make_unique<Adapter<T>>(
        T(Core::open(pool.impl(), name, key, value, parse(options))));
  });
}

}  // namespace

CatalogEntry cceh_entry() {
  CatalogEntry entry;
  entry.name = "cceh";
  entry.family = "hash table";
  entry.paper = "Nam et al., FAST 2019";
  entry.traits = {.ordered = false,
                  .concurrent = true,
                  .dram = DramUse::kBounded,
                  .kinds = {{Kind::kU64, Kind::kU64},
                            {Kind::kBytes, Kind::kBytes},
                            {Kind::kU64, Kind::kBytes},
                            {Kind::kBytes, Kind::kU64}},
                  .key_bytes_max = Records::kPartBytesMax,
                  .value_bytes_max = Records::kPartBytesMax,
                  .capacity_bytes_min = Pool::kMinCapacityBytes};
  entry.options = {{"initial_depth", "log2(capacity / 4 MiB), 1 to 12",
                    "log2 of the segments it begins with, of 16 KiB each; a segment is made when "
                    "its first key comes"},
                   {"segment_buckets", "256",
                    "cache lines of a segment, a power of two from 16; few are for tests"}};
  entry.create = create;
  entry.open = open;
  entry.small_options = {{"initial_depth", "1"}, {"segment_buckets", "64"}};
  return entry;
}

}  // namespace perdure::index
