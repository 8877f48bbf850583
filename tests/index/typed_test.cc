// Structures with keys and values of C++ types, and cursors.
#include "perdure/typed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "support/errors.h"
#include "support/random.h"

namespace perdure {
namespace {

__extension__ using Wide = __int128;
struct Point {
  int32_t x;
  int32_t y;
  bool operator==(const Point&) const = default;
};
struct Padded {
  char tag;
  uint64_t number;
};
struct Measured {  // its bytes do not tell equality
  double mean;
  uint64_t count;
};
struct Wider {
  std::array<uint64_t, 2> words;
};
using Uuid = std::array<unsigned char, 16>;
enum class Colour : int8_t { kRed = -1, kGreen = 0, kBlue = 1 };

static_assert(typed::StorableKey<uint64_t> && typed::StorableKey<int8_t> &&
              typed::StorableKey<bool> && typed::StorableKey<char> && typed::StorableKey<Colour> &&
              typed::StorableKey<std::string> && typed::StorableKey<Point> &&
              typed::StorableKey<Uuid>);
static_assert(!typed::StorableKey<double> && typed::StorableValue<double> &&
              typed::StorableValue<float> && !typed::StorableValue<long double>);
static_assert(!typed::StorableKey<Padded> && typed::StorableValue<Padded> &&
              !typed::Comparable<Padded> && !typed::Comparable<Measured>);
static_assert(!typed::StorableValue<std::string_view> && !typed::StorableValue<const char*> &&
              !typed::StorableValue<std::span<int>> && !typed::StorableValue<std::vector<int>> &&
              !typed::StorableValue<const int> && !typed::StorableValue<std::unique_ptr<int>>);

template <typename Index>
concept HasScans = requires(const Index& index, typename Index::key_type key) {
  index.from(key);
  index.range(key, key);
  index.all();
  index.scan(key, [](const auto&, const auto&) {});
};
template <typename Index>
concept HasPrefixes = requires(const Index& index) { index.prefix("text"); };
template <typename Index>
concept Compares =
    requires(Index& index, typename Index::key_type key, typename Index::value_type value) {
      index.compare_exchange(key, value, value);
      index.compare_remove(key, value);
    };
template <typename Index>
concept Counts = requires(Index& index, typename Index::key_type key) { index.increment(key); };

static_assert(HasScans<FpTree<int, int>> && HasScans<TypedIndex<int, int>>);
static_assert(!HasScans<Cceh<int, int>> && !HasScans<TypedPlush<int, int>> &&
              !HasScans<PClht<int, int>> && !HasScans<Level<int, int>>);
static_assert(HasPrefixes<Wort<std::string, int>> && !HasPrefixes<Wort<int, int>> &&
              !HasPrefixes<Cceh<std::string, int>>);
static_assert(Compares<Cceh<int, double>> && !Compares<Cceh<int, Padded>> &&
              !Compares<Cceh<int, Measured>>);
static_assert(Counts<Cceh<int, int8_t>> && !Counts<Cceh<int, std::string>> &&
              !Counts<Cceh<int, bool>> && !Counts<Cceh<int, double>>);
static_assert(!std::is_copy_constructible_v<Cceh<int, int>> &&
              std::is_nothrow_move_constructible_v<Cceh<int, int>> &&
              std::is_nothrow_move_assignable_v<Cceh<int, int>>);
static_assert(!std::is_constructible_v<Datum, std::nullptr_t> &&
              !std::is_constructible_v<Datum, bool> && !std::is_constructible_v<Datum, char> &&
              !std::is_constructible_v<Datum, double> && !std::is_constructible_v<Datum, Wide>);
static_assert(std::ranges::input_range<AnyCursor> && !typed::StorableValue<Value>);
static_assert(std::ranges::input_range<TypedCursor<int, std::string>> &&
              std::ranges::viewable_range<TypedCursor<int, std::string>> &&
              !std::ranges::forward_range<TypedCursor<int, std::string>>);

// Which structure has which name and abilities is written in the catalogue, and again in the
// header.
template <typename Structure>
void expect_as_in_the_catalogue() {
  const StructureFacts facts = Structure::kFacts;
  SCOPED_TRACE(facts.name);
  const Traits& traits = catalog_entry(facts.name).traits;
  EXPECT_EQ(facts.ordered, traits.ordered);
  const auto has = [&](Kind key, Kind value) {
    return std::ranges::find(traits.kinds, std::pair(key, value)) != traits.kinds.end();
  };
  for (const Kind key : {Kind::kU64, Kind::kBytes}) {
    for (const Kind value : {Kind::kU64, Kind::kBytes}) {
      EXPECT_EQ(
          (key == Kind::kU64 || facts.byte_keys) && (value == Kind::kU64 || facts.byte_values),
          has(key, value));
    }
  }
}

TEST(TypedIndexFacts, AreThoseOfTheCatalogue) {
  expect_as_in_the_catalogue<structures::Plush>();
  expect_as_in_the_catalogue<structures::PlushRange>();
  expect_as_in_the_catalogue<structures::Cceh>();
  expect_as_in_the_catalogue<structures::PClht>();
  expect_as_in_the_catalogue<structures::Level>();
  expect_as_in_the_catalogue<structures::FpTree>();
  expect_as_in_the_catalogue<structures::WbTree>();
  expect_as_in_the_catalogue<structures::FastFair>();
  expect_as_in_the_catalogue<structures::NvTree>();
  expect_as_in_the_catalogue<structures::BzTree>();
  expect_as_in_the_catalogue<structures::Sheaf>();
  expect_as_in_the_catalogue<structures::PArt>();
  expect_as_in_the_catalogue<structures::PMasstree>();
  expect_as_in_the_catalogue<structures::PHot>();
  expect_as_in_the_catalogue<structures::PBwTree>();
  expect_as_in_the_catalogue<structures::Wort>();
  expect_as_in_the_catalogue<structures::Woart>();
  expect_as_in_the_catalogue<structures::ArtCow>();
}

Pool new_pool() {
  return Pool::anonymous({.capacity_bytes = uint64_t{64} << 20, .growth_bytes = 1 << 20});
}

// Every call, on two keys and three values. What is asked of an index in the middle of it is the
// same for all types.
template <typename Index>
void expect_all_calls(Index index, const typename Index::key_type& one,
                      const typename Index::key_type& two,
                      const std::array<typename Index::value_type, 3>& values) {
  using K = typename Index::key_type;
  using V = typename Index::value_type;
  const auto [a, b, c] = values;
  EXPECT_EQ(index.size(), 0U);
  EXPECT_EQ(index.get(one), std::nullopt);
  EXPECT_FALSE(index.contains(one));
  EXPECT_FALSE(index.update(one, a));
  EXPECT_FALSE(index.contains(one));
  EXPECT_TRUE(index.insert(one, a));
  EXPECT_FALSE(index.insert(one, b));
  EXPECT_EQ(index.get(one), a);
  EXPECT_TRUE(index.contains(one));
  EXPECT_FALSE(index.contains(two));
  EXPECT_TRUE(index.update(one, b));
  EXPECT_EQ(index.get(one), b);
  index.upsert(two, c);
  EXPECT_EQ(index.size(), 2U);
  std::optional<V> used;
  EXPECT_TRUE(index.lookup(two, [&](const auto& value) { used = V(value); }));
  EXPECT_EQ(used, c);

  std::vector<std::pair<K, V>> records;
  index.for_each([&](const auto& key, const auto& value) { records.emplace_back(key, value); });
  const auto has = [&](const K& key, const V& value) {
    return std::ranges::find(records, std::pair(key, value)) != records.end();
  };
  EXPECT_EQ(records.size(), 2U);
  EXPECT_TRUE(has(one, b) && has(two, c));

  EXPECT_FALSE(index.compare_exchange(one, a, c));
  EXPECT_EQ(index.get(one), b);
  EXPECT_TRUE(index.compare_exchange(one, b, a));
  EXPECT_EQ(index.get(one), a);
  EXPECT_FALSE(index.compare_remove(one, b));
  EXPECT_TRUE(index.compare_remove(one, a));
  EXPECT_FALSE(index.contains(one));

  const auto become = [&](Change what, const V& to, std::optional<V>& saw) {
    return [&, what](const V* before, V& after) {
      saw = before != nullptr ? std::optional<V>(*before) : std::nullopt;
      EXPECT_EQ(after, V{});
      after = to;
      return what;
    };
  };
  std::optional<V> saw = a;
  EXPECT_EQ(index.modify(one, become(Change::kKeep, a, saw)), Change::kKeep);
  EXPECT_EQ(saw, std::nullopt);
  EXPECT_FALSE(index.contains(one));
  EXPECT_EQ(index.modify(one, become(Change::kWrite, b, saw)), Change::kWrite);
  EXPECT_EQ(index.get(one), b);
  EXPECT_EQ(index.modify(one, become(Change::kWrite, c, saw)), Change::kWrite);
  EXPECT_EQ(saw, b);
  EXPECT_EQ(index.get(one), c);
  EXPECT_EQ(index.modify(one, become(Change::kRemove, a, saw)), Change::kRemove);
  EXPECT_EQ(saw, c);
  EXPECT_FALSE(index.contains(one));

  EXPECT_TRUE(index.remove(two));
  EXPECT_FALSE(index.remove(two));
  EXPECT_FALSE(index.lookup(two, [](const auto&) { ADD_FAILURE() << "it was removed"; }));
  EXPECT_EQ(index.size(), 0U);
}

TEST(TypedIndexCalls, WithWords) {
  Pool pool = new_pool();
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  using Words = std::array<uint64_t, 3>;
  expect_all_calls(Sheaf<uint64_t, uint64_t>::create(pool, "s"), 1, kMax, Words{7, 0, kMax});
  expect_all_calls(Cceh<uint64_t, uint64_t>::create(pool, "c"), 0, kMax, Words{7, 0, kMax});
  expect_all_calls(TypedPlush<uint64_t, uint64_t>::create(pool, "p"), 0, 5, Words{7, 0, kMax});
}

TEST(TypedIndexCalls, WithIntegersOfAllSizes) {
  Pool pool = new_pool();
  expect_all_calls(FpTree<int64_t, int64_t>::create(pool, "f"), std::numeric_limits<int64_t>::min(),
                   std::numeric_limits<int64_t>::max(),
                   {-1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()});
  expect_all_calls(BzTree<int8_t, int16_t>::create(pool, "b"), -128, 127,
                   {-1, std::numeric_limits<int16_t>::min(), std::numeric_limits<int16_t>::max()});
  expect_all_calls(Level<uint32_t, int32_t>::create(pool, "l"), 0, ~uint32_t{0},
                   {-1, std::numeric_limits<int32_t>::min(), 0});
  expect_all_calls(PClht<Colour, Colour>::create(pool, "p"), Colour::kRed, Colour::kBlue,
                   {Colour::kRed, Colour::kBlue, Colour::kGreen});
  expect_all_calls(Woart<int16_t, uint8_t>::create(pool, "o"), -32768, 32767, {0, 1, 255});
  expect_all_calls(Wort<char, float>::create(pool, "w"), 'a', '\xff', {-0.5F, 0.0F, 1e30F});
  expect_all_calls(WbTree<bool, double>::create(pool, "t"), false, true, {-0.5, 0.0, 1e300});
}

TEST(TypedIndexCalls, WithStrings) {
  Pool pool = new_pool();
  const std::string zeros("a\0b", 3);
  const std::array<std::string, 3> texts = {"some", "", std::string(5000, 'x') + zeros};
  expect_all_calls(FastFair<std::string, std::string>::create(pool, "f"), "", zeros, texts);
  expect_all_calls(Cceh<std::string, std::string>::create(pool, "c"), "key", "keys", texts);
  expect_all_calls(NvTree<std::string, int>::create(pool, "n"), "a", std::string(1024, 'k'),
                   {-1, 0, 1});
  expect_all_calls(PArt<int, std::string>::create(pool, "p"), -1, 1, texts);
  expect_all_calls(TypedIndex<std::string, std::string>::create(pool, "r", "rstore"), "a", "b",
                   texts);
}

TEST(TypedIndexCalls, WithStructs) {
  Pool pool = new_pool();
  expect_all_calls(ArtCow<Point, Point>::create(pool, "a"), {1, -1}, {-1, 1},
                   {Point{0, 0}, {-5, 5}, {5, -5}});
  expect_all_calls(Cceh<Uuid, Point>::create(pool, "c"), Uuid{1}, Uuid{1, 2},
                   {Point{0, 1}, {0, 2}, {0, 3}});
  expect_all_calls(FpTree<uint16_t, Point>::create(pool, "f"), 0, 65535,
                   {Point{0, 1}, {0, 2}, {0, 3}});
}

// Views and literals are arguments of strings, without a copy.
TEST(TypedIndexCalls, TakeViews) {
  Pool pool = new_pool();
  auto index = FpTree<std::string, std::string>::create(pool, "index");
  const std::string_view sentence = "one two";
  EXPECT_TRUE(index.insert(sentence.substr(0, 3), sentence.substr(4)));
  EXPECT_EQ(index.get("one"), "two");
  EXPECT_TRUE(index.lookup("one", [](auto value) {
    static_assert(std::is_same_v<decltype(value), std::string_view>);
    EXPECT_EQ(value, "two");
  }));
}

// Padding and floating point in values are no obstacle to anything but comparisons, and modify()
// does those.
TEST(TypedIndexCalls, StructsWithoutComparisonsCanBeModified) {
  Pool pool = new_pool();
  auto index = Cceh<std::string, Measured>::create(pool, "index");
  for (const double sample : {1.0, 2.0, 6.0}) {
    index.modify("latency", [&](const Measured* before, Measured& after) {
      if (before != nullptr) after = *before;
      after.mean += (sample - after.mean) / static_cast<double>(++after.count);
      return Change::kWrite;
    });
  }
  const std::optional<Measured> measured = index.get("latency");
  ASSERT_TRUE(measured);
  EXPECT_EQ(measured->count, 3U);
  EXPECT_DOUBLE_EQ(measured->mean, 3.0);
}

// A change that another write was faster than is asked again, with what is there now, and begins
// anew.
TEST(TypedIndexCalls, ModifyBeginsAnewAfterAnotherWrite) {
  Pool pool = new_pool();
  auto texts = FpTree<int, std::string>::create(pool, "texts");
  auto points = FpTree<int, Point>::create(pool, "points");
  int calls = 0;
  EXPECT_EQ(texts.modify(1,
                         [&](const std::string* before, std::string& after) {
                           if (++calls == 1) texts.upsert(1, "other");
                           after += before != nullptr ? *before + "+" : "none";
                           return Change::kWrite;
                         }),
            Change::kWrite);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(texts.get(1), "other+");
  EXPECT_EQ(points.modify(1,
                          [&](const Point* before, Point& after) {
                            if (++calls == 3) points.upsert(1, {10, 20});
                            after.x += before != nullptr ? before->x : 1;
                            after.y += 1;
                            return Change::kWrite;
                          }),
            Change::kWrite);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(points.get(1), (Point{10, 1}));
}

TEST(TypedIndexCalls, UpdateByAFunctionIsAtomic) {
  Pool pool = new_pool();
  auto points = Cceh<std::string, Point>::create(pool, "points");
  const auto step = [](const Point& point) { return Point{point.x + 1, point.y - 1}; };
  EXPECT_FALSE(points.update("p", step));
  EXPECT_FALSE(points.contains("p"));
  points.upsert("p", {0, 0});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) EXPECT_TRUE(points.update("p", step));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(points.get("p"), (Point{8000, -8000}));
}

TEST(TypedIndexCalls, IncrementCountsInTheValuesType) {
  Pool pool = new_pool();
  auto small = Cceh<std::string, int8_t>::create(pool, "small");
  EXPECT_EQ(small.increment("n"), 1);
  EXPECT_EQ(small.increment("n", -3), -2);
  EXPECT_EQ(small.increment("n", 129), 127);
  EXPECT_EQ(small.increment("n"), -128);
  EXPECT_EQ(small.get("n"), -128);
  auto large = Sheaf<int64_t, uint64_t>::create(pool, "large");
  EXPECT_EQ(large.increment(-5, -1), ~uint64_t{0});
  EXPECT_EQ(large.increment(-5, 2), 1U);
}

TEST(TypedIndexCalls, IncrementsOfThreadsAreExact) {
  Pool pool = new_pool();
  auto index = FastFair<int, int32_t>::create(pool, "index");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) index.increment(i % 3 - 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(index.get(-1), 4 * 167);
  EXPECT_EQ(index.get(0), 4 * 167);
  EXPECT_EQ(index.get(1), 4 * 166);
}

// What tools and other languages see.
TEST(TypedIndexForm, IsWhatTheHeaderSays) {
  Pool pool = new_pool();
  auto numbers = FpTree<int32_t, int32_t>::create(pool, "numbers");
  numbers.upsert(-1, -1);
  Value out;
  ASSERT_TRUE(numbers.any().lookup((uint64_t{1} << 63) - 1, out));
  EXPECT_EQ(out.word(), ~uint64_t{0});
  auto points = Cceh<Point, float>::create(pool, "points");
  points.upsert({1, 2}, 1.0F);
  const Point point{1, 2};
  const std::string bytes(reinterpret_cast<const char*>(&point), sizeof point);
  ASSERT_TRUE(points.any().lookup(bytes, out));
  EXPECT_EQ(out.word(), 0x3f800000U);
}

TEST(TypedIndexOpening, FindsWhatWasWrittenAndNothingElse) {
  Pool pool = new_pool();
  {
    auto index = Wort<int64_t, std::string>::create(pool, "index");
    index.upsert(-7, "seven");
    EXPECT_TRUE(test::fails_with(ErrorCode::kNameExists, "",
                                 [&] { Wort<int64_t, std::string>::create(pool, "index"); }));
  }
  EXPECT_EQ((Wort<int64_t, std::string>::open(pool, "index").get(-7)), "seven");
  EXPECT_EQ((TypedIndex<int64_t, std::string>::open(pool, "index").get(-7)), "seven");
  const auto refused = [&](const std::string& subject, const std::function<void()>& open) {
    EXPECT_TRUE(test::fails_with(ErrorCode::kWrongType, subject, open));
  };
  refused("wort", [&] { FpTree<int64_t, std::string>::open(pool, "index"); });
  refused("u64 to bytes; it was opened as", [&] { Wort<int64_t, int64_t>::open(pool, "index"); });
  refused("u64 to bytes; it was opened as",
          [&] { TypedIndex<std::string, std::string>::open(pool, "index"); });
  refused("u64 to bytes",
          [&] { TypedIndex<std::string, std::string> taken(open_index(pool, "index")); });
  EXPECT_TRUE(test::fails_with(ErrorCode::kNoSuchName, "other",
                               [&] { Wort<int, int>::open(pool, "other"); }));
  EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument, "nothing like it", [&] {
    TypedIndex<int, int>::create(pool, "new", "nothing like it");
  }));
  // Refusals have left it closed, and as it was.
  EXPECT_EQ((Wort<int64_t, std::string>::open(pool, "index").get(-7)), "seven");
}

TEST(TypedIndexOpening, TypesThatCannotHoldWhatIsThereAreRefused) {
  Pool pool = new_pool();
  const auto refused = [](const std::function<void()>& read) {
    EXPECT_TRUE(test::fails_with(ErrorCode::kWrongType, "the types that it was made with", read));
  };
  FpTree<int64_t, uint64_t>::create(pool, "words").upsert(-1000, 256);
  {
    const auto narrow = FpTree<int16_t, uint8_t>::open(pool, "words");
    refused([&] { narrow.get(-1000); });
    refused([&] { narrow.for_each([](int16_t, uint8_t) {}); });
    refused([&] { narrow.all(); });
  }
  {
    const auto narrow = FpTree<int8_t, uint64_t>::open(pool, "words");
    refused([&] { narrow.all(); });
  }
  EXPECT_EQ((FpTree<int16_t, uint16_t>::open(pool, "words").get(-1000)), 256);
  FpTree<int, Point>::create(pool, "structs").upsert(1, {1, 2});
  refused([&] { FpTree<int, Wider>::open(pool, "structs").get(1); });
}

TEST(TypedIndexOpening, OptionsArriveAndMovesKeepTheStructure) {
  Pool pool = new_pool();
  EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument, "leaf_records", [&] {
    FpTree<int, int>::create(pool, "index", OptionMap{{"leaf_records", "1000"}});
  }));
  auto first = FpTree<int, int>::create(pool, "index", OptionMap{{"leaf_records", "4"}});
  for (int i = 0; i < 100; ++i) first.upsert(i, i);
  auto cursor = first.from(0);
  auto second = std::move(first);
  EXPECT_EQ(second.get(99), 99);
  // A cursor stays with the structure.
  EXPECT_EQ(std::ranges::distance(cursor), 100);
}

template <typename Index>
class TypedCursorTest : public testing::Test {};
using OrderedIndexes =
    testing::Types<FpTree<int32_t, int64_t>, FastFair<int32_t, int64_t>, Sheaf<int32_t, int64_t>,
                   NvTree<int32_t, int64_t>, WbTree<int32_t, int64_t>, BzTree<int32_t, int64_t>,
                   PArt<int32_t, int64_t>, PHot<int32_t, int64_t>, Wort<int32_t, int64_t>,
                   Woart<int32_t, int64_t>, ArtCow<int32_t, int64_t>, PlushRange<int32_t, int64_t>,
                   FastFair<int32_t, std::string>>;
struct OrderedNames {
  template <typename Index>
  static std::string GetName(int i) {
    return "number_" + std::to_string(i);
  }
};
TYPED_TEST_SUITE(TypedCursorTest, OrderedIndexes, OrderedNames);

template <typename Index>
typename Index::value_type value_of(int32_t key) {
  if constexpr (std::is_same_v<typename Index::value_type, std::string>) {
    return std::to_string(key);
  } else {
    return -int64_t{key};
  }
}

// The keys that a cursor gives; each with its value.
template <typename Index>
std::vector<int32_t> keys_of(typename Index::Cursor cursor) {
  std::vector<int32_t> keys;
  for (auto&& [key, value] : cursor) {
    EXPECT_EQ(value, value_of<Index>(key));
    keys.push_back(key);
  }
  return keys;
}
std::vector<int32_t> even_keys(int32_t first, int32_t last) {
  std::vector<int32_t> keys;
  for (int32_t key = first; key < last; key += 2) keys.push_back(key);
  return keys;
}

// Every number of records near the ends of chunks (8, 24, 56, 120, 248, 376), and all bounds near
// each end.
TYPED_TEST(TypedCursorTest, GivesEveryRangeInOrderOnce) {
  Pool pool = new_pool();
  auto index = TypeParam::create(pool, "index");
  EXPECT_EQ(keys_of<TypeParam>(index.all()), even_keys(0, 0));
  EXPECT_FALSE(index.from(0).valid());
  const int32_t least = -200;
  int32_t end = least;  // even keys below it are there
  for (const int32_t count : {1, 7, 8, 9, 23, 24, 25, 56, 57, 120, 121, 247, 248, 249, 400}) {
    SCOPED_TRACE(count);
    for (; end < least + 2 * count; end += 2) index.insert(end, value_of<TypeParam>(end));
    EXPECT_EQ(keys_of<TypeParam>(index.all()), even_keys(least, end));
    for (const int32_t off : {-2, -1, 0, 1, 2}) {
      EXPECT_EQ(keys_of<TypeParam>(index.from(least + off)),
                even_keys(least + std::max(0, off + (off & 1)), end));
      const int32_t last = end + off;
      EXPECT_EQ(keys_of<TypeParam>(index.range(least + 2, last)),
                even_keys(least + 2, std::min(end, last)));
      EXPECT_EQ(keys_of<TypeParam>(index.range(last, least + 2)).size(),
                last >= least + 2 ? 0U : 1U - (last > least ? 1U : 0U))
          << last;
    }
    EXPECT_FALSE(index.from(end - 1).valid());
    EXPECT_FALSE(index.range(least, least).valid());
  }
}

// The same backwards, by reverse() and by previous().
TYPED_TEST(TypedCursorTest, GivesEveryRangeBackwardsOnce) {
  using Index = TypeParam;
  Pool pool = new_pool();
  auto index = Index::create(pool, "index");
  const auto backwards = [](typename Index::Cursor cursor) {
    std::vector<int32_t> keys;
    cursor.last();
    for (; cursor.valid(); cursor.previous()) keys.push_back(cursor.key());
    std::vector<int32_t> again;
    for (auto&& [key, value] : std::move(cursor).reverse()) {
      EXPECT_EQ(value, value_of<Index>(key));
      again.push_back(key);
    }
    EXPECT_EQ(keys, again);
    std::ranges::reverse(keys);
    return keys;
  };
  EXPECT_EQ(backwards(index.all()), even_keys(0, 0));
  EXPECT_FALSE(index.last().has_value() || index.first().has_value());
  const int32_t least = -200;
  int32_t end = least;  // even keys below it are there
  for (const int32_t count : {1, 7, 8, 9, 23, 24, 25, 56, 57, 120, 121, 247, 248, 249, 400}) {
    SCOPED_TRACE(count);
    for (; end < least + 2 * count; end += 2) index.insert(end, value_of<Index>(end));
    EXPECT_EQ(index.first()->key, least);
    EXPECT_EQ(index.last()->key, end - 2);
    EXPECT_EQ(index.last()->value, value_of<Index>(end - 2));
    EXPECT_EQ(backwards(index.all()), even_keys(least, end));
    for (const int32_t off : {-2, -1, 0, 1, 2}) {
      EXPECT_EQ(backwards(index.from(least + off)),
                even_keys(least + std::max(0, off + (off & 1)), end));
      const int32_t last = end + off;
      EXPECT_EQ(backwards(index.range(least + 2, last)), even_keys(least + 2, std::min(end, last)));
      EXPECT_EQ(backwards(index.range(last, least + 2)).size(),
                last >= least + 2 ? 0U : 1U - (last > least ? 1U : 0U))
          << last;
      std::vector<int32_t> scanned;
      index.scan_back(last, [&](int32_t key, const auto&) { scanned.push_back(key); });
      std::ranges::reverse(scanned);
      EXPECT_EQ(scanned, even_keys(least, std::min(end, last + 1)));
    }
    std::vector<int32_t> scanned;
    index.scan_back([&](int32_t key, const auto&) {
      scanned.push_back(key);
      return scanned.size() < 2;
    });
    EXPECT_EQ(scanned.front(), end - 2);
    EXPECT_EQ(scanned.size(), static_cast<size_t>(std::min(2, count)));
  }
}

// Moves at random, placings among them, of a cursor of all and of one of a range, against a
// std::map.
TYPED_TEST(TypedCursorTest, GoesToAndFro) {
  using Index = TypeParam;
  constexpr int32_t kEnd = 1500;
  Pool pool = new_pool();
  auto index = Index::create(pool, "index");
  std::map<int32_t, int32_t> all;
  for (int32_t key = 0; key < kEnd; key += 3) {
    index.insert(key, value_of<Index>(key));
    all[key] = key;
  }
  test::Random random(7);
  const auto any_key = [&] { return static_cast<int32_t>(random.below(kEnd + 20)) - 10; };
  for (const auto& [low, high] :
       {std::pair{-100, kEnd + 100}, {300, 901}, {301, 303}, {299, 301}}) {
    SCOPED_TRACE(low);
    const std::map<int32_t, int32_t> range(all.lower_bound(low), all.lower_bound(high));
    auto cursor = low < 0 ? index.all() : index.range(low, high);
    auto at = range.begin();  // its end: at either end
    const auto before = [&](auto place) { return place == range.begin() ? range.end() : --place; };
    for (int i = 0; i < 4000; ++i) {
      const int32_t key = any_key();
      const uint64_t what = random.below(200);
      if (what == 0) cursor.first(), at = range.begin();
      if (what == 1) cursor.last(), at = before(range.end());
      if (what == 2) cursor.seek(key), at = range.lower_bound(key);
      if (what == 3) cursor.seek_above(key), at = range.upper_bound(key);
      if (what == 4) cursor.seek_down(key), at = before(range.upper_bound(key));
      if (what == 5) cursor.seek_below(key), at = before(range.lower_bound(key));
      // Long ways in one direction, and short ones.
      const bool down = what >= 100 ? what % 2 == 0 : i / 150 % 2 == 0;
      if (what > 5) {
        down ? cursor.previous() : cursor.next();
        if (at != range.end()) at = down ? before(at) : std::next(at);
      }
      ASSERT_EQ(cursor.valid(), at != range.end()) << i;
      if (cursor.valid()) {
        ASSERT_EQ(cursor.key(), at->first) << i;
        ASSERT_EQ(cursor.value(), value_of<Index>(at->first));
      } else if (i % 3 == 0) {
        cursor.seek(key), at = range.lower_bound(key);
      }
    }
  }
  EXPECT_EQ(index.lower_bound(300).key(), 300);
  EXPECT_EQ(index.upper_bound(300).key(), 303);
  EXPECT_EQ(index.lower_bound(301).key(), 303);
  EXPECT_FALSE(index.upper_bound(kEnd).valid());
  auto cursor = index.lower_bound(300);
  cursor.previous();
  EXPECT_EQ(cursor.key(), 297);
}

// The ends of the type, which have nothing before and nothing behind them.
TYPED_TEST(TypedCursorTest, HasTheLeastAndTheLargestKey) {
  Pool pool = new_pool();
  auto index = TypeParam::create(pool, "index");
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> keys = {kLeast, kLeast + 1, -1, 0, 1, kMost - 1, kMost};
  for (const int32_t key : keys | std::views::reverse) index.insert(key, value_of<TypeParam>(key));
  EXPECT_EQ(keys_of<TypeParam>(index.all()), keys);
  EXPECT_EQ(keys_of<TypeParam>(index.from(kLeast)), keys);
  EXPECT_EQ(keys_of<TypeParam>(index.from(kMost)), std::vector{kMost});
  EXPECT_EQ(keys_of<TypeParam>(index.range(kLeast, kMost)),
            std::vector(keys.begin(), keys.end() - 1));
  EXPECT_EQ(keys_of<TypeParam>(index.range(-1, 1)), (std::vector{-1, 0}));
  std::vector<int32_t> backwards;
  for (auto&& [key, value] : index.all().reverse()) backwards.push_back(key);
  EXPECT_TRUE(std::ranges::equal(backwards, keys | std::views::reverse));
  auto at = index.upper_bound(kMost);
  EXPECT_FALSE(at.valid());
  at.seek_down(kMost);
  EXPECT_EQ(at.key(), kMost);
  at.seek_below(kLeast);
  EXPECT_FALSE(at.valid());
  std::vector<int32_t> scanned;
  index.scan(-1, [&](int32_t key, const auto&) { scanned.push_back(key); });
  EXPECT_EQ(scanned, (std::vector{-1, 0, 1, kMost - 1, kMost}));
  scanned.clear();
  index.scan(-1, [&](int32_t key, const auto&) {
    scanned.push_back(key);
    return key < 0;
  });
  EXPECT_EQ(scanned, (std::vector{-1, 0}));
}

// Removing what it stands on, and everything else; inserting before it, within its chunk and behind
// that.
TYPED_TEST(TypedCursorTest, GoesOnWhateverIsWritten) {
  Pool pool = new_pool();
  auto index = TypeParam::create(pool, "index");
  for (const int32_t key : even_keys(0, 1000)) index.insert(key, value_of<TypeParam>(key));
  std::vector<int32_t> seen;
  for (auto&& [key, value] : index.all()) {
    seen.push_back(key);
    EXPECT_TRUE(index.remove(key));
    index.upsert(key - 3000, value_of<TypeParam>(0));  // before it
  }
  EXPECT_EQ(seen, even_keys(0, 1000));
  EXPECT_EQ(keys_of<TypeParam>(index.from(0)), even_keys(0, 0));

  for (const int32_t key : even_keys(0, 1000)) index.insert(key, value_of<TypeParam>(key));
  auto cursor = index.range(0, 1000);
  ASSERT_TRUE(cursor.valid());
  EXPECT_EQ(cursor.key(), 0);
  // The first chunk is 0 to 14. Its last key goes, and what is behind it; other keys come.
  for (const int32_t key : even_keys(2, 500)) EXPECT_TRUE(index.remove(key));
  index.insert(3, value_of<TypeParam>(3));
  index.insert(15, value_of<TypeParam>(15));
  seen = keys_of<TypeParam>(std::move(cursor));
  std::vector<int32_t> expected = even_keys(0, 16);  // as it was fetched
  expected.push_back(15);
  std::ranges::copy(even_keys(500, 1000), std::back_inserter(expected));
  EXPECT_EQ(seen, expected);

  // All of it goes: the rest of the chunk, and the end, which stays.
  cursor = index.from(500);
  for (const int32_t key : even_keys(500, 1000)) EXPECT_TRUE(index.remove(key));
  EXPECT_EQ(keys_of<TypeParam>(std::move(cursor)), even_keys(500, 516));
  cursor = index.from(500);
  EXPECT_FALSE(cursor.valid());
  index.insert(600, value_of<TypeParam>(600));
  cursor.next();
  EXPECT_FALSE(cursor.valid());
}

TEST(TypedCursorOfStrings, HasPrefixesAndTheOrderOfBytes) {
  Pool pool = new_pool();
  auto index = PArt<std::string, int>::create(pool, "index");
  const std::string zero("ab\0", 3);
  const std::vector<std::string> keys = {"",    "a",      "ab",         zero, "ab\x01", "aba",
                                         "abb", "ab\xff", "ab\xff\xff", "ac", "b",      "\xff"};
  for (size_t i = 0; i < keys.size(); ++i) index.insert(keys[i], static_cast<int>(i));
  const auto given = [](auto cursor) {
    std::vector<std::string> texts;
    for (auto&& [key, value] : cursor) texts.push_back(key);
    std::vector<std::string> backwards;
    for (auto&& [key, value] : std::move(cursor).reverse()) backwards.push_back(key);
    EXPECT_TRUE(std::ranges::equal(texts, backwards | std::views::reverse));
    return texts;
  };
  const auto some = [&](size_t first, size_t last) {
    return std::vector<std::string>(keys.begin() + static_cast<ptrdiff_t>(first),
                                    keys.begin() + static_cast<ptrdiff_t>(last));
  };
  EXPECT_EQ(given(index.all()), some(0, 12));
  EXPECT_EQ(given(index.from("")), some(0, 12));
  EXPECT_EQ(given(index.from("aa")), some(2, 12));
  EXPECT_EQ(given(index.prefix("")), some(0, 12));
  EXPECT_EQ(given(index.prefix("a")), some(1, 10));
  EXPECT_EQ(given(index.prefix("ab")), some(2, 9));
  EXPECT_EQ(given(index.prefix("ab\xff")),
            some(7, 9));  // nothing follows that begins with the next text
  EXPECT_EQ(given(index.prefix("\xff")), some(11, 12));
  EXPECT_EQ(given(index.prefix("abc")), some(0, 0));
  EXPECT_EQ(given(index.prefix(zero)), some(3, 4));
  EXPECT_EQ(given(index.range("", "a")), some(0, 1));
  EXPECT_EQ(given(index.range("ab", "ab")), some(0, 0));
  EXPECT_EQ(given(index.range("ab", zero)), some(2, 3));
  EXPECT_EQ(given(index.range("b", "a")), some(0, 0));
}

// Keys of the longest length, where there is no room to name the next one, and values that fill
// chunks by bytes.
TEST(TypedCursorOfStrings, PassesLongestKeysAndLargeValues) {
  Pool pool = new_pool();
  auto index = FastFair<std::string, std::string>::create(pool, "index");
  const uint64_t longest = catalog_entry("fast-fair").traits.key_bytes_max;
  std::map<std::string, std::string> model;
  for (int i = 0; i < 60; ++i) {
    const std::string number = std::to_string(i);
    const std::string key = std::string(longest - number.size(), 'k') + number;
    model[key] = std::string(i % 7 == 0 ? 100'000 : 30'000, static_cast<char>('a' + i % 26));
    index.insert(key, model[key]);
  }
  auto expected = model.begin();
  for (auto&& [key, value] : index.prefix("kk")) {
    ASSERT_NE(expected, model.end());
    ASSERT_EQ(key, expected->first);
    ASSERT_EQ(value, expected->second) << key;
    ++expected;
  }
  EXPECT_EQ(expected, model.end());
}

TEST(TypedCursorOfStructs, GivesThemInTheOrderOfTheirBytes) {
  Pool pool = new_pool();
  auto index = FpTree<Uuid, Point>::create(pool, "index");
  for (unsigned i = 0; i < 300; ++i) {
    index.insert(Uuid{static_cast<unsigned char>(i % 256), static_cast<unsigned char>(i / 256)},
                 {static_cast<int32_t>(i), -1});
  }
  std::optional<Uuid> before;
  int32_t count = 0;
  for (auto&& [key, point] : index.from(Uuid{0, 1})) {
    EXPECT_EQ(point.x, key[0] + 256 * key[1]);
    if (before) {
      EXPECT_LT(*before, key);
    }
    before = key;
    ++count;
  }
  EXPECT_EQ(count, 299);
  EXPECT_EQ(std::ranges::distance(index.range(Uuid{7}, Uuid{8})), 2);
}

TEST(TypedCursorOfRanges, WorksWithStandardAlgorithmsAndViews) {
  Pool pool = new_pool();
  auto index = Sheaf<int, int>::create(pool, "index");
  for (int i = -100; i < 100; ++i) index.insert(i, i * i);
  using Record = decltype(index)::Record;
  std::vector<int> keys;
  for (const Record& record : index.from(-50) | std::views::filter([](const Record& r) {
                                return r.key % 10 == 0;
                              }) | std::views::take(3)) {
    keys.push_back(record.key);
  }
  EXPECT_EQ(keys, (std::vector{-50, -40, -30}));
  std::vector<Record> records;  // owned
  std::ranges::copy(index.range(-2, 1), std::back_inserter(records));
  EXPECT_EQ(records, (std::vector<Record>{{-2, 4}, {-1, 1}, {0, 0}}));
  auto cursor = index.all();
  EXPECT_EQ(std::ranges::find(cursor, 81, &Record::value)->key, -9);
  // It stands where the search has ended.
  EXPECT_EQ(std::ranges::find(cursor, 81, &Record::value)->key, -9);
  cursor.next();
  EXPECT_EQ(std::ranges::find(cursor, 81, &Record::value)->key, 9);
}

TEST(TypedCursorOfRanges, WorksBackwards) {
  Pool pool = new_pool();
  auto index = NvTree<int, int>::create(pool, "index");
  for (int i = -100; i < 100; ++i) index.insert(i, i * i);
  using Record = decltype(index)::Record;
  static_assert(std::ranges::input_range<TypedReverse<int, int>>);
  std::vector<Record> records;
  std::ranges::copy(index.range(-2, 5).reverse() | std::views::take(3),
                    std::back_inserter(records));
  EXPECT_EQ(records, (std::vector<Record>{{4, 16}, {3, 9}, {2, 4}}));
  auto backwards = index.all().reverse();
  EXPECT_EQ(std::ranges::find(backwards, 81, &Record::value)->key, 9);
  backwards.cursor().next();
  EXPECT_EQ(backwards.begin()->key, 10);
}

TEST(TypedRanges, AreRemovedByTypedKeysAndByPrefixes) {
  Pool pool = new_pool();
  auto signs = FastFair<int, int>::create(pool, "signs");
  for (int i = -300; i < 300; ++i) signs.insert(i, i);
  EXPECT_EQ(signs.remove_range(-200, 100), 300U);
  EXPECT_EQ(signs.size(), 300U);
  EXPECT_TRUE(signs.contains(-201) && !signs.contains(-200) && !signs.contains(99));
  EXPECT_TRUE(signs.contains(100));
  EXPECT_EQ(signs.remove_range(5, -5), 0U);
  auto words = WbTree<std::string, int>::create(pool, "words");
  for (const char* word : {"a", "ab", "abc", "ac", "b", "\xff", "\xff\xff"}) words.insert(word, 1);
  EXPECT_EQ(words.remove_prefix("ab"), 2U);
  EXPECT_EQ(words.remove_prefix("\xff"), 2U);
  EXPECT_TRUE(words.contains("a") && words.contains("ac") && words.contains("b"));
  EXPECT_EQ(words.remove_prefix(""), 3U);
}

TEST(TypedCursorOfAny, NeedsAnOrderedStructure) {
  Pool pool = new_pool();
  for (const char* structure : {"cceh", "plush"}) {
    auto index = TypedIndex<int, int>::create(pool, structure, structure);
    EXPECT_TRUE(test::fails_with(ErrorCode::kWrongType, "order", [&] { index.all(); }));
    EXPECT_TRUE(
        test::fails_with(ErrorCode::kWrongType, "order", [&] { index.scan(0, [](int, int) {}); }));
    EXPECT_TRUE(test::fails_with(ErrorCode::kWrongType, "order",
                                 [&] { index.scan_back([](int, int) {}); }));
  }
  auto index = TypedIndex<std::string, std::string>::create(pool, "rstore", "rstore+ordered");
  index.upsert("b", "2");
  index.upsert("a", "1");
  EXPECT_EQ(index.all().key(), "a");
}

// A record that cannot be read ends a cursor with an error, at whichever chunk it lies in.
TEST(TypedCursorOfAny, IsAtItsEndOnceAScanHasFailed) {
  Pool pool = new_pool();
  {
    auto wide = WbTree<int, int64_t>::create(pool, "index");
    for (int i = 0; i < 100; ++i) wide.insert(i, i == 50 ? 1000 : i);
  }
  const auto narrow = WbTree<int, int8_t>::open(pool, "index");
  auto cursor = narrow.all();
  int seen = 0;
  EXPECT_TRUE(test::fails_with(ErrorCode::kWrongType, "1000", [&] {
    for (; cursor.valid(); cursor.next()) EXPECT_EQ(cursor.key(), seen++);
  }));
  EXPECT_EQ(seen, 24);  // the chunks of 8 and 16 before that one
  EXPECT_FALSE(cursor.valid());
  cursor.next();
  EXPECT_FALSE(cursor.valid());
  EXPECT_EQ(narrow.range(51, 99).key(), 51);
}

// Keys that nobody touches are given once each, while others come and go among them.
TEST(TypedCursorOfThreads, GivesWhatStaysExactlyOnce) {
  Pool pool = new_pool();
  auto index = FpTree<int, int>::create(pool, "index", OptionMap{{"leaf_records", "8"}});
  for (int key = 0; key < 3000; key += 3) index.insert(key, key);
  std::jthread writer([&](const std::stop_token& stop) {
    for (unsigned i = 0; !stop.stop_requested(); ++i) {
      const int key = static_cast<int>(i * 7919 % 1000) * 3 + 1;
      if (!index.insert(key, key)) index.remove(key);
    }
  });
  for (int round = 0; round < 20; ++round) {
    int next = 0;
    int before = -1;
    for (auto&& [key, value] : index.all()) {
      ASSERT_EQ(key, value);
      ASSERT_LT(before, key);
      before = key;
      if (key % 3 != 0) continue;
      ASSERT_EQ(key, next);
      next += 3;
    }
    EXPECT_EQ(next, 3000);
  }
}

}  // namespace
}  // namespace perdure
