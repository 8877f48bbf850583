// Making, opening and closing a table.
#include "index/plush/core.h"

#include <exception>
#include <mutex>

#include "index/plush/root.h"

namespace perdure::index::plush {

Core::Core(pm::PoolImpl& pool, Root& root, const std::string& name, Kind key_kind, Kind value_kind,
           const PlushOptions& options)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(name),
      key_kind_(key_kind),
      value_kind_(value_kind),
      keys_(root.shape),
      geometry_(root, top_max_of(root)),
      rows_(geometry_, keys_),
      levels_(pool, root, name_, geometry_, keys_, rows_, options.filter_levels),
      partitions_(pool, root, geometry_),
      payload_(pool, root, name_, keys_, key_kind, value_kind, partitions_.count()),
      lookup_(pool, name_, geometry_, keys_, rows_, levels_, payload_, partitions_),
      migrator_(pool, root, geometry_, rows_, levels_, lookup_, payload_, partitions_,
                options.garbage_percent),
      log_(memory_, geometry_, rows_, migrator_, payload_, partitions_),
      collector_(memory_, geometry_, keys_, rows_, lookup_, payload_, partitions_, migrator_,
                 log_) {}

std::unique_ptr<Core> Core::create(pm::PoolImpl& pool, const std::string& name, Kind key_kind,
                                   Kind value_kind, const PlushOptions& options) {
  Root& root = make_table(pool, name, key_kind, value_kind, options);
  std::unique_ptr<Core> core(new Core(pool, root, name, key_kind, value_kind, options));
  core->levels_.preallocate();
  core->recover(options.recovery_threads);
  return core;
}

std::unique_ptr<Core> Core::open(pm::PoolImpl& pool, const std::string& name, Kind key_kind,
                                 Kind value_kind, const PlushOptions& options) {
  Root& root = find_table(pool, name, key_kind, value_kind, options);
  std::unique_ptr<Core> core(new Core(pool, root, name, key_kind, value_kind, options));
  if (core->payload_.is_used()) core->payload_.log().extend_places();
  core->recover(options.recovery_threads);
  return core;
}

Core::~Core() {
  if (recovered_ && !pool_.read_only() && !pool_.failed() && !pool_.is_dropped(&root_)) {
    try {
      close();
    } catch (const std::exception&) {  // the log still holds everything
    }
  }
}

void Core::close() {
  for (uint32_t i = 0; i < partitions_.count(); ++i) {
    Partition& partition = partitions_[i];
    const std::lock_guard lock(partition.lock);
    require_writable();
    partition.unlogged ? log_.log_all_rows(partition) : log_.compact(partition);
    if (payload_.is_used()) payload_.log().close(i);
  }
  if (payload_.is_used()) memory_.fence();  // the ends that were noted
}

}  // namespace perdure::index::plush
