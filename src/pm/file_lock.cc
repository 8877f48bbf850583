#include "pm/file_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/random.h>

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

}  // namespace

void lock_for_writer(int file, const std::string& path, const char* what) {
  if (take(file, path, kRegion, kRegionBytes)) return;
  if (is_written(file, path, kRegion, kRegionBytes)) throw_locked(path, what);
  throw Error(
      ErrorCode::kLocked,
      fmt::format("{}: another program holds a read lock on the {}, which Perdure never does; "
                  "lslocks(8) says which, and it must end before the {} can be opened to write",
                  path, what, what));
}

bool lock_for_reader(int file, const std::string& path, const char* what) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t place = 0;
    if (::getrandom(&place, sizeof place, 0) != sizeof place) throw_errno("getrandom", path, errno);
    // Any byte but the first.
    const off_t slot = kRegion + 1 + static_cast<off_t>(place % (kRegionBytes - 1));
    if (take(file, path, slot, 1)) return true;
    if (is_written(file, path, kRegion, 1)) throw_locked(path, what);
  }
  return false;
}

bool has_writer(int file, const std::string& path) { return is_written(file, path, kRegion, 1); }

}  // namespace perdure::pm
