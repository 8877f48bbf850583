// Transactions over two structures of a pool: one of the catalogue, and a tree beside it. What
// crashes that lose lines leave of them is in lab/tests/crash/transaction_test.cc.
#include "perdure/transaction.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "perdure/plush.h"
#include "perdure/store.h"
#include "perdure/typed.h"
#include "pm/checksum.h"
#include "pm/layout.h"
#include "pm/memory.h"
#include "pm/transaction_log.h"
#include "support/at_place.h"
#include "support/child.h"
#include "support/complaints.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/scenario.h"
#include "support/short_memory.h"
#include "support/workload.h"

namespace perdure::test {
namespace {

// A pool with two structures, closed in the right order.
struct Pair {
  Pool pool;
  std::unique_ptr<AnyIndex> first;  // of the case's structure
  std::unique_ptr<AnyIndex> second;

  void close() {
    first.reset();
    second.reset();
    pool.close();
  }
  std::string wrong() const { return faults_and_leaks(pool, {first.get(), second.get()}); }
};

// One of the two, by number, in a transaction.
class InTransaction {
 public:
  InTransaction(PoolTransaction& transaction, AnyIndex& index)
      : transaction_(transaction), index_(index) {}
  std::optional<uint64_t> lookup(uint64_t key) const {
    Value found;
    if (!transaction_.lookup(index_, key_of(key).datum(), found)) return std::nullopt;
    return value_number(found.datum()).value_or(kTorn);
  }
  bool insert(uint64_t key, uint64_t value) const {
    return transaction_.insert(index_, key_of(key).datum(), value_of(value).datum());
  }
  bool update(uint64_t key, uint64_t value) const {
    return transaction_.update(index_, key_of(key).datum(), value_of(value).datum());
  }
  void upsert(uint64_t key, uint64_t value) const {
    transaction_.upsert(index_, key_of(key).datum(), value_of(value).datum());
  }
  bool remove(uint64_t key) const { return transaction_.remove(index_, key_of(key).datum()); }

 private:
  static constexpr uint64_t kTorn = ~uint64_t{0};
  Value key_of(uint64_t key) const { return make_key(index_.key_kind(), key); }
  Value value_of(uint64_t value) const { return make_value(index_.value_kind(), value); }
  PoolTransaction& transaction_;
  AnyIndex& index_;
};

class Transactions : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{64} << 20;
  static constexpr char kSecondName[] = "second";
  static constexpr uint32_t kThreads = 4;

  Pair create(uint64_t capacity_bytes = kCapacityBytes) const {
    Store store = create_small(capacity_bytes);
    Pair pair{std::move(store.pool), std::move(store.index), nullptr};
    pair.second = create_index(pair.pool, kSecondName, "fast-fair", Kind::kU64, Kind::kU64,
                               small_options("fast-fair"));
    return pair;
  }
  Pair open(uint64_t capacity_bytes = kCapacityBytes) const {
    return open_file(pool_path(), pool_options(capacity_bytes));
  }
  static Pair open_file(const std::string& path, const PoolOptions& options) {
    Pair pair{Pool::open(path, options), nullptr, nullptr};
    pair.first = open_index(pair.pool, kIndexName);
    pair.second = open_index(pair.pool, kSecondName);
    return pair;
  }
};

TEST_P(Transactions, DoWhatAModelDoes) {
  constexpr uint64_t kKeys = 60;
  Pair pair = create();
  Model models[2];
  const auto expect_same = [&] {
    ASSERT_EQ(difference(TypedIndex(*pair.first), models[0], kKeys), "");
    ASSERT_EQ(difference(TypedIndex(*pair.second), models[1], kKeys), "");
  };
  uint64_t value = 1;
  const auto one = [&](const InTransaction& in, Model& model) {
    const uint64_t key = random_.below(kKeys);
    const auto before = value_in(model, key);
    ASSERT_EQ(in.lookup(key), before);
    switch (random_.below(4)) {
      case 0:
        ASSERT_EQ(in.insert(key, value), !before);
        if (!before) model[key] = value;
        break;
      case 1:
        ASSERT_EQ(in.update(key, value), before.has_value());
        if (before) model[key] = value;
        break;
      case 2:
        in.upsert(key, value);
        model[key] = value;
        break;
      default:
        ASSERT_EQ(in.remove(key), before.has_value());
        model.erase(key);
    }
    ASSERT_EQ(in.lookup(key), value_in(model, key));
    ++value;
  };
  for (uint64_t round = 0; round < scaled(300); ++round) {
    Model after[2] = {models[0], models[1]};
    PoolTransaction transaction(pair.pool);
    const InTransaction in[2] = {{transaction, *pair.first}, {transaction, *pair.second}};
    for (uint64_t i = random_.below(12); i > 0; --i) {
      const uint64_t which = random_.below(2);
      ASSERT_NO_FATAL_FAILURE(one(in[which], after[which]));
    }
    if (random_.chance(20)) {
      transaction.abort();
    } else {
      transaction.commit();
      for (int i = 0; i < 2; ++i) models[i] = after[i];
    }
    // Between them single writes and batches go on.
    const uint64_t key = random_.below(kKeys);
    TypedIndex(*pair.first).upsert(key, value);
    models[0][key] = value++;
    const Value batch_key = make_key(pair.first->key_kind(), kKeys - 1);
    const Value batch_value = make_value(pair.first->value_kind(), value);
    const AnyRecord record[] = {{batch_key.datum(), batch_value.datum()}};
    bool inserted[1];
    if (random_.chance(50)) {
      pair.first->multi_upsert(record);
      models[0][kKeys - 1] = value;
    } else {
      ASSERT_EQ(pair.first->multi_insert(record, inserted) == 1, !models[0].contains(kKeys - 1));
      models[0].try_emplace(kKeys - 1, value);
    }
    ++value;
    if (round % 50 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(expect_same());
  }
  expect_same();
  pair.close();
  pair = open();
  expect_same();
  EXPECT_EQ(pair.wrong(), "");
}

TEST_P(Transactions, AreRefusedWhenWhatTheyReadHasChanged) {
  Pair pair = create();
  const TypedIndex first(*pair.first);
  const TypedIndex second(*pair.second);
  first.upsert(1, 10);
  second.upsert(1, 20);
  const auto conflict = [&](const std::function<void()>& meanwhile) {
    PoolTransaction transaction(pair.pool);
    const InTransaction in(transaction, *pair.first);
    EXPECT_EQ(in.lookup(1), 10U);
    EXPECT_EQ(in.lookup(2), std::nullopt);
    InTransaction(transaction, *pair.second).upsert(1, 99);
    in.upsert(3, 99);
    meanwhile();
    return fails_with(ErrorCode::kConflict, [&] { transaction.commit(); });
  };
  EXPECT_TRUE(conflict([&] { first.upsert(1, 11); }));
  first.upsert(1, 10);
  EXPECT_TRUE(conflict([&] { first.remove(1); }));
  first.upsert(1, 10);
  EXPECT_TRUE(conflict([&] { first.insert(2, 1); }));
  EXPECT_EQ(difference(first, {{1, 10}, {2, 1}}, 5), "");
  EXPECT_EQ(difference(second, {{1, 20}}, 5), "");
  // What is the same again, or was not read, is none.
  first.remove(2);
  EXPECT_FALSE(conflict([&] { first.upsert(1, 11), first.upsert(1, 10), second.upsert(1, 1); }));
  EXPECT_EQ(difference(first, {{1, 10}, {3, 99}}, 5), "");
  EXPECT_EQ(difference(second, {{1, 99}}, 5), "");
  // Also without writes: then all that was read is of one moment.
  PoolTransaction reads(pair.pool);
  InTransaction(reads, *pair.first).lookup(1);
  first.upsert(1, 5);
  EXPECT_TRUE(fails_with(ErrorCode::kConflict, [&] { reads.commit(); }));
  // transact() tries again.
  int attempts = 0;
  transact(pair.pool, [&](PoolTransaction& transaction) {
    const InTransaction in(transaction, *pair.first);
    const uint64_t found = in.lookup(1).value_or(0);
    if (++attempts < 12) first.upsert(1, found + 1);
    in.upsert(4, found);
    in.upsert(5, found);
  });
  EXPECT_EQ(attempts, 12);
  EXPECT_EQ(first.lookup(4), 5U + 11);
}

INSTANTIATE_TEST_SUITE_P(Catalog, Transactions, wanted(all_cases()), case_name);

// Money that several threads move between accounts of both structures, beside single writes.
class Bank : public Transactions {
 protected:
  static constexpr uint64_t kAccounts = 16;  // of each structure
  static constexpr uint64_t kEach = 1000;
  static constexpr uint64_t kMoney = 2 * kAccounts * kEach;
  static constexpr uint64_t kCounters = 1000;  // keys from here on

  static void pay_in(const Pair& pair) {
    for (uint64_t i = 0; i < kAccounts; ++i) {
      TypedIndex(*pair.first).insert(i, kEach);
      TypedIndex(*pair.second).insert(i, kEach);
    }
  }
  static uint64_t money_in(const Pair& pair) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < kAccounts; ++i) {
      sum += TypedIndex(*pair.first).lookup(i).value_or(0) +
             TypedIndex(*pair.second).lookup(i).value_or(0);
    }
    return sum;
  }
  // Accounts that are empty are removed. Counts the transfer in `counter` of both structures.
  static void transfer(Pair& pair, Random& random, uint64_t counter) {
    const uint64_t from = random.below(2 * kAccounts);
    const uint64_t to = (from + 1 + random.below(2 * kAccounts - 1)) % (2 * kAccounts);
    const uint64_t amount = 1 + random.below(200);
    transact(pair.pool, [&](PoolTransaction& transaction) {
      const InTransaction in[2] = {{transaction, *pair.first}, {transaction, *pair.second}};
      const auto& source = in[from / kAccounts];
      const auto& target = in[to / kAccounts];
      const uint64_t had = source.lookup(from % kAccounts).value_or(0);
      const uint64_t moved = std::min(had, amount);
      if (moved == had) {
        source.remove(from % kAccounts);
      } else {
        source.upsert(from % kAccounts, had - moved);
      }
      target.upsert(to % kAccounts, target.lookup(to % kAccounts).value_or(0) + moved);
      for (const InTransaction& one : in) {
        one.upsert(kCounters + counter, one.lookup(kCounters + counter).value_or(0) + 1);
      }
    });
  }
};

TEST_P(Bank, MoneyIsConservedAndSeenSo) {
  Pair pair = create(MiB(256));
  pay_in(pair);
  Complaints complaints;
  const uint64_t each = scaled(1500);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      complaints.catch_in([&] {
        Random random(base_seed() + t);
        const TypedIndex first(*pair.first);
        for (uint64_t i = 0; i < each; ++i) {
          transfer(pair, random, t);
          // A counter of all threads, by single writes and by transactions.
          if (i % 2 == 0) {
            first.count(2 * kCounters);
          } else {
            transact(pair.pool, [&](PoolTransaction& transaction) {
              const InTransaction in(transaction, *pair.first);
              in.upsert(2 * kCounters, in.lookup(2 * kCounters).value_or(0) + 1);
            });
          }
          if (random.chance(30)) first.upsert(3 * kCounters + random.below(200), i);
          if (i % 16 != 0) continue;
          uint64_t sum = 0;
          transact(pair.pool, [&](PoolTransaction& transaction) {
            sum = 0;
            for (uint64_t k = 0; k < kAccounts; ++k) {
              sum += InTransaction(transaction, *pair.first).lookup(k).value_or(0) +
                     InTransaction(transaction, *pair.second).lookup(k).value_or(0);
            }
          });
          if (sum != kMoney) complaints.add("a reader sees " + std::to_string(sum));
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complaints.text(), "");
  const auto expect_all = [&] {
    EXPECT_EQ(money_in(pair), kMoney);
    EXPECT_EQ(TypedIndex(*pair.first).lookup(2 * kCounters), kThreads * each);
    for (uint32_t t = 0; t < kThreads; ++t) {
      EXPECT_EQ(TypedIndex(*pair.first).lookup(kCounters + t), each);
      EXPECT_EQ(TypedIndex(*pair.second).lookup(kCounters + t), each);
    }
  };
  expect_all();
  pair.close();
  pair = open(MiB(256));
  expect_all();
  EXPECT_EQ(pair.wrong(), "");
}

// A structure that others write to without transactions gets its first one: no write is lost on the
// way.
TEST_P(Bank, TheFirstTransactionMeetsSingleWriters) {
  for (uint64_t round = 0; round < std::max<uint64_t>(2, scaled(10)); ++round) {
    Pair pair = create(MiB(64));
    Complaints complaints;
    std::vector<std::thread> threads;
    const uint64_t each = scaled(300);
    std::atomic<uint32_t> begun{0};
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        complaints.catch_in([&] {
          ++begun;
          while (begun.load() < kThreads) std::this_thread::yield();
          const TypedIndex first(*pair.first);
          for (uint64_t i = 0; i < each; ++i) {
            if (t < kThreads / 2 || i < each / 3) {
              first.count(i % 3);
              continue;
            }
            transact(pair.pool, [&](PoolTransaction& transaction) {
              const InTransaction in(transaction, *pair.first);
              in.upsert(i % 3, in.lookup(i % 3).value_or(0) + 1);
              in.upsert(10 + t, i);
            });
          }
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(complaints.text(), "");
    for (uint64_t k = 0; k < 3; ++k) {
      EXPECT_EQ(TypedIndex(*pair.first).lookup(k), kThreads * ((each + 2 - k) / 3)) << k;
    }
    pair.close();
    std::filesystem::remove(pool_path());
  }
}

// A child transfers on several threads and tells each transfer that has returned; it is killed.
TEST_P(Bank, AKilledProcessLeavesWholeTransfers) {
  Pair made = create(MiB(128));
  pay_in(made);
  made.close();
  uint64_t before[kThreads] = {};
  for (uint64_t round = 0; round < std::max<uint64_t>(3, scaled(5)); ++round) {
    const uint64_t seed = random_.next();
    Child child([&](int out) {
      auto* pair = new Pair(open(MiB(128)));  // never closed
      std::vector<std::thread> threads;
      for (uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([=] {
          Random random(seed + t);
          for (;;) {
            transfer(*pair, random, t);
            send(out, &t, sizeof t);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
    const uint64_t enough = random_.below(uint64_t{1} << (2 + random_.below(8)));
    uint64_t told[kThreads] = {};
    uint64_t all = 0;
    uint32_t thread = 0;
    const auto receive = [&] {
      if (!child.receive(&thread, sizeof thread)) return false;
      ++told[thread];
      return ++all > 0;
    };
    while (all < enough && receive()) {
    }
    child.kill();
    while (receive()) {
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    if (round % 2 == 1) {
      // One of them is opened alone, and that process dies, too.
      const char* name = round % 4 == 1 ? kIndexName : kSecondName;
      ASSERT_EQ(in_crashing_child([&] {
                  auto* pool = new Pool(Pool::open(pool_path(), pool_options(MiB(128))));
                  open_index(*pool, name).release();
                  return std::string();
                }),
                "");
    }
    Pair pair = open(MiB(128));
    ASSERT_EQ(pair.wrong(), "");
    ASSERT_EQ(money_in(pair), kMoney) << "round " << round;
    for (uint32_t t = 0; t < kThreads; ++t) {
      const uint64_t counted = TypedIndex(*pair.first).lookup(kCounters + t).value_or(0);
      ASSERT_EQ(TypedIndex(*pair.second).lookup(kCounters + t).value_or(0), counted);
      ASSERT_GE(counted, before[t] + told[t]) << "round " << round;
      ASSERT_LE(counted, before[t] + told[t] + 1) << "round " << round;
      before[t] = counted;
    }
    pair.close();
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, Bank, wanted(concurrent_cases()), by_turns());

// Crashes at given places of a transaction, and openings that open only one of its structures.
class TornTransaction : public Transactions {
 protected:
  // Does `body` in a process that must die when it comes to a place for the `times`-th time.
  static void die_at(const char* place, uint64_t times, const std::function<void()>& body) {
    Child child([&](int) {
      uint64_t come = 0;
      const AtPlace here(place, [&] {
        if (++come == times) ::raise(SIGKILL);
      });
      body();
    });
    ASSERT_EQ(child.wait(), -SIGKILL) << "it did not come to \"" << place << '"';
  }
  // In a transaction of two keys in each structure.
  void die_at(const char* place, uint64_t times, uint64_t value) const {
    die_at(place, times, [&] {
      auto* pair = new Pair(open());
      PoolTransaction transaction(pair->pool);
      write(transaction, *pair, value);
      transaction.commit();
    });
  }
  static void write(PoolTransaction& transaction, const Pair& pair, uint64_t value) {
    const InTransaction first(transaction, *pair.first);
    const InTransaction second(transaction, *pair.second);
    first.upsert(1, value);
    second.upsert(1, value);
    first.upsert(2, value + 1);
    second.remove(2);
  }
  // Opens one structure and does something with it in a process that dies.
  void with_one(const char* name, const std::function<std::string(AnyIndex&)>& use) const {
    ASSERT_EQ(in_crashing_child([&] {
                auto* pool = new Pool(Pool::open(pool_path(), pool_options(kCapacityBytes)));
                return use(*open_index(*pool, name).release());
              }),
              "");
  }
  // A transaction that the second of its writes finds no room for, nor taking back the first.
  static void block_at_second_write(Pair& pair, uint64_t value) {
    static uint64_t come = 0;
    come = 0;
    pm::at_place.store([](const char* name) {
      const std::string_view place = name;
      if ((place == "transaction: applies" && ++come == 2) || place == "transaction: takes back") {
        throw Error(ErrorCode::kPoolFull, "a test has filled the pool");
      }
    });
    PoolTransaction transaction(pair.pool);
    InTransaction(transaction, *pair.first).upsert(1, value);
    InTransaction(transaction, *pair.second).upsert(1, value);
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, "blocked", [&] { transaction.commit(); }));
    pm::at_place.store(nullptr);
  }
  void prepare() const {
    Pair pair = create();
    TypedIndex(*pair.first).upsert(1, 7);
    TypedIndex(*pair.second).upsert(1, 7);
    TypedIndex(*pair.second).upsert(2, 7);
    pair.close();
  }
};

TEST_P(TornTransaction, IsFinishedWhenItsStructuresAreOpened) {
  prepare();
  for (uint64_t times = 1; times <= 4; ++times) {
    SCOPED_TRACE(times);
    ASSERT_NO_FATAL_FAILURE(die_at("transaction: applies", times, 100 * times));
    Pair pair = open();
    EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 100 * times}, {2, 100 * times + 1}}, 5), "");
    EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 100 * times}}, 5), "");
    EXPECT_EQ(pair.wrong(), "");
    TypedIndex(*pair.second).upsert(2, 7);
    pair.close();
  }
}

TEST_P(TornTransaction, IsAppliedToEachStructureOnce) {
  prepare();
  ASSERT_NO_FATAL_FAILURE(die_at("transaction: committed", 1, 100));
  // The first is opened, and written to; and again, by processes that die.
  ASSERT_NO_FATAL_FAILURE(with_one(kIndexName, [](AnyIndex& index) {
    const std::string found = difference(TypedIndex(index), {{1, 100}, {2, 101}}, 5);
    TypedIndex(index).upsert(1, 200);
    return found;
  }));
  ASSERT_NO_FATAL_FAILURE(with_one(kIndexName, [](AnyIndex& index) {
    const std::string found = difference(TypedIndex(index), {{1, 200}, {2, 101}}, 5);
    TypedIndex(index).remove(2);
    return found;
  }));
  Pair pair = open();
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 200}}, 5), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 100}}, 5), "");
  TypedIndex(*pair.second).upsert(1, 300);
  pair.close();
  pair = open();
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 300}}, 5), "");
  EXPECT_EQ(pair.wrong(), "");
}

TEST_P(TornTransaction, SurvivesACrashOfItsEnd) {
  prepare();
  ASSERT_NO_FATAL_FAILURE(die_at("transaction: committed", 1, 100));
  for (uint64_t times = 1; times <= 2; ++times) {
    for (const char* name : {kIndexName, kSecondName}) {
      ASSERT_NO_FATAL_FAILURE(die_at("transaction: finishes", times, [&] {
        auto* pool = new Pool(Pool::open(pool_path(), pool_options(kCapacityBytes)));
        open_index(*pool, name).release();
      }));
    }
  }
  {  // Readers of a pool that is not written to see it whole.
    PoolOptions options = pool_options(kCapacityBytes);
    options.read_only = true;
    const Pair pair = open_file(pool_path(), options);
    EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 100}, {2, 101}}, 5), "");
    EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 100}}, 5), "");
    EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] { TypedIndex(*pair.first).upsert(1, 1); }));
  }
  Pair pair = open();
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 100}, {2, 101}}, 5), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 100}}, 5), "");
  EXPECT_EQ(pair.wrong(), "");
}

// A structure too damaged for what is to be done to it is no longer opened, but by who reads what
// is left.
TEST_P(TornTransaction, KeepsNobodyFromSalvaging) {
  prepare();
  ASSERT_NO_FATAL_FAILURE(die_at("transaction: committed", 1, 100));
  const AtPlace here("transaction: finishes",
                     [] { throw Error(ErrorCode::kCorrupt, "a test has damaged it"); });
  PoolOptions options = pool_options(kCapacityBytes);
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { open_file(pool_path(), options); }));
  options.read_only = options.lenient = true;
  const Pair pair = open_file(pool_path(), options);
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 7}}, 5), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 7}, {2, 7}}, 5), "");
}

// What finished a transaction must be durable before anybody writes over it: a power failure later
// would else have it applied again.
TEST_P(TornTransaction, StaysFinishedWhenThePowerFailsLater) {
  prepare();
  ASSERT_NO_FATAL_FAILURE(die_at("transaction: committed", 1, 100));
  PoolOptions options = pool_options(kCapacityBytes);
  options.domain = Domain::kLine;
  FailingMedium medium(pool_path(), Domain::kLine);
  medium.begin();
  {
    const Pair pair = open_file(pool_path(), options);
    TypedIndex(*pair.first).upsert(1, 500);
    TypedIndex(*pair.second).upsert(1, 500);
    std::filesystem::rename(medium.make_image(FailingMedium::Image::kLeast, 0), dir_.file("least"));
  }
  medium.mend();
  const Pair pair = open_file(dir_.file("least"), options);
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 500}, {2, 101}}, 5), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 500}}, 5), "");
  EXPECT_EQ(pair.wrong(), "");
}

// Others fill the pool between the commit point and the first write.
TEST_P(TornTransaction, IsTakenBackInAPoolThatBecomesFull) {
  Pair pair = create(MiB(8));
  const auto filler = create_index(pair.pool, "filler", "cceh", Kind::kU64, Kind::kBytes,
                                   {{"initial_depth", "1"}, {"segment_buckets", "64"}});
  uint64_t filled = 0;
  const auto fill = [&] {
    for (const uint64_t bytes :
         {uint64_t{60} << 10, uint64_t{4} << 10, uint64_t{200}, uint64_t{20}}) {
      try {
        for (;; ++filled) filler->upsert(filled, std::string(bytes, 'f'));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kPoolFull) throw;
      }
    }
  };
  const TypedIndex first(*pair.first);
  const TypedIndex second(*pair.second);
  Model models[2];
  for (uint64_t key = 0; key < 200; ++key) {
    first.upsert(key, key);
    second.upsert(key, key);
    models[0][key] = models[1][key] = key;
  }
  PoolTransaction transaction(pair.pool);
  for (uint64_t key = 100; key < 900; ++key) {
    InTransaction(transaction, *pair.second).upsert(key, key + 1);
    InTransaction(transaction, *pair.first).upsert(key, key + 1);
  }
  Model after[2] = {models[0], models[1]};
  for (uint64_t key = 100; key < 900; ++key) after[0][key] = after[1][key] = key + 1;
  bool full = false;
  {
    const AtPlace here("transaction: committed", [&] { std::thread(fill).join(); });
    try {
      transaction.commit();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
      full = true;
      EXPECT_EQ(std::string(error.what()).find("blocked"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(filled, 10U);
  const auto expect = [&](const Model(&wanted)[2]) {
    EXPECT_EQ(difference(TypedIndex(*pair.first), wanted[0], 900), "");
    EXPECT_EQ(difference(TypedIndex(*pair.second), wanted[1], 900), "");
  };
  expect(full ? models : after);
  for (uint64_t i = 0; i < filled; ++i) filler->remove(i);
  first.upsert(5000, 1);  // nothing is blocked
  models[0][5000] = after[0][5000] = 1;
}

// The pool is full when the transaction is to be taken back, too.
TEST_P(TornTransaction, BlocksItsStructuresUntilItCanBeFinished) {
  Pair pair = create(MiB(8));
  auto filler = create_index(pair.pool, "filler", "cceh", Kind::kU64, Kind::kBytes,
                             {{"initial_depth", "1"}, {"segment_buckets", "64"}});
  const TypedIndex first(*pair.first);
  first.upsert(1, 1);
  // Of any structure: an index that refuses.
  uint64_t come = 0;
  {
    const AtPlace here("transaction: applies", [&] {
      if (++come == 2) throw Error(ErrorCode::kPoolFull, "a test has filled the pool");
    });
    PoolTransaction transaction(pair.pool);
    InTransaction(transaction, *pair.first).upsert(1, 2);
    InTransaction(transaction, *pair.second).upsert(1, 2);
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, "a test", [&] { transaction.commit(); }));
  }
  EXPECT_EQ(difference(first, {{1, 1}}, 3), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {}, 3), "");
  first.upsert(2, 2);  // and goes on
  {
    const AtPlace here("transaction: applies", [&] {
      // From the second on; "takes back" is another place, which cannot be told to fail as well: a
      // structure that is closed to writes does.
      if (++come == 4) throw std::bad_alloc();
    });
    PoolTransaction transaction(pair.pool);
    InTransaction(transaction, *pair.first).upsert(1, 3);
    InTransaction(transaction, *pair.second).upsert(1, 3);
    EXPECT_THROW(transaction.commit(), std::bad_alloc);
  }
  EXPECT_EQ(difference(first, {{1, 1}, {2, 2}}, 3), "");
  static int stage = 0;
  stage = 0;
  {
    // Taking back fails.
    const auto look = [](const char* name) {
      const std::string_view place(name);
      if (place == "transaction: applies" && ++stage == 2)
        throw Error(ErrorCode::kPoolFull, "a test has filled the pool");
      if (place == "transaction: takes back") throw Error(ErrorCode::kPoolFull, "still full");
    };
    pm::at_place.store(look);
    PoolTransaction transaction(pair.pool);
    InTransaction(transaction, *pair.first).upsert(1, 4);
    InTransaction(transaction, *pair.second).upsert(1, 4);
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, "blocked", [&] { transaction.commit(); }));
    pm::at_place.store(nullptr);
  }
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { first.upsert(2, 5); }));
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { TypedIndex(*pair.second).upsert(2, 5); }));
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
    transact(pair.pool, [&](PoolTransaction& transaction) {
      InTransaction(transaction, *pair.first).lookup(1);
    });
  }));
  filler->upsert(1, "x");  // another structure
  filler.reset();
  pair.close();
  pair = open(MiB(8));
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 4}, {2, 2}}, 3), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 4}}, 3), "");
  filler = open_index(pair.pool, "filler");
  EXPECT_EQ(faults_and_leaks(pair.pool, {pair.first.get(), pair.second.get(), filler.get()}), "");
}

// Who opens a blocked structure again, in the same process, finds the transaction finished: what is
// written then is not overwritten by the next opening of the pool, and a structure that gets the
// place of a dropped one has nothing of it.
TEST_P(TornTransaction, IsFinishedWhenABlockedStructureIsOpenedAgain) {
  Pair pair = create();
  TypedIndex(*pair.first).upsert(2, 2);
  block_at_second_write(pair, 4);
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { TypedIndex(*pair.first).upsert(2, 5); }));
  pair.first.reset();
  pair.first = open_index(pair.pool, kIndexName);
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 4}, {2, 2}}, 3), "");
  TypedIndex(*pair.first).upsert(1, 6);
  // The other one is as it was.
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { TypedIndex(*pair.second).upsert(2, 5); }));
  pair.close();
  pair = open();
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 6}, {2, 2}}, 3), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {{1, 4}}, 3), "");

  block_at_second_write(pair, 7);
  pair.second.reset();
  drop_structure(pair.pool, kSecondName);
  pair.second = create_index(pair.pool, kSecondName, "fast-fair", Kind::kU64, Kind::kU64,
                             small_options("fast-fair"));
  pair.close();
  pair = open();
  EXPECT_EQ(difference(TypedIndex(*pair.first), {{1, 7}, {2, 2}}, 3), "");
  EXPECT_EQ(difference(TypedIndex(*pair.second), {}, 3), "");
  EXPECT_EQ(pair.wrong(), "");
}

// A persist fails of those that finish it, each in turn.
TEST_P(TornTransaction, IsFinishedAfterAPersistOfItsEndHasFailed) {
  prepare();
  ASSERT_NO_FATAL_FAILURE(die_at("transaction: committed", 1, 100));
  PoolOptions options = pool_options(kCapacityBytes);
  options.domain = Domain::kLine;
  FailingMedium medium(pool_path(), Domain::kLine);
  medium.begin();
  const uint64_t step = std::max<uint64_t>(1, 24 / rounds(12));
  medium.refuse([&](uint64_t n) { return n % step == base_seed() % step; },
                [](uint64_t n) { return n % 2 == 1; });
  bool written[2] = {};
  std::string wrong;
  try {
    const Pair pair = open_file(pool_path(), options);
    for (int i = 0; i < 2; ++i) {
      TypedIndex(i == 0 ? *pair.first : *pair.second).upsert(1, 500);
      written[i] = !medium.refused();
    }
  } catch (const Error& error) {
    if (!medium.refused()) throw;
    if (error.code() != ErrorCode::kIo) wrong = std::string("it throws: ") + error.what() + "\n";
  }
  if (medium.refused()) {
    medium.mend();
    for (const auto image :
         {FailingMedium::Image::kAll, FailingMedium::Image::kLeast, FailingMedium::Image::kMixed}) {
      medium.at("image " + std::to_string(static_cast<int>(image)));
      try {
        const Pair pair = open_file(medium.make_image(image, medium.refused_number()),
                                    pool_options(kCapacityBytes));
        const auto differs = [&](int i, const Model& rest) {
          const TypedIndex index(i == 0 ? *pair.first : *pair.second);
          Model with = rest;
          with[1] = 500;
          std::string as_written = difference(index, with, 5);
          if (as_written.empty() || written[i]) return as_written;
          with[1] = 100;
          return difference(index, with, 5);
        };
        wrong += differs(0, {{2, 101}}) + differs(1, {}) + pair.wrong();
      } catch (const std::exception& error) {
        wrong += std::string(error.what()) + "\n";
      }
    }
    medium.report(wrong);
  }
  EXPECT_GT(medium.children(), rounds(12) / 4);
  EXPECT_EQ(medium.findings(), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, TornTransaction, wanted(all_cases()), by_turns());

// A persist of a transaction fails, each in turn: it happened or not, as a whole, also on a medium
// that has lost what was not durable.
class FailingTransaction : public Transactions {
 protected:
  static constexpr uint64_t kKeys = 12;
  struct Models {
    Model first;
    Model second;
  };

  static PoolOptions options(Domain domain) {
    PoolOptions options;
    options.capacity_bytes = MiB(8);
    options.growth_bytes = uint64_t{256} << 10;
    options.force_domain = true;
    options.domain = domain;
    return options;
  }

  void run(FailingMedium& medium, Domain domain) {
    Random random(base_seed());
    std::filesystem::remove(pool_path());
    Models models;
    {
      Store store = create_store(pool_path(), options(domain), GetParam(),
                                 small_options(GetParam().structure));
      create_index(store.pool, kSecondName, "fast-fair", Kind::kU64, Kind::kU64);
      for (uint64_t key = 0; key < kKeys; ++key) store.typed().upsert(key, models.first[key] = key);
      store.close();
    }
    medium.begin();
    Pair pair = open_file(pool_path(), options(domain));
    first_persist_ = medium.persists();
    for (uint64_t i = 0; i < 8; ++i) {
      Models after = models;
      PoolTransaction transaction(pair.pool);
      for (uint64_t n = 1 + random.below(4); n > 0; --n) {
        const uint64_t key = random.below(kKeys);
        InTransaction(transaction, *pair.first).upsert(key, after.first[key] = 100 * i + n);
        const uint64_t other = random.below(kKeys);
        const InTransaction second(transaction, *pair.second);
        if (random.chance(30)) {
          second.remove(other);
          after.second.erase(other);
        } else {
          second.upsert(other, after.second[other] = 100 * i + n);
        }
      }
      medium.at("transaction " + std::to_string(i));
      std::string wrong;
      bool threw = false;
      try {
        transaction.commit();
      } catch (const Error& error) {
        if (!medium.refused()) throw;
        threw = true;
        if (error.code() != ErrorCode::kIo)
          wrong = std::string("it throws: ") + error.what() + "\n";
      }
      if (medium.refused()) medium.report(wrong + judge(medium, pair, models, after, threw));
      models = after;
    }
    // The close persists, too.
    pair.first.reset();
    pair.second.reset();
    try {
      pair.pool.close();
    } catch (const Error&) {
      if (!medium.refused()) throw;
    }
    if (medium.refused()) medium.report("");  // closing is the affair of another test
  }

  static std::string judge(FailingMedium& medium, Pair& pair, const Models& before,
                           const Models& after, bool threw) {
    std::string wrong;
    try {
      transact(pair.pool, [&](PoolTransaction& transaction) {
        InTransaction(transaction, *pair.first).upsert(1, 1);
        InTransaction(transaction, *pair.second).upsert(1, 1);
      });
      wrong += "a transaction is not refused afterwards\n";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo)
        wrong += std::string("afterwards: ") + error.what() + "\n";
    }
    try {
      pair.close();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) wrong += std::string("closing: ") + error.what() + "\n";
    }
    const Domain domain = pair_domain;
    medium.mend();
    static constexpr FailingMedium::Image kImages[] = {
        FailingMedium::Image::kAll, FailingMedium::Image::kLeast, FailingMedium::Image::kMixed};
    for (const FailingMedium::Image image : kImages) {
      const std::string path = medium.make_image(image, medium.refused_number());
      medium.at("image " + std::to_string(static_cast<int>(image)));
      try {
        wrong += inspect(path, domain, before, after, threw);
      } catch (const std::exception& error) {
        wrong += std::string(error.what()) + "\n";
      }
    }
    return wrong;
  }

  static std::string inspect(const std::string& path, Domain domain, const Models& before,
                             const Models& after, bool threw) {
    Pair pair = open_file(path, options(domain));
    const auto differs = [&](const Models& models) {
      return difference(TypedIndex(*pair.first), models.first, kKeys) +
             difference(TypedIndex(*pair.second), models.second, kKeys);
    };
    std::string wrong = pair.wrong();
    const bool is_after = differs(after).empty();
    if (!is_after && !(threw && differs(before).empty())) {
      wrong += "neither before nor after: " + differs(before) + " and " + differs(after);
    }
    Models now = is_after ? after : before;
    transact(pair.pool, [&](PoolTransaction& transaction) {
      InTransaction(transaction, *pair.first).upsert(0, now.first[0] = 5000);
      InTransaction(transaction, *pair.second).upsert(0, now.second[0] = 5000);
    });
    pair.close();
    pair = open_file(path, options(domain));
    return wrong + differs(now) + pair.wrong();
  }

  void refuse_in_turn(Domain domain) {
    pair_domain = domain;
    pm::prefers_nontemporal_lines();  // the first call in a process persists, on a stopwatch
    uint64_t persists = 0;
    {
      FailingMedium medium(pool_path(), domain);
      run(medium, domain);
      persists = medium.persists();
    }
    ASSERT_GT(persists, 30U);
    const uint64_t first =
        first_persist_;  // what opens and closes structures is the affair of other tests
    const uint64_t step = std::max<uint64_t>(1, (persists - first) / rounds(8));
    FailingMedium medium(pool_path(), domain);
    medium.refuse([&](uint64_t n) { return n >= first && n % step == base_seed() % step; },
                  [](uint64_t n) { return n % 2 == 1; });
    run(medium, domain);
    EXPECT_GE(medium.children(), scaled(4));
    EXPECT_EQ(medium.findings(), "");
  }

  static inline Domain pair_domain = Domain::kLine;
  uint64_t first_persist_ = 0;
};

TEST_P(FailingTransaction, IsWholeWhereAPersistOfLinesFails) { refuse_in_turn(Domain::kLine); }
TEST_P(FailingTransaction, IsWholeWhereAPersistOfPagesFails) { refuse_in_turn(Domain::kPage); }

INSTANTIATE_TEST_SUITE_P(Catalog, FailingTransaction, wanted(all_cases()), by_turns());

// With types, and what is refused.
class TypedTransactions : public testing::Test {
 protected:
  static Pool new_pool() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{32} << 20;
    return Pool::anonymous(options);
  }
  // Of the log in a pool's file.
  static void for_each_slot(std::string& file,
                            const std::function<void(pm::TransactionSlot& slot)>& visit) {
    uint64_t log = 0;
    std::memcpy(&log, file.data() + offsetof(pm::PoolHeader, transactions_word), sizeof log);
    log &= 0xffffffffffff;
    for (uint32_t i = 0; i < pm::kTransactionSlots; ++i) {
      const uint64_t at =
          log + offsetof(pm::TransactionLogRoot, slot) + i * sizeof(pm::TransactionSlot);
      pm::TransactionSlot slot;
      std::memcpy(&slot, file.data() + at, sizeof slot);
      visit(slot);
      std::memcpy(file.data() + at, &slot, sizeof slot);
    }
  }
  static uint64_t slots_with_records(std::string file) {
    uint64_t count = 0;
    for_each_slot(file, [&](pm::TransactionSlot& slot) { count += slot.bytes != 0 ? 1 : 0; });
    return count;
  }
};

TEST_F(TypedTransactions, TakeTypedStructuresAndPlush) {
  Pool pool = new_pool();
  auto scores = FastFair<std::string, int64_t>::create(pool, "scores");
  auto log = TypedPlush<uint32_t, std::string>::create(pool, "log");
  auto words = Plush<std::string, uint64_t>::create(pool, "words");
  scores.upsert("ada", -3);
  transact(pool, [&](PoolTransaction& transaction) {
    EXPECT_EQ(transaction.get(scores, "ada"), -3);
    EXPECT_EQ(transaction.increment(scores, "ada", -4), -7);
    EXPECT_EQ(transaction.get(scores, "ada"), -7);
    EXPECT_EQ(transaction.increment(words, "ada"), 1U);
    EXPECT_TRUE(transaction.insert(log, 7, "ada loses four"));
    EXPECT_FALSE(transaction.insert(log, 7, "again"));
    EXPECT_EQ(transaction.get(log, 7), "ada loses four");
    EXPECT_FALSE(transaction.update(words, "grace", 1));
    EXPECT_FALSE(transaction.remove(words, "grace"));
    transaction.upsert(words, "grace", 5);
    EXPECT_FALSE(words.compare_exchange("grace", 5, 6));  // nobody sees it yet
  });
  EXPECT_EQ(scores.get("ada"), -7);
  EXPECT_EQ(log.get(7), "ada loses four");
  uint64_t count = 0;
  EXPECT_TRUE(words.lookup("grace", count));
  EXPECT_EQ(count, 5U);
  // A move of the table changes nothing.
  auto moved = std::move(words);
  PoolTransaction transaction(pool);
  EXPECT_TRUE(transaction.remove(moved, "grace"));
  moved.upsert("grace", 6);
  EXPECT_TRUE(fails_with(ErrorCode::kConflict, [&] { transaction.commit(); }));
  transaction.upsert(moved, "grace", 8);  // it may be used again
  transaction.commit();
  EXPECT_TRUE(moved.lookup("grace", count));
  EXPECT_EQ(count, 8U);
}

TEST_F(TypedTransactions, RefuseWhatCouldNotBeApplied) {
  Pool pool = new_pool();
  Pool other_pool = new_pool();
  const auto tree = create_index(pool, "tree", "fast-fair", Kind::kBytes, Kind::kBytes, {});
  const auto range = create_index(pool, "range", "plush+range", Kind::kU64, Kind::kU64,
                                  {{"key_min", "10"}, {"key_max", "1000"}});
  const auto elsewhere = create_index(other_pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
  PoolTransaction transaction(pool);
  const auto refused = [&](ErrorCode code, AnyIndex& index, Datum key, Datum value) {
    return fails_with(code, [&] { transaction.upsert(index, key, value); });
  };
  EXPECT_TRUE(refused(ErrorCode::kWrongType, *tree, 1, "x"));
  EXPECT_TRUE(refused(ErrorCode::kWrongType, *tree, "x", 1));
  EXPECT_TRUE(refused(ErrorCode::kWrongType, *range, 20, "x"));
  EXPECT_TRUE(refused(ErrorCode::kTooLarge, *tree, std::string(5000, 'k'), "x"));
  EXPECT_TRUE(refused(ErrorCode::kInvalidArgument, *range, 9, 1));
  EXPECT_TRUE(refused(ErrorCode::kInvalidArgument, *elsewhere, 1, 1));
  transaction.upsert(*tree, "a", "x");
  transaction.upsert(*tree, "b", std::string(2 << 20, 'x'));
  EXPECT_TRUE(fails_with(ErrorCode::kTooLarge, [&] { transaction.commit(); }));
  Value found;
  EXPECT_FALSE(tree->lookup("a", found));
  // Large ones up to that go, and their buffer is given back.
  const uint64_t before = pool.info().allocated_bytes;
  transaction.upsert(*tree, "a", std::string(500'000, 'x'));
  transaction.upsert(*range, 10, 1);
  transaction.commit();
  EXPECT_TRUE(tree->lookup("a", found));
  EXPECT_EQ(found.bytes().size(), 500'000U);
  tree->remove("a");
  EXPECT_LT(pool.info().allocated_bytes, before + (uint64_t{900} << 10));
}

// Pools without transactions are as they were before there were any; those with one are refused by
// builds that know none, by the word in the header that must be 0 for them.
TEST_F(TypedTransactions, MarkThePoolWithTheFirstOne) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  const auto word = [&] {
    uint64_t found = 0;
    std::memcpy(&found, read_file(path).data() + 384, sizeof found);
    return found;
  };
  PoolOptions options;
  options.capacity_bytes = uint64_t{8} << 20;
  {
    Pool pool = Pool::create(path, options);
    const auto index = create_index(pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
    transact(pool, [&](PoolTransaction& transaction) { transaction.upsert(*index, 1, 1); });
  }
  EXPECT_EQ(word(), 0U);
  {
    Pool pool = Pool::open(path);
    const auto index = open_index(pool, "x");
    transact(pool, [&](PoolTransaction& transaction) {
      transaction.upsert(*index, 1, 1);
      transaction.upsert(*index, 2, 1);
    });
  }
  EXPECT_NE(word(), 0U);
  std::string bytes = read_file(path);
  bytes[385] ^= 4;
  write_file(path, bytes);
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { Pool::open(path); }));
}

// What docs/embedding.md says of the cost. A persist is a fence in domain `line`.
TEST_F(TypedTransactions, CostThreeFencesMoreThanTheirWrites) {
  const TempDir dir;
  PoolOptions options;
  options.capacity_bytes = uint64_t{32} << 20;
  options.force_domain = true;
  options.domain = Domain::kLine;
  {
    Pool pool = Pool::create(dir.file("pool"), options);
    create_index(pool, "first", "cceh", Kind::kU64, Kind::kU64);
    create_index(pool, "second", "fast-fair", Kind::kU64, Kind::kU64);
  }
  FailingMedium medium(dir.file("pool"), Domain::kLine);
  medium.begin();
  Pool pool = Pool::open(dir.file("pool"), options);
  const auto first = open_index(pool, "first");
  const auto second = open_index(pool, "second");
  const auto fences = [&](const std::function<void()>& work) {
    const uint64_t before = medium.persists();
    work();
    return medium.persists() - before;
  };
  for (uint64_t keys : {16, 2, 16}) {  // the first makes the log, and inserts
    const auto singly = [&] {
      for (uint64_t key = 0; key < keys; ++key) (key % 2 == 0 ? first : second)->upsert(key, key);
    };
    const auto together = [&] {
      transact(pool, [&](PoolTransaction& transaction) {
        for (uint64_t key = 0; key < keys; ++key) {
          transaction.upsert(key % 2 == 0 ? *first : *second, key, key + 1);
        }
      });
    };
    if (first->lookup(0, *std::make_unique<Value>())) {
      EXPECT_EQ(fences(singly), keys);
      EXPECT_EQ(fences(together), keys + 3);
      const auto reads = [&] {
        transact(pool, [&](PoolTransaction& transaction) {
          Value found;
          for (uint64_t key = 0; key < keys; ++key) transaction.lookup(*first, key, found);
        });
      };
      EXPECT_EQ(fences(reads), 0U);
    } else {
      singly();
      together();
    }
  }
}

// More threads than there are slots.
TEST_F(TypedTransactions, WaitForEachOther) {
  Pool pool = new_pool();
  auto counts = PClht<uint64_t, uint64_t>::create(pool, "counts");
  std::vector<std::thread> threads;
  Complaints complaints;
  const uint64_t each = scaled(200);
  for (uint64_t t = 0; t < 40; ++t) {
    threads.emplace_back([&, t] {
      complaints.catch_in([&] {
        for (uint64_t i = 0; i < each; ++i) {
          transact(pool, [&](PoolTransaction& transaction) {
            transaction.increment(counts, t);
            transaction.increment(counts, 100 + t % 3);
          });
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complaints.text(), "");
  uint64_t sum = 0;
  for (uint64_t i = 0; i < 3; ++i) sum += counts.get(100 + i).value_or(0);
  EXPECT_EQ(sum, 40 * each);
}

// Crashes that leave a record of which all is applied: its slot is used again.
TEST_F(TypedTransactions, LoseNoSlotToACrashOfTheirEnd) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  {
    Pool pool = Pool::create(path);
    create_index(pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
  }
  const auto transact_two = [](Pool& pool, AnyIndex& index, uint64_t value) {
    transact(pool, [&](PoolTransaction& transaction) {
      transaction.upsert(index, 1, value);
      transaction.upsert(index, 2, value);
    });
  };
  for (uint64_t round = 1; round <= pm::kTransactionSlots + 1; ++round) {
    SCOPED_TRACE(round);
    Child child([&](int) {
      const AtPlace here("transaction: committed", [] { ::raise(SIGKILL); });
      auto* pool = new Pool(Pool::open(path));
      transact_two(*pool, *open_index(*pool, "x").release(), round);
    });
    ASSERT_EQ(child.wait(), -SIGKILL);
    // As a crash leaves the line between the last two stores to it.
    std::string file = read_file(path);
    ASSERT_EQ(slots_with_records(file), 1U);
    for_each_slot(file, [](pm::TransactionSlot& slot) {
      slot.applied = slot.bytes != 0 ? 1 : 0;
      slot.check = slot.check_with(slot.applied);
    });
    write_file(path, file);
    Pool pool = Pool::open(path);
    transact_two(pool, *open_index(pool, "x"), 100 + round);
  }
  EXPECT_EQ(slots_with_records(read_file(path)), 0U);
}

// A process dies that has ended a transaction in the caches only, another one writes over it, then
// the power fails.
TEST_F(TypedTransactions, StayEndedWhenThePowerFailsLater) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  PoolOptions options;
  options.capacity_bytes = uint64_t{8} << 20;
  options.force_domain = true;
  options.domain = Domain::kLine;
  {
    Pool pool = Pool::create(path, options);
    create_index(pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
  }
  Child child([&](int) {
    auto* pool = new Pool(Pool::open(path, options));
    AnyIndex& index = *open_index(*pool, "x").release();
    transact(*pool, [&](PoolTransaction& transaction) {
      transaction.upsert(index, 1, 1);
      transaction.upsert(index, 2, 1);
    });
    ::raise(SIGKILL);
  });
  ASSERT_EQ(child.wait(), -SIGKILL);
  const std::string in_caches = read_file(path);
  std::string durable = in_caches;
  for_each_slot(durable, [](pm::TransactionSlot& slot) {
    if (slot.buffer == 0) return;
    slot.bytes = pm::TransactionLog::record_bytes(1, uint64_t{2} * 32) | pm::TransactionSlot::kMark;
    slot.applied = 0;
    slot.check = slot.check_with(0);
  });
  write_file(path, durable);
  FailingMedium medium(path, Domain::kLine);
  medium.begin();
  write_file(path, in_caches);
  {
    Pool pool = Pool::open(path, options);
    const auto index = open_index(pool, "x");
    index->upsert(1, 500);
    std::filesystem::rename(medium.make_image(FailingMedium::Image::kLeast, 0), dir.file("least"));
  }
  medium.mend();
  Pool pool = Pool::open(dir.file("least"), options);
  Value found;
  ASSERT_TRUE(open_index(pool, "x")->lookup(1, found));
  EXPECT_EQ(found.word(), 500U);
  write_file(path, durable);  // the record was whole, and would have been applied
  Pool before = Pool::open(path, options);
  const auto index = open_index(before, "x");
  index->upsert(1, 3);
  EXPECT_EQ(slots_with_records(read_file(path)), 0U);
}

TEST_F(TypedTransactions, RefuseToOpenWithADamagedRecord) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  {
    Pool pool = Pool::create(path);
    create_index(pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
  }
  Child child([&](int) {
    const AtPlace here("transaction: committed", [] { ::raise(SIGKILL); });
    auto* pool = new Pool(Pool::open(path));
    AnyIndex& index = *open_index(*pool, "x").release();
    transact(*pool, [&](PoolTransaction& transaction) {
      transaction.upsert(index, 1, 1);
      transaction.upsert(index, 2, 2);
    });
  });
  ASSERT_EQ(child.wait(), -SIGKILL);
  const std::string intact = read_file(path);
  const auto refused =
      [&](const std::function<void(std::string & file, pm::TransactionSlot&)>& damage) {
        std::string file = intact;
        for_each_slot(file, [&](pm::TransactionSlot& slot) {
          if (slot.bytes != 0) damage(file, slot);
        });
        write_file(path, file);
        return fails_with(ErrorCode::kCorrupt, [&] { Pool::open(path); });
      };
  for (int bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    const uint64_t flip = uint64_t{1} << bit;
    EXPECT_TRUE(refused([&](auto&, auto& slot) { slot.bytes ^= flip; }));
    EXPECT_TRUE(refused([&](auto&, auto& slot) { slot.checksum ^= flip; }));
    EXPECT_TRUE(refused([&](auto&, auto& slot) { slot.buffer ^= flip; }));
    if (bit > 0) {  // there is one structure
      EXPECT_TRUE(refused([&](auto&, auto& slot) { slot.applied ^= flip; }));
    }
  }
  for (uint64_t at = 0; at < 16 + 2 * 32; ++at) {
    SCOPED_TRACE(at);
    EXPECT_TRUE(refused([&](std::string& file, auto& slot) { file[slot.buffer + at] ^= 16; }));
  }
  write_file(path, intact);
  Pool pool = Pool::open(path);
  const auto index = open_index(pool, "x");
  Value found;
  EXPECT_TRUE(index->lookup(1, found));
  EXPECT_TRUE(index->lookup(2, found));
}

// Which structures have their part of an unfinished transaction is known for sure: what a bit flip
// makes of it neither loses a part nor applies one over what was written since.
TEST_F(TypedTransactions, AFlippedBitOfWhatIsAppliedLosesNothing) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  {
    Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{4} << 20});
    for (const char* name : {"x", "y", "z"})
      create_index(pool, name, "fast-fair", Kind::kU64, Kind::kU64, {});
  }
  Child child([&](int) {
    const AtPlace here("transaction: committed", [] { ::raise(SIGKILL); });
    auto* pool = new Pool(Pool::open(path));
    AnyIndex* indexes[3] = {};
    for (int i = 0; i < 3; ++i)
      indexes[i] = open_index(*pool, std::string(1, static_cast<char>('x' + i))).release();
    transact(*pool, [&](PoolTransaction& transaction) {
      for (AnyIndex* index : indexes) transaction.upsert(*index, 1, 100);
    });
  });
  ASSERT_EQ(child.wait(), -SIGKILL);
  {
    Pool pool = Pool::open(path);
    open_index(pool, "y")->upsert(1, 200);
  }
  const std::string intact = read_file(path);
  const auto look = [&](const std::string& name) {
    Pool pool = Pool::open(path);
    Value found;
    return open_index(pool, name)->lookup(1, found) ? found.word() : 0;
  };
  uint64_t refused = 0;
  const auto flip = [&](uint64_t pm::TransactionSlot::* word, int bit) {
    std::string file = intact;
    for_each_slot(file, [&](pm::TransactionSlot& slot) {
      if (slot.bytes != 0) slot.*word ^= uint64_t{1} << bit;
    });
    write_file(path, file);
    try {
      EXPECT_EQ(look("y"), 200U);
      EXPECT_EQ(look("x"), 100U);
      EXPECT_EQ(look("z"), 100U);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      ++refused;
    }
  };
  for (int bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    flip(&pm::TransactionSlot::applied, bit);
    flip(&pm::TransactionSlot::check, bit);
    flip(&pm::TransactionSlot::bytes, bit);
  }
  EXPECT_EQ(
      refused,
      64U + 64U + 61U);  // one in `applied` is put right, but of structures that there are not
  // As a crash leaves the line between the two stores that say that a structure has its part.
  std::string file = intact;
  for_each_slot(file, [](pm::TransactionSlot& slot) { slot.applied |= slot.bytes != 0 ? 1 : 0; });
  write_file(path, file);
  EXPECT_EQ(look("x"), 100U);
  // As earlier builds leave it.
  file = intact;
  for_each_slot(file, [&](pm::TransactionSlot& slot) {
    if (slot.bytes == 0) return;
    slot.bytes = slot.length();
    slot.checksum = pm::checksum64(file.data() + slot.buffer, slot.bytes, slot.bytes);
    slot.check = 0;
  });
  write_file(path, file);
  EXPECT_EQ(look("y"), 200U);
  EXPECT_EQ(look("x"), 100U);
  EXPECT_EQ(look("z"), 100U);
  EXPECT_EQ(slots_with_records(read_file(path)), 0U);
}

// In a pool that others have filled since, and that was full when the process died.
TEST_F(TypedTransactions, AreFinishedInAFullPool) {
  constexpr uint64_t kMany = 10000;
  constexpr uint64_t kFew = 1000;
  const TempDir dir;
  const std::string path = dir.file("pool");
  PoolOptions options;
  options.growth_bytes = uint64_t{64} << 10;
  const auto fill_up = [](AnyIndex& filler, const std::function<bool()>& enough) {
    const std::string value(200, 'f');
    static uint64_t key = 0;
    try {
      while (!enough()) filler.upsert(++key, value);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
    }
  };
  // Before the process dies, it fills the pool itself, if so: it may take what is kept for the
  // transaction.
  const auto die_with = [&](uint64_t capacity_bytes, uint64_t keys, bool fills) {
    std::filesystem::remove(path);
    options.capacity_bytes = capacity_bytes;
    {
      Pool pool = Pool::create(path, options);
      create_index(pool, "x", "fast-fair", Kind::kU64, Kind::kU64, {});
      create_index(pool, "filler", "p-clht", Kind::kU64, Kind::kBytes, {});
    }
    Child child([&](int) {
      auto* pool = new Pool(Pool::open(path, options));
      AnyIndex& index = *open_index(*pool, "x").release();
      AnyIndex& filler = *open_index(*pool, "filler").release();
      const uint64_t grown = pool->info().size_bytes + (uint64_t{4} << 20);
      const AtPlace here("transaction: committed", [&] {
        if (fills) fill_up(filler, [&] { return pool->info().size_bytes >= grown; });
        ::raise(SIGKILL);
      });
      transact(*pool, [&](PoolTransaction& transaction) {
        for (uint64_t key = 0; key < keys; ++key) transaction.upsert(index, key, key);
      });
    });
    ASSERT_EQ(child.wait(), -SIGKILL);
  };
  const auto expect_all = [&](Pool& pool, uint64_t keys) {
    const auto index = open_index(pool, "x");
    uint64_t there = 0;
    index->for_each([&](Datum key, Datum value) { there += key == value ? 1 : 0; });
    EXPECT_EQ(there, keys);
  };
  // Room is kept when the pool is opened.
  ASSERT_NO_FATAL_FAILURE(die_with(uint64_t{8} << 20, kMany, false));
  {
    Pool pool = Pool::open(path, options);
    fill_up(*open_index(pool, "filler"), [] { return false; });
    expect_all(pool, kMany);
  }
  // There was none: the reserves have some for few keys, read-only or not.
  ASSERT_NO_FATAL_FAILURE(die_with(uint64_t{4} << 20, kFew, true));
  for (const bool read_only : {true, false}) {
    SCOPED_TRACE(read_only);
    options.read_only = read_only;
    Pool pool = Pool::open(path, options);
    expect_all(pool, kFew);
  }
  options.read_only = false;
  // The file has none, and may grow, but not by who only reads.
  ASSERT_NO_FATAL_FAILURE(die_with(uint64_t{64} << 20, kMany, true));
  options.read_only = true;
  const std::string file = read_file(path);
  {
    Pool pool = Pool::open(path, options);
    expect_all(pool, kMany);
  }
  EXPECT_TRUE(read_file(path) == file);
  options.read_only = false;
  Pool pool = Pool::open(path, options);
  expect_all(pool, kMany);
}

// Who waits for a slot is told when the medium fails, as are those that have one.
TEST_F(TypedTransactions, DoNotWaitForAMediumThatHasFailed) {
  const TempDir dir;
  PoolOptions options;
  options.capacity_bytes = uint64_t{32} << 20;
  options.force_domain = true;
  options.domain = Domain::kLine;
  {
    Pool pool = Pool::create(dir.file("pool"), options);
    create_index(pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
  }
  FailingMedium medium(dir.file("pool"), Domain::kLine);
  medium.begin();
  Pool pool = Pool::open(dir.file("pool"), options);
  const auto index = open_index(pool, "x");
  transact(pool, [&](PoolTransaction& transaction) {
    transaction.upsert(*index, 1000, 1);
    transaction.upsert(*index, 1001, 1);
  });
  constexpr uint32_t kWaiting = 8;
  std::atomic<uint32_t> committed{0};
  std::atomic<uint32_t> begun{0};
  std::atomic<bool> go_on{false};
  std::atomic<uint32_t> refused{0};
  Complaints complaints;
  std::vector<std::thread> threads;
  const AtPlace here("transaction: committed", [&] {
    ++committed;
    while (!go_on.load()) std::this_thread::yield();
  });
  for (uint32_t t = 0; t < pm::kTransactionSlots + kWaiting; ++t) {
    threads.emplace_back([&, t] {
      complaints.catch_in([&] {
        ++begun;
        if (fails_with(ErrorCode::kIo, [&] {
              transact(pool, [&](PoolTransaction& transaction) {
                transaction.upsert(*index, 2 * t, t);
                transaction.upsert(*index, 2 * t + 1, t);
              });
            })) {
          ++refused;
        }
      });
    });
  }
  while (committed.load() < pm::kTransactionSlots || begun.load() < threads.size()) {
    std::this_thread::yield();
  }
  medium.refuse_here(medium.persists(), true);
  go_on.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complaints.text(), "");
  EXPECT_EQ(refused.load(), threads.size());
}

// The medium fails while a transaction is taken back for want of room: whether it happened is open
// then, and the error says so.
TEST_F(TypedTransactions, TellOfAMediumThatFailsWhileTheyAreTakenBack) {
  const TempDir dir;
  PoolOptions options;
  options.capacity_bytes = uint64_t{32} << 20;
  options.force_domain = true;
  options.domain = Domain::kLine;
  {
    Pool pool = Pool::create(dir.file("pool"), options);
    create_index(pool, "x", "cceh", Kind::kU64, Kind::kU64, {});
  }
  static FailingMedium* failing = nullptr;
  FailingMedium medium(dir.file("pool"), Domain::kLine);
  failing = &medium;
  medium.begin();
  {
    Pool pool = Pool::open(dir.file("pool"), options);
    const auto index = open_index(pool, "x");
    static uint64_t come = 0;
    come = 0;
    pm::at_place.store([](const char* name) {
      const std::string_view place = name;
      if (place == "transaction: applies" && ++come == 2) throw Error(ErrorCode::kPoolFull, "full");
      if (place == "transaction: takes back") failing->refuse_here(failing->persists(), true);
    });
    PoolTransaction transaction(pool);
    transaction.upsert(*index, 1, 1);
    transaction.upsert(*index, 2, 1);
    EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { transaction.commit(); }));
    pm::at_place.store(nullptr);
    Value found;
    EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { index->upsert(3, 3); }));
  }
  medium.mend();
  Pool pool = Pool::open(dir.file("pool"), options);
  const auto index = open_index(pool, "x");
  Value found;
  EXPECT_EQ(index->lookup(1, found), index->lookup(2, found));
}

// Who gets an event of a pool may write to another one, in the middle of a commit.
TEST_F(TypedTransactions, MayBeginInAnotherPoolFromWithinOne) {
  Pool other = new_pool();
  auto counts = PClht<uint64_t, uint64_t>::create(other, "counts");
  uint64_t told = 0;
  std::atomic<bool> applies{false};
  PoolOptions options;
  options.capacity_bytes = uint64_t{8} << 20;
  options.nearly_full_percent = 50;
  options.on_event = [&](const PoolEvent& event) {
    if (event.kind != PoolEventKind::kNearlyFull) return;
    told += applies.load() ? 1 : 0;
    transact(other, [&](PoolTransaction& transaction) {
      transaction.increment(counts, 1);
      transaction.increment(counts, 2);
    });
  };
  Pool pool = Pool::anonymous(options);
  const auto index = create_index(pool, "x", "cceh", Kind::kU64, Kind::kBytes, {});
  const AtPlace here("transaction: committed", [&] { applies = true; });
  for (uint64_t key = 0; key < 1000 && told == 0; key += 2) {
    applies = false;
    transact(pool, [&](PoolTransaction& transaction) {
      transaction.upsert(*index, key, std::string(24 << 10, 'x'));
      transaction.upsert(*index, key + 1, "y");
    });
  }
  EXPECT_EQ(told, 1U);
  EXPECT_EQ(counts.get(1), 1U);
  EXPECT_EQ(counts.get(2), 1U);
}

// Memory runs out at each allocation of a commit: all of it happened or nothing, as the commit
// says, and later writes stay.
TEST_F(TypedTransactions, AreWholeWhenMemoryRunsOut) {
  for (const Domain domain : {Domain::kLine, Domain::kPage}) {
    const TempDir dir;
    const std::string path = dir.file("pool");
    PoolOptions options;
    options.capacity_bytes = uint64_t{8} << 20;
    options.force_domain = true;
    options.domain = domain;
    {
      Pool pool = Pool::create(path, options);
      for (const char* name : {"x", "y"}) {
        create_index(pool, name, "cceh", Kind::kU64, Kind::kU64, {})->upsert(1, 1);
      }
    }
    uint64_t last = 1;
    bool refused = true;
    for (uint64_t allocations = 0; refused; ++allocations) {
      SCOPED_TRACE(std::string(to_string(domain)) + " " + std::to_string(allocations));
      ASSERT_LT(allocations, 1000U);
      Pool pool = Pool::open(path, options);
      auto x = open_index(pool, "x");
      auto y = open_index(pool, "y");
      for (AnyIndex* index : {x.get(), y.get()}) {
        Value found;
        ASSERT_TRUE(index->lookup(1, found));
        ASSERT_EQ(found.word(), last);
      }
      const uint64_t value = 2 + allocations;
      PoolTransaction transaction(pool);
      for (AnyIndex* index : {x.get(), y.get()}) transaction.upsert(*index, 1, value);
      bool happened = true;
      // A thread of its own, which has allocated nothing yet.
      std::thread([&] {
        ShortMemory memory(allocations);
        try {
          transaction.commit();
        } catch (const std::exception&) {
          happened = false;
        }
        memory.end();
        refused = memory.refused() > 0;
      }).join();
      try {
        x->upsert(2, value);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
        x.reset(), x = open_index(pool, "x");  // blocked
        y.reset(), y = open_index(pool, "y");
        happened = true;
      }
      if (happened) last = value;
      for (AnyIndex* index : {x.get(), y.get()}) {
        Value found;
        ASSERT_TRUE(index->lookup(1, found));
        ASSERT_EQ(found.word(), last);
      }
      y->upsert(1, last = 5000 + value);
      x->upsert(1, last);
    }
    Pool pool = Pool::open(path, options);
    for (const char* name : {"x", "y"}) {
      Value found;
      ASSERT_TRUE(open_index(pool, name)->lookup(1, found));
      EXPECT_EQ(found.word(), last);
    }
  }
}

// A store that is opened as one.
TEST_F(TypedTransactions, AreFinishedByAStore) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  {
    Pool pool = Pool::create(path);
    perdure::Store::create(pool, "store");
    create_index(pool, "x", "cceh", Kind::kBytes, Kind::kBytes, {});
  }
  Child child([&](int) {
    const AtPlace here("transaction: committed", [] { ::raise(SIGKILL); });
    auto* pool = new Pool(Pool::open(path));
    AnyIndex& store = *open_index(*pool, "store").release();
    AnyIndex& index = *open_index(*pool, "x").release();
    for (int i = 0; i < 1000; ++i) store.upsert("other " + std::to_string(i), "x");
    store.upsert("gone", "x");
    transact(*pool, [&](PoolTransaction& transaction) {
      transaction.upsert(store, "a", "1");
      transaction.remove(store, "gone");
      transaction.upsert(index, "a", "1");
    });
  });
  ASSERT_EQ(child.wait(), -SIGKILL);
  {
    Pool pool = Pool::open(path);
    StoreOptions options;
    options.serve_early = true;
    perdure::Store store = perdure::Store::open(pool, "store", options);
    std::string found;
    EXPECT_TRUE(store.get("a", found));
    EXPECT_EQ(found, "1");
    EXPECT_FALSE(store.get("gone", found));
    store.put("a", "2");
  }
  Pool pool = Pool::open(path);
  perdure::Store store = perdure::Store::open(pool, "store");
  std::string found;
  EXPECT_TRUE(store.get("a", found));
  EXPECT_EQ(found, "2");
  EXPECT_EQ(store.size(), 1001U);
}

}  // namespace
}  // namespace perdure::test
