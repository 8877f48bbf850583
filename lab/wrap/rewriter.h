// The assembler step: puts a call-out in front of every instruction that matters to the memory
// model.
//
//   Rewritten result = rewrite(text_of_the_compiler, "table.s");
//
// Treated so, in AT&T and in Intel syntax, from the compiler and from inline assembly alike:
//
//   clwb, clflushopt, clflush (also as `.byte 0x66; clflush` and in plain bytes)  flush, dropped
//   sfence, mfence                                                                fence, kept
//   movnti, movnt*, vmovnt*, movdiri, movdir64b, maskmov*                         stream, kept
//   lock ..., xchg with memory                                                    locked, kept
//   movntdqa, vmovntdqa                                                           load, kept
//
// In place of each stands one line that steps over the red zone, puts the operand's address into
// rdi and calls a trampoline of the runtime (trampolines.cc). Registers, flags and the red zone are
// as they were when the next instruction runs. Lines are not added, so that numbers of lines hold.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::lab::wrap {

struct Warning {
  size_t line = 0;
  std::string text;
};

struct Rewritten {
  std::string text;
  size_t sites = 0;  // instructions rewritten
  std::vector<Warning> warnings;
};

Rewritten rewrite(std::string_view text);

}  // namespace perdure::lab::wrap
