// What an index may hold after a crash.
#include "lab/crash/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace perdure::lab::crash {
namespace {

using Held = Oracle::Held;
using Counts = std::map<uint32_t, uint32_t>;

constexpr Held kNothing = std::nullopt;

void run(Oracle& oracle, const Step& step, const Answer& answer, uint32_t thread = 0) {
  oracle.begin(thread, step);
  oracle.end(thread, answer);
}

std::set<Held> allowed(const Oracle& oracle, uint32_t key) {
  const auto all = oracle.allowed();
  const auto found = all.find(key);
  return found == all.end() ? std::set<Held>{kNothing} : found->second;
}

bool accepts(const Oracle& oracle, const Counts& contents) {
  uint64_t digest = 0;
  for (const auto& [key, value] : contents) digest ^= record_digest(key, value);
  const auto digests = oracle.digests();
  const bool accepted = std::find(digests.begin(), digests.end(), digest) != digests.end();
  // Digests and words say the same.
  EXPECT_EQ(accepted, oracle.difference(contents, 5).empty());
  return accepted;
}

TEST(OracleOneThread, WhatReturnedIsThere) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  run(oracle, {Verb::kUpsert, 2, 20}, {});
  run(oracle, {Verb::kUpdate, 1, 11}, {.yes = true});
  run(oracle, {Verb::kRemove, 2, 0}, {.yes = true});
  run(oracle, {Verb::kInsert, 3, 30}, {.yes = true});
  EXPECT_TRUE(oracle.contradiction().empty());
  EXPECT_TRUE(accepts(oracle, {{1, 11}, {3, 30}}));
  EXPECT_FALSE(accepts(oracle, {{1, 10}, {3, 30}}));
  EXPECT_FALSE(accepts(oracle, {{1, 11}}));
  EXPECT_FALSE(accepts(oracle, {{1, 11}, {2, 20}, {3, 30}}));
  EXPECT_FALSE(accepts(oracle, {{1, 11}, {3, 30}, {4, 40}}));
}

// What a dead process left in the caches is seen, and may be lost until the key is changed.
TEST(OracleAfterADeath, AnyOutcomeHoldsUntilAChange) {
  Oracle oracle;
  oracle.found_unsettled(1, Held(10), {kNothing, 10});
  oracle.found_unsettled(2, kNothing, {kNothing, 20});
  oracle.found_unsettled(3, Held(30), {30});
  EXPECT_EQ(oracle.unsettled().size(), 2U);
  run(oracle, {Verb::kInsert, 1, 11}, {.yes = false});
  run(oracle, {Verb::kRemove, 2, 0}, {.yes = false});
  run(oracle, {Verb::kCheckpoint, 0, 0}, {});
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{kNothing, 10}));
  EXPECT_EQ(allowed(oracle, 2), (std::set<Held>{kNothing, 20}));
  EXPECT_EQ(allowed(oracle, 3), (std::set<Held>{30}));
  oracle.begin(0, {Verb::kUpsert, 1, 12});
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{kNothing, 10, 12}));
  oracle.end(0, {});
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{12}));
  run(oracle, {Verb::kInsert, 2, 21}, {.yes = true});
  EXPECT_EQ(allowed(oracle, 2), (std::set<Held>{21}));
  EXPECT_TRUE(oracle.unsettled().empty());
  EXPECT_TRUE(oracle.contradiction().empty());
}

// As a batch has them: the second record of a key comes after the first.
TEST(OracleBatch, HasAnOrderWithinAKey) {
  Oracle oracle;
  oracle.begin(0, {Verb::kUpsert, 7, 1});
  oracle.begin(1, {Verb::kUpsert, 7, 2}, 0);
  oracle.begin(2, {Verb::kUpsert, 8, 3});
  EXPECT_EQ(allowed(oracle, 7), (std::set<Held>{kNothing, 1, 2}));
  for (uint32_t lane = 0; lane < 3; ++lane) oracle.end(lane, {});
  EXPECT_EQ(allowed(oracle, 7), (std::set<Held>{2}));
  EXPECT_EQ(allowed(oracle, 8), (std::set<Held>{3}));
  EXPECT_EQ(oracle.contradiction(), "");
  // Without an order either may be the last.
  oracle.begin(0, {Verb::kUpsert, 7, 4});
  oracle.begin(1, {Verb::kUpsert, 7, 5});
  for (uint32_t lane = 0; lane < 2; ++lane) oracle.end(lane, {});
  EXPECT_EQ(allowed(oracle, 7), (std::set<Held>{4, 5}));
}

TEST(OracleOneThread, WhatIsInFlightIsThereOrNot) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  oracle.begin(0, {Verb::kUpdate, 1, 11});
  EXPECT_TRUE(accepts(oracle, {{1, 10}}));
  EXPECT_TRUE(accepts(oracle, {{1, 11}}));
  EXPECT_FALSE(accepts(oracle, {}));
  EXPECT_FALSE(accepts(oracle, {{1, 12}}));
  oracle.end(0, {.yes = true});
  EXPECT_FALSE(accepts(oracle, {{1, 10}}));
}

TEST(OracleOneThread, AnOperationThatChangesNothingLeavesOneChoice) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  oracle.begin(0, {Verb::kInsert, 1, 99});
  EXPECT_EQ(allowed(oracle, 1), std::set<Held>{10U});
  oracle.end(0, {.yes = false});
  oracle.begin(0, {Verb::kUpdate, 2, 20});
  EXPECT_EQ(allowed(oracle, 2), std::set<Held>{kNothing});
}

TEST(OracleOneThread, WrongAnswersAreContradictions) {
  const struct {
    Step step;
    Answer answer;
  } cases[] = {{{Verb::kInsert, 1, 5}, {.yes = true}},  {{Verb::kUpdate, 2, 5}, {.yes = true}},
               {{Verb::kRemove, 1, 0}, {.yes = false}}, {{Verb::kLookup, 1, 0}, {.yes = false}},
               {{Verb::kLookup, 1, 0}, {.value = 9}},   {{Verb::kLookup, 2, 0}, {.value = 10}},
               {{Verb::kUpdate, 1, 5}, {.yes = false}}};
  for (const auto& wrong : cases) {
    Oracle oracle;
    run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
    run(oracle, wrong.step, wrong.answer);
    EXPECT_FALSE(oracle.contradiction().empty()) << to_string(wrong.step.verb);
  }
}

TEST(OracleOneThread, AnOperationWithoutRoomDidNothing) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  run(oracle, {Verb::kUpdate, 1, 11}, {.full = true});
  run(oracle, {Verb::kInsert, 2, 20}, {.full = true});
  EXPECT_TRUE(oracle.contradiction().empty());
  EXPECT_TRUE(accepts(oracle, {{1, 10}}));
  EXPECT_FALSE(accepts(oracle, {{1, 11}}));
  EXPECT_FALSE(accepts(oracle, {{1, 10}, {2, 20}}));
}

TEST(OracleThreads, InFlightTogetherAllowAllOrders) {
  Oracle oracle;
  oracle.begin(0, {Verb::kUpsert, 1, 10});
  oracle.begin(1, {Verb::kUpsert, 1, 11});
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{kNothing, 10U, 11U}));
  oracle.end(0, {});
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{10U, 11U}));
  oracle.end(1, {});
  // Either may have been the last.
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{10U, 11U}));
  // A later reader tells which.
  run(oracle, {Verb::kLookup, 1, 0}, {.value = 10});
  EXPECT_EQ(allowed(oracle, 1), std::set<Held>{10U});
  run(oracle, {Verb::kLookup, 1, 0}, {.value = 11});
  EXPECT_FALSE(oracle.contradiction().empty());
}

TEST(OracleThreads, OneOfTwoInsertsSucceeds) {
  Oracle oracle;
  oracle.begin(0, {Verb::kInsert, 1, 10});
  oracle.begin(1, {Verb::kInsert, 1, 11});
  oracle.end(0, {.yes = false});
  // The other one has taken effect, though it has not returned.
  EXPECT_EQ(allowed(oracle, 1), std::set<Held>{11U});
  oracle.end(1, {.yes = true});
  EXPECT_TRUE(oracle.contradiction().empty());
  EXPECT_EQ(allowed(oracle, 1), std::set<Held>{11U});
}

TEST(OracleThreads, BothInsertsCannotSucceed) {
  Oracle oracle;
  oracle.begin(0, {Verb::kInsert, 1, 10});
  oracle.begin(1, {Verb::kInsert, 1, 11});
  oracle.end(0, {.yes = true});
  oracle.end(1, {.yes = true});
  EXPECT_FALSE(oracle.contradiction().empty());
}

TEST(OracleThreads, WhatAReaderSawStays) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  oracle.begin(0, {Verb::kUpdate, 1, 11});
  run(oracle, {Verb::kLookup, 1, 0}, {.value = 11}, 1);
  // Its writer has not returned; still no crash may take it away.
  EXPECT_EQ(allowed(oracle, 1), std::set<Held>{11U});
}

TEST(OracleThreads, WhatAReaderDidNotSeeMayComeLater) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  oracle.begin(0, {Verb::kUpdate, 1, 11});
  run(oracle, {Verb::kLookup, 1, 0}, {.value = 10}, 1);
  EXPECT_EQ(allowed(oracle, 1), (std::set<Held>{10U, 11U}));
}

TEST(OracleThreads, WithoutRoomNothingCanHaveBeenSeen) {
  Oracle oracle;
  oracle.begin(0, {Verb::kInsert, 1, 10});
  oracle.begin(1, {Verb::kInsert, 1, 11});
  oracle.end(1, {.yes = false});  // because the first was there
  oracle.end(0, {.full = true});  // which it now denies
  EXPECT_FALSE(oracle.contradiction().empty());
}

TEST(OracleThreads, WithoutRoomTheOthersGoOn) {
  Oracle oracle;
  oracle.begin(0, {Verb::kUpsert, 1, 10});
  oracle.begin(1, {Verb::kUpsert, 1, 11});
  oracle.end(1, {});
  oracle.end(0, {.full = true});
  EXPECT_TRUE(oracle.contradiction().empty());
  EXPECT_EQ(allowed(oracle, 1), std::set<Held>{11U});
}

TEST(OracleThreads, DigestsHaveAllCombinationsOfKeys) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 5, 50}, {.yes = true});
  oracle.begin(0, {Verb::kUpsert, 1, 10});
  oracle.begin(1, {Verb::kUpsert, 2, 20});
  oracle.begin(2, {Verb::kRemove, 5, 0});
  EXPECT_EQ(oracle.digests().size(), 8U);
  EXPECT_TRUE(accepts(oracle, {}));
  EXPECT_TRUE(accepts(oracle, {{1, 10}, {5, 50}}));
  EXPECT_TRUE(accepts(oracle, {{1, 10}, {2, 20}}));
  EXPECT_FALSE(accepts(oracle, {{1, 20}}));
}

TEST(OracleWords, NameTheKeyAndWhatItMustHold) {
  Oracle oracle;
  run(oracle, {Verb::kInsert, 1, 10}, {.yes = true});
  oracle.begin(0, {Verb::kUpdate, 1, 11});
  const std::string text = oracle.difference({{1, 12}, {7, 70}}, 5);
  EXPECT_NE(text.find("key 1 holds value 12"), std::string::npos) << text;
  EXPECT_NE(text.find("value 10 or value 11"), std::string::npos) << text;
  EXPECT_NE(text.find("key 7 holds value 70, and must hold nothing"), std::string::npos) << text;
  EXPECT_NE(oracle.difference({{1, 12}, {7, 70}}, 1).find("1 more"), std::string::npos);
}

}  // namespace
}  // namespace perdure::lab::crash
