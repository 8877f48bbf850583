// The assembler step on texts: what becomes a call-out, how its address is computed, and what is
// left as it was to the last character.
#include "lab/wrap/rewriter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace {

using perdure::lab::wrap::rewrite;
using perdure::lab::wrap::Rewritten;

// The call-out of a site without an operand, and with one whose address `lea` computes.
std::string fence_call(std::string_view site) {
  return "leaq -128(%rsp), %rsp; call *perdure_lab_site_" + std::string(site) +
         "@GOTPCREL(%rip); leaq 128(%rsp), %rsp; ";
}
std::string call(std::string_view site, std::string_view address) {
  return "leaq -136(%rsp), %rsp; movq %rdi, (%rsp); leaq " + std::string(address) +
         ", %rdi; call *perdure_lab_site_" + std::string(site) +
         "@GOTPCREL(%rip); movq (%rsp), %rdi; leaq 136(%rsp), %rsp; ";
}

std::string rewritten(std::string_view text) { return rewrite(text).text; }

void expect_untouched(std::string_view text) {
  const Rewritten result = rewrite(text);
  EXPECT_EQ(result.text, text);
  EXPECT_EQ(result.sites, 0) << text;
  EXPECT_TRUE(result.warnings.empty()) << text;
}

TEST(Rewriter, FlushesAreDropped) {
  EXPECT_EQ(rewritten("\tclwb\t(%rax)\n"), "\t" + call("clwb", "(%rax)") + "\n");
  EXPECT_EQ(rewritten("clflushopt 8(%rbx,%rcx,4)"), call("clflushopt", "8(%rbx,%rcx,4)"));
  EXPECT_EQ(rewritten("CLFLUSH table+64(%rip)\n"), call("clflush", "table+64(%rip)") + "\n");
  EXPECT_EQ(rewritten("clwb (%rdi)\n"), call("clwb", "(%rdi)") + "\n");
  EXPECT_EQ(rewritten("clwb %ds:(%rsi)\n"), call("clwb", "(%rsi)") + "\n");
}

TEST(Rewriter, FencesAreKept) {
  EXPECT_EQ(rewritten("\tsfence\n"), "\t" + fence_call("sfence") + "sfence\n");
  EXPECT_EQ(rewritten("\tmfence\n"), "\t" + fence_call("mfence") + "mfence\n");
}

TEST(Rewriter, StackOperandsFollowTheStackPointer) {
  EXPECT_EQ(rewritten("clwb (%rsp)"), call("clwb", "136(%rsp)"));
  EXPECT_EQ(rewritten("clwb 24(%rsp)"), call("clwb", "136+24(%rsp)"));
  EXPECT_EQ(rewritten("clwb -16(%rsp,%rax,8)"), call("clwb", "136+-16(%rsp,%rax,8)"));
  EXPECT_EQ(rewritten("clwb ( %rsp )"), call("clwb", "136( %rsp )"));
  EXPECT_EQ(rewritten("clwb 24(%rbp)"), call("clwb", "24(%rbp)"));
}

TEST(Rewriter, IdiomsOfOldCode) {
  EXPECT_EQ(rewritten(".byte 0x66; clflush (%rax)"), "; " + call("clflushopt", "(%rax)"));
  EXPECT_EQ(rewritten("\t.byte 0x66; xsaveopt (%rax)\n"), "\t; " + call("clwb", "(%rax)") + "\n");
  EXPECT_EQ(rewritten(".byte 0x66\n\txsaveopt 4(%rsp)\n"),
            "\n\t" + call("clwb", "136+4(%rsp)") + "\n");
  EXPECT_EQ(rewritten(".byte 0x3e; clflush (%rax)"), "; " + call("clflush", "(%rax)"));
  EXPECT_EQ(rewritten("data16 clflush (%rax)"), call("clflushopt", "(%rax)"));
  EXPECT_EQ(rewritten(".byte 102; xsaveopt (%rax)"), "; " + call("clwb", "(%rax)"));
}

TEST(Rewriter, InstructionsInBytes) {
  EXPECT_EQ(rewritten(".byte 0x66, 0x0f, 0xae, 0x30"), call("clwb", "(%rax)"));
  EXPECT_EQ(rewritten(".byte 0x66,0x0F,0xAE,0x3f"), call("clflushopt", "(%rdi)"));
  EXPECT_EQ(rewritten(".byte 0x0f, 0xae, 0x7e, 0xf8"), call("clflush", "-8(%rsi)"));
  EXPECT_EQ(rewritten(".byte 0x66, 0x41, 0x0f, 0xae, 0xb1, 0, 1, 0, 0"), call("clwb", "256(%r9)"));
  EXPECT_EQ(rewritten(".byte 0x0f, 0xae, 0xf8"), fence_call("sfence") + ".byte 0x0f, 0xae, 0xf8");
  EXPECT_EQ(rewritten(".byte 0x0f, 0xae, 0xf0"), fence_call("mfence") + ".byte 0x0f, 0xae, 0xf0");
  // pcommit, lfence, a form with a scaled index, and something else altogether.
  expect_untouched(".byte 0x66, 0x0f, 0xae, 0xf8\n");
  expect_untouched(".byte 0x0f, 0xae, 0xe8\n");
  expect_untouched(".byte 0x0f, 0xae, 0x3c, 0x24\n");
  expect_untouched(".byte 0x0f, 0x1f, 0x00\n");
}

TEST(Rewriter, StreamsTellTheirSize) {
  const auto kept = [](std::string_view site, std::string_view instruction) {
    return call(site, "(%rax)") + std::string(instruction);
  };
  for (const auto& [site, text] :
       std::vector<std::pair<std::string, std::string>>{{"stream_4", "movnti %edx, (%rax)"},
                                                        {"stream_8", "movnti %r10, (%rax)"},
                                                        {"stream_4", "movntil %edx, (%rax)"},
                                                        {"stream_8", "movntiq %rdx, (%rax)"},
                                                        {"stream_8", "movntq %mm1, (%rax)"},
                                                        {"stream_16", "movntdq %xmm0, (%rax)"},
                                                        {"stream_16", "movntps %xmm0, (%rax)"},
                                                        {"stream_16", "movntpd %xmm15, (%rax)"},
                                                        {"stream_16", "vmovntdq %xmm0, (%rax)"},
                                                        {"stream_32", "vmovntps %ymm0, (%rax)"},
                                                        {"stream_64", "vmovntpd %zmm31, (%rax)"},
                                                        {"stream_4", "movdiri %edx, (%rax)"},
                                                        {"load_16", "movntdqa (%rax), %xmm1"},
                                                        {"load_32", "vmovntdqa (%rax), %ymm1"},
                                                        {"load_64", "vmovntdqa (%rax), %zmm1"}}) {
    EXPECT_EQ(rewritten(text), kept(site, text));
  }
  EXPECT_EQ(rewritten("movdir64b (%rsi), %rax"), kept("stream_64", "movdir64b (%rsi), %rax"));
  EXPECT_EQ(rewritten("maskmovdqu %xmm0, %xmm1"),
            call("stream_16", "(%rdi)") + "maskmovdqu %xmm0, %xmm1");
}

TEST(Rewriter, LockedInstructionsTellTheirSize) {
  for (const auto& [site, text] : std::vector<std::pair<std::string, std::string>>{
           {"locked_8", "lock cmpxchgq %rcx, (%rax)"},
           {"locked_4", "lock cmpxchg %ecx, (%rax)"},
           {"locked_16", "lock cmpxchg16b (%rax)"},
           {"locked_8", "lock cmpxchg8b (%rax)"},
           {"locked_1", "lock addb $1, (%rax)"},
           {"locked_2", "lock xaddw %dx, (%rax)"},
           {"locked_4", "lock incl (%rax)"},
           {"locked_8", "lock sub %r8, (%rax)"},
           {"locked_4", "lock sub %r8d, (%rax)"},
           {"locked_8", "lock btsq $3, (%rax)"},
           {"locked_8", "xacquire lock orq $0, (%rax)"},
           {"locked_4", "xchg %edx, (%rax)"},
           {"locked_4", "xchg (%rax), %edx"},
           {"locked_1", "xchgb %dl, (%rax)"},
           {"locked_8", "xchgq %rdx, (%rax)"}}) {
    EXPECT_EQ(rewritten(text), call(site, "(%rax)") + text);
  }
}

TEST(Rewriter, APrefixOnItsOwnStaysWithItsInstruction) {
  EXPECT_EQ(rewritten("lock; incl (%rax)"), call("locked_4", "(%rax)") + "lock; incl (%rax)");
  EXPECT_EQ(rewritten("\tlock\n\tincl (%rax)\n"),
            "\t" + call("locked_4", "(%rax)") + "lock\n\tincl (%rax)\n");
  EXPECT_EQ(rewritten(".byte 0xf0; incl (%rax)"),
            call("locked_4", "(%rax)") + ".byte 0xf0; incl (%rax)");
  // The prefix was used up.
  EXPECT_EQ(rewritten("lock; incl (%rax); incl (%rbx)"),
            call("locked_4", "(%rax)") + "lock; incl (%rax); incl (%rbx)");
}

TEST(Rewriter, SeveralStatementsLabelsAndComments) {
  EXPECT_EQ(
      rewritten("1: clwb (%rax); sfence # done; sfence\n"),
      "1: " + call("clwb", "(%rax)") + "; " + fence_call("sfence") + "sfence # done; sfence\n");
  EXPECT_EQ(rewritten(".L3: 4:\tmfence /* mfence */ ; nop"),
            ".L3: 4:\t" + fence_call("mfence") + "mfence /* mfence */ ; nop");
  EXPECT_EQ(rewritten("clwb /* x */ (%rax)"), call("clwb", "(%rax)"));
  EXPECT_EQ(rewrite("/* a\n sfence\n */ sfence\n").sites, 1);
  EXPECT_EQ(rewritten("cmpq %rax, %rbx; clwb (%rcx); je 1f"),
            "cmpq %rax, %rbx; " + call("clwb", "(%rcx)") + "; je 1f");
}

TEST(Rewriter, LinesKeepTheirNumbers) {
  const std::string text =
      "\tsfence\n\tlock\n\tincl (%rax)\n\tclwb /* one\n two */ (%rbx)\n.byte 0x66\nclflush "
      "(%rcx)\n";
  const Rewritten result = rewrite(text);
  EXPECT_EQ(result.sites, 4);
  EXPECT_EQ(std::count(result.text.begin(), result.text.end(), '\n'),
            std::count(text.begin(), text.end(), '\n'));
}

TEST(Rewriter, WhatIsNoneOfItsBusinessStays) {
  expect_untouched("");
  expect_untouched("\tlfence\n\trep stosq\n\tmovq %rax, (%rdi)\n\tmovdqu %xmm0, (%rdi)\n");
  expect_untouched("\txchgq %rax, %rbx\n\txchg %ax,%ax\n\tincl (%rax)\n\tcmpxchgl %eax,(%rbx)\n");
  expect_untouched("\trep; nop\n\txsaveopt (%rax)\n\tmovntps_like: .quad 1\n");
  expect_untouched("# sfence\n/ clwb (%rax)\n\t.ascii \"sfence\\\"; clwb (%rax)\"\n");
  expect_untouched("\t.string \"a\\\\\"\n\tmovb $'#, %al\n\tmovb $';, %al\n\tnop\n");
  expect_untouched("sfence_count = 3\n\tcall sfence\n\tjmp *clwb(%rip)\n");
  expect_untouched("\tmovb $';, %al # no end of line");
}

TEST(Rewriter, CharacterConstantsHideNothing) {
  EXPECT_EQ(rewrite("\tmovb $'\\;, %al; sfence\n").sites, 1);
  EXPECT_EQ(rewrite("\tmovb $';, %al\n\tsfence\n").sites, 1);
  EXPECT_EQ(rewrite("\t.ascii \"#\"\n\tsfence\n").sites, 1);
}

TEST(Rewriter, BytesOfDataAreNoInstructions) {
  expect_untouched("\t.section .rodata\n\t.byte 0x0f, 0xae, 0xf8\n");
  expect_untouched("\t.data\n\t.byte 0x0f\n\t.byte 0xae\n\t.byte 0xf8\n");
  expect_untouched("\t.section\t.gcc_except_table,\"a\",@progbits\n\t.byte 0x0f, 0xae, 0xf8\n");
  EXPECT_EQ(
      rewrite("\t.section .text.cold,\"ax\"\n\t.byte 0x0f\n\t.byte 0xae\n\t.byte 0xf8\n").sites, 1);
  EXPECT_EQ(rewrite(".data\n.text\n.byte 0x0f, 0xae, 0xf8\n").sites, 1);
  EXPECT_EQ(rewrite(".pushsection .data\n.popsection\n.byte 0x0f, 0xae, 0xf8\n").sites, 1);
  EXPECT_EQ(rewrite(".section .data\n.previous\n.byte 0x0f, 0xae, 0xf8\n").sites, 1);
}

TEST(Rewriter, ThreadLocalOperandsAreLeftWithAWarning) {
  const std::string text = "\tnop\n\tlock incl %fs:counter@tpoff\n";
  const Rewritten result = rewrite(text);
  EXPECT_EQ(result.text, text);
  ASSERT_EQ(result.warnings.size(), 1);
  EXPECT_EQ(result.warnings[0].line, 2);
  EXPECT_NE(result.warnings[0].text.find("%fs:counter@tpoff"), std::string::npos);
}

TEST(Rewriter, NarrowCodeIsLeftWithAWarning) {
  const Rewritten result = rewrite("\t.code32\n\tsfence\n\t.code64\n\tsfence\n");
  EXPECT_EQ(result.sites, 1);
  ASSERT_EQ(result.warnings.size(), 1);
  EXPECT_EQ(result.warnings[0].line, 2);
}

TEST(Rewriter, FrameInformationFollowsTheStackPointer) {
  const std::string adjust = ".cfi_adjust_cfa_offset 136; ";
  const auto adjusts = [&](std::string_view before) {
    return rewritten(std::string(before) + "\tclwb (%rax)\n").find(adjust) != std::string::npos;
  };
  EXPECT_FALSE(adjusts(""));
  EXPECT_TRUE(adjusts(".cfi_startproc\n"));
  EXPECT_FALSE(adjusts(".cfi_startproc simple\n"));
  EXPECT_FALSE(adjusts(".cfi_startproc\n.cfi_endproc\n"));
  EXPECT_FALSE(adjusts(".cfi_startproc\n.cfi_def_cfa_register 6\n"));
  EXPECT_FALSE(adjusts(".cfi_startproc\n.cfi_def_cfa %rbp, 16\n"));
  EXPECT_TRUE(adjusts(".cfi_startproc\n.cfi_def_cfa_register 6\n.cfi_def_cfa 7, 8\n"));
  EXPECT_TRUE(adjusts(
      ".cfi_startproc\n.cfi_remember_state\n.cfi_def_cfa_register 6\n.cfi_restore_state\n"));
  EXPECT_FALSE(adjusts(".cfi_startproc\n.cfi_escape 0xf,0x3,0x76,0x78,0x6\n"));
  EXPECT_TRUE(adjusts(".cfi_startproc\n.cfi_escape 0x10,0x6,0x2,0x76,0\n"));
  EXPECT_EQ(rewritten(".cfi_startproc\nsfence\n"),
            ".cfi_startproc\nleaq -128(%rsp), %rsp; .cfi_adjust_cfa_offset 128; "
            "call *perdure_lab_site_sfence@GOTPCREL(%rip); leaq 128(%rsp), %rsp; "
            ".cfi_adjust_cfa_offset -128; sfence\n");
}

TEST(Rewriter, IntelSyntax) {
  const auto intel = [](std::string_view statement) {
    const std::string text = rewritten(".intel_syntax noprefix\n" + std::string(statement));
    return text.substr(text.find('\n') + 1);
  };
  const auto call_intel = [](std::string_view site, std::string_view address) {
    return ".att_syntax prefix; leaq -136(%rsp), %rsp; movq %rdi, (%rsp); .intel_syntax noprefix; "
           "lea rdi, " +
           std::string(address) + "; .att_syntax prefix; call *perdure_lab_site_" +
           std::string(site) +
           "@GOTPCREL(%rip); movq (%rsp), %rdi; leaq 136(%rsp), %rsp; .intel_syntax noprefix; ";
  };
  EXPECT_EQ(intel("clwb [rax+8*rbx]"), call_intel("clwb", "[rax+8*rbx]"));
  EXPECT_EQ(intel("clwb BYTE PTR [rsp+16]"), call_intel("clwb", "[rsp+16+136]"));
  EXPECT_EQ(intel("clwb BYTE PTR response[rip]"), call_intel("clwb", "response[rip]"));
  EXPECT_EQ(intel("lock inc DWORD PTR [rcx]"),
            call_intel("locked_4", "[rcx]") + "lock inc DWORD PTR [rcx]");
  EXPECT_EQ(intel("xchg [rcx], rdx"), call_intel("locked_8", "[rcx]") + "xchg [rcx], rdx");
  EXPECT_EQ(intel("movnti QWORD PTR [rcx], rdx"),
            call_intel("stream_8", "[rcx]") + "movnti QWORD PTR [rcx], rdx");
  EXPECT_EQ(intel("sfence"),
            ".att_syntax prefix; " + fence_call("sfence") + ".intel_syntax noprefix; sfence");
  EXPECT_EQ(intel(".att_syntax prefix\nclwb (%rax)"),
            ".att_syntax prefix\n" + call("clwb", "(%rax)"));
}

}  // namespace
