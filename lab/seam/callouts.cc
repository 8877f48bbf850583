// The call-outs that GCC's -fsanitize=thread puts into observed code, under the names that its own
// runtime would have. A plain access is told before it is carried out by the code itself; an atomic
// is told and carried out here. Every read-modify-write and every sequentially consistent store is
// a locked instruction on x86, and so orders flushes as a fence does.
#include <cstddef>
#include <cstdint>

#include "lab/seam/dispatch.h"

// Names, types and forms here are the compiler's.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming, bugprone-macro-parentheses,
//   bugprone-multi-level-implicit-pointer-conversion, modernize-use-using)

namespace {

using perdure::lab::EventKind;
using perdure::lab::seam::call_stack;
using perdure::lab::seam::schedule_point;
using perdure::lab::seam::tell;

__extension__ typedef __int128 Wide;

// As the compiler passes it.
constexpr int kSequential = 5;

template <typename T>
T atomic_load(const volatile T* address, const void* pc) {
  schedule_point();
  tell(EventKind::kLoad, address, sizeof(T), pc);
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}

template <typename T>
void atomic_store(volatile T* address, T value, int order, const void* pc) {
  schedule_point();
  tell(EventKind::kStore, address, sizeof(T), pc);
  if (order == kSequential) {
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
    tell(EventKind::kLocked, nullptr, 0, pc);
  } else {
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
  }
}

// `change` maps the old value to the new one.
template <typename T, typename Change>
T atomic_update(volatile T* address, const void* pc, Change change) {
  schedule_point();
  tell(EventKind::kUpdate, address, sizeof(T), pc);
  T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(address, &seen, change(seen), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_RELAXED)) {
  }
  return seen;
}

template <typename T>
bool compare_exchange(volatile T* address, T* expected, T desired, const void* pc) {
  schedule_point();
  tell(EventKind::kUpdate, address, sizeof(T), pc);
  return __atomic_compare_exchange_n(address, expected, desired, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
}

// 16 bytes at once: GCC leaves them to a library, which would not be lock-free by its promise.
Wide compare_exchange_16(volatile Wide* address, Wide expected, Wide desired) {
  return __sync_val_compare_and_swap(address, expected, desired);
}

template <typename Change>
Wide atomic_update_16(volatile Wide* address, const void* pc, Change change) {
  schedule_point();
  tell(EventKind::kUpdate, address, 16, pc);
  Wide seen = compare_exchange_16(address, 0, 0);
  for (;;) {
    const Wide before = compare_exchange_16(address, seen, change(seen));
    if (before == seen) return seen;
    seen = before;
  }
}

}  // namespace

// The compiler expects these very names and types; a macro stamps them out by width.
#define PC __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* call) { call_stack.enter(call, PC); }
void __tsan_func_exit() { call_stack.leave(); }
void __tsan_ignore_thread_begin() {}
void __tsan_ignore_thread_end() {}
void __tsan_vptr_read(void** address) { tell(EventKind::kLoad, address, sizeof(void*), PC); }
void __tsan_vptr_update(void** address, void* /*value*/) {
  tell(EventKind::kStore, address, sizeof(void*), PC);
}

void __tsan_read_range(void* address, size_t bytes) { tell(EventKind::kLoad, address, bytes, PC); }
void __tsan_write_range(void* address, size_t bytes) {
  tell(EventKind::kStore, address, bytes, PC);
}

#define PERDURE_PLAIN(bytes)                                                                       \
  void __tsan_read##bytes(void* address) { tell(EventKind::kLoad, address, bytes, PC); }           \
  void __tsan_write##bytes(void* address) { tell(EventKind::kStore, address, bytes, PC); }         \
  void __tsan_unaligned_read##bytes(void* address) { tell(EventKind::kLoad, address, bytes, PC); } \
  void __tsan_unaligned_write##bytes(void* address) {                                              \
    tell(EventKind::kStore, address, bytes, PC);                                                   \
  }                                                                                                \
  void __tsan_volatile_read##bytes(void* address) { tell(EventKind::kLoad, address, bytes, PC); }  \
  void __tsan_volatile_write##bytes(void* address) {                                               \
    tell(EventKind::kStore, address, bytes, PC);                                                   \
  }                                                                                                \
  void __tsan_unaligned_volatile_read##bytes(void* address) {                                      \
    tell(EventKind::kLoad, address, bytes, PC);                                                    \
  }                                                                                                \
  void __tsan_unaligned_volatile_write##bytes(void* address) {                                     \
    tell(EventKind::kStore, address, bytes, PC);                                                   \
  }                                                                                                \
  void __tsan_read_write##bytes(void* address) {                                                   \
    tell(EventKind::kLoad, address, bytes, PC);                                                    \
    tell(EventKind::kStore, address, bytes, PC);                                                   \
  }

PERDURE_PLAIN(1)
PERDURE_PLAIN(2)
PERDURE_PLAIN(4)
PERDURE_PLAIN(8)
PERDURE_PLAIN(16)

#define PERDURE_ATOMIC(bits, T)                                                                  \
  T __tsan_atomic##bits##_load(const volatile T* address, int) {                                 \
    return atomic_load<T>(address, PC);                                                          \
  }                                                                                              \
  void __tsan_atomic##bits##_store(volatile T* address, T value, int order) {                    \
    atomic_store<T>(address, value, order, PC);                                                  \
  }                                                                                              \
  T __tsan_atomic##bits##_exchange(volatile T* address, T value, int) {                          \
    return atomic_update<T>(address, PC, [=](T) { return value; });                              \
  }                                                                                              \
  T __tsan_atomic##bits##_fetch_add(volatile T* address, T value, int) {                         \
    return atomic_update<T>(address, PC, [=](T old) { return static_cast<T>(old + value); });    \
  }                                                                                              \
  T __tsan_atomic##bits##_fetch_sub(volatile T* address, T value, int) {                         \
    return atomic_update<T>(address, PC, [=](T old) { return static_cast<T>(old - value); });    \
  }                                                                                              \
  T __tsan_atomic##bits##_fetch_and(volatile T* address, T value, int) {                         \
    return atomic_update<T>(address, PC, [=](T old) { return static_cast<T>(old & value); });    \
  }                                                                                              \
  T __tsan_atomic##bits##_fetch_or(volatile T* address, T value, int) {                          \
    return atomic_update<T>(address, PC, [=](T old) { return static_cast<T>(old | value); });    \
  }                                                                                              \
  T __tsan_atomic##bits##_fetch_xor(volatile T* address, T value, int) {                         \
    return atomic_update<T>(address, PC, [=](T old) { return static_cast<T>(old ^ value); });    \
  }                                                                                              \
  T __tsan_atomic##bits##_fetch_nand(volatile T* address, T value, int) {                        \
    return atomic_update<T>(address, PC, [=](T old) { return static_cast<T>(~(old & value)); }); \
  }                                                                                              \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* address, T* expected, T desired, \
                                                    int, int) {                                  \
    return compare_exchange<T>(address, expected, desired, PC);                                  \
  }                                                                                              \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* address, T* expected, T desired,   \
                                                  int, int) {                                    \
    return compare_exchange<T>(address, expected, desired, PC);                                  \
  }                                                                                              \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* address, T expected, T desired, int,  \
                                               int) {                                            \
    compare_exchange<T>(address, &expected, desired, PC);                                        \
    return expected;                                                                             \
  }

PERDURE_ATOMIC(8, uint8_t)
PERDURE_ATOMIC(16, uint16_t)
PERDURE_ATOMIC(32, uint32_t)
PERDURE_ATOMIC(64, uint64_t)

Wide __tsan_atomic128_load(const volatile Wide* address, int) {
  schedule_point();
  tell(EventKind::kLoad, address, 16, PC);
  return compare_exchange_16(const_cast<volatile Wide*>(address), 0, 0);
}
void __tsan_atomic128_store(volatile Wide* address, Wide value, int) {
  atomic_update_16(address, PC, [=](Wide) { return value; });
}
Wide __tsan_atomic128_exchange(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide) { return value; });
}
Wide __tsan_atomic128_fetch_add(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide old) { return old + value; });
}
Wide __tsan_atomic128_fetch_sub(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide old) { return old - value; });
}
Wide __tsan_atomic128_fetch_and(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide old) { return old & value; });
}
Wide __tsan_atomic128_fetch_or(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide old) { return old | value; });
}
Wide __tsan_atomic128_fetch_xor(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide old) { return old ^ value; });
}
Wide __tsan_atomic128_fetch_nand(volatile Wide* address, Wide value, int) {
  return atomic_update_16(address, PC, [=](Wide old) { return ~(old & value); });
}
Wide __tsan_atomic128_compare_exchange_val(volatile Wide* address, Wide expected, Wide desired, int,
                                           int) {
  schedule_point();
  tell(EventKind::kUpdate, address, 16, PC);
  return compare_exchange_16(address, expected, desired);
}
int __tsan_atomic128_compare_exchange_strong(volatile Wide* address, Wide* expected, Wide desired,
                                             int, int) {
  schedule_point();
  tell(EventKind::kUpdate, address, 16, PC);
  const Wide before = compare_exchange_16(address, *expected, desired);
  if (before == *expected) return 1;
  *expected = before;
  return 0;
}
int __tsan_atomic128_compare_exchange_weak(volatile Wide* address, Wide* expected, Wide desired,
                                           int, int) {
  schedule_point();
  tell(EventKind::kUpdate, address, 16, PC);
  const Wide before = compare_exchange_16(address, *expected, desired);
  if (before == *expected) return 1;
  *expected = before;
  return 0;
}

// A sequentially consistent fence is an instruction; weaker ones order the compiler only.
void __tsan_atomic_thread_fence(int order) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (order == kSequential) tell(EventKind::kLocked, nullptr, 0, PC);
}
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming, bugprone-macro-parentheses,
//   bugprone-multi-level-implicit-pointer-conversion, modernize-use-using)
