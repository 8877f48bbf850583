// The catalogue entry of a table over content.h, whatever its core is.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "index/adapter.h"
#include "index/content.h"
#include "perdure/catalog.h"

namespace perdure::index {

// CoreOf<Content> is made by create() and open(pool, name, key kind, value kind, Options); `parse`
// makes the Options from text.
template <template <typename> typename CoreOf, auto parse>
struct TableEntry {
  template <typename K, typename V>
  using Face = Table<CoreOf<ContentOf<K, V>>, K, V>;

  static std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name, Kind key, Kind value,
                                          const OptionMap& options) {
    return with_kinds<Face>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      using Core = CoreOf<ContentOf<typename T::key_type, typename T::value_type>>;
      return std::make_unique<Adapter<T>>(
          T(Core::create(pool.impl(), name, key, value, parse(options))));
    });
  }

  static std::unique_ptr<AnyIndex> open(Pool& pool, const std::string& name,
                                        const OptionMap& options) {
    const pm::DirectoryEntry& entry = *pool.impl().find(name);
    const auto key = static_cast<Kind>(entry.key_kind);
    const auto value = static_cast<Kind>(entry.value_kind);
    return with_kinds<Face>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      using Core = CoreOf<ContentOf<typename T::key_type, typename T::value_type>>;
      return std::make_unique<Adapter<T>>(
          T(Core::open(pool.impl(), name, key, value, parse(options))));
    });
  }

  // Of an unordered structure; its options are the caller's to fill in.
  static CatalogEntry make(const char* name, const char* paper) {
    CatalogEntry entry;
    entry.name = name;
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
    entry.create = create;
    entry.open = open;
    return entry;
  }
};

}  // namespace perdure::index
