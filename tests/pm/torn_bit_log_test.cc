#include "pm/torn_bit_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "pm/emulated_media.h"
#include "support/errors.h"

namespace perdure::pm {
namespace {

constexpr uint32_t kChunks = 3;

class TornBitLogTest : public ::testing::Test {
 protected:
  TornBitLogTest() : chunk_bytes_(TornBitLog::chunk_bytes_for(10)) {
    area_.resize((chunk_bytes_ * kChunks + 128) / 8);
    const auto address = reinterpret_cast<uintptr_t>(area_.data());
    base_ = reinterpret_cast<char*>((address + 63) & ~uintptr_t{63});
  }

  TornBitLog open() { return {memory_, base_, chunk_bytes_, kChunks}; }

  static std::vector<uint64_t> replay(TornBitLog& log) {
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
  static void append(TornBitLog& log, uint64_t n) {
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

TEST_F(TornBitLogTest, ReplaysWhatWasAppendedInOrder) {
  TornBitLog log = open();
  log.format();
  std::vector<uint64_t> expected;
  // Top bits set: all 64 bits of both words survive the flag bits.
  for (uint64_t i = 0; i < 10; ++i) {
    expected.push_back(i << 60 | i);
    append(log, expected.back());
  }
  TornBitLog again = open();
  EXPECT_EQ(replay(again), expected);
}

TEST_F(TornBitLogTest, KeepsOrderOverManyPassesOfTheRing) {
  TornBitLog log = open();
  log.format();
  for (uint64_t n = 0; n < 500; ++n) {
    append(log, n);
    TornBitLog again = open();
    const std::vector<uint64_t> seen = replay(again);
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back(), n);
    for (size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[i - 1] + 1);
  }
}

TEST_F(TornBitLogTest, DropsARecordOfWhichAnyWordIsMissing) {
  for (int missing = 0; missing < 3; ++missing) {
    for (int pass = 0; pass < 3; ++pass) {
      std::fill(area_.begin(), area_.end(), 0);
      TornBitLog log = open();
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
      TornBitLog again = open();
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

TEST_F(TornBitLogTest, RefusesADamagedChunkHeader) {
  TornBitLog log = open();
  log.format();
  append(log, 1);
  base_[1] ^= 4;
  TornBitLog again = open();
  EXPECT_FALSE(again.replay([](const RedoRecord&, uint64_t) {}));
}

TEST_F(TornBitLogTest, WritesNothingBeyondAChunk) {
  TornBitLog log = open();
  log.format();
  uint64_t n = 0;
  for (; log.has_room(1); ++n) log.append(record(n));
  const std::vector<uint64_t> before = area_;
  EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "", [&] { log.append(record(n)); }));
  EXPECT_EQ(area_, before);
  log.advance();
  log.advance();
  EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "", [&] { log.advance(); }));
}

// Takes the images that a power failure may leave of a log's area: between two fences any of the
// lines written since the first may be durable.
class CrashImages final : public EmulatedMedia {
 public:
  CrashImages(const char* area, size_t bytes) : area_(area), durable_(area, area + bytes) {
    emulate_media(this);
  }
  ~CrashImages() override { emulate_media(nullptr); }
  void written_back(uintptr_t /*address*/, size_t /*bytes*/) override {}
  void fenced() override {
    std::vector<size_t> changed;
    for (size_t at = 0; at < durable_.size(); at += kLineBytes) {
      if (std::memcmp(area_ + at, durable_.data() + at, kLineBytes) != 0) changed.push_back(at);
    }
    for (const size_t only : changed) {
      std::vector<char> image = durable_;
      std::copy_n(area_ + only, kLineBytes, image.begin() + static_cast<ptrdiff_t>(only));
      images.push_back(std::move(image));
      image.assign(area_, area_ + durable_.size());
      std::copy_n(durable_.begin() + static_cast<ptrdiff_t>(only), kLineBytes,
                  image.begin() + static_cast<ptrdiff_t>(only));
      images.push_back(std::move(image));
    }
    durable_.assign(area_, area_ + durable_.size());
  }

  std::vector<std::vector<char>> images;

 private:
  const char* area_;
  std::vector<char> durable_;
};

// What a process that dies leaves in the caches, and a power failure takes later.
class Caches final : public EmulatedMedia {
 public:
  Caches(char* area, size_t bytes) : area_(area), durable_(area, area + bytes) {
    emulate_media(this);
  }
  ~Caches() override { emulate_media(nullptr); }
  void written_back(uintptr_t address, size_t bytes) override {
    if (lost_) return;
    const auto base = reinterpret_cast<uintptr_t>(area_);
    if (address < base || address >= base + durable_.size())
      return;  // how lines are best written is tried out
    for (uintptr_t at = (address - base) / kLineBytes * kLineBytes; at < address - base + bytes;
         at += kLineBytes) {
      pending_.push_back(at);
    }
  }
  void fenced() override {
    for (const uintptr_t at : std::exchange(pending_, {})) {
      std::copy_n(area_ + at, kLineBytes, durable_.begin() + static_cast<ptrdiff_t>(at));
    }
  }
  // Whether stores stay in the caches from now on.
  void lose(bool lost) { lost_ = lost; }
  void fail_power() { std::ranges::copy(durable_, area_); }

 private:
  char* area_;
  std::vector<char> durable_;
  std::vector<uintptr_t> pending_;
  bool lost_ = false;
};

TEST_F(TornBitLogTest, WhatReplaySawStaysAfterAPowerFailure) {
  Caches caches(base_, chunk_bytes_ * kChunks);
  memory_ = Memory(Domain::kLine);
  TornBitLog log = open();
  log.format();
  memory_.fence();
  uint64_t n = 0;
  for (uint64_t round = 0; round < 40; ++round) {
    for (uint64_t i = 0; i < 5; ++i) append(log, n++);
    memory_.fence();
    caches.lose(true);  // the process dies before these are fenced, with or without a new chunk
    for (uint64_t i = 0; i < round % 8; ++i) append(log, n++);
    caches.lose(false);
    TornBitLog second = open();
    const std::vector<uint64_t> seen = replay(second);
    ASSERT_EQ(seen.back(), n - 1);
    append(second, n++);
    memory_.fence();
    caches.fail_power();
    log = open();
    const std::vector<uint64_t> after = replay(log);
    ASSERT_FALSE(after.empty());
    ASSERT_EQ(after.back(), n - 1) << "round " << round;
    ASSERT_EQ(after.size(), n - after.front());
  }
}

// A chunk that is left early keeps records of its last use unless they are gone before the next
// chunk begins; the crash that shows it comes one pass of the ring after the one that left them.
TEST_F(TornBitLogTest, ReplaysNothingOldAfterTwoCrashes) {
  const size_t bytes = chunk_bytes_ * kChunks;
  std::mt19937_64 random(11);
  const auto append_leaving = [&](TornBitLog& log, uint64_t n, uint64_t room) {
    if (!log.has_room(room)) {
      if (!log.next_is_free()) log.release_before(log.oldest() + 1);
      log.advance();
    }
    log.append(record(n));
    memory_.fence();
  };
  std::vector<std::vector<char>> images;
  {
    CrashImages medium(base_, bytes);
    memory_ = Memory(Domain::kLine);
    TornBitLog log = open();
    log.format();
    memory_.fence();
    medium.images.clear();  // of a log that is being made
    for (uint64_t n = 0; n < 150; ++n) append_leaving(log, n, random() % 5 + 1);
    images = std::move(medium.images);
  }
  memory_ = Memory(Domain::kByte);
  ASSERT_GT(images.size(), 300U);
  std::vector<uint64_t> copy_area(bytes / 8 + kLineBytes / 8);
  char* copy =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(copy_area.data()) + kLineBytes - 1) &
                              ~uintptr_t{kLineBytes - 1});
  for (const std::vector<char>& image : images) {
    std::copy(image.begin(), image.end(), base_);
    TornBitLog recovered = open();
    replay(recovered);
    // Work for two passes of the ring. A crash after each record finds records in their order, the
    // last one last, and none from before that had been released.
    for (uint64_t n = 1000; n < 1060; ++n) {
      append_leaving(recovered, n, n % 3 == 0 ? 4 : 1);
      // On a copy: replaying mends what follows the last record.
      std::copy_n(base_, bytes, copy);
      TornBitLog again(memory_, copy, chunk_bytes_, kChunks);
      const std::vector<uint64_t> seen = replay(again);
      ASSERT_FALSE(seen.empty());
      ASSERT_EQ(seen.back(), n);
      ASSERT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    }
  }
}

}  // namespace
}  // namespace perdure::pm
