// Looking at a pool from other processes while one writes to it, and who keeps whom out.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/pool.h"
#include "pm/file_lock.h"
#include "pm/layout.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::pm {
namespace {

using test::Child;
using test::fails_with;

constexpr uint64_t kFirstCapacity = uint64_t{16} << 20;
constexpr uint64_t kRaised = uint64_t{40} << 20;

class Inspect : public ::testing::Test {
 protected:
  static PoolOptions options() {
    return {.capacity_bytes = kFirstCapacity, .growth_bytes = kSegmentBytes};
  }
  static PoolOptions reading() {
    PoolOptions options;
    options.read_only = true;
    return options;
  }
  static void fill(AnyIndex& index, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) index.upsert(i, i * 7);
  }
  static void expect_right(const Pool& pool, const std::string& name, uint64_t records) {
    Pool& own = const_cast<Pool&>(pool);
    const auto index = open_index(own, name);
    Value value;
    uint64_t right = 0;
    for (uint64_t i = 0; i < records; ++i)
      right += index->lookup(i, value) && value.word() == i * 7;
    EXPECT_EQ(right, records);
  }
  // A pool with a structure "main" of so many records.
  void make(uint64_t records = 2000) const {
    Pool pool = Pool::create(path_, options());
    fill(*create_index(pool, "main", "cceh", Kind::kU64, Kind::kU64), 0, records);
    pool.close();
  }
  // What a child that may only read the file finds; "" if all is right.
  static std::string as_stranger(const std::function<void()>& body) {
    return test::in_unprivileged_child([&]() -> std::string {
      try {
        body();
      } catch (const std::exception& error) {
        return error.what();
      }
      return testing::Test::HasFailure() ? "failed" : "";
    });
  }

  test::TempDir dir_;
  std::string path_ = dir_.file("pool");
};

TEST_F(Inspect, TellsOfAClosedPoolWhatOpeningTells) {
  make();
  const PoolInspection found = Pool::inspect(path_);
  EXPECT_FALSE(found.open_to_write);
  EXPECT_TRUE(found.exact);
  const Pool pool = Pool::open(path_, reading());
  const PoolInfo info = pool.info();
  EXPECT_EQ(found.info.uuid, info.uuid);
  EXPECT_EQ(found.info.capacity_bytes, info.capacity_bytes);
  EXPECT_EQ(found.info.size_bytes, info.size_bytes);
  EXPECT_EQ(found.info.allocated_bytes, info.allocated_bytes);
  EXPECT_EQ(found.info.free_bytes, info.free_bytes);
  EXPECT_EQ(found.info.high_water_bytes, info.high_water_bytes);
  EXPECT_EQ(found.info.clean, info.clean);
  EXPECT_EQ(found.info.sealed, info.sealed);
  EXPECT_EQ(found.info.medium, info.medium);
  ASSERT_EQ(found.structures.size(), 1U);
  EXPECT_EQ(found.structures[0].name, "main");
  EXPECT_EQ(found.structures[0].type, "cceh");
  EXPECT_EQ(found.structures[0].key_kind, "u64");
}

// Who may only read gets a copy in memory, which has a limit.
TEST_F(Inspect, ACopyInMemoryHasALimit) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  make();
  ASSERT_EQ(::chmod(path_.c_str(), 0444), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  PoolOptions limited = reading();
  limited.copy_bytes_max = 100'000;
  expect_right(Pool::open(path_, limited), "main", 2000);  // root locks it, and makes none
  EXPECT_EQ(as_stranger([&] {
              EXPECT_TRUE(fails_with(ErrorCode::kNoSpace, "copy_bytes_max",
                                     [&] { Pool::open(path_, limited); }));
              limited.copy_bytes_max = uint64_t{64} << 20;
              expect_right(Pool::open(path_, limited), "main", 2000);
              expect_right(Pool::open(path_, reading()), "main", 2000);
            }),
            "");
}

TEST_F(Inspect, RefusesWhatIsNoPoolOrIsDamaged) {
  const auto look = [&] { Pool::inspect(path_); };
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, path_, look));
  test::write_file(path_, "");
  EXPECT_TRUE(fails_with(ErrorCode::kEmpty, path_, look));
  test::write_file(path_, std::string(10'000, 'x'));
  EXPECT_TRUE(fails_with(ErrorCode::kForeign, path_, look));
  std::filesystem::remove(path_);
  make();
  const std::string sound = test::read_file(path_);
  PoolHeader header;
  std::memcpy(&header, sound.data(), sizeof header);
  for (const uint64_t at :
       {offsetof(PoolHeader, segments_word), offsetof(PoolHeader, generation_word),
        offsetof(PoolHeader, growth_bytes), header.directory_offset + 3,
        header.descriptors_offset}) {
    std::string damaged = sound;
    damaged[at] ^= 4;
    test::write_file(path_, damaged);
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, path_, look)) << at;
  }
  test::write_file(path_, sound.substr(0, sound.size() / 2));
  EXPECT_TRUE(fails_with(ErrorCode::kTruncated, path_, look));
}

// What the writer does, for the child and, in its steps, for who looks: 0 before, each step's
// number when it is done.
class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path) {}

  // Structures of all kinds come, grow, get other names and go; the pool is closed, raised and
  // shrunk.
  void run(uint64_t rounds) const {
    test::Random random(test::base_seed());
    for (uint64_t round = 0; round < rounds; ++round) {
      PoolOptions options{.capacity_bytes = kFirstCapacity, .growth_bytes = kSegmentBytes};
      if (round == rounds / 2) options.capacity_at_least_bytes = kRaised;
      Pool pool = Pool::open(path_, options);
      for (const CatalogEntry& entry : catalog()) {
        if (entry.traits.capacity_bytes_min > kFirstCapacity / 2) continue;
        const auto [key, value] = entry.traits.kinds.front();
        {
          const auto index = create_index(pool, "fresh", entry.name, key, value);
          Value key_text;
          for (uint64_t i = 0; i < 300; ++i) {
            const std::string text = std::to_string(random.below(1000));
            const uint64_t word = random.below(1000);
            const std::string long_value(random.below(600), 'v');
            index->upsert(key == Kind::kU64 ? Datum(word) : Datum(text),
                          value == Kind::kU64 ? Datum(word) : Datum(long_value));
          }
        }
        pool.rename("fresh", "older");
        impl_of(pool).exchange_names("older", "other");
        impl_of(pool).exchange_names("older", "other");
        drop_structure(pool, "older");
      }
      pool.shrink();
      pool.close();
    }
  }

 private:
  std::string path_;
};

// Names, sizes and kinds are never wrong, whatever the writer is about, and it is never kept out.
TEST_F(Inspect, BesideAWriterNothingIsWrong) {
  make();
  {
    Pool pool = Pool::open(path_);
    create_index(pool, "other", "level", Kind::kU64, Kind::kU64);
    pool.close();
  }
  const std::string uuid = Pool::inspect(path_).info.uuid;
  const uint64_t rounds = 6;
  Child child([&](int out) {
    Writer(path_).run(rounds);
    test::send(out, "d", 1);
  });
  uint64_t looks = 0;
  uint64_t beside = 0;
  uint64_t exact = 0;
  uint64_t generation = 0;
  std::set<std::string> types;
  // Until the writer has done its work.
  Child watcher([&](int out) {
    for (;;) {
      PoolInspection found;
      try {
        found = Pool::inspect(path_);
      } catch (const Error& error) {
        test::send(out, "!", 1);
        throw;
      }
      ++looks;
      if (found.open_to_write) ++beside;
      if (found.exact) ++exact;
      const PoolInfo& info = found.info;
      std::set<std::string> names;
      bool sound = info.uuid == uuid && info.generation >= generation &&
                   (info.capacity_bytes == kFirstCapacity || info.capacity_bytes == kRaised) &&
                   info.high_water_bytes <= info.capacity_bytes &&
                   info.allocated_bytes <= info.capacity_bytes;
      generation = info.generation;
      for (const StructureInfo& one : found.structures) {
        sound = sound && names.insert(one.name).second;
        if (one.name == "main") sound = sound && one.type == "cceh";
        if (one.name == "fresh") types.insert(one.type);
        sound = sound && (one.name == "main" || one.name == "other" || one.name == "fresh" ||
                          one.name == "older");
      }
      sound = sound && names.contains("main") && names.contains("other");
      if (!sound) throw std::runtime_error("wrong: " + std::to_string(looks));
      // The last round, and it is closed.
      if (generation >= 2 + rounds && !found.open_to_write && info.clean) break;
    }
    const uint64_t counts[] = {looks, beside, exact, types.size()};
    test::send(out, counts, sizeof counts);
  });
  uint64_t counts[4] = {};
  ASSERT_TRUE(watcher.receive(counts, sizeof counts));
  EXPECT_EQ(watcher.wait(), 0);
  char byte = 0;
  EXPECT_TRUE(child.receive(&byte, 1));
  EXPECT_EQ(child.wait(), 0);  // it never met a lock
  EXPECT_GT(counts[1], 50U);
  EXPECT_GT(counts[3], 1U);  // how many depends on the machine
  const Pool pool = Pool::open(path_, reading());
  EXPECT_EQ(pool.info().capacity_bytes, kRaised);
  expect_right(pool, "main", 2000);
}

// ---- who keeps whom out

TEST_F(Inspect, FlockOfWhoMayReadKeepsNoWriterOut) {
  make();
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  Pool::open(path_).close();
  ::close(file);
}

// Never without a lock: another writer might come under another name of the file.
TEST_F(Inspect, AStrangersReadLockRefusesWritersInItsOwnWords) {
  make();
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  struct flock all{};
  all.l_type = F_RDLCK;
  all.l_whence = SEEK_SET;  // from 0 on, without an end
  ASSERT_EQ(::fcntl(file, F_OFD_SETLK, &all), 0);
  EXPECT_TRUE(fails_with(ErrorCode::kLocked, "lslocks", [&] { Pool::open(path_); }));
  EXPECT_FALSE(Pool::inspect(path_).open_to_write);
  expect_right(Pool::open(path_, reading()), "main", 2000);
  ::close(file);
  Pool::open(path_).close();
}

TEST_F(Inspect, WhoMayOnlyReadHasACopyAndKeepsNobodyOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs to be root";
  make();
  ::chmod(path_.c_str(), 0644);
  ::chmod(dir_.path().c_str(), 0755);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Child reader([&](int out) {
    ::close(ends[1]);
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) throw std::runtime_error("setuid");
    const Pool pool = Pool::open(path_, reading());
    test::send(out, "o", 1);
    char byte = 0;
    if (::read(ends[0], &byte, 1) != 1) throw std::runtime_error("read");
    Pool& own = const_cast<Pool&>(pool);
    const auto index = open_index(own, "main");
    Value value;
    for (uint64_t i = 0; i < 2000; ++i) {
      if (!index->lookup(i, value) || value.word() != i * 7) throw std::runtime_error("wrong");
    }
    if (index->lookup(uint64_t{5000}, value)) throw std::runtime_error("too new");
    test::send(out, "r", 1);
  });
  char byte = 0;
  ASSERT_TRUE(reader.receive(&byte, 1));
  {
    Pool pool = Pool::open(path_);
    const auto index = open_index(pool, "main");
    for (uint64_t i = 0; i < 9000; ++i) index->upsert(i, uint64_t{3});
    ASSERT_EQ(::write(ends[1], "x", 1), 1);
    EXPECT_TRUE(reader.receive(&byte, 1));
    EXPECT_EQ(reader.wait(), 0);
    // Beside the writer there is nothing to copy.
    EXPECT_NE(as_stranger([&] { Pool::open(path_, reading()); }).find("open for writing"),
              std::string::npos);
    EXPECT_EQ(as_stranger([&] {
                if (!Pool::inspect(path_).open_to_write) throw std::runtime_error("no writer");
              }),
              "");
  }
  ::close(ends[0]);
  ::close(ends[1]);
  // As its death leaves it: what is to be completed is completed in the copy.
  EXPECT_EQ(as_stranger([&] {
              Pool pool = Pool::open(path_, reading());
              Value value;
              if (!open_index(pool, "main")->lookup(uint64_t{8999}, value) || value.word() != 3)
                throw std::runtime_error("wrong");
            }),
            "");
}

// ---- backups, read where they lie

TEST_F(Inspect, BackupsAreReadByManyBesideTheWriterOfTheirPool) {
  make(5000);
  const std::string first = dir_.file("first.backup");
  const std::string second = dir_.file("second.backup");
  Pool pool = Pool::open(path_);
  const auto index = open_index(pool, "main");
  pool.backup(first);
  fill(*index, 5000, 9000);
  pool.backup(second, {.base = first});
  for (uint64_t i = 0; i < 9000; ++i) index->upsert(i, uint64_t{1});
  for (const bool verify : {false, true}) {
    PoolOptions options = reading();
    options.verify = verify;
    const Pool one = Pool::open(first, options);
    const Pool same = Pool::open(first, options);
    const Pool other = Pool::open(second, options);
    expect_right(one, "main", 5000);
    expect_right(same, "main", 5000);
    expect_right(other, "main", 9000);
    EXPECT_EQ(one.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
    EXPECT_EQ(other.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
    EXPECT_TRUE(one.info().read_only);
    // A backup that takes its place leaves who reads it where he is.
    if (!verify) continue;
    pool.backup(dir_.file("third.backup"));
    std::filesystem::rename(dir_.file("third.backup"), first);
    expect_right(one, "main", 5000);
  }
  EXPECT_TRUE(fails_with(ErrorCode::kForeign, "backup", [&] { Pool::open(first); }));
  // What the second rests on is another one now.
  EXPECT_TRUE(
      fails_with(ErrorCode::kNotFound, "first.backup", [&] { Pool::open(second, reading()); }));
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] {
    Pool backup = Pool::open(first, reading());
    open_index(backup, "main")->upsert(uint64_t{1}, uint64_t{1});
  }));
}

// Other processes open a backup again and again while the writer makes one after the other of the
// same name: there is none, or a whole one, which stays what it is.
TEST_F(Inspect, ABackupAppearsWhole) {
  make(3000);
  const std::string backup = dir_.file("backup");
  const std::string done = dir_.file("done");
  const auto read = [&](int out) {
    uint64_t looks = 0;
    uint64_t newest = 0;
    for (bool last = false; !last;) {
      last = std::filesystem::exists(done);
      PoolOptions options = reading();
      options.verify = looks % 2 == 0;
      try {
        Pool pool = Pool::open(backup, options);
        uint64_t problems = pool.check([](const std::string&) {});
        const auto index = open_index(pool, "main");
        problems += index->check([](const std::string&) {});
        // Words are written in the order of keys, round after round.
        Value value;
        uint64_t before = ~uint64_t{0};
        for (uint64_t i = 0; i < 3000; ++i) {
          if (!index->lookup(i, value) || value.word() > before) ++problems;
          before = value.word() >= 1'000'000 ? value.word() : before;
        }
        if (problems != 0) throw std::runtime_error("not whole");
        index->lookup(uint64_t{0}, value);
        if (value.word() >= 1'000'000) {
          if (value.word() < newest) throw std::runtime_error("older than before");
          newest = value.word();
        }
        ++looks;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNotFound || looks != 0) throw;
      }
    }
    test::send(out, &looks, sizeof looks);
  };
  Child first(read);
  Child second(read);
  Child third(read);
  {
    Pool pool = Pool::open(path_);
    const auto index = open_index(pool, "main");
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      for (uint64_t round = 1'000'000; !stop; ++round) {
        for (uint64_t i = 0; i < 3000 && !stop; ++i) index->upsert(i, round);
      }
    });
    for (int i = 0; i < 25; ++i) pool.backup(backup);
    stop = true;
    writer.join();
  }
  test::write_file(done, "");
  for (Child* child : {&first, &second, &third}) {
    uint64_t looks = 0;
    EXPECT_TRUE(child->receive(&looks, sizeof looks));
    EXPECT_GT(looks, 3U);
    EXPECT_EQ(child->wait(), 0);
  }
}

TEST_F(Inspect, DamageOfABackupIsFoundWhenAllOfItIsVerified) {
  make(5000);
  const std::string backup = dir_.file("backup");
  Pool::open(path_).backup(backup);
  std::string bytes = test::read_file(backup);
  bytes[bytes.size() / 2] ^= 1;
  test::write_file(backup, bytes);
  PoolOptions options = reading();
  options.verify = true;
  EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, backup, [&] { Pool::open(backup, options); }));
}

}  // namespace
}  // namespace perdure::pm
