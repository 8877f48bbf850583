#include "cli/foreign/databases.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#ifdef PERDURE_HAS_LEVELDB
#include <leveldb/db.h>
#include <leveldb/write_batch.h>
#endif
#ifdef PERDURE_HAS_LMDB
#include <lmdb.h>
#endif
#ifdef PERDURE_HAS_ROCKSDB
#include <rocksdb/comparator.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#endif

namespace perdure::cli_test {
namespace {

[[noreturn]] void fail(const std::string& words) {
  std::fprintf(stderr, "cannot write a database: %s\n", words.c_str());
  std::abort();
}

#if defined(PERDURE_HAS_LEVELDB) || defined(PERDURE_HAS_ROCKSDB)
template <typename Status>
void require_ok(const Status& status) {
  if (!status.ok()) fail(status.ToString());
}
#endif

}  // namespace

#ifdef PERDURE_HAS_LEVELDB
bool has_leveldb() { return true; }

void write_leveldb(const std::string& path, const Records& records,
                   const DatabaseOptions& options) {
  leveldb::Options settings;
  settings.create_if_missing = true;
  settings.compression =
      options.compression == "snappy" ? leveldb::kSnappyCompression : leveldb::kNoCompression;
  if (options.small_tables) settings.write_buffer_size = 64 << 10;  // the least that it takes
  leveldb::DB* opened = nullptr;
  require_ok(leveldb::DB::Open(settings, path, &opened));
  const std::unique_ptr<leveldb::DB> db(opened);
  for (const auto& [key, value] : records) require_ok(db->Put({}, key, value));
  if (!options.in_log && !options.small_tables) db->CompactRange(nullptr, nullptr);
}
#else
bool has_leveldb() { return false; }
void write_leveldb(const std::string&, const Records&, const DatabaseOptions&) {
  fail("no LevelDB");
}
#endif

#ifdef PERDURE_HAS_LMDB
namespace {
void require_done(int code) {
  if (code != MDB_SUCCESS) fail(mdb_strerror(code));
}
}  // namespace

bool has_lmdb() { return true; }

void write_lmdb(const std::string& path, const Records& records, const DatabaseOptions& options) {
  MDB_env* environment = nullptr;
  require_done(mdb_env_create(&environment));
  require_done(mdb_env_set_maxdbs(environment, 8));
  require_done(mdb_env_set_mapsize(environment, size_t{64} << 20));
  if (!options.one_file) std::filesystem::create_directories(path);
  require_done(mdb_env_open(environment, path.c_str(),
                            MDB_NOSYNC | (options.one_file ? unsigned{MDB_NOSUBDIR} : 0U), 0600));
  MDB_txn* transaction = nullptr;
  require_done(mdb_txn_begin(environment, nullptr, 0, &transaction));
  MDB_dbi table = 0;
  require_done(mdb_dbi_open(transaction, options.part.empty() ? nullptr : options.part.c_str(),
                            MDB_CREATE | (options.words ? unsigned{MDB_INTEGERKEY} : 0U) |
                                (options.duplicates ? unsigned{MDB_DUPSORT} : 0U),
                            &table));
  for (const auto& [key, value] : records) {
    MDB_val put_key = {key.size(), const_cast<char*>(key.data())};
    MDB_val put_value = {value.size(), const_cast<char*>(value.data())};
    require_done(mdb_put(transaction, table, &put_key, &put_value, 0));
  }
  require_done(mdb_txn_commit(transaction));
  mdb_env_close(environment);
}
#else
bool has_lmdb() { return false; }
void write_lmdb(const std::string&, const Records&, const DatabaseOptions&) { fail("no LMDB"); }
#endif

#ifdef PERDURE_HAS_ROCKSDB
bool has_rocksdb() { return true; }

void write_rocksdb(const std::string& path, const Records& records,
                   const DatabaseOptions& options) {
  rocksdb::Options settings;
  settings.create_if_missing = true;
  settings.create_missing_column_families = true;
  settings.compression = options.compression == "zstd"     ? rocksdb::kZSTD
                         : options.compression == "snappy" ? rocksdb::kSnappyCompression
                                                           : rocksdb::kNoCompression;
  settings.avoid_flush_during_shutdown = options.in_log;
  rocksdb::ColumnFamilyOptions of_part(settings);
  if (options.backwards) of_part.comparator = rocksdb::ReverseBytewiseComparator();
  const std::string& part = options.part.empty() ? rocksdb::kDefaultColumnFamilyName : options.part;
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {{part, of_part}};
  if (part != rocksdb::kDefaultColumnFamilyName) {
    families.emplace_back(rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions());
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  require_ok(rocksdb::DB::Open(settings, path, families, &handles, &opened));
  const std::unique_ptr<rocksdb::DB> db(opened);
  for (const auto& [key, value] : records) require_ok(db->Put({}, handles[0], key, value));
  if (!options.in_log) {
    require_ok(db->Flush({}, handles[0]));
    require_ok(db->CompactRange({}, handles[0], nullptr, nullptr));
  }
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    require_ok(db->DestroyColumnFamilyHandle(handle));
  }
}
#else
bool has_rocksdb() { return false; }
void write_rocksdb(const std::string&, const Records&, const DatabaseOptions&) {
  fail("no RocksDB");
}
#endif

}  // namespace perdure::cli_test
