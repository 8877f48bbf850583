// Writes for which a full pool is a result: try_insert() and its kin.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/plush.h"
#include "perdure/store.h"
#include "perdure/transaction.h"
#include "perdure/typed.h"
#include "support/errors.h"

namespace perdure {
namespace {

using test::fails_with;

Pool small_pool(uint64_t capacity_bytes = Pool::kMinCapacityBytes) {
  return Pool::anonymous({.capacity_bytes = capacity_bytes});
}

TEST(TryWrites, TellWhatHasBecomeOfThem) {
  for (const CatalogEntry& entry : catalog()) {
    SCOPED_TRACE(entry.name);
    Pool pool = small_pool(std::max(entry.traits.capacity_bytes_min, uint64_t{4} << 20));
    const auto [key_kind, value_kind] = entry.traits.kinds.front();
    const auto index = create_index(pool, "words", entry.name, key_kind, value_kind);
    const auto text = [](uint64_t number) {
      std::string digits = std::to_string(number);
      return std::string(12 - digits.size(), '0') + digits;
    };
    std::string buffer;
    const auto key = [&](uint64_t number) {
      return key_kind == Kind::kU64 ? Datum(number) : Datum(buffer = text(number));
    };
    const Datum one = value_kind == Kind::kU64 ? Datum(1) : Datum("one");
    const Datum two = value_kind == Kind::kU64 ? Datum(2) : Datum("two");
    const auto value_of = [&](uint64_t number) {
      Value value;
      EXPECT_TRUE(index->lookup(key(number), value));
      return value;
    };

    EXPECT_EQ(index->try_update(key(0), one), WriteResult::kUnchanged);
    EXPECT_EQ(index->try_insert(key(0), one), WriteResult::kDone);
    EXPECT_EQ(index->try_insert(key(0), two), WriteResult::kUnchanged);
    EXPECT_EQ(value_of(0).datum(), one);
    EXPECT_EQ(index->try_update(key(0), two), WriteResult::kDone);
    EXPECT_EQ(value_of(0).datum(), two);
    EXPECT_EQ(index->try_upsert(key(0), one), WriteResult::kDone);
    EXPECT_EQ(value_of(0).datum(), one);
    EXPECT_EQ(index->try_remove(key(0)), WriteResult::kDone);
    EXPECT_EQ(index->try_remove(key(0)), WriteResult::kUnchanged);

    uint64_t number = 1;
    WriteResult result = WriteResult::kDone;
    while (result == WriteResult::kDone) result = index->try_insert(key(number++), one);
    EXPECT_EQ(result, WriteResult::kPoolFull);
    Value value;
    EXPECT_FALSE(index->lookup(key(number - 1), value));
    EXPECT_EQ(value_of(number - 2).datum(), one);
  }
}

// Of what has no call of that name: a store, a batch, a transaction.
TEST(TryWrites, OfWhateverWrites) {
  Pool pool = small_pool(uint64_t{8} << 20);
  auto store = Store::create(pool, "store");
  const std::string large(100'000, 'x');
  WriteResult result = WriteResult::kDone;
  uint64_t stored = 0;
  for (; result == WriteResult::kDone; ++stored) {
    result = try_write([&] { return store.put(std::to_string(stored), large); });
  }
  EXPECT_EQ(result, WriteResult::kPoolFull);
  EXPECT_FALSE(store.get(std::to_string(stored - 1)).has_value());
  EXPECT_EQ(try_write([&] { return store.remove("none"); }), WriteResult::kUnchanged);
  pool = small_pool(uint64_t{4} << 20);
  auto words = Cceh<uint64_t, uint64_t>::create(pool, "words");
  const std::vector<AnyRecord> records = {{1, 1}, {2, 2}};
  uint64_t number = 0;
  while (words.try_upsert(number, number) == WriteResult::kDone) ++number;
  const auto both = [&] {
    transact(pool, [&](PoolTransaction& transaction) {
      transaction.upsert(words, number + 1, 1);
      transaction.upsert(words, number + 2, 1);
    });
  };
  EXPECT_EQ(try_write(both), WriteResult::kPoolFull);
  EXPECT_EQ(try_write([&] { words.any().multi_upsert(records); }), WriteResult::kDone);
}

TEST(TryWrites, AreThereForTypesAndForPlush) {
  Pool pool = small_pool();
  auto scores = FastFair<std::string, int64_t>::create(pool, "scores");
  EXPECT_EQ(scores.try_update("ada", 1), WriteResult::kUnchanged);
  EXPECT_EQ(scores.try_upsert("ada", -3), WriteResult::kDone);
  EXPECT_EQ(scores.try_insert("ada", 1), WriteResult::kUnchanged);
  EXPECT_EQ(scores.get("ada"), -3);
  int64_t number = 0;
  WriteResult result = WriteResult::kDone;
  while (result == WriteResult::kDone) {
    ++number;
    result = scores.try_insert("name " + std::to_string(number), number);
  }
  EXPECT_EQ(result, WriteResult::kPoolFull);
  EXPECT_EQ(scores.try_remove("ada"), WriteResult::kDone);
  EXPECT_EQ(scores.try_remove("ada"), WriteResult::kUnchanged);

  Pool other = small_pool();
  auto words = Plush<uint64_t, uint64_t>::create(other, "words");
  EXPECT_EQ(try_update(words, 1, 1), WriteResult::kUnchanged);
  EXPECT_EQ(try_insert(words, 1, 1), WriteResult::kDone);
  EXPECT_EQ(try_insert(words, 1, 2), WriteResult::kUnchanged);
  EXPECT_EQ(try_remove(words, 1), WriteResult::kDone);
  uint64_t word = 0;
  do result = try_upsert(words, word, word);
  while (++word < uint64_t{10} << 20 && result == WriteResult::kDone);
  EXPECT_EQ(result, WriteResult::kPoolFull);
}

TEST(TryWrites, ThrowAllOtherErrors) {
  Pool pool = small_pool();
  const auto index = create_index(pool, "words", "cceh", Kind::kU64, Kind::kU64);
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, [&] { (void)index->try_upsert("key", 1); }));
}

TEST(TryWrites, ResultsHaveNames) {
  EXPECT_STREQ(to_string(WriteResult::kDone), "done");
  EXPECT_STREQ(to_string(WriteResult::kUnchanged), "unchanged");
  EXPECT_STREQ(to_string(WriteResult::kPoolFull), "pool-full");
  EXPECT_STREQ(to_string(WriteResult::kNoSpace), "no-space");
}

}  // namespace
}  // namespace perdure
