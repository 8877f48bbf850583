// The root directory: names of structures, kept in the pool's fixed part and, beyond 256, in
// blocks.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <thread>

#include "pm/checksum.h"
#include "pm/header.h"
#include "pm/pause.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure::pm {

uint64_t entry_checksum(const DirectoryEntry& entry, uint32_t number) {
  return checksum64(&entry, offsetof(DirectoryEntry, checksum), number);
}

uint64_t block_checksum(const DirectoryBlock& block) {
  return checksum64(&block, offsetof(DirectoryBlock, checksum));
}

bool is_sound_entry(const DirectoryEntry& entry, uint32_t number) {
  if (entry_checksum(entry, number) != entry.checksum) return false;
  if (entry.in_use == kEntryFree) {
    return entry.name[0] == '\0' && entry.root == 0 && entry.drop == 0;
  }
  return entry.in_use <= kEntryDropped && entry.name[0] != '\0' &&
         entry.name[kNameBytesMax] == '\0' && entry.type[sizeof entry.type - 1] == '\0';
}

std::string kind_name(uint8_t kind) {
  return kind == 0 ? "u64" : kind == 1 ? "bytes" : fmt::format("kind {}", kind);
}

namespace {

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

}  // namespace

bool PoolImpl::is_sound(uint32_t number) const {
  return is_sound_entry(copy_of(entry_at(number)), number);
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
  if (dropped_.load(std::memory_order_acquire) == 0) return false;
  const uint64_t at = offset_of(root);
  for (uint32_t i = 0; i < entries(); ++i) {
    const DirectoryEntry& entry = entry_at(i);
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

std::optional<bool> PoolImpl::open_annex(std::string_view name) const {
  const std::lock_guard lock(annexes_mutex_);
  for (const Annex* annex : annexes_) {
    if (annex->name_ == name) return !std::exchange(annex->open_, true);
  }
  return std::nullopt;
}

void PoolImpl::close_annex(std::string_view name) const {
  const std::lock_guard lock(annexes_mutex_);
  for (const Annex* annex : annexes_) {
    if (annex->name_ == name) annex->open_ = false;
  }
}

void PoolImpl::check_directory() const {
  for (uint32_t i = 0; i < entries(); ++i) {
    if (!is_sound(i)) throw_damaged(i);
  }
}

void PoolImpl::write_empty_tables() {
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
    DirectoryEntry& entry = entry_at(i);
    entry.checksum = entry_checksum(entry, i);
  }
  memory_.flush(&entry_at(0), kDirectoryEntries * sizeof(DirectoryEntry));
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

// ---- blocks of the directory

DirectoryBlock* PoolImpl::sound_block(uint64_t word, uint32_t number) const {
  uint64_t offset = 0;
  if (number >= kDirectoryBlocks || !unseal_word(word, kDirectorySalt, offset) ||
      !heap_->is_allocated(offset, sizeof(DirectoryBlock))) {
    return nullptr;
  }
  auto* block = at<DirectoryBlock>(offset);
  const bool sound = block->magic == kDirectoryBlockMagic && block->number == number &&
                     block->checksum == block_checksum(*block);
  return sound ? block : nullptr;
}

template <typename Visit>
std::optional<uint32_t> PoolImpl::walk_directory(Visit visit) const {
  uint64_t word = load_acquire(header().directory_word);
  for (uint32_t number = 0; word != 0; ++number) {
    DirectoryBlock* block = sound_block(word, number);
    if (block == nullptr) return number;
    visit(number, block);
    word = load_acquire(block->next);
  }
  return std::nullopt;
}

void PoolImpl::load_directory() {
  const auto damaged = walk_directory([&](uint32_t number, DirectoryBlock* block) {
    blocks_[number].store(block, std::memory_order_release);
    directory_blocks_.store(number + 1, std::memory_order_release);
  });
  if (damaged && !lenient())  // else check() tells
    throw_corrupt(fmt::format("block {} of the root directory is damaged", *damaged));
}

uint64_t PoolImpl::check_tables(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const uint64_t capacity_word = capacity_bytes_ == header().capacity_bytes
                                     ? 0
                                     : seal_word(capacity_bytes_ / kSegmentBytes, kCapacitySalt);
  if (load_acquire(header().capacity_word) != capacity_word) {
    report("header: the pool's capacity is damaged");
    ++found;
  }
  if (const auto damaged = walk_directory([](uint32_t, DirectoryBlock*) {}); damaged) {
    report(
        fmt::format("root directory: block {} is damaged; the structures in it, and in those "
                    "behind it, are missing",
                    *damaged));
    ++found;
  }
  return found;
}

// A crash leaves the block linked, with free entries, or free itself, by the intent.
void PoolImpl::add_directory_block() {
  const uint32_t number = directory_blocks_.load(std::memory_order_relaxed);
  if (number == kDirectoryBlocks) {
    throw Error(ErrorCode::kPoolFull,
                fmt::format("{}: a pool holds at most {} structures; use another pool",
                            mapping_.path(), kStructuresMax));
  }
  Heap::Txn txn(*heap_);
  const uint64_t offset = txn.allocate(sizeof(DirectoryBlock));
  auto* block = at<DirectoryBlock>(offset);
  std::memset(block, 0, sizeof *block);
  block->magic = kDirectoryBlockMagic;
  block->number = number;
  block->checksum = block_checksum(*block);
  for (uint32_t i = 0; i < kDirectoryBlockEntries; ++i)
    block->entries[i].checksum = entry_checksum(block->entries[i], entries() + i);
  // With the intent, before the word that leads to it.
  memory_.flush(block, sizeof *block);
  uint64_t& link = number == 0 ? at<PoolHeader>(0)->directory_word
                               : blocks_[number - 1].load(std::memory_order_relaxed)->next;
  txn.will_link(offset, &link, Link::kTagged);
  txn.commit([&] {
    store_release(link, seal_word(offset, kDirectorySalt));
    memory_.flush(&link, sizeof link);
  });
  extend_format();
  blocks_[number].store(block, std::memory_order_release);
  directory_blocks_.store(number + 1, std::memory_order_release);
}

uint32_t PoolImpl::number_of(const DirectoryEntry& entry) const {
  {
    const std::lock_guard lock(annexes_mutex_);
    for (const Annex* annex : annexes_) {
      if (&annex->entry() == &entry) return kAnnexNumber;
    }
  }
  const uint64_t offset = offset_of(&entry);
  if (offset < header().lanes_offset) return static_cast<uint32_t>(&entry - &entry_at(0));
  const uint64_t within = (offset - data_offset_) % kSegmentBytes;
  const auto* block = at<DirectoryBlock>(offset - within);
  return kDirectoryEntries + static_cast<uint32_t>(block->number) * kDirectoryBlockEntries +
         static_cast<uint32_t>(&entry - block->entries);
}

void PoolImpl::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  transactions_->visit_blocks(visit);
  for (uint32_t i = 0; i < directory_blocks_.load(std::memory_order_acquire); ++i)
    visit(offset_of(blocks_[i].load(std::memory_order_acquire)), sizeof(DirectoryBlock));
}

// ---- names

void PoolImpl::index_names() {
  const std::lock_guard lock(names_mutex_);
  first_free_ = entries();
  for (uint32_t i = 0; i < entries(); ++i) {
    const DirectoryEntry& entry = entry_at(i);
    if (entry.in_use == kEntryFree) first_free_ = std::min(first_free_, i);
    if (entry.in_use == kEntryDropped) ++dropped_;
    if (entry.in_use != kEntryInUse) continue;
    names_.emplace(std::string(entry.name, ::strnlen(entry.name, sizeof entry.name)), i);
  }
}

void PoolImpl::expect_name(std::string_view name, uint32_t number) {
  const std::lock_guard lock(names_mutex_);
  names_.emplace(name, number);
}

void PoolImpl::forget_name(std::string_view name, uint32_t number) {
  const std::lock_guard lock(names_mutex_);
  for (auto [at, end] = names_.equal_range(name); at != end; ++at) {
    if (at->second != number) continue;
    names_.erase(at);
    return;
  }
}

void PoolImpl::note_dropped(uint32_t number) {
  ++dropped_;
  const DirectoryEntry& entry = entry_at(number);
  forget_name({entry.name, ::strnlen(entry.name, sizeof entry.name)}, number);
}

void PoolImpl::note_freed(uint32_t number) {
  --dropped_;
  first_free_ = std::min(first_free_, number);
}

const DirectoryEntry* PoolImpl::find(std::string_view name) const {
  if (const DirectoryEntry* annex = find_annex(name); annex != nullptr) {
    return load_acquire(annex->in_use) == kEntryInUse ? annex : nullptr;
  }
  const std::shared_lock lock(names_mutex_);
  for (auto [at, end] = names_.equal_range(name); at != end; ++at) {
    const DirectoryEntry& entry = entry_at(at->second);
    const bool named = has_name(entry, name);
    come_to_place("pool: looks at an entry");
    if (!named) continue;
    if (!becomes_sound(at->second)) throw_damaged(at->second);
    // While it changes, it may have had the beginning of one name and the end of another.
    if (!has_name(entry, name)) continue;
    return &entry;
  }
  return nullptr;
}

bool PoolImpl::names_root(uint64_t root) const {
  for (uint32_t i = 0; i < entries(); ++i) {
    const DirectoryEntry& entry = entry_at(i);
    if (load_acquire(entry.in_use) != kEntryFree && entry.root == root) return true;
  }
  return false;
}

uint32_t PoolImpl::entry_number(std::string_view name) const {
  const DirectoryEntry* entry = find(name);
  const uint32_t number = entry == nullptr ? kAnnexNumber : number_of(*entry);
  if (number == kAnnexNumber) throw_no_such_name(name);  // an annex has none that others may use
  return number;
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
    : pool_(pool),
      entry_(take(pool, name, root)),
      annex_(entry_ == kAnnexNumber ? name : std::string_view()),
      keep_(pool.weak_from_this().lock()) {}

PoolImpl::Use::Use(PoolImpl& pool, std::string_view name, const DirectoryEntry& reserved)
    : pool_(pool),
      entry_(take(pool, name, reserved)),
      annex_(entry_ == kAnnexNumber ? name : std::string_view()),
      keep_(pool.weak_from_this().lock()) {}

PoolImpl::Use::~Use() {
  if (entry_ == kAnnexNumber) {
    pool_.close_annex(annex_);
  } else {
    give_back(pool_, entry_);
  }
}

void PoolImpl::Use::throw_open(const PoolImpl& pool, std::string_view name) {
  throw Error(ErrorCode::kInUse,
              fmt::format("{}: the structure '{}' is open already in this process; use that one, "
                          "or close it first",
                          pool.mapping_.path(), name));
}

// While its bit is set nobody renames or drops the structure; before that both may happen, so what
// the name led to is looked at once more.
uint32_t PoolImpl::Use::take(PoolImpl& pool, std::string_view name, uint64_t root) {
  for (;;) {
    come_to_place("pool: takes a name");
    if (const auto opened = pool.open_annex(name); opened) {
      if (!*opened) throw_open(pool, name);  // by its owner
      return kAnnexNumber;
    }
    const uint32_t number = pool.entry_number(name);
    {
      const std::lock_guard lock(pool.uses_mutex_);
      if (!pool.uses_.insert(number).second) throw_open(pool, name);
    }
    const DirectoryEntry& entry = pool.entry_at(number);
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

uint32_t PoolImpl::Use::take(PoolImpl& pool, std::string_view name,
                             const DirectoryEntry& reserved) {
  const uint32_t number = pool.number_of(reserved);
  if (number == kAnnexNumber) {
    if (!pool.open_annex(name).value_or(false)) throw_open(pool, name);
    return number;
  }
  for (;;) {
    {
      const std::lock_guard lock(pool.uses_mutex_);
      if (pool.uses_.insert(number).second) return number;
    }
    // For a moment: of who looks for a name that has gone, or has just dropped what had the entry.
    std::this_thread::yield();
  }
}

void PoolImpl::require_unused() const {
  if (uses_.empty()) return;
  // Of one that is being created another thread writes the entry.
  const DirectoryEntry entry = copy_of(entry_at(*uses_.begin()));
  if (entry.in_use != kEntryInUse) {
    throw Error(ErrorCode::kInUse,
                fmt::format("{}: a structure is being created or dropped; wait for that, and close "
                            "structures before their pool",
                            mapping_.path()));
  }
  throw Error(ErrorCode::kInUse,
              fmt::format("{}: the structure '{}' is open; close structures before their pool",
                          mapping_.path(), entry.name));
}

void PoolImpl::Use::give_back(PoolImpl& pool, uint32_t entry) {
  const std::lock_guard lock(pool.uses_mutex_);
  pool.uses_.erase(entry);
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

DirectoryEntry* PoolImpl::reserve_entry(std::string_view name) {
  require_writable();
  require_new_name(name);
  if (DirectoryEntry* annex = find_annex(name); annex != nullptr) return annex;
  while (first_free_ < entries() && entry_at(first_free_).in_use != kEntryFree) ++first_free_;
  if (first_free_ == entries()) add_directory_block();
  return &entry_at(first_free_);
}

DirectoryEntry PoolImpl::make_entry(const DirectoryEntry* place, std::string_view name,
                                    std::string_view type, uint8_t key_kind, uint8_t value_kind,
                                    uint64_t root) {
  DirectoryEntry entry{};
  std::memcpy(entry.name, name.data(), name.size());
  std::memcpy(entry.type, type.data(), std::min(type.size(), sizeof entry.type - 1));
  entry.key_kind = key_kind;
  entry.value_kind = value_kind;
  entry.root = root;
  entry.in_use = kEntryInUse;
  const uint32_t number = number_of(*place);
  if (number == kAnnexNumber) return sealed(entry, number);
  if (last_made_ && entry_at(last_made_->second).in_use == kEntryFree)
    forget_name(last_made_->first, last_made_->second);  // it was not made
  last_made_.emplace(name, number);
  expect_name(name, number);
  return sealed(entry, number);
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
  txn.redo(&entry_at(number), &named, sizeof named);
  commit_names(txn);
  forget_name(from, number);
}

// The record is applied word by word. Who looks for a name meanwhile waits, else he might look at
// one entry too early and at the other too late, and find neither.
void PoolImpl::commit_names(Heap::Txn& txn) {
  const std::lock_guard lock(names_mutex_);
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
  txn.redo(&entry_at(first), &images[0], sizeof images[0]);
  txn.redo(&entry_at(second), &images[1], sizeof images[1]);
  come_to_place("pool: exchanges names");
  commit_names(txn);
  forget_name(one, first);
  forget_name(other, second);
}

DirectoryEntry PoolImpl::renamed(uint32_t number, std::string_view name) {
  expect_name(name, number);
  DirectoryEntry entry = entry_at(number);
  std::memset(entry.name, 0, sizeof entry.name);
  std::memcpy(entry.name, name.data(), name.size());
  return sealed(entry, number);
}

std::vector<StructureInfo> PoolImpl::structures() const {
  std::vector<StructureInfo> all;
  const std::shared_lock lock(names_mutex_);
  for (uint32_t i = 0; i < entries(); ++i) {
    if (load_acquire(entry_at(i).in_use) != kEntryInUse) continue;
    const DirectoryEntry entry = copy_of(entry_at(i));
    if (entry.in_use != kEntryInUse) continue;  // dropped meanwhile
    if (lenient() && !is_sound(i)) continue;
    all.push_back({entry.name, entry.type, kind_name(entry.key_kind), kind_name(entry.value_kind)});
  }
  return all;
}

}  // namespace perdure::pm
