// What a cache by 2Q has in DRAM.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace rocksdb {
class Cache;
}

namespace perdure::lsm {

// Whether a block is there, which does not count as its use. Throws Error(kInvalidArgument) of a
// cache that rocksdb_2q_cache() did not make.
std::function<bool(std::string_view key)> in_dram_of(std::shared_ptr<rocksdb::Cache> cache);

}  // namespace perdure::lsm
