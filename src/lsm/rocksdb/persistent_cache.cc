// A block cache in a pool as RocksDB's persistent cache.
#include <rocksdb/persistent_cache.h>
#include <rocksdb/version.h>

#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "lsm/rocksdb/in_dram.h"
#include "perdure/block_cache.h"
#include "perdure/error.h"
#include "perdure/rocksdb.h"

// Before, keys of blocks name a file by its inode, which the file system gives to another one when
// it is free.
#if ROCKSDB_MAJOR < 7
#error "The persistent cache needs RocksDB 7 or newer, whose keys of blocks hold over restarts"
#endif

namespace perdure {
namespace {

using rocksdb::Slice;
using rocksdb::Status;

class PoolPersistentCache final : public rocksdb::PersistentCache {
 public:
  PoolPersistentCache(BlockCache cache, bool compressed)
      : cache_(std::move(cache)), compressed_(compressed) {}

  // No exception passes through RocksDB, which goes on whatever the answer is.
  Status Insert(const Slice& key, const char* data, const size_t size) override {
    try {
      if (size == 0) return Status::NotSupported("there is nothing to keep");
      const bool taken = cache_.insert(Key(key, compressed_).text(), {data, size});
      return taken ? Status::OK() : Status::TryAgain("the cache has declined a block");
    } catch (const std::exception& error) {
      return Status::IOError(error.what());
    }
  }

  Status Lookup(const Slice& key, std::unique_ptr<char[]>* data, size_t* size) override {
    try {
      const auto room = [&](size_t bytes) {
        data->reset(new char[bytes]);
        *size = bytes;
        return data->get();
      };
      if (cache_.lookup(Key(key, compressed_).text(), room)) return Status::OK();
    } catch (const std::exception& error) {
      data->reset();
      return Status::IOError(error.what());
    }
    data->reset();
    *size = 0;
    return Status::NotFound();
  }

  bool IsCompressed() override { return compressed_; }

  StatsType Stats() override {
    std::map<std::string, double> figures;
    for (const Statistic& each : cache_.statistics()) figures["perdure." + each.name] = each.value;
    return {figures};
  }
  std::string GetPrintableOptions() const override {
    const BlockCacheOptions options = cache_.options();
    return "    perdure.capacity_bytes: " + std::to_string(options.capacity_bytes) +
           "\n    perdure.segment_bytes: " + std::to_string(options.segment_bytes) +
           "\n    perdure.compressed: " + (compressed_ ? "1" : "0") + "\n";
  }
  // Clients begin their keys with it, and what they have put in is there after restarts: so it is
  // none that an earlier process, or another cache of the same pool, has given.
  uint64_t NewId() override { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  BlockCacheStatistics counters() const { return cache_.counters(); }

 private:
  // RocksDB's, and behind it in which way the block is kept.
  class Key {
   public:
    Key(const Slice& key, bool compressed) {
      const char way = compressed ? 'c' : 'u';
      if (key.size() < bytes_.size()) {
        std::memcpy(bytes_.data(), key.data(), key.size());
        bytes_[key.size()] = way;
        text_ = {bytes_.data(), key.size() + 1};
        return;
      }
      long_ = key.ToString() + way;
      text_ = long_;
    }
    Key(const Key&) = delete;
    Key& operator=(const Key&) = delete;
    std::string_view text() const { return text_; }

   private:
    std::array<char, 64> bytes_;
    std::string long_;
    std::string_view text_;
  };

  BlockCache cache_;
  bool compressed_;
  std::atomic<uint64_t> last_id_{std::random_device{}() | uint64_t{std::random_device{}()} << 32};
};

}  // namespace

std::shared_ptr<rocksdb::PersistentCache> rocksdb_persistent_cache(
    Pool& pool, const RocksDbPersistentCacheOptions& options) {
  BlockCacheOptions cache = options.cache;
  if (options.in_dram != nullptr) {
    // RocksDB asks both caches by the same key; here one letter follows.
    cache.is_wanted = [in_dram = lsm::in_dram_of(options.in_dram)](std::string_view key) {
      return in_dram(key.substr(0, key.size() - 1));
    };
  }
  return std::make_shared<PoolPersistentCache>(
      BlockCache::open_or_create(pool, options.name, cache), options.compressed);
}

BlockCacheStatistics statistics_of_persistent_cache(const rocksdb::PersistentCache& cache) {
  const auto* own = dynamic_cast<const PoolPersistentCache*>(&cache);
  if (own == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "this cache was not made by rocksdb_persistent_cache()");
  }
  return own->counters();
}

}  // namespace perdure
