// A runtime for the tests of the assembler step and the wrappers: it writes down every call-out,
// and leaves no register as it was that a C function may change. With WRAP_STUB_REPORT in the
// environment, a process prints the number of its call-outs when it ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wrap_stub {

enum class Kind : uint8_t { kLoad, kStore, kStream, kLocked, kFlush, kFence };

struct Seen {
  Kind kind;
  int flavour;  // of a flush 0 clwb, 1 clflushopt, 2 clflush; of a fence 0 sfence, 1 mfence
  uintptr_t address;
  size_t bytes;
  uintptr_t pc;
};

// Call-outs between these two are written down, those of memory only if they touch
// [base, base + bytes).
void start(const volatile void* base, size_t bytes);
void stop();

// What was written down since start(). At most kSeenMax.
constexpr size_t kSeenMax = 1 << 15;
const Seen* begin();
const Seen* end();

}  // namespace wrap_stub
