// Databases of other stores, written with their own libraries, for `perdure convert --from` to
// read.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace perdure::cli_test {

using Records = std::vector<std::pair<std::string, std::string>>;

struct DatabaseOptions {
  std::string part;         // a column family of RocksDB, a named database of LMDB
  std::string compression;  // "snappy" or "zstd"; empty: none
  bool in_log = false;  // of LevelDB and RocksDB: records stay in the log, as a crash leaves them
  bool small_tables = false;  // of LevelDB: many, and the newest records in the log
  bool backwards = false;     // of RocksDB: another order of keys
  bool words = false;         // of LMDB: keys are words of the machine (MDB_INTEGERKEY)
  bool duplicates = false;    // of LMDB: a key has several values (MDB_DUPSORT)
  bool one_file = false;      // of LMDB: no folder (MDB_NOSUBDIR)
};

// Whether the library was there when the tests were built.
bool has_leveldb();
bool has_lmdb();
bool has_rocksdb();

// Write a database to `path`, or more records to one that is there. Failures abort the test
// program.
void write_leveldb(const std::string& path, const Records& records, const DatabaseOptions& options);
void write_lmdb(const std::string& path, const Records& records, const DatabaseOptions& options);
void write_rocksdb(const std::string& path, const Records& records, const DatabaseOptions& options);

}  // namespace perdure::cli_test
