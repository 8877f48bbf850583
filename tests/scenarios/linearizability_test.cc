// The judge of the concurrent scenarios, on histories whose verdict is known.
#include "support/linearizability.h"

#include <gtest/gtest.h>

namespace perdure::test {
namespace {

TEST(Linearizability, AcceptsWhatHappensInOrder) {
  EXPECT_TRUE(linearizable({}, {}));
  EXPECT_TRUE(linearizable({}, {{Call::kInsert, true, 1, 1, 2},
                                {Call::kInsert, false, 2, 3, 4},
                                {Call::kLookup, true, 1, 5, 6},
                                {Call::kUpdate, true, 3, 7, 8},
                                {Call::kRemove, true, 0, 9, 10},
                                {Call::kUpdate, false, 4, 11, 12},
                                {Call::kRemove, false, 0, 13, 14},
                                {Call::kLookup, false, 0, 15, 16},
                                {Call::kUpsert, true, 5, 17, 18},
                                {Call::kLookup, true, 5, 19, 20}}));
  EXPECT_TRUE(linearizable(7, {{Call::kLookup, true, 7, 1, 2}}));
}

TEST(Linearizability, AcceptsEitherOrderOfWhatOverlaps) {
  for (const uint64_t winner : {1, 2}) {
    EXPECT_TRUE(linearizable({}, {{Call::kUpsert, true, 1, 1, 10},
                                  {Call::kUpsert, true, 2, 2, 9},
                                  {Call::kLookup, true, winner, 11, 12}}));
  }
  // A reader may see a write before the writer returns, or not.
  EXPECT_TRUE(linearizable(5, {{Call::kUpsert, true, 6, 1, 10},
                               {Call::kLookup, true, 5, 2, 3},
                               {Call::kLookup, true, 6, 4, 5}}));
}

TEST(Linearizability, RejectsALostUpdate) {
  EXPECT_FALSE(linearizable({}, {{Call::kUpsert, true, 1, 1, 2}, {Call::kLookup, false, 0, 3, 4}}));
  EXPECT_FALSE(linearizable(1, {{Call::kUpdate, true, 2, 1, 2}, {Call::kLookup, true, 1, 3, 4}}));
}

TEST(Linearizability, JudgesComparisons) {
  const auto exchange = [](bool result, uint64_t expected, uint64_t value, uint64_t at) {
    return Event{Call::kExchange, result, value, at, at + 1, expected};
  };
  const auto remove_if = [](bool result, uint64_t expected, uint64_t at) {
    return Event{Call::kRemoveIf, result, 0, at, at + 1, expected};
  };
  EXPECT_TRUE(
      linearizable(1, {exchange(false, 2, 3, 1), exchange(true, 1, 2, 3), remove_if(false, 1, 5),
                       remove_if(true, 2, 7), exchange(false, 2, 3, 9), remove_if(false, 0, 11)}));
  EXPECT_FALSE(linearizable(1, {exchange(true, 2, 3, 1)}));
  EXPECT_FALSE(linearizable(1, {exchange(false, 1, 3, 1)}));
  EXPECT_FALSE(linearizable({}, {exchange(true, 0, 3, 1)}));
  EXPECT_FALSE(linearizable(1, {remove_if(true, 2, 1)}));
  EXPECT_FALSE(linearizable(1, {remove_if(true, 1, 1), {Call::kLookup, true, 1, 5, 6}}));
  // Two that expect the same cannot both win.
  EXPECT_FALSE(
      linearizable(1, {{Call::kExchange, true, 2, 1, 10, 1}, {Call::kExchange, true, 3, 2, 9, 1}}));
}

TEST(Linearizability, RejectsAReaderThatGoesBack) {
  EXPECT_FALSE(linearizable(5, {{Call::kUpsert, true, 6, 1, 10},
                                {Call::kLookup, true, 6, 2, 3},
                                {Call::kLookup, true, 5, 4, 5}}));
}

TEST(Linearizability, RejectsTwoWinners) {
  EXPECT_FALSE(linearizable({}, {{Call::kInsert, true, 1, 1, 10}, {Call::kInsert, true, 2, 2, 9}}));
  EXPECT_FALSE(linearizable(1, {{Call::kRemove, true, 0, 1, 10}, {Call::kRemove, true, 0, 2, 9}}));
}

TEST(Linearizability, RejectsAValueThatNobodyWrote) {
  EXPECT_FALSE(linearizable({}, {{Call::kUpsert, true, 1, 1, 10}, {Call::kLookup, true, 3, 2, 9}}));
}

TEST(Linearizability, RejectsARemovedKeyThatComesBack) {
  EXPECT_FALSE(linearizable(1, {{Call::kRemove, true, 0, 1, 4},
                                {Call::kLookup, false, 0, 2, 3},
                                {Call::kLookup, true, 1, 5, 6}}));
}

}  // namespace
}  // namespace perdure::test
