// The root directory: names of structures, kept in the pool's fixed part.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "pm/checksum.h"
#include "pm/pause.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

namespace {

uint64_t entry_checksum(const DirectoryEntry& entry, uint32_t number) {
  return checksum64(&entry, offsetof(DirectoryEntry, checksum), number);
}

// Word by word, as redo records replace it: other threads may be doing so.
DirectoryEntry copy_of(const DirectoryEntry& entry) {
  std::array<uint64_t, sizeof(DirectoryEntry) / sizeof(uint64_t)> words;
  const auto* from = reinterpret_cast<const uint64_t*>(&entry);
  for (size_t i = 0; i < words.size(); ++i) words[i] = load_acquire(from[i]);
  return std::bit_cast<DirectoryEntry>(words);
}

bool has_name(const DirectoryEntry& entry, std::string_view name) {
  if (load_acquire(entry.in_use) != kEntryInUse) return false;
  const DirectoryEntry copy = copy_of(entry);
  return copy.in_use == kEntryInUse &&
         std::string_view(copy.name, ::strnlen(copy.name, sizeof copy.name)) == name;
}

std::string kind_name(uint8_t kind) {
  return kind == 0 ? "u64" : kind == 1 ? "bytes" : fmt::format("kind {}", kind);
}

}  // namespace

bool PoolImpl::is_sound(uint32_t number) const {
  const DirectoryEntry entry = copy_of(directory()[number]);
  if (entry_checksum(entry, number) != entry.checksum) return false;
  if (entry.in_use == kEntryFree) {
    return entry.name[0] == '\0' && entry.root == 0 && entry.drop == 0;
  }
  return entry.in_use <= kEntryDropped && entry.name[0] != '\0' &&
         entry.name[kNameBytesMax] == '\0' && entry.type[sizeof entry.type - 1] == '\0';
}

// A redo record replaces an entry word by word.
bool PoolImpl::becomes_sound(uint32_t number) const {
  for (int i = 0; i < 1000; ++i) {
    if (is_sound(number)) return true;
    pause();
  }
  return false;
}

bool PoolImpl::is_dropped(const void* root) const {
  const uint64_t at = offset_of(root);
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    if (load_acquire(entry.in_use) == kEntryDropped && entry.root == at) return true;
  }
  uint64_t owner = 0;
  {
    const std::lock_guard lock(annexes_mutex_);
    for (const Annex* annex : annexes_) {
      if (annex->is_used() && annex->entry().root == at) owner = annex->owner_;
    }
  }
  return owner != 0 && is_dropped(base() + owner);
}

PoolImpl::Annex::Annex(PoolImpl& pool, uint64_t entry, std::string name, uint64_t owner)
    : pool_(pool), entry_(entry), name_(std::move(name)), owner_(owner) {
  const DirectoryEntry copy = copy_of(this->entry());
  if (copy.checksum != entry_checksum(copy, kAnnexNumber) || copy.in_use > kEntryInUse) {
    pool.throw_corrupt(fmt::format("the entry of '{}' is damaged", name_));
  }
  const std::lock_guard lock(pool.annexes_mutex_);
  pool.annexes_.push_back(this);
}

PoolImpl::Annex::~Annex() {
  const std::lock_guard lock(pool_.annexes_mutex_);
  std::erase(pool_.annexes_, this);
}

DirectoryEntry PoolImpl::free_annex() { return sealed({}, kAnnexNumber); }

DirectoryEntry* PoolImpl::find_annex(std::string_view name) const {
  const std::lock_guard lock(annexes_mutex_);
  for (const Annex* annex : annexes_) {
    if (annex->name_ == name) return &annex->entry();
  }
  return nullptr;
}

void PoolImpl::check_directory() const {
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    if (!is_sound(i)) throw_damaged(i);
  }
}

void PoolImpl::write_empty_tables() {
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    DirectoryEntry& entry = directory()[i];
    entry.checksum = entry_checksum(entry, i);
  }
  memory_.flush(directory(), kDirectoryEntries * sizeof(DirectoryEntry));
  for (uint32_t i = 0; i < kLanes; ++i) {
    lanes()[i].mark = seal_word(i + 1, kLaneSalt);
    memory_.flush(&lanes()[i].mark, sizeof(uint64_t));
  }
}

void PoolImpl::throw_damaged(uint32_t entry) const {
  throw damaged(Error(ErrorCode::kCorrupt,
                      fmt::format("{}: entry {} of the root directory is damaged; restore the file "
                                  "from a backup",
                                  mapping_.path(), entry)));
}

const DirectoryEntry* PoolImpl::find(std::string_view name) const {
  if (const DirectoryEntry* annex = find_annex(name); annex != nullptr) {
    return load_acquire(annex->in_use) == kEntryInUse ? annex : nullptr;
  }
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    if (!has_name(entry, name)) continue;
    if (!becomes_sound(i)) throw_damaged(i);
    // While it changes, it may have had the beginning of one name and the end of another.
    if (!has_name(entry, name)) continue;
    return &entry;
  }
  return nullptr;
}

bool PoolImpl::names_root(uint64_t root) const {
  return std::any_of(directory(), directory() + kDirectoryEntries,
                     [&](const DirectoryEntry& entry) {
                       return load_acquire(entry.in_use) != 0 && entry.root == root;
                     });
}

uint32_t PoolImpl::entry_number(std::string_view name) const {
  const DirectoryEntry* entry = find(name);
  if (entry == nullptr) throw_no_such_name(name);
  if (entry < directory() || entry >= directory() + kDirectoryEntries) return kAnnexNumber;
  return static_cast<uint32_t>(entry - directory());
}

void PoolImpl::throw_no_such_name(std::string_view name) const {
  throw Error(ErrorCode::kNoSuchName,
              fmt::format("{}: there is no structure named '{}'; `perdure pool info` lists what "
                          "there is",
                          mapping_.path(), name));
}

const DirectoryEntry& PoolImpl::require(std::string_view name, std::string_view type,
                                        uint8_t key_kind, uint8_t value_kind) const {
  const DirectoryEntry* entry = find(name);
  if (entry == nullptr) throw_no_such_name(name);
  if (entry->type != type || entry->key_kind != key_kind || entry->value_kind != value_kind) {
    throw Error(
        ErrorCode::kWrongType,
        fmt::format("{}: '{}' is a {} from {} to {}, not a {} from {} to {}", mapping_.path(), name,
                    entry->type, kind_name(entry->key_kind), kind_name(entry->value_kind), type,
                    kind_name(key_kind), kind_name(value_kind)));
  }
  return *entry;
}

// ---- uses

PoolImpl::Use::Use(PoolImpl& pool, std::string_view name, uint64_t root)
    : pool_(pool), entry_(take(pool, name, root)), keep_(pool.weak_from_this().lock()) {}

PoolImpl::Use::~Use() { give_back(pool_, entry_); }

// While its bit is set nobody renames or drops the structure; before that both may happen, so what the name led to is
// looked at once more.
uint32_t PoolImpl::Use::take(PoolImpl& pool, std::string_view name, uint64_t root) {
  for (;;) {
    come_to_place("pool: takes a name");
    const uint32_t number = pool.entry_number(name);
    if (number == kAnnexNumber) return number;  // nobody else knows it
    {
      const std::lock_guard lock(pool.uses_mutex_);
      if (pool.uses_[number]) {
        throw Error(
            ErrorCode::kInUse,
            fmt::format("{}: the structure '{}' is open already in this process; use that one, or "
                        "close it first",
                        pool.mapping_.path(), name));
      }
      pool.uses_.set(number);
    }
    const DirectoryEntry& entry = pool.directory()[number];
    const bool named = has_name(entry, name);
    if (named && (root == 0 || entry.root == root)) return number;
    give_back(pool, number);
    if (!named) continue;
    throw Error(ErrorCode::kInUse,
                fmt::format("{}: '{}' became the name of another structure while it was being "
                            "opened; open it again",
                            pool.mapping_.path(), name));
  }
}

void PoolImpl::Use::give_back(PoolImpl& pool, uint32_t entry) {
  if (entry == kAnnexNumber) return;
  const std::lock_guard lock(pool.uses_mutex_);
  pool.uses_.reset(entry);
  pool.close_if_abandoned();
}

// ---- names

void PoolImpl::require_new_name(std::string_view name) const {
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
}

DirectoryEntry* PoolImpl::reserve_entry(std::string_view name) const {
  require_writable();
  require_new_name(name);
  if (DirectoryEntry* annex = find_annex(name); annex != nullptr) return annex;
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    if (directory()[i].in_use == kEntryFree) return &directory()[i];
  }
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: a pool holds at most {} structures; use another pool",
                          mapping_.path(), kDirectoryEntries));
}

DirectoryEntry PoolImpl::make_entry(const DirectoryEntry* place, std::string_view name,
                                    std::string_view type, uint8_t key_kind, uint8_t value_kind,
                                    uint64_t root) const {
  DirectoryEntry entry{};
  std::memcpy(entry.name, name.data(), name.size());
  std::memcpy(entry.type, type.data(), std::min(type.size(), sizeof entry.type - 1));
  entry.key_kind = key_kind;
  entry.value_kind = value_kind;
  entry.root = root;
  entry.in_use = kEntryInUse;
  const bool in_directory = place >= directory() && place < directory() + kDirectoryEntries;
  return sealed(entry, in_directory ? static_cast<uint32_t>(place - directory()) : kAnnexNumber);
}

DirectoryEntry PoolImpl::sealed(DirectoryEntry entry, uint32_t number) {
  entry.checksum = entry_checksum(entry, number);
  return entry;
}

void PoolImpl::rename(std::string_view from, std::string_view to) {
  require_writable();
  const Use use(*this, from);  // nobody has it open, nor opens it meanwhile
  const std::lock_guard lock(directory_mutex_);
  require_new_name(to);
  const uint32_t number = entry_number(from);
  const DirectoryEntry named = renamed(number, to);
  Heap::Txn txn(*heap_);
  txn.redo(&directory()[number], &named, sizeof named);
  txn.commit_redo([] {});
}

void PoolImpl::exchange_names(std::string_view one, std::string_view other) {
  require_writable();
  const Use use_of_one(*this, one);
  const Use use_of_other(*this, other);
  const std::lock_guard lock(directory_mutex_);
  const uint32_t first = entry_number(one);
  const uint32_t second = entry_number(other);
  const DirectoryEntry images[] = {renamed(first, other), renamed(second, one)};
  // One micro-log: it is applied wholly or not at all.
  Heap::Txn txn(*heap_);
  txn.redo(&directory()[first], &images[0], sizeof images[0]);
  txn.redo(&directory()[second], &images[1], sizeof images[1]);
  txn.commit_redo([] {});
}

DirectoryEntry PoolImpl::renamed(uint32_t number, std::string_view name) const {
  DirectoryEntry entry = directory()[number];
  std::memset(entry.name, 0, sizeof entry.name);
  std::memcpy(entry.name, name.data(), name.size());
  return sealed(entry, number);
}

std::vector<StructureInfo> PoolImpl::structures() const {
  std::vector<StructureInfo> all;
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    const DirectoryEntry& entry = directory()[i];
    if (load_acquire(entry.in_use) != kEntryInUse) continue;
    if (lenient() && !is_sound(i)) continue;
    all.push_back({entry.name, entry.type, kind_name(entry.key_kind), kind_name(entry.value_kind)});
  }
  return all;
}

}  // namespace perdure::pm
