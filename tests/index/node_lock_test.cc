// Lock words in nodes: as those in DRAM for who uses them, and free after a restart, whatever a
// process that died has left in them.
#include "index/node_lock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>

#include "index/hot/layout.h"
#include "index/masstree/layout.h"
#include "index/trie/layout.h"
#include "index/trie/shapes.h"
#include "perdure/catalog.h"
#include "pm/layout.h"
#include "pm/pool_impl.h"
#include "support/files.h"

namespace perdure::index {
namespace {

constexpr uint64_t kGeneration = 7;

TEST(LockInNode, ReadersGoOnUntilSomethingChanges) {
  uint64_t word = 0;
  const LockInNode lock(word, kGeneration);
  const auto stamp = lock.begin_read();
  lock.lock();
  EXPECT_TRUE(lock.validate(stamp)) << "a writer that only looks does no harm";
  EXPECT_EQ(lock.begin_read(), stamp) << "nor does its holder wait for itself";
  lock.unlock();
  EXPECT_TRUE(lock.validate(stamp));
  lock.lock();
  lock.begin_change();
  EXPECT_FALSE(lock.validate(stamp));
  lock.unlock();
  EXPECT_FALSE(lock.validate(stamp));
  EXPECT_TRUE(lock.validate(lock.begin_read()));
}

TEST(LockInNode, IsFreeWhateverAnotherGenerationHasLeft) {
  for (const uint64_t left : {uint64_t{0}, ~uint64_t{0}, (kGeneration - 1) << 32 | 3,
                              (kGeneration - 1) << 32 | 0xffffffff, uint64_t{3}}) {
    uint64_t word = left;
    const LockInNode lock(word, kGeneration);
    const auto stamp = lock.begin_read();  // does not wait
    EXPECT_EQ(word, left) << "and writes nothing";
    lock.lock();
    EXPECT_TRUE(lock.validate(stamp));
    lock.begin_change();
    lock.unlock();
    EXPECT_FALSE(lock.validate(stamp));
    EXPECT_EQ(word >> 32, kGeneration);
  }
}

TEST(LockInNode, VersionsNeverReachTheGeneration) {
  uint64_t word = kGeneration << 32 | 0xfffffffc;
  const LockInNode lock(word, kGeneration);
  lock.lock();
  lock.begin_change();
  lock.unlock();
  EXPECT_EQ(word, kGeneration << 32);
}

TEST(LockInNode, KeepsOthersOut) {
  uint64_t word = 0;
  uint64_t count = 0;
  const auto work = [&] {
    const LockInNode lock(word, kGeneration);
    for (int i = 0; i < 10'000; ++i) {
      lock.lock();
      ++count;
      lock.unlock();
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(count, 20'000U);
}

// The published sources initialise all locks when they are opened again, or stay locked for ever.
class LeftLocked : public testing::TestWithParam<const char*> {
 protected:
  // The words of the locks on the way to a record, as who died holding them has left them.
  static void leave_locked(Pool& pool) {
    pm::PoolImpl& impl = pm::impl_of(pool);
    const uint64_t held = impl.generation() << 32 | 3;
    const uint64_t root_at = impl.find("index")->root;
    if (std::string(GetParam()) == "p-art") {
      auto& root = *impl.at<trie::Root>(root_at);
      root.lock = held;
      trie::ArtWithLocks::lock_of(*impl.at<trie::Node>(trie::offset_of(root.top))) = held;
    } else if (std::string(GetParam()) == "p-hot") {
      auto& root = *impl.at<hot::Root>(root_at);
      root.lock = held;
      hot::Form<true, true>::lock_in(*impl.at<hot::Node>(hot::offset_of(root.top))) = held;
    } else {
      auto& root = *impl.at<masstree::Root>(root_at);
      root.first.lock = held;
      impl.at<masstree::Node>(root.first.top)->lock = held;
    }
  }

  // A pool of the generation 1 with ten records.
  void SetUp() override {
    PoolOptions options;
    options.capacity_bytes = uint64_t{8} << 20;
    Pool pool = Pool::create(path_, options);
    const auto index = create_index(pool, "index", GetParam(), Kind::kU64, Kind::kU64, {});
    for (uint64_t key = 0; key < 10; ++key) index->insert(key, key);
    leave_locked(pool);
  }

  const test::TempDir dir_;
  const std::string path_ = dir_.file("pool");
};

TEST_P(LeftLocked, OpensWithAllLocksFree) {
  Pool pool = Pool::open(path_);
  const auto index = open_index(pool, "index");
  Value value;
  for (uint64_t key = 0; key < 10; ++key) {
    ASSERT_TRUE(index->lookup(key, value));
    EXPECT_TRUE(index->update(key, key + 1));
  }
  EXPECT_TRUE(index->insert(uint64_t{10}, uint64_t{11}));
  EXPECT_TRUE(index->remove(uint64_t{3}));
  EXPECT_EQ(index->check([](const std::string& fault) { ADD_FAILURE() << fault; }), 0U);
}

TEST_P(LeftLocked, IsReadOnlyWithAllLocksFree) {
  PoolOptions options;
  options.read_only = true;
  const std::string before = test::read_file(path_);
  {
    Pool pool = Pool::open(path_, options);
    const auto index = open_index(pool, "index");
    Value value;
    for (uint64_t key = 0; key < 10; ++key) ASSERT_TRUE(index->lookup(key, value));
    EXPECT_EQ(index->check([](const std::string& fault) { ADD_FAILURE() << fault; }), 0U);
  }
  EXPECT_EQ(test::read_file(path_), before);
}

// What is read of a damaged pool takes the next generation for the one that it has, if the damaged
// word says one less.
TEST_P(LeftLocked, IsReadWhateverDamageMakesOfTheGeneration) {
  std::string bytes = test::read_file(path_);
  bytes[offsetof(pm::PoolHeader, generation_word)] ^= 4;  // 0, with the mark in the two low bits
  test::write_file(path_, bytes);
  PoolOptions options;
  options.read_only = options.lenient = true;
  Pool pool = Pool::open(path_, options);
  ASSERT_NE(pm::impl_of(pool).generation(), 1U) << "a lookup would wait for ever";
  const auto index = open_index(pool, "index");
  Value value;
  for (uint64_t key = 0; key < 10; ++key) EXPECT_TRUE(index->lookup(key, value));
}

INSTANTIATE_TEST_SUITE_P(References, LeftLocked, testing::Values("p-art", "p-masstree", "p-hot"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace perdure::index
