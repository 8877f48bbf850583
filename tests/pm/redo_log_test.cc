#include "pm/redo_log.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace perdure::pm {
namespace {

constexpr uint32_t kChunks = 3;

class RedoLogTest : public ::testing::Test {
 protected:
  RedoLogTest() : chunk_bytes_(RedoLog::chunk_bytes_for(10)) {
    area_.resize((chunk_bytes_ * kChunks + 128) / 8);
    const auto address = reinterpret_cast<uintptr_t>(area_.data());
    base_ = reinterpret_cast<char*>((address + 63) & ~uintptr_t{63});
  }

  RedoLog open() { return {memory_, base_, chunk_bytes_, kChunks}; }

  static std::vector<uint64_t> replay(RedoLog& log) {
    std::vector<uint64_t> seen;
    EXPECT_TRUE(log.replay([&](const RedoRecord& record, uint64_t) {
      EXPECT_EQ(record.b, ~record.a);
      EXPECT_EQ(record.c, record.a % 1000 + 1);
      seen.push_back(record.a);
    }));
    return seen;
  }
  static RedoRecord record(uint64_t n) { return {n, ~n, n % 1000 + 1}; }

  // Appends, moving on and releasing what is older than one chunk.
  static void append(RedoLog& log, uint64_t n) {
    if (!log.has_room(1)) {
      if (!log.next_is_free()) log.release_before(log.oldest() + 1);
      log.advance();
    }
    log.append(record(n));
  }

  Memory memory_{Domain::kByte};
  uint64_t chunk_bytes_;
  std::vector<uint64_t> area_;
  char* base_ = nullptr;
};

TEST_F(RedoLogTest, ReplaysWhatWasAppendedInOrder) {
  RedoLog log = open();
  log.format();
  std::vector<uint64_t> expected;
  // Top bits set: all 64 bits of both words survive the flag bits.
  for (uint64_t i = 0; i < 10; ++i) {
    expected.push_back(i << 60 | i);
    append(log, expected.back());
  }
  RedoLog again = open();
  EXPECT_EQ(replay(again), expected);
}

TEST_F(RedoLogTest, KeepsOrderOverManyPassesOfTheRing) {
  RedoLog log = open();
  log.format();
  for (uint64_t n = 0; n < 500; ++n) {
    append(log, n);
    RedoLog again = open();
    const std::vector<uint64_t> seen = replay(again);
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back(), n);
    for (size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[i - 1] + 1);
  }
}

TEST_F(RedoLogTest, DropsARecordOfWhichAnyWordIsMissing) {
  for (int missing = 0; missing < 3; ++missing) {
    for (int pass = 0; pass < 3; ++pass) {
      std::fill(area_.begin(), area_.end(), 0);
      RedoLog log = open();
      log.format();
      uint64_t n = 0;
      for (; n < static_cast<uint64_t>(pass) * 10 + 4; ++n) append(log, n);
      const std::vector<uint64_t> before = area_;
      append(log, n);
      // The torn record: one of its words did not reach the medium.
      std::vector<size_t> changed;
      for (size_t i = 0; i < area_.size(); ++i) {
        if (area_[i] != before[i]) changed.push_back(i);
      }
      ASSERT_EQ(changed.size(), 3U);
      area_[changed[static_cast<size_t>(missing)]] = before[changed[static_cast<size_t>(missing)]];
      RedoLog again = open();
      const std::vector<uint64_t> seen = replay(again);
      ASSERT_FALSE(seen.empty());
      EXPECT_EQ(seen.back(), n - 1) << "pass " << pass << ", word " << missing;
      // What is left of it must not complete a record that is torn in turn.
      const std::vector<uint64_t> scrubbed = area_;
      again.append(record(n + 1));
      std::vector<size_t> second;
      for (size_t i = 0; i < area_.size(); ++i) {
        if (area_[i] != scrubbed[i]) second.push_back(i);
      }
      ASSERT_EQ(second.size(), 3U) << "a word of the torn record still bears the flag";
    }
  }
}

TEST_F(RedoLogTest, RefusesADamagedChunkHeader) {
  RedoLog log = open();
  log.format();
  append(log, 1);
  base_[1] ^= 4;
  RedoLog again = open();
  EXPECT_FALSE(again.replay([](const RedoRecord&, uint64_t) {}));
}

}  // namespace
}  // namespace perdure::pm
