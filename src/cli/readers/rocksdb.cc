// Reads RocksDB, opened for reading only: no lock is taken, no file is written. What a process that
// has it open has not written to its files is not seen.

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/utilities/options_util.h>

#include <algorithm>
#include <vector>

#include "cli/readers/ordered.h"

namespace {

using namespace perdure::readers;

// RocksDB would begin a new file LOG in the folder.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Of the options that the database was last open with, what is known here: comparators and merge
// operators of RocksDB's own, and where files lie that are elsewhere. Others are the defaults.
rocksdb::Options load_options(const std::string& path, const std::string& family) {
  rocksdb::ConfigOptions how;
  how.ignore_unknown_options = true;
  how.ignore_unsupported_options = true;
  rocksdb::DBOptions of_all;
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  rocksdb::ColumnFamilyOptions of_family;
  if (!rocksdb::LoadLatestOptions(how, path, &of_all, &families).ok()) return {};
  for (const rocksdb::ColumnFamilyDescriptor& one : families) {
    if (one.name == family) of_family = one.options;
  }
  return {of_all, of_family};
}

void require_family(const rocksdb::Options& options, const Request& request,
                    const std::string& family) {
  std::vector<std::string> names;
  require(rocksdb::DB::ListColumnFamilies(options, request.path, &names));
  if (std::find(names.begin(), names.end(), family) != names.end()) return;
  std::string there;
  for (const std::string& name : names) there += (there.empty() ? "" : ", ") + name;
  throw Failure("there is no column family \"" + family + "\"; there are: " + there);
}

class OpenDatabase {
 public:
  OpenDatabase(const rocksdb::Options& options, const std::string& path,
               const std::vector<rocksdb::ColumnFamilyDescriptor>& families) {
    rocksdb::DB* opened = nullptr;
    require(rocksdb::DB::OpenForReadOnly(options, path, families, &handles_, &opened));
    db_.reset(opened);
  }
  ~OpenDatabase() {
    for (rocksdb::ColumnFamilyHandle* handle : handles_) {
      db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
    }
  }
  OpenDatabase(const OpenDatabase&) = delete;
  OpenDatabase& operator=(const OpenDatabase&) = delete;

  // Over the first family.
  std::unique_ptr<rocksdb::Iterator> iterate(const rocksdb::ReadOptions& reading) {
    return std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(reading, handles_[0]));
  }

 private:
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;  // destroyed before it
};

void read(const Request& request, Output& output) {
  require_database(request);
  const std::string& family =
      request.database.empty() ? rocksdb::kDefaultColumnFamilyName : request.database;
  rocksdb::Options options = load_options(request.path, family);
  options.info_log = std::make_shared<NoLog>();
  options.create_if_missing = false;
  options.max_open_files = 256;
  require_family(options, request, family);
  // The default one must be opened, too, and with its own comparator.
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {{family, options}};
  if (family != rocksdb::kDefaultColumnFamilyName) {
    families.emplace_back(rocksdb::kDefaultColumnFamilyName,
                          load_options(request.path, rocksdb::kDefaultColumnFamilyName));
  }
  OpenDatabase database(options, request.path, families);
  rocksdb::ReadOptions reading;
  reading.fill_cache = false;
  reading.total_order_seek = true;
  reading.readahead_size = size_t{2} << 20;
  write_all(database.iterate(reading), output);
}

}  // namespace

int main(int argc, char** argv) {
  return run_reader(argc, argv, "RocksDB", "The column family (default: default)", read);
}
