// For long vectors that are filled once: their memory is in huge pages. With small ones the system
// needs longer to hand out and clear them, a fault each, than the vector to be filled.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <new>

#include "pm/mapping.h"

namespace perdure::store {

template <typename T>
class HugeAllocator {
 public:
  using value_type = T;

  HugeAllocator() = default;
  template <typename Other>
  explicit HugeAllocator(const HugeAllocator<Other>&) {}

  T* allocate(size_t count) {
    if (!is_long(count)) return std::allocator<T>().allocate(count);
    // From the begin of a huge page on: what is mapped before it and behind goes back.
    const uint64_t bytes = bytes_of(count);
    void* map = ::mmap(nullptr, bytes + pm::kHugePageBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(map);
    const uint64_t before =
        (pm::kHugePageBytes - address % pm::kHugePageBytes) % pm::kHugePageBytes;
    char* begin = static_cast<char*>(map) + before;
    if (before != 0) ::munmap(map, before);
    ::munmap(begin + bytes, pm::kHugePageBytes - before);
    ::madvise(begin, bytes, MADV_HUGEPAGE);  // where the system has none, small ones do
    return reinterpret_cast<T*>(begin);
  }
  void deallocate(T* begin, size_t count) noexcept {
    if (!is_long(count)) return std::allocator<T>().deallocate(begin, count);
    ::munmap(begin, bytes_of(count));
  }
  bool operator==(const HugeAllocator&) const = default;

 private:
  static bool is_long(size_t count) { return count >= pm::kHugePageBytes / sizeof(T); }
  // Whole huge pages.
  static uint64_t bytes_of(size_t count) {
    const uint64_t pages = (count * sizeof(T) + pm::kHugePageBytes - 1) / pm::kHugePageBytes;
    return pages * pm::kHugePageBytes;
  }
};

}  // namespace perdure::store
