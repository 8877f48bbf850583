// Reads LevelDB. It cannot open a database to read only: it takes the lock, and writes what its log
// holds to a table.

#include <fmt/core.h>
#include <leveldb/db.h>

#include "cli/readers/leveldb_manifest.h"
#include "cli/readers/ordered.h"

namespace {

using namespace perdure::readers;

void read(const Request& request, Output& output) {
  require_database(request);
  if (!request.database.empty()) throw Failure("a database has no parts with names");
  if (std::filesystem::exists(request.path + "/IDENTITY")) {
    throw Failure(request.path +
                  ": this is a database of RocksDB; read it with rocksdb:" + request.path);
  }
  // Before LevelDB removes what it knows nothing of.
  const std::string warning = check_leveldb_files(request.path);
  if (!warning.empty()) fmt::print(stderr, "{}\n", warning);
  leveldb::Options options;
  options.paranoid_checks = true;
  leveldb::DB* opened = nullptr;
  require(leveldb::DB::Open(options, request.path, &opened));
  const std::unique_ptr<leveldb::DB> db(opened);
  leveldb::ReadOptions reading;
  reading.verify_checksums = true;
  reading.fill_cache = false;
  write_all(std::unique_ptr<leveldb::Iterator>(db->NewIterator(reading)), output);
}

}  // namespace

int main(int argc, char** argv) {
  return run_reader(argc, argv, "LevelDB", "None: LevelDB has no parts with names", read);
}
