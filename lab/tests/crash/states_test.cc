// Which crash states of a moment are looked at.
#include "lab/crash/states.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "crash/trace_builder.h"

namespace perdure::lab::crash {
namespace {

// The states after a whole trace, as contents of the first words of the lines 0, 1, ...
class States {
 public:
  States(const TraceBuilder& builder, size_t lines, const StateLimits& limits,
         uint32_t recent_from = 0)
      : lines_(lines), image_(builder.trace().region_bytes) {
    PendingMemory memory(builder.trace(), Domain::kLine, image_.data());
    while (memory.position() < builder.trace().events.size()) memory.step();
    const RecentFrom recent(8, recent_from);
    complete = for_each_state(memory, limits, recent, 1, [&](const CrashState& state) {
      const auto contents = contents_of(state);
      all.insert(contents);
      // The hash stands for the image.
      const auto [known, fresh] = hashes_.emplace(state.hash);
      if (fresh) images_.insert(contents);
      return true;
    });
    hash_is_content = hashes_.size() == images_.size() && images_.size() == all.size();
  }

  bool has(const std::vector<uint64_t>& contents) const { return all.contains(contents); }

  bool complete = false;
  bool hash_is_content = false;
  std::set<std::vector<uint64_t>> all;

 private:
  std::vector<uint64_t> contents_of(const CrashState& state) const {
    std::vector<uint64_t> contents;
    for (uint64_t line = 0; line < lines_; ++line) {
      uint64_t value = 0;
      std::memcpy(&value, image_.data() + 64 * line, sizeof value);
      for (const Word& word : state.words) {
        if (word.offset == 64 * line) value = word.value;
      }
      contents.push_back(value);
    }
    return contents;
  }

  size_t lines_;
  std::vector<unsigned char> image_;
  std::set<uint64_t> hashes_;
  std::set<std::vector<uint64_t>> images_;
};

TraceBuilder lines_once(uint64_t count) {
  TraceBuilder builder;
  for (uint64_t line = 0; line < count; ++line) builder.store(64 * line, {line + 1});
  return builder;
}

TEST(CompleteStates, AreOneWhenNothingIsPending) {
  const States states(TraceBuilder().store(0, {1}).flush(0).fence(), 1, {});
  EXPECT_TRUE(states.complete);
  EXPECT_EQ(states.all, (std::set<std::vector<uint64_t>>{{1}}));
}

TEST(CompleteStates, AreTheProductOverLines) {
  EXPECT_EQ(States(lines_once(1), 1, {}).all.size(), 2U);
  EXPECT_EQ(States(lines_once(4), 4, {}).all.size(), 16U);
  const States six(lines_once(6), 6, {});
  EXPECT_TRUE(six.complete);
  EXPECT_EQ(six.all.size(), 64U);
  EXPECT_TRUE(six.hash_is_content);
}

TEST(CompleteStates, CountEveryPrefixOfALine) {
  TraceBuilder builder;
  builder.store(0, {1}).store(0, {2}).store(0, {3}).store(64, {1}).store(128, {1}).store(128, {2});
  const States states(builder, 3, {});
  EXPECT_TRUE(states.complete);
  EXPECT_EQ(states.all.size(), 4U * 2U * 3U);
}

TEST(CompleteStates, EndAtTheirBound) {
  StateLimits limits;
  limits.complete_max = 15;
  EXPECT_FALSE(States(lines_once(4), 4, limits).complete);
  limits.complete_max = 16;
  EXPECT_TRUE(States(lines_once(4), 4, limits).complete);
}

TEST(CompleteStates, AreNotClaimedWhenALineHasMoreThanIsAsked) {
  TraceBuilder builder;
  for (uint64_t i = 1; i <= 10; ++i) builder.store(0, {i});
  StateLimits limits;
  limits.options_per_line_max = 5;
  EXPECT_FALSE(States(builder, 1, limits).complete);
  limits.options_per_line_max = 11;
  EXPECT_TRUE(States(builder, 1, limits).complete);
}

TEST(CoveringSample, HasNoneAllEachAloneAndAllButOne) {
  constexpr uint64_t kLines = 12;  // 4096 combinations
  const States states(lines_once(kLines), kLines, {});
  EXPECT_FALSE(states.complete);
  EXPECT_LT(states.all.size(), 100U);
  std::vector<uint64_t> none(kLines);
  std::vector<uint64_t> all(kLines);
  for (uint64_t line = 0; line < kLines; ++line) all[line] = line + 1;
  EXPECT_TRUE(states.has(none));
  EXPECT_TRUE(states.has(all));
  for (uint64_t line = 0; line < kLines; ++line) {
    auto alone = none;
    auto all_but = all;
    alone[line] = line + 1;
    all_but[line] = 0;
    EXPECT_TRUE(states.has(alone)) << line;
    EXPECT_TRUE(states.has(all_but)) << line;
  }
}

TEST(CoveringSample, HasPairsAndRandomOnes) {
  StateLimits limits;
  limits.random = 0;
  limits.pairs_max = 0;
  const size_t without = States(lines_once(12), 12, limits).all.size();
  limits.pairs_max = 10;
  const size_t with_pairs = States(lines_once(12), 12, limits).all.size();
  limits.random = 10;
  const size_t with_random = States(lines_once(12), 12, limits).all.size();
  EXPECT_GT(with_pairs, without);
  EXPECT_GT(with_random, with_pairs);
}

TEST(CoveringSample, IsTheSameEachTime) {
  EXPECT_EQ(States(lines_once(14), 14, {}).all, States(lines_once(14), 14, {}).all);
}

TEST(OldLines, AreTakenTogether) {
  TraceBuilder builder = lines_once(3);
  builder.store(64 * 3, {4});
  const States states(builder, 4, {}, 3);
  EXPECT_TRUE(states.complete);
  EXPECT_EQ(states.all, (std::set<std::vector<uint64_t>>{
                            {0, 0, 0, 0}, {0, 0, 0, 4}, {1, 2, 3, 0}, {1, 2, 3, 4}}));
}

// By thread: an operation in flight for long has its stores taken apart, while another's are old.
TEST(OldLines, AreOldForTheirThread) {
  TraceBuilder builder;
  builder.thread(1).store(0, {1}).store(64, {2});
  builder.thread(2).store(128, {3}).store(192, {4});
  std::vector<unsigned char> image(builder.trace().region_bytes);
  PendingMemory memory(builder.trace(), Domain::kLine, image.data());
  while (memory.position() < builder.trace().events.size()) memory.step();
  std::set<uint64_t> images;
  for_each_state(memory, {}, {0, 0, 100}, 1, [&](const CrashState& state) {
    images.insert(state.hash);
    return true;
  });
  EXPECT_EQ(images.size(), 8U);  // two lines of thread 1 and those of thread 2 together
}

TEST(StatesApart, HaveTheLastLinesAndNoneBefore) {
  const TraceBuilder builder = lines_once(20);
  std::vector<unsigned char> image(builder.trace().region_bytes);
  PendingMemory memory(builder.trace(), Domain::kLine, image.data());
  while (memory.position() < builder.trace().events.size()) memory.step();
  for (const uint32_t split : {0U, 13U, 19U, 20U}) {
    const CrashState state = state_apart_at(memory, split);
    ASSERT_EQ(state.words.size(), 20 - split);
    for (const Word& word : state.words) EXPECT_GE(word.offset, 64 * split);
  }
  // Of the drawn ones many have the last line alone, and all are drawn again alike.
  size_t last_alone = 0;
  std::set<uint64_t> images;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const CrashState state = state_apart(memory, seed);
    EXPECT_EQ(state.hash, state_apart(memory, seed).hash);
    images.insert(state.hash);
    last_alone += state.hash == state_apart_at(memory, 19).hash ? 1 : 0;
  }
  EXPECT_GT(last_alone, 30U);
  EXPECT_GT(images.size(), 20U);
}

// Of a line that is named what came before the event is there; of others all.
TEST(StateWithout, LacksTheLinesThatAreNamedFromAnEventOn) {
  TraceBuilder builder;
  builder.store(0, {1}).store(64, {2}).store(64, {3}).store(128, {4});
  std::vector<unsigned char> image(builder.trace().region_bytes);
  PendingMemory memory(builder.trace(), Domain::kLine, image.data());
  while (memory.position() < builder.trace().events.size()) memory.step();
  const CrashState state = state_without(memory, {{0, 0}, {1, 2}});
  EXPECT_EQ(state.words, (std::vector<Word>{{64, 2}, {128, 4}}));
  EXPECT_EQ(state_without(memory, {}).hash, state_apart_at(memory, 0).hash);
  EXPECT_NE(state.hash, state_apart_at(memory, 0).hash);
  std::set<uint64_t> images;  // of the line that is not named, with and without it
  for (uint64_t seed = 1; seed < 20; ++seed)
    images.insert(state_without(memory, {{0, 0}, {1, 2}}, seed).hash);
  EXPECT_EQ(images.size(), 2U);
  EXPECT_TRUE(images.contains(state.hash));
}

// The sample of a moment with many lines has them, too.
TEST(CoveringSample, HasTheLastLinesAlone) {
  StateLimits limits;
  limits.apart = 14;
  const States states(lines_once(14), 14, limits);
  for (uint64_t first = 0; first < 14; ++first) {
    std::vector<uint64_t> contents(14);
    for (uint64_t line = first; line < 14; ++line) contents[line] = line + 1;
    EXPECT_TRUE(states.has(contents)) << first;
  }
}

TEST(Visiting, EndsWhenTheVisitorHasEnough) {
  const TraceBuilder builder = lines_once(6);
  std::vector<unsigned char> image(builder.trace().region_bytes);
  PendingMemory memory(builder.trace(), Domain::kLine, image.data());
  while (memory.position() < builder.trace().events.size()) memory.step();
  int visits = 0;
  for_each_state(memory, {}, {}, 1, [&](const CrashState&) { return ++visits < 5; });
  EXPECT_EQ(visits, 5);
}

}  // namespace
}  // namespace perdure::lab::crash
