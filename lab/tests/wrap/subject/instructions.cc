#include "instructions.h"

#include <immintrin.h>

#include <cstdint>
#include <iterator>

namespace wrap_subject {

namespace {

alignas(64) char static_line[64];

using wrap_stub::Kind;

// As code has it that was written before assemblers knew clwb and clflushopt.
void clwb_by_prefix(char* at) {
  asm volatile(".byte 0x66; xsaveopt %0" : "+m"(*reinterpret_cast<volatile char*>(at)));
}
void clflushopt_by_prefix(char* at) {
  asm volatile(".byte 0x66; clflush %0" : "+m"(*reinterpret_cast<volatile char*>(at)));
}
void clflush_padded(char* at) {
  asm volatile(".byte 0x3e\n\tclflush %0" : "+m"(*reinterpret_cast<volatile char*>(at)));
}
void clwb_in_bytes(char* at) { asm volatile(".byte 0x66, 0x0f, 0xae, 0x30" ::"a"(at) : "memory"); }
void clwb_by_name(char* at) { asm volatile("clwb %0" : "+m"(*at)); }
[[gnu::target("clwb")]] void clwb_intrinsic(char* at) { _mm_clwb(at); }
[[gnu::target("clflushopt")]] void clflushopt_intrinsic(char* at) { _mm_clflushopt(at); }
void clflush_intrinsic(char* at) { _mm_clflush(at); }
void clwb_indexed(char* at) {
  asm volatile("clwb -8(%0,%1,8)" ::"r"(at), "r"(int64_t{4}) : "memory");
}
void clwb_by_rdi(char* at) { asm volatile("clwb 8(%%rdi)" ::"D"(at) : "memory"); }
void clwb_intel(char* at) {
  asm volatile(".intel_syntax noprefix\n\tclwb byte ptr [rcx+16]\n\t.att_syntax prefix" ::"c"(at)
               : "memory");
}
void lock_intel(char* at) {
  asm volatile(".intel_syntax noprefix\n\tlock inc DWORD PTR [rcx]\n\t.att_syntax prefix" ::"c"(at)
               : "memory", "cc");
}

const void* static_by_rip() {
  asm volatile("clwb %0" : "+m"(static_line[5]));
  return static_line + 5;
}
const void* own_stack() {
  const void* address = nullptr;
  asm volatile("leaq 24(%%rsp), %0; clwb 24(%%rsp)" : "=&r"(address)::"memory");
  return address;
}
const void* own_stack_without_displacement() {
  const void* address = nullptr;
  asm volatile("movq %%rsp, %0; clwb (%%rsp)" : "=&r"(address)::"memory");
  return address;
}
const void* own_red_zone() {
  const void* address = nullptr;
  asm volatile("leaq -16(%%rsp,%1,4), %0; clwb -16(%%rsp,%1,4)"
               : "=&r"(address)
               : "r"(int64_t{2})
               : "memory");
  return address;
}
const void* own_stack_intel() {
  const void* address = nullptr;
  asm volatile(
      "leaq 24(%%rsp), %0\n\t.intel_syntax noprefix\n\tclwb byte ptr [rsp+24]\n\t"
      ".att_syntax prefix"
      : "=&r"(address)::"memory");
  return address;
}

void sfence(char*) { _mm_sfence(); }
void mfence(char*) { _mm_mfence(); }
void sfence_in_bytes(char*) { asm volatile(".byte 0x0f,0xae,0xf8" ::: "memory"); }
void sfence_with_label(char*) { asm volatile("77: sfence # an epilogue; sfence" ::: "memory"); }

void movnti_4(char* at) { _mm_stream_si32(reinterpret_cast<int*>(at) + 1, 0x11); }
void movnti_8(char* at) { _mm_stream_si64(reinterpret_cast<long long*>(at) + 1, 0x12); }
void movntdq_16(char* at) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(at) + 1, _mm_set1_epi8(0x13));
}
void movntps_16(char* at) {
  _mm_stream_ps(reinterpret_cast<float*>(at), _mm_castsi128_ps(_mm_set1_epi8(0x14)));
}
void movntpd_16(char* at) {
  _mm_stream_pd(reinterpret_cast<double*>(at), _mm_castsi128_pd(_mm_set1_epi8(0x15)));
}
[[gnu::target("avx")]] void vmovntdq_32(char* at) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(at) + 1, _mm256_set1_epi8(0x16));
}
void movntdqa_16(char* at) {
  __m128i value;
  asm volatile("movntdqa %1, %0" : "=x"(value) : "m"(*reinterpret_cast<__m128i*>(at)));
}
void maskmovdqu_16(char* at) {
  _mm_maskmoveu_si128(_mm_set1_epi8(0x17), _mm_set1_epi8(-1), at + 16);
}

void lock_prefix_alone(char* at) {
  uint64_t expected = 0;
  asm volatile("lock; cmpxchgq %2, %1"
               : "+a"(expected), "+m"(*reinterpret_cast<uint64_t*>(at))
               : "r"(uint64_t{0x21})
               : "cc", "memory");
}
void lock_on_own_line(char* at) { asm volatile("lock\n\taddb $0x22, %0" : "+m"(*at) : : "cc"); }
void lock_byte(char* at) {
  asm volatile(".byte 0xf0; incl %0" : "+m"(*reinterpret_cast<int*>(at)) : : "cc");
}
void lock_xadd(char* at) {
  uint16_t value = 0x24;
  asm volatile("lock xaddw %0, %1" : "+r"(value), "+m"(*reinterpret_cast<uint16_t*>(at)) : : "cc");
}
void xchg_bare(char* at) {
  uint32_t value = 0x25;
  asm volatile("xchg %0, %1" : "+r"(value), "+m"(*reinterpret_cast<uint32_t*>(at)));
}
void cmpxchg_16(char* at) {
  uint64_t low = 0;
  uint64_t high = 0;
  asm volatile("lock cmpxchg16b %2"
               : "+a"(low), "+d"(high), "+m"(*reinterpret_cast<unsigned __int128*>(at))
               : "b"(uint64_t{0x26}), "c"(uint64_t{0})
               : "cc");
}

constexpr Form kForms[] = {
    {"clwb_by_prefix", Kind::kFlush, 0, 0, 1, 0, clwb_by_prefix},
    {"clflushopt_by_prefix", Kind::kFlush, 1, 0, 1, 0, clflushopt_by_prefix},
    {"clflush_padded", Kind::kFlush, 2, 0, 1, 0, clflush_padded},
    {"clwb_in_bytes", Kind::kFlush, 0, 0, 1, 0, clwb_in_bytes},
    {"clwb_by_name", Kind::kFlush, 0, 0, 1, 0, clwb_by_name},
    {"clwb_intrinsic", Kind::kFlush, 0, 0, 1, 0, clwb_intrinsic},
    {"clflushopt_intrinsic", Kind::kFlush, 1, 0, 1, 0, clflushopt_intrinsic},
    {"clflush_intrinsic", Kind::kFlush, 2, 0, 1, 0, clflush_intrinsic},
    {"clwb_indexed", Kind::kFlush, 0, 24, 1, 0, clwb_indexed},
    {"clwb_by_rdi", Kind::kFlush, 0, 8, 1, 0, clwb_by_rdi},
    {"clwb_intel", Kind::kFlush, 0, 16, 1, 0, clwb_intel},
    {"sfence", Kind::kFence, 0, 0, 0, 0, sfence},
    {"mfence", Kind::kFence, 1, 0, 0, 0, mfence},
    {"sfence_in_bytes", Kind::kFence, 0, 0, 0, 0, sfence_in_bytes},
    {"sfence_with_label", Kind::kFence, 0, 0, 0, 0, sfence_with_label},
    {"movnti_4", Kind::kStream, 0, 4, 4, 0x11, movnti_4},
    {"movnti_8", Kind::kStream, 0, 8, 8, 0x12, movnti_8},
    {"movntdq_16", Kind::kStream, 0, 16, 16, 0x13, movntdq_16},
    {"movntps_16", Kind::kStream, 0, 0, 16, 0x14, movntps_16},
    {"movntpd_16", Kind::kStream, 0, 0, 16, 0x15, movntpd_16},
    {"maskmovdqu_16", Kind::kStream, 0, 16, 16, 0x17, maskmovdqu_16},
    {"movntdqa_16", Kind::kLoad, 0, 0, 16, 0, movntdqa_16},
    {"lock_prefix_alone", Kind::kLocked, 0, 0, 8, 0x21, lock_prefix_alone},
    {"lock_on_own_line", Kind::kLocked, 0, 0, 1, 0x22, lock_on_own_line},
    {"lock_byte", Kind::kLocked, 0, 0, 4, 1, lock_byte},
    {"lock_xadd", Kind::kLocked, 0, 0, 2, 0x24, lock_xadd},
    {"xchg_bare", Kind::kLocked, 0, 0, 4, 0x25, xchg_bare},
    {"cmpxchg_16", Kind::kLocked, 0, 0, 16, 0x26, cmpxchg_16},
    {"lock_intel", Kind::kLocked, 0, 0, 4, 1, lock_intel},
};

constexpr Form kAvxForms[] = {{"vmovntdq_32", Kind::kStream, 0, 32, 32, 0x16, vmovntdq_32}};

constexpr OwnMemory kOwnMemory[] = {
    {"static_by_rip", static_by_rip},
    {"own_stack", own_stack},
    {"own_stack_without_displacement", own_stack_without_displacement},
    {"own_red_zone", own_red_zone},
    {"own_stack_intel", own_stack_intel},
};

}  // namespace

const Form* forms_begin() { return std::begin(kForms); }
const Form* forms_end() { return std::end(kForms); }
const Form* avx_forms_begin() { return std::begin(kAvxForms); }
const Form* avx_forms_end() { return std::end(kAvxForms); }
const OwnMemory* own_memory_begin() { return std::begin(kOwnMemory); }
const OwnMemory* own_memory_end() { return std::end(kOwnMemory); }

bool less_across_flush(char* at, long a, long b) {
  bool less = false;
  asm volatile("cmpq %3, %2; clwb %1; setl %0" : "=r"(less), "+m"(*at) : "r"(a), "r"(b) : "cc");
  return less;
}

}  // namespace wrap_subject
