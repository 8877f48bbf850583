// The public facade of block caches.
#include "perdure/block_cache.h"

#include <fmt/core.h>

#include "lsm/cache/core.h"

namespace perdure {

using block_cache::Core;

namespace {

void require_key(std::string_view key) {
  if (!key.empty() && key.size() <= BlockCache::kKeyBytesMax) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a key of a block cache has 1 to {} bytes, not {}",
                          BlockCache::kKeyBytesMax, key.size()));
}

}  // namespace

BlockCache::BlockCache(std::shared_ptr<Core> core) : core_(std::move(core)) {}
BlockCache::BlockCache(const BlockCache&) noexcept = default;
BlockCache& BlockCache::operator=(const BlockCache&) noexcept = default;
BlockCache::BlockCache(BlockCache&&) noexcept = default;
BlockCache& BlockCache::operator=(BlockCache&&) noexcept = default;
BlockCache::~BlockCache() = default;

BlockCache BlockCache::create(Pool& pool, const std::string& name,
                              const BlockCacheOptions& options) {
  return BlockCache(Core::create(pm::impl_of(pool), name, options));
}

BlockCache BlockCache::open(Pool& pool, const std::string& name, const BlockCacheOptions& options) {
  return BlockCache(Core::open(pm::impl_of(pool), name, options));
}

BlockCache BlockCache::open_or_create(Pool& pool, const std::string& name,
                                      const BlockCacheOptions& options) {
  return pm::impl_of(pool).find(name) == nullptr ? create(pool, name, options)
                                                 : open(pool, name, options);
}

bool BlockCache::insert(std::string_view key, std::string_view block) {
  require_key(key);
  if (block.empty()) throw Error(ErrorCode::kInvalidArgument, "a block of a cache has some bytes");
  return core_->insert(key, block);
}

bool BlockCache::lookup(std::string_view key, std::string& block) const {
  return core_->lookup(key, [&block](size_t bytes) {
    block.resize(bytes);
    return block.data();
  });
}

bool BlockCache::lookup(std::string_view key,
                        const std::function<char*(size_t bytes)>& room) const {
  return core_->lookup(key, room);
}

bool BlockCache::erase(std::string_view key) { return core_->erase(key); }

void BlockCache::for_each(
    const std::function<void(std::string_view key, std::string_view block)>& visit) const {
  core_->for_each(visit);
}

uint64_t BlockCache::check(const std::function<void(const std::string&)>& report) const {
  return core_->check(report);
}

BlockCacheOptions BlockCache::options() const { return core_->options(); }
BlockCacheStatistics BlockCache::counters() const { return core_->counters(); }

std::vector<Statistic> BlockCache::statistics() const {
  const BlockCacheStatistics all = core_->counters();
  index::StatisticList list;
  list.add("blocks", all.blocks, "");
  list.add("capacity_bytes", all.capacity_bytes, "bytes");
  list.add("pool_bytes", all.pool_bytes, "bytes");
  list.add("dram_bytes", all.dram_bytes, "bytes");
  list.add("hits", all.hits, "");
  list.add("misses", all.misses, "");
  list.add("inserts", all.inserts, "");
  list.add("declined", all.declined, "");
  list.add("evictions", all.evictions, "");
  list.add("reinserted", all.reinserted, "");
  list.add("damaged", all.damaged, "");
  list.add("recovered", all.recovered, "");
  list.add("opening", all.opening_ns, "ns");
  return list.take();
}

}  // namespace perdure
