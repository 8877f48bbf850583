// Drops whose list of blocks takes several pages, with a crash at each persist of them and of what
// opens the pool then.
#include "pm/drop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::pm {
namespace {

using Image = test::FailingMedium::Image;

class LongDrop : public ::testing::Test {
 protected:
  static constexpr uint64_t kLargestBlock = 32 << 10;
  static constexpr uint64_t kWords = kLargestBlock / sizeof(uint64_t);
  // Of blocks of 64 bytes, whose records are the longest: 17 words each. One page has room for 240.
  static constexpr uint64_t kSegments = 390;

  static PoolOptions options() {
    PoolOptions options{.capacity_bytes = uint64_t{40} << 20, .growth_bytes = uint64_t{1} << 20};
    options.domain = Domain::kLine;
    options.force_domain = true;
    return options;
  }

  // A structure of one block, which is where links are.
  static uint64_t* make_structure(PoolImpl& pool, const std::string& name, uint64_t bytes) {
    DirectoryEntry* home = pool.reserve_entry(name);
    Heap::Txn txn(pool.heap());
    const uint64_t root = txn.allocate(bytes);
    std::memset(pool.at<char>(root), 0, bytes);
    pool.memory().flush(pool.at<char>(root), bytes);
    const DirectoryEntry entry = pool.make_entry(home, name, "test", 0, 0, root);
    txn.will_link(root, &home->root, Link::kOffset);
    txn.redo(home, &entry, sizeof entry);
    txn.commit([&] { txn.apply(); });
    return pool.at<uint64_t>(root);
  }

  // Blocks that the bits of one word lead to.
  static void link(PoolImpl& pool, uint64_t& word, uint64_t count, uint64_t bytes,
                   std::vector<uint64_t>& blocks) {
    Heap::Txn txn(pool.heap());
    for (uint64_t i = 0; i < count; ++i) {
      blocks.push_back(txn.allocate(bytes));
      txn.will_link(blocks.back(), &word, static_cast<Link>(static_cast<uint64_t>(Link::kBit) + i));
    }
    txn.prepare();
    store_release(word, (uint64_t{1} << count) - 1);
    pool.memory().persist(&word, sizeof word);
    txn.settle();
    txn.finish();
  }
  static void unlink(PoolImpl& pool, uint64_t& word, uint64_t block) {
    Heap::Txn txn(pool.heap());
    txn.will_unlink(block, &word, Link::kBit);
    txn.prepare();
    store_release(word, uint64_t{0});
    pool.memory().persist(&word, sizeof word);
    txn.settle();
    txn.finish();
  }

  void make_original() {
    Pool pool = Pool::create(original_, options());
    PoolImpl& impl = impl_of(pool);
    uint64_t* next = make_structure(impl, "dropped", 2 * kLargestBlock);
    blocks_.push_back(impl.find("dropped")->root);
    // Slabs of two blocks, of which one is free: pages of the list are put there, and are what
    // remains in the slab when the other one is cleared. Being the first segments they are named by
    // the page that is let go last.
    std::vector<uint64_t> spare;
    std::vector<uint64_t*> words;
    for (int i = 0; i < 10; ++i) {
      std::vector<uint64_t>& to = i % 2 == 0 ? blocks_ : spare;
      link(impl, *next, 1, kLargestBlock, to);
      if (i % 2 != 0) words.push_back(next);
      ++next;
    }
    for (size_t i = 0; i < spare.size(); ++i) unlink(impl, *words[i], spare[i]);
    constexpr uint64_t kAtOnce = 32;
    for (uint64_t i = 0; i < kSegments * (kSegmentBytes / 64) / kAtOnce; ++i) {
      link(impl, *next++, kAtOnce, 64, blocks_);
    }
    kept_bytes_ = impl.heap().usage().allocated_bytes;
    uint64_t* kept = make_structure(impl, "kept", 64);
    for (uint64_t i = 0; i < 8; ++i) kept[i] = i + 7;
    impl.memory().persist(kept, 64);
    whole_bytes_ = impl.heap().usage().allocated_bytes;
    kept_bytes_ = whole_bytes_ - kept_bytes_;
  }
  void take_copy() const {
    std::filesystem::copy_file(original_, work_, std::filesystem::copy_options::overwrite_existing);
  }

  void drop(test::FailingMedium& medium) {
    Pool pool = Pool::open(work_, options());
    PoolImpl& impl = impl_of(pool);
    opened_ = medium.persists();
    Drop drop(impl, "dropped");
    for (const uint64_t block : blocks_) drop.add(block);
    drop.commit();
    uint64_t pages = 0;
    const DirectoryEntry* entry = impl.find("kept") - 1;  // no name leads to it any more
    for (uint64_t at = entry->drop; at != 0; at = impl.at<DropPage>(at)->next) ++pages;
    EXPECT_EQ(pages, 2U);
    drop.finish();
    finished_ = medium.persists();
    medium.mend();
  }

  // Opens it with a refusal at this persist. Returns whether there was none.
  bool open_until(uint64_t persist, Image image) {
    test::FailingMedium medium(work_, Domain::kLine);
    medium.begin();
    medium.refuse_here(persist, true);
    try {
      const Pool pool = Pool::open(work_, options());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << "persist " << persist << ": " << error.what();
    }
    const bool refused = medium.refused();
    medium.mend();
    if (refused) std::filesystem::rename(medium.make_image(image, random_.next()), work_);
    return !refused;
  }

  // What a crash has left, opened at once; after a crash of that; and after one at each persist in
  // turn, each time of what the last one has left.
  void open_and_judge(Image image) {
    constexpr uint64_t kPersistsMax = 40;  // of an opening, about
    std::filesystem::copy_file(work_, left_, std::filesystem::copy_options::overwrite_existing);
    const auto take_left = [&] {
      std::filesystem::copy_file(left_, work_, std::filesystem::copy_options::overwrite_existing);
    };
    ASSERT_NO_FATAL_FAILURE(judge());
    for (int i = 0; i < 4; ++i) {
      take_left();
      open_until(random_.below(kPersistsMax), image);
      ASSERT_NO_FATAL_FAILURE(judge());
    }
    if (random_.below(4) != 0) return;
    take_left();
    for (uint64_t at = 0; !open_until(at, image); ++at) ASSERT_LT(at, 5 * kPersistsMax);
    ASSERT_NO_FATAL_FAILURE(judge());
  }

  void judge() {
    Pool pool = Pool::open(work_, options());
    PoolImpl& impl = impl_of(pool);
    const auto fail = [](const std::string& text) { ADD_FAILURE() << text; };
    EXPECT_EQ(impl.heap().check(fail), 0U);
    const uint64_t allocated = impl.heap().usage().allocated_bytes;
    const auto* kept = impl.at<uint64_t>(impl.find("kept")->root);
    if (impl.find("dropped") != nullptr) {
      ++there_;
      ASSERT_EQ(allocated, whole_bytes_);
      return;
    }
    ++gone_;
    ASSERT_EQ(allocated, kept_bytes_);
    // All of it can be used again, and is nobody else's.
    std::vector<uint64_t> blocks;
    uint64_t* next = make_structure(impl, "again", 2 * kLargestBlock);
    for (int i = 0; i < 40; ++i) link(impl, *next++, 2, i % 2 == 0 ? 64 : kLargestBlock, blocks);
    std::ranges::sort(blocks);
    ASSERT_EQ(std::ranges::adjacent_find(blocks), blocks.end());
    for (const uint64_t block : blocks) std::memset(impl.at<char>(block), 0xee, 64);
    for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(kept[i], i + 7);
    EXPECT_EQ(impl.heap().check(fail), 0U);
  }

  test::TempDir dir_;
  std::string original_ = dir_.file("original");
  std::string work_ = dir_.file("work");
  std::string left_ = dir_.file("left");
  test::Random random_{test::base_seed()};
  std::vector<uint64_t> blocks_;  // of what is dropped
  uint64_t whole_bytes_ = 0;
  uint64_t kept_bytes_ = 0;
  uint64_t opened_ = 0;  // at this persist
  uint64_t finished_ = 0;
  int there_ = 0;
  int gone_ = 0;
};

TEST_F(LongDrop, IsFinishedAfterAnySequenceOfCrashes) {
  make_original();
  take_copy();
  {
    test::FailingMedium medium(work_, Domain::kLine);
    medium.begin();
    medium.refuse([](uint64_t) { return false; }, [](uint64_t) { return false; });
    drop(medium);
  }
  ASSERT_NO_FATAL_FAILURE(judge());
  const uint64_t begin = opened_;
  const uint64_t end = finished_;
  // The last ones, one for each slab that goes back, are of no list any more, and nobody hears of a
  // refusal there.
  const uint64_t of_the_list = begin + 25;
  ASSERT_GT(end, of_the_list);
  const uint64_t step = 20'000 / test::scaled(200);
  for (uint64_t at = begin; at < end; at += at < of_the_list ? 1 : step) {
    const auto image = static_cast<Image>(at % 3);
    SCOPED_TRACE("persist " + std::to_string(at) + " of " + std::to_string(end));
    take_copy();
    {
      test::FailingMedium medium(work_, Domain::kLine);
      medium.begin();
      medium.refuse_here(at, true);
      try {
        drop(medium);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
      }
      ASSERT_TRUE(medium.refused());
      medium.mend();
      std::filesystem::rename(medium.make_image(image, random_.next()), work_);
    }
    ASSERT_NO_FATAL_FAILURE(open_and_judge(image));
  }
  EXPECT_GT(there_, 1);
  EXPECT_GT(gone_, 1);
}

}  // namespace
}  // namespace perdure::pm
