// Removing structures: which blocks one has, only itself can tell.
#include "pm/drop.h"

#include <optional>

#include "buffer/engine.h"
#include "index/owned_blocks.h"
#include "lsm/cache/core.h"
#include "lsm/files/file_system.h"
#include "perdure/block_cache.h"
#include "perdure/catalog.h"
#include "perdure/database.h"
#include "perdure/files.h"
#include "pm/pool_impl.h"

namespace perdure {

uint64_t drop_structure(Pool& pool, const std::string& name) {
  pm::PoolImpl& impl = pm::impl_of(pool);
  impl.require_writable();
  const pm::DirectoryEntry* entry = impl.find(name);
  if (entry == nullptr) impl.throw_no_such_name(name);
  // Whatever is open keeps others from opening it, and goes before the blocks do.
  std::optional<pm::PoolImpl::Use> use;
  std::shared_ptr<files::FileSystem> files;
  std::shared_ptr<block_cache::Core> cache;
  std::unique_ptr<AnyIndex> index;
  if (entry->type == std::string_view(Database::kTypeName)) {
    use.emplace(impl, name);
  } else if (entry->type == std::string_view(Files::kTypeName)) {
    files = files::FileSystem::open(impl, name);
  } else if (entry->type == std::string_view(BlockCache::kTypeName)) {
    cache = block_cache::Core::open(impl, name, {});
  } else {
    index = open_index(pool, name);
  }
  pm::Drop drop(impl, name);
  const auto add = [&drop](uint64_t offset, uint64_t) { drop.add(offset); };
  if (use) buffer::Engine::visit_blocks(impl, name, add);
  if (files) files->visit_blocks(add);
  if (cache) cache->visit_blocks(add);
  if (index) index::visit_blocks_of(*index, add);
  drop.commit();
  index.reset();
  files.reset();
  cache.reset();
  use.reset();
  drop.finish();
  return drop.freed_bytes();
}

}  // namespace perdure
