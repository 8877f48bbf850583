// Copying an open pool to a file, and making a pool of such a file (Pool::backup, Pool::restore).
#pragma once

#include <string>
#include <vector>

#include "perdure/pool.h"
#include "pm/mapping.h"

namespace perdure::pm {

class PoolImpl;

// Throws kInvalidArgument if the thread is in BackupOptions::progress of another one.
void require_no_backup_of_thread(const char* what);

BackupReport write_backup(const PoolImpl& pool, const std::string& path,
                          const BackupOptions& options);
void restore_backup(const std::string& backup, const std::string& path,
                    const std::vector<std::string>& bases);

// Whether there is a file of this name that begins as a backup does.
bool is_backup_file(const std::string& path) noexcept;
// What the pool was, to be opened read-only, by as many as like to. Nobody changes a backup: it is replaced by another
// file, while the one that is open stays. `verify`: all of it is read, and compared with its checksums. Throws as
// restore_backup() does.
Mapping open_backup(const std::string& backup, bool verify);

}  // namespace perdure::pm
