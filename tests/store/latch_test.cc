// The latch of a partition: one thread at a time, whether it is biased or not.
#include "store/latch.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
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

// The system stops a thread on its way in by the bias, for as long as it takes until the latch has
// another owner.
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

// A bias that another thread's latch has had is no thread's for good: those that have ended make
// room.
TEST(LatchTest, ThreadsThatHaveEndedKeepNobodyFromABias) {
  if (!store::has_barrier()) GTEST_SKIP() << "no barriers on this system";
  store::BiasedLatch<Stops> latch;
  int biased = 0;
  for (int number = 0; number < 10; ++number) {
    std::thread([&] {
      // Each withdrawal has made the next bias rarer.
      for (int i = 0; i < 64 << (number + 1); ++i) const std::lock_guard held(latch);
      Stops::next = [&] { ++biased; };
      const std::lock_guard held(latch);
      Stops::next = nullptr;
    }).join();
    EXPECT_EQ(biased, number + 1);
  }
}

// Others that live keep theirs.
TEST(LatchTest, AFifthThreadHasNoBias) {
  store::BiasedLatch<Stops> latch;
  std::array<bool, 5> biased{};
  std::atomic<size_t> turn{0};
  std::vector<std::thread> threads;
  for (size_t number = 0; number < biased.size(); ++number) {
    threads.emplace_back([&, number] {
      while (turn != number) std::this_thread::yield();
      for (int i = 0; i < 64 << 6; ++i) const std::lock_guard held(latch);
      Stops::next = [&] { biased[number] = true; };
      latch.lock();
      Stops::next = nullptr;
      latch.unlock();
      ++turn;
      while (turn != biased.size()) std::this_thread::yield();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool any = store::has_barrier();
  EXPECT_EQ(biased, (std::array{any, any, any, any, false}));
}

// A thread that comes when as many as can be have names gets one once another has ended.
TEST(LatchTest, AThreadThatWasRefusedANameGetsOneLater) {
  constexpr size_t kMany = 1024;
  std::atomic<bool> ends{false};
  std::atomic<size_t> named{0};
  std::vector<std::thread> others;
  for (size_t i = 0; i < kMany; ++i) {
    others.emplace_back([&] {
      store::ThreadName::take();
      ++named;
      ends.wait(false);
    });
  }
  while (named != kMany) std::this_thread::yield();
  std::thread([&] {
    EXPECT_EQ(store::ThreadName::take(), store::ThreadName::kNone);
    EXPECT_EQ(store::ThreadName::take(), store::ThreadName::kNone);
    ends = true;
    ends.notify_all();
    for (std::thread& one : others) one.join();
    EXPECT_NE(store::ThreadName::take(), store::ThreadName::kNone);
    EXPECT_EQ(store::ThreadName::mine(), store::ThreadName::take());
  }).join();
}

// Who takes many has the biases towards others end by one barrier, and is alone then, as ever.
TEST(LatchTest, ManyBiasesEndByOneBarrier) {
  std::array<store::Latch, 20> latches;
  std::array<uint64_t, 20> counts{};
  std::atomic<bool> biased{false};
  std::atomic<bool> ends{false};
  // The owner, too, ends biases by barriers, so it does nothing while they are counted.
  std::atomic<bool> is_to_wait{false};
  std::atomic<bool> waits{false};
  std::thread owner([&] {
    for (int i = 0; !ends; ++i) {
      for (size_t at = 0; at < latches.size(); ++at) take_often(latches[at], counts[at], 300);
      if (i == 2) biased = true;
      while (is_to_wait) {
        waits = true;
        std::this_thread::yield();
      }
      waits = false;
    }
  });
  while (!biased) std::this_thread::yield();
  for (int round = 0; round < 50; ++round) {
    is_to_wait = true;
    while (!waits) std::this_thread::yield();
    const uint64_t before = store::next_barrier();
    int called_off = 0;
    for (store::Latch& latch : latches) called_off += latch.call_off() ? 1 : 0;
    if (round == 0 && store::has_barrier()) {
      EXPECT_GT(called_off, 10);
    }
    if (called_off != 0) store::barrier_of_all_threads();
    EXPECT_EQ(store::next_barrier() - before, called_off != 0 ? 1U : 0U);
    is_to_wait = false;
    while (waits) std::this_thread::yield();
    for (size_t at = 0; at < latches.size(); ++at) {
      const std::lock_guard held(latches[at]);
      ++counts[at];
    }
  }
  // Nor need there be that barrier.
  for (store::Latch& latch : latches) latch.call_off();
  for (size_t at = 0; at < latches.size(); ++at) {
    const std::lock_guard held(latches[at]);
    ++counts[at];
  }
  ends = true;
  owner.join();
}

// Nor is the one let in that holds it, at whichever time the latch comes to be biased towards it.
TEST(LatchTest, WhoHoldsItDoesNotGetItOnceMore) {
  store::Latch latch;
  for (int i = 0; i < 5000; ++i) {
    latch.lock();
    ASSERT_FALSE(latch.try_lock()) << i;
    latch.unlock();
  }
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(latch.try_lock()) << i;
    ASSERT_FALSE(latch.try_lock()) << i;
    latch.unlock();
  }
  std::thread([&] {
    ASSERT_TRUE(latch.try_lock());
    latch.unlock();
  }).join();
}

// Released by another thread than the one that took it, as often as a bias takes.
TEST(LatchTest, ABiasIsTowardsWhoTookIt) {
  store::Latch latch;
  std::atomic<int> step{0};
  std::thread releases([&] {
    for (int i = 1; i < 1000; i += 2) {
      while (step != i) std::this_thread::yield();
      latch.unlock();
      step = i + 1;
    }
  });
  for (int i = 0; i < 1000; i += 2) {
    latch.lock();
    step = i + 1;
    while (step != i + 2) std::this_thread::yield();
  }
  releases.join();
  ASSERT_TRUE(latch.try_lock());
  EXPECT_FALSE(latch.try_lock());
  latch.unlock();
}

// The system refuses membarrier(2) from now on.
void forbid_barriers() {
  sock_filter refuse[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<uint16_t>(std::size(refuse)), refuse};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// When there may be a bias already.
TEST(LatchDeathTest, ABarrierThatIsRefusedIsNamed) {
  if (!store::has_barrier()) GTEST_SKIP() << "no barriers on this system";
  const auto be_refused = [] {
    forbid_barriers();
    store::barrier_of_all_threads();
  };
  EXPECT_DEATH(be_refused(), "membarrier.* is refused");
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
