// RocksDB on files that answer as slowly as those of an SSD, for `perdure study lsm`.
#include <fmt/core.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/persistent_cache.h>
#include <rocksdb/table.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "common/permutation.h"
#include "lab/study/lsm/cached_db.h"
#include "lab/study/slow_medium.h"
#include "perdure/error.h"
#include "perdure/rocksdb.h"

namespace perdure::lab::peers {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using Clock = std::chrono::steady_clock;

using study::SlowMedium;

class SlowFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  SlowFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, SlowMedium& medium)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), medium_(medium) {}

  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions& options, Slice* result,
                char* scratch, IODebugContext* debug) const override {
    const Clock::time_point begin = Clock::now();
    const IOStatus status = target()->Read(offset, bytes, options, result, scratch, debug);
    medium_.wait(begin);
    return status;
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* debug) override {
    const Clock::time_point begin = Clock::now();
    const IOStatus status = target()->MultiRead(requests, count, options, debug);
    medium_.wait(begin);  // they go side by side
    return status;
  }
  IOStatus Prefetch(uint64_t /*offset*/, size_t /*bytes*/, const IOOptions& /*options*/,
                    IODebugContext* /*debug*/) override {
    return IOStatus::NotSupported();
  }

 private:
  SlowMedium& medium_;
};

class SlowFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit SlowFileSystem(SlowMedium& medium)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), medium_(medium) {}
  const char* Name() const override { return "PerdureSlowFileSystem"; }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext* debug) override {
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    const IOStatus status = target()->NewRandomAccessFile(name, options, &file, debug);
    if (status.ok()) *result = std::make_unique<SlowFile>(std::move(file), medium_);
    return status;
  }

 private:
  SlowMedium& medium_;
};

void require(const rocksdb::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kIo, "RocksDB: " + status.ToString());
}

std::string key_of(uint64_t record) {
  std::string key(8, '\0');
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<char>(record >> (56 - 8 * i));
  return key;
}

std::string value_of(uint64_t record, uint64_t bytes) {
  std::string value(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i)
    value[i] = static_cast<char>(mix_word(record + i / 8) >> (8 * (i % 8)));
  return value;
}

rocksdb::Options base_options() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  return options;
}

// Loaded at full speed, and compacted to one level.
void load(const study::CachedDbOptions& options, const std::string& path) {
  rocksdb::Options settings = base_options();
  settings.write_buffer_size = size_t{32} << 20;
  rocksdb::DB* opened = nullptr;
  require(rocksdb::DB::Open(settings, path, &opened));
  const std::unique_ptr<rocksdb::DB> db(opened);
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  for (uint64_t i = 0; i < options.records; ++i)
    require(db->Put(unlogged, key_of(i), value_of(i, options.value_bytes)));
  require(db->Flush({}));
  require(db->CompactRange({}, nullptr, nullptr));
  require(db->Close());
}

class SlowRocksDb final : public study::CachedDb {
 public:
  explicit SlowRocksDb(const study::CachedDbOptions& options) : value_bytes_(options.value_bytes) {
    const std::string path = options.folder + "/db";
    if (!std::filesystem::exists(path)) load(options, path);
    medium_.latency = std::chrono::nanoseconds(options.latency_ns);
    env_ = rocksdb::NewCompositeEnv(std::make_shared<SlowFileSystem>(medium_));
    rocksdb::BlockBasedTableOptions table;
    table.cache_index_and_filter_blocks = true;  // so that all DRAM is counted
    if (options.pm_bytes != 0) {
      const std::string pool = options.folder + "/cache.pool";
      pool_.emplace(std::filesystem::exists(pool)
                        ? Pool::open(pool)
                        : Pool::create(pool, {.capacity_bytes = options.pm_bytes + (8 << 20)}));
      cache_ = rocksdb_2q_cache({.capacity_bytes = options.dram_bytes});
      persistent_ =
          rocksdb_persistent_cache(*pool_, {.cache = {.capacity_bytes = options.pm_bytes},
                                            .in_dram = options.in_dram ? cache_ : nullptr});
    } else {
      cache_ = rocksdb::NewLRUCache(options.dram_bytes);
    }
    table.block_cache = cache_;
    table.persistent_cache = persistent_;
    rocksdb::Options settings = base_options();
    settings.env = env_.get();
    settings.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    settings.skip_stats_update_on_db_open = true;
    rocksdb::DB* opened = nullptr;
    require(rocksdb::DB::OpenForReadOnly(settings, path, &opened));
    db_.reset(opened);
  }

  void read(uint64_t record) override {
    thread_local std::string found;
    require(db_->Get({}, key_of(record), &found));
    if (found != value_of(record, value_bytes_))
      throw Error(ErrorCode::kCorrupt, fmt::format("record {} has a wrong value", record));
  }

  Counters counters() const override {
    Counters all;
    all.medium_reads = medium_.reads.load(std::memory_order_relaxed);
    all.medium_ns = medium_.taken_ns.load(std::memory_order_relaxed);
    all.dram_bytes = cache_->GetUsage();
    if (persistent_ == nullptr) return all;
    const BlockCacheStatistics cache = statistics_of_persistent_cache(*persistent_);
    all.pm_blocks = cache.blocks;
    all.pm_hits = cache.hits;
    all.pm_dram_bytes = cache.dram_bytes;
    all.pm_recovered = cache.recovered;
    all.pm_opening_ns = cache.opening_ns;
    return all;
  }

 private:
  uint64_t value_bytes_;
  SlowMedium medium_;
  std::unique_ptr<rocksdb::Env> env_;
  std::optional<Pool> pool_;
  std::shared_ptr<rocksdb::PersistentCache> persistent_;
  std::shared_ptr<rocksdb::Cache> cache_;
  std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) perdure::lab::study::CachedDb*
perdure_open_cached_db(const perdure::lab::study::CachedDbOptions& options) {
  return new perdure::lab::peers::SlowRocksDb(options);
}
