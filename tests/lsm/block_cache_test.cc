// Block caches: never a wrong byte; evictions, restarts, kills, damage, full pools, threads.
#include "perdure/block_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lsm/cache/core.h"
#include "perdure/catalog.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

constexpr uint64_t kCacheMiB = uint64_t{1} << 20;

PoolOptions cache_pool(uint64_t capacity_bytes) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = Domain::kLine;
  return options;
}

// What version `version` of block `number` has: its length, too, tells which one it is.
std::string cached_block(uint64_t number, uint64_t version, uint64_t bytes_max = 6000) {
  Random random(mix(number) + version);
  std::string bytes(1 + random.below(bytes_max), '\0');
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
  return bytes;
}

std::string block_key(uint64_t number) { return "block " + std::to_string(number); }

// Inserts, replaces, erases and looks up; each hit must be the last version of its key.
class CacheModel {
 public:
  explicit CacheModel(uint64_t seed) : random_(seed) {}

  void step(BlockCache& cache, uint64_t keys) {
    const uint64_t number = random_.below(keys);
    const uint64_t choice = random_.below(100);
    if (choice < 40) {
      if (cache.insert(block_key(number), cached_block(number, ++version_))) {
        last_[number] = version_;
      } else {
        last_.erase(number);  // declined: what was there may have gone
      }
    } else if (choice < 45) {
      cache.erase(block_key(number));
      last_.erase(number);
    } else {
      judge(cache, number);
    }
  }
  // Whether it was there.
  bool judge(const BlockCache& cache, uint64_t number) const {
    std::string found;
    if (!cache.lookup(block_key(number), found)) return false;
    const auto known = last_.find(number);
    if (known == last_.end()) {
      ADD_FAILURE() << "block " << number << " is there, which was erased or never inserted";
    } else if (found != cached_block(number, known->second)) {
      ADD_FAILURE() << "block " << number << " has wrong bytes";
    }
    return true;
  }
  uint64_t hits(const BlockCache& cache) const {
    uint64_t hits = 0;
    for (const auto& [number, version] : last_) hits += judge(cache, number) ? 1 : 0;
    return hits;
  }
  const std::map<uint64_t, uint64_t>& last() const { return last_; }

 private:
  Random random_;
  uint64_t version_ = 0;
  std::map<uint64_t, uint64_t> last_;
};

void expect_sound_cache(const Pool& pool, const BlockCache& cache) {
  const auto report = [](const std::string& sentence) { ADD_FAILURE() << sentence; };
  pool.check(report);
  cache.check(report);
  const BlockCacheStatistics now = cache.counters();
  EXPECT_LE(now.pool_bytes, now.capacity_bytes);
}

class BlockCaches : public testing::Test {
 protected:
  std::string path() const { return folder_.file("pool"); }
  TempDir folder_;
};

// The first ones: forks need a process of one thread.
TEST_F(BlockCaches, IsWarmAfterAKill) {
  constexpr uint64_t kBlocks = 1500;
  Pool::create(path(), cache_pool(16 * kCacheMiB)).close();
  Child child([&](int out) {
    auto* pool = new Pool(Pool::open(path(), cache_pool(16 * kCacheMiB)));
    auto* cache = new BlockCache(BlockCache::create(
        *pool, "cache", {.capacity_bytes = 8 * kCacheMiB, .segment_bytes = 65536}));
    for (uint64_t i = 0; i < kBlocks; ++i) {
      if (!cache->insert(block_key(i), cached_block(i, 1, 4096)))
        throw Error(ErrorCode::kIo, "declined");
      if (i % 10 == 0) cache->erase(block_key(i));
      send(out, &i, sizeof i);
    }
    for (;;) cache->insert(block_key(7), cached_block(7, 1, 4096));
  });
  uint64_t told = 0;
  while (told + 1 < kBlocks && child.receive(&told, sizeof told)) {
  }
  child.kill();
  child.wait();
  ASSERT_EQ(told + 1, kBlocks);
  Pool pool = Pool::open(path(), cache_pool(16 * kCacheMiB));
  const BlockCache cache = BlockCache::open(pool, "cache");
  uint64_t hits = 0;
  std::string found;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    if (!cache.lookup(block_key(i), found)) continue;
    ++hits;
    EXPECT_EQ(found, cached_block(i, 1, 4096));
    EXPECT_NE(i % 10, 0U) << "an erased block is back";
  }
  EXPECT_EQ(hits, kBlocks - kBlocks / 10);
  EXPECT_EQ(cache.counters().recovered, hits);
  expect_sound_cache(pool, cache);
}

TEST_F(BlockCaches, NeverGivesWrongBytesOverManyOpenings) {
  for (const Domain domain : {Domain::kLine, Domain::kByte, Domain::kPage}) {
    SCOPED_TRACE(to_string(domain));
    std::filesystem::remove(path());
    PoolOptions options = cache_pool(4 * kCacheMiB);
    options.domain = domain;
    if (domain == Domain::kPage) options.durability = Durability::kBest;
    std::optional<Pool> made;
    try {
      made.emplace(Pool::create(path(), options));
    } catch (const Error&) {
      continue;  // this medium has no such domain
    }
    made.reset();
    CacheModel model(base_seed());
    for (int round = 0; round < 6; ++round) {
      Pool pool = Pool::open(path(), options);
      BlockCache cache = BlockCache::open_or_create(
          pool, "cache", {.capacity_bytes = kCacheMiB / 4, .segment_bytes = 16384});
      model.hits(cache);
      for (uint64_t i = 0; i < scaled(3000); ++i) model.step(cache, 600);
      EXPECT_GT(model.hits(cache), 10U);
      EXPECT_GT(cache.counters().evictions, 0U);
      expect_sound_cache(pool, cache);
    }
  }
}

TEST_F(BlockCaches, TakesNoMoreThanItsCapacityAndKeepsWhatIsAskedFor) {
  Pool pool = Pool::create(path(), cache_pool(16 * kCacheMiB));
  BlockCache cache =
      BlockCache::create(pool, "cache", {.capacity_bytes = 2 * kCacheMiB, .segment_bytes = 131072});
  const uint64_t before = pool.info().allocated_bytes;
  std::string found;
  uint64_t hot_hits = 0;
  uint64_t hot_asked = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(cache.insert(block_key(100 + i), cached_block(i, 1, 4096)));
    const uint64_t hot = i % 50;
    ++hot_asked;
    if (cache.lookup(block_key(hot), found)) {
      ++hot_hits;
      EXPECT_EQ(found, cached_block(hot, 1, 4096));
    } else {
      ASSERT_TRUE(cache.insert(block_key(hot), cached_block(hot, 1, 4096)));
    }
  }
  const BlockCacheStatistics now = cache.counters();
  EXPECT_EQ(now.pool_bytes, 2 * kCacheMiB);
  EXPECT_LE(pool.info().allocated_bytes - before, 2 * kCacheMiB);
  EXPECT_GT(now.evictions, 5000U);
  EXPECT_GT(now.reinserted, 0U);
  EXPECT_GT(hot_hits, hot_asked * 9 /
                          10);  // each of them is asked for again before its second chance is over
  EXPECT_GT(now.dram_bytes, now.blocks * 16);
  expect_sound_cache(pool, cache);
}

TEST_F(BlockCaches, KeepsWhatSomebodyWants) {
  Pool pool = Pool::create(path(), cache_pool(16 * kCacheMiB));
  BlockCache cache = BlockCache::create(
      pool, "cache",
      {.capacity_bytes = kCacheMiB, .segment_bytes = 65536, .is_wanted = [](std::string_view key) {
         return key == block_key(3) || key == block_key(5);
       }});
  for (uint64_t i = 0; i < 5000; ++i)
    ASSERT_TRUE(cache.insert(block_key(i), cached_block(i, 1, 4096)));
  std::string found;
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(cache.lookup(block_key(i), found), i == 3 || i == 5) << i;
    if (i == 3 || i == 5) {
      EXPECT_EQ(found, cached_block(i, 1, 4096));
    }
  }
}

TEST_F(BlockCaches, IsWarmAfterARestartWithManyThreads) {
  uint64_t blocks = 0;
  {
    Pool pool = Pool::create(path(), cache_pool(32 * kCacheMiB));
    BlockCache cache = BlockCache::create(
        pool, "cache", {.capacity_bytes = 16 * kCacheMiB, .segment_bytes = 65536});
    for (uint64_t i = 0; i < 3000; ++i) ASSERT_TRUE(cache.insert(block_key(i), cached_block(i, 1)));
    blocks = cache.counters().blocks;
    EXPECT_EQ(blocks, 3000U);
  }
  for (const uint32_t threads : {1U, 3U, 8U}) {
    Pool pool = Pool::open(path(), cache_pool(32 * kCacheMiB));
    const BlockCache cache = BlockCache::open(pool, "cache", {.threads = threads});
    EXPECT_EQ(cache.counters().recovered, blocks);
    std::string found;
    for (uint64_t i = 0; i < 3000; ++i) {
      ASSERT_TRUE(cache.lookup(block_key(i), found));
      EXPECT_EQ(found, cached_block(i, 1));
    }
    uint64_t walked = 0;
    cache.for_each([&](std::string_view, std::string_view) { ++walked; });
    EXPECT_EQ(walked, blocks);
  }
}

TEST_F(BlockCaches, ReadOnlyIsReadAndDeclines) {
  {
    Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
    BlockCache::create(pool, "cache").insert("a", "block");
  }
  PoolOptions options;
  options.read_only = true;
  Pool pool = Pool::open(path(), options);
  BlockCache cache = BlockCache::open(pool, "cache");
  std::string found;
  EXPECT_TRUE(cache.lookup("a", found));
  EXPECT_EQ(found, "block");
  EXPECT_FALSE(cache.insert("b", "another"));
  EXPECT_EQ(cache.counters().declined, 1U);
  EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, "", [&] { cache.erase("a"); }));
}

TEST_F(BlockCaches, SaysWhatIsWrongWithItsOptions) {
  Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
  const auto refuses = [&](const BlockCacheOptions& options, const char* text) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, text,
                           [&] { BlockCache::create(pool, "cache", options); }));
  };
  refuses({.segment_bytes = 5000}, "segment_bytes is 5000");
  refuses({.segment_bytes = 128 * kCacheMiB}, "segment_bytes");
  refuses({.capacity_bytes = 100}, "capacity_bytes is 100");
  BlockCache cache = BlockCache::create(pool, "cache", {.capacity_bytes = kCacheMiB});
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, "1 to", [&] { cache.insert("", "x"); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, "some bytes", [&] { cache.insert("x", ""); }));
  EXPECT_FALSE(cache.insert("x", std::string(kCacheMiB, 'x')));  // larger than a segment
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, "", [&] { BlockCache::open(pool, "cache"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "block cache", [&] { open_index(pool, "cache"); }));
}

TEST_F(BlockCaches, LivesWithAFullPool) {
  Pool pool = Pool::create(path(), cache_pool(3 * kCacheMiB));
  BlockCache cache =
      BlockCache::create(pool, "cache", {.capacity_bytes = 64 * kCacheMiB, .segment_bytes = 65536});
  CacheModel model(base_seed());
  for (uint64_t i = 0; i < 5000; ++i) model.step(cache, 2000);
  EXPECT_GT(model.hits(cache), 100U);
  const BlockCacheStatistics now = cache.counters();
  EXPECT_EQ(now.declined, 0U);
  EXPECT_LT(now.pool_bytes, 3 * kCacheMiB);
  EXPECT_GT(now.evictions, 0U);
  expect_sound_cache(pool, cache);
  // One that gets no segment at all.
  std::optional<BlockCache> late;
  try {
    late.emplace(
        BlockCache::create(pool, "late", {.capacity_bytes = kCacheMiB, .segment_bytes = 262144}));
  } catch (const Error& error) {
    EXPECT_TRUE(pm::is_full(error)) << error.what();
  }
  if (late) {
    EXPECT_FALSE(late->insert("a", "b"));
    EXPECT_EQ(late->counters().declined, 1U);
  }
}

TEST_F(BlockCaches, IsDroppedWithAllItsBlocks) {
  Pool pool = Pool::create(path(), cache_pool(8 * kCacheMiB));
  const uint64_t before = pool.info().allocated_bytes;
  {
    BlockCache cache = BlockCache::create(pool, "cache", {.capacity_bytes = 4 * kCacheMiB});
    for (uint64_t i = 0; i < 2000; ++i) cache.insert(block_key(i), cached_block(i, 1));
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, "", [&] { drop_structure(pool, "cache"); }));
  }
  EXPECT_GT(drop_structure(pool, "cache"), 3 * kCacheMiB);
  EXPECT_EQ(pool.info().allocated_bytes, before);
  // What is left of it passes for nothing in another one.
  const BlockCache next = BlockCache::create(pool, "cache", {.capacity_bytes = 4 * kCacheMiB});
  std::string found;
  for (uint64_t i = 0; i < 2000; ++i) EXPECT_FALSE(next.lookup(block_key(i), found));
}

// Bits and lines of the segments, while the cache is open and while it is not.
TEST_F(BlockCaches, DamageIsAMiss) {
  std::string sound;
  CacheModel model(base_seed());
  uint64_t blocks = 0;
  {
    Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
    BlockCache cache =
        BlockCache::create(pool, "cache", {.capacity_bytes = kCacheMiB, .segment_bytes = 65536});
    for (uint64_t i = 0; i < 3000; ++i) model.step(cache, 500);
    blocks = model.hits(cache);
  }
  sound = read_file(path());
  Random random(base_seed());
  uint64_t damaged = 0;
  uint64_t lost = 0;
  for (uint64_t round = 0; round < scaled(60); ++round) {
    write_file(path(), sound);
    PoolOptions options = cache_pool(4 * kCacheMiB);
    Pool pool = Pool::open(path(), options);
    const auto harm = [&](const BlockCache& cache) {
      std::vector<std::string_view> segments;
      pm::PoolImpl& impl = pm::impl_of(pool);
      cache.for_each([&](std::string_view key, std::string_view block) {
        segments.emplace_back(key.data() - 24, key.size() + block.size() + 24);
      });
      for (int i = 0; i < 20; ++i) {
        const std::string_view one = segments[random.below(segments.size())];
        char* at = impl.base() + impl.offset_of(one.data()) + random.below(one.size());
        if (random.chance(50)) {
          *at = static_cast<char>(*at ^ (1 << random.below(8)));
        } else {
          // A line from elsewhere, as when a write went astray.
          const std::string_view other = segments[random.below(segments.size())];
          const uint64_t line = impl.offset_of(at) / 64 * 64;
          const uint64_t from = impl.offset_of(other.data()) / 64 * 64;
          std::memcpy(impl.base() + line, impl.base() + from, 64);
        }
      }
    };
    std::optional<BlockCache> open(BlockCache::open(pool, "cache"));
    harm(*open);
    if (random.chance(50)) {
      open.reset();
      open.emplace(BlockCache::open(pool, "cache"));
    }
    const uint64_t hits = model.hits(*open);
    lost += blocks - hits;
    damaged += open->counters().damaged;
    // And goes on.
    CacheModel next = model;
    for (uint64_t i = 0; i < 300; ++i) next.step(*open, 500);
    next.hits(*open);
  }
  EXPECT_GT(damaged, 0U);
  EXPECT_GT(lost, damaged);
}

// A flipped bit of the table, and a place of somebody else's in it: nothing is taken for a segment,
// nor written over.
TEST_F(BlockCaches, ADamagedTableIsRefused) {
  const BlockCacheOptions options{.capacity_bytes = kCacheMiB, .segment_bytes = 65536};
  constexpr uint64_t kSegments = 6;
  const auto fill = [](BlockCache& cache, uint64_t first) {
    for (uint64_t i = first; cache.counters().pool_bytes < kSegments * 65536; ++i)
      ASSERT_TRUE(cache.insert(block_key(i), cached_block(i, 1)));
  };
  std::vector<uint64_t> own;  // offsets of words
  std::vector<uint64_t> others;
  uint64_t salt = 0;
  {
    Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
    pm::PoolImpl& impl = pm::impl_of(pool);
    BlockCache cache = BlockCache::create(pool, "cache", options);
    BlockCache other = BlockCache::create(pool, "other", options);
    fill(cache, 0);
    fill(other, 10'000);
    const auto* root = impl.at<block_cache::Root>(impl.find("cache")->root);
    salt = root->salt;
    for (uint64_t i = 0; i < kSegments + 1; ++i) own.push_back(root->table + i * 8);
    const auto* table =
        impl.at<uint64_t>(impl.at<block_cache::Root>(impl.find("other")->root)->table);
    for (uint64_t i = 0; i < kSegments; ++i) others.push_back(table[i]);
  }
  const std::string sound = read_file(path());
  uint64_t refused = 0;
  const auto refuses = [&](uint64_t i, uint64_t word) {
    uint64_t offset = 0;
    if (pm::unseal_word(word, salt + i, offset)) return;  // one in 65,536 fits
    std::string damaged = sound;
    std::memcpy(damaged.data() + own[i], &word, sizeof word);
    write_file(path(), damaged);
    Pool pool = Pool::open(path(), cache_pool(4 * kCacheMiB));
    EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, "'cache'",
                           [&] {
                             BlockCache cache = BlockCache::open(pool, "cache");
                             for (uint64_t k = 0; k < 300; ++k)
                               cache.insert(block_key(k), cached_block(k, 2));
                           }))
        << "word " << i << ": " << std::hex << word;
    const BlockCache other = BlockCache::open(pool, "other");
    EXPECT_EQ(other.counters().damaged, 0U);
    EXPECT_GT(other.counters().recovered, 50U);
    ++refused;
  };
  constexpr uint64_t kOffset = (uint64_t{1} << 48) - 1;
  for (uint64_t i = 0; i < own.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, sound.data() + own[i], sizeof word);
    for (uint64_t bit = i % 3; bit < 64; bit += 3) refuses(i, word ^ uint64_t{1} << bit);
    for (const uint64_t each : others) {
      refuses(i, each);
      refuses(i, (word & ~kOffset) | (each & kOffset));
    }
  }
  EXPECT_GT(refused, 200U);
}

// Damage brings a replaced record back beside its successor: the newer one counts, and when that is
// erased, neither.
TEST_F(BlockCaches, OfTwoRecordsOfAKeyOneIsLeft) {
  for (const bool next_segment : {false, true}) {
    SCOPED_TRACE(next_segment);
    std::filesystem::remove(path());
    uint64_t place = 0;
    uint64_t check = 0;
    {
      Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
      BlockCache cache =
          BlockCache::create(pool, "cache", {.capacity_bytes = kCacheMiB, .segment_bytes = 16384});
      ASSERT_TRUE(cache.insert("key", "first"));
      cache.for_each([&](std::string_view key, std::string_view) {
        place = pm::impl_of(pool).offset_of(key.data()) - sizeof(block_cache::RecordHead);
      });
      check = *pm::impl_of(pool).at<uint64_t>(place);
      for (uint64_t i = 0; next_segment && i < 10; ++i)
        ASSERT_TRUE(cache.insert(block_key(i), cached_block(i, 1)));
      ASSERT_TRUE(cache.insert("key", "second"));
      EXPECT_EQ(*pm::impl_of(pool).at<uint64_t>(place), 0U);
      *pm::impl_of(pool).at<uint64_t>(place) = check;
    }
    std::string found;
    {
      PoolOptions options;
      options.read_only = true;
      Pool pool = Pool::open(path(), options);
      const BlockCache cache = BlockCache::open(pool, "cache");
      EXPECT_TRUE(cache.lookup("key", found));
      EXPECT_EQ(found, "second");
      EXPECT_EQ(*pm::impl_of(pool).at<uint64_t>(place), check);
    }
    for (int opening = 0; opening < 2; ++opening) {
      Pool pool = Pool::open(path(), cache_pool(4 * kCacheMiB));
      BlockCache cache = BlockCache::open(pool, "cache");
      EXPECT_EQ(cache.lookup("key", found), opening == 0);
      if (opening == 0) {
        EXPECT_EQ(found, "second");
      }
      EXPECT_EQ(cache.erase("key"), opening == 0);
    }
  }
}

// Threads make opening faster, no more: a process that may have none opens its cache.
TEST_F(BlockCaches, OpensWithoutThreads) {
  {
    Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
    BlockCache cache =
        BlockCache::create(pool, "cache", {.capacity_bytes = kCacheMiB, .segment_bytes = 4096});
    for (uint64_t i = 0; cache.counters().pool_bytes < kCacheMiB; ++i)
      cache.insert(block_key(i), cached_block(i, 1, 3000));
  }
  EXPECT_EQ(in_crashing_child([&]() -> std::string {
              Pool pool = Pool::open(path(), cache_pool(4 * kCacheMiB));
              std::ifstream sizes("/proc/self/statm");
              uint64_t pages = 0;
              sizes >> pages;
              // Memory, but no room for a stack.
              const rlimit limit{(pages << 12) + (4 << 20), RLIM_INFINITY};
              if (::setrlimit(RLIMIT_AS, &limit) != 0) return "there is no limit";
              const BlockCache cache = BlockCache::open(pool, "cache", {.threads = 8});
              return cache.counters().recovered > 100 ? "" : "blocks are missing";
            }),
            "");
}

TEST_F(BlockCaches, AFailedMediumDeclinesAndIsRead) {
  for (uint64_t n = 0; n < 40; ++n) {
    std::filesystem::remove(path());
    FailingMedium medium(path(), Domain::kLine);
    Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
    BlockCache cache = BlockCache::create(
        pool, "cache", {.capacity_bytes = kCacheMiB / 2, .segment_bytes = 32768});
    CacheModel model(base_seed() + n);
    for (uint64_t i = 0; i < 200; ++i) model.step(cache, 300);
    medium.begin();
    medium.refuse_here(medium.persists() + n * n / 4, true);
    for (uint64_t i = 0; i < 3000 && !medium.refused(); ++i) {
      try {
        model.step(cache, 300);
      } catch (const Error& error) {  // erasing says so
        ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
        break;
      }
    }
    ASSERT_TRUE(medium.refused());
    EXPECT_FALSE(cache.insert(block_key(1), cached_block(1, 99'999)));
    model.hits(cache);
  }
}

// Power fails at any persist, again and again, or the process dies; what was not fenced is there in
// part.
TEST_F(BlockCaches, PowerFailuresBringNothingBack) {
  const PoolOptions options = cache_pool(3 * kCacheMiB);
  {
    Pool pool = Pool::create(path(), options);
    BlockCache::create(pool, "cache", {.capacity_bytes = kCacheMiB / 2, .segment_bytes = 32768});
  }
  Random random(base_seed());
  // Of each key the version that may be there: the last one that an insert has begun, or none.
  std::map<uint64_t, std::set<uint64_t>> may_be;
  uint64_t version = 0;
  uint64_t hits = 0;
  std::optional<FailingMedium> since_failure;
  for (uint64_t session = 0; session < scaled(150) && !HasFailure(); ++session) {
    SCOPED_TRACE("session " + std::to_string(session));
    if (!since_failure) {
      since_failure.emplace(path(), Domain::kLine);
      since_failure->begin();
    }
    FailingMedium& medium = *since_failure;
    medium.refuse_here(medium.persists() + random.below(random.chance(30) ? 20 : 600), true);
    try {
      Pool pool = Pool::open(path(), options);
      BlockCache cache = BlockCache::open(pool, "cache");
      std::string found;
      for (uint64_t number = 0; number < 200; ++number) {
        if (!cache.lookup(block_key(number), found)) continue;
        ++hits;
        bool known = false;
        for (const uint64_t each : may_be[number])
          known |= found == cached_block(number, each, 3000);
        EXPECT_TRUE(known) << "block " << number;
      }
      for (;;) {
        const uint64_t number = random.below(200);
        if (random.chance(15)) {
          cache.erase(block_key(number));
          may_be[number].clear();
          continue;
        }
        may_be[number].insert(++version);
        if (!cache.insert(block_key(number), cached_block(number, version, 3000))) break;
        may_be[number] = {version};
      }
    } catch (const Error& error) {
      ASSERT_TRUE(medium.refused()) << error.what();
    }
    ASSERT_TRUE(medium.refused());
    // A process that died leaves in the caches what it has stored, for the next one to find.
    if (random.below(3) == 0) continue;
    using Image = FailingMedium::Image;
    constexpr Image kImages[] = {Image::kMixed, Image::kMixed, Image::kLeast, Image::kAll};
    std::filesystem::rename(medium.make_image(kImages[random.below(4)], random.next()), path());
    since_failure.reset();
  }
  EXPECT_GT(hits, 100U);
}

// Whoever is asked for room for a block inserts others, and all segments come to be used again:
// nobody waits for itself, nor for another one that does.
TEST_F(BlockCaches, RoomForABlockMayUseTheCache) {
  for (const unsigned threads : {1U, 3U}) {
    std::filesystem::remove(path());
    Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
    BlockCache cache =
        BlockCache::create(pool, "cache", {.capacity_bytes = 6 * 8192, .segment_bytes = 8192});
    std::atomic<uint64_t> hits{0};
    std::vector<std::thread> all;
    for (unsigned thread = 0; thread < threads; ++thread) {
      all.emplace_back([&, thread] {
        Random random(base_seed() + thread);
        std::string found;
        std::string inner;
        for (uint64_t i = 0; i < scaled(400); ++i) {
          const uint64_t number = random.below(60);
          const bool hit = cache.lookup(block_key(number), [&](size_t bytes) {
            for (uint64_t k = 0; k < 20; ++k) {
              const uint64_t other = random.below(60);
              if (random.chance(10)) cache.erase(block_key(other));
              if (cache.lookup(block_key(other), inner)) {
                EXPECT_EQ(inner, cached_block(other, 0, 2000));
              } else {
                cache.insert(block_key(other), cached_block(other, 0, 2000));
              }
            }
            found.resize(bytes);
            return found.data();
          });
          if (hit) {
            ++hits;
            EXPECT_EQ(found, cached_block(number, 0, 2000));
          } else {
            cache.insert(block_key(number), cached_block(number, 0, 2000));
          }
        }
      });
    }
    for (std::thread& each : all) each.join();
    EXPECT_GT(hits.load(), 10U);
    EXPECT_GT(cache.counters().evictions, 100U);
    EXPECT_EQ(cache.counters().damaged, 0U);
    expect_sound_cache(pool, cache);
  }
}

// Memory runs out while a segment comes to be used again: what was to stay goes, the segment does
// not.
TEST_F(BlockCaches, ShortMemoryLosesNoSegment) {
  Pool pool = Pool::create(path(), cache_pool(4 * kCacheMiB));
  BlockCache cache =
      BlockCache::create(pool, "cache", {.capacity_bytes = 8 * 16384, .segment_bytes = 16384});
  const auto fill = [&](uint64_t begin, uint64_t end) {
    std::string found;
    for (uint64_t i = begin; i < end; ++i) {
      EXPECT_TRUE(cache.insert(block_key(i), cached_block(i, 0, 2000)));
      EXPECT_TRUE(cache.lookup(block_key(i), found));
      EXPECT_EQ(found, cached_block(i, 0, 2000));
    }
  };
  fill(0, 300);
  uint64_t refused = 0;
  uint64_t next = 300;
  for (uint64_t allocations = 0; allocations < 24; ++allocations) {
    for (int i = 0; i < 30; ++i) {
      const std::string key = block_key(next);
      const std::string block = cached_block(next++, 0, 2000);
      std::string found;
      found.reserve(2000);
      ShortMemory memory(allocations);
      try {
        cache.insert(key, block);
        cache.lookup(key, found);
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the caller is told
      }
      memory.end();
      refused += memory.refused();
    }
  }
  EXPECT_GT(refused, 50U);
  fill(next, next + 300);
  EXPECT_EQ(cache.counters().declined, 0U);
  EXPECT_EQ(cache.counters().damaged, 0U);
  // Of about a kilobyte each: those of all segments but a few.
  uint64_t hits = 0;
  std::string found;
  for (uint64_t i = 0; i < next + 300; ++i) {
    if (!cache.lookup(block_key(i), found)) continue;
    ++hits;
    EXPECT_EQ(found, cached_block(i, 0, 2000));
  }
  EXPECT_EQ(hits, cache.counters().blocks);
  EXPECT_GT(hits, 80U);
  expect_sound_cache(pool, cache);
}

TEST_F(BlockCaches, ManyThreadsSeeWhatBelongsToTheirKeys) {
  Pool pool = Pool::create(path(), cache_pool(8 * kCacheMiB));
  BlockCache cache =
      BlockCache::create(pool, "cache", {.capacity_bytes = kCacheMiB / 4, .segment_bytes = 16384});
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(base_seed() + thread);
      std::string found;
      for (uint64_t i = 0; i < scaled(4000); ++i) {
        const uint64_t number = random.below(500);
        if (random.chance(2)) {
          cache.erase(block_key(number));
        } else if (cache.lookup(block_key(number), found)) {
          hits.fetch_add(1, std::memory_order_relaxed);
          // Versions are told by threads of their own.
          EXPECT_TRUE(found == cached_block(number, 0, 2000) ||
                      found == cached_block(number, 1, 2000));
        } else {
          cache.insert(block_key(number), cached_block(number, random.chance(10) ? 1 : 0, 2000));
        }
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_GT(hits.load(), 1000U);
  EXPECT_GT(cache.counters().evictions, 0U);
  EXPECT_EQ(cache.counters().damaged, 0U);
  expect_sound_cache(pool, cache);
}

}  // namespace
}  // namespace perdure::test
