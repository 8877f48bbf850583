// Copying an open pool to a file, and making a pool of such a file (Pool::backup, Pool::restore).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "perdure/pool.h"
#include "pm/mapping.h"

namespace perdure::pm {

class PoolImpl;
class BackupFile;
struct LiveRequest;

// Throws kInvalidArgument if the thread is in BackupOptions::progress of another one.
void require_no_backup_of_thread(const char* what);

using BackupProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// A file that is open to write, and empty, and what a backup that is written to it rests on.
struct BackupTarget {
  int file;
  std::string name;        // for messages
  const BackupFile* base;  // null: nothing
  std::string base_name;   // under which it lies beside the backup
};

// Copies the pool, as Pool::backup() does. Whoever made the file sees to it that it is durable.
BackupReport copy_pool(const PoolImpl& pool, const BackupTarget& target,
                       const BackupProgress& progress);
// The same of a pool that another process has open to write, which does it: see live.h. Throws what
// it has thrown there, and as ask_live(); kIo if what was written is not what that process says.
struct AskedCopy {
  BackupReport report;
  bool of_own_user;  // else the other process can still write to the file
};
AskedCopy ask_for_copy(const std::string& pool, const BackupTarget& target,
                       const BackupProgress& progress);
// There: what is answered.
std::vector<uint64_t> answer_for_copy(const PoolImpl& pool, const LiveRequest& request,
                                      const BackupProgress& progress);

// Pool::backup(), and Pool::backup_live().
BackupReport write_backup(const PoolImpl& pool, const std::string& path,
                          const BackupOptions& options);
BackupReport ask_for_backup(const std::string& pool, const std::string& path,
                            const BackupOptions& options);
void restore_backup(const std::string& backup, const std::string& path,
                    const std::vector<std::string>& bases);

// Whether there is a file of this name that begins as a backup does.
bool is_backup_file(const std::string& path) noexcept;
// What the pool was, to be opened read-only, by as many as like to. Nobody changes a backup: it is
// replaced by another file, while the one that is open stays. `verify`: all of it is read, and
// compared with its checksums. Throws as restore_backup() does.
Mapping open_backup(const std::string& backup, bool verify);

}  // namespace perdure::pm
