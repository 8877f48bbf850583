// What the scenarios over the catalogue cannot reach of the NV-Tree.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "index/nvtree/inner.h"
#include "index/nvtree/layout.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/short_memory.h"

namespace perdure::index {
namespace {

using nvtree::Leaf;
using nvtree::Root;

class NvTree : public testing::Test {
 protected:
  static constexpr uint64_t kKeys = 20000;

  static double figure(const AnyIndex& index, const std::string& name) {
    for (const Statistic& one : index.statistics()) {
      if (one.name == name) return one.value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }
  std::unique_ptr<AnyIndex> create(const OptionMap& options = {}, const std::string& name = "t") {
    return create_index(pool_, name, "nv-tree", Kind::kU64, Kind::kU64, options);
  }
  Root& root() { return *pm::impl_of(pool_).at<Root>(pm::impl_of(pool_).find("t")->root); }
  Leaf& leaf(uint64_t at) { return *pm::impl_of(pool_).at<Leaf>(at); }
  uint64_t faults(const AnyIndex& index) {
    return index.check([](const std::string&) {});
  }
  // Of the file as it is: the structure may be open.
  bool is_refused() {
    const std::string copy = dir_.file("copy");
    test::write_file(copy, test::read_file(dir_.file("pool")));
    Pool pool = Pool::open(copy);
    return test::fails_with(ErrorCode::kCorrupt, [&] { open_index(pool, "t"); });
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), {.capacity_bytes = uint64_t{64} << 20});
};

TEST_F(NvTree, AscendingKeysFillLeaves) {
  const auto index = create();
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
  EXPECT_GT(figure(*index, "leaf_fill"), 0.8);
  EXPECT_EQ(faults(*index), 0U);
}

TEST_F(NvTree, RemovingEverythingLeavesOneLeaf) {
  for (const bool upwards : {true, false}) {
    const auto index =
        create({{"leaf_records", "16"}, {"inner_records", "4"}}, upwards ? "t" : "u");
    for (uint64_t key = 0; key < kKeys; ++key) index->insert(key * 7919 % kKeys, key);
    EXPECT_GT(figure(*index, "groups"), 50);
    for (uint64_t key = 0; key < kKeys; ++key) index->remove(upwards ? key : kKeys - 1 - key);
    EXPECT_EQ(figure(*index, "leaves"), 1);
    EXPECT_EQ(figure(*index, "groups"), 1);
  }
}

TEST_F(NvTree, UpdatesOfFewKeysDoNotAddLeaves) {
  const auto index = create();
  for (uint64_t i = 0; i < 100 * kKeys; ++i) index->upsert(i % 40, i);
  EXPECT_EQ(figure(*index, "leaves"), 1);
  EXPECT_EQ(figure(*index, "records"), 40);
}

TEST_F(NvTree, ACleanOpeningUsesTheImageUntilALeafIsReplaced) {
  auto index = create();
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
  EXPECT_EQ(root().image, 0U);
  index.reset();
  const uint64_t image = root().image;
  EXPECT_NE(image, 0U);
  // No leaf but the head is read: where there are others is not noticed if they are gone.
  const uint64_t second = leaf(root().head).next;
  leaf(root().head).next = 0;
  index = open_index(pool_, "t");
  leaf(root().head).next = second;
  EXPECT_EQ(faults(*index), 0U);
  index->update(1, 5);
  EXPECT_EQ(root().image, image);
  for (uint64_t key = kKeys; key < kKeys + 100; ++key) index->insert(key, key);
  EXPECT_EQ(root().image, 0U);
  EXPECT_EQ(faults(*index), 0U);
}

// PM may then not be what DRAM says. The heap would refuse to store the image; here nothing is made
// of it.
TEST_F(NvTree, AfterAMediumErrorTheDestructorDoesNotBeginAnImage) {
  PoolOptions options;
  options.capacity_bytes = uint64_t{64} << 20;
  options.force_domain = true;
  options.domain = Domain::kPage;
  Pool pool = Pool::create(dir_.file("failing"), options);
  const auto bytes_to_close = [&](bool refuse) {
    const std::string name = refuse ? "failing" : "sound";
    auto index =
        create_index(pool, name, "nv-tree", Kind::kU64, Kind::kU64, {{"leaf_records", "4"}});
    for (uint64_t key = 0; key < 2000; ++key) index->insert(key, key);
    if (refuse) {
      const pm::PoolImpl& impl = pm::impl_of(pool);
      const uint64_t head = impl.at<Root>(impl.find(name)->root)->head;
      test::refuse_msync_at(reinterpret_cast<uintptr_t>(impl.at<Leaf>(head)));
      EXPECT_TRUE(
          test::fails_with(ErrorCode::kIo, [&] { index->update(uint64_t{0}, uint64_t{7}); }));
      test::refuse_msync_at(0);
    }
    test::ShortMemory memory(~uint64_t{0});  // counts
    index.reset();
    memory.end();
    return memory.bytes();
  };
  const uint64_t with_image = bytes_to_close(false);
  EXPECT_GT(with_image, 2000 / 4 * sizeof(nvtree::Child));
  EXPECT_LT(bytes_to_close(true), with_image / 10);
}

TEST_F(NvTree, ADamagedImageIsRefused) {
  auto index = create();
  for (uint64_t key = 0; key < kKeys / 10; ++key) index->insert(key, key);
  index.reset();
  const auto refuses = [&](uint64_t& word) {
    for (int bit = 0; bit < 64; ++bit) {
      word ^= uint64_t{1} << bit;
      EXPECT_TRUE(is_refused()) << "bit " << bit;
      word ^= uint64_t{1} << bit;
    }
  };
  // Checksum, bytes, leaves, what is reserved, and the first separator and leaf.
  for (const uint64_t at : {0, 8, 16, 24, 64, 72}) {
    SCOPED_TRACE(at);
    refuses(*pm::impl_of(pool_).at<uint64_t>(root().image + at));
  }
  refuses(root().image);
  EXPECT_EQ(faults(*open_index(pool_, "t")), 0U);
}

TEST_F(NvTree, ADamagedListOfLeavesIsRefused) {
  auto index = create();
  for (uint64_t key = 0; key < kKeys; ++key) index->insert(key, key);
  index.reset();
  index = open_index(pool_, "t");
  for (uint64_t key = kKeys; key < kKeys + 100; ++key) index->insert(key, key);  // drops the image
  const uint64_t head = root().head;
  uint64_t& next = leaf(head).next;
  const uint64_t second = next;
  const auto expect_found = [&](uint64_t& word, uint64_t damaged, bool when_opened = true) {
    const uint64_t sound = word;
    word = damaged;
    EXPECT_GT(faults(*index), 0U);
    EXPECT_TRUE(!when_opened || is_refused());
    word = sound;
  };
  expect_found(next, head);           // a ring
  expect_found(next, second + 64);    // no leaf
  expect_found(next, ~uint64_t{63});  // outside of the pool
  expect_found(root().head, 0);       // none at all
  expect_found(root().head, second, false);
  expect_found(leaf(second).count, 65);
}

TEST_F(NvTree, CheckTellsOfDamagedLogs) {
  const auto index = create();
  for (uint64_t key = 0; key < 10; ++key) index->insert(key, key);
  index->update(3, 7);
  Leaf& only = leaf(root().head);
  EXPECT_EQ(faults(*index), 0U);
  const auto expect_found = [&](uint64_t& word, uint64_t damaged) {
    const uint64_t sound = word;
    word = damaged;
    EXPECT_GT(faults(*index), 0U);
    word = sound;
  };
  expect_found(only.slot(4).key, 5);                // twice
  expect_found(only.slot(3).key, 4);                // superseded by another key
  expect_found(only.lines()[3].tags, 0x0001'0001);  // supersedes none: twice
  expect_found(only.lines()[3].tags,
               nvtree::Tag::make(false, 3).bits | nvtree::Tag::make(false, 12).bits << 16);
  EXPECT_EQ(faults(*index), 0U);
}

// A record that leads to another one, intact as that is, does not send a scan back to where that
// one belongs.
TEST_F(NvTree, ScansAreNotLedBackByARecordThatBelongsElsewhere) {
  const auto index =
      create_index(pool_, "t", "nv-tree", Kind::kBytes, Kind::kBytes, {{"leaf_records", "16"}});
  for (uint64_t key = 0; key < 4000; ++key) {
    const std::string text = std::to_string(10'000'000 + key);
    index->insert(Datum(text), Datum(text));
  }
  const uint64_t least = leaf(root().head).slot(0).value;
  for (uint64_t at = root().head; at != 0; at = leaf(at).next) {
    leaf(at).slot(static_cast<uint32_t>(leaf(at).count) - 1).value = least;
  }
  uint64_t visits = 0;
  EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] {
    index->scan(Datum(std::string_view()), ~uint64_t{0},
                [&](Datum, Datum) { return ++visits < 100'000; });
  }));
}

}  // namespace
}  // namespace perdure::index
