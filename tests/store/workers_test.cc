// Stores with workers, under a load so skewed that partitions move from one to the other: kills and
// power failures meanwhile.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "store/store_impl.h"
#include "support/at_place.h"
#include "support/child.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

constexpr uint32_t kThreads = 3;
constexpr uint64_t kKeys = 12;  // of each thread

// What a thread was told: its write `n` is done.
struct Done {
  uint64_t thread;
  uint64_t n;
};

// A thread's writes go round its keys, which are all in partitions that the first worker has at the
// begin: `a`, `c`, `e` and `g` are their ranges, every other one. Each fortieth writes the same to
// two partitions.
std::string key_of(uint64_t thread, uint64_t i) {
  return std::string(1, "aceg"[i % 4]) + std::to_string(thread) + "." + std::to_string(i);
}
std::string partner_of(uint64_t thread) { return "c" + std::to_string(thread) + ".partner"; }
bool is_pair(uint64_t n) { return n % 40 == 0; }
std::string first_of(uint64_t thread, uint64_t n) {
  return is_pair(n) ? "a" + std::to_string(thread) + ".first" : key_of(thread, n % kKeys);
}

std::string value_of(uint64_t n) { return std::to_string(n) + std::string(n % 90, '.'); }

void write(Store& store, uint64_t thread, uint64_t n) {
  const std::string value = value_of(n);
  if (is_pair(n)) {
    Store::Batch batch;
    batch.put(first_of(thread, n), value);
    batch.put(partner_of(thread), value);
    store.apply(batch);
  } else if (n % 7 == 0) {  // by a task, on a worker
    store.run(store.async_put(first_of(thread, n), value));
  } else {
    store.put(first_of(thread, n), value);
  }
}

class StoreWorkersTest : public testing::Test {
 protected:
  static StoreOptions options() {
    return {.index = StoreIndex::kOrdered,
            .boundaries = {"b", "c", "d", "e", "f", "g", "h"},
            .block_bytes = 1024,
            .recovery_threads = 1,
            .workers = 2,
            .balance = true};
  }
  std::string path() const { return folder_.file("pool"); }
  void create() const {
    Pool pool = Pool::create(path(), store_pool(4));
    Store::create(pool, "s", options());
  }

  // In a child. Writes from `from_` on, on several threads, until partitions have moved and then so
  // many writes of each thread; 0: for ever. Or until they are refused.
  void write_on(Store& store, int out, uint64_t more) {
    std::atomic<bool> enough{false};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (uint64_t left = more; more == 0 || left > 0;) {
            const Done done{t, from_[t]};
            write(store, t, done.n);
            ++from_[t];
            send(out, &done, sizeof done);
            if (enough) --left;
          }
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kIo) throw;
        }
      });
    }
    if (more != 0) {
      EXPECT_TRUE(has_moved(store));
      enough = true;
    }
    for (std::thread& thread : threads) thread.join();
  }
  // As write_on(), for ever, while partitions are moved on and on, far more often than a balancer
  // does it.
  void write_while_all_moves(const store::StoreImpl& store, int out,
                             const std::function<void(uint64_t thread, uint64_t n)>& write_one) {
    std::vector<std::thread> threads;
    std::atomic<bool> ended{false};
    std::thread mover([&] {
      for (uint32_t i = 0; !ended; ++i) store.move_partition(i % 4 * 2, (i / 4 + i) % 2);
    });
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (;;) {
            const Done done{t, from_[t]};
            write_one(t, done.n);
            ++from_[t];
            send(out, &done, sizeof done);
          }
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kIo) throw;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ended = true;
    mover.join();
  }
  static bool has_moved(const Store& store) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (figure(store, "moved_partitions") < 2) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  void note(const Done& done) {
    told_[first_of(done.thread, done.n)] = done.n;
    from_[done.thread] = done.n + 1;
  }

  // What was told is there, or what came after it, and nothing else. Goes on from there.
  void judge() {
    Pool pool = Pool::open(path(), store_pool(4));
    const Store store = Store::open(pool, "s");
    EXPECT_EQ(faults(store), "");
    const std::map<std::string, std::string> there = content(store);
    for (uint64_t t = 0; t < kThreads; ++t) {
      const uint64_t next = from_[t]++;  // was under way
      const std::string concerned = first_of(t, next);
      std::vector<std::string> keys{first_of(t, 0)};
      for (uint64_t i = 0; i < kKeys; ++i) keys.push_back(key_of(t, i));
      for (const std::string& key : keys) {
        const auto found = there.find(key);
        const uint64_t n = found == there.end() ? 0 : std::stoull(found->second);
        if (n == next && key == concerned) {
          told_[key] = n;
        } else {
          EXPECT_EQ(n, told_[key]) << key;
        }
        if (n != 0) {
          EXPECT_EQ(found->second, value_of(n)) << key;
        }
      }
      if (there.contains(keys[0])) {
        EXPECT_EQ(there.at(keys[0]), there.at(partner_of(t)));
      }
    }
  }

  TempDir folder_;
  Random random_{base_seed()};
  std::vector<uint64_t> from_ = std::vector<uint64_t>(kThreads, 1);
  std::map<std::string, uint64_t> told_;
};

TEST_F(StoreWorkersTest, PartitionsMoveUnderASkewedLoadAndNothingIsCountedTwice) {
  Pool pool = Pool::create(path(), store_pool(4));
  Store store = Store::create(pool, "s", options());
  std::atomic<bool> enough{false};
  std::vector<uint64_t> counted(kThreads);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; !enough; ++i, ++counted[t]) {
        const std::string key(1, "aceg"[i % 4]);
        if (i % 2 == 0) {
          store.increment(key);
        } else {
          store.run(store.async_increment(key));
        }
      }
    });
  }
  EXPECT_TRUE(has_moved(store));
  enough = true;
  for (std::thread& thread : threads) thread.join();
  int64_t sum = 0;
  uint64_t all = 0;
  for (const char key : {'a', 'c', 'e', 'g'}) {
    sum += std::stoll(store.get(std::string(1, key)).value_or("0"));
  }
  for (const uint64_t one : counted) all += one;
  EXPECT_EQ(sum, static_cast<int64_t>(all));
  EXPECT_EQ(faults(store), "");
}

TEST_F(StoreWorkersTest, KilledWhilePartitionsMoveItHasLostNothing) {
  create();
  for (uint64_t round = 0; round < scaled(6) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Child child([&](int out) {
      auto* pool = new Pool(Pool::open(path(), store_pool(4)));  // never closed
      auto* store = new Store(Store::open(*pool, "s", options()));
      write_on(*store, out, 0);
    });
    Done done{};
    for (uint64_t left = random_.below(30'000); left > 0; --left) {
      ASSERT_TRUE(child.receive(&done, sizeof done));
      note(done);
    }
    child.kill();
    while (child.receive(&done, sizeof done)) note(done);
    ASSERT_EQ(child.wait(), -SIGKILL);
    judge();
  }
}

TEST_F(StoreWorkersTest, WhenThePowerFailsWhilePartitionsMoveItHasLostNothing) {
  create();
  using Image = FailingMedium::Image;
  constexpr Image kImages[] = {Image::kMixed, Image::kLeast, Image::kAll};
  for (uint64_t round = 0; round < scaled(12) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const uint64_t n = random_.below(uint64_t{1} << (2 + random_.below(9)));
    const uint64_t seed = random_.next();
    Child child([&](int out) {
      FailingMedium medium(path(), Domain::kLine);
      medium.begin();
      try {
        Pool pool = Pool::open(path(), store_pool(4));
        Store store = Store::open(pool, "s", options());
        write_on(store, out, 1);
        medium.refuse_here(medium.persists() + n, true);
        write_on(store, out, 0);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) throw;
      }
      std::filesystem::rename(medium.make_image(kImages[round % 3], seed), path());
    });
    Done done{};
    while (child.receive(&done, sizeof done)) note(done);
    ASSERT_EQ(child.wait(), 0);
    judge();
  }
}

// Of what the medium is sure to have: what a thread has flushed and fenced itself.
TEST_F(StoreWorkersTest, WhenThePowerFailsWhilePartitionsMoveOnAndOnItHasLostNothing) {
  create();
  for (uint64_t round = 0; round < scaled(24) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const uint64_t n = random_.below(uint64_t{1} << (4 + random_.below(9)));
    const uint64_t seed = random_.next();
    Child child([&](int out) {
      FailingMedium medium(path(), Domain::kLine);
      medium.begin();
      try {
        Pool pool = Pool::open(path(), store_pool(4));
        StoreOptions without_balance = options();
        without_balance.balance = false;
        const auto store = store::StoreImpl::open(pool, "s", without_balance);
        medium.refuse_here(medium.persists() + n, true);
        write_while_all_moves(*store, out, [&](uint64_t thread, uint64_t number) {
          const std::string value = value_of(number);
          if (!is_pair(number)) {
            store->write({.key = first_of(thread, number), .value = value});
            return;
          }
          Store::Batch batch;
          batch.put(first_of(thread, number), value);
          batch.put(partner_of(thread), value);
          store->apply(batch);
        });
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) throw;
      }
      std::filesystem::rename(medium.make_image(FailingMedium::Image::kLeast, seed), path());
    });
    Done done{};
    while (child.receive(&done, sizeof done)) note(done);
    ASSERT_EQ(child.wait(), 0);
    judge();
  }
}

// A fence orders the stores of its own thread alone. So whoever gives a partition away has fenced
// all that it has flushed: records, copies of compaction, and what is done after the fence of a
// batch, such as to free long values, and to begin a snapshot of the index or a checkpoint.
class StoreHandOverTest : public testing::TestWithParam<StoreIndex> {};

TEST_P(StoreHandOverTest, LeavesNothingToTheFenceOfTheNextOwner) {
  const TempDir folder;
  const std::string path = folder.file("pool");
  FailingMedium medium(path, Domain::kLine);
  Pool pool = Pool::create(path, store_pool(8));
  medium.begin();
  StoreOptions options = tiny_store(GetParam(), 4);
  options.index_snapshot_percent = 5;
  options.workers = 2;
  const auto store = store::StoreImpl::create(pool, "s", options);
  std::atomic<uint64_t> handed_over{0};
  std::atomic<uint64_t> unfenced{0};
  const AtPlace here("store: hand-over", [&] {
    ++handed_over;
    if (!FailingMedium::has_fenced_all()) ++unfenced;
  });
  std::atomic<bool> ended{false};
  std::thread mover([&] {
    for (uint32_t i = 0; !ended; ++i) store->move_partition(i % 4, (i / 4 + i) % 2);
  });
  std::vector<std::thread> writers;
  for (uint64_t t = 0; t < kThreads; ++t) {
    writers.emplace_back([&, t] {
      Random random(base_seed() + t);
      for (uint64_t n = 0; n < scaled(6000); ++n) {
        const std::string key = std::to_string(random.below(300));
        const uint64_t bytes = random.below(n % 20 == 0 ? 3000 : 90);
        if (random.below(5) == 0) {
          store->remove(key);
        } else {
          store->write({.key = key, .value = std::string(bytes, 'v')});
        }
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  ended = true;
  mover.join();
  EXPECT_GT(handed_over, 100U);
  EXPECT_EQ(unfenced, 0U) << "of " << handed_over;
  EXPECT_EQ(store->check([](const std::string& sentence) { ADD_FAILURE() << sentence; }), 0U);
  std::map<std::string, double> figures;
  for (const Statistic& one : store->statistics()) figures[one.name] = one.value;
  EXPECT_GT(figures["compacted_blocks"], 0);
  EXPECT_GT(figures[GetParam() == StoreIndex::kPm ? "checkpoints" : "index_snapshots"], 0);
}

INSTANTIATE_TEST_SUITE_P(Indexes, StoreHandOverTest,
                         testing::Values(StoreIndex::kHash, StoreIndex::kOrdered, StoreIndex::kPm),
                         name_of_index);

}  // namespace
}  // namespace perdure::test
