#include "perdure/catalog.h"

#include <fmt/core.h>

#include <algorithm>

#include "index/entries.h"
#include "index/presets.h"
#include "perdure/block_cache.h"
#include "perdure/database.h"
#include "perdure/files.h"
#include "pm/pool_impl.h"
#include "store/entry.h"

namespace perdure {

const char* to_string(DramUse use) noexcept {
  switch (use) {
    case DramUse::kNone:
      return "none";
    case DramUse::kBounded:
      return "bounded";
    case DramUse::kGrowing:
      return "growing";
  }
  return "unknown";
}

namespace {

const std::vector<index::EntryWithPresets>& entries() {
  static const std::vector<index::EntryWithPresets> all = [] {
    std::vector<index::EntryWithPresets> list = index::structures();
    list.push_back(store::entry());
    list.push_back(store::ordered_entry());
    list.push_back(store::pm_entry());
    return list;
  }();
  return all;
}

// The store goes by two names: that of the published engine, which pools have, and what it is.
std::string name_in_catalog(std::string_view name) {
  if (name == "store+pm-index") return "rstore+pm";
  if (name == "store" || name.starts_with("store+")) return "r" + std::string(name);
  return std::string(name);
}

template <typename Entries>
const typename Entries::value_type& named(const Entries& entries, std::string_view name) {
  const std::string sought = name_in_catalog(name);
  std::string names;
  for (const CatalogEntry& entry : entries) {
    if (entry.name == sought) return static_cast<const typename Entries::value_type&>(entry);
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no structure '{}'; there are: {}", name, names));
}

}  // namespace

const std::vector<CatalogEntry>& catalog() {
  static const std::vector<CatalogEntry> shown(entries().begin(), entries().end());
  return shown;
}

const CatalogEntry& catalog_entry(std::string_view name) { return named(catalog(), name); }

const index::EntryWithPresets& index::presets_of(std::string_view structure) {
  return named(entries(), structure);
}

std::unique_ptr<AnyIndex> create_index(Pool& pool, const std::string& name, std::string_view type,
                                       Kind key, Kind value, const OptionMap& options) {
  const CatalogEntry& entry = catalog_entry(type);
  if (std::ranges::find(entry.traits.kinds, std::pair(key, value)) == entry.traits.kinds.end()) {
    throw Error(ErrorCode::kWrongType, fmt::format("{} does not support {} keys with {} values",
                                                   type, to_string(key), to_string(value)));
  }
  return entry.create(pool, name, key, value, options);
}

std::unique_ptr<AnyIndex> open_index(Pool& pool, const std::string& name,
                                     const OptionMap& options) {
  const pm::DirectoryEntry* found = pm::impl_of(pool).find(name);
  if (found == nullptr) pm::impl_of(pool).throw_no_such_name(name);
  for (const CatalogEntry& entry : catalog()) {
    if (entry.name == found->type) return entry.open(pool, name, options);
  }
  if (found->type == std::string_view(Files::kTypeName)) {
    throw Error(
        ErrorCode::kWrongType,
        fmt::format("{}: '{}' holds files, no records; use perdure::Files, or `perdure files`",
                    pool.info().path, name));
  }
  if (found->type == std::string_view(BlockCache::kTypeName)) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("{}: '{}' is a block cache, which has no records; use "
                            "perdure::BlockCache, or `perdure stat`",
                            pool.info().path, name));
  }
  if (found->type == std::string_view(Database::kTypeName)) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("{}: '{}' is a database; use perdure::Database, or `perdure db`",
                            pool.info().path, name));
  }
  throw Error(ErrorCode::kWrongType,
              fmt::format("{}: '{}' is a {}, which this build does not have; use a newer release",
                          pool.info().path, name, found->type));
}

}  // namespace perdure
