// RocksDB over a pool: its usual work, what its utilities do, kills, full pools, and the name
// perdure://.
//
// PERDURE_KILL_ROUNDS: how many kills.
#include "perdure/rocksdb.h"

#include <gtest/gtest.h>
#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/backup_engine.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/utilities/transaction.h>
#include <rocksdb/utilities/transaction_db.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lsm/numbered_records.h"
#include "perdure/files.h"
#include "support/child.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

Model contents_of(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family = nullptr) {
  Model all;
  const std::unique_ptr<rocksdb::Iterator> at(
      db.NewIterator({}, family == nullptr ? db.DefaultColumnFamily() : family));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    all[at->key().ToString()] = at->value().ToString();
  }
  EXPECT_TRUE(at->status().ok()) << at->status().ToString();
  return all;
}

// Pool and environment, in this order.
struct Place {
  Place(const std::string& path, uint64_t capacity_bytes)
      : Place(path, PoolOptions{.capacity_bytes = capacity_bytes}) {}
  Place(const std::string& path, const PoolOptions& options)
      : pool(open(path, options)), env(rocksdb::NewCompositeEnv(rocksdb_file_system(pool))) {}

  static Pool open(const std::string& path, const PoolOptions& options) {
    return std::filesystem::exists(path) ? Pool::open(path, options) : Pool::create(path, options);
  }
  static rocksdb::Options options_for(rocksdb::Env* env) {
    rocksdb::Options options;
    options.env = env;
    options.create_if_missing = true;
    options.allow_mmap_reads = true;
    options.compression = rocksdb::kNoCompression;
    options.write_buffer_size = 128 << 10;
    options.target_file_size_base = 512 << 10;
    options.max_background_jobs = 2;
    options.paranoid_checks = true;
    return options;
  }
  rocksdb::Options options() const { return options_for(env.get()); }
  std::unique_ptr<rocksdb::DB> open_db(const std::string& path = "/db") const {
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options(), path, &db);
    if (!status.ok()) throw std::runtime_error(status.ToString());
    return std::unique_ptr<rocksdb::DB>(db);
  }

  Pool pool;
  std::unique_ptr<rocksdb::Env> env;
};

class RocksDb : public testing::Test {
 protected:
  std::string path() const { return folder_.file("pool"); }
  TempDir folder_;
};

constexpr uint64_t kCapacity = uint64_t{128} << 20;

// The first one: RocksDB leaves threads behind, which a forked child would miss.
TEST_F(RocksDb, AKilledProcessLosesNothingThatWasAcknowledged) {
  const char* text = std::getenv("PERDURE_KILL_ROUNDS");
  const uint64_t rounds = text == nullptr ? scaled(6) : std::strtoull(text, nullptr, 10);
  Random random(base_seed());
  uint64_t first = 0;
  Model model;
  {
    const Place made(path(), kCapacity);
  }
  for (uint64_t round = 0; round < rounds; ++round) {
    uint64_t acknowledged = first;
    Child child([&](int out) {
      const auto* place = new Place(path(), kCapacity);  // never closed
      rocksdb::DB* db = place->open_db().release();
      for (uint64_t i = first;; ++i) {
        rocksdb::WriteOptions options;
        options.sync = i % 2 == 0;
        rocksdb::WriteBatch batch;  // of two records, which are there both or neither
        static_cast<void>(batch.Put(key_of(i % 2000), value_of(i)));
        static_cast<void>(batch.Put("twin" + key_of(i % 2000), value_of(i)));
        const rocksdb::Status status = db->Write(options, &batch);
        if (!status.ok()) throw Error(ErrorCode::kCorrupt, status.ToString());
        send(out, &i, sizeof i);
      }
    });
    const uint64_t enough = random.below(uint64_t{1} << (4 + random.below(9)));
    uint64_t told = 0;
    for (uint64_t n = 0; n < enough && child.receive(&told, sizeof told); ++n) {
      acknowledged = told + 1;
    }
    child.kill();
    while (child.receive(&told, sizeof told)) acknowledged = told + 1;
    child.wait();
    const auto written = [&] {
      model[key_of(first % 2000)] = value_of(first);
      model["twin" + key_of(first % 2000)] = value_of(first);
      ++first;
    };
    while (first < acknowledged) written();
    const std::string wrong = in_crashing_child([&]() -> std::string {
      const auto* place = new Place(path(), kCapacity);
      const Model there = contents_of(*place->open_db().release());
      if (there == model) return "";
      Model with = model;
      with[key_of(first % 2000)] = value_of(first);
      with["twin" + key_of(first % 2000)] = value_of(first);
      return there == with ? "one more" : "lost";
    });
    if (wrong == "one more") {
      written();
    } else {
      ASSERT_EQ(wrong, "") << "round " << round;
    }
  }
}

TEST_F(RocksDb, DoesItsUsualWorkOverManyOpenings) {
  Model model;
  uint64_t number = 0;
  Random random(base_seed());
  for (int round = 0; round < 3; ++round) {
    const Place place(path(), kCapacity);
    const auto db = place.open_db();
    ASSERT_EQ(contents_of(*db), model);
    for (uint64_t i = 0; i < scaled(6000); ++i) {
      const std::string key = key_of(random.below(3000));
      if (random.chance(20)) {
        ASSERT_TRUE(db->Delete({}, key).ok());
        model.erase(key);
        continue;
      }
      rocksdb::WriteOptions options;
      options.sync = random.chance(10);
      const std::string value = value_of(++number);
      ASSERT_TRUE(db->Put(options, key, value).ok());
      model[key] = value;
    }
    if (round == 1) {
      ASSERT_TRUE(db->CompactRange({}, nullptr, nullptr).ok());
    }
    ASSERT_EQ(contents_of(*db), model);
    ASSERT_TRUE(db->VerifyChecksum().ok());
    ASSERT_TRUE(db->SyncWAL().ok());
    std::string found;
    for (uint64_t i = 0; i < 3000; ++i) {
      ASSERT_EQ(db->Get({}, key_of(i), &found).ok(), model.contains(key_of(i)));
    }
    ASSERT_TRUE(db->Close().ok());
  }
  Pool pool = Pool::open(path());
  const Files files = Files::open(pool, "files");
  files.check([](const std::string& sentence) { ADD_FAILURE() << sentence; });
}

TEST_F(RocksDb, ColumnFamiliesTransactionsCheckpointsBackupsAndIngestion) {
  const Place place(path(), kCapacity);
  rocksdb::TransactionDB* opened = nullptr;
  ASSERT_TRUE(rocksdb::TransactionDB::Open(place.options(), {}, "/db", &opened).ok());
  const std::unique_ptr<rocksdb::TransactionDB> db(opened);
  rocksdb::ColumnFamilyHandle* family = nullptr;
  ASSERT_TRUE(db->CreateColumnFamily({}, "other", &family).ok());
  Model model;
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::unique_ptr<rocksdb::Transaction> transaction(db->BeginTransaction({}));
    ASSERT_TRUE(transaction->Put(key_of(i), value_of(i)).ok());
    ASSERT_TRUE(transaction->Put(family, key_of(i), value_of(i)).ok());
    if (i % 5 == 0) {
      ASSERT_TRUE(transaction->Rollback().ok());
      continue;
    }
    ASSERT_TRUE(transaction->Commit().ok());
    model[key_of(i)] = value_of(i);
  }
  ASSERT_EQ(contents_of(*db, family), model);
  ASSERT_TRUE(db->DestroyColumnFamilyHandle(family).ok());

  rocksdb::Checkpoint* made = nullptr;
  ASSERT_TRUE(rocksdb::Checkpoint::Create(db.get(), &made).ok());
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  rocksdb::Status status = checkpoint->CreateCheckpoint("/checkpoint");
  ASSERT_TRUE(status.ok()) << status.ToString();

  rocksdb::BackupEngine* engine = nullptr;
  status = rocksdb::BackupEngine::Open(rocksdb::BackupEngineOptions("/backups", place.env.get()),
                                       place.env.get(), &engine);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::unique_ptr<rocksdb::BackupEngine> backups(engine);
  status = backups->CreateNewBackup(db.get());
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(backups->VerifyBackup(1, true).ok());

  rocksdb::SstFileWriter writer({}, place.options());
  ASSERT_TRUE(writer.Open("/ingested.sst").ok());
  for (int i = 0; i < 100; ++i) {
    const std::string key = "z" + std::to_string(1000 + i);
    ASSERT_TRUE(writer.Put(key, "ingested").ok());
    model[key] = "ingested";
  }
  ASSERT_TRUE(writer.Finish().ok());
  status = db->IngestExternalFile({"/ingested.sst"}, {});
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(contents_of(*db), model);

  status = backups->RestoreDBFromBackup(1, "/restored", "/restored");
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (const std::string copy : {"/checkpoint", "/restored"}) {
    rocksdb::DB* other = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    status = rocksdb::DB::OpenForReadOnly(place.options(), copy, &other);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::unique_ptr<rocksdb::DB> owned(other);
    std::string found;
    EXPECT_TRUE(other->Get({}, key_of(1), &found).ok());
    EXPECT_EQ(found, model[key_of(1)]);
    EXPECT_FALSE(other->Get({}, "z1000", &found).ok());
  }
}

TEST_F(RocksDb, AFullPoolIsAnErrorAndLosesNothing) {
  const Place place(path(), uint64_t{12} << 20);
  const auto db = place.open_db();
  Model model;
  rocksdb::Status status;
  for (uint64_t i = 0; i < 200'000; ++i) {
    rocksdb::WriteOptions options;
    options.sync = true;
    status = db->Put(options, key_of(i), value_of(i));
    if (!status.ok()) break;
    model[key_of(i)] = value_of(i);
  }
  EXPECT_FALSE(status.ok());
  EXPECT_GT(model.size(), 1000U);
  std::string found;
  for (const auto& [key, value] : model) {
    ASSERT_TRUE(db->Get({}, key, &found).ok());
    ASSERT_EQ(found, value);
  }
}

// A write that found no room is not the end of the database: once there is some it goes on by
// itself, with all that it had acknowledged.
TEST_F(RocksDb, GoesOnWhenAFullPoolHasRoomAgain) {
  const Place place(path(), uint64_t{16} << 20);
  rocksdb::FileSystem& system = *place.env->GetFileSystem();
  uint64_t free_before = 0;
  ASSERT_TRUE(system.GetFreeSpace("/", {}, &free_before, nullptr).ok());
  EXPECT_LE(free_before, uint64_t{16} << 20);
  const std::string much(uint64_t{4} << 20, 'x');
  ASSERT_TRUE(rocksdb::WriteStringToFile(place.env.get(), much, "/ballast").ok());
  uint64_t free = 0;
  ASSERT_TRUE(system.GetFreeSpace("/", {}, &free, nullptr).ok());
  EXPECT_LE(free + much.size(), free_before);
  EXPECT_GE(free + much.size() * 5 / 4, free_before);
  const auto db = place.open_db();
  Model model;
  rocksdb::Status status;
  uint64_t i = 0;
  for (; i < 200'000; ++i) {
    status = db->Put({}, key_of(i), value_of(i));
    if (!status.ok()) break;
    model[key_of(i)] = value_of(i);
  }
  // Of its own thread as it is; of one in the background within a status of its own.
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find("the pool is full"), std::string::npos) << status.ToString();
  ASSERT_TRUE(place.env->DeleteFile("/ballast").ok());
  for (int tries = 0; tries < 300; ++tries) {  // it asks every five seconds
    status = db->Put({}, "one more", "value");
    if (status.ok()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(status.ok()) << status.ToString();
  model["one more"] = "value";
  model.erase(key_of(i));  // of which nothing was promised
  Model there = contents_of(*db);
  there.erase(key_of(i));
  EXPECT_EQ(there, model);
}

// A database whose power fails.
class PoweredDatabase {
 public:
  PoweredDatabase(const std::string& path, const PoolOptions& options) : place_(path, options) {
    rocksdb::DB* opened = nullptr;
    opened_ = rocksdb::DB::Open(place_.options(), "/db", &opened).ok();
    db_.reset(opened);
  }

  bool opened() const { return opened_; }
  Model contents() const { return contents_of(*db_); }
  bool put(const std::string& key, const std::string& value, bool sync) {
    rocksdb::WriteOptions options;
    options.sync = sync;
    return db_->Put(options, key, value).ok();
  }
  bool has(const std::string& key) const {
    std::string found;
    return db_->Get({}, key, &found).ok();
  }

 private:
  Place place_;
  bool opened_ = false;
  std::unique_ptr<rocksdb::DB> db_;
};

TEST_F(RocksDb, APowerFailureLosesNothingThatWasSynced) {
  EXPECT_GT(
      fail_power<PoweredDatabase>(path(), PoolOptions{.capacity_bytes = kCapacity}, rounds(20)),
      200U);
}

// A file that is not there stays so, and a read without room that no file has an end for is none.
TEST_F(RocksDb, CallsThatAskTooMuchAreErrors) {
  const Place place(path(), kCapacity);
  rocksdb::FileSystem& system = *place.env->GetFileSystem();
  EXPECT_TRUE(system.Truncate("/none", 100, {}, nullptr).IsPathNotFound());
  EXPECT_TRUE(system.FileExists("/none", {}, nullptr).IsNotFound());
  ASSERT_TRUE(rocksdb::WriteStringToFile(place.env.get(), "0123456789", "/f").ok());
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  ASSERT_TRUE(system.NewRandomAccessFile("/f", {}, &file, nullptr).ok());
  rocksdb::Slice read;
  EXPECT_TRUE(file->Read(4, ~size_t{0}, {}, &read, nullptr, nullptr).ok());
  EXPECT_EQ(read.ToString(), "456789");
  std::unique_ptr<rocksdb::FSSequentialFile> scan;
  ASSERT_TRUE(system.NewSequentialFile("/f", {}, &scan, nullptr).ok());
  std::string scratch(10, '\0');
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(scan->Skip(~uint64_t{0}).ok());
    EXPECT_TRUE(scan->Read(10, {}, &read, scratch.data(), nullptr).ok());
    EXPECT_EQ(read.size(), 0U);
  }
}

// RocksDB takes an obsolete log for its next one, and closes its old writer after that.
TEST_F(RocksDb, ALogIsReusedWhileItsLastWriterHasItOpen) {
  const Place place(path(), kCapacity);
  rocksdb::FileSystem& system = *place.env->GetFileSystem();
  std::unique_ptr<rocksdb::FSWritableFile> last;
  ASSERT_TRUE(system.NewWritableFile("/1.log", {}, &last, nullptr).ok());
  ASSERT_TRUE(last->Append("obsolete", {}, nullptr).ok());
  ASSERT_TRUE(last->Flush({}, nullptr).ok());
  std::unique_ptr<rocksdb::FSWritableFile> next;
  const rocksdb::IOStatus status = system.ReuseWritableFile("/2.log", "/1.log", {}, &next, nullptr);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(next->Append("new", {}, nullptr).ok());
  EXPECT_TRUE(last->Close({}, nullptr).ok());
  EXPECT_TRUE(next->Close({}, nullptr).ok());
  EXPECT_TRUE(system.FileExists("/1.log", {}, nullptr).IsNotFound());
  std::string read;
  ASSERT_TRUE(rocksdb::ReadFileToString(place.env.get(), "/2.log", &read).ok());
  EXPECT_EQ(read, "new");
  EXPECT_TRUE(system.ReuseWritableFile("/3.log", "/1.log", {}, &next, nullptr).IsPathNotFound());
  EXPECT_TRUE(system.FileExists("/3.log", {}, nullptr).IsNotFound());
}

// What RocksDB's BlobDB asks when it is opened, and its file manager before it cuts a file.
TEST_F(RocksDb, TellsWhetherFilesAreTheSame) {
  const Place place(path(), kCapacity);
  rocksdb::Env& env = *place.env;
  ASSERT_TRUE(env.CreateDir("/db").ok());
  for (const char* name : {"/db/f", "/db/g"}) {
    ASSERT_TRUE(rocksdb::WriteStringToFile(&env, "x", name).ok());
  }
  bool same = false;
  for (const char* spelling : {"/db/f", "db/f", "//db/./f"}) {
    ASSERT_TRUE(env.AreFilesSame("/db/f", spelling, &same).ok());
    EXPECT_TRUE(same) << spelling;
  }
  ASSERT_TRUE(env.AreFilesSame("/db", "/db/", &same).ok());
  EXPECT_TRUE(same);
  ASSERT_TRUE(env.AreFilesSame("/db/f", "/db/g", &same).ok());
  EXPECT_FALSE(same);
  EXPECT_TRUE(env.AreFilesSame("/db/f", "/none", &same).IsPathNotFound());
  uint64_t links = 0;
  ASSERT_TRUE(env.NumFileLinks("/db/f", &links).ok());
  EXPECT_EQ(links, 1U);
  EXPECT_TRUE(env.NumFileLinks("/none", &links).IsPathNotFound());
}

// Else a database that is not there, or a file, could be destroyed without an error.
TEST_F(RocksDb, ALockNeedsItsDirectory) {
  const Place place(path(), kCapacity);
  rocksdb::FileLock* lock = nullptr;
  EXPECT_TRUE(place.env->LockFile("/none/LOCK", &lock).IsPathNotFound());
  EXPECT_EQ(lock, nullptr);
  ASSERT_TRUE(rocksdb::WriteStringToFile(place.env.get(), "x", "/file").ok());
  EXPECT_TRUE(rocksdb::DestroyDB("/file", place.options()).IsIOError());
  EXPECT_TRUE(place.env->FileExists("/file").ok());
}

TEST_F(RocksDb, TwoQueueLooksUpWithoutAllocating) {
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb_2q_cache({.capacity_bytes = 1 << 20});
  const rocksdb::Slice key("sixteen bytes it");
  ASSERT_TRUE(cache->Insert(key, nullptr, 100, [](const rocksdb::Slice&, void*) {}).ok());
  ShortMemory memory(0);
  rocksdb::Cache::Handle* found = cache->Lookup(key);
  rocksdb::Cache::Handle* none = cache->Lookup("sixteen bytes no");
  memory.end();
  EXPECT_EQ(memory.refused(), 0U);
  EXPECT_EQ(none, nullptr);
  ASSERT_NE(found, nullptr);
  cache->Release(found);
}

TEST_F(RocksDb, TwoQueueCopiesTheHotBlocksAlone) {
  const std::shared_ptr<rocksdb::Cache> cache =
      rocksdb_2q_cache({.capacity_bytes = 1 << 20, .block_bytes = 4096});
  const Place place(path(), kCapacity);
  rocksdb::Options options = place.options();
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::DB* opened = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(options, "/db", &opened).ok());
  std::unique_ptr<rocksdb::DB> db(opened);
  Model model;
  for (uint64_t i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(db->Put({}, key_of(i), value_of(i)).ok());
    model[key_of(i)] = value_of(i);
  }
  ASSERT_TRUE(db->CompactRange({}, nullptr, nullptr).ok());
  const RocksDbCacheStatistics loaded = statistics_of_2q_cache(*cache);
  for (int round = 0; round < 3; ++round) {  // far more than fits in
    ASSERT_EQ(contents_of(*db), model);
  }
  const RocksDbCacheStatistics scanned = statistics_of_2q_cache(*cache);
  EXPECT_GT(scanned.in_place - loaded.in_place, scanned.copied - loaded.copied);
  EXPECT_GT(scanned.copied, 0U);
  EXPECT_LE(scanned.bytes, uint64_t{1} << 20);
  // A few keys that are read often come to DRAM and stay.
  std::string found;
  for (int round = 0; round < 50; ++round) {
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(db->Get({}, key_of(i), &found).ok());
  }
  const RocksDbCacheStatistics hot = statistics_of_2q_cache(*cache);
  EXPECT_GT(hot.hits - scanned.hits, 350U);
  EXPECT_EQ(contents_of(*db), model);
  db.reset();
  cache->EraseUnRefEntries();
  EXPECT_EQ(cache->GetUsage(), 0U);
}

// MultiGet looks a block that is missing up twice, which is one use.
TEST_F(RocksDb, TwoQueueCountsAMultiGetOnce) {
  for (const bool mapped : {true, false}) {
    SCOPED_TRACE(mapped ? "read in place" : "copied");
    std::filesystem::remove(path());
    // More than a block takes: with less there can be room for one that pushes another one out.
    const std::shared_ptr<rocksdb::Cache> cache =
        rocksdb_2q_cache({.capacity_bytes = 1 << 20, .block_bytes = 8192, .reference_percent = 10});
    const Place place(path(), kCapacity);
    rocksdb::Options options = place.options();
    options.allow_mmap_reads = mapped;
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = cache;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, "/db", &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    const std::string value(1000, 'v');
    for (uint64_t i = 0; i < 10'000; ++i) {
      ASSERT_TRUE(db->Put({}, number_of(i), number_of(i) + value).ok());
    }
    ASSERT_TRUE(db->CompactRange({}, nullptr, nullptr).ok());
    for (uint64_t i = 0; i < 10'000; ++i) {  // all of DRAM is taken
      std::string found;
      ASSERT_TRUE(db->Get({}, number_of(i), &found).ok());
    }
    // Eight keys of eight blocks, each time.
    const auto ask = [&] {
      std::vector<std::string> keys;
      for (uint64_t i = 0; i < 8; ++i) keys.push_back(number_of(i * 100));
      const std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
      std::vector<rocksdb::PinnableSlice> values(8);
      std::vector<rocksdb::Status> statuses(8);
      db->MultiGet({}, db->DefaultColumnFamily(), 8, slices.data(), values.data(), statuses.data());
      for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(values[i].ToString(), keys[i] + value);
    };
    const RocksDbCacheStatistics before = statistics_of_2q_cache(*cache);
    ask();
    const RocksDbCacheStatistics once = statistics_of_2q_cache(*cache);
    EXPECT_EQ(once.copied, before.copied);
    EXPECT_EQ(once.in_place, before.in_place + 8);
    ask();
    const RocksDbCacheStatistics twice = statistics_of_2q_cache(*cache);
    EXPECT_EQ(twice.copied, before.copied + 8);
    EXPECT_EQ(twice.hits, before.hits);
    ask();
    EXPECT_EQ(statistics_of_2q_cache(*cache).hits, before.hits + 8);
    EXPECT_EQ(statistics_of_2q_cache(*cache).copied, twice.copied);
  }
}

TEST_F(RocksDb, APoolIsFoundByItsName) {
  const std::string uri = "perdure://" + path() + "?64M";
  std::shared_ptr<rocksdb::Env> guard;
  rocksdb::Env* env = nullptr;
  rocksdb::Status status = rocksdb::Env::CreateFromUri({}, "", uri, &env, &guard);
  ASSERT_TRUE(status.ok()) << status.ToString();
  {
    rocksdb::DB* opened = nullptr;
    status = rocksdb::DB::Open(Place::options_for(env), "/db", &opened);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::unique_ptr<rocksdb::DB> db(opened);
    ASSERT_TRUE(db->Put({}, "key", "value").ok());
  }
  guard.reset();
  const Place place(path(), 0);
  EXPECT_EQ(place.pool.info().capacity_bytes, uint64_t{64} << 20);
  EXPECT_EQ(contents_of(*place.open_db()), (Model{{"key", "value"}}));
  // What cannot be opened is an error in words.
  for (const std::string wrong : {"perdure:///no/such/folder/pool", "perdure:///tmp/pool?many",
                                  "perdure://", "perdure:/tmp/pool"}) {
    status = rocksdb::Env::CreateFromUri({}, "", wrong, &env, &guard);
    EXPECT_TRUE(status.IsInvalidArgument()) << status.ToString();
    EXPECT_EQ(status.ToString().find("Could not load"), std::string::npos) << status.ToString();
  }
}

}  // namespace
}  // namespace perdure::test
