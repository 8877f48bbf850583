// The latch of a partition: one thread at a time, whether it is biased or not.
#include "store/latch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

// More often than a thread must come in a row before there is a bias.
void take_often(store::Latch& latch, uint64_t& count, int times = 5000) {
  for (int i = 0; i < times; ++i) {
    const std::lock_guard held(latch);
    ++count;
  }
}

TEST(LatchTest, WhoComesInBetweenIsAlone) {
  for (int round = 0; round < 200; ++round) {
    store::Latch latch;
    uint64_t count = 0;  // a race is one for the sanitizer, too
    std::atomic<bool> biased{false};
    std::thread owner([&] {
      take_often(latch, count, 300);
      biased = true;
      take_often(latch, count, 2000);
    });
    while (!biased) std::this_thread::yield();
    take_often(latch, count, 300);
    owner.join();
    EXPECT_EQ(count, 2600U);
  }
}

TEST(LatchTest, ManyThreadsInBurstsAreOneAtATime) {
  store::Latch latch;
  uint64_t count = 0;
  std::atomic<uint64_t> expected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Random random(base_seed() + static_cast<uint64_t>(t));
      for (int burst = 0; burst < 100; ++burst) {
        const auto times = static_cast<int>(random.below(burst % 10 == 0 ? 3000 : 20));
        if (random.chance(30)) {
          while (!latch.try_lock()) std::this_thread::yield();
          ++count;
          ++expected;
          latch.unlock();
        }
        take_often(latch, count, times);
        expected += static_cast<uint64_t>(times);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, expected);
}

TEST(LatchTest, WhoComesInWaitsUntilTheOwnerHasLeft) {
  for (int round = 0; round < 20; ++round) {
    store::Latch latch;
    uint64_t count = 0;
    std::atomic<bool> inside{false};
    bool has_left = false;
    std::thread owner([&] {
      take_often(latch, count);
      latch.lock();
      inside = true;
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      has_left = true;
      latch.unlock();
    });
    while (!inside) std::this_thread::yield();
    latch.lock();
    EXPECT_TRUE(has_left);
    latch.unlock();
    owner.join();
  }
}

struct Stops {
  static inline thread_local std::function<void()> next;
  static void before_store() {
    if (next) std::exchange(next, nullptr)();
  }
};

// The system stops a thread on its way in by the bias, for as long as it takes until the latch has another owner.
TEST(LatchTest, AnOwnerThatComesTooLateHarmsNotTheNextOne) {
  store::BiasedLatch<Stops> latch;
  const auto take_often = [&latch] {
    for (int i = 0; i < 5000; ++i) const std::lock_guard held(latch);
  };
  std::atomic<int> step{0};
  const auto wait_for = [&step](int wanted) {
    while (step < wanted) std::this_thread::yield();
  };
  std::atomic<bool> next_is_inside{false};
  std::thread late([&] {
    take_often();
    bool stopped = false;
    Stops::next = [&] {
      stopped = true;
      step = 1;
      wait_for(2);
    };
    latch.lock();
    EXPECT_FALSE(next_is_inside);
    latch.unlock();
    step = 3;
    Stops::next = nullptr;
    if (!stopped) std::puts("no bias on this system");
  });
  std::thread next([&] {
    while (step == 0) std::this_thread::yield();
    if (step == 3) return;
    take_often();
    latch.lock();
    next_is_inside = true;
    step = 2;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    next_is_inside = false;
    latch.unlock();
  });
  late.join();
  next.join();
}

// Who must not wait does not, while the thread that the latch is biased towards is inside.
TEST(LatchTest, TryLockDoesNotWait) {
  store::Latch latch;
  uint64_t count = 0;
  std::atomic<int> step{0};
  std::thread owner([&] {
    take_often(latch, count);
    latch.lock();
    step = 1;
    while (step != 2) std::this_thread::yield();
    latch.unlock();
    step = 3;
    while (step != 4) std::this_thread::yield();
    EXPECT_FALSE(latch.try_lock());
    step = 5;
  });
  while (step != 1) std::this_thread::yield();
  EXPECT_FALSE(latch.try_lock());
  EXPECT_FALSE(latch.try_lock());
  step = 2;
  while (step != 3) std::this_thread::yield();
  EXPECT_TRUE(latch.try_lock());
  step = 4;
  while (step != 5) std::this_thread::yield();
  latch.unlock();
  owner.join();
  EXPECT_TRUE(latch.try_lock());
  latch.unlock();
}

}  // namespace
}  // namespace perdure::test
