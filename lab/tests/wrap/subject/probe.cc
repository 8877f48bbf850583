#include "probe.h"

#include <iterator>

extern "C" {
// Where the probes below keep what no register can hold.
uint64_t wrap_probe_stack;
uint64_t wrap_probe_rdi;
void* wrap_probe_behind;
uint32_t wrap_probe_load;
uint32_t wrap_probe_store;
}

namespace wrap_subject {

void choose_vectors(Vectors load, Vectors store) {
  wrap_probe_load = static_cast<uint32_t>(load);
  wrap_probe_store = static_cast<uint32_t>(store);
}

}  // namespace wrap_subject

// Offsets in Registers.
static_assert(offsetof(wrap_subject::Registers, masks) == 2048);
static_assert(offsetof(wrap_subject::Registers, general) == 2112);
static_assert(offsetof(wrap_subject::Registers, flags) == 2232);
static_assert(offsetof(wrap_subject::Registers, red_zone) == 2240);
static_assert(offsetof(wrap_subject::Registers, mxcsr) == 2368);
static_assert(offsetof(wrap_subject::Registers, stack_moved) == 2376);

__asm__(R"(
  # Loads the vectors from rdi, as far as wrap_probe_load says.
  .type wrap_probe_load_vectors, @function
wrap_probe_load_vectors:
  cmpl $0, wrap_probe_store(%rip)
  je 1f
  vzeroall
1:
  cmpl $1, wrap_probe_load(%rip)
  je 2f
  ja 3f
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  movups 64*\i(%rdi), %xmm\i
  .endr
  ret
2:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovups 64*\i(%rdi), %ymm\i
  .endr
  ret
3:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
  vmovups 64*\i(%rdi), %zmm\i
  .endr
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7
  kmovq 2048+8*\i(%rdi), %k\i
  .endr
  ret

  # Stores them to rdi, as far as wrap_probe_store says. Changes the flags.
  .type wrap_probe_store_vectors, @function
wrap_probe_store_vectors:
  cmpl $1, wrap_probe_store(%rip)
  je 2f
  ja 3f
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  movups %xmm\i, 64*\i(%rdi)
  .endr
  ret
2:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovups %ymm\i, 64*\i(%rdi)
  .endr
  vzeroupper
  ret
3:
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
  vmovups %zmm\i, 64*\i(%rdi)
  .endr
  .irp i, 0, 1, 2, 3, 4, 5, 6, 7
  kmovq %k\i, 2048+8*\i(%rdi)
  .endr
  vzeroupper
  ret
)");

// The red zone is filled when nothing more is pushed, and read before anything is; the moves
// between leave the flags alone.
#define PROBE(name, instruction)                                                               \
  extern "C" void wrap_probe_##name(const wrap_subject::Registers*, wrap_subject::Registers*); \
  __asm__("\n.globl wrap_probe_" #name "\n.type wrap_probe_" #name                             \
          ", @function\n"                                                                      \
          "wrap_probe_" #name                                                                  \
          ":\n"                                                                                \
          "pushq %rbx; pushq %rbp; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"           \
          "movq %rsi, wrap_probe_behind(%rip)\n"                                               \
          "movq %rsp, wrap_probe_stack(%rip)\n"                                                \
          "call wrap_probe_load_vectors\n"                                                     \
          "ldmxcsr 2368(%rdi)\n"                                                               \
          "pushq 2232(%rdi); popfq\n"                                                          \
          ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"                     \
          "movq 2240+8*\\i(%rdi), %rax; movq %rax, -8-8*\\i(%rsp)\n"                           \
          ".endr\n"                                                                            \
          "movq 2112(%rdi), %rax; movq 2120(%rdi), %rcx; movq 2128(%rdi), %rdx\n"              \
          "movq 2136(%rdi), %rbx; movq 2144(%rdi), %rbp; movq 2152(%rdi), %rsi\n"              \
          "movq 2168(%rdi), %r8; movq 2176(%rdi), %r9; movq 2184(%rdi), %r10\n"                \
          "movq 2192(%rdi), %r11; movq 2200(%rdi), %r12; movq 2208(%rdi), %r13\n"              \
          "movq 2216(%rdi), %r14; movq 2224(%rdi), %r15; movq 2160(%rdi), %rdi\n" instruction  \
          "\n"                                                                                 \
          "movq %rdi, wrap_probe_rdi(%rip); movq wrap_probe_behind(%rip), %rdi\n"              \
          "movq %rax, 2112(%rdi); movq %rcx, 2120(%rdi); movq %rdx, 2128(%rdi)\n"              \
          "movq %rbx, 2136(%rdi); movq %rbp, 2144(%rdi); movq %rsi, 2152(%rdi)\n"              \
          "movq %r8, 2168(%rdi); movq %r9, 2176(%rdi); movq %r10, 2184(%rdi)\n"                \
          "movq %r11, 2192(%rdi); movq %r12, 2200(%rdi); movq %r13, 2208(%rdi)\n"              \
          "movq %r14, 2216(%rdi); movq %r15, 2224(%rdi)\n"                                     \
          "movq wrap_probe_rdi(%rip), %rax; movq %rax, 2160(%rdi)\n"                           \
          ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"                     \
          "movq -8-8*\\i(%rsp), %rax; movq %rax, 2240+8*\\i(%rdi)\n"                           \
          ".endr\n"                                                                            \
          "pushfq; popq 2232(%rdi); cld\n"                                                     \
          "stmxcsr 2368(%rdi)\n"                                                               \
          "movq wrap_probe_stack(%rip), %rax; subq %rsp, %rax; movq %rax, 2376(%rdi)\n"        \
          "movq wrap_probe_stack(%rip), %rsp\n"                                                \
          "call wrap_probe_store_vectors\n"                                                    \
          "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbp; popq %rbx\n"                 \
          "ret\n")

PROBE(nothing, "nop");
PROBE(clwb, "clwb (%r10)");
PROBE(clflushopt, ".byte 0x66; clflush (%r10)");
PROBE(clflush, "clflush (%r10)");
PROBE(sfence, "sfence");
PROBE(mfence, "mfence");
PROBE(movnti, "movnti %rax, (%r10)");
PROBE(movntdq, "movntdq %xmm3, (%r10)");
PROBE(lock_not, "lock; notq (%r10)");
PROBE(clwb_red_zone, "clwb -64(%rsp)");
PROBE(three, "sfence; clwb 8(%r10); mfence");
PROBE(odd_stack, "leaq -8(%rsp), %rsp; clwb (%r10); leaq 8(%rsp), %rsp");

namespace wrap_subject {
namespace {
constexpr Probe kProbes[] = {
    {"nothing", wrap_probe_nothing},       {"clwb", wrap_probe_clwb},
    {"clflushopt", wrap_probe_clflushopt}, {"clflush", wrap_probe_clflush},
    {"sfence", wrap_probe_sfence},         {"mfence", wrap_probe_mfence},
    {"movnti", wrap_probe_movnti},         {"movntdq", wrap_probe_movntdq},
    {"lock_not", wrap_probe_lock_not},     {"clwb_red_zone", wrap_probe_clwb_red_zone},
    {"three", wrap_probe_three},           {"odd_stack", wrap_probe_odd_stack},
};
}  // namespace

const Probe* probes_begin() { return std::begin(kProbes); }
const Probe* probes_end() { return std::end(kProbes); }

}  // namespace wrap_subject
