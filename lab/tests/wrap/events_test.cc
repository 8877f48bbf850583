// Every form of a flush, fence, non-temporal store or locked instruction is told once, with the
// right kind, address, size and place, and does what it did before.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "stub.h"
#include "subject/instructions.h"

namespace {

using wrap_stub::Kind;
using wrap_subject::Form;

alignas(64) std::array<char, 64> line;

void expect_told(const Form& form) {
  SCOPED_TRACE(form.name);
  line.fill(0);
  wrap_stub::start(line.data(), line.size());
  form.run(line.data());
  wrap_stub::stop();
  ASSERT_EQ(wrap_stub::end() - wrap_stub::begin(), 1);
  const wrap_stub::Seen& seen = *wrap_stub::begin();
  EXPECT_EQ(seen.kind, form.kind);
  EXPECT_EQ(seen.flavour, form.flavour);
  EXPECT_EQ(seen.bytes, form.bytes);
  const auto code = reinterpret_cast<uintptr_t>(form.run);
  EXPECT_TRUE(seen.pc > code && seen.pc < code + 8192) << "the place is in no such function";
  if (form.kind == Kind::kFence) return;
  EXPECT_EQ(seen.address, reinterpret_cast<uintptr_t>(line.data() + form.offset));
  EXPECT_EQ(static_cast<unsigned char>(line[form.offset]), form.first_byte);
}

TEST(Events, EveryFormIsToldOnceAndCarriedOut) {
  for (const Form* form = wrap_subject::forms_begin(); form != wrap_subject::forms_end(); ++form) {
    expect_told(*form);
  }
}

TEST(Events, WideStreamsAreToldOnceAndCarriedOut) {
  if (__builtin_cpu_supports("avx") == 0) GTEST_SKIP() << "this processor has no AVX";
  for (const Form* form = wrap_subject::avx_forms_begin(); form != wrap_subject::avx_forms_end();
       ++form) {
    expect_told(*form);
  }
}

// The address is that of the program's operand although the stack pointer has moved.
TEST(Events, StackAndStaticOperandsKeepTheirAddress) {
  for (const auto* own = wrap_subject::own_memory_begin(); own != wrap_subject::own_memory_end();
       ++own) {
    wrap_stub::start(nullptr, UINTPTR_MAX);
    const void* address = own->run();
    wrap_stub::stop();
    size_t flushes = 0;
    for (const auto* seen = wrap_stub::begin(); seen != wrap_stub::end(); ++seen) {
      if (seen->kind != Kind::kFlush) continue;
      ++flushes;
      EXPECT_EQ(seen->address, reinterpret_cast<uintptr_t>(address)) << own->name;
    }
    EXPECT_EQ(flushes, 1) << own->name;
  }
}

TEST(Events, AComparisonOutlivesTheFlushBehindIt) {
  EXPECT_TRUE(wrap_subject::less_across_flush(line.data(), 1, 2));
  EXPECT_FALSE(wrap_subject::less_across_flush(line.data(), 2, 1));
  EXPECT_TRUE(wrap_subject::less_across_flush(line.data(), INT64_MIN, 1));
}

}  // namespace
