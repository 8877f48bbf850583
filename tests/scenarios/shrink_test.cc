// A pool gives its free end back, keeps all that is in it, and grows again.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/scale.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class Shrink : public ScenarioTest {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{64} << 20;
  static constexpr char kNeighbour[] = "neighbour";

  std::unique_ptr<AnyIndex> create(Pool& pool, const std::string& name) const {
    const auto& [structure, key, value] = GetParam();
    return create_index(pool, name, structure, key, value, small_options(structure));
  }
  uint64_t file_bytes() const { return std::filesystem::file_size(pool_path()); }

  // The file ends where it may: behind the last segment in use, what removals may need, and an
  // empty slab.
  static bool ends_behind_use(const Pool& pool, uint64_t file_bytes) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    uint64_t used = 0;
    for (uint64_t i = 0; i < impl.segments(); ++i) {
      const pm::SegmentDescriptor& descriptor = impl.descriptor(i);
      pm::Segments::Content content;
      EXPECT_TRUE(pm::Segments::parse(descriptor.word, i, impl.segments(), content));
      const bool empty =
          std::ranges::all_of(descriptor.bitmap, [](auto word) { return word == 0; });
      if (content.kind == pm::SegmentKind::kRun) used = i + content.segments;
      if (content.kind == pm::SegmentKind::kSlab && !empty) used = std::max(used, i + 1);
    }
    const uint64_t most = used == 0 ? 0 : used + pm::Segments::kReserve + 1;
    return file_bytes <= impl.header().data_offset + most * pm::kSegmentBytes;
  }
};

TEST_P(Shrink, GivesBackWhatRecordsLeaveAndGrowsAgain) {
  const uint64_t records = std::max<uint64_t>(4000, scaled(10'000));
  Store store = create_small(kCapacityBytes);
  Model model;
  uint64_t filled_bytes = 0;
  for (uint64_t cycle = 0; cycle < 3; ++cycle) {
    SCOPED_TRACE("cycle " + std::to_string(cycle));
    for (uint64_t i = 0; i < records; ++i) store.typed().upsert(i, model[i] = cycle + i);
    ASSERT_EQ(difference(store.typed(), model, records), "");
    if (cycle == 0) filled_bytes = file_bytes();
    // Another cycle finds the room that the first one needed.
    ASSERT_LE(file_bytes(), filled_bytes + filled_bytes / 4 + MiB(1));
    for (uint64_t i = 0; i < records; ++i) {
      if (i % 1000 == cycle) continue;
      ASSERT_TRUE(store.typed().remove(i));
      model.erase(i);
    }
    ASSERT_TRUE(fails_with(ErrorCode::kInUse, kIndexName, [&] { store.pool.shrink(); }));
    if (cycle == 1) {
      store.close();  // what caches held is nobody's now
      store.pool = Pool::open(pool_path(), pool_options(kCapacityBytes));
    }
    store.index.reset();
    const uint64_t before = file_bytes();
    const uint64_t shrunk = store.pool.shrink();
    ASSERT_EQ(file_bytes(), before - shrunk);
    ASSERT_EQ(file_bytes(), pm::impl_of(store.pool).end_offset());
    // Again: at most what the first call has kept for removals.
    EXPECT_LE(store.pool.shrink(), pm::Segments::kReserve * pm::kSegmentBytes);
    EXPECT_EQ(faults(store.pool, {}), "");
    EXPECT_TRUE(ends_behind_use(store.pool, file_bytes()));
    if (cycle == 2) {
      store.close();
      store = reopen(kCapacityBytes);
    } else {
      store.index = open_index(store.pool, kIndexName);
    }
    ASSERT_EQ(difference(store.typed(), model, records), "");
    ASSERT_EQ(faults(store.pool, {store.index.get()}), "");
  }
  store.close();
  store = reopen(kCapacityBytes);
  ASSERT_EQ(difference(store.typed(), model, records), "");
  ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

TEST_P(Shrink, OfADroppedStructureGivesBackAllBehindItsNeighbour) {
  const uint64_t records = std::max<uint64_t>(4000, scaled(10'000));
  Pool pool = Pool::create(pool_path(), pool_options(kCapacityBytes));
  Model model;
  {
    const auto neighbour = create(pool, kNeighbour);
    for (uint64_t i = 0; i < 500; ++i) TypedIndex(*neighbour).upsert(i, model[i] = i + 1);
    const auto index = create(pool, kIndexName);
    for (uint64_t i = 0; i < records; ++i) TypedIndex(*index).upsert(i, i);
  }
  drop_structure(pool, kIndexName);
  pool.shrink();
  EXPECT_TRUE(ends_behind_use(pool, file_bytes()));
  {
    const auto neighbour = open_index(pool, kNeighbour);
    ASSERT_EQ(difference(TypedIndex(*neighbour), model, records), "");
    ASSERT_EQ(faults_and_leaks(pool, {neighbour.get()}), "");
  }
  drop_structure(pool, kNeighbour);
  pool.shrink();
  EXPECT_EQ(pm::impl_of(pool).segments(), 0U);
  EXPECT_EQ(file_bytes(), pm::impl_of(pool).header().data_offset);
  pool.close();
  pool = Pool::open(pool_path(), pool_options(kCapacityBytes));
  const auto index = create(pool, kIndexName);
  model.clear();
  for (uint64_t i = 0; i < records; ++i) TypedIndex(*index).upsert(i, model[i] = i * 7);
  ASSERT_EQ(difference(TypedIndex(*index), model, records), "");
  ASSERT_EQ(faults_and_leaks(pool, {index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Shrink, wanted(all_cases()), by_turns());

// Power fails, or the medium refuses, at each persist of shrinking and of growing again; or the
// process is killed.
class ShrinkCrash : public Shrink {
 protected:
  PoolOptions line_pool() const {
    PoolOptions options = pool_options(kCapacityBytes);
    options.domain = Domain::kLine;
    options.growth_bytes = pm::kSegmentBytes;
    return options;
  }
  // A neighbour, and free space behind it.
  void make_original() {
    Pool pool = Pool::create(pool_path(), line_pool());
    {
      const auto neighbour = create(pool, kNeighbour);
      for (uint64_t i = 0; i < 200; ++i) TypedIndex(*neighbour).upsert(i, neighbour_[i] = i + 1);
      const auto index = create(pool, kIndexName);
      for (uint64_t i = 0; i < 3000; ++i) TypedIndex(*index).upsert(i, i);
    }
    drop_structure(pool, kIndexName);
  }
  void take_copy() const {
    std::filesystem::copy_file(pool_path(), work_,
                               std::filesystem::copy_options::overwrite_existing);
  }
  // Shrinks, and grows again by a structure of the same kind.
  void work(FailingMedium* medium, uint64_t* begin = nullptr, uint64_t* shrunk = nullptr) {
    Pool pool = Pool::open(work_, line_pool());
    if (begin != nullptr) *begin = medium->persists();
    pool.shrink();
    if (shrunk != nullptr) *shrunk = medium->persists();
    {
      const auto index = create(pool, "grown");
      for (uint64_t i = 0; i < 1500; ++i) TypedIndex(*index).upsert(i, i + 3);
    }
    drop_structure(pool, "grown");
    pool.shrink();
    pool.close();  // whose errors show, unlike a destructor's
  }
  void judge() {
    Pool pool = Pool::open(work_, line_pool());
    {
      const auto neighbour = open_index(pool, kNeighbour);
      ASSERT_EQ(difference(TypedIndex(*neighbour), neighbour_, 300), "");
      std::unique_ptr<AnyIndex> grown;
      std::vector<const AnyIndex*> all{neighbour.get()};
      if (pool.structures().size() == 2) {
        grown = open_index(pool, "grown");
        all.push_back(grown.get());
      }
      ASSERT_EQ(faults_and_leaks(pool, all), "");
    }
    if (pool.structures().size() == 2) drop_structure(pool, "grown");
    pool.shrink();
    ASSERT_EQ(std::filesystem::file_size(work_), pm::impl_of(pool).end_offset());
    // Whatever lies where the pool grows now harms nobody.
    const auto neighbour = open_index(pool, kNeighbour);
    const auto again = create(pool, "again");
    Model fresh;
    for (uint64_t i = 0; i < 1500; ++i) TypedIndex(*again).upsert(i, fresh[i] = i + 9);
    ASSERT_EQ(difference(TypedIndex(*again), fresh, 1600), "");
    ASSERT_EQ(difference(TypedIndex(*neighbour), neighbour_, 300), "");
    ASSERT_EQ(faults_and_leaks(pool, {neighbour.get(), again.get()}), "");
  }

  std::string work_ = dir_.file("work");
  Model neighbour_;
};

TEST_P(ShrinkCrash, PowerThatFailsLosesNothing) {
  make_original();
  take_copy();
  uint64_t begin = 0;
  uint64_t shrunk = 0;
  uint64_t end = 0;
  {
    FailingMedium medium(work_, Domain::kLine);
    medium.begin();
    medium.refuse([](uint64_t) { return false; }, [](uint64_t) { return false; });
    work(&medium, &begin, &shrunk);
    end = medium.persists();
  }
  ASSERT_NO_FATAL_FAILURE(judge());
  ASSERT_GT(shrunk, begin);
  std::vector<uint64_t> places;
  for (uint64_t at = begin; at < shrunk; ++at) places.push_back(at);
  for (uint64_t at = shrunk; at < shrunk + 4; ++at)
    places.push_back(at);  // the file is cut by then
  for (int i = 0; i < 12; ++i) places.push_back(shrunk + random_.below(end - shrunk));
  for (uint64_t at = end - std::min<uint64_t>(4, end - shrunk); at < end; ++at) {
    places.push_back(at);  // the second time
  }
  using Image = FailingMedium::Image;
  for (size_t i = 0; i < places.size(); ++i) {
    for (const Image image : {Image::kLeast, Image::kMixed, Image::kAll}) {
      if (i % 3 != static_cast<size_t>(image) % 3 && places[i] >= shrunk + 4) continue;
      SCOPED_TRACE("persist " + std::to_string(places[i]) + " of " + std::to_string(end));
      take_copy();
      ASSERT_TRUE(power_fails(work_, Domain::kLine, places[i], image, random_.next(),
                              [&](FailingMedium& medium) { work(&medium); }));
      ASSERT_NO_FATAL_FAILURE(judge());
    }
  }
}

TEST_P(ShrinkCrash, AProcessThatIsKilledLosesNothing) {
  make_original();
  take_copy();
  for (uint64_t round = 0; round < std::max<uint64_t>(3, rounds(8)); ++round) {
    Child child([&](int out) {
      for (;;) {
        send(out, "b", 1);
        work(nullptr);
      }
    });
    char byte = 0;
    ASSERT_TRUE(child.receive(&byte, 1));
    ::usleep(static_cast<useconds_t>(random_.below(30'000)));  // any moment is right
    child.kill();
    while (child.receive(&byte, 1)) {
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    const std::string left = dir_.file("left");
    std::filesystem::copy_file(work_, left, std::filesystem::copy_options::overwrite_existing);
    ASSERT_NO_FATAL_FAILURE(judge()) << "round " << round;
    std::filesystem::rename(left, work_);  // the next crash comes on top of this one
    Pool pool = Pool::open(work_, line_pool());
    if (pool.structures().size() == 2) drop_structure(pool, "grown");
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, ShrinkCrash, wanted(all_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
