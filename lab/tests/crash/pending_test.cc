// What may and what must be in persistent memory, rule by rule.
#include "lab/crash/pending.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "crash/trace_builder.h"

namespace perdure::lab::crash {
namespace {

// A memory after a whole trace, and the contents of words that it allows.
class After {
 public:
  explicit After(const TraceBuilder& builder, Domain domain = Domain::kLine,
                 PendingMemory::Drops drops = {})
      : image_(builder.trace().region_bytes),
        memory_(builder.trace(), domain, image_.data(), std::move(drops)) {
    while (memory_.position() < builder.trace().events.size()) memory_.step();
  }

  uint64_t durable(uint64_t offset) const { return memory_.word(offset); }
  size_t pending_lines() const { return memory_.pending().size(); }
  const PendingMemory& memory() const { return memory_; }

  using Contents = std::vector<uint64_t>;
  // Everything that words of one line may hold after a crash.
  std::set<Contents> allowed(const std::vector<uint64_t>& offsets) const {
    std::set<Contents> all;
    const auto add = [&](const std::vector<Word>& words) {
      Contents contents;
      for (const uint64_t offset : offsets) {
        uint64_t value = memory_.word(offset);
        for (const Word& word : words) {
          if (word.offset == offset) value = word.value;
        }
        contents.push_back(value);
      }
      all.insert(contents);
    };
    add({});
    for (const auto& [number, line] : memory_.pending()) {
      for (const LineOption& option : memory_.options(line, 1000)) add(option.words);
    }
    return all;
  }

 private:
  std::vector<unsigned char> image_;
  PendingMemory memory_;
};

using Set = std::set<std::vector<uint64_t>>;

TEST(PendingLine, TakesPrefixesInProgramOrder) {
  const After after(TraceBuilder().store(0, {1}).store(8, {2}).store(16, {3}));
  EXPECT_EQ(after.allowed({0, 8, 16}), (Set{{0, 0, 0}, {1, 0, 0}, {1, 2, 0}, {1, 2, 3}}));
}

TEST(PendingLine, MayHoldAnyOldValueOfAWord) {
  const After after(TraceBuilder().held(0, 7).store(0, {8}).store(0, {9}));
  EXPECT_EQ(after.allowed({0}), (Set{{7}, {8}, {9}}));
}

TEST(PendingLine, SeveralLinesAreIndependent) {
  const After after(TraceBuilder().store(0, {1}).store(64, {2}));
  ASSERT_EQ(after.pending_lines(), 2U);
  EXPECT_EQ(after.allowed({0, 64}), (Set{{0, 0}, {1, 0}, {0, 2}}));
}

TEST(PendingLine, StoreOfTheSameValueIsNone) {
  const After after(TraceBuilder().held(0, 7).store(0, {7}));
  EXPECT_EQ(after.pending_lines(), 0U);
}

TEST(TornStore, HasAnyOfItsWords) {
  const After after(TraceBuilder().store(0, {1, 2}));
  EXPECT_EQ(after.allowed({0, 8}), (Set{{0, 0}, {1, 0}, {0, 2}, {1, 2}}));
}

TEST(TornStore, ComesAfterTheStoresBeforeIt) {
  const After after(TraceBuilder().store(16, {9}).store(0, {1, 2}));
  EXPECT_EQ(after.allowed({0, 8, 16}),
            (Set{{0, 0, 0}, {0, 0, 9}, {1, 0, 9}, {0, 2, 9}, {1, 2, 9}}));
}

TEST(TornStore, AlignedWordIsWhole) {
  const After after(TraceBuilder().store(8, {0x1111222233334444}));
  EXPECT_EQ(after.allowed({8}), (Set{{0}, {0x1111222233334444}}));
}

TEST(TornStore, UnalignedWordMayTear) {
  const uint64_t ones = ~uint64_t{0};
  const After after(TraceBuilder().store_bytes(4, &ones, 8));
  const uint64_t high = 0xffffffff00000000;
  const uint64_t low = 0x00000000ffffffff;
  EXPECT_EQ(after.allowed({0, 8}), (Set{{0, 0}, {high, 0}, {0, low}, {high, low}}));
}

TEST(TornStore, BytesBesideItStay) {
  const unsigned char byte = 0xaa;
  const After after(TraceBuilder().held(0, 0x1122334455667788).store_bytes(2, &byte, 1));
  EXPECT_EQ(after.allowed({0}), (Set{{0x1122334455667788}, {0x1122334455aa7788}}));
}

TEST(Fence, MakesFlushedLinesDurable) {
  const After after(TraceBuilder().store(0, {1}).flush(0).fence());
  EXPECT_EQ(after.durable(0), 1U);
  EXPECT_EQ(after.pending_lines(), 0U);
}

TEST(Fence, DoesNothingWithoutAFlush) {
  const After after(TraceBuilder().store(0, {1}).fence());
  EXPECT_EQ(after.allowed({0}), (Set{{0}, {1}}));
}

TEST(Fence, IsNeededAfterAFlush) {
  const After after(TraceBuilder().store(0, {1}).flush(0));
  EXPECT_EQ(after.allowed({0}), (Set{{0}, {1}}));
}

TEST(Fence, CoversWhatWasStoredBeforeTheFlush) {
  const After after(TraceBuilder().store(0, {1}).flush(0).store(8, {2}).fence());
  EXPECT_EQ(after.allowed({0, 8}), (Set{{1, 0}, {1, 2}}));
}

TEST(Fence, IsOfItsThread) {
  TraceBuilder builder;
  builder.thread(0).store(0, {1}).flush(0).thread(1).fence();
  EXPECT_EQ(After(builder).allowed({0}), (Set{{0}, {1}}));
  builder.thread(0).fence();
  EXPECT_EQ(After(builder).durable(0), 1U);
}

TEST(Fence, CoversWhatItsThreadFlushedOfOthers) {
  const After after(TraceBuilder().thread(0).store(0, {1}).thread(1).flush(0).fence());
  EXPECT_EQ(after.durable(0), 1U);
}

TEST(Fence, CoversAllLinesOfARange) {
  const After after(
      TraceBuilder().store(56, {1}).store(64, {2}).store(128, {3}).flush(60, 8).fence());
  EXPECT_EQ(after.durable(56), 1U);
  EXPECT_EQ(after.durable(64), 2U);
  EXPECT_EQ(after.durable(128), 0U);
}

TEST(Fence, OfALockedInstruction) {
  const After locked(TraceBuilder().store(0, {1}).flush(0).locked());
  EXPECT_EQ(locked.durable(0), 1U);
  // Its own store comes after the fence that it is.
  const After update(TraceBuilder().store(0, {1}).flush(0).update(8, 2));
  EXPECT_EQ(update.allowed({0, 8}), (Set{{1, 0}, {1, 2}}));
}

TEST(Fence, MayBeTakenForNothing) {
  TraceBuilder builder;
  builder.store(0, {1}).flush(0).fence();
  for (const EventKind kind : {EventKind::kFlush, EventKind::kFence}) {
    const auto drops = [kind](const TraceEvent& event) { return event.kind == kind; };
    EXPECT_EQ(After(builder, Domain::kLine, drops).durable(0), 0U);
  }
}

// What a flush covers is decided when it is carried out, not at its fence.
TEST(Fence, DoesNotCoverWhatCameAfterTheFlushWhenAnotherThreadWasFaster) {
  TraceBuilder builder;
  builder.thread(0).store(0, {1}).store(8, {2}).flush(0);
  builder.thread(1)
      .flush(0)
      .fence();  // both are durable, and the first thread's flush is still open
  builder.store(0, {3}).thread(0).fence();
  EXPECT_EQ(After(builder).allowed({0, 8}), (Set{{1, 2}, {3, 2}}));
}

TEST(Clflush, NeedsNoFence) {
  const After after(TraceBuilder().store(0, {1}).flush(0, 1, FlushKind::kClflush));
  EXPECT_EQ(after.durable(0), 1U);
  const After other(TraceBuilder().store(0, {1}).flush(0, 1, FlushKind::kClflushopt));
  EXPECT_EQ(other.durable(0), 0U);
}

TEST(Stream, WordsArriveInAnyOrder) {
  const After one(TraceBuilder().stream(0, {1, 2, 3}));
  const After several(TraceBuilder().stream(0, {1}).stream(8, {2}).stream(16, {3}));
  const Set any = {{0, 0, 0}, {1, 0, 0}, {0, 2, 0}, {0, 0, 3},
                   {1, 2, 0}, {1, 0, 3}, {0, 2, 3}, {1, 2, 3}};
  EXPECT_EQ(one.allowed({0, 8, 16}), any);
  EXPECT_EQ(several.allowed({0, 8, 16}), any);
}

TEST(Stream, IsDurableAfterItsThreadsFence) {
  TraceBuilder builder;
  builder.thread(0).stream(0, {1, 2}).thread(1).fence();
  EXPECT_EQ(After(builder).durable(0), 0U);
  builder.thread(0).fence();
  EXPECT_EQ(After(builder).durable(0), 1U);
  EXPECT_EQ(After(builder).durable(8), 2U);
}

TEST(Stream, MakesDurableWhatItRepeats) {
  TraceBuilder builder;
  builder.store(0, {1}).stream(0, {1, 2}).fence();
  EXPECT_EQ(After(builder).allowed({0, 8}), (Set{{1, 2}}));
}

TEST(Stream, OfAnotherThreadToTheSameLineWaitsForThatThread) {
  TraceBuilder builder;
  builder.thread(0).stream(0, {1}).thread(1).stream(8, {2}).fence();
  EXPECT_EQ(After(builder).allowed({0, 8}), (Set{{0, 2}, {1, 2}}));
}

TEST(Stream, CannotBringBackWhatALaterOneWroteOver) {
  TraceBuilder builder;
  builder.thread(0).stream(0, {1}).stream(16, {5}).thread(1).stream(0, {2}).fence();
  EXPECT_EQ(After(builder).allowed({0, 16}), (Set{{2, 0}, {2, 5}}));
}

TEST(Stream, IsNotOrderedWithStoresOfItsLine) {
  const After after(TraceBuilder().store(0, {1}).stream(8, {2}));
  EXPECT_EQ(after.allowed({0, 8}), (Set{{0, 0}, {1, 0}, {0, 2}, {1, 2}}));
}

TEST(ManyStores, OfALineAreTakenTogetherButNeverInAnImpossibleOrder) {
  TraceBuilder builder;
  for (uint64_t i = 1; i <= 60; ++i) builder.store(0, {i}).store(8, {i});
  const After after(builder);
  for (const auto& contents : after.allowed({0, 8})) {
    // The second word follows the first.
    EXPECT_TRUE(contents[0] == contents[1] || contents[0] == contents[1] + 1)
        << contents[0] << " " << contents[1];
  }
  EXPECT_TRUE(after.allowed({0, 8}).contains({60, 60}));
  EXPECT_TRUE(after.allowed({0, 8}).contains({60, 59}));
  EXPECT_TRUE(after.allowed({0, 8}).contains({0, 0}));
}

TEST(ManyStores, KeepWhatAFlushOnItsWayCovers) {
  TraceBuilder builder;
  builder.store(0, {1}).flush(0);
  for (uint64_t i = 1; i <= 60; ++i) builder.store(8, {i});
  builder.fence();
  EXPECT_EQ(After(builder).durable(0), 1U);
}

TEST(ByteDomain, StoresCountAtOnce) {
  const After after(TraceBuilder().store(0, {1}).store(64, {2}), Domain::kByte);
  EXPECT_EQ(after.durable(0), 1U);
  EXPECT_EQ(after.durable(64), 2U);
}

TEST(ByteDomain, StreamedWordsWaitForTheFence) {
  TraceBuilder builder;
  builder.stream(0, {1, 2});
  EXPECT_EQ(After(builder, Domain::kByte).allowed({0, 8}), (Set{{0, 0}, {1, 0}, {0, 2}, {1, 2}}));
  builder.fence();
  EXPECT_EQ(After(builder, Domain::kByte).durable(8), 2U);
}

TEST(ByteDomain, EveryStoreIsACrashPoint) {
  TraceBuilder builder;
  builder.store(0, {1});
  std::vector<unsigned char> image(builder.trace().region_bytes);
  EXPECT_TRUE(PendingMemory(builder.trace(), Domain::kByte, image.data()).next_is_crash_point());
  EXPECT_FALSE(PendingMemory(builder.trace(), Domain::kLine, image.data()).next_is_crash_point());
}

TEST(PageDomain, FlushesAndFencesDoNothing) {
  const After after(TraceBuilder().store(0, {1}).flush(0).fence(), Domain::kPage);
  EXPECT_EQ(after.allowed({0}), (Set{{0}, {1}}));
}

TEST(PageDomain, SyncMakesPagesDurable) {
  const After after(TraceBuilder().store(0, {1}).store(4096, {2}).sync(0, 4096), Domain::kPage);
  EXPECT_EQ(after.durable(0), 1U);
  EXPECT_EQ(after.allowed({4096}), (Set{{0}, {2}}));
}

TEST(PageDomain, SectorsOfAPageAreIndependent) {
  const After after(TraceBuilder().store(0, {1}).store(504, {2}).store(512, {3}), Domain::kPage);
  EXPECT_EQ(after.pending_lines(), 2U);
  EXPECT_EQ(after.allowed({0, 504, 512}), (Set{{0, 0, 0}, {1, 0, 0}, {1, 2, 0}, {0, 0, 3}}));
}

// Of a line that nobody flushes the history is kept short, but for that of operations in flight.
TEST(LongHistory, IsTakenTogetherOnceItsOperationHasReturned) {
  constexpr uint64_t kStores = 30;
  const auto with_history = [](bool in_flight) {
    TraceBuilder builder;
    builder.thread(1).begin();
    for (uint64_t value = 1; value <= kStores; ++value) builder.store(0, {value});
    if (!in_flight) builder.end();
    // Another's operations go on meanwhile.
    builder.thread(2).begin();
    for (uint64_t value = 1; value <= kStores; ++value) builder.store(8, {value});
    return builder;
  };
  const auto begins_with = [](const After& after) {
    return std::ranges::any_of(after.allowed({0, 8}),
                               [](const auto& held) { return held[0] == 1; });
  };
  EXPECT_TRUE(begins_with(After(with_history(true))));
  EXPECT_FALSE(begins_with(After(with_history(false))));
}

TEST(ImageHash, IsThatOfTheContent) {
  // The same content by another way, and another content.
  const After one(TraceBuilder().store(0, {1}).store(8, {2}).flush(0).fence());
  const After two(TraceBuilder().store(8, {2}).flush(8).fence().store(0, {1}).flush(0).fence());
  const After other(TraceBuilder().store(0, {2}).store(8, {1}).flush(0).fence());
  EXPECT_EQ(one.memory().durable_hash(), two.memory().durable_hash());
  EXPECT_NE(one.memory().durable_hash(), other.memory().durable_hash());
  const After pending(TraceBuilder().store(0, {1}).store(8, {2}));
  const PendingLine& line = pending.memory().pending().begin()->second;
  EXPECT_EQ(pending.memory().durable_hash() ^ pending.memory().complete(line).hash_delta,
            one.memory().durable_hash());
}

TEST(LineOptions, KeepWithinTheirLimitAndBeginWithTheCompleteOne) {
  const After after(TraceBuilder().store(0, {1, 2, 3, 4, 5, 6, 7, 8}).store(0, {9}));
  const PendingLine& line = after.memory().pending().begin()->second;
  for (const size_t max : {size_t{1}, size_t{3}, size_t{10}}) {
    const auto options = after.memory().options(line, max);
    EXPECT_EQ(options.size(), max);
    EXPECT_EQ(options.front().words, after.memory().complete(line).words);
  }
}

}  // namespace
}  // namespace perdure::lab::crash
