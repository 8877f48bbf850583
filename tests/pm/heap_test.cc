#include "pm/heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/short_memory.h"

namespace perdure::pm {
namespace {

class HeapTest : public ::testing::Test {
 protected:
  HeapTest()
      : pool_(Pool::anonymous({.capacity_bytes = uint64_t{32} << 20, .growth_bytes = 1 << 16})) {}

  PoolImpl& impl() { return pm::impl_of(pool_); }
  Heap& heap() { return impl().heap(); }
  uint64_t allocated() { return heap().usage().allocated_bytes; }

  // A block of zeros that nothing frees: where links live.
  uint64_t* links(uint64_t bytes) {
    Heap::Txn txn(heap());
    const uint64_t block = txn.allocate(bytes);
    auto* words = impl().at<uint64_t>(block);
    std::memset(words, 0, bytes);
    // Its own first word leads to it.
    txn.will_link(block, words, Link::kOffset);
    txn.prepare();
    words[0] = block;
    txn.settle();
    txn.finish();
    return words;
  }

  uint64_t link_new(uint64_t& link, uint64_t bytes) {
    Heap::Txn txn(heap());
    const uint64_t block = txn.allocate(bytes);
    txn.will_link(block, &link, Link::kOffset);
    txn.prepare();
    store_release(link, block);
    txn.settle();
    txn.finish();
    return block;
  }

  void unlink(uint64_t& link) {
    Heap::Txn txn(heap());
    txn.will_unlink(link, &link, Link::kOffset);
    txn.prepare();
    store_release(link, uint64_t{0});
    txn.settle();
    txn.finish();
  }

  // A thread has one unfinished transaction in a heap.
  static void in_another_thread(const std::function<void()>& work) { std::jthread(work).join(); }

  Pool pool_;
};

// What the heap counts as free is what it can hand out, also where it had no memory to note that
// something is free.
TEST_F(HeapTest, CountsNothingAsFreeThatItCouldNotNote) {
  uint64_t* link = links(64);
  for (int i = 1; i <= 3; ++i) link_new(link[i], kSegmentBytes);
  const uint64_t before = heap().free_segments();
  const auto unlink_without_memory = [&](uint64_t& from) {
    Heap::Txn txn(heap());
    txn.will_unlink(from, &from, Link::kOffset);
    txn.prepare();
    store_release(from, uint64_t{0});
    txn.settle();
    test::ShortMemory memory(0);
    txn.finish();
    memory.end();
    return memory.refused();
  };
  EXPECT_GT(unlink_without_memory(link[2]), 0U);  // between two that are in use
  EXPECT_EQ(heap().free_segments(), before);
  unlink(link[1]);
  unlink(link[3]);
  EXPECT_EQ(heap().free_segments(), before + 2);
}

// In every build: what does not fit would be written over the lane behind it.
TEST_F(HeapTest, ATransactionThatIsTooLargeForALaneIsRefused) {
  uint64_t* link = links(uint64_t{8} * 2 * kIntentsPerLane);
  const uint64_t before = allocated();
  const std::vector<uint64_t> image(kRedoBytes / 8, 7);
  {
    Heap::Txn txn(heap());
    EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "redo area",
                                 [&] { txn.redo(link, image.data(), kRedoBytes - 8); }));
  }
  {
    Heap::Txn txn(heap());
    EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "intents", [&] {
      for (uint32_t i = 1; i <= kIntentsPerLane + 1; ++i) {
        txn.may_link(link[0], &link[i], Link::kOffset);
      }
    }));
  }
  EXPECT_EQ(allocated(), before);
  link_new(link[1], 100);  // the lane is as it was
  EXPECT_EQ(heap().check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

TEST_F(HeapTest, GivesEveryBlockOnceAndTakesItBack) {
  uint64_t* link = links(32768);
  const uint64_t before = allocated();
  std::mt19937_64 random(7);
  std::set<std::pair<uint64_t, uint64_t>> taken;  // offset, end
  std::vector<uint64_t> sizes(2000);
  for (size_t i = 1; i < 2000; ++i) {
    sizes[i] = random() % (i % 50 == 0 ? 200000 : 3000) + 1;
    const uint64_t block = link_new(link[i], sizes[i]);
    const uint64_t end = block + Heap::block_bytes(sizes[i]);
    const auto next = taken.lower_bound({block, 0});
    ASSERT_TRUE(next == taken.end() || next->first >= end);
    ASSERT_TRUE(next == taken.begin() || std::prev(next)->second <= block);
    taken.emplace(block, end);
    ASSERT_TRUE(heap().is_allocated(block, sizes[i]));
  }
  for (size_t i = 1; i < 2000; ++i) unlink(link[i]);
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(heap().check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

TEST_F(HeapTest, AnAbandonedTransactionTakesNothing) {
  uint64_t* link = links(4096);
  const uint64_t before = allocated();
  for (int i = 0; i < 1000; ++i) {
    Heap::Txn txn(heap());
    txn.will_link(txn.allocate(256), &link[1], Link::kOffset);
    txn.will_link(txn.allocate(100000), &link[2], Link::kOffset);
  }
  EXPECT_EQ(allocated(), before);
  for (uint32_t i = 0; i < kLanes; ++i) {
    for (const Intent& intent : impl().lanes()[i].intents) EXPECT_EQ(intent.link, 0U);
  }
}

// What a crash leaves at each step of linking and unlinking, seen by recovery.
TEST_F(HeapTest, RecoveryFollowsTheLink) {
  uint64_t* link = links(4096);
  for (const bool linked : {false, true}) {
    for (const uint64_t bytes : {uint64_t{256}, uint64_t{150000}}) {
      Lane& lane = impl().lanes()[kLanes - 1];
      uint64_t block = 0;
      {
        Heap::Txn txn(heap());
        block = txn.allocate(bytes);
        if (bytes > 32768) {
          impl()
              .descriptor((block - impl().header().data_offset) / kSegmentBytes)
              .pending_run_segments = Heap::block_bytes(bytes) / kSegmentBytes;
        }
      }
      // The process died after the intent was durable, before or after the link was.
      lane.intents[5] = {block | (bytes > 32768 ? uint64_t{kBlockIsRun} : 0),
                         impl().offset_of(&link[1])};
      link[1] = linked ? block : 0;
      Heap recovered(impl());
      recovered.recover();
      EXPECT_EQ(recovered.is_allocated(block, bytes), linked);
      EXPECT_EQ(lane.intents[5].link, 0U);
      // And the same for a block that was being freed.
      lane.intents[7] = {block | (bytes > 32768 ? uint64_t{kBlockIsRun} : 0),
                         impl().offset_of(&link[1])};
      link[1] = 0;
      Heap again(impl());
      again.recover();
      EXPECT_FALSE(again.is_allocated(block, bytes));
    }
  }
}

TEST_F(HeapTest, RecoveryFollowsABitOfAWord) {
  uint64_t* word = links(4096) + 3;
  Lane& lane = impl().lanes()[kLanes - 1];
  for (const uint32_t bit : {0U, 17U, 63U}) {
    for (const bool linked : {false, true}) {
      uint64_t block = 0;
      {
        Heap::Txn txn(heap());
        block = txn.allocate(256);
      }
      lane.intents[5] = {block | kLinkIsBit,
                         impl().offset_of(word) | uint64_t{bit} << kLinkNumberShift};
      *word = linked ? uint64_t{1} << bit : ~(uint64_t{1} << bit);
      Heap recovered(impl());
      recovered.recover();
      EXPECT_EQ(recovered.is_allocated(block, 256), linked);
      EXPECT_EQ(lane.intents[5].link, 0U);
    }
  }
}

TEST_F(HeapTest, RecoveryFollowsACountAndTheIntentBefore) {
  uint64_t* word = links(4096) + 3;
  Lane& lane = impl().lanes()[kLanes - 1];
  uint64_t blocks[4] = {};
  {
    Heap::Txn txn(heap());
    for (uint64_t& block : blocks) block = txn.allocate(256);
  }
  const uint64_t at = impl().offset_of(word);
  const auto expect_allocated = [&](bool first, bool second) {
    Heap recovered(impl());
    recovered.recover();
    EXPECT_EQ(recovered.is_allocated(blocks[0], 256), first) << *word;
    EXPECT_EQ(recovered.is_allocated(blocks[1], 256), second) << *word;
  };
  for (const uint64_t entry : {0U, 63U}) {
    for (*word = entry > 0 ? entry - 1 : 0; *word <= entry + 1; ++*word) {
      lane.intents[5] = {blocks[0] | kLinkAbove, at | entry << kLinkNumberShift};
      lane.intents[6] = {blocks[1] | kLinkUpTo, at | entry << kLinkNumberShift};
      expect_allocated(*word > entry, *word <= entry);
    }
  }
  // The second block of a pair is reached by way of the first one, whatever became of its intent.
  for (const bool forgotten : {false, true}) {
    for (const uint64_t target : {blocks[0], blocks[1], blocks[2]}) {
      *word = target;
      lane.intents[4] = {blocks[0], forgotten ? 0 : at};
      lane.intents[5] = {blocks[1] | kAsPrevious, at};
      Heap recovered(impl());
      recovered.recover();
      EXPECT_EQ(recovered.is_allocated(blocks[1], 256), target == blocks[0]);
    }
  }
}

TEST_F(HeapTest, ATransactionNamesTheCountAndTheIntentBefore) {
  uint64_t* word = links(4096) + 3;
  Heap::Txn txn(heap());
  const uint64_t first = txn.allocate(256);
  const uint64_t second = txn.allocate(256);
  const uint64_t third = txn.allocate(256);
  txn.will_link(first, word, Link::kOffset);
  txn.will_link(second, word, Link::kAsPrevious);
  txn.will_link(third, word, link_above(63));
  txn.prepare();
  for (uint32_t i = 0; i < kLanes; ++i) {
    const Intent* intents = impl().lanes()[i].intents;
    if (intents[0].link == 0) continue;
    EXPECT_EQ(intents[1].block, second | kAsPrevious);
    EXPECT_EQ(intents[1].link, impl().offset_of(word));
    EXPECT_EQ(intents[2].block, third | kLinkAbove);
    EXPECT_EQ(intents[2].link, impl().offset_of(word) | uint64_t{63} << kLinkNumberShift);
    return;
  }
  FAIL() << "no lane has the intents";
}

// What a transaction writes for such a link is what recovery reads.
TEST_F(HeapTest, ATransactionNamesTheBit) {
  uint64_t* word = links(4096) + 3;
  Heap::Txn txn(heap());
  const uint64_t block = txn.allocate(256);
  txn.will_link(block, word, link_bit(63));
  txn.prepare();
  bool found = false;
  for (uint32_t i = 0; i < kLanes; ++i) {
    const Intent& intent = impl().lanes()[i].intents[0];
    if (intent.link == 0) continue;
    found = true;
    EXPECT_EQ(intent.block, block | kLinkIsBit);
    EXPECT_EQ(intent.link, impl().offset_of(word) | uint64_t{63} << kLinkNumberShift);
  }
  EXPECT_TRUE(found);
}

// A block that is linked and, by somebody else, unlinked again before its own transaction settles.
TEST_F(HeapTest, ALinkMayBeCutBeforeItsTransactionSettles) {
  uint64_t* link = links(4096);
  const uint64_t before = allocated();
  for (const uint64_t bytes : {uint64_t{256}, uint64_t{150000}}) {
    for (const bool succeeds : {true, false}) {
      link[2] = succeeds ? 0 : 1;
      link[3] = 1;
      uint64_t block = 0;
      {
        Heap::Txn maker(heap());
        block = maker.allocate(bytes);
        maker.may_link(block, &link[2], link_bit(0));
        const bool linked = maker.commit_contested([&] {
          EXPECT_TRUE(heap().is_allocated(block, bytes));
          link[2] = succeeds ? 1 : 0;
          if (!succeeds) return false;
          in_another_thread([&] {
            Heap::Txn cutter(heap());
            cutter.may_unlink(block, &link[3], link_bit(0));
            cutter.prepare();
            link[3] = 0;
            cutter.settle();
            cutter.finish();
          });
          return true;
        });
        EXPECT_EQ(linked, succeeds);
      }
      EXPECT_FALSE(heap().is_allocated(block, bytes));
      if (succeeds) heap().release(block);
    }
  }
  EXPECT_EQ(allocated(), before);
}

// Two transactions about one block: the one that did not unlink it does not bring it back.
TEST_F(HeapTest, MayUnlinkDecidesNothingWhileTheLinkStands) {
  uint64_t* link = links(4096);
  link_new(link[1], 256);
  const uint64_t block = link[1];
  link[2] = link[3] = 1;
  {
    Heap::Txn loser(heap());
    loser.may_unlink(block, &link[3], link_bit(0));
    loser.prepare();
    in_another_thread([&] {
      Heap::Txn winner(heap());
      winner.may_unlink(block, &link[2], link_bit(0));
      winner.prepare();
      link[2] = 0;
      winner.settle();
      winner.finish();
    });
    EXPECT_FALSE(heap().is_allocated(block, 256));
  }
  EXPECT_FALSE(heap().is_allocated(block, 256));
  // And what recovery makes of the loser's.
  Lane& lane = impl().lanes()[kLanes - 1];
  for (const bool stands : {true, false}) {
    lane.intents[5] = {link[4] = link_new(link[1], 256), 0};
    lane.intents[5].block |= kOnlyFrees | kLinkIsBit;
    lane.intents[5].link = impl().offset_of(&link[3]);
    link[3] = stands ? 1 : 0;
    Heap recovered(impl());
    recovered.recover();
    EXPECT_EQ(recovered.is_allocated(link[4], 256), stands);
  }
}

TEST_F(HeapTest, RedoRecordsAreAppliedOnceArmedAndNotBefore) {
  uint64_t* words = links(4096);
  const uint64_t image[2] = {11, 12};
  {
    Heap::Txn txn(heap());
    txn.redo(&words[10], image, sizeof image);
    txn.prepare();
    EXPECT_EQ(words[10], 0U);
    txn.apply();
    EXPECT_EQ(words[10], 11U);
    EXPECT_EQ(words[11], 12U);
    // A crash here: the record is still armed, and applied again.
    words[10] = 99;
    Heap recovered(impl());
    recovered.recover();
    EXPECT_EQ(words[10], 11U);
    txn.finish();
  }
  words[10] = 99;
  Heap recovered(impl());
  recovered.recover();
  EXPECT_EQ(words[10], 99U);
}

// Judged before it is applied, and changed by its own first record.
TEST_F(HeapTest, RefusesAMicroLogThatChangesItself) {
  Lane& lane = impl().lanes()[kLanes - 1];
  const uint64_t redo = impl().offset_of(lane.redo);
  const uint64_t words[] = {redo + 32,  16, uint64_t{1} << 50,
                            16,  // onto the head of the second
                            redo - 256, 16, 0,
                            0};
  std::memcpy(lane.redo, words, sizeof words);
  lane.armed = uint64_t{checksum32(lane.redo, sizeof words)} << 32 | sizeof words;
  Heap recovered(impl());
  try {
    recovered.recover();
    ADD_FAILURE() << "it was applied";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  }
  lane.armed = 0;
}

TEST_F(HeapTest, ATransactionIsNoLargerThanItsLane) {
  uint64_t* words = links(2048);
  const uint64_t block = link_new(words[1], 64);
  {
    Heap::Txn txn(heap());
    const std::vector<uint64_t> image(kRedoBytes / 8);
    txn.redo(&words[10], image.data(), kRedoBytes - 32);
    const auto again = [&] { txn.redo(&words[10], image.data(), 8); };
    EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "", again));
    for (uint32_t i = 0; i < kIntentsPerLane; ++i) txn.will_unlink(block, &words[1], Link::kOffset);
    const auto one_more = [&] { txn.will_unlink(block, &words[1], Link::kOffset); };
    EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "", one_more));
    for (uint32_t i = 0; i < kIntentsPerLane; ++i) txn.allocate(64);
    EXPECT_TRUE(test::fails_with(ErrorCode::kInternal, "", [&] { txn.allocate(64); }));
  }
  EXPECT_TRUE(heap().is_allocated(block, 64));
  EXPECT_EQ(heap().check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
}

TEST_F(HeapTest, RefusesADamagedMicroLog) {
  uint64_t* words = links(4096);
  const uint64_t image = 11;
  Heap::Txn txn(heap());
  txn.redo(&words[10], &image, sizeof image);
  txn.prepare();
  txn.apply();
  for (uint32_t i = 0; i < kLanes; ++i) {
    if (impl().lanes()[i].armed != 0) impl().lanes()[i].redo[16] ^= 1;
  }
  Heap recovered(impl());
  try {
    recovered.recover();
    ADD_FAILURE() << "a damaged record was applied";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  }
  txn.finish();
}

TEST_F(HeapTest, ServesThreadsAtOnce) {
  constexpr int kThreads = 4;
  uint64_t* link = links(32768);
  const uint64_t before = allocated();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        for (int i = 0; i < 3000; ++i) {
          uint64_t& own = link[1 + static_cast<size_t>(t) * 100 + random() % 100];
          if (own == 0) {
            link_new(own, random() % 2000 + 1);
          } else {
            unlink(own);
          }
        }
        for (size_t i = 0; i < 100; ++i) {
          uint64_t& own = link[1 + static_cast<size_t>(t) * 100 + i];
          if (own != 0) unlink(own);
        }
      });
    }
  }
  EXPECT_EQ(allocated(), before);
}

TEST_F(HeapTest, FullIsAnErrorThatChangesNothing) {
  uint64_t* link = links(32768);
  size_t count = 0;
  try {
    for (;; ++count) link_new(link[1 + count], 65536);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
  }
  EXPECT_GT(count, 400U);
  EXPECT_EQ(link[1 + count], 0U);
  const uint64_t full = allocated();
  EXPECT_THROW(link_new(link[1 + count], 65536), Error);
  EXPECT_EQ(allocated(), full);
  unlink(link[1]);
  link_new(link[1], 65536);
  // The reserve is for whoever frees more than it takes.
  Heap::Txn txn(heap(), true);
  EXPECT_NO_THROW(txn.allocate(65536));
}

// A pool of 8 MiB whose segments are all taken: by blocks of `bytes`, every second of which is
// free.
class UsedUpHeapTest : public HeapTest {
 protected:
  UsedUpHeapTest() {
    pool_ = Pool::anonymous({.capacity_bytes = uint64_t{8} << 20, .growth_bytes = 1 << 16});
    link_ = links(uint64_t{1} << 20);
  }

  void use_up(uint64_t bytes) {
    EXPECT_THROW(
        {
          for (;; ++count_) link_new(link_[1 + count_], bytes);
        },
        Error);
    for (size_t i = 0; i < count_; i += 2) {
      unlink(link_[1 + i]);
    }
  }

  // Takes blocks for `bytes` until there is no more room. Every one must be told apart from the
  // `other` bytes of the blocks that were there. Returns how many stand in blocks of that size.
  size_t fill_with(uint64_t bytes, uint64_t other) {
    size_t larger = 0;
    const uint64_t alignment = Heap::block_bytes(bytes) & -Heap::block_bytes(bytes);
    try {
      for (size_t i = 0; i < count_; i += 2) {
        if (link_[1 + i] != 0) continue;
        const uint64_t before = allocated();
        const uint64_t block = link_new(link_[1 + i], bytes);
        const uint64_t size = heap().block_bytes_at(block, bytes);
        EXPECT_EQ(allocated() - before, size);
        EXPECT_TRUE(heap().is_allocated(block, bytes));
        EXPECT_TRUE(heap().is_allocated(block, size));
        EXPECT_EQ(block % alignment, 0U);
        larger += size == Heap::block_bytes(other) ? 1 : 0;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
    }
    return larger;
  }

  uint64_t* link_;
  size_t count_ = 0;
};

// Who reclaims takes one block of it at a time, and leaves none in the cache of the lane.
TEST_F(UsedUpHeapTest, WhatTheReserveGivesIsNotLeftForOthers) {
  EXPECT_THROW(
      {
        for (;; ++count_) link_new(link_[1 + count_], 512);
      },
      Error);
  for (size_t i = 0; i < 100; ++i) {
    Heap::Txn txn(heap(), true);
    const uint64_t block = txn.allocate(512);
    txn.replace(link_[1 + i], block, link_[1 + i]);
    EXPECT_THROW(link_new(link_[1 + count_], 512), Error);
  }
}

TEST_F(UsedUpHeapTest, ALargerBlockServesWhereOnesOwnSizeIsUsedUp) {
  const uint64_t before = allocated();
  use_up(4096);
  const uint64_t half = allocated() - before;
  EXPECT_GT(fill_with(200, 4096), count_ / 3);
  {
    Heap recovered(impl());
    recovered.recover();
    EXPECT_EQ(recovered.usage().allocated_bytes, allocated());
    EXPECT_EQ(recovered.block_bytes_at(link_[1], 200), heap().block_bytes_at(link_[1], 200));
    EXPECT_EQ(recovered.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
  for (size_t i = 0; i < count_; i += 2) {
    if (link_[1 + i] != 0) unlink(link_[1 + i]);
  }
  EXPECT_EQ(allocated() - before, half);
  // And what came back has its old size again.
  EXPECT_GT(fill_with(4000, 4096), count_ / 3);
  EXPECT_EQ(heap().check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

TEST_F(UsedUpHeapTest, ABlockThatIsLaterReleasedGoesBackToItsOwnClass) {
  use_up(4096);
  const uint64_t before = allocated();
  ASSERT_GT(fill_with(200, 4096), 0U);
  for (size_t i = 0; i < count_; i += 2) {
    uint64_t& link = link_[1 + i];
    if (link == 0) continue;
    const uint64_t block = link;
    Heap::Txn txn(heap());
    txn.will_unlink(block, &link, Link::kOffset, Heap::Txn::Release::kLater);
    txn.prepare();
    store_release(link, uint64_t{0});
    txn.settle();
    txn.finish();
    heap().release(block);
  }
  EXPECT_EQ(allocated(), before);
  EXPECT_GT(fill_with(4000, 4096), count_ / 3);
}

TEST_F(UsedUpHeapTest, ALargerBlockThatIsLessAlignedDoesNotServe) {
  use_up(384);
  EXPECT_EQ(fill_with(256, 384), 0U);
  EXPECT_GT(fill_with(192, 384), count_ / 3);
}

// A process that died may have armed redo records in the caches only. Recovery must not let the
// power fail between some of the bytes that they replace.
TEST(HeapRecovery, RedoRecordsThatAreArmedInTheCachesOnlyAreCarriedOutAsAWhole) {
  using Image = test::FailingMedium::Image;
  constexpr uint64_t kSeeds = 4;
  constexpr uint64_t kApart = 32;  // words, so that they are in different lines
  constexpr uint64_t kTargets = 4;
  test::TempDir dir;
  const std::string path = dir.file("pool");
  PoolOptions forced;
  forced.domain = Domain::kLine;
  forced.force_domain = true;
  bool goes_on = true;
  uint64_t persist = 0;
  for (; goes_on; ++persist) {
    for (uint64_t seed = 0; seed < kSeeds && goes_on; ++seed) {
      std::filesystem::remove(path);
      uint64_t block = 0;
      test::FailingMedium medium(path, Domain::kLine);
      {
        Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{16} << 20});
        PoolImpl& impl = pm::impl_of(pool);
        Heap::Txn txn(impl.heap());
        block = txn.allocate(uint64_t{8} * kApart * (kTargets + 1));
        auto* words = impl.at<uint64_t>(block);
        std::memset(words, 0, uint64_t{8} * kApart * (kTargets + 1));
        txn.publish(block, words[0]);
      }
      medium.begin();
      {
        Pool pool = Pool::open(path, forced);
        PoolImpl& impl = pm::impl_of(pool);
        auto* words = impl.at<uint64_t>(block);
        Heap::Txn txn(impl.heap());
        const uint64_t image = 1;
        for (uint64_t i = 1; i <= kTargets; ++i) txn.redo(&words[i * kApart], &image, sizeof image);
        medium.refuse_here(medium.persists() + 1, true);
        ASSERT_TRUE(test::fails_with(ErrorCode::kIo, [&] { txn.commit_redo([] {}); }));
      }
      medium.refuse_here(medium.persists() + persist, true);
      try {
        Pool::open(path, forced);
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the power fails
      }
      goes_on = medium.refused();
      if (!goes_on) break;
      std::filesystem::rename(medium.make_image(Image::kMixed, seed), path);
      Pool pool = Pool::open(path);
      const auto* words = pm::impl_of(pool).at<uint64_t>(block);
      for (uint64_t i = 2; i <= kTargets; ++i)
        EXPECT_EQ(words[i * kApart], words[kApart]) << "persist " << persist << ", image " << seed;
    }
  }
  EXPECT_GE(persist, 3U);
}

}  // namespace
}  // namespace perdure::pm
