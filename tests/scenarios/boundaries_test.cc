// Keys and values at the edges of what is allowed, and just past them.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

Value word(uint64_t w) {
  Value value;
  value.set(w);
  return value;
}

Value bytes(std::string b) {
  Value value;
  value.set_bytes() = std::move(b);
  return value;
}

std::vector<Value> boundary_words() {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  std::vector<Value> values;
  for (const uint64_t w : {uint64_t{0}, uint64_t{1}, uint64_t{255}, uint64_t{256}, kMax, kMax - 1,
                           kMax / 2, kMax / 2 + 1, kMax << 32, kMax >> 32, kMax - 255}) {
    values.push_back(word(w));
  }
  return values;
}

// Byte strings, all different, many of them prefixes of one another.
std::vector<Value> boundary_strings(uint64_t bytes_max) {
  std::vector<Value> values;
  const auto add = [&](std::string text) {
    if (text.size() <= bytes_max) values.push_back(bytes(std::move(text)));
  };
  for (const uint64_t length :
       {0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 65535, 65536}) {
    add(std::string(length, 'a'));
  }
  add(std::string(uint64_t{1} << 20, 'a'));
  for (const uint64_t length : {1, 2, 7, 8, 9, 16}) add(std::string(length, '\0'));
  for (const uint64_t length : {1, 7, 8, 9}) add(std::string(length, '\xff'));
  add(std::string("a\0", 2));
  add(std::string("a\0b", 3));
  add(std::string("\0a", 2));
  add(std::string(8, 'a') + std::string(1, '\0'));
  return values;
}

std::string describe(const Value& value) {
  if (value.kind() == Kind::kU64) return std::to_string(value.word());
  std::string text = std::to_string(value.bytes().size()) + " bytes";
  if (!value.bytes().empty()) {
    text += " from " + std::to_string(static_cast<int>(value.bytes().front())) + " to " +
            std::to_string(static_cast<int>(value.bytes().back()));
  }
  return text;
}

class Boundaries : public ScenarioTest {
 protected:
  const Traits& traits() const { return GetParam().entry().traits; }
  std::vector<Value> keys() const {
    if (GetParam().key == Kind::kU64) return boundary_words();
    return boundary_strings(traits().key_bytes_max);
  }
  std::vector<Value> values() const {
    if (GetParam().value == Kind::kU64) return boundary_words();
    return boundary_strings(traits().value_bytes_max);
  }

  // Expects that the index has exactly `values[(i + shift) % n]` for each key i.
  static void expect_all(const AnyIndex& index, const std::vector<Value>& keys,
                         const std::vector<Value>& values, uint64_t shift) {
    Value out;
    for (uint64_t i = 0; i < keys.size(); ++i) {
      const Value& expected = values[(i + shift) % values.size()];
      ASSERT_TRUE(index.lookup(keys[i].datum(), out)) << "key " << describe(keys[i]);
      ASSERT_TRUE(out.datum() == expected.datum())
          << "key " << describe(keys[i]) << " has value " << describe(out) << ", not "
          << describe(expected);
    }
    uint64_t records = 0;
    index.for_each([&](Datum, Datum) { ++records; });
    ASSERT_EQ(records, keys.size());
  }
};

TEST_P(Boundaries, EveryKeyHoldsEveryValue) {
  Store store = create_small(MiB(512));
  const std::vector<Value> all_keys = keys();
  const std::vector<Value> all_values = values();
  for (uint64_t i = 0; i < all_keys.size(); ++i) {
    Value out;
    ASSERT_FALSE(store.index->lookup(all_keys[i].datum(), out)) << describe(all_keys[i]);
    ASSERT_FALSE(store.index->remove(all_keys[i].datum())) << describe(all_keys[i]);
    const Datum first = all_values[i % all_values.size()].datum();
    ASSERT_FALSE(store.index->update(all_keys[i].datum(), first)) << describe(all_keys[i]);
    ASSERT_TRUE(store.index->insert(all_keys[i].datum(), first)) << describe(all_keys[i]);
    ASSERT_FALSE(store.index->insert(all_keys[i].datum(), first)) << describe(all_keys[i]);
  }
  ASSERT_NO_FATAL_FAILURE(expect_all(*store.index, all_keys, all_values, 0));
  for (uint64_t shift = 1; shift < all_values.size(); ++shift) {
    for (uint64_t i = 0; i < all_keys.size(); ++i) {
      const Datum value = all_values[(i + shift) % all_values.size()].datum();
      if (shift % 2 == 0) {
        store.index->upsert(all_keys[i].datum(), value);
      } else {
        ASSERT_TRUE(store.index->update(all_keys[i].datum(), value)) << describe(all_keys[i]);
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_all(*store.index, all_keys, all_values, shift));
  }
  store.close();
  store = reopen();
  ASSERT_NO_FATAL_FAILURE(expect_all(*store.index, all_keys, all_values, all_values.size() - 1));
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
  for (const Value& key : all_keys) ASSERT_TRUE(store.index->remove(key.datum()));
  ASSERT_NO_FATAL_FAILURE(expect_all(*store.index, {}, all_values, 0));
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Boundaries, RemovingOneKeyLeavesItsPrefixesAndNeighbours) {
  Store store = create_small(MiB(512));
  const std::vector<Value> all_keys = keys();
  for (const Value& key : all_keys) store.index->upsert(key.datum(), value(1).datum());
  for (const Value& removed : all_keys) {
    ASSERT_TRUE(store.index->remove(removed.datum())) << describe(removed);
    Value out;
    for (const Value& key : all_keys) {
      ASSERT_EQ(store.index->lookup(key.datum(), out), !(key.datum() == removed.datum()))
          << describe(key) << " after removing " << describe(removed);
    }
    ASSERT_TRUE(store.index->insert(removed.datum(), value(1).datum())) << describe(removed);
  }
}

// Building a byte string of the limit is out of the question where there is no limit to speak of.
constexpr uint64_t kTestableBytes = uint64_t{128} << 20;

TEST_P(Boundaries, TheLongestValueFitsAndOneByteMoreChangesNothing) {
  const uint64_t bytes_max = traits().value_bytes_max;
  if (GetParam().value != Kind::kBytes) GTEST_SKIP() << "values are words";
  if (bytes_max > kTestableBytes) GTEST_SKIP() << "the limit is " << bytes_max << " bytes";
  Store store = create_small(MiB(64) + 4 * bytes_max);
  const Value too_long = bytes(std::string(bytes_max + 1, 'v'));
  const Value longest = bytes(std::string(bytes_max, 'v'));
  AnyIndex& index = *store.index;
  ASSERT_TRUE(index.insert(key(1).datum(), value(7).datum()));
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { index.insert(key(2).datum(), too_long.datum()); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { index.upsert(key(2).datum(), too_long.datum()); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { index.upsert(key(1).datum(), too_long.datum()); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { index.update(key(1).datum(), too_long.datum()); }));
  EXPECT_EQ(difference(store.typed(), {{1, 7}}, 10), "");
  EXPECT_EQ(faults(store.pool, {&index}), "");

  ASSERT_TRUE(index.insert(key(2).datum(), longest.datum()));
  store.close();
  store = reopen();
  Value out;
  ASSERT_TRUE(store.index->lookup(key(2).datum(), out));
  EXPECT_TRUE(out.bytes() == longest.bytes());
  EXPECT_TRUE(store.index->remove(key(2).datum()));
  EXPECT_EQ(difference(store.typed(), {{1, 7}}, 10), "");
}

TEST_P(Boundaries, TheLongestKeyFitsAndOneByteMoreChangesNothing) {
  const uint64_t bytes_max = traits().key_bytes_max;
  if (GetParam().key != Kind::kBytes) GTEST_SKIP() << "keys are words";
  if (bytes_max > kTestableBytes) GTEST_SKIP() << "the limit is " << bytes_max << " bytes";
  Store store = create_small(MiB(64) + 4 * bytes_max);
  const Value too_long = bytes(std::string(bytes_max + 1, 'k'));
  const Value longest = bytes(std::string(bytes_max, 'k'));
  AnyIndex& index = *store.index;
  ASSERT_TRUE(index.insert(key(1).datum(), value(7).datum()));
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { index.insert(too_long.datum(), value(8).datum()); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kTooLarge, [&] { index.upsert(too_long.datum(), value(8).datum()); }));
  EXPECT_EQ(difference(store.typed(), {{1, 7}}, 10), "");
  EXPECT_EQ(faults(store.pool, {&index}), "");

  ASSERT_TRUE(index.insert(longest.datum(), value(8).datum()));
  store.close();
  store = reopen();
  Value out;
  ASSERT_TRUE(store.index->lookup(longest.datum(), out));
  EXPECT_TRUE(out.datum() == value(8).datum());
  EXPECT_TRUE(store.index->remove(longest.datum()));
  EXPECT_EQ(difference(store.typed(), {{1, 7}}, 10), "");
}

TEST_P(Boundaries, KeysAndValuesOfTheOtherKindAreRefused) {
  Store store = create_small(MiB(64));
  AnyIndex& index = *store.index;
  EXPECT_EQ(index.key_kind(), GetParam().key);
  EXPECT_EQ(index.value_kind(), GetParam().value);
  ASSERT_TRUE(index.insert(key(1).datum(), value(7).datum()));

  const auto other = [](Kind kind) { return kind == Kind::kU64 ? Datum("bytes") : Datum(1); };
  const Datum bad_key = other(GetParam().key);
  const Datum bad_value = other(GetParam().value);
  const Value good_key = key(1);
  const Value good_value = value(8);
  Value out;
  const auto refused = [](const std::function<void()>& call) {
    return fails_with(ErrorCode::kWrongType, call);
  };
  EXPECT_TRUE(refused([&] { index.insert(bad_key, good_value.datum()); }));
  EXPECT_TRUE(refused([&] { index.update(bad_key, good_value.datum()); }));
  EXPECT_TRUE(refused([&] { index.upsert(bad_key, good_value.datum()); }));
  EXPECT_TRUE(refused([&] { index.remove(bad_key); }));
  EXPECT_TRUE(refused([&] { index.lookup(bad_key, out); }));
  EXPECT_TRUE(refused([&] { index.insert(key(2).datum(), bad_value); }));
  EXPECT_TRUE(refused([&] { index.update(good_key.datum(), bad_value); }));
  EXPECT_TRUE(refused([&] { index.upsert(good_key.datum(), bad_value); }));
  EXPECT_EQ(difference(store.typed(), {{1, 7}}, 10), "");
}

TEST_P(Boundaries, StatisticsHaveTheirCommonFigures) {
  Store store = create_small(MiB(64));
  for (uint64_t i = 0; i < 100; ++i) store.typed().upsert(i, i);
  std::map<std::string, double> figures;
  for (const Statistic& statistic : store.index->statistics()) {
    EXPECT_TRUE(figures.emplace(statistic.name, statistic.value).second) << statistic.name;
  }
  ASSERT_TRUE(figures.contains("dram_bytes"));
  ASSERT_TRUE(figures.contains("recovered_operations"));
  ASSERT_TRUE(figures.contains("pool_bytes"));
  EXPECT_GT(figures["pool_bytes"], 0);
  EXPECT_LE(figures["pool_bytes"], static_cast<double>(store.pool.info().size_bytes));
  EXPECT_EQ(figures["recovered_operations"], 0);
}

// Capacity costs nothing until it is used, with the structure's own defaults: a record in a pool of
// 1 TiB takes no more than bounded beginnings.
TEST_P(Boundaries, FewRecordsCostLittleWhateverTheCapacity) {
  for (const uint64_t capacity_bytes : {MiB(64), MiB(1 << 20)}) {
    std::filesystem::remove(pool_path());
    Store store = create_store(pool_path(), pool_options(capacity_bytes), GetParam(), {});
    EXPECT_TRUE(store.typed().insert(0, 1));
    EXPECT_LE(store.pool.info().size_bytes, MiB(32)) << capacity_bytes;
    for (uint64_t i = 1; i < 1000; ++i) EXPECT_TRUE(store.typed().insert(i, i + 1));
    EXPECT_LE(store.pool.info().size_bytes, MiB(48)) << capacity_bytes;
    for (const Statistic& figure : store.index->statistics()) {
      if (figure.name != "dram_bytes") continue;
      EXPECT_LE(figure.value, MiB(32)) << capacity_bytes;
    }
    store.close();
    store = open_store(pool_path(), pool_options(capacity_bytes));
    for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(store.typed().lookup(i), i + 1);
    store.close();
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, Boundaries, wanted(all_cases()), case_name);

class Unordered : public ScenarioTest {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Unordered);

TEST_P(Unordered, RefusesToScan) {
  Store store = create_small(MiB(64));
  ASSERT_TRUE(store.typed().insert(1, 1));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] {
    store.index->scan(key(0).datum(), 10, [](Datum, Datum) { return true; });
  }));
}

INSTANTIATE_TEST_SUITE_P(Catalog, Unordered, wanted(unordered_cases()), case_name);

}  // namespace
}  // namespace perdure::test
