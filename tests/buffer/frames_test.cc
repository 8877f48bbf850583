// Frames of the buffer pool: pages that move between them, memory that runs out, and reading that
// fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "buffer/engine.h"
#include "buffer/fixture.h"
#include "buffer/layout.h"
#include "buffer/page_store.h"
#include "buffer/ring.h"
#include "index/structure.h"
#include "pm/layout.h"
#include "pm/pause.h"
#include "support/data.h"
#include "support/files.h"
#include "support/no_threads.h"
#include "support/random.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

// What is done at a place with a name.
std::function<void()> at_moved;
std::function<void()> at_staging;
void visit(const char* name) {
  if (std::string(name) == "buffer: moved" && at_moved) at_moved();
  if (std::string(name) == "buffer: to be staged" && at_staging) at_staging();
}

class FramesTest : public testing::Test {
 protected:
  ~FramesTest() override {
    pm::at_place.store(nullptr);
    at_moved = nullptr;
    at_staging = nullptr;
    buffer::tell_of_pm_frames(nullptr);
    buffer::inject_page_faults(nullptr);
  }
  static std::string key_of(uint64_t n) { return "key" + std::to_string(n * 7919 % 100'003); }
  static void fill(Database& database, const Tree& tree, Records& model, uint64_t keys) {
    for (uint64_t n = 0; n < keys; n += 5) {
      database.transact([&](Transaction& one) {
        for (uint64_t i = n; i < n + 5; ++i) {
          // Every seventh value has pages of its own.
          model[key_of(i)] = std::string(i % 7 == 0 ? 5000 : 100, static_cast<char>('a' + i % 26));
          one.put(tree, key_of(i), model[key_of(i)]);
        }
      });
    }
  }
  Pool pool_ = Pool::anonymous(small_pool(uint64_t{16} << 20));
};

// Who finds it may lock its latch, which nobody else may write any more.
TEST_F(FramesTest, APageThatHasMovedIsOpenWhenItIsFound) {
  const auto engine = buffer::Engine::create(pm::impl_of(pool_), "d", small_database());
  std::vector<std::string> names;
  for (int i = 0; i < 60; ++i) engine->make_tree("tree" + std::to_string(i));
  buffer::BufferPool& pages = engine->buffer();
  uint64_t page = 0;
  uint64_t moved = 0;
  uint64_t closed = 0;
  at_moved = [&] {
    ++moved;
    buffer::BufferPool::Unlatched seen{};
    if (!pages.try_look_at(page, seen)) ++closed;
  };
  pm::at_place.store(visit);
  for (int round = 0; round < 40; ++round) {
    for (page = 1; page < 50; ++page) {
      for (int i = 0; i < 9; ++i) pages.unpin(pages.pin(page));
    }
  }
  EXPECT_GT(moved, 10U);
  EXPECT_EQ(closed, 0U) << "of " << moved;
}

// Tells pages that are in a batch twice.
class Batches : public buffer::PageFaults {
 public:
  Batches() { buffer::inject_page_faults(this); }
  void read(uint64_t, char*, uint32_t) override {}
  uint32_t write(uint64_t id, uint32_t bytes) override {
    ++written;
    if (!batch_.insert(id).second) ++twice;
    return bytes;
  }
  void sync() override { batch_.clear(); }
  uint64_t written = 0;
  uint64_t twice = 0;

 private:
  std::set<uint64_t> batch_;
};

// Even if it moves to a frame whose page was to be written later, and is changed again: the writes
// of a batch have no order.
TEST_F(FramesTest, APageIsInABatchOnce) {
  const TempDir folder;
  Batches file;
  Random random(base_seed());
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  const auto engine = buffer::Engine::create(pm::impl_of(pool_), "d", options);
  std::vector<uint64_t> roots;
  for (int i = 0; i < 50; ++i) roots.push_back(engine->make_tree("tree" + std::to_string(i)));
  buffer::BufferPool& pages = engine->buffer();
  const auto root = [&] { return roots[random.below(roots.size())]; };
  at_staging = [&] {
    const uint64_t page = root();
    for (int i = 0; i < 9; ++i) pages.unpin(pages.pin(page));
    buffer::Writes writes;
    for (int i = 0; i < 3; ++i) writes[root()]["key"] = std::to_string(random.next());
    buffer::Engine::Commit request;
    request.writes = &writes;
    engine->commit(request);
  };
  pm::at_place.store(visit);
  for (int round = 0; round < 300; ++round) engine->checkpoint();
  pm::at_place.store(nullptr);  // closing writes, too
  EXPECT_GT(file.written, 5000U);
  EXPECT_EQ(file.twice, 0U) << "of " << file.written;
}

class SideBySide : public buffer::PageFaults {
 public:
  SideBySide() { buffer::inject_page_faults(this); }
  void read(uint64_t, char*, uint32_t) override { ++alone; }
  void read_all(std::span<const buffer::PageStore::PageRead> pages, uint32_t) override {
    most = std::max<uint64_t>(most, pages.size());
    together += pages.size();
  }
  uint32_t write(uint64_t, uint32_t bytes) override { return bytes; }
  void sync() override {}
  std::atomic<uint64_t> alone{0};
  std::atomic<uint64_t> together{0};
  std::atomic<uint64_t> most{0};
};

// After a crash, of which the copies of the files are what is there.
TEST_F(FramesTest, WhatTheLogNamesIsReadSideBySide) {
  if (!buffer::Ring::make(buffer::kStagedMax)) GTEST_SKIP() << "no io_uring here";
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.dram_bytes = uint64_t{400} * 4096;
  options.pm_frames = false;
  options.page_file = folder.file("pages");
  Records model;
  {
    Pool pool = Pool::create(folder.file("pool"), small_pool(uint64_t{16} << 20));
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    fill(database, tree, model, 600);
    database.checkpoint();
    for (uint64_t i = 0; i < 600; i += 3) {
      database.transact([&](Transaction& one) {
        std::string& value = model[key_of(i)];
        value.back() = 'X';
        one.put(tree, key_of(i), value);
      });
    }
    std::filesystem::copy(folder.file("pool"), folder.file("crashed"));
    std::filesystem::copy(folder.file("pages"), folder.file("crashed.pages"));
  }
  SideBySide file;
  options.page_file = folder.file("crashed.pages");
  Pool pool = Pool::open(folder.file("crashed"), small_pool());
  Database database = Database::open(pool, "d", options);
  const double pending = statistic(database, "recovery_pending");
  EXPECT_GT(pending, 40);
  uint64_t told = 0;
  database.recover([&](const RecoveryProgress&) { ++told; });
  EXPECT_GE(told, 2U) << "after each batch";
  EXPECT_EQ(statistic(database, "recovery_pending"), 0);
  EXPECT_GT(file.together.load(), 40U);
  EXPECT_GE(file.most.load(), 16U);
  EXPECT_LT(file.alone.load(), 10U);
  ASSERT_EQ(difference(contents_of(database, *database.find_tree("t")), model), "");
  expect_sound(database);
}

// Who reads while it is to wait waits until `go_on`, and a while longer.
class HeldReads : public buffer::PageFaults {
 public:
  HeldReads() { buffer::inject_page_faults(this); }
  void read(uint64_t, char*, uint32_t) override {
    if (!hold || std::this_thread::get_id() != who.load()) return;
    held = true;
    while (!go_on) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    hold = false;
  }
  uint32_t write(uint64_t, uint32_t bytes) override { return bytes; }
  void sync() override {}
  std::atomic<std::thread::id> who;
  std::atomic<bool> hold{true};
  std::atomic<bool> held{false};
  std::atomic<bool> go_on{false};
};

// A commit that needs room in the log waits for who reads the last pages that keep it.
TEST_F(FramesTest, AFullLogWaitsForPagesThatAreBeingMended) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.dram_bytes = uint64_t{400} * 4096;
  options.pm_frames = false;
  options.page_file = folder.file("pages");
  Records model;
  {
    Pool pool = Pool::create(folder.file("pool"), small_pool(uint64_t{16} << 20));
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    database.tree("u");
    for (uint64_t i = 0; i < 400; ++i) model[key_of(i)] = std::string(100, 'a');
    const auto put = [&](Transaction& one, uint64_t i) {
      one.put(tree, key_of(i), model[key_of(i)]);
    };
    database.transact([&](Transaction& one) {
      for (uint64_t i = 0; i < 400; ++i) put(one, i);
    });
    database.checkpoint();
    for (uint64_t i = 0; i < 400; i += 9) {
      model[key_of(i)].back() = 'X';
      database.transact([&](Transaction& one) { put(one, i); });
    }
    std::filesystem::copy(folder.file("pool"), folder.file("crashed"));
    std::filesystem::copy(folder.file("pages"), folder.file("crashed.pages"));
  }
  HeldReads file;
  options.page_file = folder.file("crashed.pages");
  Pool pool = Pool::open(folder.file("crashed"), small_pool());
  Database database = Database::open(pool, "d", options);
  const double pending = statistic(database, "recovery_pending");
  ASSERT_GT(pending, 1);
  ASSERT_LE(pending, buffer::kStagedMax) << "one batch";
  std::thread mending([&] {
    file.who = std::this_thread::get_id();
    database.recover();
  });
  while (!file.held) std::this_thread::yield();
  const Tree other = *database.find_tree("u");
  const double limit = statistic(database, "log_bytes") * 3 / 4;
  const std::string value(1000, 'v');
  const auto commit = [&] {
    database.transact([&](Transaction& one) { one.put(other, "key", value); });
  };
  EXPECT_NO_THROW({
    while (statistic(database, "log_used_bytes") <= limit) commit();
    file.go_on = true;
    commit();
  });
  file.go_on = true;
  mending.join();
  EXPECT_LT(statistic(database, "log_used_bytes"), limit);
  ASSERT_EQ(difference(contents_of(database, *database.find_tree("t")), model), "");
  expect_sound(database);
}

// Fails in the midst of batches, too.
class SomeReadsFail : public buffer::PageFaults {
 public:
  SomeReadsFail() { buffer::inject_page_faults(this); }
  void read(uint64_t, char*, uint32_t) override {
    if (fail && ++reads_ % 29 == 0) throw Error(ErrorCode::kIo, "told to fail");
  }
  uint32_t write(uint64_t, uint32_t bytes) override { return bytes; }
  void sync() override {}
  std::atomic<bool> fail{true};

 private:
  std::atomic<uint64_t> reads_{0};
};

// Threads mend side by side, others commit and read pages that those are at, and the process is
// killed before all is mended, several times.
TEST_F(FramesTest, ManyMendAndWorkAtTheSameTime) {
  const TempDir folder;
  const auto pool_of = [&](int round) { return folder.file("pool" + std::to_string(round)); };
  const auto pages_of = [&](int round) { return folder.file("pages" + std::to_string(round)); };
  constexpr uint64_t kKeys = 600;
  constexpr uint64_t kWriters = 2;
  constexpr int kRounds = 4;
  DatabaseOptions options = small_database();
  options.page_file = pages_of(0);
  std::array<Records, kWriters> models;  // the n-th writer's keys are those of each second one
  const auto killed = [&](int round) {
    std::filesystem::copy(pool_of(round), pool_of(round + 1));
    std::filesystem::copy(pages_of(round), pages_of(round + 1));
  };
  {
    Pool pool = Pool::create(pool_of(0), small_pool(uint64_t{16} << 20));
    Database database = Database::create(pool, "d", options);
    const Tree tree = database.tree("t");
    Records all;
    fill(database, tree, all, kKeys);
    for (uint64_t i = 0; i < kKeys; ++i) models[i % kWriters][key_of(i)] = all[key_of(i)];
    killed(0);
  }
  const auto again = [](const std::function<void()>& work) {
    for (;;) {
      try {
        return work();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) throw;
      }
    }
  };
  SomeReadsFail file;
  for (int round = 1; round <= kRounds; ++round) {
    options.page_file = pages_of(round);
    Pool pool = Pool::open(pool_of(round), small_pool());
    std::optional<Database> opened;
    again([&] { opened.emplace(Database::open(pool, "d", options)); });
    Database& database = *opened;
    EXPECT_GT(database.recovery().pending, 20U) << round;
    std::optional<Tree> found;
    again([&] { found = database.find_tree("t"); });
    const Tree tree = *found;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        struct Enough {};
        try {
          again([&] {
            database.recover([&](const RecoveryProgress&) {
              if (round < kRounds) throw Enough();
            });
          });
        } catch (const Enough&) {
        }
      });
    }
    for (uint64_t writer = 0; writer < kWriters; ++writer) {
      threads.emplace_back([&, writer] {
        Random random(base_seed() + writer);
        for (int i = 0; i < 60; ++i) {
          const std::string key = key_of(random.below(kKeys / kWriters) * kWriters + writer);
          const std::string value(random.chance(20) ? 5000 : 100, static_cast<char>('A' + i % 26));
          again([&] { database.transact([&](Transaction& one) { one.put(tree, key, value); }); });
          models[writer][key] = value;
          const std::string other = key_of(random.below(kKeys));
          again([&] { EXPECT_TRUE(database.begin().get(tree, other)) << other; });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    killed(round);
    Records all = models[0];
    all.insert(models[1].begin(), models[1].end());
    file.fail = false;
    ASSERT_EQ(difference(contents_of(database, tree), all), "") << round;
    expect_sound(database);
    opened.reset();
    file.fail = true;
  }
}

TEST_F(FramesTest, ManyFramesAreFoundBesideTheLogAndWithoutAThread) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.pm_bytes = buffer::BufferPool::kManyFrames * 4096;
  Records model;
  {
    Pool pool = Pool::create(folder.file("pool"), small_pool(uint64_t{512} << 20));
    Database database = Database::create(pool, "d", options);
    fill(database, database.tree("t"), model, 600);
  }
  for (const bool threads : {true, false, true}) {
    std::optional<NoThreads> none;
    if (!threads) none.emplace();
    Pool pool = Pool::open(folder.file("pool"), small_pool());
    Database database = Database::open(pool, "d", options);
    EXPECT_GT(statistic(database, "pm_pages"), 20);
    database.recover();
    ASSERT_EQ(difference(contents_of(database, *database.find_tree("t")), model), "");
    expect_sound(database);
  }
}

TEST_F(FramesTest, ADatabaseWorksWithoutAThreadInTheBackground) {
  DatabaseOptions options = small_database();
  options.background = true;
  Records model;
  {
    Database database = Database::create(pool_, "d", options);
    fill(database, database.tree("t"), model, 300);
  }
  for (const bool threads : {false, true, false}) {
    std::optional<NoThreads> none;
    if (!threads) none.emplace();
    Database database = Database::open(pool_, "d", options);
    const Tree tree = *database.find_tree("t");
    fill(database, tree, model, 300);
    ASSERT_EQ(difference(contents_of(database, tree), model), "");
    // Nobody reads what was noted of DRAM: its frames are for others.
    if (!threads) {
      EXPECT_EQ(statistic(database, "dram_pages"), statistic(database, "dram_frames"));
    }
    expect_sound(database);
  }
  const NoThreads none;
  Pool another = Pool::anonymous(small_pool());
  Database::create(another, "d", options).tree("t");
}

// The words behind the allocation table.
std::span<uint64_t> hints_of(Pool& pool) {
  pm::PoolImpl& impl = pm::impl_of(pool);
  const uint64_t at =
      index::find_structure(impl, "d", Database::kTypeName, Kind::kBytes, Kind::kBytes,
                            buffer::kRootMagic, sizeof(buffer::Root), buffer::kSealedBytes);
  const buffer::Root& root = *impl.at<buffer::Root>(at);
  uint64_t frames = 0;
  EXPECT_TRUE(pm::unseal_word(root.frame_count, buffer::kCountSalt, frames));
  return {impl.at<uint64_t>(root.table) + frames, frames};
}

TEST_F(FramesTest, PagesThatWereInDramAreReadAgainAtTheNextOpening) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  Records model;
  {
    Pool pool = Pool::create(folder.file("pool"), small_pool(uint64_t{16} << 20));
    Database database = Database::create(pool, "d", options);
    fill(database, database.tree("t"), model, 400);
  }
  const auto reopen = [&](const std::function<void(buffer::BufferPool&)>& work) {
    Pool pool = Pool::open(folder.file("pool"), small_pool());
    const auto engine = buffer::Engine::open(pm::impl_of(pool), "d", options);
    work(engine->buffer());
  };
  std::set<uint64_t> noted;
  reopen([&](buffer::BufferPool& pages) {
    EXPECT_EQ(pages.prefetch_some(1 << 20), 0U);  // nobody has noted any
    for (uint64_t page = 0; page < 60; ++page) pages.unpin(pages.pin(page));
    pages.note_dram_pages();
    ASSERT_EQ(pages.use().dram, 24U);
  });
  {
    Pool pool = Pool::open(folder.file("pool"), small_pool());
    for (const uint64_t word : hints_of(pool)) {
      uint64_t id = 0;
      if (word == 0) break;
      ASSERT_TRUE(pm::unseal_word(word, buffer::kHintSalt, id));
      noted.insert(id - 1);
    }
    ASSERT_EQ(noted.size(), 24U);
  }
  reopen([&](buffer::BufferPool& pages) {
    while (pages.prefetch_some(1 << 20) > 0) continue;
    EXPECT_GT(pages.counters().prefetched, 10U);
    const uint64_t misses = pages.counters().misses;
    for (const uint64_t page : noted) pages.unpin(pages.pin(page));
    EXPECT_EQ(pages.counters().misses, misses);
  });
  // Whatever the words say: nothing but pages that are right.
  {
    Pool pool = Pool::open(folder.file("pool"), small_pool());
    const std::span<uint64_t> hints = hints_of(pool);
    Random random(base_seed());
    for (uint64_t& word : hints) {
      const uint64_t id = random.chance(30) ? random.below(1 << 20) : random.below(120);
      word = random.chance(30) ? random.next() | 1 : pm::seal_word(id + 1, buffer::kHintSalt);
    }
  }
  reopen([&](buffer::BufferPool& pages) {
    while (pages.prefetch_some(1 << 20) > 0) continue;
    EXPECT_GT(pages.counters().prefetched, 0U);
    for (uint64_t page = 0; page < 60; ++page) {
      const buffer::PageGuard guard(pages, pages.pin(page));
      ASSERT_EQ(buffer::header_of(guard.data()).id, page);
    }
  });
  options.background = true;
  Pool pool = Pool::open(folder.file("pool"), small_pool());
  Database database = Database::open(pool, "d", options);
  ASSERT_EQ(difference(contents_of(database, *database.find_tree("t")), model), "");
  expect_sound(database);
}

// Tells which pages are read, slowly.
class SlowReads : public buffer::PageFaults {
 public:
  SlowReads() { buffer::inject_page_faults(this); }
  void read(uint64_t id, char*, uint32_t) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    uint64_t last = last_page;
    while (last < id && !last_page.compare_exchange_weak(last, id)) continue;
    ++reads;
  }
  uint32_t write(uint64_t, uint32_t bytes) override { return bytes; }
  void sync() override {}
  std::atomic<uint64_t> last_page{0};
  std::atomic<uint64_t> reads{0};
};

// An unfinished commit may have left the names of pages that never were: those are not looked for.
// And closing does not wait until all are read.
TEST_F(FramesTest, NoMoreIsReadAheadThanThereIsAndNotWhenItCloses) {
  const TempDir folder;
  DatabaseOptions options = small_database();
  options.dram_bytes = uint64_t{2000} * 4096;
  options.pm_bytes = uint64_t{2000} * 4096;
  options.page_file = folder.file("pages");
  Records model;
  uint64_t page_count = 0;
  const auto note = [&](Pool& pool, uint64_t begin, uint64_t end) {
    const std::span<uint64_t> hints = hints_of(pool);
    std::ranges::fill(hints, uint64_t{0});
    for (uint64_t id = begin; id < end; ++id) {
      hints[id - begin] = pm::seal_word(id + 1, buffer::kHintSalt);
    }
  };
  {
    Pool pool = Pool::create(folder.file("pool"), small_pool(uint64_t{32} << 20));
    Database database = Database::create(pool, "d", options);
    fill(database, database.tree("t"), model, 4000);
    page_count = static_cast<uint64_t>(statistic(database, "pages"));
    ASSERT_GT(page_count, 1000U);
  }
  options.pm_bytes = uint64_t{1600} * 4096;
  {
    Pool pool = Pool::open(folder.file("pool"), small_pool());
    {
      const Database resized = Database::open(pool, "d", options);
    }  // none of them is in PM now
    note(pool, page_count - 40, page_count + 200);
    SlowReads file;
    options.background = true;
    const Database database = Database::open(pool, "d", options);
    while (statistic(database, "prefetched") < 40) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(file.last_page, page_count - 1);
  }
  buffer::inject_page_faults(nullptr);
  Pool pool = Pool::open(folder.file("pool"), small_pool());
  note(pool, 2, 1000);
  SlowReads file;
  uint64_t before = 0;
  {
    const Database database = Database::open(pool, "d", options);
    while (file.reads < 20) std::this_thread::yield();
    before = file.reads;
  }
  EXPECT_LT(file.reads, before + 200);
}

// A page in PM that is damaged is not made to look right when a change of it is undone.
TEST_F(FramesTest, ADamagedPageIsStillFoundAfterARollback) {
  DatabaseOptions options = small_database();
  options.dram_bytes = 0;
  const auto engine = buffer::Engine::create(pm::impl_of(pool_), "d", options);
  const uint64_t page = engine->make_tree("t");
  buffer::Engine::Commit request;
  request.work = [&](buffer::Change& change) {
    buffer::TreeWriter(change, page).put("key", "value");
  };
  engine->commit(request);
  buffer::BufferPool& pages = engine->buffer();
  buffer::Frame& frame = pages.pin(page);
  ASSERT_TRUE(pages.format().is_sound(frame.data, page));
  const std::string before(frame.data, 4096);
  frame.data[2000] ^= 4;
  for (const std::string& value : {std::string("other"), std::string(3000, 'v')}) {
    buffer::Engine::Commit failing;
    failing.work = [&](buffer::Change& change) {
      buffer::TreeWriter(change, page).put("key", value);
      throw Error(ErrorCode::kConflict, "told to fail");
    };
    EXPECT_THROW(engine->commit(failing), Error);
    EXPECT_FALSE(pages.format().is_sound(frame.data, page));
  }
  frame.data[2000] ^= 4;
  EXPECT_TRUE(std::string(frame.data, 4096) == before);
  pages.unpin(frame);
}

// What a commit keeps for the next one is the database's, not the thread's.
TEST_F(FramesTest, AThreadMayCommitWhileItEnds) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  struct AtEnd {
    std::function<void()> work;
    ~AtEnd() {
      if (work) work();
    }
  };
  uint64_t done = 0;
  const auto commit = [&] {
    for (int i = 0; i < 20; ++i) {
      ++done;
      database.transact([&](Transaction& one) { one.put(tree, "key", std::to_string(done)); });
    }
  };
  std::thread([&] {
    thread_local AtEnd at_end;
    at_end.work = commit;
    commit();
  }).join();
  EXPECT_EQ(done, 40U);
  EXPECT_EQ(database.begin().get(tree, "key"), "40");
}

// A measurement on emulated PM counts what is read without a latch, too.
TEST_F(FramesTest, ReadingInPmIsToldWithoutLatchesToo) {
  DatabaseOptions options = small_database();
  options.dram_bytes = 0;
  Database database = Database::create(pool_, "d", options);
  const Tree tree = database.tree("t");
  database.transact([&](Transaction& one) { one.put(tree, "a", "1"); });
  static uint64_t told;
  told = 0;
  buffer::tell_of_pm_frames([] { ++told; });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(database.begin().get(tree, "a"), "1");
  EXPECT_GE(told, 100U);
}

// Every n-th reading of a page fails, as long as there are to be faults.
class FailingReads : public buffer::PageFaults {
 public:
  FailingReads() { buffer::inject_page_faults(this); }
  void read(uint64_t, char*, uint32_t) override {
    if (every == 0 || ++reads_ % every != 0) return;
    ++faults;
    throw Error(ErrorCode::kIo, "told to fail");
  }
  uint32_t write(uint64_t, uint32_t bytes) override { return bytes; }
  void sync() override {}
  uint64_t every = 0;
  uint64_t faults = 0;

 private:
  uint64_t reads_ = 0;
};

TEST_F(FramesTest, ACursorGoesOnWhereReadingHasFailed) {
  const TempDir folder;
  FailingReads file;
  DatabaseOptions options = small_database();
  options.page_file = folder.file("pages");
  options.pm_frames = false;
  Database database = Database::create(pool_, "d", options);
  const Tree tree = database.tree("t");
  Records model;
  fill(database, tree, model, 1000);
  database.checkpoint();
  file.every = 3;
  // Until it does not fail.
  const auto again = [](const std::function<bool()>& call) {
    for (;;) {
      try {
        return call();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) throw;
      }
    }
  };
  const Snapshot snapshot = database.snapshot();
  Transaction transaction = database.begin();
  for (const bool forward : {true, false}) {
    for (const bool old : {true, false}) {
      Cursor cursor = old ? snapshot.cursor(tree) : transaction.cursor(tree);
      Records records;
      bool more = again([&] { return forward ? cursor.seek_first() : cursor.seek_last(); });
      while (more) {
        records.emplace(cursor.key(), cursor.value());
        more = again([&] { return forward ? cursor.next() : cursor.previous(); });
      }
      EXPECT_EQ(difference(records, model), "");
    }
  }
  EXPECT_GT(file.faults, 100U);
}

// It leaves the record as it was in the transaction: not erased.
TEST_F(FramesTest, AWriteThatFindsNoMemoryHasDoneNothing) {
  Database database = Database::create(pool_, "d", small_database());
  const Tree tree = database.tree("t");
  const std::string committed_key(50, 'k');
  const std::string committed(100, 'c');
  const std::string before(100, 'b');
  const std::string after(200, 'a');
  for (const bool saves : {false, true}) {
    bool refused = true;
    for (uint64_t n = 0; refused; ++n) {
      SCOPED_TRACE(std::to_string(saves) + ", " + std::to_string(n));
      database.transact([&](Transaction& one) {
        one.put(tree, committed_key, committed);
        one.erase(tree, "new");
      });
      Transaction one = database.begin();
      one.put(tree, "new", before);
      const auto savepoint = saves ? one.savepoint() : Transaction::Savepoint{};
      Records wanted = {{committed_key, committed}, {"new", before}};
      const Records saved = wanted;
      uint64_t done = 0;
      ShortMemory memory(n);
      try {
        one.put(tree, committed_key, after);
        ++done;
        one.put(tree, "new", after);
        ++done;
      } catch (const std::bad_alloc&) {
      }
      memory.end();
      if (done > 0) wanted[committed_key] = after;
      if (done > 1) wanted["new"] = after;
      refused = memory.refused() > 0;
      ASSERT_EQ(one.get(tree, committed_key), wanted[committed_key]);
      ASSERT_EQ(one.get(tree, "new"), wanted["new"]);
      if (saves && n % 2 == 0) {
        one.rollback_to(savepoint);
        wanted = saved;
      }
      one.commit();
      ASSERT_EQ(difference(contents_of(database, tree), wanted), "");
    }
  }
}

// At every allocation of reading, committing and writing pages: what was committed is there, here
// and after another opening.
TEST_F(FramesTest, MemoryThatRunsOutLosesNoPage) {
  DatabaseOptions options = small_database();
  std::optional<Database> database = Database::create(pool_, "d", options);
  std::optional<Tree> tree = database->tree("t");
  Records model;
  fill(*database, *tree, model, 600);
  const auto open_again = [&] {
    database.reset();
    database = Database::open(pool_, "d", options);
    tree = database->find_tree("t");
  };
  const std::vector<std::function<void(uint64_t)>> works = {
      [&](uint64_t n) {  // those pages move to DRAM, and changed ones make room for them
        for (uint64_t i = 0; i < 40; ++i)
          (void)database->begin().get(*tree, key_of(n % 50 + i / 8));
      },
      [&](uint64_t) { database->checkpoint(); },
      [&](uint64_t n) {  // changes nothing
        Transaction one = database->begin();
        for (uint64_t i = n % 20; i < 600; i += 20) one.put(*tree, key_of(i), model[key_of(i)]);
        one.commit();
      },
  };
  for (const auto& work : works) {
    bool refused = true;
    for (uint64_t n = 0; refused && n < 3000; n += 1 + n / 30) {
      database->transact([&](Transaction& one) {
        for (uint64_t i = 0; i < 30; ++i) {
          const std::string key = key_of((n * 31 + i * 17) % 600);
          model[key] = std::string(100, static_cast<char>('a' + (n + i) % 26));
          one.put(*tree, key, model[key]);
        }
      });
      ShortMemory memory(n);
      try {
        work(n);
      } catch (const std::bad_alloc&) {
      }
      memory.end();
      refused = memory.refused() > 0;
      // It goes on: what was begun is undone without memory.
      ASSERT_EQ(difference(contents_of(*database, *tree), model), "") << n;
      database->transact([&](Transaction& one) { one.put(*tree, key_of(0), model[key_of(0)]); });
      if (n % 10 == 9) open_again();
      ASSERT_EQ(difference(contents_of(*database, *tree), model), "") << n;
    }
    EXPECT_FALSE(refused);
    open_again();
    ASSERT_EQ(difference(contents_of(*database, *tree), model), "");
    expect_sound(*database);
  }
}

}  // namespace
}  // namespace perdure::test
