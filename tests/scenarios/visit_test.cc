// Values that are seen where they lie.
#include <atomic>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "pm/pool_impl.h"
#include "support/complaints.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

std::vector<Case> cases_of_bytes(std::vector<Case> from) {
  std::erase_if(from, [](const Case& c) { return c.value != Kind::kBytes; });
  return from;
}

class Visit : public ScenarioTest {
 protected:
  // Those whose reads would keep writers out, or memory from them that they wait for.
  static bool copies() {
    const std::string& name = GetParam().structure;
    return name.starts_with("bztree") || name.starts_with("sheaf") || name.starts_with("rstore");
  }
};

TEST_P(Visit, SeesWhatLookupFinds) {
  const Store store = create_small(MiB(64));
  constexpr uint64_t kKeys = 2000;
  for (uint64_t i = 0; i < kKeys; i += 2) store.index->insert(key(i).datum(), value(i).datum());
  const pm::PoolImpl& pool = pm::impl_of(store.pool);
  uint64_t inside = 0;
  for (uint64_t i = 0; i < kKeys; ++i) {
    int calls = 0;
    const bool there = store.index->visit(key(i).datum(), [&](Datum seen) {
      ++calls;
      EXPECT_TRUE(seen == value(i).datum()) << i;
      if (seen.kind() != Kind::kBytes) return;
      const char* const at = seen.bytes().data();
      inside += at >= pool.base() && at < pool.base() + pool.capacity_bytes() ? 1 : 0;
    });
    EXPECT_EQ(there, i % 2 == 0);
    EXPECT_EQ(calls, there ? 1 : 0);
  }
  const bool lies_there = GetParam().value == Kind::kBytes && !copies();
  EXPECT_EQ(inside, lies_there ? kKeys / 2 : 0);
}

TEST_P(Visit, PassesOnWhatIsThrown) {
  const Store store = create_small(MiB(64));
  store.index->insert(key(1).datum(), value(1).datum());
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(
        store.index->visit(key(1).datum(), [](Datum) { throw std::runtime_error("mine"); }),
        std::runtime_error);
    store.index->upsert(key(1).datum(), value(2).datum());
  }
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

// What it sees stays, whatever becomes of the key, and however much is written meanwhile.
TEST_P(Visit, MayWriteToTheIndex) {
  const Store store = create_small(MiB(256));
  AnyIndex& index = *store.index;
  constexpr uint64_t kKeys = 500;
  std::map<uint64_t, uint64_t> model;
  for (uint64_t i = 0; i < kKeys; ++i) {
    index.insert(key(i).datum(), value(i).datum());
    model[i] = i;
  }
  uint64_t stamp = kKeys;
  for (const uint64_t round : {0, 1, 2}) {
    EXPECT_TRUE(index.visit(key(round).datum(), [&](Datum seen) {
      const Value before = value(model.at(round));
      index.remove(key(round).datum());
      model.erase(round);
      for (int i = 0; i < 10'000; ++i) {
        const uint64_t number = random_.below(kKeys);
        if (random_.chance(20)) {
          index.remove(key(number).datum());
          model.erase(number);
        } else {
          index.upsert(key(number).datum(), value(++stamp).datum());
          model[number] = stamp;
        }
      }
      EXPECT_TRUE(index.visit(key(kKeys + 1).datum(), [](Datum) {}) == model.contains(kKeys + 1));
      EXPECT_TRUE(seen == before.datum());
    }));
    index.upsert(key(round + 1).datum(), value(++stamp).datum());
    model[round + 1] = stamp;
  }
  for (uint64_t i = 0; i < kKeys; ++i) {
    const bool there = index.visit(key(i).datum(), [&](Datum seen) {
      ASSERT_TRUE(model.contains(i));
      EXPECT_TRUE(seen == value(model.at(i)).datum());
    });
    EXPECT_EQ(there, model.contains(i)) << i;
  }
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Visit, wanted(all_cases()), case_name);

class VisitBeside : public ScenarioTest {};

// Values of one letter, of many lengths: what is seen is one of them, and stays so.
TEST_P(VisitBeside, WritersWhoReplaceSeesWholeValues) {
  const Store store = create_small(MiB(256));
  AnyIndex& index = *store.index;
  constexpr uint64_t kKeys = 8;
  constexpr uint64_t kWrites = 6000;
  const auto letters = [](uint64_t number) {
    return std::string(8 + number * 37 % 2000, static_cast<char>('a' + number % 26));
  };
  for (uint64_t i = 0; i < kKeys; ++i) index.upsert(key(i).datum(), letters(i));
  std::atomic<int> writing{2};
  Complaints complaints;
  const auto write = [&](uint64_t first) {
    for (uint64_t n = 0; n < kWrites; ++n) {
      const Value which = key((n + first) % kKeys);
      if (n % 11 == 10) index.remove(which.datum());
      index.upsert(which.datum(), letters(n * 2 + first));
    }
  };
  const auto read = [&] {
    for (uint64_t n = 0; writing.load() != 0; ++n) {
      index.visit(key(n % kKeys).datum(), [&](Datum seen) {
        const std::string copy(seen.bytes());
        if (n % 16 == 0) std::this_thread::yield();
        const bool is_whole = copy.size() >= 8 && copy.find_first_not_of(copy[0]) == copy.npos;
        if (!is_whole || copy != seen.bytes()) complaints.add("a value that is not whole");
      });
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t first : {0, 1}) {
    threads.emplace_back([&, first] {
      complaints.catch_in([&] { write(first); });
      --writing;
    });
    threads.emplace_back([&] { complaints.catch_in(read); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complaints.text(), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, VisitBeside, wanted(cases_of_bytes(concurrent_cases())),
                         case_name);

}  // namespace
}  // namespace perdure::test
