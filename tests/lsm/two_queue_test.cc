// 2Q against a direct simulation of the algorithm.
#include "lsm/two_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using Queue = lsm::TwoQueueShard<uint64_t, uint64_t>;

// The algorithm as it is told, with searches.
class Simulation {
 public:
  Simulation(size_t blocks, size_t references) : blocks_(blocks), references_(references) {}

  enum class Fate { kHit, kAdmitted, kPromoted, kInPlace };
  Fate read(uint64_t key) {
    if (const auto found = std::ranges::find(am, key); found != am.end()) {
      am.erase(found);
      am.push_front(key);
      return Fate::kHit;
    }
    const auto known = std::ranges::find(a1, key);
    if (known == a1.end() && am.size() == blocks_) {
      note(key);
      return Fate::kInPlace;
    }
    const Fate fate = known == a1.end() ? Fate::kAdmitted : Fate::kPromoted;
    if (known != a1.end()) a1.erase(known);
    am.push_front(key);
    if (am.size() > blocks_) {
      note(am.back());
      am.pop_back();
    }
    return fate;
  }

  std::deque<uint64_t> am;
  std::deque<uint64_t> a1;

 private:
  void note(uint64_t key) {
    if (a1.size() == references_) a1.pop_back();
    a1.push_front(key);
  }

  size_t blocks_;
  size_t references_;
};

Simulation::Fate read(Queue& queue, uint64_t key, uint64_t bytes) {
  if (const uint64_t* found = queue.find(key)) {
    EXPECT_EQ(*found, key * 3);
    return Simulation::Fate::kHit;
  }
  const uint64_t promoted = queue.counters().promoted;
  if (!queue.wants(key, bytes)) return Simulation::Fate::kInPlace;
  std::vector<uint64_t> evicted;
  queue.put(key, key * 3, bytes, evicted);
  EXPECT_LE(evicted.size(), 1U);
  return queue.counters().promoted > promoted ? Simulation::Fate::kPromoted
                                              : Simulation::Fate::kAdmitted;
}

TEST(TwoQueue, DoesWhatTheSimulationDoes) {
  Random random(base_seed());
  for (uint64_t round = 0; round < scaled(60); ++round) {
    const uint64_t blocks = 1 + random.below(40);
    const uint64_t references = 1 + random.below(12);
    const uint64_t keys = 1 + random.below(120);
    Queue queue(blocks * 100, references);
    Simulation simulation(blocks, references);
    uint64_t fates[4] = {};
    for (int i = 0; i < 3000; ++i) {
      const uint64_t key = random.chance(50) ? random.below(keys) : random.below(1 + keys / 8);
      const Simulation::Fate wanted = simulation.read(key);
      ++fates[static_cast<size_t>(wanted)];
      ASSERT_EQ(read(queue, key, 100), wanted) << "round " << round << ", read " << i;
    }
    const lsm::TwoQueueCounters counters = queue.counters();
    EXPECT_EQ(counters.hits, fates[0]);
    EXPECT_EQ(counters.admitted, fates[1]);
    EXPECT_EQ(counters.promoted, fates[2]);
    EXPECT_EQ(counters.in_place, fates[3]);
    EXPECT_EQ(counters.blocks, simulation.am.size());
    EXPECT_EQ(counters.bytes, simulation.am.size() * 100);
    EXPECT_EQ(counters.references, simulation.a1.size());
  }
}

TEST(TwoQueue, AScanPushesOutNothing) {
  Queue queue(1000, 5);
  for (uint64_t key = 0; key < 10; ++key) read(queue, key, 100);
  for (uint64_t key = 100; key < 10'000; ++key) {
    EXPECT_EQ(read(queue, key, 100), Simulation::Fate::kInPlace);
  }
  for (uint64_t key = 0; key < 10; ++key) {
    EXPECT_EQ(read(queue, key, 100), Simulation::Fate::kHit);
  }
}

// Who asks does not know what the block will have.
TEST(TwoQueue, AScanPushesOutNothingWhereBlocksAreLargerThanWasThought) {
  constexpr uint64_t kBlocks = 100;
  for (const uint64_t spread : {0U, 200U}) {
    SCOPED_TRACE(spread);
    Random random(base_seed());
    // The room that is left when AM is full is for what was thought, not for what comes.
    Queue queue(kBlocks * 4200 + 4150, 5);
    std::vector<uint64_t> evicted;
    uint64_t admitted = 0;
    for (uint64_t key = 0; key < 10'000; ++key) {
      if (!queue.wants(key, 4096)) continue;
      ++admitted;
      queue.put(key, key, 4200 - spread / 2 + random.below(spread + 1), evicted);
    }
    EXPECT_GE(admitted, kBlocks - 1);
    EXPECT_LE(admitted, kBlocks + 2);
    EXPECT_LE(evicted.size(), 2U);
  }
}

TEST(TwoQueue, BlocksOfAllSizesStayWithinTheCapacity) {
  Random random(base_seed());
  Queue queue(10'000, 20);
  uint64_t put = 0;
  uint64_t gone = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint64_t> evicted;
    const uint64_t key = random.below(300);
    if (random.chance(5)) {
      queue.erase(key, evicted);
    } else if (queue.find(key) == nullptr && queue.wants(key, 100)) {
      queue.put(key, key, 1 + random.below(i % 1000 == 0 ? 20'000 : 900), evicted);
      ++put;
    }
    gone += evicted.size();
    ASSERT_LE(queue.counters().bytes, 10'000U);
    ASSERT_EQ(queue.counters().blocks, put - gone);
    ASSERT_LE(queue.counters().references, 20U);
  }
  std::vector<uint64_t> rest;
  queue.prune([](uint64_t) { return true; }, rest);
  EXPECT_EQ(rest.size(), put - gone);
  EXPECT_EQ(queue.counters().bytes, 0U);
}

TEST(TwoQueue, ShardsShareTheCapacityWithoutARest) {
  for (const uint64_t capacity : {uint64_t{1} << 20, (uint64_t{1} << 24) + 12'345}) {
    lsm::TwoQueue<uint64_t, uint64_t> queue({.capacity_bytes = capacity, .block_bytes = 64});
    // More than enough keys fill every shard.
    for (uint64_t key = 0; key < capacity / 16; ++key) {
      queue.with(key, [&](auto& shard) {
        std::vector<uint64_t> evicted;
        if (shard.wants(key, 64)) shard.put(key, key, 64, evicted);
      });
    }
    const lsm::TwoQueueCounters counters = queue.counters();
    EXPECT_LE(counters.bytes, capacity);
    EXPECT_GT(counters.bytes, capacity - 16 * 64);
    EXPECT_LE(counters.references, capacity / 64 / 20);
    EXPECT_GT(counters.references, capacity / 64 / 20 - 16);
  }
}

TEST(TwoQueue, ThreadsReadSideBySide) {
  lsm::TwoQueue<uint64_t, uint64_t> queue(
      {.capacity_bytes = 64 << 10, .block_bytes = 64, .shards = 4});
  const uint64_t reads = scaled(20'000);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(base_seed() + thread);
      for (uint64_t i = 0; i < reads; ++i) {
        const uint64_t key = random.below(4000);
        queue.with(key, [&](auto& shard) {
          if (const uint64_t* found = shard.find(key)) {
            EXPECT_EQ(*found, key);
            return;
          }
          std::vector<uint64_t> evicted;
          if (shard.wants(key, 64)) shard.put(key, key, 64, evicted);
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const lsm::TwoQueueCounters all = queue.counters();
  EXPECT_EQ(all.hits + all.admitted + all.promoted + all.in_place, 4 * reads);
  EXPECT_EQ(all.blocks, all.admitted + all.promoted - all.evictions);
}

}  // namespace
}  // namespace perdure::test
