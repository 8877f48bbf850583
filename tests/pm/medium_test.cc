// An emulated medium sees what is written back and of fences, and only where pools need them.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "pm/emulated_media.h"
#include "pm/memory.h"

namespace perdure::pm {
namespace {

class Recorder final : public EmulatedMedia {
 public:
  Recorder() { emulate_media(this); }
  ~Recorder() override { emulate_media(nullptr); }
  void written_back(uintptr_t address, size_t bytes) override {
    addresses.push_back(address);
    written_bytes += bytes;
  }
  void fenced() override { ++fences; }

  std::vector<uintptr_t> addresses;
  size_t written_bytes = 0;
  int fences = 0;
};

struct alignas(kLineBytes) Lines {
  unsigned char bytes[4 * kLineBytes] = {};
};

TEST(EmulatedMedium, IsToldOfFlushesStreamsAndFences) {
  Lines lines;
  const Lines source;
  Recorder medium;
  const Memory memory(Domain::kLine);
  EXPECT_EQ(memory.domain(), Domain::kLine);
  memory.persist(lines.bytes, 100);
  memory.copy_nontemporal(lines.bytes + kLineBytes, source.bytes, 2 * kLineBytes);
  memory.fence();
  const auto base = reinterpret_cast<uintptr_t>(lines.bytes);
  EXPECT_EQ(medium.addresses, (std::vector<uintptr_t>{base, base + kLineBytes}));
  EXPECT_EQ(medium.written_bytes, 100 + 2 * kLineBytes);
  EXPECT_EQ(medium.fences, 2);
}

TEST(EmulatedMedium, WhatNeedsNoFlushIsNotSlowed) {
  Lines lines;
  Recorder medium;
  const Memory memory(Domain::kByte);
  memory.persist(lines.bytes, sizeof lines.bytes);
  EXPECT_EQ(medium.fences, 0);
  EXPECT_TRUE(medium.addresses.empty());
}

TEST(EmulatedMedium, CopiesKeepTheirContentAndMappingsFromBeforeAreAsTheyWere) {
  Lines lines;
  Lines source;
  std::memset(source.bytes, 7, sizeof source.bytes);
  const Memory before(Domain::kLine);
  Recorder medium;
  before.persist(lines.bytes, 64);
  EXPECT_EQ(medium.fences, 0);
  const Memory memory(Domain::kLine);
  memory.copy_nontemporal(lines.bytes, source.bytes, sizeof source.bytes);
  memory.fence();
  EXPECT_EQ(std::memcmp(lines.bytes, source.bytes, sizeof source.bytes), 0);
}

}  // namespace
}  // namespace perdure::pm
