#include "index/structure.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "pm/checksum.h"

namespace perdure::index {

uint64_t make_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, void* root, uint64_t root_bytes,
                        uint64_t sealed_bytes, std::span<const NewBlock> blocks,
                        StructureUse* use) {
  const auto seal = [sealed_bytes](void* image) {
    auto* own = static_cast<RootSeal*>(image);
    own->checksum = pm::checksum64(own + 1, sealed_bytes);
  };
  return make_structure(pool, name, type, key, value, root, root_bytes, seal, blocks, use);
}

uint64_t make_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, void* root, uint64_t root_bytes,
                        const std::function<void(void* root)>& seal,
                        std::span<const NewBlock> blocks, StructureUse* use) {
  const std::lock_guard lock(pool.directory_mutex());
  pm::DirectoryEntry* entry = pool.reserve_entry(name);
  StructureUse taken;
  if (use != nullptr) taken = std::make_shared<const pm::PoolImpl::Use>(pool, name, *entry);
  const pm::Memory& memory = pool.memory();

  pm::Heap::Txn txn(pool.heap());
  const uint64_t root_at = txn.allocate(root_bytes);
  char* home = pool.at<char>(root_at);
  std::memset(home, 0, root_bytes);
  memory.persist(home, root_bytes);  // no stale word may seem to link a block before it does
  txn.will_link(root_at, &entry->root, pm::Link::kOffset);
  for (const NewBlock& block : blocks) {
    const uint64_t offset = txn.allocate(block.bytes);
    block.fill(pool.at<char>(offset));
    txn.will_link(offset, home + block.link_at, pm::Link::kOffset);
    std::memcpy(static_cast<char*>(root) + block.link_at, &offset, sizeof offset);
  }
  seal(root);
  const pm::DirectoryEntry named = pool.make_entry(entry, name, type, static_cast<uint8_t>(key),
                                                   static_cast<uint8_t>(value), root_at);
  txn.redo(home, root, static_cast<uint32_t>(root_bytes));
  txn.redo(entry, &named, sizeof named);
  // The blocks and the intents, before the name that reveals them.
  txn.commit([&] { txn.apply(); });
  if (use != nullptr) *use = std::move(taken);
  return root_at;
}

uint64_t find_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, uint64_t magic, uint64_t root_bytes,
                        uint64_t sealed_bytes) {
  const uint64_t root = find_structure(pool, name, type, key, value, root_bytes);
  const auto* seal = pool.at<RootSeal>(root);
  if (seal->magic != magic || seal->checksum != pm::checksum64(seal + 1, sealed_bytes)) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  return root;
}

uint64_t find_structure(pm::PoolImpl& pool, const std::string& name, std::string_view type,
                        Kind key, Kind value, uint64_t root_bytes) {
  const pm::DirectoryEntry& entry =
      pool.require(name, type, static_cast<uint8_t>(key), static_cast<uint8_t>(value));
  if (!pool.heap().is_allocated(entry.root, root_bytes)) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  return entry.root;
}

void require_same(const pm::PoolImpl& pool, const std::string& name, const char* option,
                  uint64_t wanted, uint64_t have) {
  if (wanted == 0 || wanted == have) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: '{}' was made with {} {}, which is fixed at creation",
                          pool.mapping().path(), name, option, have));
}

void require_range(const char* option, uint64_t value, uint64_t least, uint64_t most) {
  if (value == 0 || (value >= least && value <= most)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; it must be {} to {}", option, value, least, most));
}

void throw_stuck(const pm::PoolImpl& pool, const std::string& name) {
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: '{}' cannot finish growing, since moving a part of it failed; "
                          "nothing was changed: open the pool again",
                          pool.mapping().path(), name));
}

void BlockOwners::meet(uint64_t offset, uint64_t bytes) {
  if (!met_.insert(offset).second) {
    fail_(fmt::format("'{}': block {} has two owners", name_, offset));
  }
  if (!pool_.heap().is_allocated(offset, bytes)) {
    fail_(fmt::format("'{}': block {} of {} bytes is in use, but not allocated", name_, offset,
                      bytes));
  }
}

void write_zeros(const pm::Memory& memory, void* target, uint64_t bytes) {
  alignas(pm::kLineBytes) static constexpr char kZeros[pm::kPageBytes] = {};
  auto* to = static_cast<char*>(target);
  for (uint64_t done = 0; done < bytes; done += sizeof kZeros) {
    memory.copy_nontemporal(to + done, kZeros, std::min<uint64_t>(sizeof kZeros, bytes - done));
  }
}

}  // namespace perdure::index
