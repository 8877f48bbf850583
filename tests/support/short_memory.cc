#include "support/short_memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace perdure::test {
namespace {

struct State {
  bool counting;
  uint64_t left;  // allocations
  uint64_t refused;
  uint64_t bytes;
};
constinit thread_local State state = {};

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (state.counting) {
    if (state.left == 0) {
      ++state.refused;
      throw std::bad_alloc();
    }
    --state.left;
    state.bytes += bytes;
  }
  bytes = std::max<std::size_t>(bytes, 1);
  void* const memory =
      alignment == 0
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

ShortMemory::ShortMemory(uint64_t allocations) { state = {true, allocations, 0, 0}; }

void ShortMemory::end() {
  if (!state.counting) return;
  state.counting = false;
  refused_ = state.refused;
  bytes_ = state.bytes;
}

}  // namespace perdure::test

// The forms for arrays come here, too. Those that do not throw would, but for a sanitizer's own
// ones.
void* operator new(std::size_t bytes) { return perdure::test::allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return perdure::test::allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return perdure::test::allocate(bytes, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
