// The trampolines that rewritten instructions call: perdure_lab_site_clwb and so on.
//
// A site is reached in the middle of any code, even between a comparison and its jump: nothing but
// memory below the stack pointer may change. So a trampoline saves the flags, the registers that a
// function may use freely and the vector registers, aligns the stack, and calls the C function of
// the event:
//
//   rdi            address of the operand (none for a fence)
//   return address the program's site, handed on as `pc`
//
// The functions may be any C++: that they leave the vector registers alone cannot be asked, since
// even a memcpy uses them. What is not saved is the x87 stack: they must not use `long double`.
//
// Vector registers are moved one by one: XSAVEC and XRSTOR do the same in twelve times the time.
// The lower sixteen are saved whole only where their upper parts are in use. Else they are zero,
// and are zero again after a vzeroupper; loading them whole would leave the processor in the state
// in which plain SSE code is slow.
#include <cpuid.h>

#include <cstdint>

extern "C" {
// Which vector registers there are: 0 SSE, 1 AVX, 2 AVX-512.
__attribute__((visibility("hidden"), used)) uint32_t perdure_lab_vector_level = 0;
// Whether xgetbv can tell what is in use.
__attribute__((visibility("hidden"), used)) uint32_t perdure_lab_use_is_known = 0;
}

namespace {

struct Cpuid {
  Cpuid(uint32_t leaf, uint32_t subleaf) {
    if (__get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx) == 0) eax = ebx = ecx = edx = 0;
  }
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
};

constexpr uint32_t kOsUsesXsave = 1U << 27;            // leaf 1, ecx
constexpr uint32_t kAvx512 = (1U << 16) | (1U << 30);  // leaf 7, ebx: F and BW
constexpr uint32_t kXgetbvTellsUse = 1U << 2;          // leaf 13.1, eax
constexpr uint32_t kAvxState = 0x06;                   // components that the system saves
constexpr uint32_t kAvx512State = 0xe6;

uint32_t enabled_components() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Before the constructors of the program, whose code may flush.
__attribute__((constructor(101))) void look_at_processor() {
  if ((Cpuid(1, 0).ecx & kOsUsesXsave) == 0) return;
  const uint32_t components = enabled_components();
  if ((components & kAvxState) != kAvxState) return;
  const bool has_avx512 =
      (components & kAvx512State) == kAvx512State && (Cpuid(7, 0).ebx & kAvx512) == kAvx512;
  perdure_lab_vector_level = has_avx512 ? 2 : 1;
  perdure_lab_use_is_known = (Cpuid(13, 1).eax & kXgetbvTellsUse) != 0 ? 1 : 0;
}

}  // namespace

// A site's own part. The frame, from above:
//
//   return address | rbp | flags | rax rcx rdx rsi r8 r9 r10 r11 rdi | (to 64) vectors, masks, mxcsr
//
// It leaves the C function in r10 and its arguments in rdi, rsi and r11 (to become rdx) to the
// common part. The direction flag is cleared because C code relies on that.
__asm__(R"(
  .pushsection .text, "ax", @progbits
  .macro PERDURE_SITE name, function, second
  .p2align 4
  .globl perdure_lab_site_\name
  .type perdure_lab_site_\name, @function
perdure_lab_site_\name:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  pushfq
  cld
  pushq %rax
  pushq %rcx
  pushq %rdx
  pushq %rsi
  pushq %r8
  pushq %r9
  pushq %r10
  pushq %r11
  movq perdure_lab_event_\function@GOTPCREL(%rip), %r10
  pushq %rdi
  .ifc \function,fence
  movl $\second, %edi
  movq 8(%rbp), %rsi
  .else
  movl $\second, %esi
  movq 8(%rbp), %r11
  .endif
  jmp perdure_lab_site_common
  .cfi_endproc
  .size perdure_lab_site_\name, . - perdure_lab_site_\name
  .endm
  .popsection
)");

// The common part. Offsets in the area: register i at 64 i, masks from 2048, mxcsr at 2112, and at
// 2116 whether the lower registers were saved whole.
__asm__(R"(
  .pushsection .text, "ax", @progbits
  .p2align 4
  .type perdure_lab_site_common, @function
perdure_lab_site_common:
  .cfi_startproc
  .cfi_def_cfa %rbp, 16
  .cfi_offset %rbp, -16
  subq $2176, %rsp
  andq $-64, %rsp
  stmxcsr 2112(%rsp)
  movl $0, 2116(%rsp)
  movl perdure_lab_vector_level(%rip), %r8d
  testl %r8d, %r8d
  jz 1f
  cmpl $0, perdure_lab_use_is_known(%rip)
  je 2f
  movl $1, %ecx
  xgetbv
  testl $0x44, %eax
  jnz 2f
1:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  movaps %xmm\i, 64*\i(%rsp)
  .endr
  jmp 4f
2:
  movl $1, 2116(%rsp)
  cmpl $2, %r8d
  je 3f
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovdqa %ymm\i, 64*\i(%rsp)
  .endr
  vzeroupper
  jmp 4f
3:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovdqa64 %zmm\i, 64*\i(%rsp)
  .endr
  vzeroupper
4:
  cmpl $2, %r8d
  jne 5f
  .irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
  vmovdqa64 %zmm\i, 64*\i(%rsp)
  .endr
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7
  kmovq %k\i, 2048+8*\i(%rsp)
  .endr
5:
  movq %r11, %rdx
  call *%r10
  movl perdure_lab_vector_level(%rip), %r8d
  cmpl $2, %r8d
  jne 6f
  .irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
  vmovdqa64 64*\i(%rsp), %zmm\i
  .endr
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7
  kmovq 2048+8*\i(%rsp), %k\i
  .endr
6:
  cmpl $0, 2116(%rsp)
  jne 8f
  testl %r8d, %r8d
  jz 7f
  vzeroupper
7:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  movaps 64*\i(%rsp), %xmm\i
  .endr
  jmp 10f
8:
  cmpl $2, %r8d
  je 9f
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovdqa 64*\i(%rsp), %ymm\i
  .endr
  jmp 10f
9:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovdqa64 64*\i(%rsp), %zmm\i
  .endr
10:
  # Loading it is slow and hardly ever needed: only if the function computed with fractions.
  stmxcsr 2120(%rsp)
  movl 2112(%rsp), %eax
  cmpl %eax, 2120(%rsp)
  je 11f
  ldmxcsr 2112(%rsp)
11:
  leaq -80(%rbp), %rsp
  popq %rdi
  popq %r11
  popq %r10
  popq %r9
  popq %r8
  popq %rsi
  popq %rdx
  popq %rcx
  popq %rax
  popfq
  popq %rbp
  .cfi_def_cfa %rsp, 8
  .cfi_restore %rbp
  ret
  .cfi_endproc
  .size perdure_lab_site_common, . - perdure_lab_site_common
  .popsection
)");

__asm__(R"(
  .pushsection .text, "ax", @progbits
  PERDURE_SITE clwb, flush, 0
  PERDURE_SITE clflushopt, flush, 1
  PERDURE_SITE clflush, flush, 2
  PERDURE_SITE sfence, fence, 0
  PERDURE_SITE mfence, fence, 1
  .irp bytes, 4, 8, 16, 32, 64
  PERDURE_SITE stream_\bytes, stream, \bytes
  .endr
  .irp bytes, 1, 2, 4, 8, 16
  PERDURE_SITE locked_\bytes, locked, \bytes
  .endr
  .irp bytes, 16, 32, 64
  PERDURE_SITE load_\bytes, load, \bytes
  .endr
  .purgem PERDURE_SITE
  .popsection
)");
