// Damage that compaction meets, and entries that an index in PM has lost: no key is ever told an
// older value, whatever crash follows, and what is wrong is named.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "index/cceh/layout.h"
#include "index/hash.h"
#include "index/records.h"
#include "perdure/catalog.h"
#include "perdure/store.h"
#include "pm/layout.h"
#include "pm/pool_impl.h"
#include "store/fixture.h"
#include "store/hash.h"
#include "store/layout.h"
#include "store/pm_index.h"
#include "store/store_impl.h"
#include "store/turn.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using store::PmPartitionIndex;
using Model = std::map<std::string, std::string>;

class StoreIndexDamageTest : public testing::TestWithParam<StoreIndex> {
 protected:
  static PoolOptions options() { return unsealed_store_pool(32); }
  std::string path() const { return dir_.file("pool"); }
  static StoreOptions made(StoreIndex index, uint32_t block_bytes = 1024) {
    return {.index = index,
            .index_structure =
                index == StoreIndex::kPm ? "cceh:segment_buckets=64,initial_depth=1" : "",
            .partitions = 1,
            .block_bytes = block_bytes,
            .garbage_percent = 5};
  }
  // Many that an ordered index tells apart only by their records.
  static std::string key(int i) { return fmt::format("{:03}--------{}", i / 8, i % 8); }
  std::string new_value() {
    return fmt::format("<{}>", ++stamp_) + std::string(random_.below(30), 'v');
  }

  // Entries of the index in PM that lead to records: each two words, the hash of its place and the
  // entry.
  static std::vector<index::HashSlot*> entries(const Pool& pool) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    std::vector<index::HashSlot*> found;
    for (uint64_t at = 64; at + 16 <= impl.mapping().file_bytes(); at += 16) {
      auto* slot = impl.at<index::HashSlot>(at);
      const uint64_t place = index::key_of_hash(slot->hash);
      const auto location = store::Location::of_word(slot->value);
      const bool is_entry = PmPartitionIndex::partition_of(place) == 0 &&
                            location != store::Location() && location.slot() < 10'000 &&
                            PmPartitionIndex::is_sound(place, slot->value);
      if (is_entry) found.push_back(slot);
    }
    return found;
  }
  static index::HashSlot* entry_of(const Pool& pool, const std::string& key) {
    const uint64_t hash_bits = (uint64_t{1} << 53) - 1;
    for (index::HashSlot* slot : entries(pool)) {
      if (index::key_of_hash(slot->hash) == (store::hash_of(key) & hash_bits)) return slot;
    }
    return nullptr;
  }
  // Of the directory of the structure, one that leads to a segment.
  static uint64_t* directory_entry(const Pool& pool, uint64_t number) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<store::Root>(impl.find("store")->root);
    const auto& annex = *impl.at<pm::DirectoryEntry>(root.pm_index);
    auto* directory =
        impl.at<index::cceh::Directory>(impl.at<index::cceh::Root>(annex.root)->directory);
    for (uint64_t i = 0; i >> directory->depth == 0; ++i) {
      uint64_t* entry = &directory->entries()[(number + i) % (uint64_t{1} << directory->depth)];
      if (*entry != 0) return entry;
    }
    return nullptr;
  }
  // A byte of a record in a block that was closed.
  char* byte_of_a_record(const Pool& pool, uint64_t block_bytes) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    std::vector<uint64_t> blocks;
    for (uint64_t at = 64; at + block_bytes <= impl.mapping().file_bytes(); at += 64) {
      const auto& header = *impl.at<store::BlockHeader>(at);
      const bool records =
          header.kind == store::BlockKind::kLog || header.kind == store::BlockKind::kMoved;
      if (records && header.bytes == block_bytes && header.partition == 0 &&
          header.incarnation != 0 && header.incarnation < 100'000 && header.end != 0) {
        blocks.push_back(at);
      }
    }
    return impl.at<char>(blocks[random_.below(blocks.size())] + 64 +
                         random_.below(block_bytes / 2));
  }

  void change(Store& store, int count, int keys) {
    for (; count > 0; --count) {
      const std::string name = key(static_cast<int>(random_.below(keys)));
      try {
        if (random_.below(3) != 0) {
          const std::string value = new_value();
          store.put(name, value);
          model_[name] = value;
        } else {
          store.remove(name);
          model_.erase(name);
        }
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::kCorrupt) << error.what();
        ++errors_;
      }
    }
  }
  // Each key has its value or is an error. Returns how many are none.
  int verify(const Store& store, int keys) const {
    int answers = 0;
    for (int i = 0; i < keys; ++i) {
      const auto expected = model_.find(key(i));
      try {
        const std::optional<std::string> found = store.get(key(i));
        EXPECT_EQ(found.has_value(), expected != model_.end()) << key(i);
        EXPECT_EQ(found.value_or(""), expected != model_.end() ? expected->second : "") << key(i);
        ++answers;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      }
    }
    return answers;
  }
  static store::PartitionRoot& root_of(const Pool& pool) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<store::Root>(impl.find("store")->root);
    return *impl.at<store::PartitionRoot>(root.partition_roots);
  }
  static void damage_checkpoint(const Pool& pool) {
    const uint64_t at = root_of(pool).checkpoint;
    if (at != 0) *pm::impl_of(pool).at<char>(at + 40) ^= 1;
  }
  std::vector<std::string> findings() const {
    PoolOptions reading = options();
    reading.read_only = true;
    Pool pool = Pool::open(path(), reading);
    std::vector<std::string> sentences;
    Store::verify(pool, "store",
                  [&](const std::string& sentence) { sentences.push_back(sentence); });
    return sentences;
  }
  static bool names(const std::vector<std::string>& sentences, const std::string& what) {
    return std::ranges::any_of(sentences, [&](const std::string& sentence) {
      return sentence.find(what) != std::string::npos;
    });
  }

  TempDir dir_;
  Random random_{base_seed()};
  Model model_;
  int stamp_ = 0;
  int errors_ = 0;
};

// A compaction that damage stops half-way leaves origins of copies. Whatever becomes of the copies,
// and of what superseded them, no later recovery takes the origins for what the keys have.
TEST_P(StoreIndexDamageTest, NothingOldComesBackAfterACompactionThatWasStopped) {
  constexpr int kKeys = 800;
  int answers = 0;
  const auto all_rounds = static_cast<int>(std::max<uint64_t>(3, rounds(25)));
  for (int round = 0; round < all_rounds; ++round) {
    model_.clear();
    std::string image;
    {
      Pool pool = Pool::create(path() + std::to_string(round), options());
      Store store = Store::create(pool, "store", made(GetParam()));
      change(store, 4000, kKeys);
      if (GetParam() == StoreIndex::kPm) {
        const std::vector<index::HashSlot*> all = entries(pool);
        ASSERT_GT(all.size(), 100U);
        for (int i = 0; i < 3; ++i)
          all[random_.below(all.size())]->value ^= uint64_t{1} << random_.below(64);
      } else {
        *byte_of_a_record(pool, 1024) ^= static_cast<char>(1 << random_.below(8));
      }
      change(store, 3000, kKeys);
      image = read_file(pool.info().path);  // the process dies
    }
    for (int session = 0; session < 3; ++session) {
      write_file(path(), image);
      Pool pool = Pool::open(path(), options());
      // The first time the checkpoint, if there is one, is the last that was written.
      if (session != 0) damage_checkpoint(pool);
      Store store = Store::open(pool, "store", {.garbage_percent = 5});
      answers += verify(store, kKeys);
      change(store, 1000, kKeys);
      answers += verify(store, kKeys);
      ASSERT_FALSE(HasFailure()) << "round " << round << ", session " << session;
      image = read_file(path());
    }
  }
  EXPECT_GT(answers, all_rounds * 400);
}

// The version of a record is damaged that was superseded since the index snapshot, or checkpoint,
// with which the opening begins: the record does not stay beside what superseded it, nor in its
// place.
TEST_P(StoreIndexDamageTest, ADamagedVersionKeepsNothingThatIsSuperseded) {
  constexpr int kKeys = 3000;
  for (uint64_t round = 0; round < 8; ++round) {
    StoreOptions made = this->made(GetParam(), 4096);
    made.garbage_percent = 400;
    made.index_snapshot_percent = 5;
    model_.clear();
    const std::string old = key(static_cast<int>(random_.below(kKeys / 2)));
    std::string image;
    std::string text;
    {
      Pool pool = Pool::create(path() + std::to_string(round), options());
      Store store = Store::create(pool, "store", made);
      for (int i = 0; i < kKeys; ++i) store.put(key(i), model_[key(i)] = new_value());
      text = old + model_[old];
      store.put(old, model_[old] = new_value());
      store.put("another", model_["another"] = new_value());
      image = read_file(pool.info().path);  // the process dies
    }
    {
      write_file(path(), image);
      Pool pool = Pool::open(path(), options());
      const Store store = Store::open(pool, "store");
      const char* begun =
          GetParam() == StoreIndex::kPm ? "checkpoints_read" : "index_snapshots_read";
      ASSERT_EQ(figure(store, begun), 1);
      ASSERT_EQ(content(store), model_);
    }
    const size_t at = image.find(text);
    ASSERT_NE(at, std::string::npos);
    constexpr size_t kHighByte = 5;  // of 48 bits
    image[at - sizeof(store::RecordHeader) + offsetof(store::RecordHeader, word) + kHighByte] ^=
        static_cast<char>(1 << random_.below(8));
    write_file(path(), image);
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store");
    EXPECT_EQ(store.get(old), model_[old]);
    store.put(old, model_[old] = new_value());
    EXPECT_EQ(store.get(old), model_[old]);
    verify(store, kKeys);
  }
}

INSTANTIATE_TEST_SUITE_P(Indexes, StoreIndexDamageTest,
                         testing::Values(StoreIndex::kHash, StoreIndex::kOrdered, StoreIndex::kPm));

class StorePmIndexDamageTest : public StoreIndexDamageTest {
 protected:
  static constexpr int kKeys = 6000;
  // All keys have been told to the structure, the first half of them long since.
  Store fill(Pool& pool) {
    Store store = Store::create(pool, "store", made(StoreIndex::kPm, 4096));
    for (int i = 0; i < kKeys; ++i) store.put(key(i), model_[key(i)] = new_value());
    for (int i = kKeys / 2; i < kKeys; ++i) store.put(key(i), model_[key(i)] = new_value());
    return store;
  }
};

// A key of the structure changes: nothing refuses its entry, which nobody finds.
TEST_P(StorePmIndexDamageTest, AnEntryThatIsLostIsNamed) {
  for (uint64_t round = 0; round < std::max<uint64_t>(3, rounds(20)); ++round) {
    const std::string lost = key(static_cast<int>(random_.below(kKeys / 2)));
    {
      Pool pool = Pool::create(path() + std::to_string(round), options());
      Store store = fill(pool);
      index::HashSlot* slot = entry_of(pool, lost);
      ASSERT_NE(slot, nullptr);
      slot->hash ^= uint64_t{1} << random_.below(64);
      write_file(path(), read_file(pool.info().path));
    }
    const std::vector<std::string> found = findings();
    EXPECT_TRUE(names(found, "does not lead to the record of \"" + lost + "\""))
        << lost << ": " << (found.empty() ? "nothing" : found.front());
    {
      Pool pool = Pool::open(path(), options());
      Store store = Store::open(pool, "store");
      EXPECT_EQ(store.get(lost), std::nullopt);  // nobody knows yet
      EXPECT_NE(faults(store), "");
      // Now it is known that something is missing: no key is told to be absent, and none is written
      // that may be there.
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { static_cast<void>(store.get(lost)); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.put(lost, "new"); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.remove(lost); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { content(store); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] { store.remove_prefix("0"); }));
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] {
        Store::Batch batch;
        batch.remove(lost);
        store.apply(batch);
      }));
      EXPECT_EQ(figure(store, "damaged_indexes"), 1);
      const std::string other = key(kKeys - 1);
      EXPECT_EQ(store.get(other), model_[other]);
      store.put(other, model_[other] = new_value());
    }
    // The records have all.
    Pool pool = Pool::open(path(), options());
    Store store = Store::open(pool, "store");
    EXPECT_EQ(figure(store, "checkpoints_read"), 0);
    EXPECT_EQ(content(store), model_);
    EXPECT_EQ(faults(store), "");
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// Nothing goes that the index in PM should lead to, and does not.
TEST_P(StorePmIndexDamageTest, CompactionNoticesAnEntryThatIsLost) {
  for (uint64_t round = 0; round < std::max<uint64_t>(3, rounds(20)); ++round) {
    const std::string lost = key(static_cast<int>(random_.below(kKeys / 2)));
    {
      Pool pool = Pool::create(path() + std::to_string(round), options());
      Store store = fill(pool);
      index::HashSlot* slot = entry_of(pool, lost);
      ASSERT_NE(slot, nullptr);
      slot->hash ^= uint64_t{1} << random_.below(64);
      // All others are written anew, so its block is the emptiest one.
      for (int i = 0; i < 12 * kKeys && figure(store, "damaged_indexes") == 0; ++i) {
        const std::string name = key(static_cast<int>(random_.below(kKeys)));
        if (name == lost) continue;
        try {
          const std::string value = new_value();
          store.put(name, value);
          model_[name] = value;
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
        }
      }
      EXPECT_EQ(figure(store, "damaged_indexes"), 1);
      write_file(path(), read_file(pool.info().path));
    }
    for (int session = 0; session < 2; ++session) {
      Pool pool = Pool::open(path(), options());
      const Store store = Store::open(pool, "store");
      ASSERT_EQ(content(store), model_);
      ASSERT_EQ(faults(store), "");
    }
  }
}

// What is damaged is the structure itself, its directory: it cannot even be cleared. Another one
// takes its place.
TEST_P(StorePmIndexDamageTest, AStructureThatCannotBeReadIsMadeAnew) {
  int met = 0;
  for (uint64_t round = 0; round < std::max<uint64_t>(6, rounds(12)); ++round) {
    SCOPED_TRACE(round);
    {
      Pool pool = Pool::create(path() + std::to_string(round), options());
      StoreOptions several = made(StoreIndex::kPm, 4096);
      several.partitions = 3;
      Store store = Store::create(pool, "store", several);
      for (int i = 0; i < 2 * kKeys; ++i)
        store.put(key(i % kKeys), model_[key(i % kKeys)] = new_value());
      for (int i = 0; i < 8; ++i) store.put(key(i), model_[key(i)] = std::string(9000 + i, 'L'));
      uint64_t* entry = directory_entry(pool, random_.below(64));
      ASSERT_NE(entry, nullptr);
      *entry ^= round % 2 == 0 ? uint64_t{1} << (37 + random_.below(3)) : uint64_t{1} << 31;
      EXPECT_NE(faults(store), "");
      if (round % 3 == 0) write_file(path(), read_file(pool.info().path));
    }
    if (round % 3 != 0) write_file(path(), read_file(path() + std::to_string(round)));
    int refused = 0;
    for (int session = 0; session < 4; ++session) {
      Pool pool = Pool::open(path(), options());
      try {
        // Its checkpoint may be there, and not do; or what is damaged is met only when it is looked
        // for.
        Store store = Store::open(pool, "store");
        ASSERT_EQ(content(store), model_);
        for (int i = 0; i < 500; ++i) store.put(key(i), model_[key(i)]);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
        ++refused;
      }
    }
    EXPECT_LE(refused, 2);
    met += refused;
    Pool pool = Pool::open(path(), options());
    const Store store = Store::open(pool, "store");
    EXPECT_EQ(content(store), model_);
    EXPECT_EQ(verify(store, kKeys), kKeys);
    EXPECT_EQ(faults(store), "");
    EXPECT_EQ(figure(store, "damaged_indexes"), 0);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(met, 0);
}

// Nor is there room for another one: the records are served by an index in DRAM, until there is.
TEST_P(StorePmIndexDamageTest, AFullPoolIsServedWithoutAStructure) {
  const PoolOptions small = unsealed_store_pool(4);
  int filler = 0;
  int others = 0;
  {
    Pool pool = Pool::create(path(), small);
    StoreOptions several = made(StoreIndex::kPm, 1024);
    several.partitions = 2;
    Store store = Store::create(pool, "store", several);
    for (int i = 0; i < 2 * kKeys; ++i) {
      store.put(key(i % kKeys), model_[key(i % kKeys)] = new_value());
    }
    for (const size_t bytes : {400'000U, 60'000U, 20'000U, 3000U, 1500U, 20U}) {
      try {
        for (;; ++filler) {
          const std::string name = fmt::format("filler{:06}", filler);
          const std::string value(bytes, 'f');
          store.put(name, value);
          model_[name] = value;
        }
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
      }
    }
  }
  {
    Pool pool = Pool::open(path(), small);
    uint64_t* entry = directory_entry(pool, 0);
    ASSERT_NE(entry, nullptr);
    *entry ^= uint64_t{1} << 38;
    const pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<store::Root>(impl.find("store")->root);
    auto* partitions = impl.at<store::PartitionRoot>(root.partition_roots);
    for (uint32_t i = 0; i < root.partitions; ++i) partitions[i].checkpoint = 0;
    // The room of what the checkpoints have been, too.
    try {
      for (;; ++others) {
        create_index(pool, fmt::format("other{}", others), "cceh", perdure::Kind::kU64,
                     perdure::Kind::kU64);
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
    }
  }
  const auto expect_all = [&](const Store& store) {
    ASSERT_EQ(content(store), model_);
    ASSERT_EQ(verify(store, kKeys), kKeys);
    ASSERT_EQ(faults(store), "");
  };
  for (int session = 0; session < 3; ++session) {
    SCOPED_TRACE(session);
    Pool pool = Pool::open(path(), small);
    Store store = Store::open(pool, "store");
    // What is removed in one session may be room in the next one.
    if (session == 0) {
      EXPECT_EQ(figure(store, "index_in_dram"), 1);
    }
    expect_all(store);
    // It is a store as any other, but for the room.
    for (int i = 0; i < 2000; ++i) {
      const std::string name = key(static_cast<int>(random_.below(kKeys)));
      try {
        if (random_.chance(50)) {
          store.remove(name);
          model_.erase(name);
        } else {
          const std::string value = new_value();
          store.put(name, value);
          model_[name] = value;
        }
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
      }
    }
    expect_all(store);
    if (session == 0) {
      // What a process leaves that dies here.
      write_file(dir_.file("crash"), read_file(path()));
      std::filesystem::rename(dir_.file("crash"), path());
    }
    if (session == 2) {
      for (; filler >= 0; --filler) {
        store.remove(fmt::format("filler{:06}", filler));
        model_.erase(fmt::format("filler{:06}", filler));
      }
      expect_all(store);
    }
  }
  Pool pool = Pool::open(path(), small);
  for (; others > 0; --others) drop_structure(pool, fmt::format("other{}", others - 1));
  const Store store = Store::open(pool, "store");
  EXPECT_EQ(figure(store, "index_in_dram"), 0);
  expect_all(store);
}

// The opening that makes the structure anew is ended by a power failure at each of its persists,
// and so is the one after that at some. Whatever there is then of checkpoints, of the old structure
// and of the new one, nothing is lost.
TEST_P(StorePmIndexDamageTest, AMendThatPowerFailuresInterruptLosesNothing) {
  constexpr int kFew = 500;
  const PoolOptions small = unsealed_store_pool(4);
  const std::string damaged = dir_.file("damaged");
  {
    Pool pool = Pool::create(damaged, small);
    StoreOptions several = made(StoreIndex::kPm, 1024);
    several.partitions = 3;
    Store store = Store::create(pool, "store", several);
    for (int i = 0; i < 3 * kFew; ++i)
      store.put(key(i % kFew), model_[key(i % kFew)] = new_value());
    for (int i = 0; i < kFew; i += 7) {
      store.remove(key(i));
      model_.erase(key(i));
    }
    store.put(key(1), model_[key(1)] = std::string(3000, 'L'));
  }
  {
    // One partition is without a checkpoint, so the structure is looked at; the others have theirs.
    Pool pool = Pool::open(damaged, small);
    uint64_t* entry = directory_entry(pool, 0);
    ASSERT_NE(entry, nullptr);
    *entry ^= uint64_t{1} << 38;
    ASSERT_NE(root_of(pool).checkpoint, 0U);
    root_of(pool).checkpoint = 0;
  }
  const std::string image = read_file(damaged);
  const auto annex_of = [](const Pool& pool) {
    const pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<store::Root>(impl.find("store")->root);
    return impl.at<pm::DirectoryEntry>(root.pm_index)->root;
  };
  using Image = FailingMedium::Image;
  constexpr Image kImages[] = {Image::kLeast, Image::kMixed, Image::kAll};
  // Returns whether power failed before the store was open.
  const auto fails_at = [&](uint64_t n) {
    FailingMedium medium(path(), Domain::kLine);
    medium.begin();
    medium.refuse_here(n, true);
    try {
      Pool pool = Pool::open(path(), small);
      const Store store = Store::open(pool, "store", {.recovery_threads = 1});
      if (!medium.refused()) return false;
    } catch (const Error& error) {
      EXPECT_TRUE(medium.refused()) << error.what();
    }
    std::filesystem::rename(medium.make_image(kImages[random_.below(3)], random_.next()), path());
    return true;
  };
  uint64_t mended = 0;
  uint64_t n = 0;
  for (bool failed = true; failed && !HasFailure(); ++n) {
    SCOPED_TRACE(n);
    write_file(path(), image);
    failed = fails_at(n);
    for (int again = 0; failed && again < 2 && random_.chance(40); ++again) {
      fails_at(random_.below(40));
    }
    for (int session = 0; session < 2; ++session) {
      Pool pool = Pool::open(path(), small);
      const uint64_t before = annex_of(pool);
      Store store = Store::open(pool, "store");
      mended += annex_of(pool) != before ? 1 : 0;
      ASSERT_EQ(content(store), model_);
      ASSERT_EQ(verify(store, kFew), kFew);
      ASSERT_EQ(faults(store), "");
      EXPECT_EQ(pool.check([](const std::string& sentence) { ADD_FAILURE() << sentence; }), 0U);
    }
  }
  EXPECT_GT(n, 30U);
  EXPECT_GT(mended, 2U);
}

// From the structure to the log.
TEST_P(StorePmIndexDamageTest, AnEntryThatLeadsAstrayIsNamed) {
  const std::string one = key(17);
  const std::string other = key(18);
  uint64_t place = 0;
  {
    Pool pool = Pool::create(path(), options());
    Store store = fill(pool);
    index::HashSlot* slot = entry_of(pool, one);
    index::HashSlot* another = entry_of(pool, other);
    ASSERT_NE(slot, nullptr);
    ASSERT_NE(another, nullptr);
    place = index::key_of_hash(slot->hash);
    // What the other one has, with a checksum that fits.
    const uint64_t said = store::Location::of_word(another->value).word();
    for (uint64_t sum = 0; sum < uint64_t{1} << 26; ++sum) {
      if (PmPartitionIndex::is_sound(place, said | sum << 38)) slot->value = said | sum << 38;
    }
    entry_of(pool, key(20))->value ^= 1;
    write_file(dir_.file("image"), read_file(path()));
  }
  write_file(path(), read_file(dir_.file("image")));
  const std::vector<std::string> found = findings();
  EXPECT_TRUE(
      names(found, fmt::format("the entry {:#x} of the index in PM leads to the record", place)));
  EXPECT_TRUE(names(found, "does not lead to the record of \"" + one + "\""));
  EXPECT_FALSE(names(found, "\"" + other + "\""));
  EXPECT_TRUE(names(found, "of the index in PM is damaged"));
  EXPECT_TRUE(names(found, "whether the record of \"" + key(20) + "\""));
}

// An entry that the structure was told not long ago stands in DRAM, too, from where it is read.
TEST_P(StorePmIndexDamageTest, WhatTheStructureWasJustToldIsComparedWithIt) {
  Pool pool = Pool::create(path(), options());
  Store store = fill(pool);
  bool noticed = false;
  for (int i = kKeys - 1; i > 0 && !noticed; i -= 20) {
    index::HashSlot* slot = entry_of(pool, key(i));
    if (slot == nullptr) continue;
    slot->value ^= 4;
    EXPECT_EQ(store.get(key(i)), model_[key(i)]);
    noticed = faults(store).find("is not what it was told") != std::string::npos;
    slot->value ^= 4;
    if (!noticed) {
      EXPECT_EQ(faults(store), "");
    }
  }
  EXPECT_TRUE(noticed);
}

// All that the opening had to look at is given back.
TEST_P(StorePmIndexDamageTest, ARecoveryOfAllRecordsLeavesNoLargeTables) {
  {
    Pool pool = Pool::create(path(), options());
    Store store = fill(pool);
    damage_checkpoint(pool);
    write_file(dir_.file("image"), read_file(path()));
  }
  write_file(path(), read_file(dir_.file("image")));
  Pool pool = Pool::open(path(), options());
  Store store = Store::open(pool, "store");
  EXPECT_EQ(figure(store, "checkpoints_read"), 0);
  EXPECT_EQ(content(store), model_);
  const double most = 200'000;
  EXPECT_LT(figure(store, "dram_bytes"), most);
  for (int i = 0; i < kKeys; ++i) store.put(key(i), model_[key(i)] = new_value());
  EXPECT_LT(figure(store, "dram_bytes"), most);
  EXPECT_EQ(content(store), model_);
  EXPECT_EQ(faults(store), "");
}

// A key whose entry could not be found for a while was written meanwhile: its new record supersedes
// nothing. The next opening, which has the entry again, takes the newer record, and gives back the
// long value of the older one, which the checkpoint has counted.
TEST_P(StorePmIndexDamageTest, ALongValueThatNothingSupersededIsGivenBack) {
  const std::string one = key(7);
  double before = 0;
  {
    Pool pool = Pool::create(path(), options());
    Store store = fill(pool);
    store.put(one, model_[one] = std::string(400'000, 'a'));
    for (int i = 0; i < 2 * kKeys; ++i) {
      const std::string other = key(1000 + i % 2000);
      store.put(other, model_[other] = new_value());
    }
    before = figure(store, "pool_bytes");
    index::HashSlot* slot = entry_of(pool, one);
    ASSERT_NE(slot, nullptr);
    ASSERT_EQ(store.get(one), model_[one]);
    slot->hash ^= 1;
    ASSERT_EQ(store.get(one), std::nullopt);
    store.put(one, model_[one] = std::string(400'000, 'b'));
    slot->hash ^= 1;
    write_file(dir_.file("image"), read_file(path()));  // the process dies
  }
  write_file(path(), read_file(dir_.file("image")));
  Pool pool = Pool::open(path(), options());
  const Store store = Store::open(pool, "store");
  EXPECT_EQ(figure(store, "checkpoints_read"), 1);
  EXPECT_EQ(content(store), model_);
  EXPECT_LT(figure(store, "pool_bytes"), before + 200'000);
  EXPECT_EQ(faults(store), "");
}

// Hashes are listed at the first part of a partition. If that fails, the other parts do not tell
// less than there is.
TEST_P(StorePmIndexDamageTest, APartOfAListIsNone) {
  Pool pool = Pool::create(path(), options());
  {
    const Store store = fill(pool);
  }
  const auto store = store::StoreImpl::open(pool, "store", {});
  store::StoreTurn turn(*store);
  const uint64_t now = store::StoreImpl::now_ms();
  constexpr uint64_t kHalf = store::HashIndex::kTags / 2;
  uint64_t count = 0;
  const auto visit = [&](std::string_view, const store::Partition::Found&) { ++count; };
  turn.for_tags(0, 0, kHalf, now, visit);
  turn.for_tags(0, kHalf, store::HashIndex::kTags, now, visit);
  EXPECT_EQ(count, model_.size());
  for (int round = 0; round < 20; ++round) {
    char* byte = byte_of_a_record(pool, 4096);
    *byte ^= 1;
    for (const uint64_t begin : {uint64_t{0}, kHalf}) {
      EXPECT_TRUE(fails_with(ErrorCode::kCorrupt, [&] {
        turn.for_tags(0, begin, begin + kHalf, now, visit);
      })) << begin;
    }
    *byte ^= 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Pm, StorePmIndexDamageTest, testing::Values(StoreIndex::kPm));

}  // namespace
}  // namespace perdure::test
