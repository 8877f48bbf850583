// More threads than there are processors, lanes of the heap, or places for epoch guards.
#include <unistd.h>

#include <barrier>
#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pm/heap.h"
#include "pm/layout.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// What waits for ever is ended, and told.
constexpr unsigned kHangs_s = kUnderThreadSanitizer || kUnderAddressSanitizer ? 200 : 60;

constexpr uint64_t kOwnKeys = 8;

// Records of one thread: keys from `first` on, a batch of them.
struct OwnRecords {
  OwnRecords(TypedIndex index, uint64_t first, uint64_t value) {
    for (uint64_t i = 0; i < kOwnKeys; ++i) {
      data.push_back(make_key(index.any().key_kind(), first + i));
      data.push_back(make_value(index.any().value_kind(), value + i));
    }
    for (uint64_t i = 0; i < kOwnKeys; ++i) {
      records.push_back({data[2 * i].datum(), data[2 * i + 1].datum()});
      keys.push_back(data[2 * i].datum());
    }
  }
  std::vector<Value> data;
  std::vector<AnyRecord> records;
  std::vector<Datum> keys;
};

class ManyThreads : public ScenarioTest {
 protected:
  // What one thread does with its keys, and what it finds wrong. Leaves all but the last of them,
  // each with its number plus 1 as its value.
  static std::string work(TypedIndex index, uint64_t first, bool removes) {
    bool flags[kOwnKeys] = {};
    const OwnRecords inserted(index, first, first);
    if (index.any().multi_insert(inserted.records, flags) != kOwnKeys)
      return "a batch of inserts fails\n";
    const OwnRecords changed(index, first, first + 1);
    index.any().multi_upsert(changed.records);
    std::vector<Value> values(kOwnKeys);
    if (index.any().multi_lookup(changed.keys, values, flags) != kOwnKeys)
      return "a batch of lookups misses\n";
    for (uint64_t i = 0; i < kOwnKeys; ++i) {
      if (value_number(values[i].datum()) != first + 1 + i) return "a lookup finds a wrong value\n";
    }
    if (index.insert(first, 0)) return "an insert of a present key succeeds\n";
    if (!index.update(first, first + 1)) return "an update fails\n";
    if (removes && !index.remove(first + kOwnKeys - 1)) return "a removal fails\n";
    return {};
  }

  static void expect(Model& model, uint64_t first, bool removes) {
    for (uint64_t i = 0; i < kOwnKeys - (removes ? 1 : 0); ++i) model[first + i] = first + 1 + i;
  }

  // All threads live at once, and have had an epoch guard, before any of them ends.
  std::string run(TypedIndex index, uint32_t count, uint64_t rounds, Model& model) {
    std::string wrong;
    std::mutex mutex;
    std::barrier meeting(count);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        std::string mine;
        try {
          index.lookup(t);
          meeting.arrive_and_wait();
          for (uint64_t round = 0; round < rounds && mine.empty(); ++round) {
            mine = work(index, (round * count + t) * kOwnKeys, true);
          }
        } catch (const std::exception& error) {
          mine = std::string(error.what()) + "\n";
        }
        meeting.arrive_and_wait();
        const std::lock_guard lock(mutex);
        if (wrong.size() < 500) wrong += mine;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint64_t n = 0; n < count * rounds; ++n) expect(model, n * kOwnKeys, true);
    return wrong;
  }

  // `body` in a child; what it returns, and whether it ended.
  static std::string bounded(const std::function<std::string()>& body) {
    Child child([&](int out) {
      ::alarm(kHangs_s);
      const std::string text = body();
      send(out, text.data(), text.size());
    });
    const std::string text = child.receive_rest();
    const int status = child.wait();
    if (status == 0) return text;
    return text + (status == -SIGALRM ? "it hangs\n"
                                      : "it ends with status " + std::to_string(status) + "\n");
  }

  std::string count_after(uint32_t threads, uint64_t rounds) {
    return bounded([&] {
      Store store = create_small(MiB(128));
      Model model;
      std::string wrong = run(store.typed(), threads, rounds, model);
      const uint64_t universe = threads * rounds * kOwnKeys;
      wrong += difference(store.typed(), model, universe);
      wrong += faults(store.pool, {store.index.get()});
      store.close();
      store = reopen(MiB(128));
      wrong += difference(store.typed(), model, universe);
      wrong += faults_and_leaks(store.pool, {store.index.get()});
      return wrong;
    });
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ManyThreads);

TEST_P(ManyThreads, TwiceAsManyAsLanesWriteBatches) { EXPECT_EQ(count_after(64, scaled(12)), ""); }

TEST_P(ManyThreads, MoreThanAThousandLiveAtOnce) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "the sanitizer's own tables are too small";
  // They wait for descriptors, which come back when all that pin an epoch have gone on, and those
  // wait for lanes.
  if (GetParam().structure == "bztree") GTEST_SKIP() << "takes minutes";
  EXPECT_EQ(count_after(1100, 1), "");
}

// A thread needs one lane at a time: with all others taken it must not wait.
TEST_P(ManyThreads, AllLanesButOneAreTaken) {
  EXPECT_EQ(bounded([&] {
              Store store = create_small(MiB(64));
              std::latch taken(pm::kLanes - 1);
              std::latch done(1);
              std::vector<std::thread> holders;
              for (uint32_t i = 0; i + 1 < pm::kLanes; ++i) {
                holders.emplace_back([&] {
                  const pm::Heap::Txn txn(pm::impl_of(store.pool).heap());
                  taken.count_down();
                  done.wait();
                });
              }
              taken.wait();
              std::string wrong;
              Model model;
              const uint64_t batches = scaled(400);
              for (uint64_t n = 0; n < batches && wrong.empty(); ++n) {
                wrong = work(store.typed(), n * kOwnKeys, true);
                expect(model, n * kOwnKeys, true);
              }
              wrong += difference(store.typed(), model, batches * kOwnKeys);
              done.count_down();
              for (std::thread& holder : holders) holder.join();
              return wrong;
            }),
            "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, ManyThreads, wanted(concurrent_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
