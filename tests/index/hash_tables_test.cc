// What the scenarios over the catalogue cannot reach of the hash tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "index/cceh/layout.h"
#include "index/hash.h"
#include "index/stripes.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/scale.h"

namespace perdure::index {
namespace {

TEST(HashOfWords, IsABijectionWithItsInverse) {
  std::mt19937_64 random(1);
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(key_of_hash(hash_of(key)), key);
  }
  for (int i = 0; i < 100000; ++i) {
    const uint64_t key = random();
    ASSERT_EQ(key_of_hash(hash_of(key)), key);
    ASSERT_EQ(hash_of(key_of_hash(key)), key);
  }
}

TEST(StripeLock, ReadersGoOnUntilSomethingChanges) {
  StripeLock lock;
  const uint32_t stamp = lock.begin_read();
  lock.lock();
  EXPECT_FALSE(lock.try_lock());
  EXPECT_TRUE(lock.validate(stamp)) << "a writer that only looks does no harm";
  lock.unlock();
  EXPECT_TRUE(lock.validate(stamp));
  lock.lock();
  lock.begin_change();
  EXPECT_FALSE(lock.validate(stamp));
  lock.unlock();
  EXPECT_FALSE(lock.validate(stamp));
  EXPECT_TRUE(lock.validate(lock.begin_read()));
}

class HashTables : public testing::Test {
 protected:
  static double figure(const AnyIndex& index, const std::string& name) {
    for (const Statistic& one : index.statistics()) {
      if (one.name == name) return one.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }
  // Inserts words until the structure has grown, and returns the load it had before.
  static double load_when_it_grows(AnyIndex& index, const std::string& size, uint64_t& key) {
    const double before = figure(index, size);
    double load = 0;
    for (;;) {
      for (int i = 0; i < 64; ++i) index.insert(key++, static_cast<uint64_t>(i));
      if (figure(index, size) > before) return load;
      load = figure(index, "load_factor");
    }
  }

  test::TempDir dir_;
  PoolOptions options_{.capacity_bytes = uint64_t{64} << 20};
};

TEST_F(HashTables, LevelHashingIsNearlyFullWhenItGrows) {
  for (const char* name : {"level", "level+rb"}) {
    Pool pool = Pool::create(dir_.file(name), options_);
    const auto index =
        create_index(pool, "t", name, Kind::kU64, Kind::kU64, {{"initial_bits", "9"}});
    uint64_t key = 0;
    EXPECT_GT(load_when_it_grows(*index, "nodes", key), 0.85) << name;
    // Some records later nothing is left of the old bottom level.
    for (int i = 0; i < 1000; ++i) index->insert(key++, uint64_t{0});
    EXPECT_EQ(figure(*index, "growing"), 0);
  }
}

// Each opening drains a few nodes of the old level, the same ones again, so the new level fills up
// first.
TEST_F(HashTables, LevelHashingGrowsFurtherWhereTheNewLevelIsFull) {
  for (const char* name : {"level", "level+rb"}) {
    for (const Kind value : {Kind::kU64, Kind::kBytes}) {
      const std::string path = dir_.file(std::string(name) + to_string(value));
      Pool::create(path, options_).close();
      double levels = 0;
      for (uint64_t key = 0; key < 700; ++key) {
        Pool pool = Pool::open(path, options_);
        const auto index =
            key == 0 ? create_index(pool, "t", name, Kind::kU64, value, {{"initial_bits", "5"}})
                     : open_index(pool, "t");
        const std::string text = "value " + std::to_string(key);
        ASSERT_TRUE(index->insert(key, value == Kind::kU64 ? Datum(key) : Datum(text)));
        levels = std::max(levels, figure(*index, "levels"));
      }
      EXPECT_GT(levels, 3) << "it did not have to";
      Pool pool = Pool::open(path, options_);
      const auto index = open_index(pool, "t");
      Value out;
      for (uint64_t key = 0; key < 700; ++key) ASSERT_TRUE(index->lookup(key, out)) << key;
      EXPECT_EQ(figure(*index, "records"), 700);
      EXPECT_EQ(
          pm::impl_of(pool).heap().check([](const std::string& text) { ADD_FAILURE() << text; }),
          0U);
      EXPECT_EQ(index->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
      for (uint64_t key = 700; key < 3000; ++key) {
        const std::string text = "value " + std::to_string(key);
        ASSERT_TRUE(index->insert(key, value == Kind::kU64 ? Datum(key) : Datum(text)));
      }
      for (uint64_t key = 0; key < 3000; ++key) ASSERT_TRUE(index->lookup(key, out)) << key;
      EXPECT_EQ(figure(*index, "levels"), 2 + figure(*index, "growing"));
      EXPECT_EQ(index->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
    }
  }
}

TEST_F(HashTables, ChainedTablesGrowAtHalfLoadOrMore) {
  for (const char* name : {"p-clht", "p-clht+fc+ve+xs"}) {
    Pool pool = Pool::create(dir_.file(name), options_);
    const auto index =
        create_index(pool, "t", name, Kind::kU64, Kind::kU64, {{"initial_bits", "10"}});
    uint64_t key = 0;
    EXPECT_GT(load_when_it_grows(*index, "buckets", key), 0.5) << name;
  }
}

TEST_F(HashTables, CcehFillsItsSegmentsWhenThePoolIsFull) {
  for (const char* name : {"cceh", "cceh+ip"}) {
    Pool pool = Pool::create(dir_.file(name), {.capacity_bytes = Pool::kMinCapacityBytes});
    const auto index = create_index(pool, "t", name, Kind::kU64, Kind::kU64, {});
    std::vector<bool> inserted;
    // As many keys as it takes; from 0.7 on, when the pool is full, more and more of them find no
    // room, and are errors, which take long under a sanitizer.
    const double enough = test::kUnderAddressSanitizer || test::kUnderThreadSanitizer ? 0.8 : 0.9;
    while (inserted.size() < 200'000 &&
           (inserted.size() % 1000 != 0 || figure(*index, "load_factor") <= enough)) {
      const uint64_t key = inserted.size();
      inserted.push_back(false);
      try {
        inserted[key] = index->insert(key, key);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kPoolFull);
      }
    }
    EXPECT_GT(figure(*index, "load_factor"), enough) << name;
    Value out;
    for (uint64_t key = 0; key < inserted.size(); ++key) {
      ASSERT_EQ(index->lookup(key, out), inserted[key]) << key;
    }
    EXPECT_EQ(index->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
}

// A crash between the stores to the directory entries of a split: the one in the middle decides.
class InterruptedSplit : public HashTables {
 protected:
  void fill(AnyIndex& index) {
    for (uint64_t key = 0; key < 3000; ++key) index.insert(key, key + 1);
  }
  void expect_all(const AnyIndex& index) {
    Value out;
    for (uint64_t key = 0; key < 3000; ++key) {
      ASSERT_TRUE(index.lookup(key, out)) << key;
      ASSERT_EQ(out.word(), key + 1);
    }
    EXPECT_EQ(index.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
};

TEST_F(InterruptedSplit, IsCompletedWhereTheMiddleEntryHasChanged) {
  using cceh::Directory;
  using cceh::Entry;
  using cceh::Pending;
  Pool pool = Pool::create(dir_.file("pool"), options_);
  auto index = create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64,
                            {{"initial_depth", "1"}, {"segment_buckets", "16"}});
  fill(*index);
  index.reset();
  auto& root = *pm::impl_of(pool).at<cceh::Root>(pm::impl_of(pool).find("t")->root);
  auto& directory = *pm::impl_of(pool).at<Directory>(root.directory);
  uint64_t interrupted = 0;
  for (uint64_t i = 0; i < uint64_t{1} << directory.depth; i += 2) {
    const Entry lower{directory.entries()[i]};
    if (lower.depth() != directory.depth || directory.entries()[i + 1] == lower.word) continue;
    // As if only the store that decides had become durable.
    const uint64_t after = directory.entries()[i];
    directory.entries()[i] = Entry::make(lower.segment(), directory.depth - 1).word;
    root.pending = Pending::make(i, 1, true).word;
    index = open_index(pool, "t");
    EXPECT_EQ(figure(*index, "recovered_operations"), 1);
    EXPECT_EQ(directory.entries()[i], after);
    EXPECT_EQ(root.pending, 0U);
    expect_all(*index);
    index.reset();
    if (++interrupted == 5) break;
  }
  EXPECT_GT(interrupted, 0U);
  index = open_index(pool, "t");
  EXPECT_EQ(figure(*index, "recovered_operations"), 0);
}

TEST_F(InterruptedSplit, IsUndoneWhereTheMiddleEntryHasNot) {
  using cceh::Directory;
  using cceh::Entry;
  using cceh::Pending;
  Pool pool = Pool::create(dir_.file("pool"), options_);
  auto index = create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64,
                            {{"initial_depth", "1"}, {"segment_buckets", "16"}});
  fill(*index);
  index.reset();
  auto& root = *pm::impl_of(pool).at<cceh::Root>(pm::impl_of(pool).find("t")->root);
  auto& directory = *pm::impl_of(pool).at<Directory>(root.directory);
  for (uint64_t i = 0; i < uint64_t{1} << directory.depth; i += 2) {
    const uint64_t before = directory.entries()[i];
    if (directory.entries()[i + 1] != before) continue;
    // One segment for both entries: the lower one already points to the half of a split.
    directory.entries()[i] = Entry::make(Entry{before}.segment(), directory.depth).word;
    root.pending = Pending::make(i, 1, true).word;
    index = open_index(pool, "t");
    EXPECT_EQ(directory.entries()[i], before);
    expect_all(*index);
    return;
  }
  GTEST_SKIP() << "every segment has a directory entry of its own";
}

// An entry that a damaged medium has zeroed seems to have had no key yet. A new segment for all
// entries of its range would replace those of its neighbours.
TEST_F(InterruptedSplit, AZeroedDirectoryEntryCostsItsNeighboursNothing) {
  Pool pool = Pool::create(dir_.file("pool"), options_);
  auto index = create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64,
                            {{"initial_depth", "1"}, {"segment_buckets", "16"}});
  fill(*index);
  auto& root = *pm::impl_of(pool).at<cceh::Root>(pm::impl_of(pool).find("t")->root);
  auto& directory = *pm::impl_of(pool).at<cceh::Directory>(root.directory);
  directory.entries()[1] = 0;
  const auto is_lost = [&](uint64_t key) { return hash_of(key) >> (64 - directory.depth) == 1; };
  uint64_t lost = 3000;
  while (!is_lost(lost)) ++lost;
  EXPECT_THROW(index->insert(lost, lost), Error);
  Value out;
  for (uint64_t key = 0; key < 3000; ++key) {
    ASSERT_EQ(index->lookup(key, out), !is_lost(key)) << key;
  }
}

TEST_F(HashTables, OptionsFixedAtCreationAreNotChanged) {
  Pool pool = Pool::create(dir_.file("pool"), options_);
  create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64, {{"initial_depth", "3"}}).reset();
  EXPECT_THROW(open_index(pool, "t", {{"initial_depth", "4"}}), Error);
  EXPECT_THROW(create_index(pool, "u", "cceh", Kind::kU64, Kind::kU64, {{"segment_buckets", "17"}}),
               Error);
  EXPECT_NE(open_index(pool, "t", {{"initial_depth", "3"}}), nullptr);
}

// Which slots are empty depends on it: a table that was read with another one would lose records.
TEST_F(HashTables, CcehKeepsTheBucketsThatItProbes) {
  Pool pool = Pool::create(dir_.file("pool"), options_);
  create_index(pool, "as published", "cceh", Kind::kU64, Kind::kU64, {}).reset();
  EXPECT_NE(open_index(pool, "as published", {{"probe_buckets", "4"}}), nullptr);
  create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64, {{"probe_buckets", "8"}}).reset();
  for (const char* other : {"4", "16"}) {
    EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument, "probe_buckets", [&] {
      open_index(pool, "t", {{"probe_buckets", other}});
    })) << other;
    EXPECT_THROW(open_index(pool, "as published", {{"probe_buckets", "8"}}), Error);
  }
  EXPECT_NE(open_index(pool, "t", {{"probe_buckets", "8"}}), nullptr);
  EXPECT_NE(open_index(pool, "t"), nullptr);
  for (const OptionMap& wrong :
       {OptionMap{{"probe_buckets", "1"}}, OptionMap{{"probe_buckets", "6"}},
        OptionMap{{"probe_buckets", "32"}},
        OptionMap{{"probe_buckets", "16"}, {"segment_buckets", "16"}}}) {
    EXPECT_THROW(create_index(pool, "u", "cceh", Kind::kU64, Kind::kU64, wrong), Error);
  }
}

TEST_F(HashTables, CcehFillsItsSegmentsMoreWhereItProbesMoreBuckets) {
  constexpr uint64_t kRecords = 22'000;
  double filled_before = 0;
  for (const char* probe : {"2", "4", "8", "16"}) {
    SCOPED_TRACE(probe);
    Pool pool = Pool::create(dir_.file(std::string("pool") + probe), options_);
    auto index =
        create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64,
                     {{"probe_buckets", probe}, {"segment_buckets", "64"}, {"initial_depth", "1"}});
    for (uint64_t key = 0; key < kRecords; ++key) ASSERT_TRUE(index->insert(key, key));
    for (uint64_t key = 0; key < kRecords; key += 3) ASSERT_TRUE(index->remove(key));
    for (uint64_t key = 0; key < kRecords; key += 3) ASSERT_TRUE(index->insert(key, key + 1));
    const double filled = figure(*index, "load_factor");
    EXPECT_GT(filled, filled_before);
    filled_before = filled;
    index.reset();
    index = open_index(pool, "t");
    Value out;
    for (uint64_t key = 0; key < kRecords; ++key) {
      ASSERT_TRUE(index->lookup(key, out)) << key;
      ASSERT_EQ(out.word(), key + (key % 3 == 0 ? 1 : 0));
      ASSERT_FALSE(index->insert(key, 0)) << key;
    }
    ASSERT_FALSE(index->lookup(kRecords, out));
    EXPECT_EQ(index->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
}

// A process dies in the removal of a key, whose slot is not the first one that is empty; the next
// one adds the key; the power fails.
TEST_F(HashTables, CcehHasAKeyOnceWhoseRemovalWasInTheCachesOnly) {
  const auto key = [](uint64_t number) { return key_of_hash(number << 8 | 5); };
  const std::string path = dir_.file("pool");
  PoolOptions options = options_;
  options.force_domain = true;
  options.domain = Domain::kLine;
  {
    Pool pool = Pool::create(path, options);
    auto index = create_index(pool, "t", "cceh", Kind::kU64, Kind::kU64,
                              {{"segment_buckets", "16"}, {"initial_depth", "1"}});
    for (uint64_t i = 0; i < 5; ++i) index->insert(key(i), i);  // the last one in the next bucket
  }
  test::FailingMedium medium(path, Domain::kLine);
  medium.begin();
  {
    Pool pool = Pool::open(path, options);
    auto index = open_index(pool, "t");
    EXPECT_TRUE(index->remove(key(0)));
    medium.refuse_here(medium.persists(), true);
    EXPECT_TRUE(test::fails_with(ErrorCode::kIo, [&] { index->remove(key(4)); }));
  }
  medium.refuse_here(~uint64_t{0}, true);
  std::string image;
  {
    Pool pool = Pool::open(path, options);
    auto index = open_index(pool, "t");
    EXPECT_TRUE(index->insert(key(4), 40));
    image = medium.make_image(test::FailingMedium::Image::kLeast, 1);
  }
  std::filesystem::rename(image, path);
  Pool pool = Pool::open(path, options);
  auto index = open_index(pool, "t");
  index->check([](const std::string& text) { ADD_FAILURE() << text; });
  Value out;
  ASSERT_TRUE(index->lookup(key(4), out));
  EXPECT_EQ(out.word(), 40U);
  EXPECT_TRUE(index->remove(key(4)));
  EXPECT_FALSE(index->lookup(key(4), out));
}

}  // namespace
}  // namespace perdure::index
