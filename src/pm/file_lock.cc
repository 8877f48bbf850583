#include "pm/file_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "perdure/error.h"
#include "pm/system_error.h"

namespace perdure::pm {

namespace {

constexpr off_t kRegion = off_t{1} << 62;
constexpr off_t kRegionBytes = off_t{1} << 40;  // the first byte is a writer's only
constexpr int kAttempts = 8;

struct flock lock_of(int16_t type, off_t begin, off_t bytes) {
  struct flock lock;
  std::memset(&lock, 0, sizeof lock);
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = begin;
  lock.l_len = bytes;
  return lock;
}

// False: somebody's lock is in the way.
bool take(int file, const std::string& path, off_t begin, off_t bytes) {
  struct flock lock = lock_of(F_WRLCK, begin, bytes);
  while (::fcntl(file, F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) return false;
    if (errno != EINTR) throw_errno("fcntl (lock)", path, errno);
  }
  return true;
}

// Whether somebody else has a write lock there: only these are in the way of a read lock.
bool is_written(int file, const std::string& path, off_t begin, off_t bytes) {
  struct flock lock = lock_of(F_RDLCK, begin, bytes);
  if (::fcntl(file, F_OFD_GETLK, &lock) != 0) throw_errno("fcntl (lock)", path, errno);
  return lock.l_type != F_UNLCK;
}

[[noreturn]] void throw_locked(const std::string& path, const char* what) {
  throw Error(ErrorCode::kLocked,
              fmt::format("{}: the {} is open already, in another process or in this one; close it "
                          "there first",
                          path, what));
}

std::string lock_path_of(const std::string& path) { return path + ".lock"; }

// Whether a writer holds the lock file. Who may not open it takes one that is there for held.
bool is_lock_file_held(const std::string& path) {
  const int file = ::open(lock_path_of(path).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return errno != ENOENT && errno != ELOOP;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

// What a writer that died has left. Who holds the region comes here.
void remove_left_over(const std::string& path) {
  const std::string name = lock_path_of(path);
  const int file = ::open(name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return;
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlink(name.c_str());
  ::close(file);
}

}  // namespace

FileLock::~FileLock() {
  if (file_ < 0) return;
  ::unlink(path_.c_str());  // while it is held: who opened it meanwhile finds it without a name
  ::close(file_);
}

FileLock FileLock::lock_file_of(int file, const std::string& path, const char* what) {
  struct stat pool{};
  if (::fstat(file, &pool) != 0) throw_errno("fstat", path, errno);
  // For those who may write to the pool, and nobody else.
  const mode_t writers = pool.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH);
  FileLock lock;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string name = lock_path_of(path);
    const int own =
        ::open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (own < 0 && errno == EACCES) throw_locked(path, what);  // another writer's
    if (own < 0) throw_errno("open", name, errno);
    struct stat status{};
    const bool held = ::flock(own, LOCK_EX | LOCK_NB) == 0;
    if (held && ::fstat(own, &status) == 0 && status.st_nlink > 0) {
      static_cast<void>(::fchown(own, static_cast<uid_t>(-1), pool.st_gid) == 0 &&
                        ::fchmod(own, writers | writers << 1) == 0);
      lock.file_ = own;
      lock.path_ = name;
      return lock;
    }
    ::close(own);
    if (!held) throw_locked(path, what);
  }
  throw_locked(path, what);
}

FileLock FileLock::for_writer(int file, const std::string& path, const char* what) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (take(file, path, kRegion, kRegionBytes)) {
      if (is_lock_file_held(path)) throw_locked(path, what);
      remove_left_over(path);
      return {};
    }
    if (is_written(file, path, kRegion, kRegionBytes)) throw_locked(path, what);
  }
  FileLock lock = lock_file_of(file, path, what);
  if (is_written(file, path, kRegion, kRegionBytes)) throw_locked(path, what);
  return lock;
}

bool FileLock::for_reader(int file, const std::string& path, const char* what) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t place = 0;
    if (::getrandom(&place, sizeof place, 0) != sizeof place) throw_errno("getrandom", path, errno);
    // Any byte but the first.
    const off_t slot = kRegion + 1 + static_cast<off_t>(place % (kRegionBytes - 1));
    if (take(file, path, slot, 1)) {
      if (is_lock_file_held(path)) throw_locked(path, what);
      return true;
    }
    if (is_written(file, path, kRegion, 1)) throw_locked(path, what);
  }
  return false;
}

bool FileLock::has_writer(int file, const std::string& path) {
  return is_written(file, path, kRegion, 1) || is_lock_file_held(path);
}

}  // namespace perdure::pm
