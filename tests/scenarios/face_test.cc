// What an index offers beside its single calls, on every structure: whether a key is there and what
// it has, how many records there are, and, in order, cursors.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "perdure/typed.h"
#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class Face : public ScenarioTest {
 protected:
  static constexpr uint64_t kUniverse = 400;

  // Every other key number at most.
  std::map<uint64_t, uint64_t> fill(AnyIndex& index) {
    std::map<uint64_t, uint64_t> model;
    for (uint64_t i = 0; i < kUniverse; i += 1 + random_.below(3)) {
      index.upsert(key(i), value(i + 1));
      model[i] = i + 1;
    }
    return model;
  }
};

TEST_P(Face, TellsWhatIsThere) {
  const Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  EXPECT_EQ(index.size(), 0);
  const std::map<uint64_t, uint64_t> model = fill(index);
  EXPECT_EQ(index.size(), model.size());
  for (uint64_t i = 0; i < kUniverse; ++i) {
    const auto there = model.find(i);
    EXPECT_EQ(index.contains(key(i)), there != model.end()) << i;
    const std::optional<Value> found = index.get(key(i));
    ASSERT_EQ(found.has_value(), there != model.end()) << i;
    if (found) {
      EXPECT_EQ(*found, value(there->second)) << i;
    }
  }
}

TEST_P(Face, UpdatesByAFunction) {
  const Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  const auto next = [&](const Value& before) {
    EXPECT_EQ(before, value(1));
    return value(2);
  };
  EXPECT_FALSE(index.update(key(1), next));
  EXPECT_FALSE(index.contains(key(1)));
  index.insert(key(1), value(1));
  EXPECT_TRUE(index.update(key(1), next));
  EXPECT_EQ(index.get(key(1)), value(2));
}

INSTANTIATE_TEST_SUITE_P(Catalog, Face, wanted(all_cases()), case_name);

// As the keys are ordered.
bool before(const Value& a, const Value& b) {
  return a.kind() == Kind::kU64 ? a.word() < b.word() : a.bytes() < b.bytes();
}

class CursorOfAny : public Face {
 protected:
  using Records = std::vector<std::pair<Value, Value>>;

  Records expected(const std::map<uint64_t, uint64_t>& model) const {
    Records records;
    for (const auto& [of_key, of_value] : model) records.emplace_back(key(of_key), value(of_value));
    std::ranges::sort(records, before, &Records::value_type::first);
    return records;
  }
  static Records all_of(auto&& range) {
    Records records;
    for (const auto& [of_key, of_value] : range) records.emplace_back(of_key, of_value);
    return records;
  }
};

TEST_P(CursorOfAny, AgreesWithTheModelFromEveryKey) {
  const Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  EXPECT_FALSE(index.all().valid());
  const Records model = expected(fill(index));
  ASSERT_EQ(all_of(index.all()), model);
  Records back = all_of(index.all().reverse());
  std::ranges::reverse(back);
  ASSERT_EQ(back, model);
  EXPECT_EQ(std::ranges::distance(index.all()), std::ssize(model));
  for (uint64_t i = 0; i < kUniverse; ++i) {
    const Value at = key(i);
    const auto least = std::ranges::lower_bound(model, at, before, &Records::value_type::first);
    const auto above = std::ranges::upper_bound(model, at, before, &Records::value_type::first);
    AnyCursor lower = index.lower_bound(at);
    ASSERT_EQ(lower.valid(), least != model.end());
    if (lower.valid()) {
      EXPECT_EQ(lower.key(), least->first);
      EXPECT_EQ(lower.value(), least->second);
      lower.previous();
      EXPECT_EQ(lower.valid(), least != model.begin());
      if (lower.valid()) {
        EXPECT_EQ(lower.key(), std::prev(least)->first);
      }
    }
    const AnyCursor upper = index.upper_bound(at);
    ASSERT_EQ(upper.valid(), above != model.end());
    if (upper.valid()) {
      EXPECT_EQ(upper.key(), above->first);
    }
    if (i % 20 != 0) continue;
    EXPECT_EQ(all_of(index.from(at)), Records(least, model.end()));
    const Value end = key(random_.below(kUniverse));
    const auto last = std::ranges::lower_bound(model, end, before, &Records::value_type::first);
    EXPECT_EQ(all_of(index.range(at, end)), least < last ? Records(least, last) : Records());
  }
}

TEST_P(CursorOfAny, GoesByPrefixes) {
  const Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  if (GetParam().key != Kind::kBytes) {
    EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { index.prefix("a"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { index.remove_prefix("a"); }));
    return;
  }
  const std::vector<std::string> keys = {"",           "a",  "ab",   "ab\xff",
                                         "ab\xff\xff", "ac", "\xff", "\xff\xff"};
  for (const std::string& one : keys) index.upsert(one, value(1));
  for (const std::string prefix : {"", "a", "ab", "ab\xff", "ad", "\xff"}) {
    std::vector<std::string> seen;
    for (const auto& [of_key, of_value] : index.prefix(prefix)) seen.emplace_back(of_key.bytes());
    std::vector<std::string> wanted_keys;
    std::ranges::copy_if(keys, std::back_inserter(wanted_keys),
                         [&](const std::string& one) { return one.starts_with(prefix); });
    EXPECT_EQ(seen, wanted_keys) << prefix;
  }
  EXPECT_EQ(index.remove_prefix("ab"), 3);
  EXPECT_EQ(index.remove_prefix("\xff"), 2);
  EXPECT_EQ(index.size(), 3);
}

TEST_P(CursorOfAny, RefusesKeysOfTheOtherKind) {
  const Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  const Datum other = GetParam().key == Kind::kU64 ? Datum("a") : Datum(1);
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { index.from(other); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { index.range(key(1), other); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { index.upper_bound(other); }));
  AnyCursor cursor = index.all();
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { cursor.seek(other); }));
}

INSTANTIATE_TEST_SUITE_P(Catalog, CursorOfAny, wanted(ordered_cases()), case_name);

class CursorWithoutOrder : public ScenarioTest {};

TEST_P(CursorWithoutOrder, IsRefused) {
  const Store store = create_small(MiB(64));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { store.index->all(); }));
}

INSTANTIATE_TEST_SUITE_P(Catalog, CursorWithoutOrder, wanted(unordered_cases()), case_name);

}  // namespace
}  // namespace perdure::test
