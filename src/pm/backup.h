// Copying an open pool to a file, and making a pool of such a file (Pool::backup, Pool::restore).
#pragma once

#include <string>
#include <vector>

#include "perdure/pool.h"

namespace perdure::pm {

class PoolImpl;

// Throws kInvalidArgument if the thread is in BackupOptions::progress of another one.
void require_no_backup_of_thread(const char* what);

BackupReport write_backup(const PoolImpl& pool, const std::string& path,
                          const BackupOptions& options);
void restore_backup(const std::string& backup, const std::string& path,
                    const std::vector<std::string>& bases);

}  // namespace perdure::pm
