// Pools whose capacity is raised when they are opened.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "index/plush/layout.h"
#include "perdure/catalog.h"
#include "perdure/version.h"
#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::pm {
namespace {

using test::fails_with;

constexpr uint64_t MiB(uint64_t n) { return n << 20; }

// ---- where segments and descriptors lie

TEST(SegmentMap, GivesEachSegmentAPlaceOfItsOwnAndADescriptor) {
  for (const uint64_t capacity : {MiB(2), MiB(3) + kSegmentBytes, MiB(16), MiB(100)}) {
    PoolHeader header{};
    header.capacity_bytes = capacity;
    header.descriptors_offset = 135168;
    header.data_offset =
        (header.descriptors_offset + capacity / kSegmentBytes * sizeof(SegmentDescriptor) +
         kSegmentBytes - 1) /
        kSegmentBytes * kSegmentBytes;
    const SegmentMap map(header);
    const uint64_t data = header.data_offset / kSegmentBytes;
    EXPECT_EQ(map.first_segments(), capacity / kSegmentBytes - data);
    const uint64_t end = 9 * capacity / kSegmentBytes;
    std::vector<bool> in_piece(end);
    map.for_each_piece(0, end, [&](uint64_t first, uint64_t last) {
      for (uint64_t i = first; i < last; ++i) {
        EXPECT_FALSE(in_piece[i]);
        in_piece[i] = true;
      }
    });
    std::set<uint64_t> descriptors;
    uint64_t segments = 0;
    for (uint64_t i = 0; i < end; ++i) {
      const SegmentMap::Extent extent = map.extent_of(i);
      ASSERT_TRUE(i >= extent.begin && i < extent.end && extent.data < extent.end) << i;
      ASSERT_EQ(map.is_table(i), i < extent.data);
      ASSERT_EQ(map.is_table(i), !in_piece[i]) << i;
      ASSERT_EQ(map.count(0, i), segments);
      if (!map.is_table(i)) {
        ASSERT_EQ(map.advance(0, segments + 1), i + 1);
        ++segments;
        const uint64_t at = map.descriptor_offset(i);
        ASSERT_TRUE(descriptors.insert(at).second);
        // In the table of its own extent.
        const uint64_t begin = i < map.first_segments()
                                   ? header.descriptors_offset
                                   : header.data_offset + extent.begin * kSegmentBytes;
        ASSERT_GE(at, begin);
        ASSERT_LE(at + sizeof(SegmentDescriptor), header.data_offset + extent.data * kSegmentBytes);
      }
      const uint64_t ends = map.end_at(i);
      ASSERT_TRUE(ends == i || (ends < i && map.is_table(i - 1))) << i;
      ASSERT_TRUE(ends == 0 || !map.is_table(ends - 1)) << i;
    }
  }
}

// ---- raising

class Raising : public ::testing::Test {
 protected:
  static constexpr uint64_t kFirst = MiB(2);

  static PoolOptions options(uint64_t at_least = 0, Domain domain = Domain::kByte) {
    PoolOptions options;
    options.capacity_bytes = kFirst;
    options.capacity_at_least_bytes = at_least;
    options.growth_bytes = kSegmentBytes;
    options.force_domain = true;
    options.domain = domain;
    return options;
  }
  static std::unique_ptr<AnyIndex> make(Pool& pool, const std::string& name = "words") {
    return create_index(pool, name, "cceh", Kind::kBytes, Kind::kBytes);
  }
  static std::string value_of(int i) {
    return std::string(3000, static_cast<char>('a' + i % 26)) + std::to_string(i);
  }
  static void put(AnyIndex& index, int i) { index.upsert("key" + std::to_string(i), value_of(i)); }
  // Until the pool is full. Returns how many records there are.
  static int fill(AnyIndex& index, int from) {
    try {
      for (;; ++from) put(index, from);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
    }
    return from;
  }
  static void expect_right(const AnyIndex& index, int records) {
    Value value;
    int right = 0;
    for (int i = 0; i < records; ++i) {
      right += index.lookup("key" + std::to_string(i), value) && value.bytes() == value_of(i);
    }
    EXPECT_EQ(right, records);
    EXPECT_EQ(index.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
  }
  static void expect_sound(const Pool& pool) {
    EXPECT_EQ(pool.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
  }
  // A pool that is full at its first capacity. Returns how many records there are.
  int make_full(Domain domain = Domain::kByte) {
    Pool pool = Pool::create(path_, options(0, domain));
    const int records = fill(*make(pool), 0);
    pool.close();
    return records;
  }
  PoolHeader header() const {
    PoolHeader header;
    std::memcpy(&header, test::read_file(path_).data(), sizeof header);
    return header;
  }
  uint64_t found_by_check() const {
    PoolOptions reading;
    reading.read_only = true;
    return Pool::open(path_, reading).check([](const std::string&) {});
  }
  uint64_t file_bytes() const { return std::filesystem::file_size(path_); }

  test::TempDir dir_;
  std::string path_ = dir_.file("pool");
};

TEST_F(Raising, AgainAndAgainAFullPoolTakesMore) {
  int records = make_full();
  EXPECT_EQ(header().format_version, kFirstFormat);
  for (const uint64_t capacity : {MiB(3), MiB(4), MiB(5), MiB(21), MiB(40)}) {
    SCOPED_TRACE(capacity);
    const uint64_t before = file_bytes();
    Pool pool = Pool::open(path_, options(capacity));
    EXPECT_EQ(pool.info().capacity_bytes, capacity);
    EXPECT_EQ(pool.info().format_version, kExtendedFormat);
    EXPECT_EQ(file_bytes(), before);  // it costs nothing
    {
      const auto index = open_index(pool, "words");
      expect_right(*index, records);
      const int more = fill(*index, records);
      // All of it is used, but for tables, and what the structure wants in one piece.
      EXPECT_GT(more, records + static_cast<int>((capacity - before) / 4600)) << records;
      records = more;
      expect_right(*index, records);
    }
    expect_sound(pool);
    EXPECT_LE(impl_of(pool).end_offset(), capacity);
    pool.close();
    EXPECT_EQ(found_by_check(), 0U);  // the seals of all extents
    pool = Pool::open(path_, options());
    EXPECT_EQ(pool.info().capacity_bytes, capacity);
    expect_right(*open_index(pool, "words"), records);
  }
}

TEST_F(Raising, GivesRunsThatTablesDoNotCut) {
  make_full();
  Pool pool = Pool::open(path_, options(MiB(64)));
  Heap& heap = impl_of(pool).heap();
  const SegmentMap& map = impl_of(pool).map();
  test::Random random(1);
  const auto take = [&](uint64_t segments) {
    // Given back at once: the pool stays as large.
    Heap::Txn txn(heap);
    const uint64_t block = txn.allocate(segments * kSegmentBytes);
    const uint64_t first = (block - impl_of(pool).header().data_offset) / kSegmentBytes;
    EXPECT_EQ(map.count(first, first + segments), segments) << first;
    EXPECT_LE(block + segments * kSegmentBytes, MiB(64));
  };
  for (int i = 0; i < 300; ++i) take(1 + random.below(200));
  take(MiB(31) / kSegmentBytes);  // the last extent has 32 MiB
  pool.shrink();
  const uint64_t end = impl_of(pool).end_offset();
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, path_, [&] { take(MiB(33) / kSegmentBytes); }));
  EXPECT_EQ(impl_of(pool).end_offset(), end) << "it grew, though that could not help";
  expect_sound(pool);
  // All of it is free: the pool becomes what its records need.
  pool.shrink();
  EXPECT_LE(impl_of(pool).end_offset(), kFirst + 3 * kSegmentBytes);
  take(1 + random.below(200));
}

TEST_F(Raising, ThenShrinkingGivesExtentsBackAndTheyCome) {
  const int records = make_full();
  Pool pool = Pool::open(path_, options(MiB(40)));
  for (int round = 0; round < 3; ++round) {
    const int others = fill(*make(pool, "others"), 0);
    EXPECT_GT(others, 7000);
    drop_structure(pool, "others");
    const uint64_t before = file_bytes();
    const uint64_t shrunk = pool.shrink();
    EXPECT_EQ(file_bytes(), before - shrunk);
    EXPECT_LE(file_bytes(), kFirst + 3 * kSegmentBytes);  // with two that removals may need
    EXPECT_EQ(file_bytes(), impl_of(pool).end_offset());
    EXPECT_LE(pool.info().size_bytes, file_bytes());
    EXPECT_EQ(impl_of(pool).heap().free_segments(), Segments::kReserve);
    expect_sound(pool);
    if (round == 1) {
      pool.close();
      pool = Pool::open(path_, options());
    }
  }
  drop_structure(pool, "words");
  pool.shrink();
  EXPECT_EQ(file_bytes(), impl_of(pool).header().data_offset);
  EXPECT_EQ(pool.info().capacity_bytes, MiB(40));
  EXPECT_GT(fill(*make(pool), 0), 10 * records);
}

TEST_F(Raising, IsRefusedWithWordsAndChangesNothingThen) {
  make_full();
  const std::string sound = test::read_file(path_);
  PoolOptions reading = options(MiB(64));
  reading.read_only = true;
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, "read-only", [&] { Pool::open(path_, reading); }));
  EXPECT_TRUE(fails_with(ErrorCode::kCapacity, path_,
                         [&] { Pool::open(path_, options(Pool::kMaxCapacityBytes + 1)); }));
  // All that is new would be a table.
  EXPECT_TRUE(fails_with(ErrorCode::kCapacity, std::to_string(kFirst + 2 * kSegmentBytes),
                         [&] { Pool::open(path_, options(kFirst + kSegmentBytes)); }));
  EXPECT_EQ(test::read_file(path_), sound);
  // No more than it has.
  for (const uint64_t bytes : {uint64_t{1}, kFirst - 1, kFirst, kFirst + kSegmentBytes - 1}) {
    Pool pool = Pool::open(path_, options(bytes));
    EXPECT_EQ(pool.info().capacity_bytes, kFirst);
    EXPECT_EQ(pool.info().format_version, kFirstFormat);
  }
  {
    const Pool pool = Pool::open(path_, options(kFirst + 2 * kSegmentBytes));
    EXPECT_EQ(impl_of(pool).segments_left(), 1U);
  }
  const Pool pool = Pool::open(path_, options(Pool::kMaxCapacityBytes));
  EXPECT_EQ(pool.info().capacity_bytes, Pool::kMaxCapacityBytes);
}

TEST_F(Raising, IsCopiedByBackups) {
  int records = make_full();
  const std::string base = dir_.file("base");
  Pool pool = Pool::open(path_, options(MiB(24)));
  pool.backup(base);
  {
    const auto index = open_index(pool, "words");
    for (int i = 0; i < 3000; ++i) put(*index, records++);
  }
  pool.backup(dir_.file("more"), {.base = base});
  {
    const auto index = open_index(pool, "words");
    for (int i = 0; i < 1000; ++i) put(*index, records++);
    // In the middle of what a process does that dies then.
    pool.backup(dir_.file("most"), {.base = dir_.file("more")});
  }
  for (const auto& [name, count] :
       {std::pair{"most", records}, {"more", records - 1000}, {"base", records - 4000}}) {
    SCOPED_TRACE(name);
    const std::string restored = dir_.file(std::string("restored-") + name);
    Pool::restore(dir_.file(name), restored);
    Pool copy = Pool::open(restored, options());
    EXPECT_EQ(copy.info().capacity_bytes, MiB(24));
    const auto index = open_index(copy, "words");
    expect_right(*index, count);
    fill(*index, count);
    expect_sound(copy);
  }
}

TEST_F(Raising, DamageOfWhatIsNewIsFound) {
  const int records = make_full();
  {
    Pool pool = Pool::open(path_, options(MiB(16)));
    fill(*open_index(pool, "words"), records);
  }
  const std::string sound = test::read_file(path_);
  const PoolHeader header = this->header();
  const SegmentMap map(header);
  const auto refused = [&](ErrorCode code = ErrorCode::kCorrupt) {
    const bool is = static_cast<bool>(fails_with(code, path_, [&] { Pool::open(path_); }));
    test::write_file(path_, sound);
    return is;
  };
  for (int bit = 0; bit < 64; ++bit) {
    test::patch_file(path_, offsetof(PoolHeader, capacity_word),
                     header.capacity_word ^ uint64_t{1} << bit);
    EXPECT_TRUE(refused()) << bit;
  }
  // Sound words that no pool has: the capacity within a table, no more than the first, too much.
  for (const uint64_t bytes : {kFirst + kSegmentBytes, kFirst, Pool::kMaxCapacityBytes * 2}) {
    test::patch_file(path_, offsetof(PoolHeader, capacity_word),
                     seal_word(bytes / kSegmentBytes, kCapacitySalt));
    EXPECT_TRUE(refused()) << bytes;
  }
  test::patch_file(path_, offsetof(PoolHeader, capacity_word), uint64_t{0});
  EXPECT_TRUE(refused());
  // Fewer than there are, or an end within a table.
  test::patch_file(path_, offsetof(PoolHeader, capacity_word),
                   seal_word(MiB(3) / kSegmentBytes, kCapacitySalt));
  EXPECT_TRUE(refused());
  test::patch_file(path_, offsetof(PoolHeader, segments_word),
                   seal_word(map.first_segments() + 1, kSegmentsSalt));
  EXPECT_TRUE(refused());
  test::patch_file(path_, offsetof(PoolHeader, format_version), kExtendedFormat + 1);
  EXPECT_TRUE(refused(ErrorCode::kVersion));
  // Descriptors of the extents, one or a page of them.
  for (const uint64_t capacity : {kFirst, 2 * kFirst, 4 * kFirst}) {
    const uint64_t first =
        map.advance(capacity / kSegmentBytes - header.data_offset / kSegmentBytes, 1) - 1;
    const uint64_t at = map.descriptor_offset(first);
    test::patch_file(path_, at, uint64_t{1});
    EXPECT_TRUE(refused()) << capacity;
    test::patch_file(path_, at / 4096 * 4096, std::array<char, 4096>{});
    EXPECT_TRUE(refused()) << capacity;
    test::patch_file(path_, at + offsetof(SegmentDescriptor, bitmap), ~uint64_t{0} << 7);
    EXPECT_GT(found_by_check(), 0U) << capacity;
    test::patch_file(path_, header.data_offset + first * kSegmentBytes + 77, char{'?'});
    EXPECT_GT(found_by_check(), 0U) << capacity;
    test::write_file(path_, sound);
  }
  // What is not damaged can be saved.
  PoolOptions lenient;
  lenient.read_only = lenient.lenient = true;
  test::patch_file(path_, offsetof(PoolHeader, capacity_word), ~uint64_t{0});
  Pool pool = Pool::open(path_, lenient);
  expect_right(*open_index(pool, "words"), records);
  EXPECT_GT(pool.check([](const std::string&) {}), 0U) << "nor is it passed over";
}

// A crash between the word and the version, and a version of before that is the medium's.
TEST_F(Raising, TheVersionFollowsTheWord) {
  const int records = make_full();
  Pool::open(path_, options(MiB(16))).close();
  test::patch_file(path_, offsetof(PoolHeader, format_version), kFirstFormat);
  PoolOptions reading = options();
  reading.read_only = true;
  EXPECT_EQ(Pool::open(path_, reading).info().capacity_bytes, MiB(16));
  EXPECT_EQ(header().format_version, kFirstFormat);
  Pool pool = Pool::open(path_, options());
  EXPECT_EQ(header().format_version, kExtendedFormat);
  expect_right(*open_index(pool, "words"), records);
}

// Descriptors of segments are nobody's target, wherever they lie.
TEST_F(Raising, ARecordThatWouldChangeATableIsRefused) {
  const int records = make_full();
  Pool pool = Pool::open(path_, options(MiB(16)));
  fill(*open_index(pool, "words"), records);
  PoolImpl& impl = impl_of(pool);
  const uint64_t in_table = impl.map().descriptor_offset(impl.map().first_segments() + 3);
  ASSERT_GT(in_table, kFirst - 1);
  Lane& lane = impl.lanes()[kLanes - 1];
  const auto recover = [&](uint64_t target) {
    const uint64_t words[] = {target, 16, impl.at<uint64_t>(target)[0],
                              impl.at<uint64_t>(target)[1]};
    std::memcpy(lane.redo, words, sizeof words);
    lane.armed = uint64_t{checksum32(lane.redo, sizeof words)} << 32 | sizeof words;
    Heap recovered(impl);
    recovered.recover();
  };
  const uint64_t begin = impl.map().extent_of(impl.map().first_segments()).begin;
  const uint64_t segment_before = impl.header().data_offset + begin * kSegmentBytes;
  for (const uint64_t target : {in_table, segment_before - 8}) {
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, [&] { recover(target); })) << target;
  }
  recover(segment_before - 16);  // what is a block's
  lane.armed = 0;
}

// A Plush with byte strings keeps words for each segment, of which it has as many as the pool had.
class RaisingPlush : public Raising {
 protected:
  static constexpr char kName[] = "table";
  static std::unique_ptr<AnyIndex> open(Pool& pool) { return open_index(pool, kName); }
  // Returns how many records there are.
  int make_full_table(Domain domain) {
    Pool pool = Pool::create(path_, options(0, domain));
    const int records = fill(*create_index(pool, kName, "plush", Kind::kBytes, Kind::kBytes), 0);
    pool.close();
    return records;
  }
};

TEST_F(RaisingPlush, KeepsWordsForEachSegmentThatIsNew) {
  int records = make_full_table(Domain::kByte);
  for (const uint64_t capacity : {MiB(60), MiB(100)}) {
    Pool pool = Pool::open(path_, options(capacity));
    {
      const auto index = open(pool);
      records = fill(*index, records);
      expect_right(*index, records);
      EXPECT_GT(records, static_cast<int>(capacity / 5000));
    }
    pool.close();
    pool = Pool::open(path_, options());
    expect_right(*open(pool), records);
    EXPECT_GT(drop_structure(pool, kName), uint64_t{1} << 20);
    EXPECT_EQ(pool.info().allocated_bytes, 0U);  // all that it had was its own
    const auto index = create_index(pool, kName, "plush", Kind::kBytes, Kind::kBytes);
    records = fill(*index, 0);
    expect_right(*index, records);
  }
}

// The words that lead to its blocks change while a table is opened for the first time in a raised
// pool: who opens it at that moment, too, is told that it is open, and not that it is damaged.
TEST_F(RaisingPlush, WhatItsOpenerChangesIsNoDamageToOthers) {
  make_full_table(Domain::kByte);
  Pool pool = Pool::open(path_, options(MiB(60)));
  PoolImpl& impl = impl_of(pool);
  {
    const PoolImpl::Use use(impl, kName);
    const uint64_t root = impl.find(kName)->root;
    auto& places = impl.at<index::plush::Root>(root)->payload_places;
    const uint64_t before = std::exchange(places, places + kSegmentBytes);  // half of the change
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, kName, [&] { open(pool); }));
    places = before;
  }
  expect_right(*open(pool), 100);
}

// A table that was opened while the raised pool had no room for its words has them when there is
// room again.
TEST_F(RaisingPlush, GetsItsWordsWhenThereIsRoomAgain) {
  int records = make_full_table(Domain::kByte);
  Pool pool = Pool::open(path_, options(MiB(60)));
  // Until nothing can be had, of whatever size.
  fill(*make(pool, "others"), 0);
  for (const char* structure : {"p-art+vl", "wort", "fptree", "wbtree", "fast-fair"}) {
    const std::string name = structure;
    try {
      const auto index = create_index(pool, name, name, Kind::kU64, Kind::kU64);
      for (uint64_t i = 0;; ++i) index->upsert(i * 0x9e3779b97f4a7c15, i);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
    }
  }
  const auto index = open(pool);
  const uint64_t root = impl_of(pool).find(kName)->root;
  const auto& table = *impl_of(pool).at<index::plush::Root>(root);
  ASSERT_EQ(table.places_word, 0U);  // as in the pool that it was made in
  drop_structure(pool, "others");
  records = fill(*index, records);
  EXPECT_GT(records, 10'000);
  EXPECT_NE(table.places_word, 0U);
  expect_right(*index, records);
}

// A pool that was raised is read before it was written to.
TEST_F(RaisingPlush, IsReadBeforeItWasExtended) {
  const int records = make_full_table(Domain::kByte);
  Pool::open(path_, options(MiB(60))).close();
  PoolOptions reading;
  reading.read_only = true;
  Pool pool = Pool::open(path_, reading);
  expect_right(*open(pool), records);
}

TEST_F(RaisingPlush, APersistThatIsRefusedLeavesTheOldWordsOrTheNew) {
  const int records = make_full_table(Domain::kLine);
  Pool::open(path_, options(MiB(60), Domain::kLine)).close();
  const std::string original = test::read_file(path_);
  const uint64_t capacity = MiB(60);
  uint64_t persists = 0;
  test::Random random(3);
  using Image = test::FailingMedium::Image;
  for (uint64_t at = 0; persists == 0; ++at) {
    for (const Image image : {Image::kLeast, Image::kMixed, Image::kAll}) {
      SCOPED_TRACE(at);
      test::write_file(path_, original);
      std::string left;
      {
        test::FailingMedium medium(path_, Domain::kLine);
        medium.begin();
        Pool pool = Pool::open(path_, options(0, Domain::kLine));
        medium.refuse_here(medium.persists() + at, true);
        try {
          open(pool);
          persists = at;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        }
        left = medium.make_image(image, random.next());
        medium.mend();
      }
      std::filesystem::rename(left, path_);
      Pool pool = Pool::open(path_, options(0, Domain::kLine));
      {
        const auto index = open(pool);
        expect_right(*index, records);
        const int more = fill(*index, records);
        EXPECT_GT(more, static_cast<int>(capacity / 5000));
      }
      expect_sound(pool);
      drop_structure(pool, kName);
      EXPECT_EQ(pool.info().allocated_bytes, 0U);
    }
  }
  EXPECT_GE(persists, 3U);
}

// ---- power that fails, and media that refuse

class RaisingCrash : public Raising, public ::testing::WithParamInterface<Domain> {
 protected:
  // Raises, and fills the next extent.
  void work(uint64_t capacity, int records, test::FailingMedium* medium = nullptr,
            uint64_t* begin = nullptr, uint64_t* raised = nullptr) {
    if (begin != nullptr) *begin = medium->persists();
    Pool pool = Pool::open(path_, options(capacity, GetParam()));
    if (raised != nullptr) *raised = medium->persists();
    {
      const auto index = open_index(pool, "words");
      for (int i = 0; i < 400; ++i) put(*index, records + i);
    }
    pool.close();
  }
  // Either capacity, and all records; and the pool goes on.
  void judge(const std::string& path, int records, const std::set<uint64_t>& capacities) {
    Pool pool = Pool::open(path, options(0, GetParam()));
    const uint64_t capacity = pool.info().capacity_bytes;
    EXPECT_TRUE(capacities.contains(capacity)) << capacity;
    expect_sound(pool);
    const auto index = open_index(pool, "words");
    expect_right(*index, records);
    const int more = fill(*index, records);
    EXPECT_GT(more, records + (capacity > kFirst ? 250 : -1));
    expect_right(*index, more);
    expect_sound(pool);
  }
};

TEST_P(RaisingCrash, APersistThatIsRefusedLeavesTheOneCapacityOrTheOther) {
  const int records = make_full(GetParam());
  const std::string original = test::read_file(path_);
  uint64_t begin = 0;
  uint64_t raised = 0;
  uint64_t end = 0;
  {
    test::FailingMedium medium(path_, GetParam());
    medium.begin();
    medium.refuse([](uint64_t) { return false; }, [](uint64_t) { return false; });
    work(MiB(5), records, &medium, &begin, &raised);
    end = medium.persists();
  }
  ASSERT_GE(raised, begin + 3);  // the generation, the capacity, the version
  test::Random random(7);
  std::vector<uint64_t> places;
  for (uint64_t at = begin; at < raised; ++at) places.push_back(at);
  for (int i = 0; i < 25; ++i) places.push_back(raised + random.below(end - raised));
  places.push_back(end - 1);
  using Image = test::FailingMedium::Image;
  for (const uint64_t at : places) {
    for (const Image image : {Image::kLeast, Image::kMixed, Image::kAll}) {
      SCOPED_TRACE("persist " + std::to_string(at) + " of " + std::to_string(raised) + ", " +
                   std::to_string(end));
      test::write_file(path_, original);
      ASSERT_TRUE(test::power_fails(path_, GetParam(), at, image, random.next(),
                                    [&](test::FailingMedium&) { work(MiB(5), records); }));
      judge(path_, records, {kFirst, MiB(5)});
    }
  }
}

TEST_P(RaisingCrash, TwoCrashesAreNoOther) {
  const int records = make_full(GetParam());
  const std::string original = test::read_file(path_);
  test::Random random(11);
  using Image = test::FailingMedium::Image;
  uint64_t combinations = 0;
  // Each persist of raising once, then of raising to more after what that left; 64: none is
  // refused.
  for (uint64_t first = 0; first < 6; ++first) {
    for (uint64_t second = 0; second < 6; ++second) {
      const auto image = static_cast<Image>(random.below(3));
      SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(second) + ", image " +
                   std::to_string(static_cast<int>(image)));
      test::write_file(path_, original);
      for (const auto& [at, capacity] : {std::pair{first, MiB(5)}, {second, MiB(12)}}) {
        std::string left;
        test::FailingMedium medium(path_, GetParam());
        medium.begin();
        medium.refuse_here(at, true);
        try {
          Pool pool = Pool::open(path_, options(capacity, GetParam()));
          left = medium.make_image(image, random.next());  // dies with a pool that is open
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
          ++combinations;
          left = medium.make_image(image, random.next());
        }
        medium.mend();
        std::filesystem::rename(left, path_);
      }
      judge(path_, records, {kFirst, MiB(5), MiB(12)});
    }
  }
  EXPECT_GE(combinations, 36U);
}

// The process that raised it died between the store and its persist, the one after it works on, and
// the power fails.
TEST_P(RaisingCrash, AWordThatOnlyTheCachesHaveIsDurableBeforeThePoolGrows) {
  const int records = make_full(GetParam());
  const std::string original = test::read_file(path_);
  for (const uint64_t at : {0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233}) {
    SCOPED_TRACE("persist " + std::to_string(at));
    test::write_file(path_, original);
    const auto work_on = [&](test::FailingMedium&) {
      test::patch_file(path_, offsetof(PoolHeader, capacity_word),
                       seal_word(MiB(5) / kSegmentBytes, kCapacitySalt));
      work(0, records);
    };
    ASSERT_TRUE(
        test::power_fails(path_, GetParam(), at, test::FailingMedium::Image::kLeast, 0, work_on));
    judge(path_, records, {kFirst, MiB(5)});
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, RaisingCrash, ::testing::Values(Domain::kLine, Domain::kPage),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace perdure::pm
