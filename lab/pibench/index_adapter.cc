#include "lab/pibench/index_adapter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "lab/pibench/names.h"
#include "perdure/error.h"

namespace perdure::pibench {
namespace {

constexpr char kIndexName[] = "pibench";
// Of a pool whose size PiBench does not say: address space, not memory.
constexpr uint64_t kDefaultCapacityBytes = uint64_t{8} << 30;

Kind kind_of(size_t size) { return size == sizeof(uint64_t) ? Kind::kU64 : Kind::kBytes; }

Datum datum_of(const char* bytes, size_t size, Kind kind) {
  if (kind == Kind::kBytes) return std::string_view(bytes, size);
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Exactly `size` bytes: a shorter string is filled up with zeros, as its caller expects a whole
// one.
void copy_out(Datum datum, char* out, size_t size) {
  if (datum.kind() == Kind::kU64) {
    const uint64_t word = datum.word();
    std::memcpy(out, &word, sizeof(word));
    return;
  }
  const size_t length = std::min(size, datum.bytes().size());
  std::memcpy(out, datum.bytes().data(), length);
  std::memset(out + length, 0, size - length);
}

std::string file_of(const CatalogEntry& entry, const std::string& path) {
  return std::filesystem::is_directory(path)
             ? (std::filesystem::path(path) / ("perdure_" + safe_name(entry.name) + ".pool"))
                   .string()
             : path;
}

Pool open_pool(const CatalogEntry& entry, const TreeOptions& options) {
  const PoolOptions pool_options = {
      .capacity_bytes =
          std::max<uint64_t>(options.pool_size == 0 ? kDefaultCapacityBytes : options.pool_size,
                             entry.traits.capacity_bytes_min)};
  if (options.pool_path.empty()) return Pool::anonymous(pool_options);
  const std::string file = file_of(entry, options.pool_path);
  return std::filesystem::exists(file) ? Pool::open(file, pool_options)
                                       : Pool::create(file, pool_options);
}

std::unique_ptr<AnyIndex> open_structure(Pool& pool, const CatalogEntry& entry, Kind key,
                                         Kind value) {
  const std::vector<StructureInfo> there = pool.structures();
  const auto found = std::ranges::find(there, kIndexName, &StructureInfo::name);
  if (found == there.end()) return create_index(pool, kIndexName, entry.name, key, value);
  if (found->type != entry.name || found->key_kind != to_string(key) ||
      found->value_kind != to_string(value)) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("{} holds a {} of {} keys and {} values, not a {} of {} keys and {} "
                            "values; give another --pool_path",
                            pool.info().path, found->type, found->key_kind, found->value_kind,
                            entry.name, to_string(key), to_string(value)));
  }
  return open_index(pool, kIndexName);
}

}  // namespace

IndexAdapter::IndexAdapter(const CatalogEntry& entry, const TreeOptions& options)
    : entry_(entry),
      key_size_(options.key_size),
      value_size_(options.value_size),
      key_kind_(kind_of(options.key_size)),
      value_kind_(kind_of(options.value_size)),
      pool_(open_pool(entry, options)),
      index_(open_structure(pool_, entry, key_kind_, value_kind_)) {}

Datum IndexAdapter::key_of(const char* key, size_t size) const {
  if (size != key_size_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a key of {} bytes, where {} were announced", size, key_size_));
  }
  return datum_of(key, size, key_kind_);
}

Datum IndexAdapter::value_of(const char* value, size_t size) const {
  // Longer ones would overflow the buffer of a find.
  if (size > value_size_ || (value_kind_ == Kind::kU64 && size != value_size_)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a value of {} bytes, where {} were announced", size, value_size_));
  }
  return datum_of(value, size, value_kind_);
}

template <typename Call>
auto IndexAdapter::guarded(const char* operation, const Call& call) const noexcept
    -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    if (!told_.exchange(true)) {
      std::fprintf(stderr,
                   "perdure: %s: %s: %s (this and further failures count as unsuccessful)\n",
                   entry_.name.c_str(), operation, error.what());
    }
    return {};
  }
}

bool IndexAdapter::bulk_load(const char* pairs, size_t records, size_t key_size,
                             size_t value_size) noexcept {
  bool all = true;
  for (size_t i = 0; i < records; ++i, pairs += key_size + value_size) {
    all = insert(pairs, key_size, pairs + key_size, value_size) && all;
  }
  return all;
}

bool IndexAdapter::find(const char* key, size_t key_size, char* value_out) const noexcept {
  return guarded("find", [&] {
    static thread_local Value found;
    if (!index_->lookup(key_of(key, key_size), found)) return false;
    copy_out(found.datum(), value_out, value_size_);
    return true;
  });
}

bool IndexAdapter::insert(const char* key, size_t key_size, const char* value,
                          size_t value_size) noexcept {
  return guarded(
      "insert", [&] { return index_->insert(key_of(key, key_size), value_of(value, value_size)); });
}

bool IndexAdapter::update(const char* key, size_t key_size, const char* value,
                          size_t value_size) noexcept {
  return guarded(
      "update", [&] { return index_->update(key_of(key, key_size), value_of(value, value_size)); });
}

bool IndexAdapter::remove(const char* key, size_t key_size) noexcept {
  return guarded("remove", [&] { return index_->remove(key_of(key, key_size)); });
}

int IndexAdapter::scan(const char* key, size_t key_size, int records,
                       char*& pairs_out) const noexcept {
  return guarded("scan", [&] {
    static thread_local std::vector<char> pairs;
    const size_t pair_size = key_size_ + value_size_;
    int found = 0;
    pairs.resize(pair_size * static_cast<size_t>(std::max(records, 0)));
    pairs_out = pairs.data();
    if (records <= 0) return found;
    index_->scan(key_of(key, key_size), static_cast<uint64_t>(records), [&](Datum at, Datum value) {
      char* pair = pairs.data() + pair_size * static_cast<size_t>(found++);
      copy_out(at, pair, key_size_);
      copy_out(value, pair + key_size_, value_size_);
      return true;
    });
    return found;
  });
}

}  // namespace perdure::pibench
