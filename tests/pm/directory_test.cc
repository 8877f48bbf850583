// More structures than the fixed part of a pool has names for.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "index/structure.h"
#include "perdure/catalog.h"
#include "pm/drop.h"
#include "pm/pause.h"
#include "pm/pool_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::pm {
namespace {

using test::fails_with;

class ManyNames : public ::testing::Test {
 protected:
  static PoolOptions options(Domain domain = Domain::kByte) {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    options.force_domain = true;
    options.domain = domain;
    return options;
  }
  static std::string name_of(uint32_t i) { return "structure " + std::to_string(i); }
  // A structure that is a root block.
  static void make(Pool& pool, const std::string& name) {
    index::RootSeal root{};
    root.magic = 1;
    index::make_structure(impl_of(pool), name, "test", Kind::kU64, Kind::kU64, &root, sizeof root,
                          0, {});
  }
  static void make(Pool& pool, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; ++i) make(pool, name_of(i));
  }
  static void drop(Pool& pool, const std::string& name) {
    PoolImpl& impl = impl_of(pool);
    const uint64_t root = impl.find(name)->root;
    Drop drop(impl, name);
    drop.add(root);
    drop.commit();
    EXPECT_TRUE(impl.is_dropped(impl.at<char>(root)));
    drop.finish();
    EXPECT_FALSE(impl.is_dropped(impl.at<char>(root)));
  }
  // The pool has these names, each once and found, and nothing else.
  static void expect_names(const Pool& pool, const std::set<std::string>& names) {
    const PoolImpl& impl = impl_of(pool);
    const std::vector<StructureInfo> listed = pool.structures();
    EXPECT_EQ(listed.size(), names.size());
    std::set<uint64_t> roots;
    for (const StructureInfo& one : listed) {
      EXPECT_TRUE(names.contains(one.name)) << one.name;
      const DirectoryEntry* entry = impl.find(one.name);
      ASSERT_NE(entry, nullptr) << one.name;
      EXPECT_TRUE(roots.insert(entry->root).second);
    }
    EXPECT_EQ(impl.find("none"), nullptr);
    uint64_t owned = roots.size() * Heap::block_bytes(sizeof(index::RootSeal));
    impl.visit_blocks([&](uint64_t, uint64_t bytes) { owned += bytes; });
    EXPECT_EQ(pool.info().allocated_bytes, owned);
    EXPECT_EQ(pool.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
  }
  static std::set<std::string> names(uint32_t from, uint32_t to) {
    std::set<std::string> all;
    for (uint32_t i = from; i < to; ++i) all.insert(name_of(i));
    return all;
  }

  test::TempDir dir_;
  std::string path_ = dir_.file("pool");
};

// Its entry has no name to tell yet.
TEST_F(ManyNames, WhatIsBeingCreatedIsInUse) {
  Pool pool = Pool::create(path_, options());
  std::string told;
  const auto shrink = [&](char*) {
    try {
      pool.shrink();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInUse);
      told = error.what();
    }
  };
  struct Root {
    index::RootSeal seal;
    uint64_t block;
  } root{};
  root.seal.magic = 1;
  const index::NewBlock block{64, offsetof(Root, block), shrink};
  index::StructureUse use;
  index::make_structure(impl_of(pool), "new", "test", Kind::kU64, Kind::kU64, &root, sizeof root, 0,
                        {&block, 1}, &use);
  EXPECT_NE(told.find("is being created or dropped"), std::string::npos) << told;
  EXPECT_THROW(pool.shrink(), Error);
  use.reset();
  pool.shrink();
}

TEST_F(ManyNames, AreFoundRenamedDroppedAndUsedAgain) {
  Pool pool = Pool::create(path_, options());
  make(pool, 0, kDirectoryEntries);
  EXPECT_EQ(pool.info().format_version, kFirstFormat);
  make(pool, kDirectoryEntries, 1000);
  EXPECT_EQ(pool.info().format_version, kExtendedFormat);
  std::set<std::string> all = names(0, 1000);
  expect_names(pool, all);
  EXPECT_TRUE(fails_with(ErrorCode::kNameExists, name_of(999), [&] { make(pool, name_of(999)); }));
  for (uint32_t i = 0; i < 1000; i += 3) {
    drop(pool, name_of(i));
    all.erase(name_of(i));
  }
  for (uint32_t i = 1; i < 1000; i += 3) {
    pool.rename(name_of(i), "renamed " + std::to_string(i));
    all.erase(name_of(i));
    all.insert("renamed " + std::to_string(i));
  }
  for (uint32_t i = 2; i + 300 < 1000; i += 300) {
    PoolImpl& impl = impl_of(pool);
    const uint64_t root = impl.find(name_of(i))->root;
    const uint64_t other = impl.find(name_of(i + 300))->root;
    impl.exchange_names(name_of(i), name_of(i + 300));
    EXPECT_EQ(impl.find(name_of(i))->root, other);
    EXPECT_EQ(impl.find(name_of(i + 300))->root, root);
  }
  for (int round = 0; round < 2; ++round) {
    expect_names(pool, all);
    EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, [&] { pool.rename(name_of(0), "x"); }));
    EXPECT_TRUE(fails_with(ErrorCode::kNameExists, [&] { pool.rename(name_of(2), "renamed 1"); }));
    pool.close();
    pool = Pool::open(path_, options());
  }
  const uint64_t before = pool.info().allocated_bytes;
  make(pool, 2000, 2000 + 334);  // where those were that are gone
  const std::set<std::string> more = names(2000, 2000 + 334);
  all.insert(more.begin(), more.end());
  expect_names(pool, all);
  EXPECT_EQ(pool.info().allocated_bytes, before + 334 * Heap::block_bytes(sizeof(index::RootSeal)));
  // Copies have them, too.
  pool.backup(dir_.file("backup"));
  Pool::restore(dir_.file("backup"), dir_.file("restored"));
  expect_names(Pool::open(dir_.file("restored"), options()), all);
  // As a process that dies leaves it.
  std::filesystem::copy_file(path_, dir_.file("left"));
  expect_names(Pool::open(dir_.file("left"), options()), all);
}

// Who looks for a name while it goes from one structure to another finds the one or the other: an
// entry that was looked at before it got the name, and one that has lost it by the time it is
// looked at, are no answer.
TEST_F(ManyNames, AreFoundWhileTheyAreExchanged) {
  static std::atomic<bool> begun;
  static std::atomic<bool> looking;
  static std::atomic<bool> exchanged;
  static std::function<void()> look;
  Pool pool = Pool::create(path_, options());
  make(pool, 0, 100);  // with few names an entry that is new is looked at last
  make(pool, "a");
  make(pool, "b");
  PoolImpl& impl = impl_of(pool);
  begun = looking = exchanged = false;
  std::atomic<bool> found{false};
  std::thread other;
  look = [&] {
    begun = true;
    other = std::thread([&] { found = impl.find("a") != nullptr; });
    while (!looking) std::this_thread::yield();
  };
  at_place.store([](const char* place) {
    if (std::string_view(place) == "pool: exchanges names") look();
    if (std::string_view(place) != "pool: looks at an entry" || !begun || looking.exchange(true))
      return;
    // Until the other has exchanged them, or for some time, as it may have to wait for who looks.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!exchanged && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  });
  impl.exchange_names("a", "b");
  exchanged = true;
  other.join();
  at_place.store(nullptr);
  EXPECT_TRUE(found);
}

TEST_F(ManyNames, AreAsManyAsTheLimitAndNotOneMore) {
  Pool pool = Pool::create(path_, options());
  make(pool, 0, kStructuresMax);
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, std::to_string(kStructuresMax),
                         [&] { make(pool, "one more"); }));
  EXPECT_EQ(pool.structures().size(), kStructuresMax);
  drop(pool, name_of(40'000));
  make(pool, "one more");
  EXPECT_TRUE(fails_with(ErrorCode::kPoolFull, [&] { make(pool, "another"); }));
  std::set<std::string> all = names(0, kStructuresMax);
  all.erase(name_of(40'000));
  all.insert("one more");
  pool.close();
  const auto start = std::chrono::steady_clock::now();
  pool = Pool::open(path_, options());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  RecordProperty("opening_ms", std::to_string(took.count()));
  std::cout << "opening took " << took.count() << " ms\n";
  expect_names(pool, all);
}

TEST_F(ManyNames, OfRealStructuresThatThreadsMakeAndDrop) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kEach = 150;
  Pool pool = Pool::create(path_, options());
  const auto name = [](uint32_t thread, uint32_t i) {
    return std::to_string(thread) + " has " + std::to_string(i);
  };
  const auto run = [&](uint32_t thread) {
    for (uint32_t i = 0; i < kEach; ++i) {
      const auto index = create_index(pool, name(thread, i), "wort", Kind::kU64, Kind::kU64);
      index->insert(uint64_t{thread}, uint64_t{i});
    }
    for (uint32_t i = 0; i < kEach; ++i) {
      if (i % 4 == 0) drop_structure(pool, name(thread, i));
      if (i % 4 == 1) pool.rename(name(thread, i), name(thread + kThreads, i));
      Value value;
      if (i % 4 == 2) {
        EXPECT_TRUE(open_index(pool, name(thread, i))->lookup(uint64_t{thread}, value));
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) threads.emplace_back(run, t);
  }
  pool.close();
  pool = Pool::open(path_, options());
  for (uint32_t t = 0; t < kThreads; ++t) {
    for (uint32_t i = 0; i < kEach; ++i) {
      const bool gone = i % 4 == 0;
      const std::string held = name(i % 4 == 1 ? t + kThreads : t, i);
      ASSERT_EQ(impl_of(pool).find(held) == nullptr, gone) << held;
      if (gone) continue;
      Value value;
      ASSERT_TRUE(open_index(pool, held)->lookup(uint64_t{t}, value));
      ASSERT_EQ(value.word(), i);
    }
  }
  EXPECT_EQ(pool.check([](const std::string& what) { ADD_FAILURE() << what; }), 0U);
}

TEST_F(ManyNames, DamageOfABlockIsFound) {
  {
    Pool pool = Pool::create(path_, options());
    make(pool, 0, 600);
    EXPECT_EQ(impl_of(pool).structures().size(), 600U);
  }
  const std::string sound = test::read_file(path_);
  PoolHeader header;
  std::memcpy(&header, sound.data(), sizeof header);
  uint64_t block = 0;
  ASSERT_TRUE(unseal_word(header.directory_word, kDirectorySalt, block));
  const auto refused = [&] {
    const bool is =
        static_cast<bool>(fails_with(ErrorCode::kCorrupt, path_, [&] { Pool::open(path_); }));
    PoolOptions lenient;
    lenient.read_only = lenient.lenient = true;
    const Pool pool = Pool::open(path_, lenient);
    EXPECT_GE(pool.structures().size(), kDirectoryEntries);
    EXPECT_GT(pool.check([](const std::string&) {}), 0U) << "what is missing is said";
    test::write_file(path_, sound);
    return is;
  };
  test::Random random(5);
  std::vector<uint64_t> places = {offsetof(PoolHeader, directory_word)};
  for (uint64_t at = 0; at < offsetof(DirectoryBlock, reserved); ++at) places.push_back(block + at);
  for (int i = 0; i < 40; ++i) {
    places.push_back(block + offsetof(DirectoryBlock, entries) +
                     random.below(kDirectoryBlockEntries) * sizeof(DirectoryEntry) +
                     random.below(sizeof(DirectoryEntry)));
  }
  for (const uint64_t at : places) {
    test::patch_file(path_, at, static_cast<char>(sound[at] ^ 1 << random.below(8)));
    EXPECT_TRUE(refused()) << at;
  }
  test::patch_file(path_, block + 4096, std::array<char, 4096>{});
  EXPECT_TRUE(refused());
  // In a circle, or to a block of something else.
  test::patch_file(path_, block + offsetof(DirectoryBlock, next), header.directory_word);
  EXPECT_TRUE(refused());
  test::patch_file(path_, offsetof(PoolHeader, directory_word),
                   seal_word(block + kSegmentBytes, kDirectorySalt));
  EXPECT_TRUE(refused());
  // A version that is not the pool's, either way.
  test::patch_file(path_, offsetof(PoolHeader, directory_word), uint64_t{0});
  EXPECT_TRUE(refused());
  test::patch_file(path_, offsetof(PoolHeader, format_version), kFirstFormat);
  const Pool pool = Pool::open(path_, options());
  expect_names(pool, names(0, 600));
  EXPECT_EQ(pool.info().format_version, kExtendedFormat);
}

// ---- power that fails, and media that refuse

class ManyNamesCrash : public ManyNames, public ::testing::WithParamInterface<Domain> {
 protected:
  using Image = test::FailingMedium::Image;

  void make_original(uint32_t structures) {
    Pool pool = Pool::create(path_, options(GetParam()));
    make(pool, 0, structures);
    pool.close();
    original_ = test::read_file(path_);
  }
  // Makes, renames and drops one more, until persist `at` from now on is refused. Returns whether
  // one was.
  bool work(uint64_t at, Image image, uint64_t seed, const std::string& name = "more") {
    std::string left;
    bool refused = false;
    {
      test::FailingMedium medium(path_, GetParam());
      medium.begin();
      medium.refuse_here(at, true);
      try {
        Pool pool = Pool::open(path_, options(GetParam()));
        make(pool, name);
        pool.rename(name, "still " + name);
        drop(pool, "still " + name);
        pool.close();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        refused = medium.refused();
      }
      left = medium.make_image(image, seed);
      medium.mend();
    }
    std::filesystem::rename(left, path_);
    return refused;
  }
  void judge(uint32_t structures) {
    Pool pool = Pool::open(path_, options(GetParam()));
    std::set<std::string> all = names(0, structures);
    for (const char* name : {"more", "even more"}) {
      const bool made = impl_of(pool).find(name) != nullptr;
      const bool renamed = impl_of(pool).find("still " + std::string(name)) != nullptr;
      EXPECT_FALSE(made && renamed) << name;
      if (made) all.insert(name);
      if (renamed) all.insert("still " + std::string(name));
    }
    expect_names(pool, all);
    make(pool, 10'000, 10'300);
    const std::set<std::string> others = names(10'000, 10'300);
    all.insert(others.begin(), others.end());
    expect_names(pool, all);
  }

  std::string original_;
};

TEST_P(ManyNamesCrash, APersistThatIsRefusedLeavesTheNameOrNot) {
  for (const uint32_t structures :
       {kDirectoryEntries, kDirectoryEntries + kDirectoryBlockEntries}) {
    make_original(structures);
    test::Random random(structures);
    bool refused = true;
    uint64_t persists = 0;
    for (; refused; ++persists) {
      for (const Image image : {Image::kLeast, Image::kMixed, Image::kAll}) {
        SCOPED_TRACE(std::to_string(structures) + ", persist " + std::to_string(persists));
        test::write_file(path_, original_);
        refused = work(persists, image, random.next());
        judge(structures);
      }
    }
    EXPECT_GT(persists, 15U);
    std::filesystem::remove(path_);
  }
}

TEST_P(ManyNamesCrash, TwoCrashesAreNoOther) {
  make_original(kDirectoryEntries);
  test::Random random(17);
  for (uint64_t round = 0; round < test::rounds(60); ++round) {
    const uint64_t first = random.below(20);
    const uint64_t second = random.below(20);
    SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(second));
    test::write_file(path_, original_);
    work(first, static_cast<Image>(random.below(3)), random.next());
    work(second, static_cast<Image>(random.below(3)), random.next(), "even more");
    judge(kDirectoryEntries);
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, ManyNamesCrash, ::testing::Values(Domain::kLine, Domain::kPage),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace perdure::pm
