#include "store/hash_index.h"

#include <algorithm>
#include <utility>

namespace perdure::store {

void HashIndex::allocate(uint64_t length) {
  entries_ = std::make_unique<uint64_t[]>(length);
  length_ = length;
  size_ = 0;
}

void HashIndex::grow(uint64_t entries) {
  const uint64_t before = length_;
  const uint64_t length = std::max(before + before / 4, entries * 8 / 7 + 1);
  auto old = std::make_unique<uint64_t[]>(length);
  std::swap(old, entries_);
  length_ = length;
  for (uint64_t i = 0; i < before; ++i) {
    if (old[i] == 0) continue;
    uint64_t to = home(old[i] >> kTagShift);
    while (entries_[to] != 0) to = next(to);
    entries_[to] = old[i];
  }
}

void HashIndex::insert(uint64_t hash, Location location) {
  const uint64_t tag = tag_of(hash);
  uint64_t i = home(tag);
  while (entries_[i] != 0) i = next(i);
  entries_[i] = tag << kTagShift | location.word();
  ++size_;
}

void HashIndex::erase(uint64_t entry) {
  // Entries that follow move up, unless that would put them before their home.
  uint64_t hole = entry;
  for (uint64_t i = next(hole); entries_[i] != 0; i = next(i)) {
    const uint64_t at_home = home(entries_[i] >> kTagShift);
    const uint64_t from_home = i >= at_home ? i - at_home : i + length_ - at_home;
    const uint64_t from_hole = i >= hole ? i - hole : i + length_ - hole;
    if (from_home < from_hole) continue;
    entries_[hole] = entries_[i];
    hole = i;
  }
  entries_[hole] = 0;
  --size_;
}

}  // namespace perdure::store
