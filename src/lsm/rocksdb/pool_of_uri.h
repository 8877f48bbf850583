// Pools that are named by a URI, perdure://PATH or perdure://PATH?CAPACITY.
#pragma once

#include <memory>
#include <string>

#include "perdure/files.h"
#include "perdure/pool.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace perdure::lsm {

// Closed in this order, when nobody has it any more.
struct PoolOfUri {
  Pool pool;
  Files files;
};

// Opened, or made, once for all in the process that name it. Throws what Pool and Files throw.
std::shared_ptr<PoolOfUri> pool_of_uri(const std::string& uri);

std::unique_ptr<rocksdb::FileSystem> file_system_of_uri(const std::string& uri);

}  // namespace perdure::lsm
