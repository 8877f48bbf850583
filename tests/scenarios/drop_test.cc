// A structure that is dropped leaves nothing behind, wherever a crash comes; and other names for
// structures.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "perdure/database.h"
#include "perdure/files.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/scale.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

constexpr char kNeighbour[] = "neighbour";

class Drop : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{64} << 20;

  std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name) const {
    const auto& [structure, key, value] = GetParam();
    return create_index(pool, name, structure, key, value, small_options(structure));
  }
  static void fill(AnyIndex& index, Model& model, uint64_t records) {
    const TypedIndex typed(index);
    for (uint64_t i = 0; i < records; ++i) {
      typed.upsert(i, i * 3);
      model[i] = i * 3;
    }
    for (uint64_t i = 0; i < records; i += 5) {
      typed.remove(i);
      model.erase(i);
    }
  }
};

// Exactly, since allocated bytes count blocks and not the segments that they lie in. The neighbour,
// of the same size classes, is closed and opened again before and after: what closing and opening
// make is the same then.
TEST_P(Drop, GivesBackEveryBlock) {
  constexpr uint64_t kRecords = 3000;
  Pool pool = Pool::create(pool_path(), pool_options(kCapacityBytes));
  Model model;
  {
    const auto neighbour = create(pool, kNeighbour);
    fill(*neighbour, model, kRecords / 2);
  }
  uint64_t size_bytes = 0;
  for (uint64_t round = 0; round < 5; ++round) {
    {
      // Blocks of the two lie in the same segments.
      const auto neighbour = open_index(pool, kNeighbour);
      const auto index = create(pool, kIndexName);
      for (uint64_t i = 0; i < kRecords; ++i) {
        TypedIndex(*index).upsert(i, i);
        if (i % 4 != 0) continue;
        TypedIndex(*neighbour).upsert(i % 1000, round + i);
        model[i % 1000] = round + i;
      }
    }
    const uint64_t filled = pool.info().allocated_bytes;
    const uint64_t freed = drop_structure(pool, kIndexName);
    ASSERT_EQ(pool.structures().size(), 1U);
    // More, where opening has given back what the close had left for it.
    ASSERT_GE(filled - pool.info().allocated_bytes, freed);
    ASSERT_GT(freed, 0U);
    {
      const auto neighbour = open_index(pool, kNeighbour);
      ASSERT_EQ(difference(TypedIndex(*neighbour), model, kRecords), "");
      ASSERT_EQ(faults_and_leaks(pool, {neighbour.get()}), "");
    }
    if (round == 1) size_bytes = pool.info().size_bytes;
    if (round > 1) {
      // What the neighbour's own records move about, at most.
      ASSERT_LE(pool.info().size_bytes, size_bytes + size_bytes / 10 + (uint64_t{512} << 10));
    }
  }
  drop_structure(pool, kNeighbour);
  EXPECT_EQ(pool.info().allocated_bytes, 0U);
  pool.close();
  pool = Pool::open(pool_path(), pool_options(kCapacityBytes));
  EXPECT_EQ(pool.info().allocated_bytes, 0U);
  EXPECT_EQ(faults_and_leaks(pool, {}), "");
}

TEST_P(Drop, OfAFullPoolMakesRoom) {
  const uint64_t capacity =
      std::max<uint64_t>(GetParam().entry().traits.capacity_bytes_min, MiB(4));
  Pool pool = Pool::create(pool_path(), pool_options(capacity));
  for (int round = 0; round < 3; ++round) {
    uint64_t records = 0;
    {
      const auto index = create(pool, kIndexName);
      EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] {
        for (;; ++records) TypedIndex(*index).upsert(records, records);
      }));
    }
    ASSERT_GT(records, 1000U) << "round " << round;
    drop_structure(pool, kIndexName);
    ASSERT_EQ(pool.info().allocated_bytes, 0U);
  }
  EXPECT_EQ(faults_and_leaks(pool, {}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Drop, wanted(all_cases()), case_name);

// Power fails, or the medium refuses, at each persist of a drop; then at one of the opening that
// follows.
class DropPower : public Drop {
 protected:
  PoolOptions line_pool() const {
    PoolOptions options = pool_options(kCapacityBytes);
    options.domain = Domain::kLine;
    return options;
  }

  void make_original() {
    Pool pool = Pool::create(pool_path(), line_pool());
    const auto neighbour = create(pool, kNeighbour);
    const auto index = create(pool, kIndexName);
    for (uint64_t i = 0; i < 600; ++i) {  // side by side, in the same segments
      TypedIndex(*neighbour).upsert(i, i + 1);
      neighbour_[i] = i + 1;
      TypedIndex(*index).upsert(i, i + 2);
      model_[i] = i + 2;
    }
  }
  void take_copy() const {
    std::filesystem::copy_file(pool_path(), work_,
                               std::filesystem::copy_options::overwrite_existing);
  }

  void drop(FailingMedium& medium, uint64_t* opened = nullptr) {
    Pool pool = Pool::open(work_, line_pool());
    if (opened != nullptr) *opened = medium.persists();
    drop_structure(pool, kIndexName);
    dropped_ = true;
    if (medium.refused()) {
      // What the heap does with a slab that the drop has emptied: it makes a free segment of it.
      // The drop is durable by then, so it has succeeded. The medium's refusal is told by the next
      // write, as no write is taken any more.
      create(pool, "another");
    }
    medium.mend();
  }

  // The structure is there wholly or gone wholly; gone if the call returned, or was seen gone
  // before.
  void judge() {
    Pool pool = Pool::open(work_, line_pool());
    const auto neighbour = open_index(pool, kNeighbour);
    ASSERT_EQ(difference(TypedIndex(*neighbour), neighbour_, 700), "");
    if (pool.structures().size() == 2) {
      ASSERT_FALSE(dropped_);
      const auto index = open_index(pool, kIndexName);
      ASSERT_EQ(difference(TypedIndex(*index), model_, 700), "");
      ASSERT_EQ(faults_and_leaks(pool, {neighbour.get(), index.get()}), "");
      return;
    }
    ++gone_;
    ASSERT_EQ(pool.structures().size(), 1U);
    ASSERT_EQ(faults_and_leaks(pool, {neighbour.get()}), "");
    // What was freed can be used, and harms nobody.
    const auto again = create(pool, kIndexName);
    Model fresh;
    for (uint64_t i = 0; i < 300; ++i) TypedIndex(*again).upsert(i, fresh[i] = i + 9);
    ASSERT_EQ(difference(TypedIndex(*again), fresh, 700), "");
    ASSERT_EQ(difference(TypedIndex(*neighbour), neighbour_, 700), "");
    ASSERT_EQ(faults_and_leaks(pool, {neighbour.get(), again.get()}), "");
  }

  void fail_at(uint64_t persist) {
    using Image = FailingMedium::Image;
    // In slow builds the images take turns.
    uint64_t turn = persist;
    for (const Image image : {Image::kLeast, Image::kMixed, Image::kAll}) {
      if ((kUnderAddressSanitizer || kUnderThreadSanitizer) && turn++ % 3 != 0) continue;
      dropped_ = false;
      take_copy();
      ASSERT_TRUE(power_fails(work_, Domain::kLine, persist, image, random_.next(),
                              [&](FailingMedium& medium) { drop(medium); }));
      {
        FailingMedium medium(work_, Domain::kLine);
        medium.begin();
        medium.refuse_here(random_.below(12), true);
        try {
          const Pool pool = Pool::open(work_, line_pool());
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
        }
        if (medium.refused()) {
          std::filesystem::rename(medium.make_image(image, random_.next()), work_);
        }
      }
      ASSERT_NO_FATAL_FAILURE(judge());
    }
  }

  std::string work_ = dir_.file("work");
  Model neighbour_;
  Model model_;
  bool dropped_ = false;
  uint64_t gone_ = 0;  // rounds that found the structure gone
};

TEST_P(DropPower, LosesNothingAndLeaksNothing) {
  make_original();
  uint64_t first = 0;
  uint64_t end = 0;
  take_copy();
  {
    FailingMedium medium(work_, Domain::kLine);
    medium.begin();
    medium.refuse([](uint64_t) { return false; }, [](uint64_t) { return false; });
    drop(medium, &first);
    end = medium.persists();
  }
  ASSERT_NO_FATAL_FAILURE(judge());
  ASSERT_GT(end, first + 8);
  const uint64_t step = std::max<uint64_t>(1, (end - first) / 60);
  uint64_t rounds = 0;
  for (uint64_t at = first; at < end; at += step) {
    SCOPED_TRACE("persist " + std::to_string(at) + " of " + std::to_string(end));
    ASSERT_NO_FATAL_FAILURE(fail_at(at));
    rounds += kUnderAddressSanitizer || kUnderThreadSanitizer ? 1 : 3;
  }
  // Both outcomes were seen.
  EXPECT_GT(gone_, 1U);
  EXPECT_LT(gone_, rounds);
}

INSTANTIATE_TEST_SUITE_P(Catalog, DropPower, wanted(all_cases()), by_turns());

// What holds no records is dropped as well.
TEST(DropOf, FilesAndDatabasesGiveBackEveryBlock) {
  const TempDir dir;
  Pool pool = Pool::create(dir.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
  {
    Files files = Files::create(pool, "files");
    for (int i = 0; i < 50; ++i) {
      FileWriter writer = files.create_file("/f" + std::to_string(i));
      writer.append(std::string(5000, 'x'));
      writer.sync();
    }
    DatabaseOptions options;
    options.dram_bytes = uint64_t{1} << 20;
    options.pm_bytes = uint64_t{1} << 20;
    options.log_bytes = uint64_t{1} << 20;
    options.pages_max = 64;
    Database database = Database::create(pool, "database", options);
    const Tree tree = database.tree("t");
    Transaction transaction = database.begin();
    transaction.put(tree, "key", "value");
    transaction.commit();
    EXPECT_TRUE(
        fails_with(ErrorCode::kInUse, "database", [&] { drop_structure(pool, "database"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, "files", [&] { drop_structure(pool, "files"); }));
  }
  drop_structure(pool, "database");
  drop_structure(pool, "files");
  EXPECT_TRUE(pool.structures().empty());
  EXPECT_EQ(pool.info().allocated_bytes, 0U);
}

TEST(DropOf, WhatIsOpenOrNotThereIsRefused) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{16} << 20});
  auto index = create_index(pool, "a", "plush", Kind::kU64, Kind::kU64);
  index->upsert(1, 2);
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "'a'", [&] { drop_structure(pool, "a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "'a'", [&] { pool.rename("a", "b"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, "'b'", [&] { drop_structure(pool, "b"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, "'b'", [&] { pool.rename("b", "c"); }));
  Value value;
  EXPECT_TRUE(index->lookup(1, value));
  index.reset();
  pool.close();
  pool = Pool::open(path, {.read_only = true});
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] { drop_structure(pool, "a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] { pool.rename("a", "b"); }));
}

TEST(Rename, KeepsTheContentUnderTheNewName) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{64} << 20});
  for (const char* name : {"a", "b"}) {
    create_index(pool, name, "plush", Kind::kU64, Kind::kU64)
        ->upsert(1, static_cast<uint64_t>(name[0]));
  }
  EXPECT_TRUE(fails_with(ErrorCode::kNameExists, "'b'", [&] { pool.rename("a", "b"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNameExists, "'a'", [&] { pool.rename("a", "a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { pool.rename("a", ""); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { pool.rename("a", std::string(96, 'x')); }));
  const std::string longest(95, 'x');
  pool.rename("a", longest);
  pool.rename("b", "a");
  pool.rename(longest, "b");
  pool.close();
  pool = Pool::open(path);
  ASSERT_EQ(pool.structures().size(), 2U);
  for (const auto& [name, content] : {std::pair("b", 'a'), std::pair("a", 'b')}) {
    Value value;
    ASSERT_TRUE(open_index(pool, name)->lookup(1, value));
    EXPECT_EQ(value.word(), static_cast<uint64_t>(content));
  }
}

// Word by word the one name becomes the other, and in between the entry has a name that no
// structure has.
TEST(Rename, ShowsNoNameInBetweenToOtherThreads) {
  Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{16} << 20});
  const pm::PoolImpl& impl = pm::impl_of(pool);
  create_index(pool, "a name, 1", "wort", Kind::kU64, Kind::kU64);
  std::atomic<bool> done{false};
  std::jthread other([&] {
    for (int i = 0; i < 20'000; ++i) {
      pool.rename("a name, 1", "no name 2");
      pool.rename("no name 2", "a name, 1");
    }
    done = true;
  });
  uint64_t shown = 0;
  while (!done) {
    for (const char* name : {"a name, 2", "no name 1"}) shown += impl.find(name) != nullptr;
  }
  EXPECT_EQ(shown, 0U);
}

// At each persist the structures have the names of before, or those of afterwards.
void names_are_atomic(const std::vector<std::string>& before, const std::vector<std::string>& after,
                      const std::function<void(Pool&)>& change) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  PoolOptions options{.capacity_bytes = uint64_t{16} << 20};
  options.force_domain = true;
  options.domain = Domain::kLine;
  Pool::create(path, options).close();
  {
    Pool pool = Pool::open(path, options);
    for (uint64_t i = 0; i < before.size(); ++i)
      create_index(pool, before[i], "wort", Kind::kU64, Kind::kU64)->upsert(1, i);
  }
  uint64_t changed = 0;
  uint64_t kept = 0;
  bool more = true;
  for (uint64_t n = 0; more; ++n) {
    for (const auto image : {FailingMedium::Image::kLeast, FailingMedium::Image::kMixed}) {
      const std::string work = dir.file("work");
      std::filesystem::copy_file(path, work, std::filesystem::copy_options::overwrite_existing);
      FailingMedium medium(work, Domain::kLine);
      medium.begin();
      medium.refuse_here(n, true);
      try {
        Pool pool = Pool::open(work, options);
        change(pool);
        more = false;
        break;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
      }
      medium.mend();
      std::filesystem::rename(medium.make_image(image, n), work);
      Pool pool = Pool::open(work, options);
      std::vector<std::string> names(before.size());
      ASSERT_EQ(pool.structures().size(), before.size());
      for (const StructureInfo& info : pool.structures()) {
        Value value;
        ASSERT_TRUE(open_index(pool, info.name)->lookup(1, value));
        names.at(value.word()) = info.name;
      }
      ASSERT_TRUE(names == before || names == after);
      ++(names == before ? kept : changed);
    }
  }
  EXPECT_GT(kept, 0U);
  EXPECT_GT(changed, 0U);
}

TEST(Rename, IsAtomicWhenPowerFails) {
  names_are_atomic({"a rather long name"}, {"another name that is as long"}, [](Pool& pool) {
    pool.rename("a rather long name", "another name that is as long");
  });
}

TEST(ExchangeNames, IsAtomicWhenPowerFails) {
  names_are_atomic({"a rather long name", "b"}, {"b", "a rather long name"},
                   [](Pool& pool) { pm::impl_of(pool).exchange_names("b", "a rather long name"); });
}

TEST(ExchangeNames, OfWhatIsOpenOrNotThereIsRefused) {
  Pool pool = Pool::anonymous({.capacity_bytes = uint64_t{16} << 20});
  pm::PoolImpl& impl = pm::impl_of(pool);
  create_index(pool, "a", "wort", Kind::kU64, Kind::kU64);
  auto b = create_index(pool, "b", "wort", Kind::kU64, Kind::kU64);
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "'b'", [&] { impl.exchange_names("a", "b"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "'a'", [&] { impl.exchange_names("a", "a"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, "'c'", [&] { impl.exchange_names("a", "c"); }));
  b.reset();
  impl.exchange_names("a", "b");
}

// A process that makes, fills and drops structures while another thread writes to a neighbour.
TEST(DropKill, LosesNothingAndLeaksNothing) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  Random random(base_seed());
  const PoolOptions options{.capacity_bytes = uint64_t{64} << 20,
                            .growth_bytes = uint64_t{1} << 20};
  const std::vector<std::string> types = {"plush", "p-art+vl", "fptree", "rstore", "cceh"};
  for (uint64_t round = 0; round < std::max<uint64_t>(3, rounds(12)); ++round) {
    const std::string& type = types[round % types.size()];
    const Kind kind = type == "rstore" ? Kind::kBytes : Kind::kU64;
    std::filesystem::remove(path);
    {
      Pool pool = Pool::create(path, options);
      create_index(pool, kNeighbour, type, kind, kind);
      pool.close();
    }
    Child child([&](int out) {
      auto* pool = new Pool(Pool::open(path, options));  // never closed
      auto* neighbour = open_index(*pool, kNeighbour).release();
      std::thread writer([&] {
        for (uint64_t i = 0;; ++i) {
          TypedIndex(*neighbour).upsert(i % 5000, i);
          if (i % 100 == 0) send(out, "w", 1);
        }
      });
      for (;;) {
        {
          const auto index = create_index(*pool, kIndexName, type, kind, kind);
          for (uint64_t i = 0; i < 2000; ++i) TypedIndex(*index).upsert(i, i + 5);
        }
        drop_structure(*pool, kIndexName);
        send(out, "d", 1);
      }
    });
    uint64_t drops = 0;
    uint64_t writes = 0;
    char byte = 0;
    while (drops < 1 + random.below(4) || writes < 5) {
      ASSERT_TRUE(child.receive(&byte, 1));
      ++(byte == 'd' ? drops : writes);
    }
    ::usleep(static_cast<useconds_t>(
        random.below(20'000)));  // any moment is right; nothing relies on it
    child.kill();
    while (child.receive(&byte, 1)) {
      if (byte == 'w') ++writes;
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    Pool pool = Pool::open(path, options);
    std::vector<std::unique_ptr<AnyIndex>> open;
    std::vector<const AnyIndex*> all;
    for (const StructureInfo& info : pool.structures()) {
      open.push_back(open_index(pool, info.name));
      all.push_back(open.back().get());
      if (info.name != kNeighbour) continue;
      uint64_t newest = 0;
      for (uint64_t key = 0; key < 5000; ++key) {
        newest = std::max(newest, TypedIndex(*open.back()).lookup(key).value_or(0));
      }
      EXPECT_GE(newest, (writes - 1) * 100);
    }
    ASSERT_EQ(faults_and_leaks(pool, all), "") << type << ", round " << round;
  }
}

}  // namespace
}  // namespace perdure::test
