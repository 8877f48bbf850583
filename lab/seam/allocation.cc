// The runtime's own operator new and delete. A program may replace the global ones, also by those
// of an allocator of persistent memory, which must neither see what the recorder allocates nor be
// called amid one of its own calls. None of these leaves the library, and the C++ library in it
// uses them as well.
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the C library's names.
extern "C" {
// The C library's allocator under the names that no program replaces.
void* __libc_malloc(size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace {

void* checked(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return checked(__libc_malloc(bytes == 0 ? 1 : bytes)); }
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return __libc_malloc(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return __libc_malloc(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return checked(__libc_memalign(static_cast<size_t>(alignment), bytes == 0 ? 1 : bytes));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void operator delete(void* memory) noexcept { __libc_free(memory); }
void operator delete[](void* memory) noexcept { __libc_free(memory); }
void operator delete(void* memory, size_t) noexcept { __libc_free(memory); }
void operator delete[](void* memory, size_t) noexcept { __libc_free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { __libc_free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { __libc_free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { __libc_free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { __libc_free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { __libc_free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { __libc_free(memory); }
