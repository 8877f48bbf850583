// Files in a pool: what each call promises, and a model under random steps.
#include "perdure/files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "lsm/file_model.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

PoolOptions options_for(uint64_t capacity_bytes, Domain domain = Domain::kLine) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = domain;
  return options;
}

class FilesTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& content) {
    FileWriter writer = files_.create_file(path);
    writer.append(content);
    writer.close();
  }
  std::string read(const std::string& path) const {
    const FileReader reader = files_.open_file(path);
    std::string scratch(reader.size(), '\0');
    return std::string(reader.read(0, scratch.size(), scratch.data()));
  }
  void TearDown() override { expect_sound(pool_, files_); }

  Pool pool_ = Pool::anonymous(options_for(uint64_t{16} << 20));
  Files files_ = Files::create(pool_, "files");
};

TEST_F(FilesTest, AppendsBecomeVisibleByFlushing) {
  FileWriter writer = files_.create_file("/log");
  const FileReader reader = files_.open_file("/log");
  std::string scratch(100, '\0');
  writer.append("first");
  EXPECT_EQ(reader.size(), 0U);
  writer.flush();
  EXPECT_EQ(reader.read(0, 100, scratch.data()), "first");
  writer.append(" second");
  writer.sync();
  EXPECT_EQ(reader.read(6, 3, scratch.data()), "sec");
  EXPECT_EQ(reader.read(12, 3, scratch.data()), "");
  EXPECT_EQ(reader.read(~uint64_t{0}, 3, scratch.data()), "");
}

TEST_F(FilesTest, ReadsOfOneExtentAreViewsOfThePool) {
  write("/a", std::string(3000, 'a'));
  std::string scratch(3000, '\0');
  const FileReader reader = files_.open_file("/a");
  EXPECT_NE(static_cast<const void*>(reader.read(100, 2000, scratch.data()).data()),
            static_cast<const void*>(scratch.data()));
}

TEST_F(FilesTest, ReadsOverExtentsAreWhole) {
  std::string content;
  FileWriter writer = files_.create_file("/a");
  for (int i = 0; i < 3000; ++i) {
    const std::string piece = std::to_string(i) + ",";
    content += piece;
    writer.append(piece);
  }
  writer.close();
  const FileReader reader = files_.open_file("/a");
  std::string scratch(content.size(), '\0');
  Random random(base_seed());
  for (int i = 0; i < 2000; ++i) {
    const uint64_t at = random.below(content.size());
    const uint64_t bytes = random.below(content.size() / (i % 2 == 0 ? 1 : 50));
    ASSERT_EQ(reader.read(at, bytes, scratch.data()), std::string_view(content).substr(at, bytes));
  }
}

TEST_F(FilesTest, PathsAreNormalised) {
  files_.make_directories("a/b//./c");
  write("/a/b/c/file", "x");
  EXPECT_EQ(read("a//b/./c/file"), "x");
  EXPECT_TRUE(files_.find("/")->directory);
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "..", [&] { files_.find("/a/../b"); }));
  write("/" + std::string(255, 'n'), "x");
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "255",
                         [&] { files_.create_file("/" + std::string(256, 'n')); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument,
                         [&] { files_.create_file(std::string_view("a\0b", 3)); }));
}

TEST_F(FilesTest, ErrorsNameThePath) {
  write("/file", "x");
  files_.make_directory("/dir");
  write("/dir/file", "x");
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, "/none", [&] { files_.open_file("/none"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, "/none/a", [&] { files_.create_file("/none/a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, "/file/a", [&] { files_.create_file("/file/a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, "/dir", [&] { files_.open_file("/dir"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, "/", [&] { files_.create_file("/"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, "/file", [&] { files_.list("/file"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kExists, "/dir", [&] { files_.remove("/dir"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, "/none", [&] { files_.remove("/none"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { files_.remove("/"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, [&] { files_.rename("/file", "/dir"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { files_.rename("/dir", "/dir/in"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { files_.rename("/dir", "/"); }));
  FileWriter writer = files_.append_file("/file");
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "/file", [&] { files_.create_file("/file"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { writer.truncate(2); }));
  writer.close();
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { writer.append("more"); }));
  EXPECT_FALSE(files_.find("/none/a"));
}

TEST_F(FilesTest, DirectoriesMoveWithWhatIsInThem) {
  files_.make_directories("/a/b");
  write("/a/b/file", "x");
  files_.make_directory("/c");
  files_.rename("/a", "/c/d");
  EXPECT_EQ(read("/c/d/b/file"), "x");
  EXPECT_FALSE(files_.find("/a"));
  files_.make_directory("/empty");
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { files_.rename("/empty", "/c"); }));
  files_.rename("/c", "/empty");
  EXPECT_EQ(read("/empty/d/b/file"), "x");
}

TEST_F(FilesTest, WhatWasMovedFromIsToldSo) {
  write("/f", "content");
  FileReader reader = files_.open_file("/f");
  FileWriter writer = files_.append_file("/f");
  Files files = files_;
  const FileReader other_reader = std::move(reader);
  const FileWriter other_writer = std::move(writer);
  const Files other_files = std::move(files);
  const auto refused = [](const std::function<void()>& call) {
    return fails_with(ErrorCode::kInvalidArgument, "moved from", call);
  };
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_TRUE(refused([&] { static_cast<void>(reader.size()); }));
  EXPECT_TRUE(refused([&] { writer.append("x"); }));
  EXPECT_TRUE(refused([&] { writer.close(); }));
  EXPECT_TRUE(refused([&] { files.open_file("/f"); }));
  EXPECT_TRUE(refused([&] { files.create_file("/g"); }));
  EXPECT_TRUE(refused([&] { static_cast<void>(files.list("")); }));
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(other_reader.size(), 7U);
}

TEST_F(FilesTest, ARemovedFileStaysWithItsReaders) {
  const uint64_t before = pool_.info().allocated_bytes;
  write("/a", std::string(100'000, 'a'));
  write("/b", std::string(100'000, 'b'));
  {
    const FileReader a = files_.open_file("/a");
    const FileReader b = files_.open_file("/b");
    std::string scratch(100'000, '\0');
    files_.rename("/a", "/b");
    files_.remove("/b");
    EXPECT_TRUE(files_.list("/").empty());
    write("/c", std::string(300'000, 'c'));
    EXPECT_EQ(a.read(0, 100'000, scratch.data()), std::string(100'000, 'a'));
    EXPECT_EQ(b.read(0, 100'000, scratch.data()), std::string(100'000, 'b'));
    files_.remove("/c");
  }
  // But for the table, which stays.
  EXPECT_LE(pool_.info().allocated_bytes, before + 4096);
}

// A view of bytes that were cut off may show anything of the file's own, never another file's.
TEST_F(FilesTest, ATruncatedFileKeepsItsSpaceForItsReaders) {
  {
    FileWriter writer = files_.create_file("/a");
    for (int i = 0; i < 100; ++i) writer.append(std::string(4000, 'a'));
  }
  const uint64_t before = pool_.info().allocated_bytes;
  {
    const FileReader reader = files_.open_file("/a");
    std::string scratch(1000, '\0');
    const std::string_view view = reader.read(300'000, 1000, scratch.data());
    write("/a", "b");
    EXPECT_EQ(reader.read(0, 1000, scratch.data()), "b");
    for (int i = 0; i < 4; ++i) write("/other" + std::to_string(i), std::string(400'000, 'o'));
    EXPECT_EQ(view, std::string(1000, 'a'));
    for (int i = 0; i < 4; ++i) files_.remove("/other" + std::to_string(i));
  }
  EXPECT_LT(pool_.info().allocated_bytes, before - 300'000) << "and returns it when they go";
}

TEST_F(FilesTest, StatisticsWhileFilesComeAndGo) {
  std::atomic<bool> ends = false;
  std::thread watcher([&] {
    while (!ends) files_.statistics();
  });
  for (uint64_t i = 0; i < scaled(300); ++i) {
    write("/a", std::string(i * 97 % 50'000, 'x'));
    files_.remove("/a");
  }
  ends = true;
  watcher.join();
}

TEST_F(FilesTest, LocksAreTakenOnce) {
  files_.make_directory("/db");
  EXPECT_TRUE(files_.lock("/LOCK"));
  EXPECT_FALSE(files_.lock("/LOCK"));
  files_.unlock("/LOCK");
  EXPECT_TRUE(files_.lock("/LOCK"));
  // A store that is opened as "/db/" has "/db//LOCK".
  EXPECT_TRUE(files_.lock("/db/LOCK"));
  for (const char* spelling : {"/db//LOCK", "db/LOCK", "/./db/LOCK"})
    EXPECT_FALSE(files_.lock(spelling)) << spelling;
  files_.unlock("db//LOCK");
  EXPECT_TRUE(files_.lock("/db/LOCK"));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "..", [&] { files_.lock("/db/../LOCK"); }));
  write("/db/file", "x");
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, "/none", [&] { files_.lock("/none/LOCK"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, "/db", [&] { files_.lock("/db"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, "file", [&] { files_.lock("/db/file/LOCK"); }));
}

TEST_F(FilesTest, AFullPoolRefusesAndChangesNothing) {
  write("/small", "small");
  const std::string piece(200'000, 'p');
  FileWriter writer = files_.create_file("/large");
  uint64_t written = 0;
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
    for (;; written += piece.size()) writer.append(piece);
  }));
  EXPECT_GT(written, uint64_t{12} << 20);
  EXPECT_EQ(writer.size(), written);
  EXPECT_TRUE(
      fails_with(ErrorCode::kPoolFull, [&] { writer.append(std::string(2'000'000, 'x')); }));
  writer.sync();
  EXPECT_EQ(read("/large").size(), written);
  writer.close();
  expect_sound(pool_, files_);
  files_.remove("/large");  // needs no room
  write("/large", std::string(written, 'q'));
  EXPECT_EQ(read("/small"), "small");
}

// Memory runs out in a step, at any of its allocations, those of the test among them: each file has
// what it had before or after the step (of an append a part), and no space is lost.
TEST_F(FilesTest, ShortMemoryLosesNothing) {
  Random random(base_seed());
  FileSteps steps(random, 60'000);
  FileModel model;
  uint64_t refused = 0;
  for (uint64_t step = 0; step < scaled(3000) && !HasFailure(); ++step) {
    FileModel next;
    bool failed = false;
    {
      ShortMemory memory(random.below(24));
      try {
        steps.perform(files_, model, next);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      memory.end();
      refused += memory.refused();
    }
    steps.let_go();
    if (files_.find("/temporary")) files_.remove("/temporary");
    FileModel there = contents_of(files_);
    if (failed) {
      for (auto& [path, content] : there) {
        const auto before = model.find(path);
        const auto after = next.find(path);
        const bool as_before = before != model.end() && before->second == content;
        const bool as_after = after != next.end() && after->second == content;
        const bool in_part = before != model.end() && after != next.end() && content &&
                             before->second && after->second &&
                             after->second->starts_with(*content) &&
                             content->starts_with(*before->second);
        EXPECT_TRUE(as_before || as_after || in_part) << path << " in step " << step;
      }
      for (const auto& [path, content] : model) {
        if (next.contains(path)) {
          EXPECT_TRUE(there.contains(path)) << path << " in step " << step;
        }
      }
      model = std::move(there);
    } else {
      ASSERT_EQ(differences(there, next), "") << "in step " << step;
      model = std::move(next);
    }
    if (step % 20 == 0) expect_sound(pool_, files_);
  }
  EXPECT_GT(refused, 100U);
}

TEST_F(FilesTest, AScatteredPoolStillTakesLargeFiles) {
  for (int i = 0; i < 200; ++i) write("/f" + std::to_string(i), std::string(60'000, 'f'));
  for (int i = 0; i < 200; i += 2) files_.remove("/f" + std::to_string(i));
  const std::string large(5'000'000, 'l');  // no hole is as large
  write("/large", large);
  EXPECT_EQ(read("/large"), large);
  files_.remove("/large");
}

TEST_F(FilesTest, ManyFilesAndExtents) {
  for (int i = 0; i < 1200; ++i) write("/f" + std::to_string(i), std::to_string(i));
  EXPECT_EQ(files_.list("/").size(), 1200U);
  for (int i = 0; i < 1200; ++i) ASSERT_EQ(read("/f" + std::to_string(i)), std::to_string(i));
  for (int i = 0; i < 1200; ++i) files_.remove("/f" + std::to_string(i));
  EXPECT_TRUE(files_.list("/").empty());
}

TEST_F(FilesTest, ReadersFollowAWriter) {
  FileWriter writer = files_.create_file("/log");
  const uint64_t records = scaled(20'000);
  std::thread reading([&] {
    const FileReader reader = files_.open_file("/log");
    std::string scratch(8, '\0');
    for (uint64_t at = 0; at < records;) {
      if (reader.size() < (at + 1) * 8) continue;
      ASSERT_EQ(reader.read(at * 8, 8, scratch.data()), std::to_string(10'000'000 + at));
      ++at;
    }
  });
  for (uint64_t i = 0; i < records; ++i) {
    writer.append(std::to_string(10'000'000 + i));
    writer.flush();
  }
  reading.join();
}

TEST_F(FilesTest, ThreadsMakeAndRemoveSideBySide) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const std::string mine = "/t" + std::to_string(thread);
      for (uint64_t i = 0; i < scaled(200); ++i) {
        write(mine + "-new", std::string(i * 37 % 9000, 'x'));
        files_.rename(mine + "-new", mine);
        if (i % 3 == 0) files_.remove(mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(FilesPool, OpensAsFilesOnly) {
  const TempDir folder;
  {
    Pool pool = Pool::create(folder.file("pool"), options_for(uint64_t{4} << 20));
    const Files files = Files::create(pool, "files");
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, [&] { Files::open(pool, "files"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kNameExists, [&] { Files::create(pool, "files"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, [&] { Files::open(pool, "none"); }));
  }
  PoolOptions options;
  options.read_only = true;
  Pool pool = Pool::open(folder.file("pool"), options);
  Files files = Files::open(pool, "files");
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] { files.create_file("/a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] { files.make_directory("/a"); }));
}

class FilesModel : public testing::TestWithParam<Domain> {};

TEST_P(FilesModel, RandomStepsAndReopenings) {
  const TempDir folder;
  Random random(base_seed());
  FileSteps steps(random, 60'000);
  FileModel model;
  const PoolOptions options = options_for(uint64_t{8} << 20, GetParam());
  {
    Pool pool = Pool::create(folder.file("pool"), options);
    const Files files = Files::create(pool, "files");
  }
  for (uint64_t round = 0; round < scaled(20) && !testing::Test::HasFailure(); ++round) {
    Pool pool = Pool::open(folder.file("pool"), options);
    Files files = Files::open(pool, "files");
    ASSERT_EQ(differences(contents_of(files), model), "");
    for (int i = 0; i < 100; ++i) {
      FileModel next;
      try {
        steps.perform(files, model, next);
        model = std::move(next);
      } catch (const Error& error) {
        ASSERT_TRUE(pm::is_full(error)) << error.what();
      }
      if (files.find("/temporary")) files.remove("/temporary");
    }
    ASSERT_EQ(differences(contents_of(files), model), "");
    steps.let_go();
    expect_sound(pool, files);
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, FilesModel,
                         testing::Values(Domain::kByte, Domain::kLine, Domain::kPage),
                         [](const auto& one) { return std::string(to_string(one.param)); });

}  // namespace
}  // namespace perdure::test
