// The root directory: names of structures, kept in the pool's fixed part.
#include <fmt/core.h>

#include <cstring>

#include "pm/checksum.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

namespace {

uint64_t entry_checksum(const DirectoryEntry& entry) {
  return checksum64(&entry, offsetof(DirectoryEntry, checksum));
}

std::string kind_name(uint8_t kind) {
  return kind == 0 ? "u64" : kind == 1 ? "bytes" : fmt::format("kind {}", kind);
}

}  // namespace

void PoolImpl::check_directory() const {
  const DirectoryEntry empty{};
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    const bool sound = entry.in_use == 0
                           ? std::memcmp(&entry, &empty, sizeof entry) == 0
                           : entry.in_use == 1 && entry_checksum(entry) == entry.checksum;
    if (!sound) throw_damaged(i);
  }
}

void PoolImpl::throw_damaged(uint32_t entry) const {
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: entry {} of the root directory is damaged; restore the file from a "
                          "backup",
                          mapping_.path(), entry));
}

const DirectoryEntry* PoolImpl::find(std::string_view name) const {
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    if (load_acquire(entry.in_use) == 0) continue;
    if (std::string_view(entry.name, ::strnlen(entry.name, sizeof entry.name)) != name) continue;
    if (entry.in_use != 1 || entry_checksum(entry) != entry.checksum) throw_damaged(i);
    return &entry;
  }
  return nullptr;
}

const DirectoryEntry& PoolImpl::require(std::string_view name, std::string_view type,
                                        uint8_t key_kind, uint8_t value_kind) const {
  const DirectoryEntry* entry = find(name);
  if (entry == nullptr) {
    throw Error(ErrorCode::kNoSuchName,
                fmt::format("{}: there is no structure named '{}'; `perdure pool info` lists what "
                            "there is",
                            mapping_.path(), name));
  }
  if (entry->type != type || entry->key_kind != key_kind || entry->value_kind != value_kind) {
    throw Error(
        ErrorCode::kWrongType,
        fmt::format("{}: '{}' is a {} from {} to {}, not a {} from {} to {}", mapping_.path(), name,
                    entry->type, kind_name(entry->key_kind), kind_name(entry->value_kind), type,
                    kind_name(key_kind), kind_name(value_kind)));
  }
  return *entry;
}

DirectoryEntry* PoolImpl::reserve_entry(std::string_view name) const {
  require_writable();
  if (name.empty() || name.size() > kNameBytesMax || name.find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a structure's name has 1 to {} bytes, none of them NUL; this one has "
                            "{}",
                            kNameBytesMax, name.size()));
  }
  if (find(name) != nullptr) {
    throw Error(ErrorCode::kNameExists,
                fmt::format("{}: there is a structure named '{}' already; open it, or choose "
                            "another name",
                            mapping_.path(), name));
  }
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    if (directory()[i].in_use == 0) return &directory()[i];
  }
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: a pool holds at most {} structures; use another pool",
                          mapping_.path(), kDirectoryEntries));
}

DirectoryEntry PoolImpl::make_entry(std::string_view name, std::string_view type, uint8_t key_kind,
                                    uint8_t value_kind, uint64_t root) {
  DirectoryEntry entry{};
  std::memcpy(entry.name, name.data(), name.size());
  std::memcpy(entry.type, type.data(), std::min(type.size(), sizeof entry.type - 1));
  entry.key_kind = key_kind;
  entry.value_kind = value_kind;
  entry.root = root;
  entry.checksum = entry_checksum(entry);
  entry.in_use = 1;
  return entry;
}

std::vector<StructureInfo> PoolImpl::structures() const {
  std::vector<StructureInfo> all;
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    if (load_acquire(entry.in_use) == 0) continue;
    all.push_back({entry.name, entry.type, kind_name(entry.key_kind), kind_name(entry.value_kind)});
  }
  return all;
}

}  // namespace perdure::pm
