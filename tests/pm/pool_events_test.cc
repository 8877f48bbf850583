// What PoolOptions::on_event is told, and when.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/pool.h"
#include "pm/layout.h"
#include "support/errors.h"
#include "support/files.h"

namespace perdure::pm {
namespace {

using test::fails_with;

constexpr uint64_t kCapacity = uint64_t{16} << 20;

class PoolEventsTest : public ::testing::Test {
 protected:
  struct Told {
    PoolEventKind kind;
    std::string path;
    std::string message;
    uint64_t size_bytes;
    uint64_t used_bytes;
    std::thread::id thread;
  };

  PoolEventsTest() : path_(dir_.file("a.pool")) {}

  PoolOptions options() {
    PoolOptions options{.capacity_bytes = kCapacity, .growth_bytes = uint64_t{1} << 20};
    options.on_event = [this](const PoolEvent& event) {
      const std::lock_guard lock(mutex_);
      told_.push_back({event.kind, std::string(event.path), std::string(event.message),
                       event.size_bytes, event.used_bytes, std::this_thread::get_id()});
    };
    return options;
  }
  std::vector<PoolEventKind> kinds() const {
    std::vector<PoolEventKind> kinds;
    for (const Told& one : told_) kinds.push_back(one.kind);
    return kinds;
  }
  uint64_t count(PoolEventKind kind) const {
    return static_cast<uint64_t>(std::ranges::count(kinds(), kind));
  }
  static std::unique_ptr<AnyIndex> make(Pool& pool) {
    return create_index(pool, "words", "cceh", Kind::kU64, Kind::kBytes);
  }
  // Values so large that each takes segments of its own, which its removal gives back.
  uint64_t fill(AnyIndex& index) const {
    uint64_t key = 0;
    while (index.try_upsert(key, large_) == WriteResult::kDone) ++key;
    return key;
  }

  test::TempDir dir_;
  std::string path_;
  std::string large_ = std::string(200'000, 'v');
  std::mutex mutex_;
  std::vector<Told> told_;
};

TEST_F(PoolEventsTest, APoolIsOpenedAndOnlyAfterACrashRecovered) {
  const std::string copy = dir_.file("b.pool");
  {
    Pool pool = Pool::create(path_, options());
    EXPECT_EQ(kinds(), std::vector{PoolEventKind::kOpened});
    EXPECT_EQ(told_[0].path, path_);
    EXPECT_EQ(told_[0].thread, std::this_thread::get_id());
    std::filesystem::copy_file(path_, copy);  // as a process that died now would leave it
    pool.close();
  }
  told_.clear();
  Pool::open(path_, options());
  EXPECT_EQ(kinds(), std::vector{PoolEventKind::kOpened});
  told_.clear();
  Pool::open(copy, options());
  EXPECT_EQ(kinds(), (std::vector{PoolEventKind::kRecovered, PoolEventKind::kOpened}));
}

TEST_F(PoolEventsTest, GrowingIsToldByTheThreadThatNeedsRoom) {
  Pool pool = Pool::create(path_, options());
  const auto index = make(pool);
  told_.clear();
  const uint64_t before = pool.info().size_bytes;
  std::thread::id writer;
  std::thread([&] {
    writer = std::this_thread::get_id();
    for (uint64_t key = 0; key < 20; ++key) index->upsert(key, large_);
  }).join();
  ASSERT_GT(count(PoolEventKind::kGrown), 0U);
  EXPECT_EQ(count(PoolEventKind::kGrown), told_.size());
  EXPECT_EQ(told_[0].thread, writer);
  uint64_t last = before - 1;
  for (const Told& one : told_) {
    EXPECT_GT(one.size_bytes, last);
    EXPECT_LE(one.used_bytes, one.size_bytes);
    last = one.size_bytes;
  }
}

TEST_F(PoolEventsTest, NearlyFullIsToldOnceUntilThereIsRoomAgain) {
  PoolOptions wanted = options();
  wanted.nearly_full_percent = 75;
  Pool pool = Pool::create(path_, wanted);
  const auto index = make(pool);
  told_.clear();
  const uint64_t records = fill(*index);
  ASSERT_EQ(count(PoolEventKind::kNearlyFull), 1U);
  const auto told = std::ranges::find(told_, PoolEventKind::kNearlyFull, &Told::kind);
  EXPECT_GE(told->used_bytes, kCapacity * 3 / 4);
  EXPECT_LT(told->used_bytes, kCapacity * 4 / 5 + large_.size());
  EXPECT_NE(told->message.find("larger"), std::string::npos);

  // Above the threshold, and not a twentieth below it: nothing new.
  EXPECT_TRUE(index->remove(0));
  EXPECT_EQ(index->try_upsert(0, large_), WriteResult::kDone);
  EXPECT_EQ(count(PoolEventKind::kNearlyFull), 1U);
  for (uint64_t key = 0; key < records; ++key) EXPECT_TRUE(index->remove(key));
  fill(*index);
  EXPECT_EQ(count(PoolEventKind::kNearlyFull), 2U);
}

TEST_F(PoolEventsTest, APoolThatIsOpenedNearlyFullSaysSo) {
  {
    Pool pool = Pool::create(path_, {.capacity_bytes = kCapacity});
    fill(*make(pool));
  }
  Pool::open(path_, options());
  EXPECT_EQ(kinds(), (std::vector{PoolEventKind::kOpened, PoolEventKind::kNearlyFull}));
}

TEST_F(PoolEventsTest, NeverNearlyFullIfNobodyWantsToKnow) {
  PoolOptions wanted = options();
  wanted.nearly_full_percent = 0;
  Pool pool = Pool::create(path_, wanted);
  fill(*make(pool));
  EXPECT_EQ(count(PoolEventKind::kNearlyFull), 0U);
  wanted.nearly_full_percent = 101;
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "101",
                         [&] { Pool::create(dir_.file("b.pool"), wanted); }));
}

TEST_F(PoolEventsTest, DamageOfARecordIsToldAndThrown) {
  {
    Pool pool = Pool::create(path_, {.capacity_bytes = kCapacity});
    make(pool)->upsert(1, std::string(3000, 'x'));
  }
  std::string bytes = test::read_file(path_);
  bytes[bytes.find(std::string(2000, 'x')) + 1000] = 'y';
  test::write_file(path_, bytes);
  Pool pool = Pool::open(path_, options());
  const auto index = open_index(pool, "words");
  EXPECT_EQ(count(PoolEventKind::kDamaged), 0U);
  Value value;
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, [&] { index->lookup(1, value); }));
  ASSERT_EQ(count(PoolEventKind::kDamaged), 1U);
  EXPECT_NE(told_.back().message.find(path_), std::string::npos);
}

TEST_F(PoolEventsTest, AFileThatIsRefusedIsToldOnce) {
  Pool::create(path_, {.capacity_bytes = kCapacity}).close();
  const std::string sound = test::read_file(path_);
  for (const uint64_t place : {offsetof(PoolHeader, checksum), kHeaderBytes + 20}) {
    std::string bytes = sound;
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    test::write_file(path_, bytes);
    told_.clear();
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, [&] { Pool::open(path_, options()); }));
    EXPECT_EQ(kinds(), std::vector{PoolEventKind::kDamaged}) << place;
  }
}

TEST_F(PoolEventsTest, WhatItThrowsIsDropped) {
  PoolOptions wanted = options();
  std::atomic<int> calls = 0;
  wanted.on_event = [&](const PoolEvent&) {
    ++calls;
    throw std::runtime_error("not allowed");
  };
  Pool pool = Pool::create(path_, wanted);
  const auto index = make(pool);
  EXPECT_GT(fill(*index), 10U);
  EXPECT_GT(calls, 2);
  Value value;
  EXPECT_TRUE(index->lookup(0, value));
  EXPECT_EQ(value.bytes(), large_);
}

}  // namespace
}  // namespace perdure::pm
