#include "lsm/rocksdb/pool_of_uri.h"

#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include "perdure/error.h"

namespace perdure::lsm {
namespace {

constexpr std::string_view kScheme = "perdure";

// "64M", "4G". Throws kInvalidArgument.
uint64_t parse_capacity(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(at, static_cast<size_t>(end - at));
  constexpr std::string_view kUnits = "KMGT";
  const size_t power = unit.empty() ? 0 : kUnits.find(unit.front()) + 1;
  if (error != std::errc() || unit.size() > 1 || (power == 0 && !unit.empty()) ||
      number > Pool::kMaxCapacityBytes >> (10 * power)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the capacity \"" + text + "\" of a pool is none; give one such as 64M or 4G");
  }
  return number << (10 * power);
}

// Of a URI without its capacity. Throws kInvalidArgument.
std::string path_of(const std::string& uri) {
  const std::string begin = std::string(kScheme) + "://";
  if (!uri.starts_with(begin) || uri.size() == begin.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "\"" + uri + "\" names no pool; give one such as perdure:///dev/shm/db.pool");
  }
  // All spellings are one, as a pool is opened once.
  return std::filesystem::weakly_canonical(uri.substr(begin.size())).string();
}

PoolOfUri open_or_create(const std::string& path, uint64_t capacity_bytes) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  Pool pool =
      std::filesystem::exists(path) ? Pool::open(path, options) : Pool::create(path, options);
  Files files = Files::open_or_create(pool, "files");
  return {std::move(pool), std::move(files)};
}

// RocksDB asks for a file system by its name when the program, or its user, does.
rocksdb::FileSystem* make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* guard,
                          std::string* message) {
  try {
    *guard = file_system_of_uri(uri);
    return guard->get();
  } catch (const std::exception& error) {
    *message = error.what();
    return nullptr;
  }
}

const bool kRegistered = [] {
  rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
      rocksdb::ObjectLibrary::PatternEntry(std::string(kScheme), false)
          .AddSeparator(":", false),  // what is wrong behind it is told
      make);
  return true;
}();

}  // namespace

std::shared_ptr<PoolOfUri> pool_of_uri(const std::string& uri) {
  static_cast<void>(kRegistered);
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<PoolOfUri>> open;
  const size_t mark = std::min(uri.find('?'), uri.size());
  const std::string path = path_of(uri.substr(0, mark));
  const uint64_t capacity_bytes =
      mark == uri.size() ? PoolOptions().capacity_bytes : parse_capacity(uri.substr(mark + 1));
  const std::lock_guard lock(mutex);
  std::weak_ptr<PoolOfUri>& known = open[path];
  if (std::shared_ptr<PoolOfUri> there = known.lock()) return there;
  auto opened = std::make_shared<PoolOfUri>(open_or_create(path, capacity_bytes));
  known = opened;
  return opened;
}

}  // namespace perdure::lsm
