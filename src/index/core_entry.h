// The catalogue entry of a structure that is a core under one of the typed facades (Table in
// index/content.h, Tree in index/tree/content.h).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "index/adapter.h"
#include "index/presets.h"
#include "index/records.h"
#include "pm/pool_impl.h"

namespace perdure::index {

// Family: HashTables or tree::RangeTrees. CoreOf<Content> is made by create() and open(pool, name,
// key kind, value kind, Options); `parse` makes the Options from text.
template <typename Family, template <typename> typename CoreOf, auto parse>
struct CoreEntry {
  template <typename K, typename V>
  using Core = CoreOf<typename Family::template Content<K, V>>;
  template <typename K, typename V>
  using Facade = typename Family::template Facade<Core<K, V>, K, V>;

  static std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name, Kind key, Kind value,
                                          const OptionMap& options) {
    return with_kinds<Facade>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      return std::make_unique<Adapter<T>>(
          T(Core<typename T::key_type, typename T::value_type>::create(pm::impl_of(pool), name, key,
                                                                       value, parse(options))));
    });
  }

  static std::unique_ptr<AnyIndex> open(Pool& pool, const std::string& name,
                                        const OptionMap& options) {
    const pm::DirectoryEntry& entry = *pm::impl_of(pool).find(name);
    const auto key = static_cast<Kind>(entry.key_kind);
    const auto value = static_cast<Kind>(entry.value_kind);
    return with_kinds<Facade>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      return std::make_unique<Adapter<T>>(
          T(Core<typename T::key_type, typename T::value_type>::open(pm::impl_of(pool), name, key,
                                                                     value, parse(options))));
    });
  }

  // Concurrent, of all kinds, with DRAM that does not grow with the data; the options are the
  // caller's to fill in.
  static EntryWithPresets make(const char* name, const char* paper) {
    EntryWithPresets entry;
    entry.name = name;
    entry.family = Family::kFamily;
    entry.paper = paper;
    entry.traits = {.ordered = Family::kOrdered,
                    .concurrent = true,
                    .dram = DramUse::kBounded,
                    .kinds = {{Kind::kU64, Kind::kU64},
                              {Kind::kBytes, Kind::kBytes},
                              {Kind::kU64, Kind::kBytes},
                              {Kind::kBytes, Kind::kU64}},
                    .key_bytes_max = Family::kKeyBytesMax,
                    .value_bytes_max = Records::kPartBytesMax,
                    .capacity_bytes_min = Pool::kMinCapacityBytes};
    entry.create = create;
    entry.open = open;
    return entry;
  }
};

}  // namespace perdure::index
