// Copies of a pool that are taken while other threads write to it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pm/backup_format.h"
#include "pm/cut.h"
#include "pm/file.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/scale.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// Writers each go round a ring of keys: write n gives key n % kRing the value n. So what a
// structure holds says how many writes it has seen, and that it has seen all before.
class Writer {
 public:
  static constexpr uint64_t kRing = 700;

  Writer(AnyIndex& index, const Writer* leader) : index_(index), leader_(leader) {}
  ~Writer() { stop(); }

  void start() {
    thread_ = std::thread([this] {
      for (uint64_t n = acknowledged_ + 1; !stop_; ++n) {
        // Who follows another never is ahead of it.
        while (leader_ != nullptr && leader_->acknowledged_.load() < n && !stop_)
          std::this_thread::yield();
        if (stop_) break;
        index_.upsert(make_key(index_.key_kind(), n % kRing).datum(),
                      make_value(index_.value_kind(), n).datum());
        acknowledged_.store(n);
      }
    });
  }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  uint64_t acknowledged() const { return acknowledged_.load(); }

  // The number of writes in a copy of the structure; fails unless they are the first ones.
  static uint64_t writes_in(AnyIndex& copy) {
    const TypedIndex index(copy);
    uint64_t newest = 0;
    Model there;
    index.for_each([&](uint64_t key, uint64_t value) {
      there[key] = value;
      newest = std::max(newest, value);
    });
    Model wanted;
    for (uint64_t n = newest < kRing ? 1 : newest - kRing + 1; n <= newest; ++n)
      wanted[n % kRing] = n;
    EXPECT_EQ(difference(index, wanted, kRing), "");
    return newest;
  }

 private:
  AnyIndex& index_;
  const Writer* leader_;
  std::atomic<uint64_t> acknowledged_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Kept {
  std::string name;
  uint64_t filler_bytes;  // in use besides: a larger pool is copied in larger parts
};

class Backup : public testing::TestWithParam<Kept> {
 protected:
  static std::string name_of(uint64_t i) { return "structure " + std::to_string(i); }

  Pool make_pool() const {
    const PoolOptions options{.capacity_bytes = uint64_t{256} << 20,
                              .growth_bytes = uint64_t{1} << 20,
                              .serve_backups = true};
    if (GetParam().name == "anonymous") return Pool::anonymous(options);
    return Pool::create(path(), options);
  }
  std::string path() const {
    return GetParam().name == "file" ? disk_.file("pool") : dir_.file("pool");
  }
  // Opens what a backup holds, and compares: with how many writes each writer had made before the
  // call, and after it.
  void judge(const std::string& backup, const std::vector<uint64_t>& before,
             const std::vector<uint64_t>& after) const {
    const std::string copy = dir_.file("copy");
    std::filesystem::remove(copy);
    Pool::restore(backup, copy);
    Pool pool = Pool::open(copy);
    std::vector<std::unique_ptr<AnyIndex>> open;
    std::vector<const AnyIndex*> all;
    std::vector<uint64_t> there;
    for (const StructureInfo& info : pool.structures()) {
      open.push_back(open_index(pool, info.name));
      all.push_back(open.back().get());
    }
    for (uint64_t i = 0; i < before.size(); ++i) {
      std::unique_ptr<AnyIndex>* found = nullptr;
      const std::vector<StructureInfo> structures = pool.structures();
      for (uint64_t s = 0; s < structures.size(); ++s) {
        if (structures[s].name == name_of(i)) found = &open[s];
      }
      ASSERT_NE(found, nullptr);
      there.push_back(Writer::writes_in(**found));
      ASSERT_GE(there[i], before[i]) << name_of(i);
      ASSERT_LE(there[i], after[i] + 1) << name_of(i);
    }
    // A write that was made because another had returned is not there without it.
    for (uint64_t i = 1; i < there.size(); i += 2) ASSERT_LE(there[i], there[i - 1]) << name_of(i);
    ASSERT_EQ(faults_and_leaks(pool, all), "");
  }

  TempDir dir_;
  TempDir disk_{TempDir::Place::kDisk};
};

TEST_P(Backup, IsTheStateOfOneInstantWhileThreadsWrite) {
  Pool pool = make_pool();
  const std::vector<std::string> types = {"plush", "plush", "rstore", "p-art+vl", "fptree", "cceh"};
  std::vector<std::unique_ptr<AnyIndex>> indexes;
  std::vector<std::unique_ptr<Writer>> writers;
  if (GetParam().filler_bytes > 0) {
    const auto filler = create_index(pool, "filler", "rstore", Kind::kBytes, Kind::kBytes);
    const std::string value(uint64_t{1} << 20, 'x');
    for (uint64_t i = 0; i < GetParam().filler_bytes >> 20; ++i)
      filler->upsert(std::to_string(i), value);
  }
  for (uint64_t i = 0; i < types.size(); ++i) {
    const Kind kind = types[i] == "rstore" || i == 1 ? Kind::kBytes : Kind::kU64;
    indexes.push_back(create_index(pool, name_of(i), types[i], kind, kind));
    writers.push_back(
        std::make_unique<Writer>(*indexes[i], i % 2 == 1 ? writers[i - 1].get() : nullptr));
  }
  const auto progress = [&] {
    std::vector<uint64_t> counts;
    for (const auto& writer : writers) counts.push_back(writer->acknowledged());
    return counts;
  };
  for (auto& writer : writers) writer->start();
  // And structures come and go.
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    for (uint64_t i = 0; !stop; ++i) {
      {
        const auto index = create_index(pool, "passing", "wbtree", Kind::kU64, Kind::kU64);
        for (uint64_t key = 0; key < 500; ++key) index->upsert(key, i);
      }
      drop_structure(pool, "passing");
    }
  });
  std::string base;
  uint64_t pauses = 0;
  const uint64_t count = kUnderThreadSanitizer
                             ? 2
                             : std::max<uint64_t>(GetParam().filler_bytes > 0 ? 3 : 5, rounds(4));
  for (uint64_t i = 0; i < count && !HasFatalFailure(); ++i) {
    SCOPED_TRACE("backup " + std::to_string(i));
    const std::vector<uint64_t> before = progress();
    const std::string file = dir_.file("backup" + std::to_string(i));
    // Full and incremental ones, on one another; some as other processes ask for them.
    const BackupOptions how{.base = i % 4 == 0 ? "" : base, .progress = {}};
    const bool is_live = i % 2 == 1 && GetParam().name != "anonymous";
    const BackupReport report =
        is_live ? Pool::backup_live(path(), file, how) : pool.backup(file, how);
    const std::vector<uint64_t> after = progress();
    pauses += report.pauses;
    EXPECT_GT(report.copied_bytes, 0U);
    EXPECT_LE(report.copied_bytes, report.pool_bytes);
    if (GetParam().filler_bytes > 0 && i % 4 != 0) {
      EXPECT_LT(report.written_bytes, GetParam().filler_bytes / 2);
    }
    base = file;
    judge(file, before, after);
    // That the writers go on.
    while (writers[0]->acknowledged() <= after[0]) std::this_thread::yield();
  }
  stop = true;
  changes.join();
  for (auto& writer : writers) writer->stop();
  EXPECT_GT(pauses, 0U);  // else writers were not there
}

INSTANTIATE_TEST_SUITE_P(Media, Backup,
                         testing::Values(Kept{"tmpfs", 0}, Kept{"tmpfs_large", uint64_t{80} << 20},
                                         Kept{"file", 0}, Kept{"anonymous", 0}),
                         [](const auto& medium) { return medium.param.name; });

class BackupFiles : public testing::Test {
 protected:
  void SetUp() override {
    pool_.emplace(Pool::create(path(), {.capacity_bytes = uint64_t{16} << 20}));
    index_ = create_index(*pool_, "index", "plush", Kind::kU64, Kind::kU64);
    for (uint64_t i = 0; i < 5000; ++i) index_->upsert(i, i);
  }
  std::string path() const { return dir_.file("pool"); }
  std::string file(const std::string& name) const { return dir_.file(name); }
  // Files that are not whole.
  std::vector<std::string> unfinished() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      if (entry.path().extension() == ".unfinished") found.push_back(entry.path().filename());
    }
    return found;
  }
  // Writes the file once more, with a header that was changed and has its checksum.
  void change_header(const std::string& path,
                     const std::function<void(pm::BackupHeader&)>& change) const {
    std::string content = read_file(path);
    pm::BackupHeader header;
    std::memcpy(&header, content.data(), sizeof header);
    change(header);
    header.checksum = pm::checksum_of(header);
    std::memcpy(content.data(), &header, sizeof header);
    write_file(path, content);
  }

  TempDir dir_;
  std::optional<Pool> pool_;
  std::unique_ptr<AnyIndex> index_;
};

TEST_F(BackupFiles, EachChangedByteAndEachCutIsRefused) {
  pool_->backup(file("full"));
  for (uint64_t i = 0; i < 50; ++i) index_->upsert(i, i + 7);
  pool_->backup(file("next"), {.base = file("full"), .progress = {}});
  Random random(base_seed());
  for (const char* damaged : {"full", "next"}) {
    const std::string sound = read_file(file(damaged));
    for (uint64_t i = 0; i < scaled(150); ++i) {
      std::string changed = sound;
      // The header and the table as often as the rest.
      const uint64_t from = i % 3 == 0 ? 0 : i % 3 == 1 ? sound.size() - 600 : 0;
      const uint64_t to = i % 3 == 0 ? 4200 : sound.size();
      const uint64_t at = from + random.below(to - from);
      changed[at] = static_cast<char>(changed[at] ^ (1 << random.below(8)));
      write_file(file(damaged), changed);
      try {
        Pool::restore(file("next"), file("copy"));
        // A unit of the base that has changed since is not read.
        ASSERT_STREQ(damaged, "full") << "byte " << at;
        Pool copy = Pool::open(file("copy"));
        Value value;
        ASSERT_TRUE(open_index(copy, "index")->lookup(4999, value));
        copy.close();
        std::filesystem::remove(file("copy"));
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kForeign ||
                    error.code() == ErrorCode::kVersion || error.code() == ErrorCode::kNotFound ||
                    error.code() == ErrorCode::kTruncated)
            << "byte " << at << ": " << error.what();
      }
      ASSERT_FALSE(std::filesystem::exists(file("copy"))) << "byte " << at;
      ASSERT_EQ(unfinished(), std::vector<std::string>());
    }
    for (uint64_t i = 0; i < scaled(60); ++i) {
      write_file(file(damaged), sound.substr(0, i < 5 ? i * 100 : random.below(sound.size())));
      ASSERT_TRUE(fails_with(ErrorCode::kTruncated, file(damaged),
                             [&] { Pool::restore(file("next"), file("copy")); }) ||
                  fails_with(ErrorCode::kForeign, file(damaged),
                             [&] { Pool::restore(file("next"), file("copy")); }));
      ASSERT_FALSE(std::filesystem::exists(file("copy")));
    }
    write_file(file(damaged), sound);
  }
  Pool::restore(file("next"), file("copy"));
}

TEST_F(BackupFiles, AnEmptyPoolIsOneAfterwards) {
  for (const uint64_t capacity : {uint64_t{2} << 20, uint64_t{1} << 30}) {
    for (const bool reserved : {false, true}) {
      PoolOptions options{.capacity_bytes = capacity};
      if (reserved) options.reserve_bytes = uint64_t{2} << 20;
      Pool empty = Pool::create(file("empty"), options);
      empty.backup(file("full"));
      empty.close();
      Pool::restore(file("full"), file("copy"));
      Pool copy = Pool::open(file("copy"));
      EXPECT_TRUE(copy.structures().empty());
      EXPECT_EQ(copy.info().capacity_bytes, capacity);
      const auto index = create_index(copy, "index", "plush", Kind::kU64, Kind::kU64);
      index->upsert(1, 2);
      EXPECT_EQ(faults_and_leaks(copy, {index.get()}), "");
      std::filesystem::remove(file("empty"));
      std::filesystem::remove(file("copy"));
    }
  }
}

TEST_F(BackupFiles, ABaseMustBeTheOneItWas) {
  pool_->backup(file("full"));
  pool_->backup(file("next"), {.base = file("full"), .progress = {}});
  const std::string full = read_file(file("full"));
  std::filesystem::rename(file("full"), file("elsewhere"));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, file("full"),
                         [&] { Pool::restore(file("next"), file("copy")); }));
  Pool::restore(file("next"), file("copy"), {file("elsewhere")});
  std::filesystem::remove(file("copy"));
  pool_->backup(file("full"));  // another one, of this name
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, [&] { Pool::restore(file("next"), file("copy")); }));
  Pool other = Pool::create(file("other"), {.capacity_bytes = uint64_t{16} << 20});
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, file("full"),
                         [&] { other.backup(file("x"), {.base = file("full"), .progress = {}}); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, file("full"), [&] {
    pool_->backup(file("full"), {.base = file("full"), .progress = {}});
  }));
  EXPECT_FALSE(std::filesystem::exists(file("x")));
}

// A thread would wait for itself. Of two pools, too: one backup runs at a time in a process.
TEST_F(BackupFiles, NoneIsMadeFromWithinAnother) {
  Pool other = Pool::create(file("other"), {.capacity_bytes = uint64_t{16} << 20});
  uint64_t calls = 0;
  BackupOptions options;
  options.progress = [&](uint64_t, uint64_t) {
    if (calls++ > 0) return;
    for (const Pool* pool : {static_cast<const Pool*>(&*pool_), static_cast<const Pool*>(&other)}) {
      EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "BackupOptions::progress",
                             [&] { pool->backup(file("inner")); }));
    }
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "BackupOptions::progress",
                           [&] { other.shrink(); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "BackupOptions::progress",
                           [&] { pool_->close(); }));
  };
  pool_->backup(file("outer"), options);
  EXPECT_GT(calls, 0U);
  EXPECT_FALSE(std::filesystem::exists(file("inner")));
  Pool::restore(file("outer"), file("copy"));
  options.progress = [](uint64_t, uint64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(pool_->backup(file("next"), options), std::runtime_error);
  other.backup(file("inner"));  // the thread may make one again
}

TEST_F(BackupFiles, NothingThatTheNewOneRestsOnIsReplaced) {
  std::string base;
  for (const char* name : {"a", "b", "c"}) {
    index_->upsert(1, base.size());
    pool_->backup(file(name), {.base = base, .progress = {}});
    base = file(name);
  }
  for (const char* of : {"c", "b", "a"}) {
    for (const char* replaced : {"a", "b", "c"}) {
      if (std::string(replaced) > of) continue;
      const std::string before = read_file(file(replaced));
      EXPECT_TRUE(
          fails_with(ErrorCode::kInvalidArgument, "rests on",
                     [&] { pool_->backup(file(replaced), {.base = file(of), .progress = {}}); }))
          << replaced << " of " << of;
      EXPECT_EQ(read_file(file(replaced)), before);
    }
  }
  // Also where only the number of the oldest is known.
  std::filesystem::rename(file("a"), file("elsewhere"));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "rests on", [&] {
    pool_->backup(file("elsewhere"), {.base = file("c"), .progress = {}});
  }));
  Pool::restore(file("c"), file("copy"), {file("elsewhere")});
  // What rests on it may give way to another one.
  pool_->backup(file("c"), {.base = file("b"), .progress = {}});
  EXPECT_EQ(unfinished(), std::vector<std::string>());
}

TEST_F(BackupFiles, AChainIsLongerThanAProcessMayOpenFiles) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 40;
  ::setrlimit(RLIMIT_NOFILE, &few);
  std::string base;
  for (uint64_t i = 0; i < 60; ++i) {
    index_->upsert(7, i);
    pool_->backup(file(std::to_string(i)), {.base = base, .progress = {}});
    base = file(std::to_string(i));
  }
  EXPECT_NO_THROW(Pool::restore(base, file("copy")));
  ::setrlimit(RLIMIT_NOFILE, &before);
  Pool copy = Pool::open(file("copy"));
  Value value;
  ASSERT_TRUE(open_index(copy, "index")->lookup(7, value));
  EXPECT_EQ(value.word(), 59U);
}

TEST_F(BackupFiles, AHeaderLeadsToNothingButABackupBesideIt) {
  pool_->backup(file("full"));
  pool_->backup(file("next"), {.base = file("full"), .progress = {}});
  std::filesystem::create_directory(file("folder"));
  std::filesystem::rename(file("full"), file("folder/full"));
  const std::string elsewhere = file("folder/full");
  change_header(file("next"), [&](pm::BackupHeader& header) {
    std::memcpy(header.base_name, elsewhere.c_str(), elsewhere.size() + 1);
  });
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, [&] { Pool::restore(file("next"), file("copy")); }));
  // Nobody waits for what comes through a pipe.
  ASSERT_EQ(::mkfifo(file("full").c_str(), 0600), 0);
  EXPECT_TRUE(fails_with(ErrorCode::kForeign, [&] { Pool::restore(file("next"), file("copy")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kForeign, [&] { Pool::restore(file("full"), file("copy")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { pool_->backup(file("full")); }));
  EXPECT_TRUE(std::filesystem::is_fifo(file("full")));
}

TEST_F(BackupFiles, AHeaderThatSaysWhatNoBackupHasIsDamage) {
  pool_->backup(file("full"));
  const std::string sound = read_file(file("full"));
  const std::vector<std::function<void(pm::BackupHeader&)>> changes = {
      [](pm::BackupHeader& header) { header.units += uint64_t{1} << 61; },  // 24 times that is 0
      [](pm::BackupHeader& header) { header.stored_units += uint64_t{1} << 48; },
      [](pm::BackupHeader& header) {
        header.table_offset -= 24 * (uint64_t{1} << 40);
        header.units += uint64_t{1} << 40;
      }};
  for (const auto& change : changes) {
    write_file(file("full"), sound);
    change_header(file("full"), change);
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "full",
                           [&] { Pool::restore(file("full"), file("copy")); }));
  }
}

TEST_F(BackupFiles, WhatAKilledProcessLeftGoesAndWhatOneMakesStays) {
  const std::string left = "full.0123456789abcdef.unfinished";
  const std::string in_the_making = "full.fedcba9876543210.unfinished";
  const std::string others = "fuller.0123456789abcdef.unfinished";
  for (const std::string& name : {left, in_the_making, others}) write_file(file(name), "x");
  const int held = ::open(file(in_the_making).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_SH), 0);
  pool_->backup(file("full"));
  std::vector<std::string> there = unfinished();
  std::ranges::sort(there);
  EXPECT_EQ(there, std::vector<std::string>({in_the_making, others}));
  ::close(held);
}

// The first pauses in the middle while the second does all of its work.
TEST(BackupsAtATime, ToOneFileDoNotMeet) {
  const TempDir dir;
  const std::string file = dir.file("backup");
  for (const char* name : {"one", "other"}) {
    Pool pool = Pool::create(dir.file(name), {.capacity_bytes = uint64_t{16} << 20});
    const auto index = create_index(pool, "index", "plush", Kind::kU64, Kind::kU64);
    for (uint64_t i = 0; i < 5000; ++i) index->upsert(i, i);
    pool.backup(file);  // what both replace
  }
  Child child([&](int out) {
    const Pool pool = Pool::open(dir.file("one"));
    bool told = false;
    pool.backup(file, {.base = {}, .progress = [&](uint64_t, uint64_t) {
                         if (!std::exchange(told, true)) send(out, "r", 1);
                         while (!std::filesystem::exists(dir.file("go"))) std::this_thread::yield();
                       }});
  });
  char byte = 0;
  ASSERT_TRUE(child.receive(&byte, 1));
  {
    const Pool pool = Pool::open(dir.file("other"));
    pool.backup(file);
  }
  Pool::restore(file, dir.file("copy of the other"));
  write_file(dir.file("go"), "");
  EXPECT_EQ(child.wait(), 0);
  Pool::restore(file, dir.file("copy of the one"));
}

// Whatever little room there is on the medium.
TEST(Restore, OntoAFullMediumIsAnError) {
  constexpr uint64_t kMediumBytes = uint64_t{4} << 20;
  constexpr uint64_t kPage = 4096;
  const TempDir dir;
  {
    Pool pool = Pool::create(dir.file("pool"), {.capacity_bytes = uint64_t{2} << 20,
                                                .growth_bytes = uint64_t{64} << 10});
    create_index(pool, "index", "wort", Kind::kU64, Kind::kU64)->upsert(1, 2);
    pool.backup(dir.file("backup"));
  }
  const SmallTmpfs medium(kMediumBytes);
  if (!medium.mounted()) GTEST_SKIP() << "this user may not mount a small tmpfs";
  Pool::restore(dir.file("backup"), medium.file("copy"));
  struct stat status{};
  ASSERT_EQ(::stat(medium.file("copy").c_str(), &status), 0);
  std::filesystem::remove(medium.file("copy"));
  const uint64_t needed = static_cast<uint64_t>(status.st_blocks) * 512;
  uint64_t failed = 0;
  for (uint64_t room = needed + 2 * kPage; room > 0; room -= kPage) {
    write_file(medium.file("ballast"), std::string(kMediumBytes - room, 'b'));
    try {
      Pool::restore(dir.file("backup"), medium.file("copy"));
      ASSERT_EQ(failed, 0U);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kNoSpace) << error.what();
      ++failed;
    }
    ASSERT_EQ(std::filesystem::exists(medium.file("copy")), failed == 0);
    std::filesystem::remove(medium.file("copy"));
  }
  EXPECT_GT(failed, needed / kPage / 2);
}

TEST_F(BackupFiles, WhatIsInTheWayStays) {
  write_file(file("precious"), "precious");
  pool_->backup(file("full"));
  EXPECT_TRUE(
      fails_with(ErrorCode::kExists, [&] { Pool::restore(file("full"), file("precious")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { pool_->backup(file("precious")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { pool_->backup(path()); }));
  pool_->backup(file("full"));  // which an earlier one makes room for
  EXPECT_EQ(read_file(file("precious")), "precious");
  EXPECT_TRUE(fails_with(ErrorCode::kForeign, [&] { Pool::restore(path(), file("copy")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, [&] { pool_->backup("/no/such/folder/backup"); }));
  // The pool works as before.
  index_->upsert(1, 2);
}

TEST_F(BackupFiles, APoolWhoseMediumHasFailedIsRefused) {
  index_.reset();
  pool_.reset();
  FailingMedium medium(path(), Domain::kLine);
  medium.begin();
  PoolOptions options;
  options.force_domain = true;
  options.domain = Domain::kLine;
  Pool pool = Pool::open(path(), options);
  const auto index = open_index(pool, "index");
  medium.refuse_here(medium.persists() + 2, true);
  EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] {
    for (uint64_t i = 0; i < 100; ++i) index->upsert(i, i);
  }));
  EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { pool.backup(file("full")); }));
  EXPECT_FALSE(std::filesystem::exists(file("full")));
}

TEST_F(BackupFiles, APoolWhoseMediumFailsMeanwhileIsRefused) {
  index_.reset();
  pool_.reset();
  FailingMedium medium(path(), Domain::kLine);
  medium.begin();
  PoolOptions options;
  options.force_domain = true;
  options.domain = Domain::kLine;
  Pool pool = Pool::open(path(), options);
  const auto index = open_index(pool, "index");
  medium.refuse_here(medium.persists(), true);
  bool failed = false;
  const auto write = [&](uint64_t, uint64_t) {
    if (std::exchange(failed, true)) return;
    EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { index->upsert(1, 2); }));
  };
  EXPECT_TRUE(fails_with(ErrorCode::kIo,
                         [&] { pool.backup(file("full"), {.base = {}, .progress = write}); }));
  EXPECT_TRUE(failed);
  EXPECT_FALSE(std::filesystem::exists(file("full")));
  EXPECT_EQ(unfinished(), std::vector<std::string>());
}

// What the system reads from a file into memory that is held.
TEST(Cut, ReadingAFileIntoHeldMemoryWaitsAsStoresDo) {
  constexpr uint64_t kBytes = 256 << 10;
  const TempDir dir;
  write_file(dir.file("f"), std::string(kBytes, 'n'));
  std::FILE* file = std::fopen(dir.file("f").c_str(), "r");
  ASSERT_NE(file, nullptr);
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::fill_n(memory, kBytes, 'o');
  {
    pm::Cut cut(memory, kBytes, 64 << 10, "memory");
    EXPECT_EQ(pm::read_at(fileno(file), "f", 0, memory + 1000, kBytes - 2000), kBytes - 2000);
    std::vector<char> unit(64 << 10);
    for (uint64_t u = 0; u < cut.units(); ++u) {
      cut.take(u, unit.data());
      EXPECT_EQ(std::string(unit.begin(), unit.end()), std::string(unit.size(), 'o'));
    }
    EXPECT_EQ(cut.figures().pauses, 4U);
  }
  EXPECT_EQ(std::string(memory + 1000, kBytes - 2000), std::string(kBytes - 2000, 'n'));
  ::munmap(memory, kBytes);
  std::fclose(file);
}

volatile sig_atomic_t passed_on = 0;

// A thread that met a cut and comes to the handler when there is another one, of other memory.
TEST(Cut, AFaultOfAnEarlierOneIsTriedAgainOnce) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer)
    GTEST_SKIP() << "which have handlers of their own";
  constexpr uint64_t kBytes = 64 << 10;
  Child child([&](int) {
    std::signal(SIGSEGV, SIG_DFL);
    std::signal(SIGSEGV, [](int) { passed_on = passed_on + 1; });
    auto* memory = static_cast<char*>(
        ::mmap(nullptr, 3 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char* const later = memory + 2 * kBytes;
    {
      const pm::Cut cut(memory, kBytes, kBytes, "memory");
    }
    const auto expect = [](int wanted) {
      if (passed_on != wanted) throw std::runtime_error("passed on: " + std::to_string(passed_on));
    };
    {
      pm::Cut other(later, kBytes, kBytes, "other memory");
      struct sigaction handler{};
      ::sigaction(SIGSEGV, nullptr, &handler);
      siginfo_t fault{};
      fault.si_code = SEGV_ACCERR;
      const auto meet = [&](char* at) {
        fault.si_addr = at;
        handler.sa_sigaction(SIGSEGV, &fault, nullptr);
      };
      meet(memory);
      expect(0);
      meet(memory + 64);
      expect(0);
      meet(memory + 64);  // it was writable the first time
      expect(1);
      // Where there was none, or one of an earlier test.
      meet(memory + kBytes);
      meet(memory + kBytes);
      if (passed_on < 2) throw std::runtime_error("a fault of another kind is not passed on");
      const int before = passed_on;
      *static_cast<volatile char*>(later) = 1;
      expect(before);
      std::vector<char> unit(kBytes, 'x');
      other.take(0, unit.data());
      if (unit[0] != 0) throw std::runtime_error("it is not as it was at the instant");
    }
  });
  EXPECT_EQ(child.wait(), 0);
}

// A fault that has nothing to do with it.
TEST(Cut, OtherFaultsEndTheProcessOrReachTheProgram) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer)
    GTEST_SKIP() << "which have handlers of their own";
  constexpr uint64_t kBytes = 64 << 10;
  const auto fault_after_a_cut = [&](bool with_handler) {
    Child child([&](int) {
      std::signal(SIGSEGV, SIG_DFL);
      if (with_handler) std::signal(SIGSEGV, [](int) { ::_exit(77); });
      auto* memory = static_cast<char*>(
          ::mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      ::mprotect(memory + kBytes, kBytes, PROT_READ);
      {
        const pm::Cut cut(memory, kBytes, kBytes, "memory");
      }
      {
        const pm::Cut again(memory, kBytes, kBytes, "memory");
      }
      *static_cast<volatile char*>(memory) = 1;           // may be written to again
      *static_cast<volatile char*>(memory + kBytes) = 1;  // never
    });
    return child.wait();
  };
  EXPECT_EQ(fault_after_a_cut(false), -SIGSEGV);
  EXPECT_EQ(fault_after_a_cut(true), 77);
}

}  // namespace
}  // namespace perdure::test
