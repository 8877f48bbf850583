// What recovery gathers of a partition's records.
#pragma once

#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/partition.h"

namespace perdure::store {

struct Partition::ScannedPut {
  Location location;
  uint64_t hash;  // of the key
  uint64_t version;
  uint32_t bytes;
  uint16_t flags;
};

struct Partition::Scan {
  std::unordered_map<uint64_t, uint64_t> superseded;  // version -> incarnation
  std::vector<ScannedPut> puts;
  std::vector<Location> superseding;  // records that do so
  // Of each prefix that was removed, by its length, the last removal.
  std::map<size_t, std::unordered_map<std::string_view, uint64_t>> prefixes;

  // The version of a removal that takes the record away, or 0.
  uint64_t removal_of(std::string_view key, uint64_t version) const {
    for (const auto& [bytes, removals] : prefixes) {
      if (bytes > key.size()) break;
      const auto found = removals.find(key.substr(0, bytes));
      if (found != removals.end() && found->second > version) return found->second;
    }
    return 0;
  }
};

}  // namespace perdure::store
