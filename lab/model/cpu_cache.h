// One level of set-associative write-back cache with true LRU.
//
// The set of a line is a hash of its address, as L3 slices are picked by one: neighbouring lines
// age in unrelated sets, and so are evicted far apart in time. This is what scrambles evictions
// (docs/lab-model.md).
//
// A set is one array, ordered from the line used last to the one used longest ago. Most accesses
// find their line in front and change nothing; the others search and shift in one pass.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lab/model/ledger.h"
#include "lab/model/profile.h"

namespace perdure::lab {

class CpuCache {
 public:
  // A line's number in its address space, and which one.
  static uint64_t key_of(uint64_t line, bool pm) { return pm ? line : line | kDramBit; }
  static bool is_pm(uint64_t key) { return (key & kDramBit) == 0; }
  static uint64_t line_of(uint64_t key) { return key & ~kDramBit; }

  // What a cached line remembers: whether it is dirty, and who stored to it last.
  struct Entry {
    uint32_t site = 0;
    uint16_t operation = 0;
    bool dirty = false;

    LineOwner owner() const { return {.site = site, .operation = operation}; }
  };
  static_assert(sizeof(Entry) == sizeof(uint64_t));

  struct Victim {
    uint64_t key = kNoLine;
    Entry entry;
  };

  explicit CpuCache(const Profile& profile)
      : ways_(profile.cpu_cache_ways),
        sets_(profile.cpu_cache_bytes / (profile.cpu_cache_ways * kLineBytes)),
        slots_(sets_ * ways_) {}

  // The line becomes its set's last used one. If it was not there, `hit` is false, it comes in
  // clean, and `victim` is the line that left, with key kNoLine if none did.
  Entry* use(uint64_t key, bool& hit, Victim& victim) {
    Slot* const set = set_of(key);
    hit = true;
    if (set[0].key == key) [[likely]]
      return &set[0].entry;
    Slot carried = set[0];
    for (uint64_t way = 1; way < ways_; ++way) {
      std::swap(carried, set[way]);
      if (carried.key == key) {
        set[0] = carried;
        return &set[0].entry;
      }
    }
    hit = false;
    victim = {.key = carried.key, .entry = carried.entry};
    set[0] = {.key = key, .entry = Entry{}};
    return &set[0].entry;
  }

  // The line's entry, or null; its age does not change.
  Entry* find(uint64_t key) {
    Slot* const set = set_of(key);
    for (uint64_t way = 0; way < ways_; ++way) {
      if (set[way].key == key) return &set[way].entry;
    }
    return nullptr;
  }

  // Takes a line that find() found out of the cache.
  void remove(uint64_t key) {
    Slot* const set = set_of(key);
    Slot carried;
    for (uint64_t way = ways_; way-- > 0;) {
      std::swap(carried, set[way]);
      if (carried.key == key) return;
    }
  }

  // Calls visit(key, entry) for every line, set by set.
  template <class Visit>
  void for_each(Visit visit) {
    for (Slot& slot : slots_) {
      if (slot.key != kNoLine) visit(slot.key, slot.entry);
    }
  }

  static constexpr uint64_t kNoLine = ~uint64_t{0};

 private:
  static constexpr uint64_t kDramBit = uint64_t{1} << 62;
  struct Slot {
    uint64_t key = kNoLine;
    Entry entry;
  };

  // With sets in address order, lines that come in together would age in step and go out together.
  // One multiplication alone leaves some of that: the sets of neighbours keep a constant distance.
  Slot* set_of(uint64_t key) {
    uint64_t hash = key * 0x9E3779B97F4A7C15;
    hash = (hash ^ (hash >> 32)) * 0xD6E8FEB86659FD93;
    return &slots_[(((hash >> 32) * sets_) >> 32) * ways_];
  }

  uint64_t ways_;
  uint64_t sets_;
  std::vector<Slot> slots_;
};

}  // namespace perdure::lab
