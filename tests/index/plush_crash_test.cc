// Crashes of Plush that need two tables, a crash inside of recovery, or damage: images of the
// pool's file, taken while it is open, are what a crash leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "index/plush/core.h"
#include "perdure/plush.h"
#include "pm/pool_impl.h"
#include "support/files.h"

namespace perdure::index::plush {
namespace {

using Texts = Plush<std::string, std::string>;
using Words = Plush<uint64_t, uint64_t>;

class PlushCrash : public testing::Test {
 protected:
  static PlushOptions tiny() { return {.directory_bits = 3, .fanout = 2, .partitions = 1}; }
  Pool create() const {
    return Pool::create(dir_.file("pool"),
                        {.capacity_bytes = uint64_t{16} << 20, .growth_bytes = 1 << 16});
  }
  std::string image() const { return test::read_file(dir_.file("pool")); }
  Pool open(const std::string& image, const char* name) const {
    test::write_file(dir_.file(name), image);
    return Pool::open(dir_.file(name));
  }

  test::TempDir dir_;
};

constexpr uint64_t kEntryHead = sizeof(PayloadEntry);

// The end of a chunk is noted by the first recovery, durably; then it crashes before it has
// cancelled the record whose payload is torn.
TEST_F(PlushCrash, APayloadIsStillTornAfterACrashInsideOfRecovery) {
  std::string before;
  std::string torn;
  {
    Pool pool = create();
    auto table = Texts::create(pool, "t", tiny());
    table.upsert("key", "the old value");
    before = image();
    table.upsert("key", "one that is not acknowledged");
    torn = image();
  }
  const size_t text = torn.find("keyone that");
  ASSERT_NE(text, std::string::npos);
  std::copy_n(&before[text - kEntryHead], 64, &torn[text - kEntryHead]);
  const size_t chunk = text / pm::kSegmentBytes * pm::kSegmentBytes;
  const size_t end_word = chunk + offsetof(PayloadChunk, end);
  std::string recovered;
  std::string value;
  {
    Pool pool = open(torn, "first");
    const auto table = Texts::open(pool, "t");
    ASSERT_TRUE(table.lookup("key", value));
    EXPECT_EQ(value, "the old value");
    recovered = test::read_file(dir_.file("first"));
  }
  ASSERT_NE(std::memcmp(&recovered[end_word], &torn[end_word], 8), 0);  // the note
  std::string again = torn;
  std::copy_n(&recovered[0], pm::kSegmentBytes, &again[0]);  // it was opened
  std::copy_n(&recovered[end_word], 8, &again[end_word]);
  Pool pool = open(again, "second");
  auto table = Texts::open(pool, "t");
  ASSERT_TRUE(table.lookup("key", value));
  EXPECT_EQ(value, "the old value");
  table.upsert("key", "another");
  EXPECT_TRUE(table.remove("key"));
}

// What one table left in a chunk is not what another one lost there.
TEST_F(PlushCrash, APayloadOfAnotherTableIsNone) {
  const auto key = [](int i) { return std::to_string(10000000 + i); };
  const auto text = [](char table, int i) {
    return std::string(1, table) + " value " + std::to_string(10000000 + i) + std::string(30, '.');
  };
  std::string torn;
  std::string stale;
  {
    Pool pool = create();
    auto b = Texts::create(pool, "b", tiny());
    auto a = Texts::create(pool, "a", tiny());
    const auto chunks = [&] {
      for (const Statistic& one : a.statistics()) {
        if (one.name == "payload_chunks") return one.value;
      }
      return -1.0;
    };
    double most = 0;
    for (int i = 0; chunks() >= most; ++i) {  // until one is given back
      ASSERT_LT(i, 20000);
      most = chunks();
      a.upsert(key(i % 300), text('a', i));
    }
    b.upsert(key(0), text('b', 0));
    const std::string before = image();
    const size_t first = before.find(key(0) + text('b', 0));
    ASSERT_NE(first, std::string::npos);
    const uint64_t bytes = (kEntryHead + key(0).size() + text('b', 0).size() + 7) & ~uint64_t{7};
    const size_t second = first + bytes;
    stale = before.substr(second, key(0).size());
    ASSERT_EQ(stale.substr(0, 4), key(0).substr(0, 4)) << "nothing of table a is there";
    b.upsert(stale, text('b', 1));
    torn = image();
    // The record is durable, its payload is not.
    std::copy_n(&before[second - kEntryHead], bytes, &torn[second - kEntryHead]);
  }
  Pool pool = open(torn, "after");
  auto b = Texts::open(pool, "b");
  std::string value;
  EXPECT_FALSE(b.lookup(stale, value)) << value;
  ASSERT_TRUE(b.lookup(key(0), value));
  EXPECT_EQ(value, text('b', 0));
  b.upsert(stale, text('b', 2));
  EXPECT_TRUE(b.lookup(stale, value));
}

// A group that meets damage leaves no record in the log that its caller was told is not there.
TEST_F(PlushCrash, AGroupThatMeetsDamageLeavesNothingInTheLog) {
  const auto key = [](uint64_t row, uint64_t i) { return key_of_hash(row << 61 | i * 977); };
  std::string damaged;
  {
    Pool pool = create();
    auto table = Words::create(pool, "t", tiny());
    for (uint64_t row = 0; row < 8; ++row) {
      for (uint64_t i = 1; i <= 10; ++i) table.upsert(key(row, i), 1000 + row);
    }
    table.checkpoint(1);
    pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<Root>(impl.find("t")->root);
    impl.at<Entry>(root.level1)[5].lines[0].state |= 63;  // records of row 5
    damaged = image();
  }
  std::string after;
  {
    Pool pool = open(damaged, "first");
    auto table = Words::open(pool, "t");
    for (uint64_t i = 0; i < 15; ++i) table.upsert(key(5, 100 + i), 5);
    const std::vector<RecordOf<uint64_t, uint64_t>> group = {{key(2, 1), 666}, {key(5, 200), 5}};
    EXPECT_THROW(table.multi_upsert(group), Error);
    EXPECT_TRUE(table.remove(key(2, 1)));
    after = test::read_file(dir_.file("first"));
  }
  Pool pool = open(after, "second");
  const auto table = Words::open(pool, "t");
  uint64_t value = 0;
  EXPECT_FALSE(table.lookup(key(2, 1), value)) << value;
}

}  // namespace
}  // namespace perdure::index::plush
