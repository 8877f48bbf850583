// What recovery gathers of a partition's records.
#pragma once

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/huge_allocator.h"
#include "store/partition.h"

namespace perdure::store {

// There may be millions: three words each.
class Partition::ScannedPut {
 public:
  ScannedPut(Location location, uint64_t hash_of_key, const RecordView& record)
      : hash(hash_of_key),
        version_(record.version | uint64_t{record.flags} << 48),
        location_(location.word() | uint64_t{record.bytes} << kLocationBits) {}
  Location location() const { return Location::of_word(location_); }
  uint64_t version() const { return version_ & kVersionMax; }
  bool has(uint16_t flag) const { return (version_ >> 48 & flag) != 0; }
  uint32_t bytes() const { return static_cast<uint32_t>(location_ >> kLocationBits); }

  uint64_t hash;  // of the key

 private:
  static constexpr int kLocationBits = 37;
  static_assert(Location::kMask >> kLocationBits == 0 &&
                kBlockBytesMax >> (64 - kLocationBits) == 0);
  uint64_t version_;
  uint64_t location_;
};

struct Partition::Scan {
  std::unordered_map<uint64_t, uint64_t> superseded;  // version -> incarnation
  uint64_t superseded_last = 0;                       // the highest of these versions
  std::vector<ScannedPut, HugeAllocator<ScannedPut>> puts;
  // What has come since a checkpoint or a snapshot, not all there is: each put is looked for in an
  // index that has the rest.
  bool is_tail = false;
  std::vector<Location> superseding;  // records that do so, of a tail
  // Of each prefix that was removed, by its length, the last removal.
  std::map<size_t, std::unordered_map<std::string_view, uint64_t>> prefixes;

  void supersede(uint64_t version, uint64_t incarnation) {
    superseded[version] = incarnation;
    superseded_last = std::max(superseded_last, version);
  }
  // In `superseded`.
  auto find_superseded(uint64_t version) const {
    return version <= superseded_last ? superseded.find(version) : superseded.end();
  }
  bool is_superseded(uint64_t version) const {
    return find_superseded(version) != superseded.end();
  }
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
