#include "stub.h"

#include <cpuid.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace wrap_stub {
namespace {

bool recording = false;
uintptr_t range_begin = 0;
uintptr_t range_end = 0;
std::array<Seen, kSeenMax> seen;
size_t seen_count = 0;

// Of the whole process, wherever the memory is.
std::array<size_t, 6> totals = {};

void note(Kind kind, const volatile void* address, size_t bytes, const void* pc, int flavour = 0) {
  ++totals[static_cast<size_t>(kind)];
  if (!recording || seen_count == seen.size()) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (kind != Kind::kFence && (at >= range_end || at + bytes <= range_begin)) return;
  seen[seen_count++] = {kind, flavour, at, bytes, reinterpret_cast<uintptr_t>(pc)};
}

constexpr uint64_t kDirection = 0x400;
const float kThree = 3;

bool system_saves(uint32_t components) {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & (1U << 27)) == 0) return false;
  __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (eax & components) == components;
}

// What the convention lets a function change, changed; what it promises to one, used: an aligned
// stack and a clear direction flag.
void spoil() {
  static const bool has_avx = system_saves(0x06);
  static const bool has_avx512 = system_saves(0xe6);
  alignas(16) std::array<uint64_t, 2> aligned = {};
  __asm__ volatile("movaps %%xmm0, %0" : "=m"(aligned));
  uint64_t flags = 0;
  __asm__ volatile("pushfq; popq %0" : "=r"(flags));
  if ((flags & kDirection) != 0) __builtin_trap();
  __asm__ volatile(
      "movq $-1, %%rax; movq %%rax, %%rcx; movq %%rax, %%rdx; movq %%rax, %%rsi; movq %%rax, %%rdi;"
      "movq %%rax, %%r8; movq %%rax, %%r9; movq %%rax, %%r10; movq %%rax, %%r11;"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15; pcmpeqd %%xmm\\i, %%xmm\\i; .endr;"
      "addb $1, %%al" ::
          : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory", "xmm0",
            "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
            "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  // Raises the flags of an inexact and of an impossible computation.
  __asm__ volatile("xorps %%xmm0, %%xmm0; sqrtss %0, %%xmm1; divss %%xmm0, %%xmm0" ::"m"(kThree)
                   : "xmm0", "xmm1", "memory");
  if (has_avx) {
    __asm__ volatile(
        "vxorps %%ymm0, %%ymm0, %%ymm0;"
        ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15; vcmptrueps %%ymm0, %%ymm0, %%ymm\\i; .endr" ::
            : "memory");
  }
  if (has_avx512) {
    __asm__ volatile(
        ".irp i,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31;"
        "vpternlogd $0xff, %%zmm\\i, %%zmm\\i, %%zmm\\i; .endr;"
        ".irp i,0,1,2,3,4,5,6,7; kxnorq %%k\\i, %%k\\i, %%k\\i; .endr" ::
            : "memory");
  }
}

// What the process did, for a program that knows nothing of this library.
[[gnu::destructor]] void report() {
  if (std::getenv("WRAP_STUB_REPORT") == nullptr) return;
  const auto total = [](Kind kind) { return totals[static_cast<size_t>(kind)]; };
  std::fprintf(stderr, "flushes %zu, fences %zu, streams %zu, locked %zu\n", total(Kind::kFlush),
               total(Kind::kFence), total(Kind::kStream), total(Kind::kLocked));
}

}  // namespace

void start(const volatile void* base, size_t bytes) {
  range_begin = reinterpret_cast<uintptr_t>(base);
  range_end = range_begin + bytes;
  seen_count = 0;
  recording = true;
}
void stop() { recording = false; }
const Seen* begin() { return seen.data(); }
const Seen* end() { return seen.data() + seen_count; }

}  // namespace wrap_stub

using wrap_stub::Kind;
using wrap_stub::note;
using wrap_stub::spoil;

#define PC __builtin_return_address(0)

extern "C" {

void perdure_lab_event_flush(const void* address, int kind, const void* pc) {
  note(Kind::kFlush, address, 1, pc, kind);
  spoil();
}
void perdure_lab_event_fence(int kind, const void* pc) {
  note(Kind::kFence, nullptr, 0, pc, kind);
  spoil();
}
void perdure_lab_event_stream(void* address, size_t bytes, const void* pc) {
  note(Kind::kStream, address, bytes, pc);
  spoil();
}
void perdure_lab_event_locked(void* address, size_t bytes, const void* pc) {
  note(Kind::kLocked, address, bytes, pc);
  spoil();
}
void perdure_lab_event_load(const void* address, size_t bytes, const void* pc) {
  note(Kind::kLoad, address, bytes, pc);
  spoil();
}

// The compiler's call-outs.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void** address) { note(Kind::kLoad, address, 8, PC); }
void __tsan_vptr_update(void** address, void*) { note(Kind::kStore, address, 8, PC); }
void __tsan_read_range(void* address, size_t bytes) { note(Kind::kLoad, address, bytes, PC); }
void __tsan_write_range(void* address, size_t bytes) { note(Kind::kStore, address, bytes, PC); }

#define PERDURE_PLAIN(n)                                                              \
  void __tsan_read##n(void* address) { note(Kind::kLoad, address, n, PC); }           \
  void __tsan_write##n(void* address) { note(Kind::kStore, address, n, PC); }         \
  void __tsan_unaligned_read##n(void* address) { note(Kind::kLoad, address, n, PC); } \
  void __tsan_unaligned_write##n(void* address) { note(Kind::kStore, address, n, PC); }

PERDURE_PLAIN(1)
PERDURE_PLAIN(2)
PERDURE_PLAIN(4)
PERDURE_PLAIN(8)
PERDURE_PLAIN(16)

// The functions of the C library that stay calls.
void* memmove(void* to, const void* from, size_t bytes) noexcept {
  note(Kind::kLoad, from, bytes, PC);
  note(Kind::kStore, to, bytes, PC);
  auto* target = static_cast<volatile char*>(to);
  const auto* source = static_cast<const volatile char*>(from);
  if (target <= source) {
    for (size_t i = 0; i < bytes; ++i) target[i] = source[i];
  } else {
    for (size_t i = bytes; i > 0; --i) target[i - 1] = source[i - 1];
  }
  return to;
}
void* memcpy(void* to, const void* from, size_t bytes) noexcept __attribute__((alias("memmove")));
void* memset(void* to, int value, size_t bytes) noexcept {
  note(Kind::kStore, to, bytes, PC);
  auto* target = static_cast<volatile char*>(to);
  for (size_t i = 0; i < bytes; ++i) target[i] = static_cast<char>(value);
  return to;
}
int memcmp(const void* a, const void* b, size_t bytes) noexcept {
  note(Kind::kLoad, a, bytes, PC);
  note(Kind::kLoad, b, bytes, PC);
  const auto* left = static_cast<const volatile unsigned char*>(a);
  const auto* right = static_cast<const volatile unsigned char*>(b);
  for (size_t i = 0; i < bytes; ++i) {
    if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
  }
  return 0;
}
char* strcpy(char* to, const char* from) noexcept {
  size_t bytes = 1;
  for (const volatile char* at = from; *at != 0; ++at) ++bytes;
  note(Kind::kLoad, from, bytes, PC);
  note(Kind::kStore, to, bytes, PC);
  volatile char* target = to;
  for (size_t i = 0; i < bytes; ++i) target[i] = from[i];
  return to;
}

}  // extern "C"
