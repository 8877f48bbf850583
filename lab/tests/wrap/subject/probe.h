// Runs one instruction with every register, the flags and the red zone set to given values, and
// tells what they are behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace wrap_subject {

constexpr size_t kGeneralRegisters = 15;  // rax rcx rdx rbx rbp rsi rdi r8 ... r15

struct alignas(64) Registers {
  std::array<std::array<uint64_t, 8>, 32> vectors = {};
  std::array<uint64_t, 8> masks = {};
  std::array<uint64_t, kGeneralRegisters> general = {};
  uint64_t flags = 0;
  std::array<uint64_t, 16> red_zone = {};
  uint32_t mxcsr = 0;
  uint32_t padding = 0;
  uint64_t stack_moved = 0;  // by so many bytes
  bool operator==(const Registers&) const = default;
};

// What of the vector registers is set before and read behind.
enum class Vectors : uint32_t { kXmm = 0, kYmm = 1, kZmm = 2 };

struct Probe {
  const char* name;
  void (*run)(const Registers* before, Registers* behind);
};

// Each instruction under test has its memory operand at (%r10).
const Probe* probes_begin();
const Probe* probes_end();

// Which to load before the instruction, and which to store behind it. With less loaded than the
// processor has, the rest is clean: zero, and known to the processor to be so.
void choose_vectors(Vectors load, Vectors store);

}  // namespace wrap_subject
