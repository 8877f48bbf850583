// Level hashing and its variant in the catalogue.
#include "index/adapter.h"
#include "index/entries.h"
#include "index/level/core.h"

namespace perdure::index {

namespace {

template <typename Policy>
struct LevelHashing {
  template <typename K, typename V>
  using Table = index::Table<level::Core<Policy, ContentOf<K, V>>, K, V>;

  static level::Options parse(OptionMap options) {
    level::Options parsed;
    take_option(options, "initial_bits", parsed.initial_bits);
    require_empty(options, Policy::kName);
    return parsed;
  }

  static std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name, Kind key, Kind value,
                                          const OptionMap& options) {
    return with_kinds<Table>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      using Core = level::Core<Policy, ContentOf<typename T::key_type, typename T::value_type>>;
      return std::make_unique<Adapter<T>>(
          T(Core::create(pool.impl(), name, key, value, parse(options))));
    });
  }

  static std::unique_ptr<AnyIndex> open(Pool& pool, const std::string& name,
                                        const OptionMap& options) {
    const pm::DirectoryEntry& entry = *pool.impl().find(name);
    const auto key = static_cast<Kind>(entry.key_kind);
    const auto value = static_cast<Kind>(entry.value_kind);
    return with_kinds<Table>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      using Core = level::Core<Policy, ContentOf<typename T::key_type, typename T::value_type>>;
      return std::make_unique<Adapter<T>>(
          T(Core::open(pool.impl(), name, key, value, parse(options))));
    });
  }

  static CatalogEntry entry(const char* paper) {
    CatalogEntry entry;
    entry.name = Policy::kName;
    entry.family = "hash table";
    entry.paper = paper;
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
    entry.options = {{"initial_bits", "a sixty-fourth of the capacity, 16 MiB at most",
                      "log2 of the nodes of the top level it begins with, 5 to 24"}};
    entry.create = create;
    entry.open = open;
    entry.small_options = {{"initial_bits", "5"}};
    return entry;
  }
};

}  // namespace

CatalogEntry level_entry() {
  return LevelHashing<level::Reference>::entry("Zuo et al., OSDI 2018");
}
CatalogEntry level_rb_entry() {
  return LevelHashing<level::Trimmed>::entry("Woo et al., IEEE Access 2021");
}

}  // namespace perdure::index
