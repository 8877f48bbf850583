// Each access to memory by a compiled program is seen exactly once: a byte that is written twice by
// the account, or never, is a copy that went by another way than the call-out told.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "stub.h"
#include "subject/copies.h"

namespace {

using wrap_stub::Kind;
using wrap_subject::kBufferBytes;
using wrap_subject::Way;

alignas(64) std::array<char, kBufferBytes + 64> target;
alignas(64) std::array<char, kBufferBytes + 64> source;

// How often each byte of [base, base + bytes) was reported; longer than that if more was.
std::vector<int> times_seen(Kind kind, const char* base, size_t bytes) {
  std::vector<int> times(bytes + 64, 0);
  for (const auto* seen = wrap_stub::begin(); seen != wrap_stub::end(); ++seen) {
    if (seen->kind != kind) continue;
    for (size_t i = 0; i < seen->bytes; ++i) {
      const size_t at = seen->address + i - reinterpret_cast<uintptr_t>(base);
      if (at < times.size()) ++times[at];
    }
  }
  return times;
}

std::vector<int> once(size_t bytes) {
  std::vector<int> times(bytes + 64, 1);
  std::fill(times.end() - 64, times.end(), 0);
  return times;
}

std::vector<int> never(size_t bytes) { return std::vector<int>(bytes + 64, 0); }

class Once : public testing::TestWithParam<size_t> {};

TEST_P(Once, EveryByteWrittenIsToldOnce) {
  for (const Way* way = wrap_subject::ways_begin(); way != wrap_subject::ways_end(); ++way) {
    char* to = target.data() + GetParam();
    wrap_stub::start(to, kBufferBytes);
    way->run(to, source.data() + GetParam());
    wrap_stub::stop();
    EXPECT_EQ(times_seen(Kind::kStore, to, way->bytes), once(way->bytes)) << way->name;
  }
}

TEST_P(Once, EveryByteReadIsToldOnce) {
  for (const Way* way = wrap_subject::ways_begin(); way != wrap_subject::ways_end(); ++way) {
    const char* from = source.data() + GetParam();
    wrap_stub::start(from, kBufferBytes);
    way->run(target.data() + GetParam(), from);
    wrap_stub::stop();
    EXPECT_EQ(times_seen(Kind::kLoad, from, way->bytes),
              way->reads ? once(way->bytes) : never(way->bytes))
        << way->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Aligned, Once, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Odd, Once, testing::Values(8, 24));

}  // namespace
