// LevelDB with more or less of it in DRAM, for `perdure study lsm`.
#include <fmt/core.h>
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/write_batch.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lab/study/lsm/placed_db.h"
#include "lab/study/slow_medium.h"
#include "perdure/error.h"
#include "perdure/leveldb.h"

namespace perdure::lab::peers {
namespace {

using Cache = study::PlacedDbOptions::Cache;

// Lines of a block that a search in place waits for, one after the other; and what copying all 64
// of them takes, of which some are under way at once.
constexpr double kSearchedLines = 8;
constexpr double kCopiedLines = 16;

// What the pool's lines take longer on a slower medium.
class SlowLines {
 public:
  explicit SlowLines(double added_ns) : added_ns_(added_ns) {}
  void wait(double lines) const {
    if (added_ns_ <= 0) return;
    const auto added = std::chrono::nanoseconds(static_cast<int64_t>(lines * added_ns_));
    study::take_until(std::chrono::steady_clock::now(), added);
  }

 private:
  double added_ns_;
};

class SlowRandomAccessFile final : public leveldb::RandomAccessFile {
 public:
  SlowRandomAccessFile(leveldb::RandomAccessFile* file, const SlowLines& lines)
      : file_(file), lines_(lines) {}
  leveldb::Status Read(uint64_t offset, size_t bytes, leveldb::Slice* result,
                       char* scratch) const override {
    const leveldb::Status status = file_->Read(offset, bytes, result, scratch);
    lines_.wait(result->data() == scratch ? kCopiedLines : kSearchedLines);
    return status;
  }

 private:
  std::unique_ptr<leveldb::RandomAccessFile> file_;
  const SlowLines& lines_;
};

// A fence waits for lines that go side by side.
class SlowWritableFile final : public leveldb::WritableFile {
 public:
  SlowWritableFile(leveldb::WritableFile* file, const SlowLines& lines)
      : file_(file), lines_(lines) {}
  leveldb::Status Append(const leveldb::Slice& data) override { return file_->Append(data); }
  leveldb::Status Close() override { return file_->Close(); }
  leveldb::Status Flush() override { return file_->Flush(); }
  leveldb::Status Sync() override {
    lines_.wait(1);
    return file_->Sync();
  }

 private:
  std::unique_ptr<leveldb::WritableFile> file_;
  const SlowLines& lines_;
};

class SlowEnv final : public leveldb::EnvWrapper {
 public:
  SlowEnv(leveldb::Env* env, double added_ns) : EnvWrapper(env), lines_(added_ns) {}
  leveldb::Status NewRandomAccessFile(const std::string& name,
                                      leveldb::RandomAccessFile** result) override {
    const leveldb::Status status = target()->NewRandomAccessFile(name, result);
    if (status.ok()) *result = new SlowRandomAccessFile(*result, lines_);
    return status;
  }
  leveldb::Status NewWritableFile(const std::string& name,
                                  leveldb::WritableFile** result) override {
    const leveldb::Status status = target()->NewWritableFile(name, result);
    if (status.ok()) *result = new SlowWritableFile(*result, lines_);
    return status;
  }
  const SlowLines& lines() const { return lines_; }

 private:
  SlowLines lines_;
};

void require(const leveldb::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kIo, "LevelDB: " + status.ToString());
}

PoolOptions pool_options(const study::PlacedDbOptions& options) {
  PoolOptions pool;
  pool.capacity_bytes = options.pool_bytes;
  pool.growth_bytes = uint64_t{64} << 20;
  pool.domain = Domain::kLine;  // flushes and fences as persistent memory needs them
  pool.force_domain = true;
  return pool;
}

class LevelDbInPlaces final : public study::PlacedDb {
 public:
  explicit LevelDbInPlaces(const study::PlacedDbOptions& options) : options_(options) {
    leveldb::Options settings;
    settings.create_if_missing = true;
    settings.compression = leveldb::kNoCompression;
    settings.max_file_size = size_t{1} << 20;
    settings.max_open_files = options.all_footers ? 50'000 : 74;
    if (options.in_pool) {
      pool_.emplace(std::filesystem::exists(options.path)
                        ? Pool::open(options.path, pool_options(options))
                        : Pool::create(options.path, pool_options(options)));
      env_ = leveldb_env(
          *pool_, {.name = "files",
                   .reads = options.cache == Cache::kLru ? BlockReads::kCopy : BlockReads::kInPlace,
                   .index_in_dram = options.index_in_dram});
      slow_ = std::make_unique<SlowEnv>(env_.get(), options.added_ns);
      settings.env = slow_.get();
    }
    cache_ = options.cache == Cache::kTwoQueue
                 ? leveldb_2q_cache({.capacity_bytes = options.cache_bytes})
                 : std::unique_ptr<leveldb::Cache>(leveldb::NewLRUCache(
                       options.cache == Cache::kLru ? options.cache_bytes : 0));
    settings.block_cache = cache_.get();
    leveldb::DB* opened = nullptr;
    require(leveldb::DB::Open(settings, options.in_pool ? "/db" : options.path, &opened));
    db_.reset(opened);
    synced_.sync = true;
  }

  void load(uint64_t count) override {
    for (uint64_t i = 0; i < count; ++i) {
      put(i);
      if (i % 1000 == 999 || i + 1 == count) write({});
    }
    db_->CompactRange(nullptr, nullptr);
  }

  void read(uint64_t record) override {
    if (!options_.index_in_dram && slow_) slow_->lines().wait(kSearchedLines);
    require(db_->Get({}, key_of(record), &found_));
    if (found_.size() != options_.value_bytes)
      throw Error(ErrorCode::kCorrupt, fmt::format("record {} has a wrong value", record));
  }

  void put(uint64_t record) override {
    value_.assign(options_.value_bytes, static_cast<char>('a' + record % 26));
    group_.Put(key_of(record), value_);
  }
  void commit() override { write(synced_); }
  uint64_t dram_bytes() const override { return cache_->TotalCharge(); }

 private:
  static std::string key_of(uint64_t record) { return fmt::format("{:016}", record); }
  void write(const leveldb::WriteOptions& how) {
    require(db_->Write(how, &group_));
    group_.Clear();
  }

  study::PlacedDbOptions options_;
  std::optional<Pool> pool_;
  std::unique_ptr<leveldb::Env> env_;
  std::unique_ptr<SlowEnv> slow_;
  std::unique_ptr<leveldb::Cache> cache_;
  std::unique_ptr<leveldb::DB> db_;  // closed first
  leveldb::WriteOptions synced_;
  leveldb::WriteBatch group_;
  std::string value_;
  std::string found_;
};

}  // namespace
}  // namespace perdure::lab::peers

extern "C" __attribute__((visibility("default"))) perdure::lab::study::PlacedDb*
perdure_open_placed_db(const perdure::lab::study::PlacedDbOptions& options) {
  return new perdure::lab::peers::LevelDbInPlaces(options);
}
