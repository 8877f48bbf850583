// Backups: what is made of them is what the store was, at the moment of each; and no damaged one is
// taken.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "perdure/store.h"
#include "pm/unfinished_file.h"
#include "store/backup_file.h"
#include "store/fixture.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

using Model = std::map<std::string, std::string>;

class StoreBackupTest : public testing::TestWithParam<StoreCase> {
 protected:
  static PoolOptions pool_options() { return store_pool(64); }
  static StoreOptions options() {
    StoreOptions options = GetParam().options;
    options.block_bytes = 4096;
    options.changes_bytes = 8 << 20;
    return options;
  }
  Model restored(const std::vector<std::string>& files) {
    const std::string path = dir_.file("restored" + std::to_string(++restored_));
    Pool pool = Pool::create(path, pool_options());
    {
      Store store = Store::restore(pool, "again", files);
      store.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
    }
    return content(Store::open(pool, "again"));
  }
  void write(Store& store, int count) {
    for (int i = 0; i < count; ++i) {
      std::string key = (random_.chance(50) ? "user/" : "k") + std::to_string(random_.below(500));
      if (random_.below(20) == 0) key += std::string(400, 'l');
      const uint64_t choice = random_.below(100);
      if (choice < 2) {
        store.remove_prefix(key.substr(0, key.size() - 1));
      } else if (choice < 20) {
        store.remove(key);
      } else {
        store.put(key,
                  std::to_string(++stamp_) + std::string(random_.below(20) == 0 ? 5000 : 10, 'v'));
      }
    }
  }
  std::string file(const std::string& name) const { return dir_.file(name); }

  TempDir dir_;
  Random random_{base_seed()};
  uint64_t stamp_ = 0;
  int restored_ = 0;
};

TEST_P(StoreBackupTest, EachRestoresTheMomentThatItIsOf) {
  Pool pool = Pool::create(file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  std::vector<std::string> files;
  std::vector<Model> models;
  for (int i = 0; i < 4; ++i) {
    write(store, 1500);
    files.push_back(file("backup" + std::to_string(i)));
    const StoreBackup made =
        store.backup(files.back(), i == 0 ? std::string() : files[files.size() - 2]);
    EXPECT_GT(made.entries, 0U);
    EXPECT_EQ(made.positions.size(), store.partitions());
    models.push_back(content(store));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(restored({files.begin(), files.begin() + static_cast<ptrdiff_t>(i) + 1}), models[i]);
  }
  // Nothing has changed: the next one is empty, and restores the same.
  EXPECT_EQ(store.backup(file("empty"), files.back()).entries, 0U);
  files.push_back(file("empty"));
  EXPECT_EQ(restored(files), models.back());
}

TEST_P(StoreBackupTest, RefusesWhatDoesNotFollow) {
  Pool pool = Pool::create(file("pool"), pool_options());
  StoreOptions forgetful = options();
  forgetful.changes_bytes = 0;
  Store store = Store::create(pool, "store", forgetful);
  Store other = Store::create(pool, "other", options());
  write(store, 500);
  store.backup(file("a"));
  store.backup(file("b"), file("a"));
  store.backup(file("c"), file("b"));
  const std::vector<std::vector<std::string>> wrong = {
      {}, {file("b")}, {file("a"), file("c")}, {file("b"), file("a")}, {file("a"), file("a")}};
  Pool target = Pool::create(file("target"), pool_options());
  for (const auto& files : wrong) {
    EXPECT_TRUE(
        fails_with(ErrorCode::kInvalidArgument, [&] { Store::restore(target, "x", files); }));
  }
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { other.backup(file("d"), file("a")); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, [&] { store.backup(file("d"), file("none")); }));
  // The log is not kept from there on.
  write(store, 20'000);
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] { store.backup(file("d"), file("c")); }));
  std::ifstream none(file("d"));
  EXPECT_FALSE(none.is_open());
}

TEST_P(StoreBackupTest, ADamagedOneIsRefusedBeforeAnythingIsMade) {
  Pool pool = Pool::create(file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  write(store, 500);
  store.backup(file("a"));
  const std::string sound = read_file(file("a"));
  Pool target = Pool::create(file("target"), pool_options());
  for (int i = 0; i < 200; ++i) {
    std::string image = sound;
    if (i % 4 == 0) {
      image.resize(random_.below(image.size()));
    } else {
      image[i % 4 == 1 ? random_.below(200) : random_.below(image.size())] ^=
          static_cast<char>(1 << random_.below(8));
    }
    std::ofstream(file("bad"), std::ios::binary | std::ios::trunc) << image;
    try {
      const std::vector<std::string> files = {file("bad")};
      Store::restore(target, "x", files);
      FAIL() << "was taken";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kTruncated ||
                  error.code() == ErrorCode::kForeign || error.code() == ErrorCode::kVersion)
          << error.what();
    }
  }
  EXPECT_TRUE(target.structures().empty());
}

TEST_P(StoreBackupTest, ReplacesNothingButABackup) {
  Pool pool = Pool::create(file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  write(store, 100);
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { store.backup(file("pool")); }));
  std::ofstream(file("empty")).flush();
  EXPECT_TRUE(fails_with(ErrorCode::kExists, [&] { store.backup(file("empty")); }));
  store.backup(file("a"));
  std::filesystem::create_hard_link(file("a"), file("same"));
  for (const char* name : {"a", "same"}) {
    EXPECT_TRUE(
        fails_with(ErrorCode::kInvalidArgument, [&] { store.backup(file(name), file("a")); }));
  }
  const Model first = content(store);
  EXPECT_EQ(restored({file("a")}), first);
  write(store, 100);
  store.backup(file("a"));
  EXPECT_EQ(restored({file("a")}), content(store));
  EXPECT_EQ(restored({file("same")}), first);
  for (const auto& one : std::filesystem::directory_iterator(dir_.file(""))) {
    EXPECT_EQ(one.path().string().find("unfinished"), std::string::npos) << one.path();
  }
}

TEST_P(StoreBackupTest, ReplacesNothingThatItRestsOn) {
  Pool pool = Pool::create(file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  std::string since;
  for (const char* name : {"a", "b", "c", "d"}) {
    write(store, 100);
    store.backup(file(name), since);
    since = file(name);
  }
  write(store, 100);
  for (const char* name : {"a", "b", "c", "d"}) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] {
      store.backup(file(name), file("d"));
    })) << name;
  }
  store.backup(file("e"), file("d"));
  EXPECT_EQ(restored({file("a"), file("b"), file("c"), file("d"), file("e")}), content(store));
  // What came later is nothing that it rests on, and a whole one rests on nothing.
  store.backup(file("e"), file("d"));
  store.backup(file("d"), file("c"));
  store.backup(file("a"));
  EXPECT_EQ(restored({file("a")}), content(store));
}

TEST_P(StoreBackupTest, WhatIsNoBackupOfTheStoreIsRefused) {
  using store::BackupEntry;
  using store::BackupHeader;
  const auto make = [&](const std::string& name, const BackupHeader& header, uint8_t kind) {
    pm::UnfinishedFile out(file(name));
    store::BackupWriter writer(out.file(), name, header);
    writer.add({.kind = static_cast<BackupEntry::Kind>(kind), .key = "k", .value = "v"});
    writer.finish();
    out.finish(false);
  };
  make("a", {.id = 1, .store = 7, .begin = {0}, .end = {5}}, 1);
  make("b", {.id = 2, .parent = 1, .store = 7, .begin = {5}, .end = {6}}, 1);
  make("kind", {.id = 3, .store = 7, .begin = {0}, .end = {5}}, 4);
  make("parts", {.id = 4, .parent = 1, .store = 7, .begin = {5, 5}, .end = {6, 6}}, 1);
  make("other", {.id = 5, .parent = 1, .store = 8, .begin = {5}, .end = {6}}, 1);
  make("cut", {.id = 6, .parent = 1, .store = 7, .begin = {5}, .end = {6}, .boundaries = "x"}, 1);
  EXPECT_EQ(restored({file("a"), file("b")}), (Model{{"k", "v"}}));
  Pool target = Pool::create(file("target"), pool_options());
  const auto refused = [&](ErrorCode code, const std::vector<std::string>& files) {
    return fails_with(code, [&] { Store::restore(target, "x", files); });
  };
  EXPECT_TRUE(refused(ErrorCode::kCorrupt, {file("kind")}));
  for (const char* name : {"parts", "other", "cut"}) {
    EXPECT_TRUE(refused(ErrorCode::kInvalidArgument, {file("a"), file(name)})) << name;
  }
  EXPECT_TRUE(target.structures().empty());
}

TEST_P(StoreBackupTest, AfterAKillThePoolIsOpenedToWriteFirst) {
  Pool pool = Pool::create(file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  write(store, 100);
  std::filesystem::copy_file(file("pool"), file("killed"));
  PoolOptions reading = pool_options();
  reading.read_only = true;
  {
    Pool killed = Pool::open(file("killed"), reading);
    const Store there = Store::open(killed, "store", options());
    EXPECT_TRUE(fails_with(ErrorCode::kReadOnly, [&] { there.backup(file("a")); }));
  }
  {
    Pool killed = Pool::open(file("killed"), pool_options());
    Store::open(killed, "store", options());
  }
  Pool killed = Pool::open(file("killed"), reading);
  Store::open(killed, "store", options()).backup(file("a"));
  EXPECT_EQ(restored({file("a")}), content(store));
}

// While threads move amounts between accounts in batches: the sum is right in each backup.
TEST_P(StoreBackupTest, SeesBatchesWhollyWhileOthersWrite) {
  constexpr uint64_t kAccounts = 30;
  Pool pool = Pool::create(file("pool"), pool_options());
  Store store = Store::create(pool, "store", options());
  const auto account = [](uint64_t number) { return "user/" + std::to_string(number); };
  for (uint64_t i = 0; i < kAccounts; ++i) store.put(account(i), "1000");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    Random random(base_seed());
    while (!stop.load()) {
      const uint64_t from = random.below(kAccounts);
      const uint64_t to = random.below(kAccounts);
      if (from == to) continue;
      Store::Batch batch;
      batch.put(account(from), std::to_string(std::stoll(*store.get(account(from))) - 1));
      batch.put(account(to), std::to_string(std::stoll(*store.get(account(to))) + 1));
      store.apply(batch);
    }
  });
  std::vector<std::string> files;
  for (int i = 0; i < 5; ++i) {
    files.push_back(file("backup" + std::to_string(i)));
    store.backup(files.back(), i == 0 ? std::string() : files[files.size() - 2]);
  }
  stop.store(true);
  writer.join();
  for (size_t i = 1; i <= files.size(); ++i) {
    int64_t sum = 0;
    for (const auto& [key, value] :
         restored({files.begin(), files.begin() + static_cast<ptrdiff_t>(i)})) {
      sum += std::stoll(value);
    }
    EXPECT_EQ(sum, kAccounts * 1000);
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreBackupTest,
                         testing::Values(StoreCase{"Hash", {.partitions = 4}},
                                         StoreCase{"Boundaries",
                                                   {.index = StoreIndex::kOrdered,
                                                    .boundaries = {"l", "user/3"}}},
                                         StoreCase{"Workers", {.partitions = 4, .workers = 2}}),
                         name_of);

}  // namespace
}  // namespace perdure::test
