// Damage to a log in PM that no crash has made: it is said, and nothing is answered as if what the
// log has lost had never been.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "buffer/engine.h"
#include "buffer/fixture.h"
#include "buffer/layout.h"
#include "buffer/log.h"
#include "index/structure.h"
#include "pm/checksum.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"

namespace perdure::test {
namespace {

class LogDamage : public testing::Test {
 protected:
  static constexpr int kCommits = 9;

  static DatabaseOptions options() {
    DatabaseOptions options = small_database();
    options.pm_frames = false;
    return options;
  }
  std::string path() const { return folder_.file("pool"); }

  // What a killed process leaves: commits that set x to 1 and so on, each with some bytes besides.
  void make_killed(bool writes_pages, uint64_t bytes) {
    Pool pool = Pool::create(path(), small_pool());
    const auto engine = buffer::Engine::create(pm::impl_of(pool), "d", options());
    const uint64_t tree = engine->make_tree("t");
    engine->checkpoint();
    for (int i = 1; i <= kCommits; ++i) {
      entries_.push_back(0);
      buffer::Engine::Commit request;
      request.work = [&](buffer::Change& change) {
        entries_.back() = change.lsn();
        buffer::TreeWriter writer(change, tree);
        writer.put("x", std::to_string(i));
        writer.put("y", std::string(bytes, static_cast<char>('a' + i)));
      };
      engine->commit(request);
    }
    if (writes_pages) {
      while (engine->buffer().clean(1024) > 0) continue;
    }
    root_ = index::find_structure(pm::impl_of(pool), "d", Database::kTypeName, Kind::kBytes,
                                  Kind::kBytes, sizeof(buffer::Root));
    ring_ = pm::impl_of(pool).at<buffer::Root>(root_)->log;
    left_ = read_file(image_of_ ? image_of_() : path());
  }
  // Where entry i is in the pool's file, from 0 on.
  uint64_t place_of(int i) const {
    return ring_ + entries_[static_cast<size_t>(i)] % options().log_bytes;
  }
  static std::string value_of_x(Pool& pool) {
    Database database = Database::open(pool, "d", options());
    return database.begin().get(*database.find_tree("t"), "x").value_or("none");
  }
  // What a salvage says that is lost.
  std::string salvage() const {
    PoolOptions reading;
    reading.read_only = true;
    reading.lenient = true;
    Pool pool = Pool::open(path(), reading);
    const auto engine = buffer::Engine::open_damaged(pm::impl_of(pool), "d", "");
    std::string lost;
    engine->salvage([](std::string_view) {}, [](std::string_view, std::string_view) {},
                    [&](buffer::Loss, const std::string& sentence) { lost += sentence + "; "; });
    return lost;
  }

  TempDir folder_;
  std::function<std::string()> image_of_;  // of what is left, if no process is killed
  std::string left_;
  std::vector<uint64_t> entries_;  // their LSNs
  uint64_t root_ = 0;
  uint64_t ring_ = 0;
};

TEST_F(LogDamage, InItsMiddleIsSaid) {
  for (const uint64_t bytes : {10U, 20'000U}) {
    SCOPED_TRACE(bytes);
    entries_.clear();
    std::filesystem::remove(path());
    make_killed(false, bytes);
    {
      write_file(path(), left_);
      Pool pool = Pool::open(path(), small_pool());
      EXPECT_EQ(value_of_x(pool), std::to_string(kCommits));
    }
    // In an entry's header, and in its records.
    for (const uint64_t at : {0U, 9U, 16U, 100U}) {
      for (const int entry : {0, 4, kCommits - 2}) {
        SCOPED_TRACE("byte " + std::to_string(at) + " of entry " + std::to_string(entry));
        std::string damaged = left_;
        damaged[place_of(entry) + at] ^= 0x11;
        write_file(path(), damaged);
        {
          Pool pool = Pool::open(path(), small_pool());
          EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "it ends before the last commit",
                                 [&] { value_of_x(pool); }));
        }
        EXPECT_NE(salvage().find("the log in the pool is damaged"), std::string::npos);
      }
    }
    write_file(path(), left_);
    EXPECT_EQ(salvage(), "");
  }
}

// No entry behind it tells of it, but PM keeps where the log ends: of a process that died exactly.
TEST_F(LogDamage, ToItsLastEntriesIsSaid) {
  for (const bool writes_pages : {false, true}) {
    SCOPED_TRACE(writes_pages);
    entries_.clear();
    std::filesystem::remove(path());
    make_killed(writes_pages, 10);
    for (const int from : {0, 4, kCommits - 1}) {
      SCOPED_TRACE(from);
      std::string damaged = left_;
      for (int entry = from; entry < kCommits; ++entry) damaged[place_of(entry)] ^= 0x11;
      write_file(path(), damaged);
      {
        Pool pool = Pool::open(path(), small_pool());
        EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "it ends before the last commit",
                               [&] { value_of_x(pool); }));
      }
      EXPECT_NE(salvage().find("the log in the pool is damaged"), std::string::npos);
    }
  }
}

// Pages get to the page store only when the word is durable: a power failure after that leaves it.
TEST_F(LogDamage, ToEntriesOfPagesThatWereWrittenIsSaidAfterAPowerFailure) {
  for (const bool writes_pages : {false, true}) {
    SCOPED_TRACE(writes_pages);
    entries_.clear();
    std::filesystem::remove(path());
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    image_of_ = [&] { return medium.make_image(FailingMedium::Image::kLeast, 0); };
    make_killed(writes_pages, 10);
    {
      write_file(path(), left_);
      Pool pool = Pool::open(path(), small_pool());
      EXPECT_EQ(value_of_x(pool), std::to_string(kCommits));
    }
    left_[place_of(kCommits - 1)] ^= 0x11;
    write_file(path(), left_);
    Pool pool = Pool::open(path(), small_pool());
    if (writes_pages) {
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "it ends before the last commit",
                             [&] { value_of_x(pool); }));
    } else {
      EXPECT_EQ(value_of_x(pool), std::to_string(kCommits - 1));  // as if it had been torn
    }
  }
}

TEST_F(LogDamage, ToTheWordThatKeepsItsEndIsSaid) {
  make_killed(false, 10);
  for (unsigned bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    std::string damaged = left_;
    damaged[ring_ + options().log_bytes + bit / 8] ^= static_cast<char>(1 << bit % 8);
    write_file(path(), damaged);
    {
      Pool pool = Pool::open(path(), small_pool());
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "where the log of the database ends is damaged",
                             [&] { value_of_x(pool); }));
    }
    if (bit % 16 != 0) continue;
    EXPECT_NE(salvage().find("nobody can say whether"), std::string::npos);
  }
}

// One that was made before the end was kept opens, and goes on without.
TEST_F(LogDamage, WithoutThatWordADatabaseOpens) {
  make_killed(false, 10);
  buffer::Root root;
  std::memcpy(&root, &left_[root_], sizeof root);
  ASSERT_NE(root.extras & buffer::kHasLogEnd, 0U);
  root.extras &= ~buffer::kHasLogEnd;
  root.seal.checksum = pm::checksum64(&root.seal + 1, buffer::kSealedBytes);
  std::memcpy(&left_[root_], &root, sizeof root);
  std::memset(&left_[ring_ + options().log_bytes], 'x', 64);  // another's
  // Whole entries behind the damage tell of it.
  for (const int entry : {0, 4, kCommits - 2}) {
    std::string damaged = left_;
    damaged[place_of(entry)] ^= 0x11;
    write_file(path(), damaged);
    {
      Pool pool = Pool::open(path(), small_pool());
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "damaged before its last entries",
                             [&] { value_of_x(pool); }));
    }
    EXPECT_NE(salvage().find("the log in the pool is damaged"), std::string::npos);
  }
  left_[place_of(kCommits - 1)] ^= 0x11;
  for (int times = 0; times < 2; ++times) {
    write_file(path(), left_);
    Pool pool = Pool::open(path(), small_pool());
    EXPECT_EQ(value_of_x(pool), std::to_string(kCommits - 1));
    left_ = read_file(path());
    EXPECT_EQ(left_.substr(ring_ + options().log_bytes, 64), std::string(64, 'x'));
  }
}

}  // namespace
}  // namespace perdure::test
