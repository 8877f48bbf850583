// Offsets in place of pointers in persistent data: a pool may be mapped anywhere.
#pragma once

#include <cstdint>
#include <type_traits>

namespace perdure::pm {

// The offset of a T from the pool's base; 0 is null. 8 bytes, trivially copyable.
template <typename T>
struct ptr {
  uint64_t offset = 0;

  T* in(char* base) const { return offset == 0 ? nullptr : reinterpret_cast<T*>(base + offset); }
  explicit operator bool() const { return offset != 0; }
  bool operator==(const ptr&) const = default;
};

static_assert(sizeof(ptr<int>) == 8 && std::is_trivially_copyable_v<ptr<int>> &&
              std::is_standard_layout_v<ptr<int>>);

}  // namespace perdure::pm
