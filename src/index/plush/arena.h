// Memory that is reserved for all that a table may become, and used as it grows. In huge pages,
// since what is found by hashes is read in no order.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "pm/mapping.h"

namespace perdure::index::plush {

class Arena {
 public:
  // Filled with zeros.
  explicit Arena(uint64_t bytes) {
    bytes = (bytes + pm::kHugePageBytes - 1) / pm::kHugePageBytes * pm::kHugePageBytes;
    mapped_bytes_ = bytes + pm::kHugePageBytes;
    map_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map_ == MAP_FAILED) throw std::bad_alloc();  // with nothing to unmap: no destructor runs
    ::madvise(begin(), bytes, MADV_HUGEPAGE);
  }
  ~Arena() { ::munmap(map_, mapped_bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* begin() const {
    const auto address = reinterpret_cast<uintptr_t>(map_);
    const uintptr_t gap = (pm::kHugePageBytes - address % pm::kHugePageBytes) % pm::kHugePageBytes;
    return static_cast<char*>(map_) + gap;
  }

 private:
  void* map_;
  uint64_t mapped_bytes_;
};

}  // namespace perdure::index::plush
