// Scans in descending order, against a std::map, on every structure that keeps an order.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/complaints.h"
#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// A key as a byte string that compares as the key does.
std::string place_of(Datum key) {
  if (key.kind() == Kind::kBytes) return std::string(key.bytes());
  std::string place(8, '\0');
  for (int i = 0; i < 8; ++i) place[i] = static_cast<char>(key.word() >> (56 - 8 * i));
  return place;
}

struct Seen {
  std::string place;
  uint64_t value;
  bool operator==(const Seen&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  return out << testing::PrintToString(seen.place) << ": " << seen.value;
}

class ScanBack : public ScenarioTest {
 protected:
  static constexpr uint64_t kAll = ~uint64_t{0};
  using Ordered = std::map<std::string, uint64_t>;  // number of the value, by place

  void put(AnyIndex& index, uint64_t number, uint64_t of_value) {
    index.upsert(key(number).datum(), value(of_value).datum());
    model_[place_of(key(number).datum())] = of_value;
  }
  void drop(AnyIndex& index, uint64_t number) {
    const bool there = model_.erase(place_of(key(number).datum())) > 0;
    ASSERT_EQ(index.remove(key(number).datum()), there);
  }

  static Seen seen(Datum key, Datum value) {
    return {place_of(key), value_number(value).value_or(TypedIndex::kTorn)};
  }
  static std::vector<Seen> back(const AnyIndex& index, std::optional<Datum> from, uint64_t limit) {
    std::vector<Seen> all;
    index.scan_back(from, limit, [&](Datum key, Datum value) {
      all.push_back(seen(key, value));
      return true;
    });
    return all;
  }
  std::vector<Seen> expected(std::optional<Datum> from, uint64_t limit) const {
    std::vector<Seen> all;
    auto at = std::make_reverse_iterator(from ? model_.upper_bound(place_of(*from)) : model_.end());
    for (; at != model_.rend() && all.size() < limit; ++at) all.push_back({at->first, at->second});
    return all;
  }

  // All of it, and some from every `step`th key number below `universe`, which may be there or not.
  void expect_model(const AnyIndex& index, uint64_t universe, uint64_t step) const {
    ASSERT_EQ(back(index, std::nullopt, kAll), expected(std::nullopt, kAll));
    std::vector<Seen> forward;
    const Datum least = GetParam().key == Kind::kU64 ? Datum(0) : Datum(std::string_view());
    index.scan(least, kAll, [&](Datum key, Datum value) {
      forward.push_back(seen(key, value));
      return true;
    });
    std::ranges::reverse(forward);
    ASSERT_EQ(forward, expected(std::nullopt, kAll));
    for (uint64_t number = 0; number < universe; number += step) {
      const Value from = key(number);
      const uint64_t limit = number % 7 == 0 ? 150 : 1 + number % 9;
      ASSERT_EQ(back(index, from.datum(), limit), expected(from.datum(), limit))
          << "from key " << number;
    }
    for (const uint64_t limit : {0, 1, 2, 17, 300}) {
      ASSERT_EQ(back(index, std::nullopt, limit), expected(std::nullopt, limit)) << limit;
    }
  }

  Ordered model_;
};

// Grown, thinned out, emptied in part and grown again; after each step, and opened anew.
TEST_P(ScanBack, AgreesWithTheModelFromEveryKey) {
  constexpr uint64_t kUniverse = 1200;
  Store store = create_small(MiB(256));
  ASSERT_NO_FATAL_FAILURE(expect_model(*store.index, 20, 1));  // of nothing
  for (const uint64_t chance_to_drop : {0, 60, 95, 20, 100}) {
    SCOPED_TRACE(chance_to_drop);
    for (uint64_t i = 0; i < kUniverse; ++i) {
      const uint64_t number = random_.below(kUniverse);
      if (random_.chance(chance_to_drop)) {
        ASSERT_NO_FATAL_FAILURE(drop(*store.index, number));
      } else {
        put(*store.index, number, random_.below(1 << 20));
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_model(*store.index, kUniverse, 1));
    store.close();
    store = reopen(MiB(256));
    ASSERT_NO_FATAL_FAILURE(expect_model(*store.index, kUniverse, 5));
  }
  for (uint64_t number = 0; number < kUniverse; ++number) drop(*store.index, number);
  ASSERT_NO_FATAL_FAILURE(expect_model(*store.index, kUniverse, 50));
}

// Ranges that are emptied as a whole: leaves go, and what is before them is found all the same.
TEST_P(ScanBack, PassesOverWhatWasEmptied) {
  constexpr uint64_t kUniverse = 1000;
  Store store = create_small(MiB(256));
  for (uint64_t number = 0; number < kUniverse; ++number) put(*store.index, number, number);
  std::vector<std::pair<std::string, uint64_t>> ordered;
  for (uint64_t number = 0; number < kUniverse; ++number) {
    ordered.emplace_back(place_of(key(number).datum()), number);
  }
  std::ranges::sort(ordered);
  for (const auto& [begin, end] : {std::pair{100, 400}, {0, 50}, {900, 1000}, {410, 899}}) {
    for (int i = begin; i < end; ++i)
      ASSERT_NO_FATAL_FAILURE(drop(*store.index, ordered[i].second));
    ASSERT_NO_FATAL_FAILURE(expect_model(*store.index, kUniverse, 3));
  }
}

// The least and the greatest keys there are, and byte strings of which one begins with the other.
TEST_P(ScanBack, ReachesTheEndsOfTheKeys) {
  Store store = create_small(MiB(64));
  std::vector<Value> keys;
  if (GetParam().key == Kind::kU64) {
    constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
    for (const uint64_t word : {uint64_t{0}, uint64_t{1}, kMax, kMax - 1, kMax / 2, kMax / 2 + 1}) {
      keys.emplace_back().set(word);
    }
  } else {
    const auto longest = std::min<uint64_t>(GetParam().entry().traits.key_bytes_max, 1024);
    std::vector<std::string> texts = {"", std::string(1, '\0'), std::string(2, '\0'), "a", "b"};
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{9}, uint64_t{16},
                                 uint64_t{17}, longest}) {
      texts.emplace_back(bytes, '\xff');
      texts.emplace_back(bytes + (bytes < longest ? 1 : 0), 'a');
      texts.push_back(std::string(std::min(bytes, longest - 1), 'a') + '\0');
    }
    for (const std::string& text : texts) keys.emplace_back().set_bytes() = text;
  }
  for (size_t there = 0; there <= keys.size(); ++there) {
    for (const Value& from : keys) {
      ASSERT_EQ(back(*store.index, from.datum(), kAll), expected(from.datum(), kAll)) << there;
    }
    ASSERT_EQ(back(*store.index, std::nullopt, kAll), expected(std::nullopt, kAll)) << there;
    if (there == keys.size()) break;
    store.index->upsert(keys[there].datum(), value(there).datum());
    model_[place_of(keys[there].datum())] = there;
  }
}

TEST_P(ScanBack, EndsWhenItIsToldTo) {
  Store store = create_small(MiB(64));
  for (uint64_t number = 0; number < 500; ++number) put(*store.index, number, number);
  const std::vector<Seen> all = expected(std::nullopt, kAll);
  for (const size_t stop : {1, 2, 63, 250, 499}) {
    std::vector<Seen> some;
    store.index->scan_back(std::nullopt, kAll, [&](Datum key, Datum value) {
      some.push_back(seen(key, value));
      return some.size() < stop;
    });
    ASSERT_EQ(some, std::vector(all.begin(), all.begin() + static_cast<ptrdiff_t>(stop)));
  }
}

// The visitor removes what it is shown, and writes before and behind it; or reads.
TEST_P(ScanBack, GoesOnWhateverTheVisitorDoes) {
  constexpr uint64_t kKeys = 600;
  Store store = create_small(MiB(256));
  std::map<std::string, uint64_t> numbers;
  for (uint64_t number = 0; number < kKeys; ++number) {
    put(*store.index, number, number);
    numbers[place_of(key(number).datum())] = number;
  }
  const std::vector<Seen> before = expected(std::nullopt, kAll);
  std::vector<Seen> visited;
  store.index->scan_back(std::nullopt, kAll, [&](Datum at, Datum of) {
    const Seen now = seen(at, of);
    if (numbers.contains(now.place)) {
      visited.push_back(now);
      store.index->remove(key(numbers[now.place]).datum());
      store.index->upsert(key(kKeys + visited.size()).datum(), value(1).datum());
      if (visited.size() % 50 == 0) {
        EXPECT_EQ(back(*store.index, std::nullopt, 1).size(), 1U);
      }
    }
    return true;
  });
  ASSERT_EQ(visited, before);
  for (uint64_t number = 0; number < kKeys; ++number) {
    ASSERT_FALSE(store.typed().lookup(number).has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, ScanBack, wanted(ordered_cases()), case_name);

class ScanBackBeside : public ScanBack {};

// Keys that nobody touches are seen once each, in descending order, while threads make the leaves
// between them split, merge, and go.
TEST_P(ScanBackBeside, WritersSeesWhatStaysExactlyOnce) {
  constexpr uint64_t kKeys = 1500;
  constexpr uint64_t kStay = 5;  // every 5th
  Store store = create_small(MiB(512));
  for (uint64_t number = 0; number < kKeys; number += kStay) put(*store.index, number, number);
  const std::vector<Seen> staying = expected(std::nullopt, kAll);
  Complaints complaints;
  {
    std::vector<std::jthread> writers;
    for (uint64_t thread = 0; thread < 2; ++thread) {
      writers.emplace_back([&, thread](const std::stop_token& stop) {
        complaints.catch_in([&] {
          const TypedIndex index = store.typed();
          for (uint64_t sweep = 0; !stop.stop_requested(); ++sweep) {
            for (uint64_t i = 0; i < kKeys && !stop.stop_requested(); ++i) {
              const uint64_t number = (i * 7 + thread * 701) % kKeys;
              if (number % kStay == 0) continue;
              if ((sweep + thread) % 2 == 0) {
                index.upsert(number, sweep);
              } else {
                index.remove(number);
              }
            }
          }
        });
      });
    }
    const uint64_t rounds = scaled(60);
    for (uint64_t round = 0; round < rounds; ++round) {
      const Value from = key(random_.below(kKeys));
      const bool whole = round % 2 == 0;
      std::optional<std::string> last;
      std::vector<Seen> kept;
      store.index->scan_back(whole ? std::nullopt : std::optional(from.datum()), kAll,
                             [&](Datum at, Datum of) {
                               Seen now = seen(at, of);
                               if (last && now.place >= *last) complaints.add("does not descend");
                               if (now.value == TypedIndex::kTorn) complaints.add("a torn value");
                               last = now.place;
                               if (model_.contains(now.place)) kept.push_back(std::move(now));
                               return true;
                             });
      if (kept != (whole ? staying : expected(from.datum(), kAll))) {
        complaints.add("a scan lacks, or repeats, records that nobody touches");
      }
      if (!complaints.text().empty()) break;
    }
  }
  EXPECT_EQ(complaints.text(), "");
}

// Ranges of all sizes, from and up to keys that are there or not, until nothing is left.
TEST_P(ScanBack, RangesAreRemovedAndNothingElse) {
  constexpr uint64_t kUniverse = 2000;
  Store store = create_small(MiB(256));
  for (uint64_t number = 0; number < kUniverse; number += 2) put(*store.index, number, number);
  const Datum least = GetParam().key == Kind::kU64 ? Datum(0) : Datum(std::string_view());
  const auto remove = [&](std::optional<uint64_t> first, std::optional<uint64_t> last) {
    const Value from = key(first.value_or(0));
    const Value to = key(last.value_or(0));
    const Datum begin = first ? from.datum() : least;
    const auto low = model_.lower_bound(place_of(begin));
    const auto high = last ? model_.lower_bound(place_of(to.datum())) : model_.end();
    uint64_t expected = 0;
    if (!last || place_of(begin) < place_of(to.datum())) {
      expected = static_cast<uint64_t>(std::distance(low, high));
      model_.erase(low, high);
    }
    ASSERT_EQ(store.index->remove_range(begin, last ? std::optional(to.datum()) : std::nullopt),
              expected);
    ASSERT_EQ(back(*store.index, std::nullopt, kAll), this->expected(std::nullopt, kAll));
  };
  ASSERT_NO_FATAL_FAILURE(remove(7, 7));
  ASSERT_NO_FATAL_FAILURE(remove(100, 101));
  for (int i = 0; i < 25; ++i)
    ASSERT_NO_FATAL_FAILURE(remove(random_.below(kUniverse), random_.below(kUniverse)));
  ASSERT_NO_FATAL_FAILURE(remove(std::nullopt, 50));
  ASSERT_NO_FATAL_FAILURE(remove(1900, std::nullopt));
  ASSERT_NO_FATAL_FAILURE(remove(std::nullopt, std::nullopt));
  ASSERT_TRUE(model_.empty());
}

TEST_P(ScanBack, ARangeHasBoundsOfTheKeysKind) {
  Store store = create_small(MiB(64));
  for (uint64_t number = 0; number < 10; ++number) put(*store.index, number, number);
  const bool words = GetParam().key == Kind::kU64;
  const Datum least = words ? Datum(0) : Datum(std::string_view());
  const Datum other = words ? Datum(std::string_view("zzz")) : Datum(~uint64_t{0});
  EXPECT_TRUE(
      fails_with(ErrorCode::kWrongType, "kind", [&] { store.index->remove_range(least, other); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "kind",
                         [&] { store.index->remove_range(other, std::nullopt); }));
  EXPECT_EQ(back(*store.index, std::nullopt, kAll), expected(std::nullopt, kAll));
}

std::vector<Case> ordered_concurrent_cases() {
  std::vector<Case> cases = ordered_cases();
  std::erase_if(cases, [](const Case& c) { return !c.entry().traits.concurrent; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Catalog, ScanBackBeside, wanted(ordered_concurrent_cases()), case_name);

class NoScanBack : public ScenarioTest {};

TEST_P(NoScanBack, IsRefusedWithoutAnOrder) {
  Store store = create_small(MiB(64));
  const Value first = key(0);
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "order",
                         [&] { store.index->remove_range(first.datum(), std::nullopt); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "order", [&] {
    store.index->scan_back(std::nullopt, 1, [](Datum, Datum) { return true; });
  }));
}

INSTANTIATE_TEST_SUITE_P(Catalog, NoScanBack, wanted(unordered_cases()), case_name);

}  // namespace
}  // namespace perdure::test
