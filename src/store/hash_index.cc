#include "store/hash_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace perdure::store {

void HashIndex::allocate(uint64_t length, uint64_t rest) {
  entries_ = TableMemory(length + rest + kAtOnce);
  length_ = length;
  places_ = length + rest;
  size_ = 0;
}

void HashIndex::grow(uint64_t entries, uint64_t count) {
  rebuild({entries_.get(), places_}, entries, count);
}

// A table for so many entries of those that `words` has, in order, with empty places between them
// or not.
void HashIndex::rebuild(std::span<const uint64_t> words, uint64_t entries, uint64_t count) {
  const uint64_t length = std::max(length_ + length_ / 4, entries * 8 / 7 + 1);
  uint64_t rest = count + kRest;
  for (;; rest *= 2) {
    TableMemory grown(length + rest + kAtOnce);
    uint64_t free = 0;  // the first place after all that have been filled
    uint64_t size = 0;
    bool fits = true;
    for (const uint64_t entry : words) {
      if (entry == 0) continue;
      free = std::max(free, (entry >> kTagShift) * length >> 27);
      fits = free + count + 1 < length + rest;
      if (!fits) break;
      grown[free++] = entry;
      ++size;
    }
    if (!fits) continue;  // very many entries of the highest tags
    entries_.swap(grown);
    length_ = length;
    places_ = length + rest;
    size_ = size;
    return;
  }
}

void HashIndex::insert(uint64_t hash, Location location) {
  const uint64_t tag = tag_of(hash);
  uint64_t i = home(tag);
  const uint64_t far = i + kFar;
  while (entries_[i] != 0 && entries_[i] >> kTagShift <= tag) {
    if (++i != far) continue;
    i = first_not_below(i, tag + 1);
    break;
  }
  uint64_t end = i;
  while (entries_[end] != 0) ++end;
  std::memmove(&entries_[i + 1], &entries_[i], (end - i) * sizeof(uint64_t));
  entries_[i] = tag << kTagShift | location.word();
  ++size_;
}

void HashIndex::erase(uint64_t entry) {
  // What follows moves up, as far as it is not at home.
  uint64_t end = entry + 1;
  while (entries_[end] != 0 && home(entries_[end] >> kTagShift) < end) ++end;
  std::memmove(&entries_[entry], &entries_[entry + 1], (end - entry - 1) * sizeof(uint64_t));
  entries_[end - 1] = 0;
  --size_;
}

}  // namespace perdure::store
