// Files under power failures, one after the other, a medium that refuses a persist, SIGKILL, and
// damage.
//
// PERDURE_POWER_SESSIONS: how many power failures, 400 without. PERDURE_KILL_ROUNDS: how many
// kills.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "lsm/file_model.h"
#include "lsm/files/layout.h"
#include "perdure/files.h"
#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

uint64_t count_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

PoolOptions small_pool() {
  PoolOptions options;
  options.capacity_bytes = uint64_t{3} << 20;
  options.growth_bytes = uint64_t{64} << 10;
  options.force_domain = true;
  options.domain = Domain::kLine;
  return options;
}

class FilesPower : public testing::Test {
 protected:
  std::string path() const { return folder_.file("pool"); }

  void SetUp() override {
    Pool pool = Pool::create(path(), small_pool());
    const Files files = Files::create(pool, "files");
  }

  // A step that was interrupted happened wholly or not at all; what it writes to on the way does
  // not count.
  void open_and_judge(const Pool& pool, Files& files) {
    if (files.find("/temporary")) files.remove("/temporary");
    const FileModel there = contents_of(files);
    const std::string wrong = differences(there, model_);
    if (!wrong.empty()) {
      ASSERT_TRUE(next_) << wrong;
      ASSERT_EQ(differences(there, *next_), "") << "nor, without the last step:\n" << wrong;
      model_ = *next_;
    }
    next_.reset();
    expect_sound(pool, files);
  }

  void step(Files& files) {
    next_.emplace();
    try {
      steps_.perform(files, model_, *next_);
      model_ = std::move(*next_);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      if (files.find("/temporary")) files.remove("/temporary");
    }
    next_.reset();
  }

  void session() {
    if (!medium_) {
      medium_.emplace(path(), Domain::kLine);
      medium_->begin();
    }
    FailingMedium& medium = *medium_;
    const bool closes = random_.below(10) == 0;
    constexpr uint64_t kSoon[] = {10, 60, 300};
    const uint64_t persists = random_.below(kSoon[random_.below(3)]);
    medium.refuse_here(closes ? ~uint64_t{0} : medium.persists() + persists, true);
    try {
      Pool pool = Pool::open(path(), small_pool());
      Files files = Files::open(pool, "files");
      open_and_judge(pool, files);
      const uint64_t steps = closes ? random_.below(50) : 100'000;
      for (uint64_t i = 0; i < steps && !HasFatalFailure(); ++i) step(files);
      steps_.let_go();
    } catch (const Error& error) {
      steps_.let_go();
      ASSERT_TRUE(medium.refused()) << error.what();
      ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    // After a close the caches stay as they are, and after the death of the process: the next one
    // finds all that it has stored. A power failure takes what neither has fenced.
    if (!medium.refused() || random_.below(3) == 0) return;
    using Image = FailingMedium::Image;
    constexpr Image kImages[] = {Image::kMixed, Image::kMixed, Image::kMixed, Image::kLeast,
                                 Image::kAll};
    std::filesystem::rename(medium.make_image(kImages[random_.below(5)], random_.next()), path());
    medium_.reset();
  }

  TempDir folder_;
  std::optional<FailingMedium> medium_;  // since the last power failure
  Random random_{base_seed()};
  FileSteps steps_{random_, 40'000};
  FileModel model_;
  std::optional<FileModel> next_;  // with the step that was under way
};

TEST_F(FilesPower, NothingIsLostAndNothingComesBack) {
  const uint64_t sessions = count_from("PERDURE_POWER_SESSIONS", scaled(400));
  for (uint64_t i = 0; i < sessions && !HasFailure(); ++i) {
    SCOPED_TRACE("session " + std::to_string(i));
    session();
  }
}

// Their bytes and the new length go together: the sum of the bytes says whether they are there.
TEST_F(FilesPower, ASyncedAppendOfAFewBytesIsOneFence) {
  FailingMedium medium(path(), Domain::kLine);
  medium.begin();
  Pool pool = Pool::open(path(), small_pool());
  Files files = Files::open(pool, "files");
  FileWriter log = files.create_file("/log");
  log.append(std::string(3000, 'l'));  // room for more
  log.sync();
  const uint64_t before = medium.persists();
  for (uint64_t i = 0; i < 5; ++i) {
    log.append("header ");
    log.append(std::string(131, 'r'));
    log.flush();
    log.sync();
  }
  EXPECT_EQ(medium.persists() - before, 5U);
}

// A power failure has lost a part of the last append. The file is as before, and stays so when what
// was lost stands behind its end again.
TEST_F(FilesPower, AnAppendThatGotLostDoesNotComeBack) {
  const std::string kept(70, 'k');
  const std::string last = "the last append, which began in a line that had been synced before";
  std::string whole;
  {
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    FileWriter log = files.create_file("/log");
    log.append(kept);
    log.sync();
    log.append(last);
    log.sync();
    whole = read_file(path());
  }
  const auto content = [&] {
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    expect_sound(pool, files);
    return *contents_of(files).at("/log");
  };
  write_file(path(), whole);
  EXPECT_EQ(content(), kept + last);
  EXPECT_EQ(content(), kept + last);
  const size_t at = whole.find(last) + last.size() - 3;
  std::string lost = whole;
  lost[at] = '\0';
  write_file(path(), lost);
  EXPECT_EQ(content(), kept);
  std::string again = read_file(path());
  again[at] = whole[at];
  write_file(path(), again);
  EXPECT_EQ(content(), kept);
}

// The pool stops, and what was there can still be read.
TEST_F(FilesPower, AFailedMediumCanBeRead) {
  for (uint64_t n = 0; n < 60 && !HasFailure(); ++n) {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    open_and_judge(pool, files);
    medium.refuse_here(medium.persists() + n, true);
    try {
      for (;;) step(files);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    ASSERT_TRUE(medium.refused());
    FileModel there = contents_of(files);
    for (const auto& [path, content] : model_) {
      if (there.contains(path) || (next_ && !next_->contains(path))) continue;
      ADD_FAILURE() << path << " cannot be read any more";
    }
    EXPECT_THROW(files.create_file("/more"), Error);
    EXPECT_THROW(files.make_directory("/more"), Error);
    steps_.let_go();
  }
}

// Who closes a file relies on it; a file that nothing was appended to is closed all the same.
TEST_F(FilesPower, ClosingOnAFailedMediumIsAnError) {
  FailingMedium medium(path(), Domain::kLine);
  medium.begin();
  Pool pool = Pool::open(path(), small_pool());
  Files files = Files::open(pool, "files");
  files.create_file("/idle").close();
  FileWriter idle = files.append_file("/idle");
  FileWriter log = files.create_file("/log");
  log.append("a record");
  medium.refuse_here(medium.persists(), true);
  EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { files.make_directory("/d"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kIo, [&] { log.close(); }));
  idle.close();
}

// A process dies while it removes a file, which the next one sees; the power fails while that
// returns the space. What the first process only stored must not be undone then: the file would be
// there without its content.
TEST_F(FilesPower, AKilledRemovalThenAPowerFailure) {
  std::string stored;
  {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    {
      Pool pool = Pool::open(path(), small_pool());
      Files files = Files::open(pool, "files");
      FileWriter writer = files.create_file("/a");
      writer.append(std::string(10'000, 'a'));
      writer.close();
      medium.refuse_here(medium.persists(), true);
      EXPECT_THROW(files.remove("/a"), Error);
      stored = read_file(path());
    }
    std::filesystem::rename(medium.make_image(FailingMedium::Image::kLeast, 0), path());
  }
  const std::string durable = read_file(path());
  for (uint64_t n = 0, refused = 1; refused != 0 && !HasFailure(); ++n) {
    write_file(path(), durable);
    {
      FailingMedium medium(path(), Domain::kLine);
      medium.begin();
      write_file(path(), stored);
      medium.refuse_here(n, true);
      try {
        Pool pool = Pool::open(path(), small_pool());
        const Files files = Files::open(pool, "files");
        EXPECT_FALSE(files.find("/a"));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
      }
      refused = medium.refused() ? 1 : 0;
      std::filesystem::rename(medium.make_image(FailingMedium::Image::kLeast, 0), path());
    }
    SCOPED_TRACE("refused at " + std::to_string(n));
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    expect_sound(pool, files);
  }
}

// Records of a log, synced each or not; and a file that is replaced by renaming.
TEST_F(FilesPower, AKilledWriterLosesNothingThatWasFlushed) {
  uint64_t total = 0;
  for (uint64_t round = 0; round < count_from("PERDURE_KILL_ROUNDS", scaled(12)); ++round) {
    uint64_t acknowledged = total;
    Child child([&](int out) {
      auto* pool = new Pool(Pool::open(path(), small_pool()));  // never closed
      auto* files = new Files(Files::open(*pool, "files"));
      auto* log = new FileWriter(files->append_file("/log"));
      for (uint64_t i = log->size() / 8; i < 60'000; ++i) {
        log->append(std::to_string(10'000'000 + i));
        i % 2 == 0 ? log->sync() : log->flush();
        if (i % 64 == 0) {
          FileWriter current = files->create_file("/next");
          current.append(std::to_string(i));
          current.close();
          files->rename("/next", "/current");
        }
        send(out, &i, sizeof i);
      }
    });
    const uint64_t enough = random_.below(4000);
    uint64_t told = 0;
    for (uint64_t n = 0; n < enough && child.receive(&told, sizeof told); ++n)
      acknowledged = told + 1;
    child.kill();
    while (child.receive(&told, sizeof told)) acknowledged = told + 1;
    child.wait();
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    const FileModel there = contents_of(files);
    const std::string log = there.contains("/log") ? *there.at("/log") : "";
    ASSERT_EQ(log.size() % 8, 0U);
    total = log.size() / 8;
    ASSERT_GE(total, acknowledged);
    ASSERT_LE(total, acknowledged + 1);
    for (uint64_t i = 0; i < total; ++i) {
      ASSERT_EQ(std::string_view(log).substr(i * 8, 8), std::to_string(10'000'000 + i));
    }
    if (acknowledged > 64) {
      const uint64_t current = std::strtoull(there.at("/current")->c_str(), nullptr, 10);
      EXPECT_GE(current + 64, acknowledged);
    }
    if (files.find("/next")) files.remove("/next");
    expect_sound(pool, files);
  }
}

// A flipped bit in a word that should be 0 leads nowhere: whoever removed the directory, or let the
// file grow, would follow it.
TEST_F(FilesPower, WordsThatShouldBeZeroAreJudged) {
  const std::string names[] = {"a-directory-of-its-own", "a-file-of-its-own"};
  {
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    files.make_directory(names[0]);
    files.create_file(names[1]);
  }
  const std::string image = read_file(path());
  for (const std::string& name : names) {
    const size_t inode =
        image.find(name) - offsetof(files::NameRecord, name) - offsetof(files::Inode, name);
    const size_t pages = offsetof(files::Inode, pages);
    const size_t extents = offsetof(files::Inode, extents);
    for (const size_t word : {pages, pages + 5 * sizeof(uint64_t), extents + sizeof(uint64_t),
                              extents + 7 * sizeof(files::ExtentSlot) + sizeof(uint64_t)}) {
      std::string damaged = image;
      damaged[inode + word + 2] ^= 0x10;
      write_file(path(), damaged);
      Pool pool = Pool::open(path(), small_pool());
      try {
        Files::open(pool, "files");
        ADD_FAILURE() << name << ": the word at " << word << " was not judged";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      }
    }
  }
}

// A pool that somebody has made up: a name that leads elsewhere, with a checksum that fits.
TEST_F(FilesPower, NamesThatLeadElsewhereAreRefused) {
  const std::string name = "a-file-of-its-own";
  {
    Pool pool = Pool::open(path(), small_pool());
    Files::open(pool, "files").create_file(name);
  }
  const std::string image = read_file(path());
  const size_t at = image.find(name) - offsetof(files::NameRecord, name);
  const std::string magic(reinterpret_cast<const char*>(&files::kRootMagic), sizeof(uint64_t));
  files::Root root;
  std::memcpy(&root, image.data() + image.find(magic) - offsetof(index::RootSeal, magic),
              sizeof root);
  for (const std::string& other :
       {name, std::string(".."), std::string("."), std::string("../x"), std::string("a\0b", 3)}) {
    files::NameRecord record;
    std::memcpy(static_cast<void*>(&record), image.data() + at, sizeof record);
    std::memset(record.name, 0, sizeof record.name);
    std::memcpy(record.name, other.data(), other.size());
    record.name_bytes = static_cast<uint16_t>(other.size());
    record.checksum = pm::checksum64(&record, offsetof(files::NameRecord, checksum), root.salt);
    std::string changed = image;
    changed.replace(at, sizeof record, reinterpret_cast<const char*>(&record), sizeof record);
    write_file(path(), changed);
    Pool pool = Pool::open(path(), small_pool());
    if (other == name) {
      EXPECT_TRUE(Files::open(pool, "files").find(name).has_value());
    } else {
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "name", [&] { Files::open(pool, "files"); }))
          << other;
    }
  }
}

// Any changed byte of metadata is an error of the opening, or harmless; never a fault or another's
// bytes.
TEST_F(FilesPower, DamageIsFoundOrHarmless) {
  std::string image;
  {
    Pool pool = Pool::open(path(), small_pool());
    Files files = Files::open(pool, "files");
    for (int i = 0; i < 40; ++i) step(files);
    steps_.let_go();
    pool.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
  }
  image = read_file(path());
  std::vector<size_t> lines;  // that are in use
  for (size_t at = 136 << 10; at + 64 <= image.size(); at += 64) {
    if (image.find_first_not_of('\0', at) < at + 64) lines.push_back(at);
  }
  uint64_t refused = 0;
  for (uint64_t round = 0; round < scaled(400) && !HasFailure(); ++round) {
    std::string damaged = image;
    const size_t line = lines[random_.below(lines.size())];
    switch (random_.below(3)) {
      case 0:
        damaged[line + random_.below(64)] ^= static_cast<char>(1 << random_.below(8));
        break;
      case 1:
        std::fill_n(damaged.begin() + static_cast<ptrdiff_t>(line), 64, '\0');
        break;
      default:
        std::copy_n(image.begin() + static_cast<ptrdiff_t>(lines[random_.below(lines.size())]), 64,
                    damaged.begin() + static_cast<ptrdiff_t>(line));
    }
    write_file(path(), damaged);
    try {
      Pool pool = Pool::open(path(), small_pool());
      Files files = Files::open(pool, "files");
      contents_of(files);
      files.check([](const std::string&) {});
      for (int i = 0; i < 5; ++i) {
        FileWriter writer = files.create_file("/new" + std::to_string(i));
        writer.append("new");
        writer.close();
      }
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kTruncated ||
                  error.code() == ErrorCode::kPoolFull || error.code() == ErrorCode::kNotAFile ||
                  error.code() == ErrorCode::kInUse)
          << error.what();
    }
  }
  // Of few rounds all may hit the content of files.
  if (scaled(400) == 400) {
    EXPECT_GT(refused, 0U);
  }
}

}  // namespace
}  // namespace perdure::test
