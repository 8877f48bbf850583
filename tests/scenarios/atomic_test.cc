// Reading and writing a key in one step: counters that several threads add to, while they run and
// when they are killed. What single calls answer is in model_test.cc, what threads see of them in
// concurrent_test.cc.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/child.h"
#include "support/complaints.h"
#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class Atomic : public ScenarioTest {
 protected:
  static constexpr uint32_t kThreads = 4;
};

// The example of people who count words: few keys, all threads.
TEST_P(Atomic, CountsOfSeveralThreadsAreExact) {
  constexpr uint64_t kWords = 40;
  constexpr uint64_t kOthers = 300;
  const uint64_t each = scaled(4000);
  Store store = create_small(MiB(256));
  const TypedIndex index = store.typed();
  Complaints complaints;
  std::vector<std::map<uint64_t, uint64_t>> counted(kThreads);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      complaints.catch_in([&] {
        Random random(base_seed() + t);
        for (uint64_t i = 0; i < each; ++i) {
          const uint64_t word = random.below(1 + random.below(kWords));  // some far more often
          index.count(word);
          ++counted[t][word];
          // Neighbours come and go, so that the counters move.
          const uint64_t other = kWords + random.below(kOthers);
          if (random.chance(15)) index.upsert(other, i);
          if (random.chance(10)) index.remove(other);
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complaints.text(), "");
  const auto expect_exact = [&] {
    for (uint64_t word = 0; word < kWords; ++word) {
      uint64_t sum = 0;
      for (auto& of_thread : counted) sum += of_thread[word];
      EXPECT_EQ(store.typed().lookup(word).value_or(0), sum) << "word " << word;
    }
  };
  expect_exact();
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
  store.close();
  store = reopen(MiB(256));
  expect_exact();
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

// Threads that take from one key and give to another, or remove what is used up: modify() with all
// its answers, beside plain calls that take and give keys, too. What is taken is given: the sum
// stays.
TEST_P(Atomic, NothingIsLostBetweenKeysThatComeAndGo) {
  constexpr uint64_t kKeys = 24;
  constexpr uint64_t kEach = 50;  // of a key at the beginning
  Store store = create_small(MiB(256));
  const TypedIndex index = store.typed();
  for (uint64_t key = 0; key < kKeys; ++key) ASSERT_TRUE(index.insert(key, kEach));
  Complaints complaints;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      complaints.catch_in([&] {
        Random random(base_seed() + t);
        const auto give = [&](uint64_t key, uint64_t amount) {
          if (random.chance(30) && index.insert(key, amount)) return;
          index.modify(key, [&](std::optional<uint64_t> before, uint64_t& after) {
            after = before.value_or(0) + amount;
            return Change::kWrite;
          });
        };
        const auto take = [&](uint64_t key, uint64_t amount) {
          return index.modify(key, [&](std::optional<uint64_t> before, uint64_t& after) {
            if (!before || *before < amount) return Change::kKeep;
            after = *before - amount;
            return after == 0 ? Change::kRemove : Change::kWrite;
          });
        };
        for (uint64_t i = 0; i < scaled(3000); ++i) {
          const uint64_t amount = 1 + random.below(30);
          if (take(random.below(kKeys), amount) != Change::kKeep) give(random.below(kKeys), amount);
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complaints.text(), "");
  uint64_t sum = 0;
  index.for_each([&](uint64_t, uint64_t value) {
    EXPECT_NE(value, 0U);  // what is used up is removed
    sum += value;
  });
  EXPECT_EQ(sum, kKeys * kEach);
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Atomic, IncrementIsForWords) {
  Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  const Value one = key(1);
  if (index.value_kind() != Kind::kU64) {
    EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { index.increment(one.datum()); }));
    return;
  }
  EXPECT_EQ(index.increment(one.datum()), 1U);
  EXPECT_EQ(index.increment(one.datum(), 41), 42U);
  EXPECT_EQ(index.increment(one.datum(), -2), 40U);
  EXPECT_EQ(index.increment(one.datum(), -41), ~uint64_t{0});  // modulo 2^64
  EXPECT_EQ(index.increment(one.datum()), 0U);                 // which is a value, not absence
  Value out;
  EXPECT_TRUE(index.lookup(one.datum(), out));
}

TEST_P(Atomic, RefusesDataOfTheWrongKind) {
  Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  const Value good_key = key(1);
  const Value good_value = value(1);
  const auto other = [](Kind kind) { return kind == Kind::kU64 ? Datum("text") : Datum(7); };
  const Datum bad_key = other(index.key_kind());
  const Datum bad_value = other(index.value_kind());
  index.insert(good_key.datum(), good_value.datum());
  const auto refused = [&](Datum k, Datum expected, Datum desired) {
    return fails_with(ErrorCode::kWrongType, [&] { index.compare_exchange(k, expected, desired); });
  };
  EXPECT_TRUE(refused(bad_key, good_value.datum(), good_value.datum()));
  EXPECT_TRUE(refused(good_key.datum(), bad_value, good_value.datum()));
  EXPECT_TRUE(refused(good_key.datum(), good_value.datum(), bad_value));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType,
                         [&] { index.compare_remove(good_key.datum(), bad_value); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] {
    index.modify(good_key.datum(), [&](const Value*, Value& after) {
      if (bad_value.kind() == Kind::kU64) {
        after.set(bad_value.word());
      } else {
        after.set_bytes() = bad_value.bytes();
      }
      return Change::kWrite;
    });
  }));
  EXPECT_EQ(difference(store.typed(), {{1, 1}}, 3), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Atomic, wanted(concurrent_cases()), case_name);

// A child counts on all threads and tells each sum that it got; it is killed. What it told is
// there.
class KilledCounters : public Atomic {
 protected:
  static constexpr uint64_t kCounters = 12;
  struct Told {
    uint64_t counter;
    uint64_t sum;
  };
  using Sums = std::array<uint64_t, kCounters>;

  static void count_and_tell(TypedIndex index, uint64_t seed, int out) {
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([=] {
        Random random(seed + t);
        for (;;) {
          const uint64_t counter = random.below(1 + random.below(kCounters));
          const Told told{counter, index.count(counter)};
          send(out, &told, sizeof told);
          if (random.chance(30)) index.upsert(kCounters + random.below(200), told.sum);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_P(KilledCounters, NeverGoBackBelowWhatWasAcknowledged) {
  constexpr uint64_t kCapacityBytes = uint64_t{128} << 20;
  create_small(kCapacityBytes).close();
  Sums before{};  // of each counter, when the child began
  for (uint64_t round = 0; round < std::max<uint64_t>(3, scaled(6)); ++round) {
    const uint64_t seed = random_.next();
    Child child([&](int out) {
      const auto* store = new Store(reopen(kCapacityBytes));  // never closed
      count_and_tell(store->typed(), seed, out);
    });
    const uint64_t enough = random_.below(uint64_t{1} << (3 + random_.below(10)));
    Sums highest = before;
    uint64_t acknowledged = 0;
    Told told{};
    const auto receive = [&] {
      if (!child.receive(&told, sizeof told)) return false;
      highest[told.counter] = std::max(highest[told.counter], told.sum);
      return ++acknowledged > 0;
    };
    while (acknowledged < enough && receive()) {
    }
    child.kill();
    while (receive()) {  // what it told before it died
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    ASSERT_GE(acknowledged, enough);
    const Store store = reopen(kCapacityBytes);
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
    uint64_t counted = 0;
    for (uint64_t counter = 0; counter < kCounters; ++counter) {
      const uint64_t now = store.typed().lookup(counter).value_or(0);
      ASSERT_GE(now, highest[counter]) << "counter " << counter << " in round " << round;
      counted += now - before[counter];
      before[counter] = now;
    }
    // Beyond what was told, at most one count of each thread was under way, or done and not yet
    // told.
    ASSERT_GE(counted, acknowledged) << "round " << round;
    ASSERT_LE(counted, acknowledged + kThreads) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, KilledCounters, wanted(concurrent_cases()), case_name);

}  // namespace
}  // namespace perdure::test
