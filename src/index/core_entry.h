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

// What creates and opens the structures of an entry, whatever their kinds. Opening::make<T>(pool,
// name, key kind, value kind, options) and Opening::open<T>(the same) return the typed facade T =
// Facade<K, V>.
template <template <typename, typename> typename Facade, typename Opening>
struct FacadeEntry {
  static std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name, Kind key, Kind value,
                                          const OptionMap& options) {
    return with_kinds<Facade>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      return std::make_unique<Adapter<T>>(
          Opening::template make<T>(pool, name, key, value, options), pm::impl_of(pool), name);
    });
  }

  static std::unique_ptr<AnyIndex> open(Pool& pool, const std::string& name,
                                        const OptionMap& options) {
    const pm::DirectoryEntry& entry = *pm::impl_of(pool).find(name);
    const auto key = static_cast<Kind>(entry.key_kind);
    const auto value = static_cast<Kind>(entry.value_kind);
    return with_kinds<Facade>(key, value, [&]<typename T>(T*) -> std::unique_ptr<AnyIndex> {
      return std::make_unique<Adapter<T>>(
          Opening::template open<T>(pool, name, key, value, options), pm::impl_of(pool), name);
    });
  }

  // Concurrent, of all kinds; the rest is the caller's to fill in.
  static EntryWithPresets make(const char* name, const char* family, const char* paper) {
    EntryWithPresets entry{};  // not ordered, and no limits yet
    entry.name = name;
    entry.family = family;
    entry.paper = paper;
    entry.traits.concurrent = true;
    entry.traits.kinds = {{Kind::kU64, Kind::kU64},
                          {Kind::kBytes, Kind::kBytes},
                          {Kind::kU64, Kind::kBytes},
                          {Kind::kBytes, Kind::kU64}};
    entry.traits.capacity_bytes_min = Pool::kMinCapacityBytes;
    entry.create = create;
    entry.open = open;
    return entry;
  }
};

// Family: HashTables or tree::RangeTrees. CoreOf<Content> is made by create() and open(pool, name,
// key kind, value kind, Options); `parse` makes the Options from text.
template <typename Family, template <typename> typename CoreOf, auto parse>
struct CoreEntry {
  template <typename K, typename V>
  using Core = CoreOf<typename Family::template Content<K, V>>;
  template <typename K, typename V>
  using Facade = typename Family::template Facade<Core<K, V>, K, V>;

  struct Opening {
    template <typename T>
    static T make(Pool& pool, const std::string& name, Kind key, Kind value,
                  const OptionMap& options) {
      return T(Core<typename T::key_type, typename T::value_type>::create(
          pm::impl_of(pool), name, key, value, parse(options)));
    }
    template <typename T>
    static T open(Pool& pool, const std::string& name, Kind key, Kind value,
                  const OptionMap& options) {
      return T(Core<typename T::key_type, typename T::value_type>::open(
          pm::impl_of(pool), name, key, value, parse(options)));
    }
  };

  // Concurrent, of all kinds, with DRAM that does not grow with the data; the options are the
  // caller's to fill in.
  static EntryWithPresets make(const char* name, const char* paper) {
    EntryWithPresets entry = FacadeEntry<Facade, Opening>::make(name, Family::kFamily, paper);
    entry.traits.ordered = Family::kOrdered;
    entry.traits.dram = DramUse::kBounded;
    entry.traits.key_bytes_max = Family::kKeyBytesMax;
    entry.traits.value_bytes_max = Records::kPartBytesMax;
    return entry;
  }
};

}  // namespace perdure::index
