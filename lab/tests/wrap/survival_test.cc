// A call-out in the middle of code leaves every register, the flags and the red zone as they were,
// although the function that it calls changes all that it may.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "stub.h"
#include "subject/probe.h"

namespace {

using wrap_subject::Probe;
using wrap_subject::Registers;
using wrap_subject::Vectors;

alignas(64) std::array<char, 64> line;

constexpr uint64_t kAlways = 0x202;  // the interrupt flag, and a bit that is always set
constexpr uint64_t kArithmetic = 0x8d5;
constexpr uint64_t kDirection = 0x400;
constexpr uint32_t kPlainMxcsr = 0x1f80;
constexpr uint32_t kTowardsZero = 0x6000;

size_t words_of(Vectors vectors) { return size_t{2} << static_cast<unsigned>(vectors); }

Registers values(uint64_t flags, uint32_t mxcsr, Vectors load) {
  Registers registers;
  uint64_t next = 0x9e3779b97f4a7c15;
  const auto draw = [&next] { return next = next * 6364136223846793005 + 1442695040888963407; };
  const size_t count = load == Vectors::kZmm ? 32 : 16;
  for (size_t i = 0; i < count; ++i) {
    for (size_t word = 0; word < words_of(load); ++word) registers.vectors[i][word] = draw();
  }
  if (load == Vectors::kZmm) {
    for (uint64_t& mask : registers.masks) mask = draw();
  }
  for (uint64_t& value : registers.general) value = draw();
  for (uint64_t& value : registers.red_zone) value = draw();
  registers.general[9] = reinterpret_cast<uint64_t>(line.data());  // r10
  registers.flags = flags | kAlways;
  registers.mxcsr = mxcsr;
  return registers;
}

Vectors widest() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") != 0) return Vectors::kZmm;
  return __builtin_cpu_supports("avx") != 0 ? Vectors::kYmm : Vectors::kXmm;
}

void expect_survival(Vectors load) {
  wrap_subject::choose_vectors(load, widest());
  for (const Probe* probe = wrap_subject::probes_begin(); probe != wrap_subject::probes_end();
       ++probe) {
    for (const uint64_t flags : {uint64_t{0}, kArithmetic, kDirection, kArithmetic ^ 0x41}) {
      for (const uint32_t mxcsr : {kPlainMxcsr, kPlainMxcsr | kTowardsZero}) {
        SCOPED_TRACE(std::string(probe->name) + ", flags " + std::to_string(flags));
        const Registers before = values(flags, mxcsr, load);
        Registers behind = before;
        wrap_stub::start(nullptr, UINTPTR_MAX);
        probe->run(&before, &behind);
        wrap_stub::stop();
        EXPECT_EQ(behind.general, before.general);
        EXPECT_EQ(behind.flags, before.flags);
        EXPECT_EQ(behind.red_zone, before.red_zone);
        // Those that are not loaded were clean: zero in the upper parts of the first sixteen.
        const size_t count = load == Vectors::kZmm ? 32 : 16;
        for (size_t i = 0; i < count; ++i) EXPECT_EQ(behind.vectors[i], before.vectors[i]) << i;
        if (load == Vectors::kZmm) {
          EXPECT_EQ(behind.masks, before.masks);
        }
        EXPECT_EQ(behind.mxcsr, before.mxcsr);
        EXPECT_EQ(behind.stack_moved, 0);
        const bool silent = std::string_view(probe->name) == "nothing";
        EXPECT_EQ(wrap_stub::begin() == wrap_stub::end(), silent) << "the call-out was not made";
      }
    }
  }
}

TEST(Survival, WithXmmRegistersInUse) { expect_survival(Vectors::kXmm); }

TEST(Survival, WithYmmRegistersInUse) {
  if (widest() < Vectors::kYmm) GTEST_SKIP() << "this processor has no AVX";
  expect_survival(Vectors::kYmm);
}

TEST(Survival, WithZmmRegistersInUse) {
  if (widest() < Vectors::kZmm) GTEST_SKIP() << "this processor has no AVX-512";
  expect_survival(Vectors::kZmm);
}

}  // namespace
