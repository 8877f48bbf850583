// Locks and epochs.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "pm/epoch.h"
#include "pm/lock.h"

namespace perdure::pm {
namespace {

TEST(GenerationLock, AWordLeftLockedByADeadProcessIsFree) {
  uint64_t word = 0;
  GenerationLock before(word, 7);
  before.lock();
  EXPECT_FALSE(before.try_lock());
  GenerationLock after(word, 8);
  EXPECT_TRUE(after.validate(after.begin_read()));
  EXPECT_TRUE(after.try_lock());
  EXPECT_FALSE(after.try_lock());
  after.unlock();
  EXPECT_TRUE(after.try_lock());
}

TEST(GenerationLock, AWriterInvalidatesReaders) {
  uint64_t word = 0;
  GenerationLock lock(word, 1);
  const uint64_t stamp = lock.begin_read();
  EXPECT_TRUE(lock.validate(stamp));
  lock.lock();
  EXPECT_FALSE(lock.validate(stamp));
  lock.unlock();
  EXPECT_FALSE(lock.validate(stamp));
  EXPECT_TRUE(lock.validate(lock.begin_read()));
}

template <typename Lock>
uint64_t count_under(Lock make) {
  uint64_t counter = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      auto&& lock = make();
      for (int i = 0; i < 5000; ++i) {
        lock.lock();
        ++counter;
        lock.unlock();
      }
    });
  }
  threads.clear();
  return counter;
}

TEST(SpinLock, LetsOneThreadInAtATime) {
  SpinLock lock;
  EXPECT_EQ(count_under([&]() -> SpinLock& { return lock; }), 20000U);
}

TEST(GenerationLock, LetsOneThreadInAtATime) {
  alignas(8) uint64_t word = 0xdeadbeef;
  EXPECT_EQ(count_under([&] { return GenerationLock(word, 3); }), 20000U);
}

TEST(EpochManager, WaitsForGuardsThatWereThereBefore) {
  EpochManager epochs;
  bool done = false;
  {
    const EpochManager::Guard outer(epochs);
    {
      const EpochManager::Guard inner(epochs);
      epochs.retire([&] { done = true; });
    }
    epochs.collect();
    EXPECT_FALSE(done) << "the outer guard still protects";
  }
  epochs.collect();
  EXPECT_TRUE(done);
}

TEST(EpochManager, ALaterGuardDoesNotHoldBackWhatWasRetired) {
  EpochManager epochs;
  int done = 0;
  std::atomic<int> step{0};
  std::jthread reader([&] {
    const EpochManager::Guard guard(epochs);
    step = 1;
    step.notify_all();
    step.wait(1);
  });
  step.wait(0);
  epochs.retire([&] { ++done; });
  EXPECT_EQ(done, 0);
  step = 2;
  step.notify_all();
  reader.join();
  epochs.collect();
  EXPECT_EQ(done, 1);
  const EpochManager::Guard later(epochs);
  EXPECT_EQ(epochs.collect(), 0U);
}

TEST(EpochManager, ReadersNeverSeeReclaimedMemory) {
  EpochManager epochs;
  std::atomic<int*> shared{new int(0)};
  std::atomic<bool> stop{false};
  std::vector<std::jthread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const EpochManager::Guard guard(epochs);
        const int value = *shared.load();  // the address sanitizer would tell
        ASSERT_GE(value, 0);
      }
    });
  }
  for (int i = 1; i <= 3000; ++i) {
    int* old = shared.exchange(new int(i));
    epochs.retire([old] { delete old; });
  }
  stop = true;
  readers.clear();
  EXPECT_EQ(epochs.collect(), 0U);
  delete shared.load();
}

// As many threads at a time as the first table of an epoch manager has places for, and some more.
TEST(EpochManager, HasPlacesForMoreThreadsThanOneTableHolds) {
  constexpr uint32_t kThreads = EpochManager::kThreadsPerTable + 80;
  EpochManager epochs;
  std::atomic<uint32_t> pinned{0};
  std::atomic<bool> done{false};
  std::atomic<bool> freed{false};
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        const EpochManager::Guard guard(epochs);
        ++pinned;
        pinned.notify_one();
        done.wait(false);
      });
    }
    for (uint32_t n = pinned; n < kThreads; n = pinned) pinned.wait(n);
    epochs.retire([&] { freed = true; });
    EXPECT_EQ(epochs.collect(), 1U);
    done = true;
    done.notify_all();
  }
  EXPECT_EQ(epochs.collect(), 0U);
  EXPECT_TRUE(freed);
}

}  // namespace
}  // namespace perdure::pm
