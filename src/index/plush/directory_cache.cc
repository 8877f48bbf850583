#include "index/plush/directory_cache.h"

#include <algorithm>

namespace perdure::index::plush {

DirectoryCache::DirectoryCache(uint32_t levels, uint64_t rows, uint32_t fanout) {
  uint64_t entries = 0;
  for (uint32_t level = 1; level <= levels; ++level) {
    begins_[level] = entries;
    entries += rows;
    rows *= fanout;
  }
  if (entries == 0) return;
  arena_.emplace(entries * sizeof(Copy));
  copies_ = reinterpret_cast<Copy*>(arena_->begin());
}

void DirectoryCache::clear(Copy& copy) {
  for (uint32_t i = 0; i < kLines; ++i) {
    Line& line = copy.lines[i];
    pm::store_relaxed(state_of(line), kUnknownState);
    for (uint32_t at = std::min(copy.filled[i], kLineWords); at > 0; --at) {
      pm::store_relaxed(line.words[kLineWords - at], uint16_t{0});
    }
    copy.filled[i] = 0;
  }
  pm::store_relaxed(copy.count, 0U);
  copy.superseded = 0;
}

void DirectoryCache::make_known(Copy& copy) {
  if (copy.was_known == 0) {
    copy.was_known = 1;
    known_.fetch_add(1, std::memory_order_relaxed);
  }
  for (uint32_t i = 0; i < kLines; ++i) {
    pm::store_release(state_of(copy.lines[i]), copy.filled[i] > kLineWords ? kOverflown : kKnown);
  }
}

}  // namespace perdure::index::plush
