// What a pool does with careless programs, damaged tables and a medium that fails.
#include "perdure/pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/plush.h"
#include "pm/emulated_media.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"

namespace perdure::pm {
namespace {

using test::fails_with;

// What locks, posix_fallocate() and ftruncate() are refused with; 0: they are carried out.
int lock_error = 0;
int allocation_error = 0;
int cut_error = 0;

class RefusedCall {
 public:
  RefusedCall(int& call, int error) : call_(call) { call_ = error; }
  ~RefusedCall() { call_ = 0; }
  RefusedCall(const RefusedCall&) = delete;
  RefusedCall& operator=(const RefusedCall&) = delete;

 private:
  int& call_;
};

PoolOptions small() { return {.capacity_bytes = uint64_t{16} << 20}; }

class PoolTest : public ::testing::Test {
 protected:
  PoolTest() : path_(dir_.file("a.pool")) {}

  Pool create() { return Pool::create(path_, small()); }
  static std::unique_ptr<AnyIndex> make(Pool& pool, const std::string& name = "words") {
    return create_index(pool, name, "cceh", Kind::kBytes, Kind::kBytes);
  }
  // A pool with a table of some records, cleanly closed.
  void make_closed() {
    Pool pool = create();
    {
      const auto index = make(pool);
      for (int i = 0; i < 100; ++i) index->insert("key" + std::to_string(i), std::string(300, 'v'));
    }
    pool.close();
  }
  void flip(uint64_t offset) {
    std::string bytes = test::read_file(path_);
    bytes[offset] = static_cast<char>(bytes[offset] ^ 4);
    test::write_file(path_, bytes);
  }
  uint64_t found_by_check() {
    PoolOptions options;
    options.read_only = true;
    return Pool::open(path_, options).check([](const std::string&) {});
  }

  test::TempDir dir_;
  std::string path_;
};

TEST_F(PoolTest, AStructureIsOpenOnceInAProcess) {
  Pool pool = create();
  auto index = make(pool);
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "words", [&] { open_index(pool, "words"); }));
  const auto other = make(pool, "others");
  index.reset();
  EXPECT_NO_THROW(index = open_index(pool, "words"));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "words", [&] { open_index(pool, "words"); }));
}

TEST_F(PoolTest, APlushIsOpenOnceInAProcess) {
  Pool pool = create();
  auto words = Plush<uint64_t, uint64_t>::create(pool, "words");
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "words",
                         [&] { (Plush<uint64_t, uint64_t>::open(pool, "words")); }));
}

TEST_F(PoolTest, DoesNotCloseUnderAStructure) {
  Pool pool = create();
  auto index = make(pool);
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "words", [&] { pool.close(); }));
  EXPECT_TRUE(index->insert("a", "1"));  // nothing has changed
  index.reset();
  pool.close();
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { pool.info(); }));
  EXPECT_TRUE(Pool::open(path_).info().clean);
}

TEST_F(PoolTest, DestroyedUnderAStructureItStaysReadableAndIsClosedWithIt) {
  std::unique_ptr<AnyIndex> index;
  {
    Pool pool = create();
    index = make(pool);
    index->insert("a", "1");
  }
  Value value;
  EXPECT_TRUE(index->lookup("a", value));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { index->insert("b", "2"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kLocked, path_, [&] { Pool::open(path_); }));
  index.reset();
  Pool pool = Pool::open(path_);
  EXPECT_TRUE(pool.info().clean);
  EXPECT_TRUE(open_index(pool, "words")->lookup("a", value));
}

TEST_F(PoolTest, AssigningOverAPoolWithAStructureIsLikeDestroyingIt) {
  Pool pool = create();
  const auto index = make(pool);
  pool = Pool::anonymous(small());
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { index->insert("b", "2"); }));
}

TEST_F(PoolTest, ZeroedPagesOfItsTablesAreDamage) {
  make_closed();
  const std::string sound = test::read_file(path_);
  PoolHeader header;
  std::memcpy(&header, sound.data(), sizeof header);
  for (uint64_t page = header.directory_offset; page < header.descriptors_offset + kPageBytes;
       page += kPageBytes) {
    std::string bytes = sound;
    bytes.replace(page, kPageBytes, kPageBytes, '\0');
    test::write_file(path_, bytes);
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, [&] { Pool::open(path_); })) << page;
  }
}

TEST_F(PoolTest, SealsTellOfEachChangedBitAfterACleanClose) {
  make_closed();
  EXPECT_EQ(found_by_check(), 0U);
  const std::string sound = test::read_file(path_);
  PoolHeader header;
  std::memcpy(&header, sound.data(), sizeof header);
  PoolOptions verify;
  verify.verify = true;
  uint64_t allocated_bytes = 0;
  {
    PoolOptions options;
    options.read_only = true;
    allocated_bytes = Pool::open(path_, options).info().allocated_bytes;
  }
  uint64_t found_bytes = 0;
  for (uint64_t segment = header.data_offset; segment < sound.size(); segment += kSegmentBytes) {
    test::write_file(path_, sound);
    flip(segment + segment / 7 % kSegmentBytes);
    if (found_by_check() == 0) continue;  // it is free, and holds nothing
    found_bytes += kSegmentBytes;
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, [&] { Pool::open(path_, verify); }));
  }
  EXPECT_GE(found_bytes, allocated_bytes);
  EXPECT_GT(allocated_bytes, 30000U);
  test::write_file(path_, sound);
  {
    // A crash leaves no seals: there is nothing to compare with, and nothing is reported.
    Pool pool = Pool::open(path_, verify);
    test::write_file(path_ + ".crashed", test::read_file(path_));
  }
  PoolOptions options;
  options.read_only = true;
  Pool crashed = Pool::open(path_ + ".crashed", options);
  EXPECT_FALSE(crashed.info().sealed);
  EXPECT_EQ(crashed.check([](const std::string&) {}), 0U);
}

TEST_F(PoolTest, DoesNotSealIfToldSo) {
  PoolOptions options = small();
  options.seal_on_close = false;
  Pool::create(path_, options).close();
  const Pool pool = Pool::open(path_);
  EXPECT_TRUE(pool.info().clean);
  EXPECT_FALSE(pool.info().sealed);
}

TEST_F(PoolTest, ADamagedValueIsAnErrorUnlessToldOtherwise) {
  make_closed();
  const std::string bytes = test::read_file(path_);
  flip(bytes.find(std::string(300, 'v')) + 100);
  Value value;
  int errors = 0;
  {
    Pool pool = Pool::open(path_);
    const auto index = open_index(pool, "words");
    for (int i = 0; i < 100; ++i) {
      try {
        EXPECT_TRUE(index->lookup("key" + std::to_string(i), value));
        EXPECT_EQ(value.bytes(), std::string(300, 'v'));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
        ++errors;
      }
    }
    EXPECT_EQ(index->check([](const std::string&) {}), 1U);
  }
  EXPECT_EQ(errors, 1);
  PoolOptions options;
  options.verify_payload = false;
  Pool pool = Pool::open(path_, options);
  const auto index = open_index(pool, "words");
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(index->lookup("key" + std::to_string(i), value));
}

// A medium of which one fence fails, and all later ones would not.
class FailingMedium final : public EmulatedMedia {
 public:
  FailingMedium() { emulate_media(this); }
  ~FailingMedium() override { emulate_media(nullptr); }
  bool serves(Domain) const override { return true; }
  void written_back(uintptr_t, size_t) override {}
  void fenced() override {
    if (fail.exchange(false)) throw Error(ErrorCode::kIo, "the medium fails");
  }
  std::atomic<bool> fail{false};
};

TEST_F(PoolTest, AfterOneFailedFenceNothingIsWrittenAndNothingEnds) {
  FailingMedium medium;
  {
    Pool pool = create();
    const auto index = make(pool);
    for (int i = 0; i < 200; ++i) index->insert("key" + std::to_string(i), "value");
    medium.fail = true;
    EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { index->remove("key7"); }));
    EXPECT_TRUE(pm::impl_of(pool).failed());
    EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { pm::impl_of(pool).memory().fence(); }));
    EXPECT_TRUE(fails_with(ErrorCode::kIo, path_, [&] { index->insert("new", "value"); }));
    Value value;
    EXPECT_TRUE(index->lookup("key8", value));
  }
  Pool pool = Pool::open(path_);
  EXPECT_FALSE(pool.info().clean);
  const auto index = open_index(pool, "words");
  Value value;
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(i == 7 || index->lookup("key" + std::to_string(i), value));
  }
  EXPECT_EQ(index->check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
}

// What recovery sees of a process that died it builds upon: a power failure later must not undo it.
TEST_F(PoolTest, OpeningSyncsWhatADeadProcessLeft) {
  PoolOptions options = small();
  options.force_domain = true;
  options.domain = Domain::kPage;
  {
    Pool pool = Pool::create(path_, options);
    make(pool)->insert("key", "value");
  }
  test::FailingMedium medium(path_, Domain::kPage);
  medium.begin();
  constexpr uint64_t kWord = 0x1234;
  const pid_t child = ::fork();
  if (child == 0) {
    Pool pool = Pool::open(path_, options);
    *pm::impl_of(pool).at<uint64_t>(pm::impl_of(pool).end_offset() - sizeof kWord) = kWord;
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  Pool pool = Pool::open(path_, options);
  EXPECT_FALSE(pool.info().clean);
  std::ifstream image(medium.make_image(test::FailingMedium::Image::kLeast, 0), std::ios::binary);
  image.seekg(static_cast<std::streamoff>(pm::impl_of(pool).end_offset() - sizeof kWord));
  uint64_t word = 0;
  image.read(reinterpret_cast<char*>(&word), sizeof word);
  EXPECT_EQ(word, kWord);
}

// Thirty-one threads hold a lane each; the one that is left serves all others, one after the other.
TEST_F(PoolTest, OneFreeLaneIsEnough) {
  Pool pool = create();
  const auto index = make(pool);
  Heap& heap = pm::impl_of(pool).heap();
  std::atomic<uint32_t> holding{0};
  std::atomic<bool> done{false};
  std::vector<std::jthread> holders;
  for (uint32_t i = 0; i < kLanes - 1; ++i) {
    holders.emplace_back([&] {
      const Heap::Txn txn(heap);
      ++holding;
      holding.notify_one();
      done.wait(false);
    });
  }
  for (uint32_t n = holding; n < kLanes - 1; n = holding) holding.wait(n);
  for (int i = 0; i < 100; ++i) index->insert("key" + std::to_string(i), "value");
  {
    Heap::Txn first(heap);
    first.finish();
    Heap::Txn second(heap);  // while the first one lives
    second.finish();
  }
  done = true;
  done.notify_all();
}

TEST_F(PoolTest, AThreadHasOneTransactionAtATime) {
  Pool pool = create();
  Heap& heap = pm::impl_of(pool).heap();
  {
    const Heap::Txn txn(heap);
    EXPECT_TRUE(fails_with(ErrorCode::kInternal, "", [&] { const Heap::Txn second(heap); }));
    Pool other = Pool::anonymous(small());
    const Heap::Txn elsewhere(pm::impl_of(other).heap());
  }
  Heap::Txn next(heap);
  next.finish();
}

TEST_F(PoolTest, AFileThatIsNotLockedIsNotLeftBehind) {
  {
    const RefusedCall refused(lock_error, ENOLCK);
    EXPECT_TRUE(fails_with(ErrorCode::kIo, "lock", [&] { Pool::create(path_); }));
  }
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, path_, [&] { Pool::open(path_); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, [&] { Pool::create(dir_.file("no/a.pool")); }));
  PoolOptions power = small();
  power.durability = Durability::kPower;  // refused on tmpfs, after the file was made
  EXPECT_TRUE(fails_with(ErrorCode::kDurability, path_, [&] { Pool::create(path_, power); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, path_, [&] { Pool::open(path_); }));
}

// A medium that was full once is not the reason for ever.
TEST_F(PoolTest, AMediumThatWasFullIsForgotten) {
  PoolOptions options = small();
  options.growth_bytes = kSegmentBytes;
  Pool pool = Pool::create(path_, options);
  const auto index = make(pool);
  int i = 0;
  const auto fill = [&] {
    for (;; ++i) index->insert("key" + std::to_string(i), std::string(4000, 'v'));
  };
  {
    const RefusedCall refused(allocation_error, ENOSPC);
    EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, path_, fill));
    EXPECT_TRUE(pm::impl_of(pool).heap().is_scarce(64));
    EXPECT_EQ(index->try_upsert("key", std::string(4000, 'v')), WriteResult::kNoSpace);
  }
  const int before = i;
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, path_, fill));
  EXPECT_GT(i, before + 1000);
}

// ---- shrinking

class Shrinking : public PoolTest {
 protected:
  // Growth by single segments, so that sizes are exact.
  static PoolOptions fine() {
    PoolOptions options = small();
    options.growth_bytes = kSegmentBytes;
    return options;
  }
  static void fill(AnyIndex& index, int records, int from = 0) {
    for (int i = from; i < from + records; ++i)
      index.upsert("key" + std::to_string(i), std::string(3000, static_cast<char>('a' + i % 26)));
  }
  static int count_right(AnyIndex& index, int records) {
    int right = 0;
    Value value;
    for (int i = 0; i < records; ++i) {
      right += index.lookup("key" + std::to_string(i), value) &&
               value.bytes() == std::string(3000, static_cast<char>('a' + i % 26));
    }
    return right;
  }
  // A pool with a table of 100 records, and many segments behind it that are free.
  Pool make_with_free_end(const PoolOptions& options) {
    Pool pool = Pool::create(path_, options);
    fill(*make(pool), 100);
    fill(*make(pool, "others"), 2000);
    drop_structure(pool, "others");
    return pool;
  }
  uint64_t file_bytes() const { return std::filesystem::file_size(path_); }
};

TEST_F(Shrinking, CutsTheFileBehindWhatIsInUse) {
  Pool pool = make_with_free_end(fine());
  const uint64_t before = file_bytes();
  const uint64_t occupied = pool.info().size_bytes;
  const uint64_t shrunk = pool.shrink();
  EXPECT_GT(shrunk, uint64_t{4} << 20);
  EXPECT_EQ(file_bytes(), before - shrunk);
  EXPECT_LE(pool.info().size_bytes, occupied - shrunk);
  EXPECT_EQ(pool.shrink(), 0U);
  EXPECT_EQ(impl_of(pool).heap().free_segments(), Segments::kReserve);
  const auto index = open_index(pool, "words");
  EXPECT_EQ(count_right(*index, 100), 100);
  fill(*index, 2000);
  EXPECT_EQ(count_right(*index, 2000), 2000);
  EXPECT_EQ(pool.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
}

TEST_F(Shrinking, OfAnEmptyPoolLeavesItsTables) {
  PoolOptions options = small();
  options.reserve_bytes = options.capacity_bytes;
  Pool pool = Pool::create(path_, options);
  EXPECT_GT(pool.shrink(), uint64_t{15} << 20);
  EXPECT_EQ(file_bytes(), impl_of(pool).header().data_offset);
  EXPECT_LT(pool.info().size_bytes, 256U << 10);
  pool.close();
  pool = Pool::open(path_, options);
  EXPECT_EQ(pool.shrink(), 0U);
  fill(*make(pool), 2000);
  EXPECT_EQ(count_right(*open_index(pool, "words"), 2000), 2000);
}

TEST_F(Shrinking, KeepsHugePagesWhole) {
  Pool pool = make_with_free_end(small());
  pool.shrink();
  EXPECT_EQ(file_bytes() % kHugePageBytes, 0U);
  EXPECT_EQ(count_right(*open_index(pool, "words"), 100), 100);
}

TEST_F(Shrinking, IsRefusedWhereOthersLookOrNobodyMayWrite) {
  Pool pool = make_with_free_end(fine());
  const uint64_t before = file_bytes();
  {
    const auto index = open_index(pool, "words");
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, "words", [&] { pool.shrink(); }));
    fill(*index, 10);
  }
  pool.close();
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { pool.shrink(); }));
  PoolOptions reading;
  reading.read_only = true;
  Pool reader = Pool::open(path_, reading);
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, path_, [&] { reader.shrink(); }));
  EXPECT_EQ(file_bytes(), before);
}

TEST_F(Shrinking, OfAnonymousMemoryGivesPagesBack) {
  Pool pool = Pool::anonymous(fine());
  const uint64_t empty = pool.info().size_bytes;
  fill(*make(pool, "others"), 2000);
  drop_structure(pool, "others");
  const uint64_t before = pool.info().size_bytes;
  const uint64_t shrunk = pool.shrink();
  EXPECT_GT(shrunk, uint64_t{4} << 20);
  EXPECT_LT(pool.info().size_bytes, before - shrunk);
  EXPECT_EQ(pool.info().size_bytes, empty);
  fill(*make(pool), 2000);
  EXPECT_EQ(count_right(*open_index(pool, "words"), 2000), 2000);
}

// As a crash leaves it between the header, which counts fewer segments, and the file.
TEST_F(Shrinking, AFileThatCannotBeCutIsLongerAndItsOldBytesHarmNobody) {
  Pool pool = make_with_free_end(fine());
  const uint64_t before = file_bytes();
  {
    const RefusedCall refused(cut_error, EIO);
    EXPECT_TRUE(fails_with(ErrorCode::kIo, "ftruncate", [&] { pool.shrink(); }));
  }
  EXPECT_EQ(file_bytes(), before);
  EXPECT_EQ(count_right(*open_index(pool, "words"), 100), 100);  // it goes on
  pool.close();
  EXPECT_EQ(found_by_check(), 0U);
  const std::string left = test::read_file(path_);

  pool = Pool::open(path_);
  EXPECT_LT(impl_of(pool).end_offset(), before - (uint64_t{4} << 20));
  fill(*open_index(pool, "words"), 1500);  // over what is there
  EXPECT_EQ(count_right(*open_index(pool, "words"), 1500), 1500);
  EXPECT_EQ(pool.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
  pool.close();

  test::write_file(path_, left);
  pool = Pool::open(path_);
  EXPECT_GT(pool.shrink(), uint64_t{4} << 20);  // the next call cuts it
  EXPECT_EQ(file_bytes(), impl_of(pool).end_offset());
}

// Nothing is cut that the header on the medium still counts.
TEST_F(Shrinking, AMediumThatRefusesTheCountKeepsTheFile) {
  for (const Domain domain : {Domain::kLine, Domain::kPage}) {
    PoolOptions options = fine();
    options.force_domain = true;
    options.domain = domain;
    make_with_free_end(options).close();
    const uint64_t before = file_bytes();
    uint64_t persists = 0;
    for (uint64_t at = 0;; ++at) {
      const std::string sound = test::read_file(path_);
      test::FailingMedium medium(path_, domain);
      medium.begin();
      Pool pool = Pool::open(path_, options);
      medium.refuse_here(medium.persists() + at, true);
      try {
        pool.shrink();
        persists = at;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        EXPECT_EQ(file_bytes(), before);
        EXPECT_TRUE(fails_with(ErrorCode::kIo, path_, [&] { pool.shrink(); }));
      }
      medium.mend();
      if (persists > 0) break;
      const std::string image = medium.make_image(test::FailingMedium::Image::kLeast, 1);
      EXPECT_NO_THROW(Pool::open(image).close());
      pool = Pool::anonymous(small());
      test::write_file(path_, sound);
    }
    EXPECT_GE(persists, 1U);
    EXPECT_LT(file_bytes(), before);
    std::filesystem::remove(path_);
  }
}

TEST_F(Shrinking, LeavesWhatRemovalsNeedOnAFullMedium) {
  Pool pool = make_with_free_end(fine());
  fill(*open_index(pool, "words"), 1500);
  pool.shrink();
  const RefusedCall refused(allocation_error, ENOSPC);
  const auto index = open_index(pool, "words");
  for (int i = 0; i < 1500; ++i) EXPECT_TRUE(index->remove("key" + std::to_string(i)));
}

TEST_F(Shrinking, WaitsForBackupsAndTheyForIt) {
  Pool pool = make_with_free_end(fine());
  std::atomic<bool> stop{false};
  std::atomic<int> backups{0};
  std::jthread copier([&] {
    while (!stop) {
      pool.backup(dir_.file("backup"));
      pool.info();
      ++backups;
    }
  });
  for (int round = 0; round < 20 || backups < 5; ++round) {
    fill(*make(pool, "others"), 500);
    drop_structure(pool, "others");
    EXPECT_GT(pool.shrink(), 0U);
  }
  stop = true;
  copier.join();
  Pool::restore(dir_.file("backup"), dir_.file("restored"));
  Pool restored = Pool::open(dir_.file("restored"));
  EXPECT_EQ(count_right(*open_index(restored, "words"), 100), 100);
}

// Raising takes nothing of the medium; growing into what is new does, and says so if there is none.
TEST_F(PoolTest, ARaisedCapacityOnAFullMediumIsNoSpaceUntilThereIsSome) {
  PoolOptions options;
  options.capacity_bytes = Pool::kMinCapacityBytes;
  Pool pool = Pool::create(path_, options);
  int i = 0;
  const auto fill = [&](AnyIndex& index) {
    for (;; ++i) index.insert("key" + std::to_string(i), std::string(4000, 'v'));
  };
  {
    const auto index = make(pool);
    EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, path_, [&] { fill(*index); }));
  }
  pool.close();
  options.capacity_at_least_bytes = uint64_t{16} << 20;
  const int before = i;
  {
    const RefusedCall refused(allocation_error, ENOSPC);
    pool = Pool::open(path_, options);
    const auto index = open_index(pool, "words");
    EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, path_, [&] { fill(*index); }));
    EXPECT_EQ(pool.info().capacity_bytes, options.capacity_at_least_bytes);
  }
  EXPECT_LT(i, before + 20);
  const auto index = open_index(pool, "words");
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, path_, [&] { fill(*index); }));
  EXPECT_GT(i, before + 2000);
  EXPECT_EQ(pool.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
}

// Bytes of so many segments are few again in 64 bits.
TEST_F(PoolTest, ACountOfSegmentsThatNoPoolHasIsDamage) {
  make_closed();
  const std::string sound = test::read_file(path_);
  for (const uint64_t segments : {uint64_t{257}, (uint64_t{1} << 48) - 1, uint64_t{1} << 47}) {
    std::string bytes = sound;
    const uint64_t word = seal_word(segments, kSegmentsSalt);
    std::memcpy(&bytes[offsetof(PoolHeader, segments_word)], &word, sizeof word);
    test::write_file(path_, bytes);
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, [&] { Pool::open(path_); })) << segments;
  }
}

// To save what can be read: a byte of it, wherever that is, what is the same in all pools, and the
// capacity with the places that follow from it. Nothing is taken for a pool that is none.
TEST_F(PoolTest, ALenientOpeningMendsTheHeader) {
  make_closed();
  const std::string sound = test::read_file(path_);
  PoolOptions lenient;
  lenient.read_only = lenient.lenient = true;
  const auto expect_saved = [&](const std::string& bytes) {
    test::write_file(path_, bytes);
    Pool pool = Pool::open(path_, lenient);
    const auto index = open_index(pool, "words");
    EXPECT_EQ(index->size(), 100);
    EXPECT_EQ(pool.info().capacity_bytes, small().capacity_bytes);
    EXPECT_GT(pool.check([](const std::string&) {}), 0U) << "nor is it passed over";
  };
  constexpr size_t kVersion = offsetof(PoolHeader, format_version);
  for (size_t at = 0; at < offsetof(PoolHeader, segments_word); ++at) {
    if (at >= kVersion && at < kVersion + 4) continue;  // the checksum is not of it
    SCOPED_TRACE(at);
    std::string bytes = sound;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
    ASSERT_NO_FATAL_FAILURE(expect_saved(bytes));
  }
  std::string bytes = sound;
  std::memset(&bytes[0], 0xa5, offsetof(PoolHeader, uuid));  // version, too
  expect_saved(bytes);
  constexpr size_t kCapacity = offsetof(PoolHeader, capacity_bytes);
  bytes = sound;
  std::memset(&bytes[kCapacity], 0xa5, 8);
  expect_saved(bytes);
  constexpr size_t kPlaces = offsetof(PoolHeader, directory_offset);
  std::memset(&bytes[kPlaces], 0xa5, offsetof(PoolHeader, created_unix_s) - kPlaces);
  expect_saved(bytes);
  for (const size_t lost : {size_t{64}, size_t{512}, size_t{4096}}) {
    bytes = sound;
    std::memset(&bytes[0], 0xa5, lost);
    test::write_file(path_, bytes);
    EXPECT_TRUE(fails_with(ErrorCode::kForeign, path_, [&] { Pool::open(path_, lenient); }))
        << lost;
  }
  bytes = sound;
  bytes[kVersion] = 9;  // of a later release
  test::write_file(path_, bytes);
  EXPECT_TRUE(fails_with(ErrorCode::kVersion, path_, [&] { Pool::open(path_, lenient); }));
}

TEST_F(PoolTest, TheFailureOfOnePoolKeepsNothingOfAnotherFromBeingSynced) {
  std::atomic<bool> failed{false};
  std::atomic<bool> other_failed{false};
  const Memory memory(Domain::kPage, &failed);
  const Memory other(Domain::kPage, &other_failed);
  char* pages = static_cast<char*>(
      ::mmap(nullptr, 4 * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  const auto address = reinterpret_cast<uintptr_t>(pages);
  other.flush(pages, 8);
  memory.flush(pages + kPageBytes, 8);
  memory.flush(pages + 3 * kPageBytes, 8);
  test::refuse_msync_at(address + kPageBytes);
  EXPECT_TRUE(fails_with(ErrorCode::kIo, "msync", [&] { memory.fence(); }));
  EXPECT_TRUE(failed && !other_failed);
  test::refuse_msync_at(address);  // tells whether it is synced
  EXPECT_TRUE(fails_with(ErrorCode::kIo, "msync", [&] { other.fence(); }));
  test::refuse_msync_at(0);
  ::munmap(pages, 4 * kPageBytes);
}

}  // namespace
}  // namespace perdure::pm

// Take the places of the C library's.
extern "C" int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  errno = command == F_OFD_SETLK ? perdure::pm::lock_error : 0;
  if (errno != 0) return -1;
  return static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
}
extern "C" int ftruncate(int fd, off_t bytes) noexcept {
  errno = perdure::pm::cut_error;
  if (errno != 0) return -1;
  return static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (perdure::pm::allocation_error != 0) return perdure::pm::allocation_error;
  return ::syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}
