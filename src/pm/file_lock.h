// Who has a file open: one writer, or readers.
//
// Nothing that read permission is enough for keeps a writer out. So neither flock() counts nor a read lock of fcntl(),
// which anybody can have who may read the file; a write lock needs a file that is open for writing. A writer has write
// locks on all of a region far behind the end of any file; a reader has one on a byte of it, of a file that it opens for
// writing and does not write to. Who may only read has no lock at all: what he reads may change (Mapping::freeze).
//
// A read lock of a stranger's in that region keeps every write lock away. A writer that meets only such locks has a lock
// file instead, PATH.lock, which who may not write to PATH may not open either. Whoever got his lock in the region
// looks whether there is such a file that is held, and whoever holds the file looks once more for write locks in the
// region: of two that come at once, one sees the other.
//
// Locks belong to the open file: they end with it, with the process at the latest, and children share them.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace perdure::pm {

class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept { swap(other); }
  FileLock& operator=(FileLock&& other) noexcept {
    swap(other);
    return *this;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

  // Keeps everybody else out until `file`, which is open for writing, is closed. `what` it is, for messages. Throws
  // kLocked, kIo.
  static FileLock for_writer(int file, const std::string& path, const char* what);
  // Keeps writers out. False: locks of who may only read are in the way. `file` is open for writing. Throws kLocked, kIo.
  static bool for_reader(int file, const std::string& path, const char* what);
  // Whether a writer has the file open.
  static bool has_writer(int file, const std::string& path);

 private:
  void swap(FileLock& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(path_, other.path_);
  }
  // The lock file of `path`, made and held. Throws kLocked.
  static FileLock lock_file_of(int file, const std::string& path, const char* what);

  int file_ = -1;     // the lock file, if there is one
  std::string path_;  // its
};

}  // namespace perdure::pm
