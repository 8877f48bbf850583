// The catalogue: every structure by name, with what it can do and how to make and open it.
//
//   auto index = perdure::create_index(pool, "words", "plush", Kind::kBytes, Kind::kBytes, {});
//   auto again = perdure::open_index(pool, "words");
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure {

// How much DRAM a structure takes while it is open: next to none, a bounded amount, or some for
// each record.
enum class DramUse : uint8_t { kNone, kBounded, kGrowing };
// "none", "bounded" or "growing".
const char* to_string(DramUse use) noexcept;

// What a structure can do.
struct Traits {
  bool ordered;     // scan() works
  bool concurrent;  // any thread may call anything at any time
  DramUse dram;
  std::vector<std::pair<Kind, Kind>> kinds;  // the (key, value) kinds it supports
  uint64_t key_bytes_max;                    // longest byte-string key
  uint64_t value_bytes_max;
  uint64_t capacity_bytes_min;  // smallest pool capacity that holds one
};

// An option of create_index() and open_index().
struct OptionInfo {
  std::string name;
  std::string default_text;  // how the default is chosen
  std::string help;
};

// A structure as the catalogue knows it.
struct CatalogEntry {
  std::string name;    // "plush"
  std::string family;  // "hash table", "range table", "range tree", "trie", "store"
  std::string paper;
  Traits traits;
  std::vector<OptionInfo> options;
  std::unique_ptr<AnyIndex> (*create)(Pool& pool, const std::string& name, Kind key, Kind value,
                                      const OptionMap& options);
  std::unique_ptr<AnyIndex> (*open)(Pool& pool, const std::string& name, const OptionMap& options);
};

// All structures, in the order of the documentation's table.
const std::vector<CatalogEntry>& catalog();

// The entry of this name; `store`, `store+ordered` and `store+pm` (or `store+pm-index`) are other
// names of `rstore` and so on. Throws Error(kInvalidArgument) that lists the names there are.
const CatalogEntry& catalog_entry(std::string_view name);

// Makes a structure of the catalogue in a pool. Errors: kInvalidArgument, kNameExists, kWrongType
// (kinds it does not support), kPoolFull, kNoSpace, kReadOnly.
std::unique_ptr<AnyIndex> create_index(Pool& pool, const std::string& name, std::string_view type,
                                       Kind key, Kind value, const OptionMap& options = {});

// Opens a structure as the type its pool says it has, and completes what a crash interrupted.
// Errors: kNoSuchName, kWrongType (written by a structure this build does not have), kCorrupt.
std::unique_ptr<AnyIndex> open_index(Pool& pool, const std::string& name,
                                     const OptionMap& options = {});

// Removes a structure of any type from its pool, files and databases included, and gives all its
// blocks back. The structure is gone with one atomic step, durably before the call returns; a crash
// after that step leaves the freeing to the next opening of the pool. What a database has in a page
// file of its own stays there. Returns the bytes freed.
// Errors: kNoSuchName; kInUse (the structure is open: close it first); kReadOnly; kWrongType,
// kCorrupt (it does not open, so that nobody can tell which blocks it has; nothing was changed);
// kPoolFull, kNoSpace (no room for the list of its blocks, at most 0.21 % of their bytes; nothing
// was changed); kIo. Any thread may use other structures meanwhile. Cost: opens the structure, then
// a flush for each word of the heap's bitmaps.
uint64_t drop_structure(Pool& pool, const std::string& name);

}  // namespace perdure
