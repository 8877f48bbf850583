// Backups that go on from one of a history that the store has left: refused, whatever the positions
// are.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/store.h"
#include "pm/checksum.h"
#include "pm/layout.h"
#include "store/backup_file.h"
#include "store/fixture.h"
#include "store/layout.h"
#include "store/store_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"

namespace perdure::test {
namespace {

using Model = std::map<std::string, std::string>;

class StoreRunsTest : public testing::TestWithParam<StoreCase> {
 protected:
  static PoolOptions pool_options() { return store_pool(64); }
  static StoreOptions options(bool early = false) {
    StoreOptions options = GetParam().options;
    options.block_bytes = 4096;
    options.changes_bytes = 8 << 20;
    options.serve_early = early;
    return options;
  }
  std::string file(const std::string& name) const { return dir_.file(name); }
  void make() {
    Pool pool = Pool::create(file("pool"), pool_options());
    Store::create(pool, "store", options()).put("first", "1");
  }
  // In an opening of its own, with a clean close.
  template <typename Work>
  void opened(Work work, bool early = false) {
    Pool pool = Pool::open(file("pool"), pool_options());
    {
      Store store = Store::open(pool, "store", options(early));
      if (early) store.wait_until_ready();
      work(store);
    }
    pool.close();
  }
  template <typename Work>
  void read(Work work) {
    PoolOptions reading = pool_options();
    reading.read_only = true;
    Pool pool = Pool::open(file("pool"), reading);
    work(Store::open(pool, "store", options()));
  }
  // In all partitions.
  void write(Store& store, int count, const std::string& what) {
    for (int i = 0; i < count; ++i) store.put("k" + std::to_string(i), what + std::to_string(i));
  }
  void copy(const std::string& from, const std::string& to) const {
    std::filesystem::copy_file(file(from), file(to),
                               std::filesystem::copy_options::overwrite_existing);
  }
  testing::AssertionResult refused(Store& store, const std::string& since) {
    testing::AssertionResult is_refused = fails_with(
        ErrorCode::kInvalidArgument, [&] { store.backup(file("refused"), file(since)); });
    EXPECT_FALSE(std::filesystem::exists(file("refused")));
    return is_refused;
  }
  Model restored(const std::vector<std::string>& names) {
    std::vector<std::string> files;
    for (const std::string& name : names) files.push_back(file(name));
    const std::string path = file("restored" + std::to_string(++restored_));
    Pool pool = Pool::create(path, pool_options());
    Store::restore(pool, "again", files);
    return content(Store::open(pool, "again"));
  }

  // Where the list of runs stands.
  size_t list_at(const std::string& image) {
    uint64_t salt = 0;
    {
      Pool pool = Pool::open(file("pool"), pool_options());
      salt = store::StoreImpl::open(pool, "store", options())->identity();
    }
    store::RunList list{};
    for (size_t at = 0; at + 4096 <= image.size(); at += 64) {
      std::memcpy(&list, image.data() + at, sizeof list);
      if (list.slots != 0 &&
          list.checksum == pm::checksum64(&list.slots, sizeof list - sizeof list.checksum, salt)) {
        return at;
      }
    }
    throw std::runtime_error("there is no list");
  }
  static void put_list(std::string& image, const std::string& of, size_t at) {
    image.replace(at, 4096, of.substr(at, 4096));
  }

  TempDir dir_;
  int restored_ = 0;
};

TEST_P(StoreRunsTest, APoolThatWasPutBackDoesNotGoOnFromALostOne) {
  make();
  opened([&](Store& store) { store.backup(file("b0")); });
  copy("pool", "older");
  opened([&](Store& store) {
    write(store, 100, "lost");
    store.put("lost", "1");
    store.backup(file("b1"), file("b0"));
  });
  copy("older", "pool");
  opened([&](Store& store) { write(store, 300, "other"); });
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "b1"));
    // Of what both have it may.
    store.backup(file("b2"), file("b0"));
    EXPECT_EQ(restored({"b0", "b2"}), content(store));
  });
}

// As a snapshot of the file system has it.
TEST_P(StoreRunsTest, ACopyOfWhileItWasWrittenEndsItsRunThere) {
  make();
  opened([&](Store& store) {
    store.backup(file("b0"));
    write(store, 50, "both");
    store.backup(file("b1"), file("b0"));
    copy("pool", "older");
    write(store, 50, "lost");
    store.backup(file("b2"), file("b1"));
  });
  for (const bool early : {false, true}) {
    copy("older", "pool");
    opened([&](Store& store) { write(store, 200, "other"); }, early);
    opened([&](Store& store) {
      EXPECT_TRUE(refused(store, "b2"));
      store.backup(file("b3"), file("b1"));
      EXPECT_EQ(restored({"b0", "b1", "b3"}), content(store));
    });
  }
}

TEST_P(StoreRunsTest, GoesOnOverOpeningsOfWhichNobodyWasTold) {
  make();
  opened([&](Store& store) { store.backup(file("b0")); });
  for (int i = 0; i < 150; ++i) {
    opened([&](Store& store) { store.put("k" + std::to_string(i % 7), std::to_string(i)); },
           i % 2 == 1);
  }
  opened([&](Store& store) {
    store.backup(file("b1"), file("b0"));
    EXPECT_EQ(restored({"b0", "b1"}), content(store));
  });
}

TEST_P(StoreRunsTest, WhatIsForgottenIsRefused) {
  make();
  opened([&](Store& store) { store.backup(file("first")); });
  std::string last = "first";
  std::vector<std::string> all = {last};
  for (int i = 0; i < 128; ++i) {
    opened([&](Store& store) {
      const std::string next = "n" + std::to_string(i);
      store.backup(file(next), file(last));
      all.push_back(last = next);
    });
  }
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "first"));
    store.backup(file("end"), file(last));
    all.emplace_back("end");
    EXPECT_EQ(restored(all), content(store));
  });
}

TEST_P(StoreRunsTest, AReaderMakesABaseIfTheLastWriterHasMadeABackup) {
  make();
  read([&](const Store& store) {
    EXPECT_FALSE(store.can_back_up_since());
    store.backup(file("none"));
  });
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "none"));
    EXPECT_TRUE(store.can_back_up_since());
    store.backup(file("b0"));
    write(store, 20, "a");
  });
  read([&](const Store& store) {
    EXPECT_TRUE(store.can_back_up_since());
    store.backup(file("b1"), file("b0"));
  });
  copy("pool", "older");
  opened([&](Store& store) { write(store, 20, "b"); });
  read([&](const Store& store) {
    EXPECT_FALSE(store.can_back_up_since());
    store.backup(file("b2"), file("b1"));
    EXPECT_EQ(restored({"b0", "b1", "b2"}), content(store));
  });
  opened([&](Store& store) { EXPECT_TRUE(refused(store, "b2")); });
  copy("older", "pool");
  opened([&](Store& store) { write(store, 90, "c"); });
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "b2"));
    store.backup(file("b3"), file("b1"));
    EXPECT_EQ(restored({"b0", "b1", "b3"}), content(store));
  });
}

TEST_P(StoreRunsTest, OverKillsAndOpeningsOfThePoolAlone) {
  make();
  opened([&](Store& store) {
    store.backup(file("b0"));
    write(store, 30, "a");
    store.backup(file("b1"), file("b0"));
    copy("pool", "killed");
  });
  // Others of the pool's structures are opened, and this one is not.
  Pool::open(file("pool"), pool_options()).close();
  opened([&](Store& store) {
    store.backup(file("b2"), file("b1"));
    EXPECT_EQ(restored({"b0", "b1", "b2"}), content(store));
  });
  copy("killed", "pool");
  opened([&](Store& store) {
    store.backup(file("b2"), file("b1"));
    EXPECT_EQ(restored({"b0", "b1", "b2"}), content(store));
  });
  // After a kill nobody can say who wrote in an opening that noted nothing.
  copy("killed", "pool");
  Pool::open(file("pool"), pool_options()).close();
  opened([&](Store& store) { EXPECT_TRUE(refused(store, "b1")); });
}

// An earlier version, which knows nothing of runs: it leaves the note as it is.
TEST_P(StoreRunsTest, WhatWasWrittenByAnEarlierVersionIsOfNoRun) {
  make();
  opened([&](Store& store) {
    write(store, 30, "a");
    store.backup(file("b0"));
    EXPECT_NE(store::BackupReader(file("b0")).header().run, 0U);
  });
  const std::string before = read_file(file("pool"));
  const size_t at = list_at(before);
  // A run that is noted there, and an opening by such a version after it: none that ends it.
  opened([&](Store& store) {
    write(store, 30, "b");
    store.backup(file("b1"), file("b0"));
  });
  const std::string noted = read_file(file("pool")).substr(at, 4096);
  opened([&](Store& store) { write(store, 30, "c"); });
  std::string after = read_file(file("pool"));
  ASSERT_NE(after.substr(at, 4096), noted);
  after.replace(at, 4096, noted);
  std::ofstream(file("pool"), std::ios::binary | std::ios::trunc) << after;
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "b1"));
    store.backup(file("b2"));
    store.backup(file("b3"), file("b2"));
  });
}

// Of a run that is noted as ended, power failed before all of it was on the medium. The next
// opening is killed before it has recovered all partitions; those that it had have come beyond the
// end by then.
TEST_P(StoreRunsTest, AnEndThatIsTooHighDoesNotOutliveAnOpeningThatWasCutShort) {
  make();
  opened([&](Store& store) {
    store.backup(file("b0"));
    write(store, 50, "both");
  });
  opened([&](Store& store) { store.put("both", "1"); });
  copy("pool", "older");
  // Of all partitions but the first.
  const auto write_others = [&](const StoreOptions& how, int rounds) {
    Pool pool = Pool::open(file("pool"), pool_options());
    const auto store = store::StoreImpl::open(pool, "store", how);
    for (uint32_t i = 1; i < store->partitions(); ++i) store->require_ready(i);
    for (int i = 0; i < 50 * rounds; ++i) {
      const std::string key = "k" + std::to_string(i % 50);
      if (store->place_of(key).number == 0) continue;
      store->write({.key = key, .value = "v" + std::to_string(rounds)});
    }
    if (rounds == 1) {
      store->backup(file("b1"), "");
    } else {
      copy("pool", "killed");
    }
  };
  write_others(options(), 1);
  opened([&](Store& store) { EXPECT_TRUE(store.can_back_up_since()); });
  const std::string ended = read_file(file("pool"));
  const size_t at = list_at(ended);
  std::string image = read_file(file("older"));
  put_list(image, ended, at);
  write_file(file("pool"), image);
  store::StoreImpl::before_recovery = [](uint32_t number) {
    if (number == 0) throw Error(ErrorCode::kCorrupt, "of the test");
  };
  write_others(options(true), 20);
  store::StoreImpl::before_recovery = nullptr;
  copy("killed", "pool");
  opened([&](Store& store) { EXPECT_TRUE(refused(store, "b1")); });
}

// As before; but it is the process that dies, wherever it is in that opening. What it has stored
// the next one finds in the caches, comes beyond the end, and then the power fails.
TEST_P(StoreRunsTest, AnEndThatADeadProcessTookBackStaysAway) {
  make();
  opened([&](Store& store) {
    store.backup(file("b0"));
    write(store, 50, "both");
  });
  opened([&](Store& store) { store.put("both", "1"); });
  copy("pool", "older");
  opened([&](Store& store) {
    write(store, 50, "lost");
    store.backup(file("b1"));
  });
  opened([&](Store& store) { EXPECT_TRUE(store.can_back_up_since()); });
  const std::string ended = read_file(file("pool"));
  const size_t at = list_at(ended);
  std::string image = read_file(file("older"));
  put_list(image, ended, at);
  bool died = true;
  for (uint64_t n = 0; died; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 1000U);
    write_file(file("pool"), image);
    FailingMedium medium(file("pool"), Domain::kLine);
    medium.begin();
    medium.refuse_here(n, true);
    try {
      Pool pool = Pool::open(file("pool"), pool_options());
      const Store store = Store::open(pool, "store", options());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    died = medium.refused();
    medium.refuse_here(~uint64_t{0}, true);
    std::string left;
    {
      Pool pool = Pool::open(file("pool"), pool_options());
      Store store = Store::open(pool, "store", options());
      write(store, 50, "new");
      write(store, 50, "newer");
      left = medium.make_image(FailingMedium::Image::kLeast, 1);
    }
    std::filesystem::rename(left, file("pool"));
    Pool pool = Pool::open(file("pool"), pool_options());
    Store store = Store::open(pool, "store", options());
    ASSERT_TRUE(refused(store, "b1"));
  }
}

// An earlier version, which takes no ends and notes nothing, was there and has evicted.
TEST_P(StoreRunsTest, AnEarlierVersionThatEvictedIsNotGoneOnFrom) {
  make();
  opened([&](Store& store) { store.backup(file("b0")); });
  opened([&](Store& store) { store.put("a", "1"); });
  const std::string before = read_file(file("pool"));
  const size_t at = list_at(before);
  opened([&](Store& store) {
    write(store, 10, "x");
    store.backup(file("b1"), file("b0"));
  });
  write_file(file("pool"), before);
  {
    Pool pool = Pool::open(file("pool"), pool_options());
    StoreOptions cache = options();
    cache.evict = true;
    Store::open(pool, "store", cache).put("b", "1");
  }
  std::string after = read_file(file("pool"));
  put_list(after, before, at);
  // The word behind the link to the list.
  const uint64_t link = at;
  int links = 0;
  for (size_t word = 0; word + 16 <= before.size(); word += 8) {
    uint64_t seen = 0;
    uint64_t generation = 0;
    std::memcpy(&seen, before.data() + word + 8, sizeof seen);
    if (std::memcmp(before.data() + word, &link, sizeof link) != 0) continue;
    if (!pm::unseal_word(seen, store::kRunSalt, generation)) continue;
    after.replace(word + 8, 8, before.substr(word + 8, 8));
    ++links;
  }
  ASSERT_EQ(links, 1);
  write_file(file("pool"), after);
  read([&](const Store& store) { EXPECT_FALSE(store.can_back_up_since()); });
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "b0"));
    store.backup(file("b2"));
    store.backup(file("b3"), file("b2"));
  });
}

TEST_P(StoreRunsTest, ADamagedListKnowsNoRun) {
  make();
  opened([&](Store& store) { store.backup(file("b0")); });
  std::string image = read_file(file("pool"));
  image[list_at(image) + 8] ^= 1;
  write_file(file("pool"), image);
  opened([&](Store& store) {
    EXPECT_EQ(store.get("first"), "1");
    EXPECT_TRUE(refused(store, "b0"));
    store.backup(file("b1"));
    EXPECT_TRUE(refused(store, "b1"));
    EXPECT_EQ(restored({"b1"}), content(store));
  });
}

TEST_P(StoreRunsTest, TheListIsTheStoresOwn) {
  make();
  Pool pool = Pool::open(file("pool"), pool_options());
  const uint64_t before = pool.info().allocated_bytes;
  {
    Store store = Store::create(pool, "another", options());
    const double without = figure(store, "pool_bytes");
    store.backup(file("b0"));
    EXPECT_GT(figure(store, "pool_bytes"), without);
  }
  drop_structure(pool, "another");
  EXPECT_EQ(pool.info().allocated_bytes, before);
}

// Version 1 of the format.
TEST_P(StoreRunsTest, ABackupFromBeforeThereWereRunsIsRestoredAndIsNoBase) {
  make();
  opened([&](Store& store) {
    store.backup(file("b0"));
    const store::BackupReader reader(file("b0"));
    const size_t positions = reader.header().end.size() * 16;
    std::string image = read_file(file("b0"));
    image[8] = 1;
    image.erase(48, sizeof(uint64_t));
    const size_t end = 48 + positions + reader.header().boundaries.size();
    const uint64_t sum = pm::checksum64(image.data(), end);
    std::memcpy(image.data() + end, &sum, sizeof sum);
    std::ofstream(file("b0"), std::ios::binary | std::ios::trunc) << image;
    EXPECT_EQ(restored({"b0"}), content(store));
    EXPECT_TRUE(refused(store, "b0"));
  });
}

TEST_P(StoreRunsTest, AStoreThatEvictedIsNotGoneOnFrom) {
  make();
  opened([&](Store& store) { store.backup(file("b0")); });
  {
    Pool pool = Pool::open(file("pool"), pool_options());
    StoreOptions cache = options();
    cache.evict = true;
    Store store = Store::open(pool, "store", cache);
    EXPECT_FALSE(store.can_back_up_since());
    EXPECT_TRUE(refused(store, "b0"));
    store.backup(file("cache"));
  }
  opened([&](Store& store) {
    EXPECT_TRUE(refused(store, "b0"));
    EXPECT_TRUE(refused(store, "cache"));
    store.backup(file("b1"));
    store.backup(file("b2"), file("b1"));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreRunsTest,
    testing::Values(StoreCase{"Hash", {.partitions = 4}},
                    StoreCase{"Boundaries",
                              {.index = StoreIndex::kOrdered, .boundaries = {"k3", "k7"}}},
                    StoreCase{"Pm", {.index = StoreIndex::kPm, .partitions = 2}},
                    StoreCase{"Workers", {.partitions = 4, .workers = 2}}),
    name_of);

}  // namespace
}  // namespace perdure::test
